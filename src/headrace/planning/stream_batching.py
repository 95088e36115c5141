"""Which stream stands at which position, and which of its draws that is.

    random              any stream anywhere, in exact proportions                       | a b a c a b | b a ...
    per_stream          each global batch of one stream                                 | a a a a a a | b b ...
    device_per_stream   each device's part of a global batch of one stream              | a b a b a b |   on 2 devices
    stratified          each global batch with the same number of rows of each stream   | a b a a c b | a a ...

Draws of a stream are endless and come without a gap: what a stream has given is one number, at every epoch's end in all
of these, and with random at every position. Without a shuffle streams come one after the other.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, Protocol, get_args

import numpy as np
from numpy.typing import NDArray

from headrace.errors import OptionError
from headrace.planning.blocks import permuted_in_blocks
from headrace.planning.mixture import MixturePlan
from headrace.planning.permutation import derive_seed
from headrace.planning.proportions import apportioned
from headrace.planning.recipe import Recipe
from headrace.planning.runs import RunPlan

__all__ = ["Batching", "BatchingMethod", "StreamRows", "rows_of"]

_Int64s = NDArray[np.int64]

BatchingMethod = Literal["random", "per_stream", "device_per_stream", "stratified"]


@dataclass(frozen=True, slots=True)
class Batching:
    """How streams share global batches, of batch_size rows on each of num_devices devices.

    "random" needs neither, and does not depend on them. OptionError for the other methods without a batch_size, for one
    below 1, and for an unknown method.
    """

    method: BatchingMethod = "random"
    batch_size: int | None = None
    num_devices: int = 1

    def __post_init__(self) -> None:
        if self.method not in get_args(BatchingMethod):
            raise OptionError("batching_method", self.method, f"one of {', '.join(get_args(BatchingMethod))}")
        if self.method == "random":
            return
        if self.batch_size is None:
            expected = f"the rows of a batch on one device: batching_method={self.method!r} makes whole batches"
            raise OptionError("batch_size", None, expected)
        for name in ("batch_size", "num_devices"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | np.integer):
                raise TypeError(f"{name} must be a whole number, not {value!r}")
            if value < 1:
                raise OptionError(name, value, "at least 1")

    @property
    def global_batch_size(self) -> int:
        """Rows of a global batch; 1 with "random", which knows no batches."""
        return 1 if self.method == "random" else int(self.batch_size or 1) * int(self.num_devices)


class StreamRows(Protocol):
    """The rows of streams, in order; an epoch has chosen[s] of stream s, after clipping."""

    epoch_size: int
    chosen: list[int]

    def draws(self, positions: _Int64s) -> tuple[_Int64s, _Int64s]:
        """The stream at each of these endless positions, and which of its draws it is; shape (n,) both."""


def rows_of(chosen: Sequence[int], batching: Batching, seed: int | None) -> StreamRows:
    """The rows of streams that give so many an epoch; seed None for streams one after the other.

    OptionError where some stream would never have a row in a batch, or an epoch no batch.
    """
    size, devices = batching.global_batch_size, int(batching.num_devices)
    run_length = {"per_stream": size, "device_per_stream": size // devices}.get(batching.method, 1)
    whole = [rows // run_length * run_length for rows in chosen]
    for stream, (rows, served) in enumerate(zip(chosen, whole, strict=True)):
        if rows and not served:
            expected = (
                f"fewer, so that stream {stream}, which gives {rows} rows an epoch, fills a batch of its own (of "
                f"{run_length} rows now); or a larger part for this stream, or none"
            )
            raise OptionError("batch_size", batching.batch_size, expected)
    if 0 < sum(whole) < size:
        expected = f"fewer, as the {sum(whole)} rows of an epoch do not fill one global batch of {size}"
        raise OptionError("batch_size", batching.batch_size, expected)
    if batching.method == "stratified":
        return _Stratified(chosen, batching, seed)
    together = _InTurn(whole) if seed is None or sum(map(bool, whole)) < 2 else _Mixed(whole, run_length, seed)
    return together if batching.method != "device_per_stream" else _OnDevices(together, run_length, devices)


class _InTurn:
    """Streams one after the other, in every epoch."""

    def __init__(self, chosen: list[int]) -> None:
        self.chosen = chosen
        self.epoch_size = sum(chosen)
        self._counts = np.array(chosen, np.int64)

    def draws(self, positions: _Int64s) -> tuple[_Int64s, _Int64s]:
        return _in_turn(self._counts, *np.divmod(positions, self.epoch_size))


class _Mixed:
    """Runs of streams in exact proportions: a mixture whose weights are the rows they give."""

    def __init__(self, chosen: list[int], run_length: int, seed: int) -> None:
        self.chosen = chosen
        self.epoch_size = sum(chosen)
        self._run_length, self._seed = run_length, seed

    def draws(self, positions: _Int64s) -> tuple[_Int64s, _Int64s]:
        sources, draws = self._plan.draws(positions)
        return self._active[sources], draws

    @cached_property
    def _active(self) -> _Int64s:
        return np.flatnonzero(np.array(self.chosen, np.int64))

    @cached_property
    def _plan(self) -> MixturePlan | RunPlan:
        """Made at first use: of a thousand streams it takes milliseconds."""
        weights = tuple(rows for rows in self.chosen if rows)
        names = tuple(str(stream) for stream in self._active.tolist())
        return Recipe(
            names=names,
            lengths=weights,
            points=((0, weights),),
            linear=False,
            means=None,
            max_epochs=(None,) * len(weights),
            epoch_size=self.epoch_size,
            seed=self._seed,
            run_length=self._run_length,
        ).plan()


class _OnDevices:
    """Runs dealt to devices: row i of a global batch is of device i mod num_devices, and so of that device's run.

        runs             r0: 0 1 2   r1: 3 4 5              batch_size 3, 2 devices
        global batch     0 3 1 4 2 5

    Runs are endless, and an epoch has the whole global batches of them that fit into one round: the devices' batches
    that are left over begin the next epoch, so that no stream loses any, and draws go on without a gap.
    """

    def __init__(self, runs: StreamRows, batch_size: int, num_devices: int) -> None:
        self.chosen = runs.chosen
        self._runs, self._batch_size, self._num_devices = runs, batch_size, num_devices
        self._global_batch_size = batch_size * num_devices
        self.epoch_size = runs.epoch_size // self._global_batch_size * self._global_batch_size

    def draws(self, positions: _Int64s) -> tuple[_Int64s, _Int64s]:
        rows = positions % self._global_batch_size
        elements, devices = np.divmod(rows, self._num_devices)
        return self._runs.draws(positions - rows + devices * self._batch_size + elements)


class _Stratified:
    """Global batches with the same number of rows of each stream, permuted inside each batch."""

    def __init__(self, chosen: Sequence[int], batching: Batching, seed: int | None) -> None:
        size = self._batch = batching.global_batch_size
        counts = apportioned(chosen, size) if any(chosen) else [0] * len(chosen)
        for stream, (rows, count) in enumerate(zip(chosen, counts, strict=True)):
            if rows and not count:
                total, devices = sum(chosen), int(batching.num_devices)
                enough = -(-total // (rows * devices))
                least = f"at least {enough}" if enough * devices <= total else "another"
                expected = (
                    f"{least}, so that stream {stream}, which gives {rows} of {total} rows an epoch, has a row in each "
                    f"global batch (of {size} rows on {devices} devices now); or a larger part for this stream, or none"
                )
                raise OptionError("batch_size", batching.batch_size, expected)
        steps = min((rows // count for rows, count in zip(chosen, counts, strict=True) if count), default=0)
        self.chosen = [steps * count for count in counts]
        self.epoch_size = steps * size
        self._seed = None if seed is None else derive_seed(seed, "stratified")
        self._counts = np.array(counts, np.int64)

    def draws(self, positions: _Int64s) -> tuple[_Int64s, _Int64s]:
        steps, slots = np.divmod(positions, self._batch)
        if self._seed is not None:
            slots = permuted_in_blocks(slots, self._batch, self._batch, self._seed, steps)
        return _in_turn(self._counts, steps, slots)


def _in_turn(counts: _Int64s, rounds: _Int64s, places: _Int64s) -> tuple[_Int64s, _Int64s]:
    """The stream and draw at these places of these rounds, each of which has counts[s] draws of stream s in turn."""
    ends: _Int64s = counts.cumsum()
    streams = np.searchsorted(ends, places, side="right").astype(np.int64)  # one that gives nothing is stepped over
    of_each: _Int64s = counts[streams]
    draws: _Int64s = rounds * of_each + places - (ends[streams] - of_each)
    return streams, draws
