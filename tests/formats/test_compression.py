"""Every codec gives back what it got, gives Streaming's bytes, and refuses whatever else it is handed."""

import array
import bz2
import gzip
import json
import mmap
import pickle
import subprocess
import sys
import threading
import time
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import brotli
import cramjam
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import OptionError
from headrace.formats import compression
from headrace.formats.compression import COMPRESSIONS, codec
from headrace.formats.digests import digests

GOLDEN = Path(__file__).parent.parent / "golden" / "mds"

# Lowest and highest level of each; every name that is valid.
LEVELS = {"br": (0, 11), "bz2": (1, 9), "gz": (0, 9), "zstd": (1, 22)}
NAMES = [*COMPRESSIONS, *(f"{name}:{level}" for name, (low, high) in LEVELS.items() for level in range(low, high + 1))]
DEFAULTS = {"br": "br:11", "bz2": "bz2:9", "gz": "gz:9", "zstd": "zstd:3"}

TEXT = b"".join(b"%d squared is %d; " % (number, number * number) for number in range(40))
SAMPLES = {
    "nothing": b"",
    "one byte": b"\0",
    "text": TEXT,
    "equal bytes": b"a" * 5000,
    "compressed text": zlib.compress(TEXT * 20),
    "every byte": bytes(range(256)) * 3,
}


# Round trips


def test_the_five_compressions_are_named():
    assert COMPRESSIONS == ("br", "bz2", "gz", "snappy", "zstd")


@pytest.mark.parametrize("name", NAMES)
def test_every_level_of_every_codec_gives_back_what_it_got(name):
    made = codec(name)
    assert (made.name, made.extension) == (name, name.partition(":")[0])
    for raw in SAMPLES.values():
        packed = made.compress(raw)
        back = made.decompress(packed, len(raw))
        assert (type(packed), type(back)) == (bytes, bytes)
        assert back == raw


def by_library(extension, level, raw):
    """The libraries' own call, as Streaming makes it."""
    match extension:
        case "br":
            return brotli.compress(raw, quality=level)
        case "bz2":
            return bz2.compress(raw, compresslevel=level)
        case "zstd":
            return zstandard.ZstdCompressor(level=level).compress(raw)
        case "snappy":
            return bytes(cramjam.snappy.compress_raw(raw))


@pytest.mark.parametrize("name", [name for name in NAMES if not name.startswith("gz")])
def test_a_level_is_the_librarys_level(name):
    extension, _, level = DEFAULTS.get(name, name).partition(":")
    raw = TEXT * 50
    assert codec(name).compress(raw) == by_library(extension, int(level or 0), raw)


@pytest.mark.parametrize("level", range(10))
def test_gz_is_what_pythons_gzip_makes_except_for_time_and_header(level):
    packed = codec(f"gz:{level}").compress(TEXT)
    assert packed[:4] == b"\x1f\x8b\x08\x00"
    assert packed[4:8] == bytes(4), "the time would make two runs differ"
    assert packed[8:10] == {1: b"\x04\xff", 9: b"\x02\xff"}.get(level, b"\x00\xff")
    assert packed[10:] == gzip.compress(TEXT, level)[10:]
    assert gzip.decompress(packed) == TEXT


@pytest.mark.parametrize("name", DEFAULTS)
def test_a_name_without_a_level_has_the_default_level_and_keeps_its_name(name):
    assert codec(name).compress(TEXT) == codec(DEFAULTS[name]).compress(TEXT)
    assert codec(name).name == name
    assert codec(name).level == codec(DEFAULTS[name]).level


def test_zstd_is_one_frame_with_its_size_and_without_a_checksum():
    frame = zstandard.get_frame_parameters(codec("zstd").compress(TEXT))
    assert (frame.content_size, frame.has_checksum, frame.dict_id) == (len(TEXT), False, 0)


@given(raw=st.binary(max_size=3000), name=st.sampled_from(NAMES))
def test_any_bytes_round_trip(raw, name):
    assert codec(name).decompress(codec(name).compress(raw), len(raw)) == raw


