"""The steps that LocalStore is made of, on absolute paths: each does one thing to the file system."""

import contextlib
import errno
import hashlib
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from urllib.parse import unquote

from headrace.errors import NotFoundError, StoreError, TruncatedReadError
from headrace.store.identity import ATTEMPT_PATTERN, attempt_id, is_dead
from headrace.store.store import FileInfo

__all__ = [
    "NO_HARD_LINKS",
    "absolute_root",
    "create",
    "folder_names",
    "info",
    "make_folders",
    "named",
    "read_at",
    "remove_orphans",
    "remove_tree",
    "removed_on_failure",
    "sync_folder",
    "temporary_name",
    "unlink_if_there",
    "walk",
    "write_all",
]

NO_HARD_LINKS = frozenset({errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EXDEV})
_NO_FOLDER_SYNC = frozenset({errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP})
_ABSENT = frozenset({errno.ENOENT, errno.ENOTDIR})
_ADVICE = {
    errno.ENOSPC: "; free some space, or write to another disk",
    errno.EDQUOT: "; the quota is used up",
    errno.EACCES: "; check the permissions of the file and its folders",
    errno.EROFS: "; write to another directory",
    errno.EMFILE: "; raise `ulimit -n`",
    errno.ENAMETOOLONG: "; use a shorter name",
}
_ORPHAN = re.compile(rf"\..*\.({ATTEMPT_PATTERN})\.tmp", re.DOTALL)
_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/")  # pathlib makes "s3:/bucket" of "s3://bucket", so one "/" is enough
_NAME_BYTES = 255


class named:
    """A block in which every OSError becomes a StoreError that names the full path and what was tried.

    absent is its kind where there is no such file, or no such folder.
    """

    __slots__ = ("_absent", "_action", "_full_path")

    def __init__(self, full_path: str, action: str, absent: type[StoreError] = NotFoundError) -> None:
        self._full_path, self._action, self._absent = full_path, action, absent

    def __enter__(self) -> None:
        """Nothing to do before the block."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, OSError) and not isinstance(error, StoreError):
            reason = os.strerror(error.errno) if error.errno else str(error)
            advice = _ADVICE.get(error.errno or 0, "")
            raised_as = self._absent if error.errno in _ABSENT else StoreError
            raised = raised_as(f"{self._full_path}: cannot {self._action}: {reason}{advice}")
            raised.errno = error.errno
            try:
                raise raised from error
            finally:
                del raised  # else error and frame hold one another, and with them all that the callers held


def absolute_root(root: str | Path) -> Path:
    """The directory as an absolute path, `~` expanded and links kept; ValueError for a URL that is not file://."""
    text = os.fspath(root)
    if (url := _URL.match(text)) is not None:
        if url[1].lower() != "file":
            raise ValueError(f"{text!r} is a URL, but LocalStore needs a directory; make it local first")
        text = _file_url_path(text)
    if not text or "\0" in text:
        raise ValueError(f"root={text!r} names no directory; '.' is the current one")
    try:
        return Path(text).expanduser().absolute()
    except RuntimeError as error:
        raise ValueError(f"root={text!r}: {error}; write './{text}' for a directory of that name") from None


def _file_url_path(url: str) -> str:
    rest = url.split(":", 1)[1]
    if rest.startswith("//"):
        host, slash, path = rest[2:].partition("/")
        rest = slash + path
        if host not in ("", "localhost"):
            raise ValueError(f"the URL {url!r} names the host {host!r}; a local directory is file:///...")
    if "?" in rest or "#" in rest:
        raise ValueError(f"{url!r} is a URL, in which '?' and '#' of a path are written %3F and %23")
    return unquote(rest)


def info(path: str, status: os.stat_result) -> FileInfo:
    """The listing entry of a file."""
    version = f"{status.st_ino}-{status.st_mtime_ns}-{status.st_size}"
    return FileInfo(path, status.st_size, version, status.st_mtime_ns / 1e9)


def read_at(descriptor: int, start: int, length: int, full_path: str) -> memoryview:
    """Exactly length bytes from start, read-only; TruncatedReadError where the file ends before."""
    data = os.pread(descriptor, length, start)
    if len(data) == length:
        return memoryview(data)
    # One call gives at most 2 GiB on Linux, and may give less on a network file system.
    whole = memoryview(bytearray(length))
    whole[: len(data)] = data
    filled = len(data)
    while filled < length:
        step = os.preadv(descriptor, [whole[filled:]], start + filled)
        if not step:
            raise TruncatedReadError(full_path, start, length, os.fstat(descriptor).st_size)
        filled += step
    return whole.toreadonly()


def write_all(descriptor: int, data: memoryview) -> None:
    """Write every byte; one call may take only a part."""
    while len(data):
        data = data[os.write(descriptor, data) :]


