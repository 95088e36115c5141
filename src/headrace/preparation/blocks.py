"""The bytes and lines of a piece of a file, block by block, decompressed where the file is compressed."""

import gzip
import os
import zlib
from codecs import utf_8_decode
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import BinaryIO

import zstandard

from headrace.errors import InputError
from headrace.preparation.sources import Piece, compression_of

__all__ = ["blocks_of", "checked_decode", "line_error", "line_of", "lines_of", "text_of"]

_BLOCK_BYTES = 1 << 20
_ZSTD_FEED_BYTES = 1 << 10  # at the very most 32 MiB of zeros come of this, and smaller steps cost no speed
_BOM = b"\xef\xbb\xbf"


def lines_of(piece: Piece, blocks: Iterator[bytes]) -> Iterator[tuple[int, bytes]]:
    """(offset in the decompressed file, line with its end); memory for one block and one line."""
    offset, parts = piece.start, list[bytes]()
    for block in blocks:
        lines = block.splitlines(keepends=True) if b"\r" not in block else _split_keeping(block)
        for line in lines:
            parts.append(line)
            if line.endswith(b"\n"):
                whole = parts[0] if len(parts) == 1 else b"".join(parts)
                parts.clear()
                yield _without_mark(offset, whole)
                offset += len(whole)
    if parts:
        yield _without_mark(offset, b"".join(parts))


def _split_keeping(block: bytes) -> list[bytes]:
    # bytes.splitlines would end a line at a lone carriage return too.
    lines = [line + b"\n" for line in block.split(b"\n")]
    last = lines.pop()[:-1]
    return [*lines, last] if last else lines


def _without_mark(offset: int, line: bytes) -> tuple[int, bytes]:
    return (len(_BOM), line[len(_BOM) :]) if offset == 0 and line.startswith(_BOM) else (offset, line)


def text_of(piece: Piece, offset: int, data: bytes) -> str:
    """The bytes at offset of the decompressed file as text; InputError, naming the byte, for what is not UTF-8."""
    return checked_decode(piece, offset, data, final=True)[0]


def checked_decode(piece: Piece, offset: int, data: bytes, *, final: bool) -> tuple[str, int]:
    """(text, bytes used): all of data if final, else all but the start of a character that is cut off at the end."""
    try:
        return utf_8_decode(data, "strict", final)
    except UnicodeDecodeError as error:
        where = "byte" if compression_of(piece.path) is None else "byte (of the decompressed text)"
        place = offset + error.start
        raise InputError(
            piece.path,
            f"{where} {place} is not UTF-8 ({data[error.start]:#04x}, {error.reason}); convert the file to UTF-8",
        ) from None


def line_error(piece: Piece, offset: int, problem: str) -> InputError:
    """An error with the line's number."""
    return InputError(line_of(piece, offset), problem)


def line_of(piece: Piece, offset: int) -> str:
    """`path, line N` of the line at offset of the decompressed file; counted only now that it is needed."""
    number, left = 1, offset
    for block in blocks_of(replace(piece, start=0, stop=piece.size_bytes), None):
        number += block.count(b"\n", 0, left)
        left -= len(block)
        if left <= 0:
            break
    return f"{piece.path}, line {number}"


def blocks_of(piece: Piece, observer: Callable[[int], None] | None) -> Iterator[bytes]:
    """The piece's bytes, decompressed; the observer hears of bytes on disk."""
    try:
        with open(piece.path, "rb") as file:
            stat = os.fstat(file.fileno())
            if (stat.st_size, stat.st_mtime_ns) != (piece.size_bytes, piece.modified_ns):
                raise InputError(piece.path, "changed since it was cut into splits; run the preparation again")
            match compression_of(piece.path):
                case "gzip":
                    blocks = _gzip_blocks(file)
                case "zstd":
                    blocks = _zstd_blocks(file, piece.path)
                case _:
                    blocks = _plain_blocks(file, piece)
            told = piece.start
            for block in filter(None, blocks):
                if observer is not None and (now := min(file.tell(), piece.stop)) > told:
                    observer(now - told)
                    told = now
                yield block
    except FileNotFoundError:
        raise InputError(piece.path, "no longer exists") from None
    except (EOFError, zlib.error, gzip.BadGzipFile, zstandard.ZstdError) as error:
        raise InputError(
            piece.path, f"is damaged or cut off ({error}); decompress it by hand to see how much is left"
        ) from None


def _plain_blocks(file: BinaryIO, piece: Piece) -> Iterator[bytes]:
    file.seek(piece.start)
    left = piece.stop - piece.start
    while left and (block := file.read(min(left, _BLOCK_BYTES))):
        left -= len(block)
        yield block
    if left:
        raise InputError(piece.path, "became shorter while it was read")


def _gzip_blocks(file: BinaryIO) -> Iterator[bytes]:
    with gzip.GzipFile(fileobj=file, mode="rb") as opened:
        while block := opened.read(_BLOCK_BYTES):
            yield block


def _zstd_blocks(file: BinaryIO, path: str) -> Iterator[bytes]:
    # decompressobj, since the library's stream reader takes a file that was cut off for a complete one.
    decompressor = zstandard.ZstdDecompressor(max_window_size=1 << 31)  # archives made with --long=31 are common
    frame, begun = decompressor.decompressobj(), False
    parts, held_bytes = list[bytes](), 0
    while data := file.read(_ZSTD_FEED_BYTES):
        while data:
            parts.append(frame.decompress(data))
            held_bytes += len(parts[-1])
            begun, data = True, b""
            if frame.eof:
                data = frame.unused_data
                frame, begun = decompressor.decompressobj(), False
        if held_bytes >= _BLOCK_BYTES:
            yield b"".join(parts)
            parts, held_bytes = [], 0
    yield b"".join(parts)
    if begun:
        raise InputError(path, "is cut off in the middle of a zstd frame")
