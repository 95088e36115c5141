"""Whole files in one compressed piece, as MosaicML Streaming has them: `zstd`, `zstd:7`, `br`, `bz2`, `gz`, `snappy`.

    codec("zstd:7").extension                   "zstd", which the file's name ends in
    codec("zstd:7").compress(data)              Streaming's own bytes, given the same version of the library
    codec("zstd:7").decompress(data, 1_000)     the 1,000 bytes that were compressed, or ValueError

What is decompressed may come from anywhere. Its size is known from the index, so every decoder stops soon after it, and
what the data say about their own size is compared before memory is taken. Nothing may follow the compressed piece: two
gzip members, two zstd frames or stray bytes are refused. Whether as many bytes are the same bytes is a question for
digests: of these, only gz and bz2 have checksums.

A codec keeps no state, so any number of threads may use one; the libraries let other threads run while they work.
"""

import bz2
import io
import struct
import zlib
from dataclasses import dataclass
from typing import Literal, Protocol, assert_never

import brotli
import cramjam
import zstandard

from headrace.errors import OptionError

__all__ = ["COMPRESSIONS", "Codec", "codec"]

Buffer = bytes | bytearray | memoryview
Extension = Literal["br", "bz2", "gz", "snappy", "zstd"]

LEVELS: dict[Extension, range] = {
    "br": range(12),
    "bz2": range(1, 10),
    "gz": range(10),
    "snappy": range(0),
    "zstd": range(1, 23),
}
DEFAULT_LEVEL: dict[Extension, int] = {"br": 11, "bz2": 9, "gz": 9, "snappy": 0, "zstd": 3}

COMPRESSIONS: tuple[str, ...] = tuple(LEVELS)

# What the libraries raise for data that are not theirs.
DAMAGE = (ValueError, OSError, zlib.error, brotli.error, cramjam.DecompressionError, zstandard.ZstdError)

# Decoders whose result cannot be sized beforehand are fed and emptied in pieces, so that neither side is held twice.
PIECE_BYTES = 1 << 18

# Up to here a result's memory is reserved beforehand, which costs nothing until it is written; beyond, it grows.
AT_ONCE_BYTES = 1 << 28

# The most that one byte can become: a zstd block of 4 bytes repeats one 128 Ki times, 3 bytes of snappy copy 64.
ZSTD_RATIO = (1 << 17) // 4
SNAPPY_RATIO = 22

# What follows the header of a zstd frame without content: a last block of no bytes, perhaps a checksum.
ZSTD_NO_CONTENT = (b"\x01\x00\x00", b"\x01\x00\x00\x99\xe9\xd8\x51")

GZIP_HEADER = struct.Struct("<4sLBB")  # magic with method and flags, time, effort, system
GZIP_TRAILER = struct.Struct("<LL")  # CRC-32 and size of the raw data, the size modulo 2^32


@dataclass(frozen=True)
class Codec:
    """One compression at one level; made by `codec`, which checks the name.

    `name` is what the index stores ("zstd:7"), `extension` what file names end in ("zstd"). `level` is 0 for snappy,
    which has none.
    """

    name: str
    extension: Extension
    level: int

    def compress(self, data: Buffer) -> bytes:
        """The whole of data, compressed; no bytes at all can be compressed, too.

        Raises ValueError for data that the format cannot hold (snappy: 4 GiB and more).
        """
        match self.extension:
            case "br":
                packed: bytes = brotli.compress(data, quality=self.level)
                return packed
            case "bz2":
                return bz2.compress(data, self.level)
            case "gz":
                return _gzip(data, self.level)
            case "snappy":
                return _snappy(data)
            case "zstd":
                return zstandard.ZstdCompressor(level=self.level).compress(data)
            case unknown:
                assert_never(unknown)

    def decompress(self, data: Buffer, size_bytes: int) -> bytes:
        """The size_bytes bytes that were compressed to data.

        Raises ValueError where data are cut, damaged, followed by other bytes, or become fewer or more than size_bytes.
        Beside the result this takes the decoder's own memory only, whatever data claim: a few MiB, for brotli its
        window (up to 16 MiB).
        """
        try:
            raw = self._decompressed(memoryview(data).cast("B"), size_bytes)
            if len(raw) != size_bytes:
                raise ValueError(f"they become {len(raw):,}")
            return raw
        except DAMAGE as error:
            raise ValueError(f"these are not {size_bytes:,} bytes compressed with {self.name}: {error}") from error

    def _decompressed(self, data: memoryview, size_bytes: int) -> bytes:
        match self.extension:
            case "br":
                return _in_pieces(_Brotli(), data, size_bytes)
            case "bz2":
                return _in_pieces(bz2.BZ2Decompressor(), data, size_bytes)
            case "gz":
                return _in_pieces(zlib.decompressobj(wbits=31), data, size_bytes)
            case "snappy":
                return _from_snappy(data, size_bytes)
            case "zstd":
                return _from_zstd(data, size_bytes)
            case unknown:
                assert_never(unknown)


