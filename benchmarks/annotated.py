"""Streams with metadata against GuideLoom: random windows of 2,048 tokens, and writing spans.

    python -m benchmarks.annotated [--check] [--windows N] [--guideloom PYTHON]

Reading: one process a side, warm page cache, the same files and windows, tokens in spans of 100 to 1,500. Samples are
what GuideLoom's protocol gives to unpack(): elements, shard of each payload, payload of each element, payloads.
GuideLoom has no batch read; its fastest read interface is what Headrace is compared with. Judged by processor time.
Single windows, and batches collated to int64 tensors with stack_segments(), are shown for information.

Writing: records of 262,144 tokens in spans of about 500, by `pack_spans` of SpanNumpyFormat with fsync off, commit
included, and by GuideLoom's generator. Headrace writes 128 of them a round and GuideLoom 8, so that both take long
enough to be timed; files of equal input were compared. Judged by whichever clock is less kind.
"""

import argparse
import hashlib
import shutil
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from benchmarks.measure import (
    WINDOW,
    Bound,
    Peer,
    Seconds,
    against_fastest,
    conclude,
    describe_machine,
    interleaved,
    make_tokens,
    print_table,
    ratios,
    timed,
)
from headrace import LocalStore, SpanNumpyFormat, StreamDataset, StreamWithMetaStorage, stack_segments

BATCH = 32
BATCHES = 150  # a round; 4,800 windows
ROUNDS = 7
LEAST_READING = 3.0
LEAST_WRITING = 20.0
INTERFACES = ("SeekIO", "PosixPreadIO", "MmapIO")
RECORD, RECORDS = 1 << 18, 64
CLOCKS: tuple[Literal["cpu", "wall"], ...] = ("cpu", "wall")


class Windows:
    """Samples are what unpack() is given."""

    def __init__(self, stream_dtype: str) -> None:
        self.stream_dtype = np.dtype(stream_dtype)

    def size(self, data: Any) -> int:
        raise NotImplementedError("for reading only")

    def pack(self, data: Any) -> Any:
        raise NotImplementedError("for reading only")

    def unpack(self, stream_data: Any, document_shard: Any, document_index: Any, document_data: Any) -> Any:
        return stream_data, document_shard, document_index, document_data


def digest_of(samples: Any) -> str:
    """As in guideloom_annotated.py, whose interpreter has no Headrace."""
    digest = hashlib.sha256()
    for stream, shards, index, payloads in samples:
        for part in (stream, shards.astype("<i8"), index.astype("<i4"), *payloads):
            digest.update(part.tobytes())
    return digest.hexdigest()


