"""obstore for this process: a copy of its own where the process was forked from one that had obstore loaded.

obstore runs its requests on threads of its extension module. A forked child inherits the module but no threads, so its
first request would wait for ever. The child therefore loads the extension once more from another file with the same
bytes: the dynamic linker tells files apart by inode, and gives another one statics, and so threads, of its own.

All children of a process share one such file, the spare. It is made before the first fork, has no name in any folder,
and goes with the last process that has it open:

    parent   loaded: the installed file      makes spare 1 before it forks
    child    loads spare 1 at first use      makes spare 2 before it forks, and only if it used spare 1
    grandchild                               loads spare 2 (spare 1 where the child used no store)
"""

import importlib
import importlib.util
import os
import shutil
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.machinery import ExtensionFileLoader, ModuleSpec
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple

__all__ = ["Held", "obstore_client"]

_EXTENSION = "obstore._obstore"


class _Spare(NamedTuple):
    """An open file with the extension's bytes that this process has not loaded."""

    descriptor: int
    device: int
    inode: int

    def is_whole(self) -> bool:
        """Whether the descriptor is still that file: a process may have closed all it inherited."""
        try:
            found = os.fstat(self.descriptor)
        except OSError:
            return False
        return (found.st_dev, found.st_ino) == (self.device, self.inode)


class _Loaded:
    """What this process has; a forked child inherits it, and sees by the process id that it is not its own."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.pid = 0
        self.client: Any = None
        self.spare: _Spare | None = None
        self.earlier: list[object] = []  # of the parents: never freed, because their sockets are theirs


_loaded = _Loaded()


class Held:
    """One of obstore's stores, freed by no other process than the one that made it."""

    def __init__(self, client: Any) -> None:
        self.client = client
        self._pid = os.getpid()

    # By defaults: as the interpreter ends, a module's names may be gone before what is held.
    def __del__(self, getpid: Callable[[], int] = os.getpid, earlier: list[object] = _loaded.earlier) -> None:
        if getpid() != self._pid:
            earlier.append(self.client)


def obstore_client() -> Any:
    """obstore's functions, with its `store` and `exceptions`: a copy that works in this process."""
    if _loaded.pid != os.getpid():
        with _loaded.lock:
            if _loaded.pid != os.getpid():
                client = _loaded_anew() if _EXTENSION in sys.modules else _names(importlib.import_module("obstore"))
                _loaded.earlier.append(_loaded.client)
                _loaded.client = client
                _loaded.pid = os.getpid()
    return _loaded.client


def _loaded_anew() -> Any:
    """A second copy. Also where somebody imported obstore before this module, and perhaps in another process."""
    spare = _loaded.spare
    if spare is None or not spare.is_whole():
        spare = _new_spare()
    _loaded.spare = None
    # The name has this process's id in it: the linker takes equal names for equal files.
    path = f"/proc/{os.getpid()}/fd/{spare.descriptor}"
    try:
        if os.path.exists(path):
            return _imported_from(path)
        with tempfile.NamedTemporaryFile(prefix="headrace-", suffix=".so") as named:  # a system without /proc
            shutil.copyfile(_installed(), named.name)
            return _imported_from(named.name)
    finally:
        os.close(spare.descriptor)


def _imported_from(path: str) -> Any:
    with _without_obstore(), _found_at(path):
        return _names(importlib.import_module("obstore"))


def _names(module: ModuleType) -> Any:
    """The module's names apart from the module, whose submodules are looked up in sys.modules."""
    parts = {name: importlib.import_module(f"obstore.{name}") for name in ("store", "exceptions")}
    return SimpleNamespace(**{**vars(module), **parts})


def _new_spare() -> _Spare:
    """The extension's bytes in a file without a name: in memory, or on disk where that must not hold programs."""
    installed = _installed()
    descriptor = -1
    with suppress(OSError, AttributeError):
        descriptor = os.memfd_create("headrace-obstore", os.MFD_CLOEXEC)
    if descriptor < 0:
        with tempfile.TemporaryFile() as unnamed:
            descriptor = os.dup(unnamed.fileno())
    with open(installed, "rb") as source, os.fdopen(os.dup(descriptor), "wb") as target:
        shutil.copyfileobj(source, target, 1 << 20)
    found = os.fstat(descriptor)
    return _Spare(descriptor, found.st_dev, found.st_ino)


def _installed() -> str:
    return str(sys.modules[_EXTENSION].__file__)


@contextmanager
def _without_obstore() -> Iterator[None]:
    """sys.modules as if obstore had never been imported; what was there is there again afterwards."""
    before = _obstore_modules()
    for name in before:
        del sys.modules[name]
    try:
        yield
    finally:
        for name in _obstore_modules():
            del sys.modules[name]
        sys.modules.update(before)


def _obstore_modules() -> dict[str, ModuleType]:
    return {name: module for name, module in sys.modules.items() if name.partition(".")[0] == "obstore"}


@contextmanager
def _found_at(path: str) -> Iterator[None]:
    """Make the import system find obstore's extension at path."""

    class Finder:
        @staticmethod
        def find_spec(name: str, within: Sequence[str] | None = None, target: object = None) -> ModuleSpec | None:
            if name != _EXTENSION:
                return None
            return importlib.util.spec_from_file_location(name, path, loader=ExtensionFileLoader(name, path))

    finder: Any = Finder
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


def _before_fork() -> None:
    # One copy for all children. Without it each child makes one, so a failure here (a full disk) costs only that.
    if _loaded.pid == os.getpid() and _loaded.spare is None:
        with suppress(OSError):
            _loaded.spare = _new_spare()


def _in_child() -> None:
    _loaded.lock = threading.Lock()  # a thread of the parent may have held it


os.register_at_fork(before=_before_fork, after_in_child=_in_child)
