"""Other systems, one a file: what their users call here. Nothing else in Headrace imports this package.

spark.py    dataframe_to_mds: the rows of a Spark DataFrame as a dataset of samples

The systems themselves are imported when a name is used, never before.
"""

from headrace.integrations.spark import dataframe_to_mds

__all__ = ["dataframe_to_mds"]