def make_record(num_tokens: int, shortest: int, longest: int, dtype: str, payload_bytes: int) -> dict[str, Any]:
    """A record of num_tokens tokens in spans of shortest to longest, lengths uniform."""
    generator = np.random.default_rng(5)
    edges = np.cumsum(generator.integers(shortest, longest, num_tokens // shortest + 1, endpoint=True))
    edges = np.concatenate([[0], edges[edges < num_tokens], [num_tokens]])
    payloads = generator.integers(0, 256, (len(edges) - 1, payload_bytes), dtype=np.uint8)
    tokens = make_tokens(-(-num_tokens // WINDOW))[:num_tokens].astype(dtype)
    return {"tokens": tokens, "span_lengths": np.diff(edges), "payloads": [payload.tobytes() for payload in payloads]}


def write(folder: Path, records: list[dict[str, Any]], num_shards: int) -> int:
    """All records into each shard; returns the number of tokens."""
    storage = StreamWithMetaStorage(LocalStore(folder, fsync=False), SpanNumpyFormat(records[0]["tokens"].dtype))
    with storage.sync_writer() as writer:
        for shard in range(num_shards):
            for record in records:
                writer.append(shard, record)
    return sum(len(record["tokens"]) for record in records) * num_shards


def read(dataset: StreamDataset, batches: np.ndarray) -> int:
    """Every batch and all of its samples; returns the number of windows."""
    for batch in batches:
        list(dataset.__getitems__(batch))
    return int(batches.size)


def read_singly(dataset: StreamDataset, numbers: list[int]) -> int:
    """The same windows, one call each."""
    for number in numbers:
        dataset[number]
    return len(numbers)


def read_tensors(dataset: StreamDataset, batches: np.ndarray) -> int:
    """Every batch as tensors: tokens, positions, segments and where they begin."""
    collate = stack_segments(dtype=torch.int64)
    for batch in batches:
        collate(dataset.__getitems__(batch))
    return int(batches.size)


def compare_reading(root: Path, title: str, record: dict[str, Any], num_shards: int, peer: Peer) -> float:
    """Times that Headrace is as fast as GuideLoom's fastest interface, by processor time; prints the tables."""
    folder = root / title
    write(folder, [record], num_shards)
    storage = StreamWithMetaStorage(folder)
    storage.publish()
    dtype = record["tokens"].dtype.str
    dataset = StreamDataset(StreamWithMetaStorage(folder, Windows(dtype)), WINDOW)
    spans = StreamDataset(StreamWithMetaStorage(folder, SpanNumpyFormat(dtype)), WINDOW)
    order = np.random.default_rng(6).permutation(len(dataset))
    batches = order[: len(order) // BATCH * BATCH].reshape(-1, BATCH)[:BATCHES]
    np.save(root / "numbers.npy", batches)
    request = {"directory": str(folder), "dtype": dtype, "windows": str(root / "numbers.npy")}
    same = {digest_of(sample for batch in batches for sample in dataset.__getitems__(batch))}
    same |= {peer.ask(io=interface, digest=True, **request) for interface in INTERFACES}
    assert len(same) == 1, "the two libraries read different windows"
    print(f"\n{title}, {len(dataset):,} windows, batches of {BATCH}")
    numbers = batches.reshape(-1).tolist()
    with dataset, spans:
        ratio = against_fastest(
            {
                "Headrace, __getitems__": lambda: timed(lambda: read(dataset, batches)),
                "Headrace, [i]": lambda: timed(lambda: read_singly(dataset, numbers)),
                "Headrace, to tensors": lambda: timed(lambda: read_tensors(spans, batches)),
            },
            {f"GuideLoom, {one}": partial(peer.seconds, io=one, **request) for one in INTERFACES},
            "window",
        )
    shutil.rmtree(folder)
    return ratio


def compare_writing(root: Path, peer: Peer) -> list[Bound]:
    """Times GuideLoom's speed by both clocks; prints the table."""
    parts = np.split(make_tokens(RECORDS * RECORD // WINDOW), RECORDS)
    first = make_record(RECORD, 250, 750, "<u2", 8)
    records = [{**first, "tokens": part} for part in parts]
    payloads = np.frombuffer(b"".join(first["payloads"]), np.uint8).reshape(-1, 8)
    source = root / "records.npz"
    np.savez(source, tokens=np.stack(parts), lengths=first["span_lengths"], payloads=payloads)
    folders = {"ours": root / "ours", "theirs": root / "theirs"}

    def thousand(taken: Seconds) -> Seconds:
        return Seconds(taken.wall * 1000, taken.cpu * 1000)

    def ours(times: int, some: list[dict[str, Any]]) -> Seconds:
        shutil.rmtree(folders["ours"], ignore_errors=True)
        return thousand(timed(lambda: write(folders["ours"], some * times, 1)))

    def theirs(num_records: int) -> Seconds:
        shutil.rmtree(folders["theirs"], ignore_errors=True)
        return thousand(peer.seconds(directory=str(folders["theirs"]), source=str(source), records=num_records))

    ours(1, records[:3])
    theirs(3)
    names = [path.name for path in sorted(folders["theirs"].iterdir())]
    assert len(names) == 3, "elements, payloads and index were expected"
    for name in names:
        same = {(folder / name).read_bytes() for folder in folders.values()}
        assert len(same) == 1, f"the two libraries wrote different {name}"
    yardstick = "GuideLoom, generator"
    sides = {"Headrace, pack_spans": lambda: ours(2, records), yardstick: lambda: theirs(8)}
    seconds = interleaved(sides, ROUNDS)
    print(f"\nrecords of {RECORD:,} uint16 tokens in {len(payloads)} spans with payloads of 8 bytes, one shard")
    print_table(seconds, yardstick, "thousand tokens")
    found = [ratios(seconds, yardstick, clock)["Headrace, pack_spans"] for clock in CLOCKS]
    least = min(found)
    print(f"  by cpu {found[0]:.1f} times GuideLoom's tokens a second, by wall {found[1]:.1f}")
    return [Bound("writing spans, times GuideLoom's speed, the lesser of both clocks", least, LEAST_WRITING)]


def main() -> int:
    """Measure and print; 1 when --check is given and a bound is missed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--windows", type=int, default=16_000, help="of 2,048 tokens: 16,000 are 197 MB of uint16")
    parser.add_argument("--guideloom", metavar="PYTHON", help="an interpreter that has GuideLoom")
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(describe_machine("torch"))
    if not options.guideloom:
        print("\nGuideLoom is left out: no interpreter was given (--guideloom), so there is nothing to compare with")
        return 0
    bounds = []
    with tempfile.TemporaryDirectory() as temporary, Peer(options.guideloom, "guideloom_annotated.py") as peer:
        root = Path(temporary)
        for dtype, payload_bytes, num_shards in (("<u2", 8, 1), ("<i4", 8, 1), ("<u2", 8, 4), ("<u2", 64, 1)):
            name = f"{np.dtype(dtype).name} tokens, payloads of {payload_bytes} bytes, {num_shards} shard"
            name += "s" * (num_shards > 1)
            record = make_record(options.windows // num_shards * WINDOW, 100, 1500, dtype, payload_bytes)
            ratio = compare_reading(root, name, record, num_shards, peer)
            if payload_bytes == 8:
                bounds.append(Bound(f"windows, {name}, times GuideLoom's fastest", ratio, LEAST_READING))
        bounds += compare_writing(root, peer)
    return conclude(bounds, options.check)


if __name__ == "__main__":
    sys.exit(main())
