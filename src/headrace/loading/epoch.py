"""The iterator of one epoch, and the count of what it handed out: all that a checkpoint needs."""

from collections.abc import Callable, Iterator
from typing import Any

from headrace.errors import ClosedError, WorkerError
from headrace.loading.steps import StepPlan
from headrace.planning import Cursor

__all__ = ["EpochIterator"]


class EpochIterator(Iterator[Any]):
    """The batches from start to the end of its epoch, counted as the consumer gets them.

    After an error it is closed: ClosedError, rather than an end that looks like the epoch's. It knows nothing of the
    loader it came from.
    """

    def __init__(
        self, batches: Iterator[Any], plan: StepPlan, start: Cursor, move: Callable[[Any], Any] | None = None
    ) -> None:
        self._batches = batches
        self._advance = batches.__next__
        self._move = move
        self._plan = plan
        self.start = start
        self._handed_out = 0
        self._counted = (0, start)  # the cursor behind so many batches, worked out when somebody asked
        self._over = False

    def __next__(self) -> Any:
        try:
            batch = self._advance()
            if self._move is not None:
                batch = self._move(batch)
        except StopIteration as stop:
            self._finish(stop)
            raise
        except BaseException:
            self.close("an error ended it")
            raise
        # Before it is handed out: a checkpoint that the consumer takes must count this batch.
        self._handed_out += 1
        return batch

    @property
    def handed_out(self) -> int:
        """How many batches the consumer got."""
        return self._handed_out

    def cursor(self) -> Cursor:
        """How far the consumer is."""
        counted, cursor = self._counted
        if counted != self._handed_out:
            handed_out = self._handed_out
            cursor = self._plan.after(cursor, handed_out - counted)
            self._counted = (handed_out, cursor)
        return cursor

    def restart(self) -> Cursor:
        """Where a new iterator begins: the next epoch after the last batch, else this epoch anew; but where this one
        began, as long as nothing was handed out."""
        if self._handed_out == 0:
            return self.cursor()
        return Cursor(self.cursor().epoch)

    def close(self, why: str = "the loader was closed") -> None:
        """Stop making batches, and say why to whoever goes on. Twice is harmless, and nothing after the end."""
        if self._over:
            return
        self._over = True

        def refuse() -> Any:
            raise ClosedError(f"this iterator is over: {why}; call iter() on the loader again")

        self._advance = refuse
        self._release()

    def _finish(self, stop: StopIteration) -> None:
        self._release()
        cursor = self.cursor()
        if cursor.epoch == self.start.epoch and self._plan.has_step(cursor):
            # A dataset or collate function that raises StopIteration must not look like the end of the epoch.
            self.close("an error ended it")
            raise WorkerError(
                f"the dataset or collate_fn raised StopIteration in step {self._handed_out + 1}, which was not the last"
            ) from stop
        if self._handed_out == 0:  # an epoch without rows is behind us, too, or a run would stay in it for ever
            self._counted = (0, Cursor(self.start.epoch + 1))
        self._over = True

    def _release(self) -> None:
        batches, self._batches = self._batches, iter(())
        close = getattr(batches, "close", None)
        if close is not None:
            close()
