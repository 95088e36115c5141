"""Batches of at most so many tokens, in steps of equal cost."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np

from headrace.errors import OrderError
from headrace.planning import MAX_WINDOW, BatchBudget, TokenBatches, derive_seed, plan_token_batches
from headrace.views.options import whole_number
from headrace.views.protocol import Int64s, MapDataset, Setting, fetch, is_ordered, is_view, lengths_at
from headrace.views.windowed import WindowedDataset, WindowRows

__all__ = ["TokenBudgetBatches"]

DEFAULT_WINDOW = 65_536
BATCHES_VERSION = 1

_COUNTED = ("steps", "batches", "samples", "tokens", "taken", "dropped", "dropped_tokens", "alone", "empty")


class TokenBudgetBatches(WindowedDataset[TokenBatches]):
    """Lists of samples, each of at most max_tokens tokens; every batches_per_step of them cost nearly the same.

    `view[i]` is batch i of epoch 0, longest sample first. Every sample of base is in one batch an epoch. Batches are
    planned without ranks, window samples of base at a time, from the lengths of base: any world size that divides
    batches_per_step gives the same steps, and every rank has the same number of batches in each.

    A batch takes its longest sample times its count (padded, the default) or the sum of its samples. It costs
    c1 * L + c2 * L**2 a sample for cost=(c1, c2), by default tokens; padded, L is its longest. A sample over
    max_tokens is an OrderError, left out (long="drop"), or a batch by itself (long="alone"); report() counts them.
    max_samples limits the samples of a batch, too. Samples are not looked at: their lengths are
    believed. docs/design/token-batches.md has the rules and the bounds.

    OptionError for a value that means nothing, and TypeError for one of another type.
    """

    rows_are_batches: ClassVar[bool] = True

    def __init__(  # noqa: PLR0913 -- the budget, what is done with the rest, and the window: all are switches
        self,
        base: MapDataset,
        max_tokens: int,
        batches_per_step: int,
        padded: bool = True,
        cost: tuple[float, float] | None = None,
        *,
        long: Literal["error", "drop", "alone"] = "error",
        max_samples: int | None = None,
        window: int = DEFAULT_WINDOW,
        seed: int = 0,
        cache: str | Path | None = None,
    ) -> None:
        self.budget = BatchBudget(
            max_tokens, batches_per_step, padded, (1, 0) if cost is None else cost, long, max_samples
        )
        self.seed = whole_number("seed", seed)
        # The last window of an epoch may be nearly twice as long as the others.
        super().__init__(base, whole_number("window", window, 1, MAX_WINDOW // 2 + 1), cache)
        self.rows_per_step = self.budget.batches_per_step

    def __repr__(self) -> str:
        return (
            f"TokenBudgetBatches({self.base!r}, max_tokens={self.budget.max_tokens}, "
            f"batches_per_step={self.budget.batches_per_step}, padded={self.budget.padded}, seed={self.seed})"
        )

    @property
    def own_settings(self) -> Mapping[str, Setting]:
        """Everything that decides the batches."""
        budget = self.budget
        return {
            "batches": "padded" if budget.padded else "unpadded",
            "batches_version": BATCHES_VERSION,
            "max_tokens": budget.max_tokens,
            "batches_per_step": budget.batches_per_step,
            "cost_linear": budget.cost[0],
            "cost_square": budget.cost[1],
            "long": budget.long,
            "max_samples": budget.max_samples,
            "window": self.window,
            "batch_seed": self.seed,
        }

    def report(self, epoch: int = 0) -> dict[str, Any]:
        """What an epoch's batches are, from lengths alone; plans all of its windows.

        Counts of steps, batches, samples and tokens, of dropped samples and tokens, of samples alone and of empty
        batches; utilisation (tokens of max_tokens a batch), padding_waste (padding of all that is taken), and
        imbalance: dearest batch of a step over the step's mean, less 1, in the mean over the steps. 0 where there is
        nothing to count.
        """
        counts = dict.fromkeys(_COUNTED, 0)
        per_step, imbalances = self.budget.batches_per_step, []
        for window in range(self.num_windows):
            plan = self.window_plan(epoch, window)
            begin, _ = self.window_positions(epoch, window)
            counts["steps"] += plan.num_rows // per_step
            counts["batches"] += plan.num_rows
            counts["samples"] += len(plan.samples)
            counts["tokens"] += int(plan.tokens.sum())
            counts["taken"] += int(plan.taken.sum())
            counts["dropped"] += len(plan.dropped)
            counts["dropped_tokens"] += int(lengths_at(self.base, begin + plan.dropped).sum())
            counts["alone"] += len(plan.alone)
            counts["empty"] += int(np.count_nonzero(np.diff(plan.offsets) == 0))
            imbalances.append(plan.imbalances(per_step))
        taken = counts.pop("taken")
        room = counts["batches"] * self.budget.max_tokens
        imbalance = np.concatenate(imbalances) if imbalances else np.zeros(0)
        return {
            **counts,
            "utilisation": counts["tokens"] / room if room else 0.0,
            "padding_waste": max(0, taken - counts["tokens"]) / taken if taken else 0.0,
            "imbalance": float(imbalance.mean()) if len(imbalance) else 0.0,
        }

    def row_positions(self, epoch: int, window: int) -> tuple[Int64s, Int64s]:
        """The base's endless positions in a window's batches, one batch after another, and where each batch begins.

        Batch k has positions[offsets[k] : offsets[k + 1]].
        """
        plan = self.window_plan(epoch, window)
        return self.window_positions(epoch, window)[0] + plan.samples, plan.offsets

    def _planned(self, lengths: Int64s, epoch: int, window: int) -> TokenBatches:
        if self.budget.long == "error":
            long = np.flatnonzero(lengths > self.budget.max_tokens)
            if len(long):
                begin, _ = self.window_positions(epoch, window)
                raise self._over_budget(begin + int(long[0]), int(lengths[long[0]]))
        return plan_token_batches(lengths, self.budget, derive_seed(self.seed, "window", epoch, window))

    def _read(self, parts: Sequence[WindowRows[TokenBatches]], num_rows: int) -> Sequence[Any]:
        batches: list[Any] = [[] for _ in range(num_rows)]
        for part in parts:
            for row, place in zip(part.rows.tolist(), part.places.tolist(), strict=True):
                begin, end = part.plan.offsets[row : row + 2].tolist()
                if end > begin:  # one call a batch: what a base makes of one can be stacked as a whole
                    batches[place] = fetch(self.base, part.start + part.plan.samples[begin:end])
        return batches

    def _over_budget(self, position: int, length: int) -> OrderError:
        where, found, dataset = f"the sample at position {position}", np.array([position], np.int64), self.base
        while is_view(dataset):
            found, dataset = dataset.locate(found), dataset.base
        if not is_ordered(dataset):
            where += f" (item {int(found[0]) % len(dataset)} of {type(dataset).__name__})"
        return OrderError(
            f"{where} has {length} tokens, which max_tokens={self.budget.max_tokens} does not hold; pass a larger "
            "max_tokens, long='drop' to leave such samples out, or long='alone' to give each a batch of its own"
        )
