"""obstore for this process: its own copy where the process was forked from one that had obstore loaded.

obstore runs its requests on threads of its extension module. A forked child inherits the module, but no threads, so
that its first request would wait for ever. The child therefore loads the extension once more, from another file with
the same bytes: the dynamic linker tells files apart by inode, and gives another one statics of its own.
"""

import importlib
import importlib.util
import os
import shutil
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.machinery import ExtensionFileLoader, ModuleSpec
from types import ModuleType, SimpleNamespace
from typing import Any

__all__ = ["obstore_client"]

_EXTENSION = "obstore._obstore"


class _Loaded:
    """What this process has; forked children inherit it, and see by pid that it is not theirs."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.pid = 0
        self.client: SimpleNamespace | None = None
        self.earlier: list[object] = []  # never freed: a child that frees its parent's client could reach its sockets


_loaded = _Loaded()


def obstore_client() -> Any:
    """obstore's functions (get, put, ...), with `store` and `exceptions`, that work in this process."""
    if _loaded.pid != os.getpid() or _loaded.client is None:
        with _loaded.lock:
            if _loaded.pid != os.getpid() or _loaded.client is None:
                _load()
    return _loaded.client


def _load() -> None:
    if _EXTENSION in sys.modules:
        with tempfile.TemporaryDirectory(prefix="headrace-") as folder:
            copied = shutil.copy(str(sys.modules[_EXTENSION].__file__), folder)
            with _without_obstore(), _found_at(copied):
                module = importlib.import_module("obstore")
                client = _names(module)
    else:
        client = _names(importlib.import_module("obstore"))
    _loaded.earlier.append(_loaded.client)
    _loaded.client = client
    _loaded.pid = os.getpid()


def _names(module: ModuleType) -> SimpleNamespace:
    store = importlib.import_module("obstore.store")
    exceptions = sys.modules["obstore.exceptions"]
    return SimpleNamespace(**{**vars(module), "store": store, "exceptions": exceptions})


@contextmanager
def _without_obstore() -> Iterator[None]:
    """sys.modules as if obstore had never been imported; what was there is back afterwards."""
    before = {name: module for name, module in sys.modules.items() if name.partition(".")[0] == "obstore"}
    for name in before:
        del sys.modules[name]
    try:
        yield
    finally:
        for name in [name for name in sys.modules if name.partition(".")[0] == "obstore"]:
            del sys.modules[name]
        sys.modules.update(before)


@contextmanager
def _found_at(path: str) -> Iterator[None]:
    class Finder:
        @staticmethod
        def find_spec(name: str, path_: object = None, target: object = None) -> ModuleSpec | None:
            if name != _EXTENSION:
                return None
            return importlib.util.spec_from_file_location(name, path, loader=ExtensionFileLoader(name, path))

    sys.meta_path.insert(0, Finder)  # type: ignore[arg-type]
    try:
        yield
    finally:
        sys.meta_path.remove(Finder)  # type: ignore[arg-type]


def _forget_lock() -> None:
    _loaded.lock = threading.Lock()  # a thread of the parent may have held it


os.register_at_fork(after_in_child=_forget_lock)
