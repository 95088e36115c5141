"""One iteration over a StreamingDataset in one process: the rows of this rank, and of them those of this worker.

    rows of an epoch   | global batch 0 | global batch 1 | ... | last one, filled up so that all ranks have as many |
    rank r             row i of a batch goes to rank i mod world size
    worker k of K      every K-th batch of its rank, from the k-th on: DataLoaders collect their batches in turn

So a DataLoader gives a rank's batches in their order, whatever the number of workers, as long as it collects as many
samples a batch as the dataset was told.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from headrace.errors import ClosedError, StateError
from headrace.loading.announcing import announced
from headrace.loading.world import World
from headrace.planning import Cursor
from headrace.views.protocol import Int64s

__all__ = ["Reading", "RowIterator", "Share"]

_ROWS_LOCATED = 4096
_ROWS_READ = 64  # at a time, where batches are smaller


@dataclass(frozen=True)
class Share:
    """Which rows of an epoch of num_rows rows one worker of one rank reads, by endless positions of the order."""

    num_rows: int
    batch_size: int
    world: World
    worker: int = 0
    num_workers: int = 1

    @property
    def global_batch_size(self) -> int:
        """Rows a step, for all ranks together."""
        return self.batch_size * self.world.world_size

    @property
    def rows_a_rank(self) -> int:
        """Rows of a whole epoch for each rank, those that repeat at its end included."""
        return self._rows_a_rank(0)

    def padding(self, position: int) -> int:
        """How many rows this rank repeats at the epoch's end, read from position on; on some ranks one, or none."""
        left = max(0, self.num_rows - position)
        return self._rows_a_rank(position) - -(-max(0, left - self.world.rank) // self.world.world_size)

    def positions(self, cursor: Cursor, skip: int) -> Iterator[Int64s]:
        """Endless positions from the cursor on to the end of its epoch, but for the first `skip` rows of this share."""
        batch, world = self.batch_size, self.world
        left = max(0, self.num_rows - cursor.position)
        if left == 0:
            return
        end = cursor.position + self._rows_a_rank(cursor.position) * world.world_size
        step = self.worker + self.num_workers * (skip // batch)
        skip %= batch
        in_step = world.rank + world.world_size * np.arange(batch, dtype=np.int64)
        count = 1  # the first at once, then more and more together: locating costs by the call
        while (begin := cursor.position + step * self.global_batch_size) < end:
            steps = self.num_workers * np.arange(count, dtype=np.int64) * self.global_batch_size
            rows = (begin + steps[:, None] + in_step).reshape(-1)[skip:]
            rows = rows[rows < end]
            yield cursor.epoch * self.num_rows + np.where(rows < self.num_rows, rows, rows % self.num_rows)
            skip, step = 0, step + count * self.num_workers
            count = max(1, min(8 * count, _ROWS_LOCATED // batch))

    def position_after(self, position: int, handed_out: int) -> int:
        """The position in the epoch when each rank has handed out so many rows from position on; without workers."""
        steps, rows = divmod(handed_out, self.batch_size)
        return min(self.num_rows, position + steps * self.global_batch_size + rows * self.world.world_size)

    def _rows_a_rank(self, position: int) -> int:
        return -(-max(0, self.num_rows - position) // self.world.world_size)


@dataclass(frozen=True)
class Reading:
    """How the rows of an order are read: locate(positions) gives numbers of samples, read(numbers) many samples.

    one(number) gives a single sample, and is used where it is given. below is what the caches are told of, rows_ahead
    rows before they are read. begin_next(cursor) is told where the next iteration begins, when this one goes elsewhere.
    """

    locate: Callable[[Int64s], Int64s]
    read: Callable[[Int64s], Sequence[Any]]
    one: Callable[[int], Any] | None = None
    below: Any = None
    rows_ahead: int | None = None
    begin_next: Callable[[Cursor], None] | None = None


class RowIterator(Iterator[Any]):
    """The samples of a share, from a cursor on. It has a state, for loaders that ask their iterators for one."""

    def __init__(self, share: Share, start: Cursor, reading: Reading) -> None:
        self.share = share
        self.start = start
        self._reading = reading
        self._skipped = 0
        self._handed_out = 0
        self._samples = self._made()

    def __next__(self) -> Any:
        try:
            sample = next(self._samples)
        except StopIteration:
            raise
        except BaseException:
            self._samples = iter(_refuse, None)  # an end would look like the epoch's
            raise
        self._handed_out += 1
        return sample

    @property
    def handed_out(self) -> int:
        """How many samples of this share came so far, those before a resume included."""
        return self._skipped + self._handed_out

    @property
    def position(self) -> int:
        """The position in the epoch that all ranks have reached when each has handed out as many; without workers."""
        return self.share.position_after(self.start.position, self.handed_out)

    def state_dict(self) -> dict[str, Any]:
        """Where this iterator is; it goes on in an iterator of the same worker of as many."""
        share = self.share
        return {
            "epoch": self.start.epoch,
            "position": self.start.position,
            "handed_out": self.handed_out,
            "share": [share.num_rows, share.batch_size, *share.world, share.worker, share.num_workers],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where the record says. StateError for one of another worker or number of them, or what is none."""
        share = self.share
        here = [share.num_rows, share.batch_size, *share.world, share.worker, share.num_workers]
        saved = state.get("share") if isinstance(state, Mapping) else None
        if saved is None or list(saved) != here:
            names = "rows an epoch, batch size, rank, world size, worker, workers"
            raise StateError(
                f"the state of an iterator goes on in the same worker of as many: it says {saved} of ({names}), and "
                f"here these are {here}; the dataset's own state_dict(num_samples, from_beginning) knows no workers"
            )
        numbers = [state.get(name) for name in ("epoch", "position", "handed_out")]
        if not all(type(number) is int and 0 <= number < 1 << 62 for number in numbers):
            raise StateError(f"the state is damaged: it says {numbers} of epoch, position and handed_out")
        epoch, position, handed_out = (int(number) for number in numbers if number is not None)
        self.start, self._skipped, self._handed_out = Cursor(epoch, position), handed_out, 0
        self._samples = self._made()
        if self._reading.begin_next is not None:
            self._reading.begin_next(Cursor(epoch + 1))

    def _made(self) -> Iterator[Any]:
        ids, reading = self._located(), self._reading
        if reading.below is not None:
            ids = announced(ids, reading.below, rows_ahead=reading.rows_ahead)
        if (one := reading.one) is not None:
            return (one(number) for some in ids for number in some.tolist())
        return _each(ids, reading.read)

    def _located(self) -> Iterator[Int64s]:
        """Numbers of samples, as many as are read together."""
        most = max(_ROWS_READ, self.share.batch_size)
        count = min(self.share.batch_size, most)
        for positions in self.share.positions(self.start, self._skipped):
            located = self._reading.locate(positions)
            at = 0
            while at < len(located):
                yield located[at : at + count]
                at += count
                count = min(2 * count, most)


def _each(ids: Iterator[Int64s], read: Callable[[Int64s], Sequence[Any]]) -> Iterator[Any]:
    for some in ids:
        try:
            samples = read(some)
        except Exception:
            for number in range(len(some)):  # what is sound comes before the error
                yield from read(some[number : number + 1])
        else:
            yield from samples


def _refuse() -> Any:
    raise ClosedError("an error ended this iterator; call iter() on the dataset again")
