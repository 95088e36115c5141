"""Datasets in another order. A view is a map-style dataset whose items are its base's, found by arithmetic.

Every view has `base`, `locate(positions) -> the base's positions`, `settings`, and `ordered = True`. Positions are
endless: epoch and index follow by divmod, so views nest and each keeps its own epochs.
"""

from headrace.views.protocol import MapDataset, dataset_settings, fetch, is_view
from headrace.views.shuffled import ShuffledDataset

__all__ = ["MapDataset", "ShuffledDataset", "dataset_settings", "fetch", "is_view"]
