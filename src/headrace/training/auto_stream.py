"""The stream that AutoDataProvider gives: a loader's batches as packs, over several epochs, with one small state."""

import json
from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, NamedTuple, Self, cast

import numpy as np
import torch
from numpy.typing import NDArray

from headrace.errors import ClosedError, OrderError, StateError
from headrace.loading import StatefulDataLoader
from headrace.loading.pack_protocols import CollateFn, MicrobatchPack
from headrace.loading.packs import TokenBudgetMicrobatchPacker, TokenPack
from headrace.loading.steps import Steps
from headrace.loading.targets import count_targets
from headrace.planning import Cursor

__all__ = ["AutoDataStream", "BatchCollate", "BudgetPacks", "PackCollate", "PaddedPack"]


class PackCollate:
    """A step's rows of a rank to its pack: microbatches of microbatch_size rows, the last maybe fewer; [] of none."""

    def __init__(self, collator: CollateFn, microbatch_size: int) -> None:
        self.collator = collator
        self.microbatch_size = microbatch_size

    def __call__(self, rows: Sequence[Any]) -> list[Any]:
        """The pack."""
        size = self.microbatch_size
        return [_collated(self.collator, rows[begin : begin + size]) for begin in range(0, len(rows), size)]


class Counted(NamedTuple):
    """A microbatch, and how many tokens it predicts; None where that cannot be told."""

    microbatch: Any
    num_targets: int | None


class BatchCollate:
    """The samples of a token-budget batch to a microbatch, Counted; None for a batch of none, which fills a step up."""

    def __init__(self, collator: CollateFn) -> None:
        self.collator = collator

    def __call__(self, samples: Sequence[Any]) -> Counted | None:
        """The microbatch."""
        if len(samples) == 0:
            return None
        microbatch = _collated(self.collator, samples)
        try:
            return Counted(microbatch, count_targets(microbatch))
        except TypeError:  # a task that has no use for the count should not fail for want of it
            return Counted(microbatch, None)


class BudgetPacks:
    """A loader of Counted microbatches, with TokenPacks in their place; lists where they could not be counted.

    Batches without a sample are left out, so that a pack may have fewer microbatches than those of other ranks.
    """

    def __init__(self, loader: StatefulDataLoader) -> None:
        self._packer = TokenBudgetMicrobatchPacker(loader, lambda _: 0)
        self.state_dict = self._packer.state_dict
        self.load_state_dict = self._packer.load_state_dict

    def __iter__(self) -> Iterator[MicrobatchPack[Any]]:
        for pack in self._packer:
            parts: list[Counted] = [part for part in pack if part is not None]
            microbatches = [part.microbatch for part in parts]
            counts = [part.num_targets for part in parts if part.num_targets is not None]
            yield TokenPack(microbatches, counts) if len(counts) == len(parts) else microbatches

    @property
    def microbatches_per_step(self) -> int:
        """Batches of a step that this rank gets."""
        return self._packer.microbatches_per_step


class PaddedPack(list[Any]):
    """A pack of an order with padding: num_repeats, of shape (microbatches,), counts the rows at each microbatch's end
    that are there a second time in this epoch, to fill its last step."""

    def __init__(self, pack: Sequence[Any], num_repeats: NDArray[np.int64]) -> None:
        super().__init__(pack)
        self.num_repeats = num_repeats


