"""Cuts text files into splits at record boundaries, the same whatever the number of workers.

    corpus/a.jsonl  |=========================|
    corpus/b.txt.gz                            |=====|             (compressed: never cut)
    corpus/c.jsonl                                    |==========|
    splits          |     0     |     1     |      2      |  3   |

The inputs lie end to end, in the order given. The k-th of n borders stands at byte total * k / n, moved forward to the
next record boundary, which is found by reading a little around it; in a file that cannot be cut it moves to the nearer
end of the file. So the splits, one after the other, are the input.
"""

import os
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, pairwise
from pathlib import Path
from typing import BinaryIO, Literal, get_args

from headrace.errors import InputError

__all__ = [
    "Document",
    "Piece",
    "Split",
    "compression_of",
    "default_num_splits",
    "files_below",
    "next_record",
    "split_text_files",
    "stated",
    "text_kind",
]

Document = Literal["file", "line", "paragraph"]
StrPath = str | os.PathLike[str]

_KINDS = {".txt": "text", ".jsonl": "jsonl", ".ndjson": "jsonl"}
_COMPRESSIONS = {".gz": "gzip", ".zst": "zstd"}
_KNOWN = ".txt, .jsonl and .ndjson, each also with .gz or .zst"
_PROBE_BYTES = 64 << 10
_MIB = 1 << 20


@dataclass(frozen=True)
class Piece:
    """A byte range of one file, with what the file was when it was cut; compressed files are always whole."""

    path: str  # absolute
    start: int
    stop: int  # exclusive
    size_bytes: int
    modified_ns: int

    def __str__(self) -> str:
        whole = self.start == 0 and self.stop == self.size_bytes
        return self.path if whole else f"{self.path}[{self.start}:{self.stop}]"


@dataclass(frozen=True)
class Split:
    """What one task reads: pieces in input order, and what counts as a document in text files. May be empty."""

    pieces: tuple[Piece, ...]
    document: Document = "file"
    number: int = 0  # its place among the splits, from which its documents have their ids
    observer: Callable[[int], None] | None = field(default=None, compare=False, repr=False)

    @property
    def size_bytes(self) -> int:
        """Bytes on disk, compressed ones as they are."""
        return sum(piece.stop - piece.start for piece in self.pieces)

    def identity(self) -> list[object]:
        """What a task's id is made of: where the bytes are and which they were, never who watches."""
        return [
            self.document,
            self.number,
            [[p.path, p.start, p.stop, p.size_bytes, p.modified_ns] for p in self.pieces],
        ]

    def observed(self, observer: Callable[[int], None]) -> "Split":
        """The same split, which calls observer with the number of bytes whenever it has read some."""
        return replace(self, observer=observer)

    def __str__(self) -> str:
        if len(self.pieces) > 1:
            return f"{len(self.pieces)} files from {self.pieces[0]} to {self.pieces[-1]}"
        return str(self.pieces[0]) if self.pieces else "no input (an empty split)"


def split_text_files(
    paths: StrPath | Iterable[StrPath], num_splits: int | None = None, *, document: Document = "file"
) -> list[Split]:
    """num_splits splits that, one after the other, are the inputs in the order given.

    A path is a file (.txt, .jsonl or .ndjson, each also .gz or .zst) or a directory, which stands for the files of
    these kinds below it, sorted by name in each folder, hidden ones left out. A line of JSONL is a record. In text
    files a `document` is the whole file, each line that is not blank, or each paragraph (blank lines between).

    The splits are of about equal size on disk. Compressed files, and text files whose document is the file, are never
    cut. Where there are fewer records than splits, some splits are empty. num_splits=None takes one for each 4 MiB up
    to 64, one for each 128 MiB beyond 8 GiB, and never more than there are files when none of them can be cut.
    Raises InputError for a path that is missing, of unknown kind or given twice, and when there is no byte to read.
    """
    if document not in get_args(Document):
        raise InputError(f"document={document!r}", f"is not one of {', '.join(get_args(Document))}")
    if num_splits is not None and num_splits < 1:
        raise InputError(f"num_splits={num_splits}", "must be at least 1")
    files = [stated(path) for path in _listed([paths] if isinstance(paths, str | os.PathLike) else list(paths))]
    total_bytes = sum(piece.size_bytes for piece in files)
    if total_bytes == 0:
        raise InputError(f"{len(files)} input files", "0 bytes in all; there is nothing to prepare")
    if num_splits is None:
        num_splits = default_num_splits(total_bytes)
        if not any(_can_be_cut(piece, document) for piece in files):
            num_splits = min(num_splits, sum(piece.size_bytes > 0 for piece in files))
    borders = _borders(files, num_splits, document)
    return [
        Split(_between(files, first, last), document, number) for number, (first, last) in enumerate(pairwise(borders))
    ]


