"""GuideLoom's names for how local files are read. The answers are the same; only the way to the bytes differs.

Left out, local files are mapped, which is the fastest for random windows. Reading by position maps nothing, which some
network file systems prefer.
"""

from dataclasses import dataclass

from headrace.store import LocalStore, Store

__all__ = ["MmapIO", "PosixPreadIO", "ReadInterface", "SeekIO"]


@dataclass(frozen=True)
class ReadInterface:
    """A way to read local files."""

    def store(self, written: Store) -> Store:
        """The store to read through, over the same directory as `written`."""
        raise NotImplementedError

    @staticmethod
    def is_supported() -> bool:
        """Whether this system has it: every supported one does."""
        return True


@dataclass(frozen=True)
class MmapIO(ReadInterface):
    """Files are memory-mapped: what happens without a read_interface, too."""

    def store(self, written: Store) -> Store:
        """`written` itself."""
        return written


@dataclass(frozen=True)
class PosixPreadIO(ReadInterface):
    """Files are read by position, with a bounded number of them open. `advice` is a hint, and not needed here."""

    advice: bool = False

    def store(self, written: Store) -> Store:
        """The same directory without maps; TypeError for a store that is no local directory."""
        if not isinstance(written, LocalStore):
            raise TypeError(f"{type(self).__name__} reads local files, and {written.location} is no local directory")
        return LocalStore(written.root, mapped=False)


@dataclass(frozen=True)
class SeekIO(PosixPreadIO):
    """The same as PosixPreadIO: no file is opened anew for each read."""