class AutoDataStream:
    """One rank's packs of a loader, over `epochs` epochs (None: without end). A MicrobatchPackStream.

    The state is the loader's: equal on every rank, and for any number of them. `iter()` goes on behind the last pack
    that was handed out, or where a loaded state says; behind the last pack of all it begins anew. An iterator that is
    overtaken by a newer one, by load_state_dict() or by close() raises ClosedError.

    packs makes packs of the loader's batches, and has its state between them; without it the batches are packs.
    """

    is_elastic = True

    def __init__(self, loader: StatefulDataLoader, *, epochs: int | None, packs: BudgetPacks | None = None) -> None:
        self.loader = loader
        self.epochs = epochs
        self._source: StatefulDataLoader | BudgetPacks = loader if packs is None else packs
        self._per_step = 1 if packs is None else packs.microbatches_per_step
        self._over = False
        self._turn = 0  # the number of the iterator that may go on; another one was overtaken

    def __iter__(self) -> Iterator[MicrobatchPack[Any]]:
        if self._over:
            self._over = False
            self.loader.set_epoch(0)
        else:
            self._source.load_state_dict(self._source.state_dict())  # else a loader starts a broken-off epoch over
        self._turn += 1
        return self._packs(self._turn)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End worker processes and the active iterator; twice is harmless. The state stays, and iter() goes on."""
        self._turn += 1
        self.loader.close()

    @property
    def total_steps(self) -> int | None:
        """Packs of all epochs together; None where there is no end, and where nobody can count them any more: over
        packed rows and token budgets whose mixture was changed within the run.

        OrderError where an epoch has not one, as when drop_last drops all of a small dataset. Epochs of packed rows and
        token budgets have different numbers of them, and are counted once, from lengths.
        """
        if self.epochs is None:
            return None
        try:
            return self._steps_of_epochs(0, self.epochs)
        except TypeError:  # as of what has no length: a mixture was changed within the run
            return None

    @property
    def steps_left(self) -> int | None:
        """Packs from here to the end of the last epoch; None where there is no end.

        After a resume with another global batch size this and the steps made until now are the whole run.
        """
        if self.epochs is None:
            return None
        cursor = self._cursor()
        if cursor.epoch >= self.epochs:
            return 0
        here = self.loader.plan.steps_left(cursor) // self._per_step
        return here + self._steps_of_epochs(cursor.epoch + 1, self.epochs)

    def state_dict(self) -> dict[str, Any]:
        """Where the consumer is: {"state": JSON}, always this one key, which checkpoints by template ask for."""
        return {"state": json.dumps(self._source.state_dict())}

    def load_state_dict(self, state_dict: Mapping[str, Any], /) -> None:
        """Begin the next iter() there. StateMismatchError for a state of other data, seed or order, StateError for what
        is no state; a refused one changes nothing."""
        text = state_dict.get("state") if isinstance(state_dict, Mapping) else None
        if not isinstance(text, str):
            raise StateError(f"the state of this stream is a dict with one text, 'state'; found {state_dict!r:.200}")
        try:
            state = json.loads(text)
        except ValueError as error:
            raise StateError(f"the state of this stream is damaged, its text is no JSON: {error}") from None
        self._source.load_state_dict(state)
        self._turn += 1
        self._over = False

    def describe(self) -> dict[str, Any]:
        """Data, order and sizes, as the loader's describe() has them, and the epochs."""
        return {**self.loader.describe(), "epochs": self.epochs}

    def _packs(self, turn: int) -> Iterator[MicrobatchPack[Any]]:
        if turn != self._turn:  # before its first pack; behind that the loader's iterator says so
            raise ClosedError("this iterator is over: another one, a loaded state or close() took its place")
        while not self._is_at_end():
            packs: Any = iter(self._source)
            number, empty = self._cursor().epoch, True
            try:
                for pack in packs:
                    empty = False
                    yield self._marked(pack, number) if self.loader.pad else pack
            finally:
                packs.close()  # a loop that is broken off leaves no worker behind
            if empty and self.epochs is None:
                raise OrderError(f"epoch {number} has no rows, and a run without end would wait for some for ever")
        self._over = True

    def _marked(self, pack: MicrobatchPack[Any], epoch: int) -> PaddedPack:
        is_last = self._cursor().epoch != epoch
        most = cast(PackCollate, self.loader.collate_fn).microbatch_size
        real = self.loader.local_batch_size - (self.loader.padding if is_last else 0)
        ends = most * np.arange(1, len(pack) + 1, dtype=np.int64)
        return PaddedPack(pack, np.clip(ends - real, 0, most))

    def _is_at_end(self) -> bool:
        if self.epochs is None:
            return False
        cursor = self._cursor()
        if cursor.epoch == self.epochs - 1 and cursor.position:
            # A rest that fills no step, now that they are larger than in the run before: a loader would go on to the
            # next epoch, and there is none.
            return not self.loader.plan.has_step(cursor)
        return cursor.epoch >= self.epochs

    def _cursor(self) -> Cursor:
        """The epoch, and the rows of it that the ranks have got together."""
        state = self._source.state_dict()
        return Cursor(state["epoch"], state["position"], state["window"], state["row"])

    def _steps_of_epochs(self, begin: int, end: int) -> int:
        plan = self.loader.plan
        if begin < end and isinstance(plan, Steps) and plan.reach is None:
            return (end - begin) * plan.steps(begin)  # all epochs are alike
        return sum(plan.steps(epoch) // self._per_step for epoch in range(begin, end))


def _collated(collator: CollateFn, rows: Sequence[Any]) -> Any:
    """What collator makes of these rows.

    Rows of a Hugging Face dataset without a format are lists. A collator that takes them gets them as they are; one
    that raises TypeError over them gets tensors of the same numbers, as from a dataset in torch's format. A TypeError
    over those, too, says how lists become tensors.
    """
    try:
        return collator(rows)
    except TypeError as error:
        lists = (
            [name for name, value in rows[0].items() if isinstance(value, list)] if isinstance(rows[0], Mapping) else []
        )
        if not lists:
            raise
        try:
            return collator([_with_tensors(row) for row in rows])
        except TypeError:
            raise TypeError(
                f"{error}: the collator was given rows whose {', '.join(map(repr, lists))} are lists, as a Hugging "
                "Face dataset has them; return dataset.with_format('torch') from the dataset factory, or make tensors "
                "of them"
            ) from error


def _with_tensors(row: Any) -> Any:
    """The row with tensors for its lists of numbers."""
    return {name: _as_tensor(value) if isinstance(value, list) else value for name, value in row.items()}


def _as_tensor(value: list[Any]) -> Any:
    try:
        return torch.tensor(value)
    except (TypeError, ValueError, RuntimeError):
        return value  # texts, or lists of different lengths
