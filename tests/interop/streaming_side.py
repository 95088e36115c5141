"""Runs in mosaicml-streaming's own interpreter: writes datasets with it, or reads them, and tells what it saw as JSON.

python -m interop.streaming_side knows              what it encodes and hashes with, and the releases of its codecs
python -m interop.streaming_side write DIR
python -m interop.streaming_side read DIR...        prints a list, one entry a DIR
"""

import json
import pathlib
import sys
import tempfile
from importlib.metadata import version

import streaming
import zstd
from streaming.base.compression import get_compressions
from streaming.base.format.mds.encodings import NDArray, get_mds_encodings
from streaming.base.hashing import get_hashes
from streaming.base.util import merge_index

from interop import streaming_cases as shared


def knows():
    return {
        "encodings": sorted(get_mds_encodings()),
        "dtypes": sorted(NDArray._value_dtype2int),
        "compressions": sorted(get_compressions()),
        "hashes": sorted(get_hashes()),
        "releases": {
            **{package: version(package) for package in ("brotli", "cramjam", "pillow")},
            "libzstd": zstd.ZSTD_version(),
        },
    }


def write(root):
    for name, case in shared.cases().items():
        write_samples(root / shared.folder(name), case.writer, case.columns, case.samples, case.options)
    for split in shared.SPLITS:
        samples = shared.of_split(split)
        write_samples(root / "splits" / split, "MDSWriter", shared.TEXT_COLUMNS, samples, shared.SPLIT_OPTIONS)
    for name, (writer, options) in shared.MERGED.items():
        for way in shared.WAYS_TO_MERGE:
            merged = root / "merged" / name / way
            for part in shared.PARTS:
                write_samples(merged / part, writer, shared.TEXT_COLUMNS, shared.of_part(part), options)
            if way == "a list":
                merge_index([str(merged / part / "index.json") for part in reversed(shared.PARTS)], str(merged))
            else:
                merge_index(str(merged))


def write_samples(folder, writer, columns, samples, options):
    with getattr(streaming, writer)(columns=columns, out=str(folder), **options) as written:
        for sample in samples:
            written.write(sample)


def read(root):
    seen = {name: seen_in(root / shared.folder(name), case.hashes) for name, case in readable()}
    for split in shared.SPLITS:
        seen[split] = seen_in(root / "splits", shared.SPLIT_OPTIONS["hashes"], split)
    for name, (_, options) in shared.MERGED.items():
        for way in shared.WAYS_TO_MERGE:
            seen[f"{name} merged by {way}"] = seen_in(root / "merged" / name / way, options.get("hashes", []))
    return seen


def readable():
    return [(name, case) for name, case in shared.cases().items() if case.is_readable_there]


def seen_in(folder, hashes, split=None):
    """What it saw: the same by all its ways to read. Its digests are checked one after another."""
    datasets = []
    for validated in hashes or [None]:
        copy = tempfile.mkdtemp()
        dataset = streaming.StreamingDataset(
            remote=str(folder), local=copy, split=split, validate_hash=validated, batch_size=1, allow_unsafe_types=True
        )
        datasets.append(shared.seen_in(dataset))
        del dataset
        datasets.append(shared.seen_in(streaming.LocalDataset(copy, split)))  # of the copy, for it decompresses nothing
    if any(found != datasets[0] for found in datasets):
        raise SystemExit(f"{folder}: its ways to read differ")
    return datasets[0]


if __name__ == "__main__":
    roots = [pathlib.Path(root) for root in sys.argv[2:]]
    match sys.argv[1]:
        case "knows":
            print(json.dumps(knows()))
        case "write":
            write(*roots)
        case "read":
            print(json.dumps([read(root) for root in roots]))
