"""What the training steps wrote down, put together again, and compared."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

__all__ = ["Comparison", "Step", "compare", "last_step", "read_steps"]


class Step(NamedTuple):
    """One global step, as its ranks recorded it."""

    attempt: int
    ranks: int
    step: int
    ids: tuple[int, ...]  # of the global batch, in its order
    loss: float


class Comparison(NamedTuple):
    """Two runs, side by side."""

    problems: tuple[str, ...]  # empty when they agree
    redone: tuple[int, ...]  # steps that were trained more than once
    num_ids: int
    max_loss_difference: float


def _lines(path: Path) -> dict[int, dict[str, Any]]:
    """Step to line. A last line without its end was cut by a kill, and so was its step."""
    whole, _, _ = path.read_text(encoding="utf-8").rpartition("\n")
    lines = [json.loads(line) for line in whole.splitlines()]
    steps = [line["step"] for line in lines]
    if steps != list(range(steps[0], steps[-1] + 1) if steps else ()):
        raise SystemExit(f"{path}: one attempt recorded the steps {steps}, which do not follow one another")
    return dict(zip(steps, lines, strict=True))


def read_steps(run: Path) -> list[Step]:
    """The steps that all ranks of an attempt finished, attempt by attempt; a step may occur in several."""
    steps: list[Step] = []
    attempts = sorted({int(path.name.split("-")[1]) for path in run.glob("attempt-*.jsonl")})
    for attempt in attempts:
        files = sorted(run.glob(f"attempt-{attempt}-rank-*.jsonl"), key=lambda path: int(path.name.split("-")[3]))
        by_rank = [_lines(path) for path in files]
        for step in sorted(set.intersection(*(set(lines) for lines in by_rank))):
            # Row i of the global batch is at rank i mod ranks: take turns to get its order back.
            dealt = zip(*(lines[step]["ids"] for lines in by_rank), strict=True)
            ids = tuple(number for turn in dealt for number in turn)
            steps.append(Step(attempt, len(files), step, ids, by_rank[0][step]["loss"]))
    return steps


def last_step(run: Path, attempt: int) -> int:
    """The last step that rank 0 of this attempt recorded; 0 before the first."""
    for path in run.glob(f"attempt-{attempt}-rank-0-of-*.jsonl"):
        return max(_lines(path), default=0)
    return 0


def compare(whole: Sequence[Step], broken: Sequence[Step], num_steps: int, tolerance: float) -> Comparison:
    """Where the run that was broken off differs from the whole one; every occurrence of a redone step counts."""
    problems: list[str] = []
    expected = {step.step: step for step in whole}
    if sorted(step.step for step in whole) != list(range(1, num_steps + 1)):
        problems.append(f"the uninterrupted run did not record each of the steps 1 to {num_steps} once")
    if missing := sorted(set(range(1, num_steps + 1)) - {step.step for step in broken}):
        problems.append(f"the interrupted run never finished the steps {missing}")
    ids = [number for step in whole for number in step.ids]
    if len(set(ids)) != len(ids):
        problems.append("a sample was trained on twice within one epoch")
    differences = [0.0]
    for step in broken:
        same = expected.get(step.step)
        where = f"step {step.step} (attempt {step.attempt}, {step.ranks} ranks)"
        if same is None or same.ids != step.ids:
            problems.append(f"{where} trained on {step.ids}, the uninterrupted run on {same and same.ids}")
            continue
        differences.append(abs(step.loss - same.loss))
        if not differences[-1] <= tolerance:  # also true for NaN
            problems.append(f"{where} has loss {step.loss:.6f}, the uninterrupted run {same.loss:.6f}")
    numbers = [step.step for step in broken]
    redone = tuple(sorted({number for number in numbers if numbers.count(number) > 1}))
    return Comparison(tuple(problems), redone, len(ids), max(differences))