def temporary_name(full_path: str) -> str:
    """A name beside full_path that no other call in any process gives, and that remove_orphans can judge."""
    folder, name = os.path.split(full_path)
    attempt = attempt_id()
    if len(os.fsencode(name)) + len(attempt) + len("...tmp") > _NAME_BYTES:
        name = hashlib.blake2b(os.fsencode(name), digest_size=16).hexdigest()
    return os.path.join(folder, f".{name}.{attempt}.tmp")


def create(full_path: str) -> int:
    """A descriptor to write a file that did not exist; FileExistsError where it does."""
    return os.open(full_path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)


@contextlib.contextmanager
def removed_on_failure(full_path: str) -> Iterator[None]:
    """A block after whose failure the file is gone."""
    try:
        yield
    except BaseException:
        with contextlib.suppress(OSError):  # the first failure is the one to report
            os.unlink(full_path)
        raise


def unlink_if_there(full_path: str) -> bool:
    """Whether there was a file, which is gone now; a folder stays."""
    try:
        os.unlink(full_path)
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return False
    except PermissionError:
        if os.path.isdir(full_path):  # how macOS refuses to unlink a folder
            return False
        raise
    return True


def sync_folder(full_path: str) -> None:
    """Make renames, links and unlinks in the folder durable, where its file system can."""
    descriptor = os.open(full_path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _NO_FOLDER_SYNC:
            raise
    finally:
        os.close(descriptor)


def make_folders(full_path: str, *, fsync: bool) -> None:
    """Create the folder and its missing parents, each durable in its own parent."""
    if os.path.isdir(full_path):
        return
    parent = os.path.dirname(full_path)
    if parent != full_path:
        make_folders(parent, fsync=fsync)
    try:
        os.mkdir(full_path)
    except FileExistsError:
        if not os.path.isdir(full_path):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), full_path) from None
    if fsync:
        sync_folder(parent)  # also when another process created it: its sync may still be to come


def walk(full_path: str, prefix: str, *, recursive: bool, above: tuple[tuple[int, int], ...] = ()) -> list[FileInfo]:
    """The files below a folder, links followed; paths begin with prefix. What vanishes meanwhile is left out."""
    try:
        here = os.stat(full_path)
    except (FileNotFoundError, NotADirectoryError):
        return []
    identity = (here.st_dev, here.st_ino)
    if identity in above:  # a link to a folder above would never end
        return []
    found: list[FileInfo] = []
    for name, status in _entries(full_path):
        if stat.S_ISREG(status.st_mode):
            if not (name.startswith(".") and name.endswith(".tmp")):
                found.append(info(prefix + name, status))
        elif recursive and stat.S_ISDIR(status.st_mode):
            found += walk(os.path.join(full_path, name), f"{prefix}{name}/", recursive=True, above=(*above, identity))
    return found


def folder_names(full_path: str) -> list[str]:
    """Names of the folders, and links to folders, directly below; sorted."""
    return sorted(name for name, status in _entries(full_path) if stat.S_ISDIR(status.st_mode))


def _entries(full_path: str) -> Iterator[tuple[str, os.stat_result]]:
    try:
        scan = os.scandir(full_path)
    except (FileNotFoundError, NotADirectoryError):
        return
    with scan:
        for entry in scan:
            if "\\" in entry.name:
                continue
            try:
                status = entry.stat()
            except OSError as error:
                if error.errno not in (*_ABSENT, errno.ELOOP):  # vanished, or a link that leads nowhere
                    raise
                continue
            yield entry.name, status


def remove_tree(full_path: str) -> bool:
    """Whether there was something, which is gone now; links are removed, not followed."""
    try:
        if not stat.S_ISDIR(os.lstat(full_path).st_mode):
            return unlink_if_there(full_path)
        with os.scandir(full_path) as scan:
            inside = [(entry.path, entry.is_dir(follow_symlinks=False)) for entry in scan]
        for path, is_folder in inside:
            if is_folder:
                remove_tree(path)
            else:
                unlink_if_there(path)
        os.rmdir(full_path)
    except (FileNotFoundError, NotADirectoryError):  # another process removes the same
        return False
    return True


def remove_orphans(full_path: str, of: str = "") -> None:
    """Remove the files in flight, directly in the folder, whose process is dead, or the one that made attempt `of`."""
    process = of.rpartition("-")[0]
    with contextlib.suppress(FileNotFoundError, NotADirectoryError), os.scandir(full_path) as scan:
        for entry in scan:
            match = _ORPHAN.fullmatch(entry.name)
            if match and (is_dead(match[1]) or match[1].rpartition("-")[0] == process):
                unlink_if_there(entry.path)
