"""What a cache keeps, listed again only where something changed: looking for room need not mean a look at all files."""

import contextlib
import heapq
import os
import re
import stat
import threading
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

__all__ = ["Found", "Listing", "Part", "oldest_first", "part_of"]

_DATASET = re.compile(r"[0-9a-f]{32}")
_PART = re.compile(r"[0-3][0-9a-f]")
_FILE = re.compile(r"(.+)\.([0-9a-f]{24})", re.DOTALL)
_TICK_NS = 50_000_000  # a folder's time moves in steps, of 10 ms at most where times have fractions of seconds
_COARSE_TICK_NS = 2_000_000_000


class Found(NamedTuple):
    """A file that lies in the cache."""

    name: str
    full_path: str
    size_bytes: int
    used_ns: int  # when it was last mapped, as far as it was looked at


class Part(NamedTuple):
    """One folder of files."""

    modified_ns: int
    listed_ns: int
    files: list[Found]  # by used_ns
    num_bytes: int


class Listing:
    """The files below `files/<dataset>/<part>/` whose names bear the tag that tag_of gives for the rest of them.

    Safe with threads and in forked children.
    """

    def __init__(self, top: str, tag_of: Callable[[str, str], str]) -> None:
        self.top = top
        self._tag_of = tag_of
        self._parts: dict[str, Part] = {}  # folder -> what was in it
        self._process = os.getpid()
        self._lock = threading.Lock()

    def datasets(self) -> list[str]:
        """The folders of datasets."""
        return [name for name in _names(self.top) if _DATASET.fullmatch(name)]

    def parts(self) -> list[Part]:
        """The files that the cache keeps, folder by folder; what others put there is left out."""
        if self._process != os.getpid():
            self._process, self._lock = os.getpid(), threading.Lock()
        with self._lock:
            parts = {}
            for dataset in self.datasets():
                for name in _names(f"{self.top}/{dataset}"):
                    folder = f"{dataset}/{name}"
                    if _PART.fullmatch(name) and (part := self._part(folder)) is not None:
                        parts[folder] = part
            self._parts = parts
            return list(parts.values())

    def _part(self, folder: str) -> Part | None:
        """What is in the folder; None where it is gone."""
        path = f"{self.top}/{folder}"
        try:
            modified_ns = os.stat(path).st_mtime_ns
        except (FileNotFoundError, NotADirectoryError):
            return None
        known = self._parts.get(folder)
        if known is not None and known.modified_ns == modified_ns:
            tick_ns = _TICK_NS if modified_ns % 1_000_000_000 else _COARSE_TICK_NS
            if known.listed_ns - modified_ns > tick_ns:  # else it may have changed again within the step
                return known
        listed_ns = time.time_ns()
        files = sorted(self._files(folder, path), key=lambda found: found.used_ns)
        return Part(modified_ns, listed_ns, files, sum(found.size_bytes for found in files))

    def _files(self, folder: str, path: str) -> Iterator[Found]:
        dataset = folder.partition("/")[0]
        with contextlib.suppress(FileNotFoundError, NotADirectoryError), os.scandir(path) as scan:
            for item in scan:
                match = _FILE.fullmatch(item.name)
                if match is None or self._tag_of(dataset, match[1]) != match[2]:
                    continue
                with contextlib.suppress(FileNotFoundError):
                    status = item.stat(follow_symlinks=False)
                    if stat.S_ISREG(status.st_mode):
                        yield Found(f"{folder}/{item.name}", item.path, status.st_size, status.st_atime_ns)


def part_of(tag: str) -> str:
    """The folder, one of 64, for the files whose tag this is."""
    return f"{int(tag[:2], 16) % 64:02x}"


def oldest_first(parts: list[Part]) -> Iterator[tuple[Found, bool]]:
    """The files, what was used longest ago first, and whether each is still there; looks at each that comes up."""
    # Merged from the folders' own orders. A file that was used since it was listed comes later, never earlier.
    heap = [(part.files[0].used_ns, part.files[0].name, 0, part.files) for part in parts if part.files]
    heapq.heapify(heap)
    while heap:
        used_ns, _, place, files = heapq.heappop(heap)
        found = files[place]
        if place + 1 < len(files):
            following = files[place + 1]
            heapq.heappush(heap, (following.used_ns, following.name, place + 1, files))
        try:
            now_ns = os.stat(found.full_path, follow_symlinks=False).st_atime_ns
        except FileNotFoundError:
            yield found, False
            continue
        if now_ns > used_ns:
            heapq.heappush(heap, (now_ns, found.name, 0, [found._replace(used_ns=now_ns)]))
        else:
            yield found, True


def _names(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return []