@pytest.mark.parametrize("name", COMPRESSIONS)
@pytest.mark.parametrize("piece_bytes", [1, 2, 7, 64, 4096])
def test_where_the_pieces_of_input_and_output_end_makes_no_difference(monkeypatch, name, piece_bytes):
    monkeypatch.setattr(compression, "PIECE_BYTES", piece_bytes)
    monkeypatch.setattr(compression, "AT_ONCE_BYTES", 64 * piece_bytes)
    for raw in (*SAMPLES.values(), b"\0" * 200_000):
        packed = codec(name).compress(raw)
        assert codec(name).decompress(packed, len(raw)) == raw
        for wrong in (packed[:-1], packed + b"\0", packed * 2):
            with pytest.raises(ValueError):
                codec(name).decompress(wrong, len(raw))
        for size_bytes in (len(raw) - 1, len(raw) + 1):
            with pytest.raises(ValueError):
                codec(name).decompress(packed, size_bytes)


@pytest.mark.parametrize("name", COMPRESSIONS)
def test_data_of_many_pieces_come_back_whole(name):
    pieces = [zlib.compress(b"%d" % number) * (number % 9) for number in range(30_000)]
    raw = b"".join(pieces) + bytes(3 * compression.PIECE_BYTES)
    made = codec({"br": "br:1"}.get(name, name))
    assert len(raw) > 8 * compression.PIECE_BYTES
    packed = made.compress(raw)
    assert made.decompress(packed, len(raw)) == raw
    with pytest.raises(ValueError):
        made.decompress(packed + b"\0", len(raw))


@pytest.mark.parametrize("name", COMPRESSIONS)
@pytest.mark.parametrize("form", [bytes, bytearray, memoryview, lambda raw: memoryview(b"--" + raw + b"--")[2:-2]])
def test_bytes_bytearrays_and_views_are_taken(name, form):
    packed = codec(name).compress(form(TEXT))
    assert packed == codec(name).compress(TEXT)
    assert codec(name).decompress(form(packed), len(TEXT)) == TEXT


@pytest.mark.parametrize("name", COMPRESSIONS)
def test_a_view_of_wider_elements_is_taken_as_its_bytes(name):
    words = array.array("H", range(1000, 3000))
    packed = codec(name).compress(memoryview(words))
    assert packed == codec(name).compress(words.tobytes())
    even = next(raw for raw in (TEXT[:size] for size in range(100, 200)) if len(codec(name).compress(raw)) % 2 == 0)
    packed = memoryview(codec(name).compress(even)).cast("H")
    assert codec(name).decompress(packed, len(even)) == even


