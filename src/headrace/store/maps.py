"""Files as memory. A map holds no file open: datasets of many shards must not run into `ulimit -n`."""

import ctypes
import mmap
import os
import sys
from functools import cache
from typing import Any

import numpy as np

__all__ = ["kept_open", "map_file", "mapping_of", "most_maps"]

_FAILED = ctypes.c_void_p(-1).value
_FEWEST_ALLOWED = 65_530  # Linux's default for one process


def map_file(descriptor: int, size: int) -> memoryview:
    """The first size bytes of the open file, size > 0, as read-only memory that is unmapped with its last reader.

    The descriptor may be closed at once. Python's own class keeps a copy of it before 3.13, so there the system is
    asked directly.
    """
    if sys.version_info >= (3, 13):
        return memoryview(mmap.mmap(descriptor, size, prot=mmap.PROT_READ, trackfd=False))
    return np.asarray(_mapped(descriptor, size, mmap.PROT_READ)).data


def kept_open(descriptor: int) -> object:
    """What keeps the file open as it was opened, with its locks, after the descriptor is closed, and ends with itself.

    The system's locks of open files end with the last who has the file, and a map has it. Nothing can be read by it.
    """
    return _mapped(descriptor, 1, 0)


def _mapped(descriptor: int, size: int, protection: int) -> "_Map":
    address = _libc().mmap(None, size, protection, mmap.MAP_SHARED, descriptor, 0)
    if address == _FAILED:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return _Map(address, size)


def mapping_of(view: memoryview) -> object:
    """What holds the memory of a view that map_file gave: its weak references end after the memory was unmapped."""
    held: Any = view.obj
    while isinstance(held, np.ndarray):
        held = held.base
    return held


@cache
def most_maps() -> int:
    """How many files one reader may have mapped: a third of what the system grants a process in all."""
    try:
        with open("/proc/sys/vm/max_map_count", encoding="utf-8") as file:
            allowed = int(file.read())
    except (OSError, ValueError):
        allowed = _FEWEST_ALLOWED
    return max(1, allowed // 3)


class _Map:
    """Mapped memory, in the form that NumPy takes; the array keeps it, and the memoryview keeps the array."""

    # There may be many thousands, so each is small: no dictionary, and no finalizer beside it.
    __slots__ = ("__weakref__", "_address", "_munmap", "_size")

    def __init__(self, address: int, size: int) -> None:
        self._address, self._size = address, size
        self._munmap = _libc().munmap  # kept, since at exit the module may be gone first

    @property
    def __array_interface__(self) -> dict[str, Any]:
        return {"data": (self._address, True), "shape": (self._size,), "typestr": "|u1", "version": 3}

    def __del__(self) -> None:
        self._munmap(self._address, self._size)


@cache
def _libc() -> Any:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = (
        ctypes.c_void_p,
        ctypes.c_size_t,
        ctypes.c_int,
        ctypes.c_int,
        ctypes.c_int,
        ctypes.c_longlong,
    )
    libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
    return libc
