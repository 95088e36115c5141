"""The command line of the examples that resume: one run; or one that is killed and goes on, beside a whole one."""

import argparse
import os
import subprocess
import sys
from pathlib import Path
from typing import Protocol

from examples.numbered_tokens import leave_group, same_steps

__all__ = ["Train", "main"]


class Train(Protocol):
    """Trains on the data, from the newest checkpoint in out where there is one; dies right after step kill_at."""

    def __call__(self, data: Path, out: Path, workers: int = 0, kill_at: int | None = None) -> None:
        """Return when it is done."""
        ...


def main(name: str, train: Train) -> None:
    """One run with --out; else a run that is whole, and one that is killed and goes on. The example is
    examples/<name>_resume.py."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--kill-at", type=int)
    options = parser.parse_args()
    folder = Path("data") / name
    if options.out is not None:
        train(options.out.parent / "tokens", options.out, options.workers, options.kill_at)
        leave_group()
        return
    killed, whole = (folder / f"{kind}-{os.getpid()}" for kind in ("killed", "whole"))
    again = [sys.executable, "-m", f"examples.{name}_resume", "--out", str(killed)]
    code = subprocess.run([*again, "--kill-at", "23"], check=False).returncode
    print(f"killed after step 23 (exit code {code})")
    train(folder / "tokens", killed)
    train(folder / "tokens", whole)
    print(f"{same_steps(killed, whole)} steps of the killed run have the samples and losses of an undisturbed one")
