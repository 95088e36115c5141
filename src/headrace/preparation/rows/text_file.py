"""What rows in any text file have in common: their places are bytes, and a compressed file is never cut."""

from dataclasses import dataclass

from headrace.preparation.sources import Piece, compression_of

__all__ = ["TextFile"]


@dataclass(frozen=True)
class TextFile:
    """A file of text as an input of rows."""

    file: Piece

    @property
    def name(self) -> str:
        """Its path."""
        return self.file.path

    @property
    def size_bytes(self) -> int:
        """Bytes on disk."""
        return self.file.size_bytes

    @property
    def length(self) -> int:
        """Its bytes."""
        return self.file.size_bytes

    @property
    def can_be_cut(self) -> bool:
        """Whether it is not compressed."""
        return compression_of(self.file.path) is None