@pytest.mark.parametrize("name", COMPRESSIONS)
def test_a_mapped_file_is_taken_and_can_be_closed_at_once(name, tmp_path):
    (tmp_path / "file").write_bytes(codec(name).compress(TEXT))
    with (
        open(tmp_path / "file", "rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped,
        memoryview(mapped) as view,
    ):
        raw = codec(name).decompress(view, len(TEXT))
    assert raw == TEXT


@pytest.mark.parametrize("name", NAMES)
def test_a_codec_pickles(name):
    again = pickle.loads(pickle.dumps(codec(name)))
    assert again == codec(name)
    assert again.decompress(codec(name).compress(TEXT), len(TEXT)) == TEXT


def test_data_beyond_snappys_limit_are_refused_before_they_are_read():
    problem = r"^snappy cannot hold 4,294,967,296 bytes \(.*\); write smaller shards"
    with mmap.mmap(-1, 1 << 32) as zeros, memoryview(zeros) as view, pytest.raises(ValueError, match=problem):
        codec("snappy").compress(view)


# Streaming's files

ZIPPED = sorted(path.name for path in GOLDEN.glob("zip_*"))


def golden_shards(name):
    """(index entry, compressed bytes) of each shard."""
    folder = GOLDEN / name / "dataset"
    for entry in json.loads((folder / "index.json").read_bytes())["shards"]:
        yield entry, (folder / entry["zip_data"]["basename"]).read_bytes()


def test_every_codec_is_among_the_golden_datasets():
    found = {entry["compression"] for name in ZIPPED for entry, _ in golden_shards(name)}
    assert found == {*COMPRESSIONS, "br:0", "br:5", "bz2:1", "gz:0", "gz:6", "zstd:1", "zstd:19", "zstd:22"}


@pytest.mark.parametrize("name", ZIPPED)
def test_what_streaming_compressed_becomes_what_it_had(name):
    for entry, packed in golden_shards(name):
        made = codec(entry["compression"])
        assert entry["zip_data"]["basename"] == f"{entry['raw_data']['basename']}.{made.extension}"
        raw = made.decompress(packed, entry["raw_data"]["bytes"])
        assert digests(entry["hashes"], raw) == entry["raw_data"]["hashes"]


# Whether this machine's library is one that gives the bytes of the version that wrote the golden files.
SAME_LIBRARY = {
    "br": brotli.__version__ == "1.2.1",
    "bz2": True,
    "gz": "ng" not in zlib.ZLIB_RUNTIME_VERSION,
    "snappy": True,
    "zstd": zstandard.ZSTD_VERSION == (1, 5, 7),
}


@pytest.mark.parametrize("name", ZIPPED)
def test_the_same_data_give_streamings_bytes(name):
    for entry, packed in golden_shards(name):
        made = codec(entry["compression"])
        if not SAME_LIBRARY[made.extension]:
            pytest.skip(f"another version of the library of {made.extension} wrote the golden file")
        ours = made.compress(made.decompress(packed, entry["raw_data"]["bytes"]))
        if made.extension == "gz":  # the time is the one thing that Streaming's runs differ in
            packed = packed[:4] + bytes(4) + packed[8:]
        assert ours == packed


# Damage

PACKED = {name: codec(name).compress(TEXT) for name in COMPRESSIONS}
CHECKED = ("bz2", "gz")  # their checksums find whatever changes the content


@pytest.mark.parametrize("name", COMPRESSIONS)
def test_data_that_are_cut_anywhere_are_refused(name):
    for size in range(len(PACKED[name])):
        with pytest.raises(ValueError, match=f"^these are not {len(TEXT):,} bytes compressed with {name}: "):
            codec(name).decompress(PACKED[name][:size], len(TEXT))


@pytest.mark.parametrize("name", COMPRESSIONS)
def test_any_flipped_bit_is_an_error_or_leaves_the_size_as_it_was(name):
    refused = 0
    for position in range(len(PACKED[name])):
        for bit in range(8):
            flipped = bytearray(PACKED[name])
            flipped[position] ^= 1 << bit
            try:
                raw = codec(name).decompress(flipped, len(TEXT))
            except ValueError:
                refused += 1
            else:
                assert len(raw) == len(TEXT)
                assert raw == TEXT or name not in CHECKED
    assert refused


@pytest.mark.parametrize("name", COMPRESSIONS)
@pytest.mark.parametrize("raw", SAMPLES.values(), ids=SAMPLES)
def test_whatever_follows_is_refused(name, raw):
    packed = codec(name).compress(raw)
    empty = codec(name).compress(b"")
    for tail in (b"\0", b"\n", bytes(8), packed, empty, b"x" * 100_000):
        with pytest.raises(ValueError):
            codec(name).decompress(packed + tail, len(raw))
        with pytest.raises(ValueError):
            codec(name).decompress(tail + packed, len(raw))


@pytest.mark.parametrize("name", COMPRESSIONS)
def test_two_pieces_are_refused_though_together_they_have_the_size(name):
    both = codec(name).compress(TEXT[:100]) + codec(name).compress(TEXT[100:])
    with pytest.raises(ValueError):
        codec(name).decompress(both, len(TEXT))


@pytest.mark.parametrize("name", COMPRESSIONS)
def test_a_size_that_is_not_the_contents_is_refused(name):
    for size_bytes in (-(1 << 70), -2, -1, 0, 1, len(TEXT) - 1, len(TEXT) + 1, 1 << 32, 1 << 62, sys.maxsize, 1 << 70):
        with pytest.raises(ValueError, match=rf"^these are not {size_bytes:,} bytes compressed with {name}: "):
            codec(name).decompress(PACKED[name], size_bytes)


@pytest.mark.parametrize("name", COMPRESSIONS)
def test_data_of_another_codec_are_refused(name):
    for other in {*COMPRESSIONS} - {name}:
        with pytest.raises(ValueError):
            codec(name).decompress(PACKED[other], len(TEXT))
    for other in (b"", TEXT, bytes(1000), b"\xff" * 1000):
        with pytest.raises(ValueError):
            codec(name).decompress(other, len(TEXT))


@given(data=st.binary(max_size=200), size_bytes=st.integers(0, 5000), name=st.sampled_from(COMPRESSIONS))
def test_any_bytes_are_decompressed_to_the_size_or_refused(data, size_bytes, name):
    try:
        raw = codec(name).decompress(data, size_bytes)
    except ValueError:
        return
    assert len(raw) == size_bytes


def zstd_frame(raw, **parameters):
    return zstandard.ZstdCompressor(**parameters).compress(raw)


def test_a_zstd_frame_that_does_not_say_its_size_is_refused():
    streamed = zstandard.ZstdCompressor().compressobj()
    with pytest.raises(ValueError, match="does not say what size"):
        codec("zstd").decompress(streamed.compress(TEXT) + streamed.flush(), len(TEXT))
    with pytest.raises(ValueError, match="does not say what size"):
        codec("zstd").decompress(zstd_frame(TEXT, write_content_size=False), len(TEXT))


@pytest.mark.parametrize("raw", [b"", TEXT])
def test_a_zstd_frame_with_a_checksum_is_taken_and_its_checksum_looked_at(raw):
    """The zstd command adds one."""
    frame = zstd_frame(raw, write_checksum=True)
    assert codec("zstd").decompress(frame, len(raw)) == raw
    with pytest.raises(ValueError):
        codec("zstd").decompress(frame[:-1] + bytes([frame[-1] ^ 1]), len(raw))


def test_a_zstd_frame_that_may_be_skipped_is_no_content():
    skipped = b"\x50\x2a\x4d\x18" + (4).to_bytes(4, "little") + b"note"
    looks_empty = b"\x50\x2a\x4d\x18" + (3).to_bytes(4, "little") + b"\x01\0\0"
    for data, size_bytes in [(skipped, 0), (skipped, 4), (looks_empty, 0), (skipped + PACKED["zstd"], len(TEXT))]:
        with pytest.raises(ValueError):
            codec("zstd").decompress(data, size_bytes)
    with pytest.raises(ValueError):
        codec("zstd").decompress(PACKED["zstd"] + skipped, len(TEXT))
    with pytest.raises(ValueError):
        codec("zstd").decompress(codec("zstd").compress(b"") + skipped, 0)


def test_a_zstd_frame_that_says_less_or_more_than_it_has_is_refused():
    frame = zstd_frame(TEXT)
    assert frame[4] >> 6 == 1, "the size should stand in two bytes, less 256"
    for claimed in (256, len(TEXT) - 1, len(TEXT) + 1, 65_791):
        lying = frame[:5] + (claimed - 256).to_bytes(2, "little") + frame[7:]
        assert zstandard.frame_content_size(lying) == claimed
        for size_bytes in (len(TEXT), claimed):
            with pytest.raises(ValueError):
                codec("zstd").decompress(lying, size_bytes)


@pytest.mark.parametrize("claimed", [0, 1, len(TEXT) - 1, len(TEXT) + 1, 1 << 20, (1 << 32) - 1])
def test_a_snappy_block_that_says_less_or_more_than_it_has_is_refused(claimed):
    varint = bytearray()
    rest = claimed
    while rest >= 128:
        varint.append(rest & 127 | 128)
        rest >>= 7
    lying = bytes([*varint, rest]) + PACKED["snappy"][2:]
    assert cramjam.snappy.decompress_raw_len(lying) == claimed
    for size_bytes in (len(TEXT), claimed):
        with pytest.raises(ValueError):
            codec("snappy").decompress(lying, size_bytes)


# Bombs

BOMBS = """
import bz2, mmap, os, resource, sys, zlib
import brotli, cramjam, zstandard
from headrace.formats.compression import COMPRESSIONS, codec

MIB = 1 << 20
GZIP_HEADER = b"\\x1f\\x8b\\x08" + bytes(7)

def deflated(mib):
    one = zlib.compressobj(9, wbits=-15)
    return (one.compress(bytes(MIB)) + one.flush(zlib.Z_FULL_FLUSH)) * mib

def brotlied(mib):
    one = brotli.Compressor(quality=1, lgwin=24)
    return b"".join(one.process(bytes(16 * MIB)) for _ in range(mib // 16)) + one.finish()

def zstded(mib, claims):
    size = claims.to_bytes(8, "little")
    block = (128 << 10 << 3 | 2).to_bytes(3, "little") + b"z"
    return zstandard.FRAME_HEADER + b"\\xe0" + size + block * (8 * mib - 1) + bytes([block[0] | 1]) + block[1:]

# They are bombs indeed, and not merely broken.
assert codec("zstd").decompress(zstded(8, 8 * MIB), 8 * MIB) == b"z" * 8 * MIB
assert zlib.decompressobj(wbits=31).decompress(GZIP_HEADER + deflated(8)) == bytes(8 * MIB)

# name: (codec, data)
raw = None
if "--sound" in sys.argv:
    raw = os.urandom(MIB) + bytes(39 * MIB)
    bombs = {name: (name, codec(name.replace("br", "br:5")).compress(raw)) for name in COMPRESSIONS}
else:
    bombs = {
        "gz": ("gz", GZIP_HEADER + deflated(8192)),
        "bz2": ("bz2", bz2.compress(bytes(128 * MIB))),
        "br": ("br", brotlied(512)),
        "snappy": ("snappy", bytes(cramjam.snappy.compress_raw(bytes(512 * MIB)))),
        "zstd": ("zstd", zstd_all := zstded(8192, 8192 * MIB)),
        "zstd that says 1,000": ("zstd", zstded(8192, 1000)),
        "zstd that says nothing": ("zstd", zstandard.FRAME_HEADER + b"\\x00\\x88" + zstd_all[13:]),
        "a window of 3.75 TiB": ("zstd", zstandard.FRAME_HEADER + b"\\x00\\xff" + zstd_all[13:]),
        "zstd that says 2^62": ("zstd", zstded(1, 1 << 62)),
        "zstd that says 64 GiB": ("zstd", zstded(1, 64 << 30)),
        "snappy that says 4 GiB": ("snappy", b"\\xff\\xff\\xff\\xff\\x0f" + b"\\0a" * 1000),
        "many empty members": ("gz", codec("gz").compress(b"") * 100_000),
    }

pages = int(open("/proc/self/statm").read().split()[0])
limit = pages * mmap.PAGESIZE + int(sys.argv[1]) * MIB
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
for name, (compression, data) in bombs.items():
    for size_bytes in map(int, sys.argv[2].split(",")):
        try:
            became = codec(compression).decompress(data, size_bytes) == raw
        except ValueError:
            became = "refused"
        sys.stdout.write(f"{name}: {became}\\n")
"""

MIB = 1 << 20


def bombs(memory_mib, sizes, *more):
    """What came of the bombs in a process that may take so much memory more."""
    command = [sys.executable, "-c", BOMBS, str(memory_mib), ",".join(map(str, sizes)), *more]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_data_that_become_far_more_than_their_size_are_refused_without_memory_for_it():
    """They become up to 8 GiB, and some claim more; of the memory allowed, brotli's decoder takes 16 MiB and more."""
    outcomes = bombs(56, [0, 1, 1000, MIB, 8 * MIB])
    assert len(outcomes) == 12 * 5
    assert {outcome.partition(": ")[2] for outcome in outcomes} == {"refused"}


def test_decompressing_takes_the_memory_of_the_result_once():
    """Twice the 40 MiB of the result would not fit."""
    assert bombs(64, [40 * MIB], "--sound") == [f"{name}: True" for name in COMPRESSIONS]


def test_a_size_that_data_cannot_become_is_refused_though_data_and_index_agree_on_it():
    lies = [
        ("zstd", zstandard.FRAME_HEADER + b"\xe0" + (1 << 45).to_bytes(8, "little") + b"\x03\x00\x10z", 1 << 45),
        ("snappy", b"\xff\xff\xff\xff\x0f" + b"\0a" * 1000, (1 << 32) - 1),
    ]
    for name, data, size_bytes in lies:
        with pytest.raises(ValueError, match=rf"bytes that claims? to become {size_bytes:,}"):
            codec(name).decompress(data, size_bytes)


@pytest.mark.parametrize("name", ["snappy", "zstd"])
def test_data_that_become_as_much_as_the_format_allows_are_taken(name):
    raw = bytes(64 * MIB)
    packed = codec(name).compress(raw)
    assert len(raw) / len(packed) > {"snappy": 21, "zstd": 30_000}[name]
    assert codec(name).decompress(packed, len(raw)) == raw


# Names


def test_no_compression_has_no_codec():
    assert codec(None) is None


WRONG = ["", "gzipp", "zstd:99", "zstd:0", "zstd:23", "snappy:1", "snappy:0", "snappy:", "br:12", "bz2:0", "bz2:10"]
WRONG += ["gz:10", "zstd:", "zstd:+3", "zstd:03", "zstd:3 ", "zstd: 3", "zstd:³", "zstd:3:3", "zstd:-1", "ZSTD", " gz"]
WRONG += ["gzip", "brotli", "zst", "lz4", ":", ":3", 5, 0, False, b"zstd", ["zstd"], {"zstd": 3}, 3.5]


@pytest.mark.parametrize("name", WRONG, ids=repr)
def test_any_other_name_is_refused_with_those_that_are_valid(name):
    with pytest.raises(OptionError) as caught:
        codec(name)
    assert str(caught.value) == (
        f"compression={name!r} is not valid; expected one of br, br:0 to br:11, bz2, bz2:1 to bz2:9, "
        "gz, gz:0 to gz:9, snappy, zstd, zstd:1 to zstd:22, or None"
    )


# Threads


@pytest.mark.parametrize("name", COMPRESSIONS)
def test_one_codec_serves_many_threads(name):
    made = codec({"br": "br:2"}.get(name, name))

    def rounds(number):
        raw = (b"%d " % number) * 30_000 + TEXT * number
        return all(made.decompress(made.compress(raw), len(raw)) == raw for _ in range(4))

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(rounds, range(24)))


