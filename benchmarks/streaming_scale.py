"""StreamingDataset's start and memory: resuming in the middle of 10^8 samples, and what an import takes.

    python -m benchmarks.streaming_scale [--check] [--streaming PYTHON]

Resuming: a dataset of shards of {"id": int}, all real and readable (they are hard links of one file), by 10,000 samples
each, or so many that there are always 1,000 shards; shuffled in pools, batch_size=32, seen from a new process that has
read another, small dataset, so that its imports are no part. From the constructor to the first sample after half an
epoch, the index included, and once more in the dataset that is open by then. Memory is what the process has for itself
afterwards (RssAnon); pages of mapped shards are the system's, and leave when it needs them.

mosaicml-streaming does the same up to 10^7 samples, for information: both its time and its memory grow with them.

Importing: what a new process has in memory (VmRSS) after `import headrace`, and after `import streaming` where
torchvision and transformers are stubs of a few lines, and the SDKs of clouds are absent: a real one takes more.
Whoever uses StreamingDataset imports torch as well, on which both stand: those rows are printed, too.
"""

import argparse
import gc
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.both_sides import status_bytes
from benchmarks.measure import ROUNDS, Bound, Peer, conclude, describe_machine
from headrace import LocalStore, MDSWriter, StreamingDataset

MEGABYTE = 1_000_000
LAYOUTS = (  # shards, samples of each
    (100, 10_000),
    (1_000, 10_000),
    (10_000, 10_000),
    (1_000, 1_000),
    (1_000, 100_000),
)
MOST_S = 0.050
MOST_GROWTH = 1 * MEGABYTE  # of 100 times the samples in as many shards
PEER_SAMPLES = 10_000_000
STATUS = "; print(next(line.split()[1] for line in open('/proc/self/status') if line.startswith('VmRSS')))"
OPENED = "; dataset = StreamingDataset(local={!r}, shuffle=True, batch_size=32)"


class Resumed(NamedTuple):
    """What going on in the middle of an epoch took."""

    from_new_s: float  # from the constructor to the first sample
    opened_s: float  # from load_state_dict() to it, where the dataset is open
    own_bytes: int  # by which the process grew for good
    all_bytes: int  # with the pages of mapped files


def write(folder: Path, shards: int, samples: int) -> Path:
    """A dataset of so many shards of so many samples each, which take the place of one; returns its folder."""
    with MDSWriter(out=LocalStore(folder, fsync=False), columns={"id": "int"}, size_limit=None) as writer:
        for number in range(samples):
            writer.write({"id": number})
    index = json.loads((folder / "index.json").read_text())
    [shard] = index["shards"]
    names = [f"shard.{number:05}.mds" for number in range(shards)]
    index["shards"] = [{**shard, "raw_data": {**shard["raw_data"], "basename": name}} for name in names]
    (folder / "index.json").write_text(json.dumps(index, sort_keys=True))
    for name in names[1:]:
        os.link(folder / names[0], folder / name)
    return folder


