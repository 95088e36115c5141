"""States that look like ours and are another library's: refused by name, not as damage."""

from collections.abc import Mapping
from typing import Any

from headrace.errors import StateError

__all__ = ["check_ours"]


def check_ours(state: Any) -> None:
    """Nothing; StateError for a state of MosaicML Streaming, whose epochs have another order."""
    if isinstance(state, Mapping) and "sample_in_epoch" in state:
        raise StateError(
            "the state is one of MosaicML Streaming, whose order is another: it cannot be gone on with. Finish its "
            "epoch with Streaming, or begin one anew"
        )
