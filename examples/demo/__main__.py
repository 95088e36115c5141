"""From a corpus to training that is killed twice and goes on exactly: `python -m examples.demo`."""

import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np
from rich.console import Console
from rich.table import Table

from examples.demo.corpus import collect
from examples.demo.launch import run, run_until, torchrun
from examples.demo.plot import draw
from examples.demo.records import Comparison, Step, compare, last_step, read_steps
from examples.demo.tokenizer import END_OF_DOCUMENT, VOCABULARY_SIZE, train_tokenizer
from examples.demo.train import CHECKPOINT_EVERY, GLOBAL_BATCH_SIZE, SEED, numbered_windows
from headrace import ShuffledDataset, StreamStorage

OUT = Path("demo-output")
SHARDS = 8
STEPS = 60
TOLERANCE = 1e-4


class Leg(NamedTuple):
    """One launch of torchrun."""

    ranks: int
    kill_at: int | None  # SIGKILL once this step is recorded; between two checkpoints, so that steps are lost


WHOLE = (Leg(ranks=2, kill_at=None),)
BROKEN = (Leg(ranks=2, kill_at=23), Leg(ranks=1, kill_at=44), Leg(ranks=4, kill_at=None))

console = Console(highlight=False)


@contextmanager
def stage(title: str) -> Iterator[None]:
    """Print the title now, and the seconds it took at the end."""
    console.print(f"\n[bold cyan]{title}[/]")
    started = time.monotonic()
    yield
    console.print(f"  [dim]{time.monotonic() - started:.1f} s[/]")


def headrace(*arguments: str | Path) -> None:
    """Run the headrace command line as a user would; SystemExit when it fails."""
    console.print("  [dim]$ headrace " + " ".join(map(str, arguments)) + "[/]", soft_wrap=True)
    run([sys.executable, "-m", "headrace", *map(str, arguments)])


def prepare() -> Path:
    """The directory of the tokenized corpus, made from nothing."""
    with stage("A real corpus"):
        corpus = collect(OUT / "corpus")
        console.print(
            f"  {corpus.source}: {corpus.num_documents:,} documents, {corpus.text_bytes / 1e6:.1f} MB of text"
        )
    tokenizer, tokens = OUT / "tokenizer.json", OUT / "tokens"
    with stage(f"A byte-level BPE of {VOCABULARY_SIZE:,} tokens"):
        sample_chars = train_tokenizer(corpus.files, tokenizer)
        console.print(f"  trained on a sample of {sample_chars / 1e6:.1f} million characters")
    with stage(f"Tokens: {SHARDS} shards, 2 processes"):
        how = ("--tokenizer", tokenizer, "--eos", END_OF_DOCUMENT, "--shards", str(SHARDS), "--workers", "2")
        headrace("tokenize", *corpus.files, "--out", tokens, *how)
        headrace("verify", tokens)
        described = StreamStorage(tokens).describe()
        console.print(f"  {described['total_length']:,} tokens in {described['num_shards']} shards")
    return tokens


def train(name: str, tokens: Path, legs: Sequence[Leg]) -> list[Step]:
    """The steps that a run recorded, launch by launch."""
    folder = OUT / name
    folder.mkdir()
    for attempt, leg in enumerate(legs, start=1):
        program = (
            "-m",
            "examples.demo.train",
            "--data",
            tokens,
            "--out",
            folder,
            "--steps",
            STEPS,
            "--attempt",
            attempt,
        )
        command = torchrun(leg.ranks, [str(part) for part in program])
        stop = leg.kill_at

        def reached(attempt: int = attempt, stop: int | None = stop) -> bool:
            return stop is not None and last_step(folder, attempt) >= stop

        started = time.monotonic()
        killed = run_until(command, folder / f"attempt-{attempt}.log", reached)
        if killed != (stop is not None):
            raise SystemExit(f"attempt {attempt} of {name} was over before it could be killed; see {folder}")
        steps = [step for step in read_steps(folder) if step.attempt == attempt]
        end = "[red]SIGKILL[/] after" if killed else "done at"
        ranks = f"{leg.ranks} rank{'s' if leg.ranks > 1 else ' '}"
        console.print(
            f"  {ranks}: from step {steps[0].step:>2}, {end} step {steps[-1].step}"
            f"  [dim]{time.monotonic() - started:.1f} s[/]"
        )
    return read_steps(folder)


def order_problems(tokens: Path, whole: Sequence[Step]) -> list[str]:
    """Empty when the run trained on the rows that arithmetic alone says, without a loader."""
    view = ShuffledDataset(numbered_windows(tokens), SEED)
    expected = view.locate(np.arange(STEPS * GLOBAL_BATCH_SIZE))
    seen = np.array([number for step in whole for number in step.ids])
    return [] if np.array_equal(seen, expected) else ["the run did not follow the order that the seed gives"]


def report(tokens: Path, whole: Sequence[Step], result: Comparison, problems: Sequence[str], picture: Path) -> None:
    """Print what was compared, and the verdict."""
    windows = len(numbered_windows(tokens))
    table = Table.grid(padding=(0, 2))
    rows = {
        "samples compared": f"{result.num_ids:,} of {windows:,} windows, {GLOBAL_BATCH_SIZE} a step, in their order",
        "order": "as computed from the seed, without a loader" if not problems else "see below",
        "trained again after a kill": f"steps {', '.join(map(str, result.redone))}",
        "loss": f"{whole[0].loss:.3f} at step 1, {whole[-1].loss:.3f} at step {whole[-1].step}",
        "largest difference in loss": f"{result.max_loss_difference:.2g} (allowed: {TOLERANCE:g})",
        "picture": str(picture),
    }
    for name, value in rows.items():
        table.add_row(f"  {name}", value)
    console.print("\n[bold cyan]The interrupted run against the uninterrupted one[/]")
    console.print(table)
    if problems:
        more = [f"and {len(problems) - 5} more"] if len(problems) > 5 else []
        console.print(f"\n[bold red]They differ in {len(problems)} places:[/]", *problems[:5], *more, sep="\n  ")
    else:
        console.print("\n[bold green]The same samples at every step, and the same losses.[/]")


def main() -> int:
    """0 when the interrupted run equals the uninterrupted one, else 1."""
    started = time.monotonic()
    for name in ("tokens", "uninterrupted", "interrupted"):  # the corpus stays
        shutil.rmtree(OUT / name, ignore_errors=True)
    OUT.mkdir(exist_ok=True)
    tokens = prepare()
    per_step = f"{STEPS} steps of {GLOBAL_BATCH_SIZE} windows, a checkpoint every {CHECKPOINT_EVERY}"
    with stage(f"Training that nothing disturbs: {per_step}"):
        whole = train("uninterrupted", tokens, WHOLE)
    with stage("The same, killed twice, continued with other numbers of ranks"):
        broken = train("interrupted", tokens, BROKEN)
    result = compare(whole, broken, STEPS, TOLERANCE)
    problems = [*result.problems, *order_problems(tokens, whole)]
    picture = OUT / "losses.png"
    report(tokens, whole, result, problems, picture)
    draw(picture, whole, broken, TOLERANCE)
    console.print(f"[dim]{time.monotonic() - started:.0f} s in all[/]")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
