"""What all commands do alike: take paths from the command line, and say something to people."""

import re
from pathlib import Path

import typer

from headrace.errors import InputError

__all__ = ["local_path", "place", "say"]


def say(line: str) -> None:
    """Prints the line to standard error, which is for people; results go to standard output."""
    from headrace.inspection import printable  # late, since it brings NumPy

    # What went wrong may be named by the data.
    typer.echo("\n".join(map(printable, line.split("\n"))), err=True)


def local_path(path: str) -> Path:
    """The path, `~` expanded; InputError for a URL."""
    if re.match(r"[A-Za-z][A-Za-z0-9+.-]+:/", path):
        raise InputError(path, "is a URL; give a local directory, and copy the shards from or to there")
    return Path(path).expanduser()


def place(path: str) -> str | Path:
    """The URL as it is, or the path with `~` expanded."""
    from headrace.store.open import has_scheme  # late, since it brings NumPy

    return path if has_scheme(path) else local_path(path)