@pytest.fixture
def ticks():
    """A list that grows whenever a call lets other threads run, and never else."""
    ticks, stop = [], threading.Event()

    def tick():
        while not stop.is_set():
            ticks.append(None)
            time.sleep(0)  # gives the interpreter back

    ticker = threading.Thread(target=tick)
    usual = sys.getswitchinterval()
    ticker.start()
    sys.setswitchinterval(1000)  # so nobody takes the interpreter from a thread that does not give it
    try:
        yield ticks
    finally:
        sys.setswitchinterval(usual)
        stop.set()
        ticker.join()


def lets_others_run(ticks, call):
    for _ in range(1000):  # a busy machine may not get to the other thread at once
        before = len(ticks)
        call()
        if len(ticks) > before:
            return True
    return False


@pytest.mark.parametrize("name", COMPRESSIONS)
def test_other_threads_run_while_a_codec_works(ticks, name):
    assert not lets_others_run(ticks, lambda: sum(range(1000))), "the test itself is wrong"
    made = codec({"br": "br:2"}.get(name, name))
    raw = b"".join(zlib.compress(b"%d" % number) for number in range(20_000))
    packed = made.compress(raw)
    assert lets_others_run(ticks, lambda: made.compress(raw))
    assert lets_others_run(ticks, lambda: made.decompress(packed, len(raw)))