def codec(compression: str | None) -> Codec | None:
    """The codec of that name, at its default level where the name has none; None for None.

    Raises OptionError, which lists the valid names, for any other value.
    """
    if compression is None:
        return None
    if isinstance(compression, str):
        wanted, colon, level = compression.partition(":")
        for extension, levels in LEVELS.items():
            if extension == wanted and (not colon or level in map(str, levels)):
                return Codec(str(compression), extension, int(level) if colon else DEFAULT_LEVEL[extension])
    raise OptionError("compression", compression, _expected())


def _expected() -> str:
    with_levels = (
        f"{name}, {name}:{levels[0]} to {name}:{levels[-1]}" if levels else name for name, levels in LEVELS.items()
    )
    return f"one of {', '.join(with_levels)}, or None"


# Compressing


def _gzip(data: Buffer, level: int) -> bytes:
    """One gzip member, as Python 3.11's `gzip.compress` makes it, except that its time is 0."""
    # By hand, because other versions of Python make other headers, and 3.11 names the system where the time is 0.
    effort = {9: 2, 1: 4}.get(level, 0)
    return b"".join(
        (
            GZIP_HEADER.pack(b"\x1f\x8b\x08\x00", 0, effort, 255),
            zlib.compress(data, level, wbits=-15),
            GZIP_TRAILER.pack(zlib.crc32(data), memoryview(data).nbytes & 0xFFFFFFFF),
        )
    )


def _snappy(data: Buffer) -> bytes:
    try:
        return bytes(cramjam.snappy.compress_raw(data))
    except cramjam.CompressionError as error:
        raise ValueError(
            f"snappy cannot hold {memoryview(data).nbytes:,} bytes ({error}); write smaller shards or use zstd"
        ) from error


# Decompressing


class _Decoder(Protocol):
    """What bz2's and zlib's decoders have in common."""

    @property
    def eof(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    def decompress(self, data: Buffer, max_length: int, /) -> bytes: ...


class _Brotli:
    """Brotli's decoder in the form of bz2's and zlib's."""

    unused_data = b""  # bytes behind the end are an error to brotli itself

    def __init__(self) -> None:
        self._decoder = brotli.Decompressor()

    @property
    def eof(self) -> bool:
        return bool(self._decoder.is_finished())

    def decompress(self, data: Buffer, max_length: int, /) -> bytes:
        """What data become; to brotli max_length is a hint, which it passes by as much again."""
        raw: bytes = self._decoder.process(data, output_buffer_limit=max_length)
        return raw


def _in_pieces(decoder: _Decoder, data: memoryview, size_bytes: int) -> bytes:
    out = io.BytesIO(bytes(min(max(size_bytes, 0), AT_ONCE_BYTES)))
    for start in range(0, len(data), PIECE_BYTES):
        source: Buffer = data[start : start + PIECE_BYTES]
        end = start + len(source)
        while raw := decoder.decompress(source, PIECE_BYTES):
            if out.tell() + len(raw) > size_bytes:
                raise ValueError("they become more than that")
            out.write(raw)
            if decoder.eof:
                break
            source = getattr(decoder, "unconsumed_tail", b"")  # zlib's; the others keep it themselves
        if decoder.eof:
            surplus = len(data) - end + len(decoder.unused_data)
            if surplus:
                raise ValueError(f"{surplus:,} other bytes follow")
            out.truncate()
            return out.getvalue()  # without a copy
    raise ValueError(f"they end early, after {len(data):,} bytes that become {out.tell():,}")


def _from_snappy(data: memoryview, size_bytes: int) -> bytes:
    declared = cramjam.snappy.decompress_raw_len(data)
    if declared != size_bytes or size_bytes > len(data) * SNAPPY_RATIO:
        raise ValueError(f"{len(data):,} bytes that claim to become {declared:,}")
    out = io.BytesIO(bytes(size_bytes))
    with out.getbuffer() as view:
        written = cramjam.snappy.decompress_raw_into(data, view)
    out.truncate(written)
    return out.getvalue()  # without a copy


def _from_zstd(data: memoryview, size_bytes: int) -> bytes:
    if data[:4] != zstandard.FRAME_HEADER:
        raise ValueError("they do not begin with a frame")
    declared = zstandard.frame_content_size(data)
    if declared < 0:
        raise ValueError("the frame does not say what size its content has")
    if declared != size_bytes or size_bytes > len(data) * ZSTD_RATIO:
        raise ValueError(f"a frame of at most {len(data):,} bytes that claims to become {declared:,}")
    if not size_bytes:  # zstandard looks at the header only
        if data[zstandard.frame_header_size(data) :] not in ZSTD_NO_CONTENT:
            raise ValueError("other bytes follow a frame without content")
        return b""
    return zstandard.ZstdDecompressor().decompress(data, allow_extra_data=False)
