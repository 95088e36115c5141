"""The order of streams: endless positions to global ids, as a pure function.

    position, endless     epoch, index = divmod(position, epoch_size)
          | stream_batching.py: which stream stands there, and which of its draws that is
    stream, draw
          | stream_draws.py: which item of the stream that is
    id                    ids before the stream + item: streams lie one after the other

Nothing grows with the number of samples; a pooled shuffle keeps a few integers a shard. World sizes and workers are
unknown here, but for the batching methods that are made of the batches of devices.
"""

from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from headrace.errors import OptionError
from headrace.planning.cursor import Setting
from headrace.planning.permutation import MAX_ITEMS
from headrace.planning.shuffle import ORDER_VERSION
from headrace.planning.stream_batching import Batching, rows_of
from headrace.planning.stream_draws import Shuffle, StreamDraws, StreamShards

__all__ = ["StreamOrder"]

_Int64s = NDArray[np.int64]

_TEXT_LIMIT = 100  # characters of counts that settings show; more are a digest


class StreamOrder:
    """The rows of an epoch, and of all that follow it, over streams that lie one after the other.

    | argument | meaning |
    | --- | --- |
    | streams | the items of each one's shards, and the rows that an epoch has of it |
    | shuffle | pooled or global; None: streams one after the other, each as it is stored |
    | sampling | "balanced": an epoch draws on where the last one ended; "fixed": the same rows in every epoch |
    | batching | which streams share a global batch |

    Balanced, everything of a stream is seen before anything of it comes again.

    epoch_size is the rows of an epoch for all ranks; chosen, shape (num_streams,), how many of them each stream has:
    what batches have no place for is left out. (With "device_per_stream" the device batches that do not fill a global
    one begin the next epoch: epochs have up to one global batch less than the sum of chosen, and streams get their
    share over the epochs, of the same rows again where they are fixed.) OptionError for a stream that has no items and
    should give some, for one that would never have a row in a batch, and for an epoch that would have no batch.
    """

    def __init__(
        self,
        streams: Sequence[StreamShards],
        *,
        shuffle: Shuffle | None,
        seed: int,
        sampling: Literal["balanced", "fixed"] = "balanced",
        batching: Batching | None = None,
    ) -> None:
        if sampling not in ("balanced", "fixed"):
            raise OptionError("sampling_method", sampling, "'balanced' or 'fixed'")
        batching = batching or Batching()
        self._arguments = (tuple(streams), shuffle, int(seed), sampling, batching)
        self._shards = [np.asarray(stream.shard_items, np.int64) for stream in streams]
        self._given = [int(stream.chosen) for stream in streams]
        self._sizes = [int(items.sum()) for items in self._shards]
        self._check()
        self._rows = rows_of(self._given, batching, None if shuffle is None else int(seed))
        fixed = sampling == "fixed"
        self._draws = StreamDraws(self._shards, self._rows.chosen, shuffle, int(seed), fixed=fixed)
        self.epoch_size = self._rows.epoch_size
        self.chosen = tuple(self._rows.chosen)
        self._end = MAX_ITEMS - sum(self.chosen) - batching.global_batch_size  # of the positions that there are
        self._starts = np.cumsum([0, *self._sizes])  # (num_streams + 1,) the first id of each stream

    def __reduce__(self) -> tuple[Any, ...]:
        return _made, self._arguments

    def __repr__(self) -> str:
        _, shuffle, seed, sampling, batching = self._arguments
        options = f"shuffle={shuffle}, seed={seed}, sampling={sampling!r}, batching={batching}"
        return f"StreamOrder({len(self._given)} streams, {options})"

    def ids(self, positions: _Int64s) -> _Int64s:
        """The global ids at these endless positions, of the same shape; in any order, and as often as asked.

        IndexError for negative positions, for any in an order without rows, and for those beyond 2**62; TypeError for
        what is not an integer.
        """
        streams, draws = self.origins(positions)
        if streams.size == 0:
            return streams
        items = self._draws.items(streams.ravel(), draws.ravel()).reshape(streams.shape)
        ids: _Int64s = self._starts[streams] + items
        return ids

    def origins(self, positions: _Int64s) -> tuple[_Int64s, _Int64s]:
        """The stream at each of these endless positions, and which of its draws it is, both of the same shape.

        A stream's draws are 0, 1, 2, ... over all epochs. Errors as ids() has them.
        """
        given = np.asarray(positions)
        if given.size == 0:
            return np.empty(given.shape, np.int64), np.empty(given.shape, np.int64)
        if given.dtype.kind not in "iu":
            raise TypeError(f"positions must be integers, not {given.dtype}")
        lowest, highest = int(given.min()), int(given.max())
        if lowest < 0 or self.epoch_size == 0:
            raise IndexError(f"position {lowest} is outside an order of {self.epoch_size} rows an epoch")
        if highest >= self._end:
            raise IndexError(f"position {highest} is in an epoch that does not end below 2**62")
        streams, draws = self._rows.draws(given.astype(np.int64, copy=False).ravel())
        return streams.reshape(given.shape), draws.reshape(given.shape)

    @property
    def rows_together(self) -> int:
        """Rows of a global batch that the order is made of, so that it must be read in these; 1 where it is not."""
        batching: Batching = self._arguments[-1]
        return batching.global_batch_size

    @property
    def settings(self) -> Mapping[str, Setting]:
        """What decides the order, small enough for a state: equal settings mean the same order."""
        _, shuffle, seed, sampling, batching = self._arguments
        settings: dict[str, Setting] = {"shuffle": "off" if shuffle is None else shuffle.scope}
        if shuffle is not None and shuffle.scope == "pooled":
            shards = [part for items in self._shards for part in (np.array([len(items)]), items)]
            settings |= {
                "pool_items": int(shuffle.pool_items),
                "lanes": int(shuffle.lanes),
                "shards": _digest(np.concatenate(shards)) if shards else "",
            }
        settings |= {"seed": seed, "order_version": ORDER_VERSION, "sampling": sampling, "batching": batching.method}
        if batching.method == "device_per_stream":
            settings |= {"batch_size": int(batching.batch_size or 1), "devices": int(batching.num_devices)}
        elif batching.method != "random":  # which device gets what of a global batch decides nothing here
            settings |= {"global_batch_size": batching.global_batch_size}
        return settings | {"sizes": _counts(self._sizes), "chosen": _counts(self._given)}

    def _check(self) -> None:
        for number, (items, rows, size) in enumerate(zip(self._shards, self._given, self._sizes, strict=True)):
            if items.ndim != 1 or (items.size and int(items.min()) < 0):
                raise OptionError(
                    f"streams[{number}].shard_items", items.tolist()[:8], "a list of counts of at least 0"
                )
            if rows < 0 or (rows and not size):
                expected = "0, since this stream has no samples" if rows > 0 else "at least 0"
                raise OptionError(f"streams[{number}].chosen", rows, expected)
        for name, counts in (("samples", self._sizes), ("rows an epoch", self._given)):
            if sum(counts) >= MAX_ITEMS // 4:
                raise OptionError("streams", f"{sum(counts)} {name}", "less than 2**60")


def _made(
    streams: Sequence[StreamShards],
    shuffle: Shuffle | None,
    seed: int,
    sampling: Literal["balanced", "fixed"],
    batching: Batching,
) -> StreamOrder:
    return StreamOrder(streams, shuffle=shuffle, seed=seed, sampling=sampling, batching=batching)


def _counts(counts: Sequence[int]) -> str:
    """Counts as text, or how many there are and a digest of them."""
    text = ",".join(map(str, counts))
    if len(text) <= _TEXT_LIMIT:
        return text
    return f"{len(counts)}:{_digest(np.array(counts, np.int64))}"


def _digest(numbers: _Int64s) -> str:
    return blake2b(numbers.astype("<i8").tobytes(), digest_size=16).hexdigest()