def resumed(folder: Path, state: dict[str, Any] | None) -> tuple[StreamingDataset, dict[str, Any]]:
    """The dataset, after the first sample from where the state says (None: half an epoch), and the state."""
    dataset = StreamingDataset(local=folder, shuffle=True, batch_size=32)
    if state is None:
        state = dataset.state_dict(dataset.size // 2)
    dataset.load_state_dict(state)
    next(iter(dataset))
    return dataset, state


def print_resumed(folder: Path, small: Path, state: dict[str, Any]) -> None:
    """Measure once, as JSON."""
    resumed(small, None)
    gc.collect()
    own, whole = status_bytes("RssAnon"), status_bytes("VmRSS")
    begin = time.perf_counter()
    dataset, _ = resumed(folder, state)
    from_new_s = time.perf_counter() - begin
    gc.collect()
    own, whole = status_bytes("RssAnon") - own, status_bytes("VmRSS") - whole
    begin = time.perf_counter()
    dataset.load_state_dict(state)
    next(iter(dataset))
    print(json.dumps(Resumed(from_new_s, time.perf_counter() - begin, own, whole)))


def measure_resuming(root: Path, streaming: Peer | None) -> list[Bound]:
    """The claims about half an epoch."""
    small = write(root / "small", 10, 100)
    found: dict[tuple[int, int], Resumed] = {}
    print("\nResuming after half an epoch, to the first sample")
    print(f"  {'samples':>12} {'shards':>7} {'new, ms':>9} {'min':>6} {'open, ms':>9} {'own MB':>8} {'with maps':>10}")
    for shards, samples in LAYOUTS:
        folder = write(root / f"{shards}-{samples}", shards, samples)
        dataset = StreamingDataset(local=folder, shuffle=True, batch_size=32)
        state = dataset.state_dict(dataset.size // 2)
        dataset.close()
        command = [sys.executable, "-m", "benchmarks.streaming_scale", "--resume"]
        command += [str(folder), str(small), json.dumps(state)]
        taken = [
            Resumed(*json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout))
            for _ in range(ROUNDS)
        ]
        middle = Resumed(*(statistics.median(values) for values in zip(*taken, strict=True)))
        found[shards, samples] = middle
        print(
            f"  {shards * samples:12,} {shards:7,} {middle.from_new_s * 1e3:9.1f} "
            f"{min(one.from_new_s for one in taken) * 1e3:6.1f} {middle.opened_s * 1e3:9.1f} "
            f"{middle.own_bytes / MEGABYTE:8.2f} {middle.all_bytes / MEGABYTE:10.2f}"
        )
        if streaming is not None and samples == 10_000 and shards * samples <= PEER_SAMPLES:
            wall, grown = streaming.ask(do="resume", directory=str(folder), samples=shards * samples)
            print(f"  {'mosaicml-streaming, the same':28} {wall * 1e3:9,.0f} ms, {grown / MEGABYTE:,.0f} MB at most")
    largest, fewer = found[10_000, 10_000], found[1_000, 1_000]
    grown = max(1, found[1_000, 100_000].own_bytes - fewer.own_bytes)
    return [
        Bound("resuming in 10^8 samples, times as fast as 50 ms", MOST_S / largest.from_new_s, 1.0),
        Bound("growth from 10^6 to 10^8 samples in 1,000 shards, times less than 1 MB", MOST_GROWTH / grown, 1.0),
    ]


def measure_importing(root: Path, python: str | None) -> list[Bound]:
    """The claim about memory after the import."""
    folder = str(root / "small")
    names = "import StreamingDataset, StreamingDataLoader"
    rows = {
        "import headrace": (sys.executable, "import headrace"),
        "import torch.utils.data": (sys.executable, "import torch.utils.data"),
        f"from headrace {names}": (sys.executable, f"from headrace {names}"),
        "  and a dataset": (sys.executable, f"from headrace {names}" + OPENED.format(folder)),
    }
    if python:
        rows |= {
            "import streaming": (python, "import streaming"),
            "  and a dataset of its": (python, f"from streaming {names}" + OPENED.format(folder)),
        }
    print("\nMemory of a new process, MB")
    found: dict[str, float] = {}
    for name, (interpreter, code) in rows.items():
        done = [
            subprocess.run([interpreter, "-c", code + STATUS], capture_output=True, text=True, check=True)
            for _ in range(3)
        ]
        found[name] = statistics.median(int(one.stdout) * 1024 for one in done)
        print(f"  {name:64} {found[name] / MEGABYTE:7.1f}")
    if not python:
        return []
    ratio = found["import streaming"] / found["import headrace"]
    return [Bound("memory after the import, times less than mosaicml-streaming's", ratio, 2.0)]


def main() -> int:
    """Measure and print; 1 when --check is given and a bound is missed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--streaming", metavar="PYTHON", help="an interpreter that has mosaicml-streaming")
    parser.add_argument("--resume", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.resume:
        folder, small, state = options.resume
        print_resumed(Path(folder), Path(small), json.loads(state))
        return 0
    print(describe_machine("torch"))
    bounds: list[Bound] = []
    with tempfile.TemporaryDirectory() as temporary:
        root = Path(temporary)
        if options.streaming:
            with Peer(options.streaming, "streaming_peer.py", root) as streaming:
                bounds += measure_resuming(root, streaming)
        else:
            print("\nmosaicml-streaming is left out: no interpreter was given (--streaming)")
            bounds += measure_resuming(root, None)
        bounds += measure_importing(root, options.streaming)
    return conclude(bounds, options.check)


if __name__ == "__main__":
    sys.exit(main())
