"""The stream that AutoDataProvider gives: a loader's batches as packs, over several epochs, with one small state."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from headrace.errors import StateError
from headrace.loading import StatefulDataLoader
from headrace.loading.pack_protocols import CollateFn, MicrobatchPack

__all__ = ["AutoDataStream", "PackCollate"]


class PackCollate:
    """A step's rows of a rank to its pack: microbatches of microbatch_size rows, the last maybe fewer; [] of none."""

    def __init__(self, collator: CollateFn, microbatch_size: int) -> None:
        self.collator = collator
        self.microbatch_size = microbatch_size

    def __call__(self, rows: Sequence[Any]) -> list[Any]:
        """The pack."""
        size, collator = self.microbatch_size, self.collator
        return [collator(rows[begin : begin + size]) for begin in range(0, len(rows), size)]


class AutoDataStream:
    """Packs of a loader that makes a pack a step. Its state is equal on every rank, and loads with any number."""

    is_elastic = True

    def __init__(self, loader: StatefulDataLoader, *, epochs: int | None) -> None:
        self._loader = loader
        self._epochs = epochs

    def __iter__(self) -> Iterator[MicrobatchPack[Any]]:
        while self._epochs is None or self._epoch() < self._epochs:
            yield from self._loader

    @property
    def total_steps(self) -> int | None:
        """Packs of all epochs; None where there is no end."""
        return None if self._epochs is None else self._epochs * len(self._loader)

    def state_dict(self) -> dict[str, Any]:
        """Where the consumer is, as {"state": JSON}."""
        return {"state": json.dumps(self._loader.state_dict())}

    def load_state_dict(self, state_dict: Mapping[str, Any], /) -> None:
        """Begin the next iter() there."""
        if not isinstance(state_dict, Mapping) or not isinstance(state_dict.get("state"), str):
            raise StateError("no state of this stream")
        self._loader.load_state_dict(json.loads(state_dict["state"]))

    def close(self) -> None:
        """End worker processes."""
        self._loader.close()

    def _epoch(self) -> int:
        epoch: int = self._loader.state_dict()["epoch"]
        return epoch