def text_kind(path: str) -> str | None:
    """`text` or `jsonl` by the file's name, None for a name of unknown kind."""
    name = path.lower()
    stem, suffix = os.path.splitext(name)
    return _KINDS.get(os.path.splitext(stem)[1] if suffix in _COMPRESSIONS else suffix)


def compression_of(path: str) -> str | None:
    """`gzip` or `zstd` by the file's name, None for a plain file."""
    return _COMPRESSIONS.get(os.path.splitext(path.lower())[1])


def _listed(paths: Sequence[StrPath]) -> list[str]:
    """The absolute paths of all input files, directories expanded."""
    files: list[str] = []
    for given in paths:
        path = Path(os.path.abspath(Path(given).expanduser()))  # not resolve(): links keep their names
        if path.is_dir():
            found = list(files_below(path, text_kind))
            if not found:
                raise InputError(str(given), f"holds no file of a known kind ({_KNOWN})")
            files += found
        elif not path.exists():
            raise InputError(str(given), "no such file or directory")
        elif text_kind(path.name) is None:
            raise InputError(str(given), f"the name's ending is not one of those known: {_KNOWN}")
        else:
            files.append(str(path))
    if not files:
        raise InputError("inputs", "no path was given")
    seen: set[str] = set()
    for name in files:
        if name in seen:
            raise InputError(name, "is given twice, which would repeat its documents; name each input once")
        seen.add(name)
    return files


def files_below(folder: Path, known: Callable[[str], object], above: tuple[tuple[int, int], ...] = ()) -> Iterator[str]:
    """The files below folder that `known` says yes to by name, sorted by name in each folder, hidden ones left out."""
    stat = folder.stat()
    here = (stat.st_dev, stat.st_ino)
    if here in above:  # a link back up the tree: everything below was listed already
        return
    for path in sorted(folder.iterdir()):
        if path.name.startswith("."):
            continue
        if path.is_dir():
            yield from files_below(path, known, (*above, here))
        elif known(path.name):
            yield str(path)


def stated(path: str) -> Piece:
    """The whole file as it is now."""
    stat = os.stat(path)
    return Piece(path, 0, stat.st_size, stat.st_size, stat.st_mtime_ns)


def default_num_splits(total_bytes: int) -> int:
    """One for each 4 MiB up to 64, one for each 128 MiB beyond 8 GiB."""
    # Never by the number of workers: another machine must come to the same shards.
    return max(min(-(-total_bytes // (4 * _MIB)), 64), -(-total_bytes // (128 * _MIB)))


def _can_be_cut(piece: Piece, document: Document) -> bool:
    return compression_of(piece.path) is None and (text_kind(piece.path) == "jsonl" or document != "file")


def _borders(files: Sequence[Piece], num_splits: int, document: Document) -> list[tuple[int, int]]:
    """num_splits + 1 places (file, byte) in ascending order, from the first file's start to the last one's end."""
    first_bytes = list(accumulate((piece.size_bytes for piece in files), initial=0))
    borders = [(0, 0)]
    for k in range(1, num_splits):
        target = first_bytes[-1] * k // num_splits
        index = bisect_right(first_bytes, target) - 1
        piece, offset = files[index], target - first_bytes[index]
        if _can_be_cut(piece, document):
            paragraphs = document == "paragraph" and text_kind(piece.path) == "text"
            place = next_record(piece, offset, paragraphs)
        else:
            place = 0 if 2 * offset < piece.size_bytes else piece.size_bytes
        border = (index, place) if place < piece.size_bytes else (index + 1, 0)
        borders.append(max(border, borders[-1]))
    return [*borders, (len(files), 0)]


def next_record(piece: Piece, offset: int, paragraphs: bool = False) -> int:
    """The first byte at or after offset at which a record begins, or the file's size."""
    if offset == 0:
        return 0
    with open(piece.path, "rb") as file:
        file.seek(offset - 1)  # the byte before: when it ends a line, offset itself begins a record
        _skip_line(file)
        # A paragraph begins behind a blank line. Those before the next one may be in mid paragraph.
        while paragraphs and (line := file.readline(_PROBE_BYTES)):
            if not line.endswith(b"\n"):
                _skip_line(file)
            elif not line.strip():
                break
        return min(file.tell(), piece.size_bytes)


def _skip_line(file: BinaryIO) -> None:
    # By bounded reads: a line of gigabytes is never held.
    while (line := file.readline(_PROBE_BYTES)) and not line.endswith(b"\n"):
        pass


def _between(files: Sequence[Piece], first: tuple[int, int], last: tuple[int, int]) -> tuple[Piece, ...]:
    pieces = []
    for index in range(first[0], min(last[0] + 1, len(files))):
        piece = files[index]
        start = first[1] if index == first[0] else 0
        stop = last[1] if index == last[0] else piece.size_bytes
        if start < stop:
            pieces.append(replace(piece, start=start, stop=stop))
    return tuple(pieces)
