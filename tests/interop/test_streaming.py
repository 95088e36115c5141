"""mosaicml-streaming itself reads what Headrace wrote, Headrace reads what it wrote, and both write the same bytes."""

import json
from importlib.metadata import version

import pytest
import zstandard

import headrace
from headrace import LocalDataset, LocalStore, SampleDataset, merge_index
from headrace.formats.compression import codec
from interop import streaming_cases as shared

pytestmark = pytest.mark.interop
CASES = shared.cases()
MERGES = {f"{name} merged by {way}": (name, way) for name in shared.MERGED for way in shared.WAYS_TO_MERGE}
every_case = pytest.mark.parametrize("name", CASES)
every_merge = pytest.mark.parametrize("merge", MERGES)


def write(root):
    """Every case with Headrace, as streaming_side.py does it with mosaicml-streaming."""
    for name, case in CASES.items():
        write_samples(root / shared.folder(name), case.writer, case.columns, case.samples, case.options)
    for split in shared.SPLITS:
        samples = shared.of_split(split)
        write_samples(root / "splits" / split, "MDSWriter", shared.TEXT_COLUMNS, samples, shared.SPLIT_OPTIONS)
    for name, way in MERGES.values():
        writer, options = shared.MERGED[name]
        merged = root / "merged" / name / way
        for part in shared.PARTS:
            write_samples(merged / part, writer, shared.TEXT_COLUMNS, shared.of_part(part), options)
        if way == "a list":
            merge_index([str(merged / part / "index.json") for part in reversed(shared.PARTS)], str(merged))
        else:
            merge_index(str(merged))


def write_samples(folder, writer, columns, samples, options):
    unsafe = {"allow_unsafe_types": True} if "pkl" in columns.values() else {}
    out = LocalStore(folder, fsync=False)  # hundreds of small datasets
    with getattr(headrace, writer)(columns=columns, out=out, **options, **unsafe) as written:
        for sample in samples:
            written.write(sample)


def seen_by_us(folder, hashes, split=None):
    """What Headrace sees, the same in every way to read, with all digests checked."""
    dataset = SampleDataset(folder, split, allow_unsafe_types=True, verify=bool(hashes))
    seen = shared.seen_in(dataset)
    numbers = list(range(len(dataset)))[::-1]
    assert [shared.sorted_plain(sample) for sample in dataset.__getitems__(numbers)] == seen
    assert [shared.sorted_plain(sample) for sample in dataset[::-1]] == seen
    assert shared.seen_in(LocalDataset(folder, split, allow_unsafe_types=True)) == seen
    return json.loads(json.dumps(seen))


def contents(folder, name):
    """All files, as they are, or where the releases of a codec differ: decompressed, without what is said of them."""
    files = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    if name is None:
        return files
    compression = codec(name)
    index = json.loads(files.pop("index.json"))
    for shard in index["shards"]:
        for part in ("data", "meta"):
            if packed := shard.get(f"zip_{part}"):
                size = shard[f"raw_{part}"]["bytes"]
                files[packed["basename"]] = compression.decompress(files[packed["basename"]], size)
                shard[f"zip_{part}"] = packed["basename"]
    return {"index.json": index, **files}


@pytest.fixture(scope="module")
def knows(streaming):
    return streaming.knows()


@pytest.fixture(scope="module")
def theirs(streaming, tmp_path_factory):
    return streaming.write(tmp_path_factory.mktemp("theirs"))


@pytest.fixture(scope="module")
def ours(streaming, tmp_path_factory):
    root = tmp_path_factory.mktemp("ours")
    write(root)
    return root


@pytest.fixture(scope="module")
def seen(streaming, ours, theirs):
    """What mosaicml-streaming sees in what Headrace wrote, and in what it wrote itself."""
    return dict(zip(("in ours", "in theirs"), streaming.read(ours, theirs), strict=True))


def test_everything_that_streaming_can_encode_compress_and_hash_is_tried(knows):
    encodings = {encoding for case in CASES.values() for encoding in case.columns.values()}
    assert {name.split(":")[0] for name in encodings if name != "float"} == set(knows["encodings"])
    for form in ("ndarray:{}", "ndarray:{}:2,3"):
        assert {form.format(name) for name in knows["dtypes"]} <= encodings
    assert {case.options.get("compression") for case in CASES.values()} - {None} == set(knows["compressions"])
    assert {name for case in CASES.values() for name in case.hashes} == set(knows["hashes"])


@every_case
def test_streaming_reads_what_headrace_wrote(seen, name):
    if not CASES[name].is_readable_there:
        assert name not in seen["in theirs"], "then it can be compared"
        return
    assert seen["in ours"][name] == seen["in theirs"][name]
    assert len(seen["in ours"][name]) == len(CASES[name].samples)


@every_case
def test_headrace_reads_what_streaming_wrote(theirs, seen, name):
    assert seen_by_us(theirs / shared.folder(name), CASES[name].hashes) == seen["in theirs"].get(name, [])


@every_case
def test_both_write_the_same_bytes(ours, theirs, knows, name):
    case, place = CASES[name], shared.folder(name)
    if set(case.columns.values()) & set(shared.ENCODED_IMAGES) and version("pillow") != knows["releases"]["pillow"]:
        pytest.skip("two releases of Pillow compress pictures, each in its way")
    by_content = case.options.get("compression")
    if by_content and has_the_same_release(by_content.split(":")[0], knows["releases"]):
        by_content = None
    wanted = contents(theirs / place, by_content)
    assert contents(ours / place, by_content) == wanted
    assert "index.json" in wanted


def has_the_same_release(compression, releases):
    """Whether both sides compress with one release, so that even the compressed bytes are the same."""
    match compression:
        case "br":
            return version("brotli") == releases["brotli"]
        case "snappy":
            return version("cramjam") == releases["cramjam"]
        case "zstd":
            major, minor, patch = zstandard.ZSTD_VERSION
            return f"{major}.{minor}.{patch}" == releases["libzstd"]
    return compression == "bz2"  # gz files hold the time at which they were written


@pytest.mark.parametrize("split", shared.SPLITS)
def test_both_read_splits_of_both_and_write_the_same(ours, theirs, seen, split):
    assert contents(ours / "splits" / split, None) == contents(theirs / "splits" / split, None)
    assert seen["in ours"][split] == seen["in theirs"][split]
    for root in (ours, theirs):
        assert seen_by_us(root / "splits", shared.SPLIT_OPTIONS["hashes"], split) == seen["in theirs"][split]


@every_merge
def test_both_merge_to_the_same_index_and_read_what_both_merged(ours, theirs, seen, knows, merge):
    name, way = MERGES[merge]
    place = f"merged/{name}/{way}"
    if name != "zstd" or has_the_same_release("zstd", knows["releases"]):
        assert contents(ours / place, None) == contents(theirs / place, None)
    assert seen["in ours"][merge] == seen["in theirs"][merge]
    assert len(seen["in ours"][merge]) == 12 * len(shared.PARTS)
    for root in (ours, theirs):
        assert seen_by_us(root / place, shared.MERGED[name][1].get("hashes")) == seen["in theirs"][merge]
