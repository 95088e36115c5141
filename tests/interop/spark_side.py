"""dataframe_to_mds in Spark itself, which runs partitions again that failed or whose worker was killed.

python -m interop.spark_side FOLDER      writes a dataset a case below FOLDER, and prints what Spark raised, by case
"""

import json
import os
import signal
import sys
from pathlib import Path

ROWS = 1000
SHARES = 5
TRIES = 3


def once(mark):
    """True for the first who asks."""
    try:
        os.close(os.open(mark, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


def numbers(rows, mark, fail):
    """A sample a row; in the middle of the batch that has row 500 it fails, once."""
    for number in rows["id"]:
        if number == 500 and once(mark):
            fail()
        yield {"number": int(number)}


def raise_error():
    raise ConnectionError("a service was not there")


def kill():
    os.kill(os.getpid(), signal.SIGKILL)


def with_spark(executors):
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master(f"local[{executors},{TRIES}]").config("spark.ui.enabled", "false")
    spark = builder.config("spark.driver.host", "127.0.0.1").getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    return spark


def rows_of(spark):
    """All kinds of columns; partition 1 of the five is empty."""
    every = spark.range(0, ROWS, 1, SHARES).where("id < 200 or id >= 400")
    return every.selectExpr(
        "id",
        "cast(id - 500 as short) as short",
        "cast(id % 100 - 50 as byte) as byte",
        "cast(id as float) / 8 as float",
        "cast(id as decimal(12, 3)) as decimal",
        "concat('row ', id) as text",
        "encode(cast(id as string), 'utf-8') as bytes",
        "id % 2 = 0 as even",
        "array(cast(id as int), 7) as array",
        "named_struct('at', id, 'names', array('a', null)) as struct",
        "map('id', id) as map",
    )


def raised(action):
    try:
        action()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def main(folder):
    """Write every case."""
    from headrace import dataframe_to_mds

    spark = with_spark(1)
    dataframe_to_mds(rows_of(spark), mds_kwargs={"out": f"{folder}/by-one"})
    spark.stop()
    spark = with_spark(3)
    dataframe_to_mds(rows_of(spark), mds_kwargs={"out": f"{folder}/by-three"})
    seen = {"there": raised(lambda: dataframe_to_mds(rows_of(spark), mds_kwargs={"out": f"{folder}/by-three"}))}
    plain = spark.range(0, ROWS, 1, SHARES)
    for name, fail in {"undisturbed": int, "failed-once": raise_error, "killed-once": kill}.items():
        given = {"mark": f"{folder}/{name}.mark", "fail": fail}
        kwargs = {"out": f"{folder}/{name}", "columns": {"number": "int"}}
        seen[name] = raised(
            lambda given=given, kwargs=kwargs: dataframe_to_mds(
                plain, mds_kwargs=kwargs, udf_iterable=numbers, udf_kwargs=given
            )
        )
    nulls = plain.selectExpr("if(id = 7, null, id) as id")
    seen["null"] = raised(lambda: dataframe_to_mds(nulls, mds_kwargs={"out": f"{folder}/null"}))
    empty = plain.where("id < 0")
    seen["empty"] = raised(lambda: dataframe_to_mds(empty, mds_kwargs={"out": f"{folder}/empty"}))
    spark.stop()
    print(json.dumps(seen))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
