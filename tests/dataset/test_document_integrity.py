"""Payload files that are not what was written: documents, and the payloads of streams with metadata.

Five shards of ten items; the bad one is shard 3. Either its items raise or they are right; the other shards read.
"""

import os

import msgspec
import numpy as np
import pytest
import xxhash

from dataset.scenes import DOCUMENTS, SPANS, payload_of, without_records
from headrace.datasets import DocumentStorage, PosixPreadIO
from headrace.errors import CorruptShardError, DatasetError, SchemaMismatchError
from headrace.formats.documents import DocumentNumpyFormat
from headrace.manifest import FileRecord, Manifest, Receipt

BOTH = [DOCUMENTS, SPANS]
SHARDS = [list(range(10 * shard, 10 * shard + 10)) for shard in range(5)]
BAD = range(30, 40)  # the items of shard 3
INTERFACES = {"mapped": None, "not mapped": PosixPreadIO()}
STATES = ["published", "receipts", "foreign"]
EACH_FILE = [pytest.param(kind, suffix, id=f"{kind}, {suffix}") for kind in BOTH for suffix in kind.files]
PAYLOAD_FILES = ["out_of_band.bin", "out_of_band.index"]


@pytest.fixture(params=INTERFACES)
def interface(request):
    return INTERFACES[request.param]


def made(kind, folder, state, shards=SHARDS):
    kind.write(folder, shards, publish=state == "published")
    if state == "foreign":
        without_records(folder)
    return folder


def cut(path, num_bytes):
    os.truncate(path, max(0, path.stat().st_size - num_bytes))


def cut_half(path):
    os.truncate(path, path.stat().st_size // 2)


def garbage(path):
    with path.open("ab") as file:
        file.write(b"\xab" * 64)


DAMAGES = {
    "cut by 1 byte": lambda path: cut(path, 1),
    "cut by 8 bytes": lambda path: cut(path, 8),
    "cut by a page": lambda path: cut(path, 4096),  # an index here is shorter, and left empty
    "cut by half": cut_half,
    "of 0 bytes": lambda path: os.truncate(path, 0),
    "with 64 bytes of garbage behind it": garbage,
    "missing": os.remove,
}


def refuses(read, *words):
    with pytest.raises(CorruptShardError, match="shard 3") as caught:
        read()
    for word in words:
        assert word in str(caught.value)
    assert caught.value.shard == 3


def check_the_rest(kind, storage, bad=BAD):
    """Items outside bad read, one by one and together."""
    dataset = kind.dataset(storage)
    good = [number for number in range(50) if number not in bad]
    assert [kind.plain(sample) for sample in dataset.__getitems__(good)] == [kind.item(number) for number in good]
    for number in good:
        assert kind.plain(dataset[number]) == kind.item(number)


def check_bad(kind, storage, *words, bad=BAD):
    """Each of the bad items is refused, alone, in a batch of few and in one of many; never a sample."""
    dataset = kind.dataset(storage)
    for number in bad:
        refuses(lambda number=number: dataset[number], *words)
        refuses(lambda number=number: dataset.__getitems__([0, number]), *words)
    refuses(lambda: dataset[:], *words)


def damaged(kind, suffix, shard=3):
    """What verify() says of that file of a shard of ten items."""
    length = 10 * kind.item_length
    return shard, f"{shard:07d}.{suffix}", (length * shard, length * shard + length)


def verified(storage):
    return [(damage.shard, damage.file, damage.elements) for damage in storage.verify()]


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize(("kind", "suffix"), EACH_FILE)
def test_a_published_shard_with_a_file_of_the_wrong_size_is_an_error_that_names_it_and_never_a_sample(
    kind, suffix, damage, interface, tmp_path
):
    path = made(kind, tmp_path, "published") / f"0000003.{suffix}"
    expected = path.stat().st_size
    DAMAGES[damage](path)
    storage = kind.storage_at(tmp_path, interface)
    sizes = (f"has {path.stat().st_size} bytes", str(expected)) if path.exists() else ("is missing",)
    check_bad(kind, storage, path.name, *sizes)
    check_the_rest(kind, storage)
    assert verified(storage) == [damaged(kind, suffix)]
    if kind is DOCUMENTS and suffix == "out_of_band.index":
        refuses(lambda: storage.dataset().lengths, path.name, *sizes)


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize(("kind", "suffix"), EACH_FILE)
def test_an_unpublished_dataset_with_a_file_of_the_wrong_size_does_not_open(kind, suffix, damage, interface, tmp_path):
    path = made(kind, tmp_path, "receipts") / f"0000003.{suffix}"
    expected = path.stat().st_size
    DAMAGES[damage](path)
    storage = kind.storage_at(tmp_path, interface)
    first, last = damaged(kind, suffix)[2]
    found = f"has {path.stat().st_size} bytes" if path.exists() else "is missing"
    refuses(kind.dataset(storage).open, path.name, found, f"{expected} bytes", f"{first} to {last}, exclusive")
    refuses(storage.publish)
    assert verified(storage) == [damaged(kind, suffix)]


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("suffix", PAYLOAD_FILES)
@pytest.mark.parametrize("kind", BOTH, ids=repr)
def test_files_of_another_program_that_do_not_fit_one_another_do_not_open(kind, suffix, damage, interface, tmp_path):
    path = made(kind, tmp_path, "foreign") / f"0000003.{suffix}"
    DAMAGES[damage](path)
    storage = kind.storage_at(tmp_path, interface)
    if not path.exists():
        with pytest.raises(SchemaMismatchError, match="shard 3"):
            kind.dataset(storage).open()
        return
    refuses(kind.dataset(storage).open, "0000003.out_of_band")
    assert [damage.shard for damage in storage.verify()] == [3]


def edited(folder, number, offset):
    """Another offset in the index of shard 3; negative numbers count from the end."""
    path = folder / "0000003.out_of_band.index"
    offsets = np.fromfile(path, "<i8")
    offsets[number] = offset(offsets) if callable(offset) else offset
    path.write_bytes(offsets.tobytes())


# (which offset, what it becomes, the payloads that must not be read then). Where an offset lies between its neighbours'
# it takes a digest to see it; where it goes down, it moves the beginning of the next payload, too.
OFFSETS = {
    "that go down": (5, lambda offsets: offsets[4] - 1, [4]),
    "that go down to 0": (5, 0, [4]),
    "past the end by 1": (5, lambda offsets: offsets[-1] + 1, [4, 5]),
    "past the end by far": (5, 1 << 62, [4, 5]),
    "that are negative": (5, -1, [4, 5]),
    "that are as negative as can be": (5, -(1 << 63), [4, 5]),
    "of which the first is 1": (0, 1, range(10)),
    "of which the first is negative": (0, -8, range(10)),
    "of which the last is too small": (-1, lambda offsets: offsets[-1] - 1, range(10)),
    "of which the last is too large": (-1, lambda offsets: offsets[-1] + 1, range(10)),
    "of which the last is negative": (-1, -1, range(10)),
}


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("name", OFFSETS)
@pytest.mark.parametrize("kind", BOTH, ids=repr)
def test_offsets_are_refused(kind, name, state, interface, tmp_path):
    number, offset, bad = OFFSETS[name]
    edited(made(kind, tmp_path, state), number, offset)
    storage = kind.storage_at(tmp_path, interface)
    found = storage.verify()
    assert [(damage.shard, damage.file) for damage in found] == [(3, "0000003.out_of_band.index")]
    if state != "foreign":
        assert found[0].elements == damaged(kind, "out_of_band.index")[2]
    elif number in (0, -1):
        refuses(kind.dataset(storage).open, "0000003.out_of_band.bin")
        return
    check_bad(kind, storage, "0000003.out_of_band", bad=[30 + place for place in bad])
    # The payload after an offset that moved begins in the wrong place: only verify() can tell.
    check_the_rest(kind, storage, bad=[30 + place for place in (range(10) if number in (0, -1) else (4, 5))])
    if kind is DOCUMENTS:
        refuses(lambda: storage.dataset().lengths, "0000003.out_of_band")


def recorded_anew(kind, folder, shard=3, **changes):
    """Receipt and manifest say what is there now, as if the shard had been written so."""
    path = folder / ".headrace" / f"{shard:07d}.receipt"
    receipt = Receipt.from_json(path.read_bytes(), "here")
    files = tuple(
        FileRecord(file.name, len(raw), xxhash.xxh3_128_hexdigest(raw))
        for file in receipt.files
        for raw in [(folder / file.name).read_bytes()]
    )
    path.write_bytes(msgspec.structs.replace(receipt, **{"files": files, **changes}).to_json())
    if (folder / "headrace.json").exists():
        receipts = [
            Receipt.from_json((folder / ".headrace" / f"{number:07d}.receipt").read_bytes(), "here").record
            for number in range(5)
        ]
        (folder / "headrace.json").write_bytes(Manifest.of(kind.kind, receipt.dtype, receipts).to_json())


@pytest.mark.parametrize("state", ["published", "receipts"])
@pytest.mark.parametrize(("num_offsets", "length"), [(12, 10), (10, 10), (11, 11), (11, 9)])
def test_an_index_that_claims_more_or_fewer_documents_than_the_record_is_refused(
    num_offsets, length, state, interface, tmp_path
):
    path = made(DOCUMENTS, tmp_path, state) / "0000003.out_of_band.index"
    offsets = np.fromfile(path, "<i8")
    path.write_bytes(np.append(offsets, offsets[-1])[:num_offsets].tobytes())
    recorded_anew(DOCUMENTS, tmp_path, length=length)
    dataset = DOCUMENTS.storage_at(tmp_path, interface).dataset()
    refuses(dataset.open, path.name, f"{8 * num_offsets} bytes", f"{length} documents", str(8 * length + 8))


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("suffix", PAYLOAD_FILES)
@pytest.mark.parametrize("kind", BOTH, ids=repr)
def test_index_and_data_that_were_recorded_but_do_not_fit_are_refused(kind, suffix, state, interface, tmp_path):
    path = made(kind, tmp_path, state) / f"0000003.{suffix}"
    cut(path, 8)
    if state != "foreign":
        recorded_anew(kind, tmp_path, **({"length": 9} if kind is DOCUMENTS and suffix == "out_of_band.index" else {}))
    storage = kind.storage_at(tmp_path, interface)
    assert [(damage.shard, damage.file) for damage in storage.verify()] == [(3, "0000003.out_of_band.index")]
    if state == "foreign":
        refuses(kind.dataset(storage).open, "0000003.out_of_band.bin")
        return
    dataset = kind.dataset(storage)
    for number in (30, 38):
        refuses(lambda number=number: dataset[number], "0000003.out_of_band.bin")
        refuses(lambda number=number: dataset.__getitems__([number] * 20), "0000003.out_of_band.bin")
    check_the_rest(kind, storage, bad=range(30, 50))


def test_a_number_of_bytes_that_is_no_whole_number_of_elements_is_refused(tmp_path):
    storage = DocumentStorage(tmp_path, DocumentNumpyFormat("<u2"))
    with storage.sync_writer() as writer:
        for shard in range(5):
            writer.append(shard, [1, 2, 3])
            writer.append(shard, [4])
    edited(tmp_path, 1, 5)
    recorded_anew(DOCUMENTS, tmp_path)
    with pytest.raises(CorruptShardError, match=r"shard 3.*payload 0 is no whole number of elements of 2 bytes"):
        storage.dataset().lengths
    for place in (6, 7):
        with pytest.raises((DatasetError, ValueError)) as caught:
            storage.dataset()[place]
        assert f"document {place}" in "".join(caught.value.__notes__)


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("files", ["all of them", *PAYLOAD_FILES])
@pytest.mark.parametrize("kind", BOTH, ids=repr)
def test_a_shard_replaced_by_another_valid_one_never_shifts_the_next(kind, files, state, interface, tmp_path):
    made(kind, tmp_path, state)
    kind.write(tmp_path / "other", [list(range(60, 69))])
    for suffix in kind.files if files == "all of them" else [files]:
        (tmp_path / f"other/0000000.{suffix}").rename(tmp_path / f"0000003.{suffix}")
    storage = kind.storage_at(tmp_path, interface)
    if state == "published":
        check_bad(kind, storage, "0000003.")
        check_the_rest(kind, storage)
        assert {damage.shard for damage in storage.verify()} == {3}
    elif state == "receipts" or files != "all of them":
        refuses(kind.dataset(storage).open)
        assert {damage.shard for damage in storage.verify()} == {3}
    else:  # no record says that it was another: then it is a dataset of 49
        assert kind.items_of(storage) == [kind.item(number) for number in [*range(30), *range(60, 69), *range(40, 50)]]


@pytest.mark.parametrize(("kind", "suffix"), EACH_FILE)
def test_verify_finds_a_flipped_bit_wherever_it_is(kind, suffix, tmp_path):
    path = made(kind, tmp_path, "published") / f"0000003.{suffix}"
    whole = path.read_bytes()
    storage = kind.storage_at(tmp_path)
    for place in (*range(0, len(whole), max(1, len(whole) // 40)), len(whole) - 1):
        flipped = bytearray(whole)
        flipped[place] ^= 1 << place % 8
        path.write_bytes(flipped)
        assert verified(storage) == [damaged(kind, suffix)]
        assert "content was changed" in storage.verify()[0].problem
    path.write_bytes(whole)
    assert storage.verify() == []


@pytest.mark.parametrize("kind", BOTH, ids=repr)
def test_verify_lists_every_bad_file_in_the_order_of_shards(kind, tmp_path):
    made(kind, tmp_path, "published")
    cut(tmp_path / "0000004.out_of_band.bin", 1)
    os.remove(tmp_path / "0000001.out_of_band.index")
    garbage(tmp_path / "0000001.out_of_band.bin")
    bad = verified(kind.storage_at(tmp_path))
    assert bad[2:] == [damaged(kind, "out_of_band.bin", 4)]
    assert sorted(bad[:2]) == [damaged(kind, suffix, 1) for suffix in PAYLOAD_FILES]


@pytest.mark.parametrize("read", ["one", "many"])
def test_the_boundaries_of_documents_survive_their_parts(read, interface, tmp_path):
    tokens = np.arange(23)
    parts = [np.split(tokens[:12], [4, 5]), np.split(tokens[12:], [2]), [], [[7, 7], []]]
    storage = DocumentStorage(tmp_path, DocumentNumpyFormat("<u2"), interface)
    for shard, part in enumerate(parts):  # a writer each
        with storage.sync_writer() as writer:
            writer.start(shard)
            for document in part:
                writer.append(shard, document)
    storage.publish()
    dataset = storage.dataset()
    assert np.cumsum([0, *dataset.lengths]).tolist() == [0, 4, 5, 12, 14, 23, 25, 25]
    assert dataset.shard_lengths.tolist() == [3, 2, 0, 2]
    documents = dataset[:] if read == "many" else [dataset[place] for place in range(len(dataset))]
    assert [document.tolist() for document in documents] == [
        [0, 1, 2, 3], [4], [5, 6, 7, 8, 9, 10, 11], [12, 13], [14, 15, 16, 17, 18, 19, 20, 21, 22], [7, 7], [],
    ]  # fmt: skip
    assert storage.publish().total_bytes == 2 * 25 + 8 * (7 + 4)


def test_parts_of_another_element_type_are_refused(tmp_path):
    for shard, dtype in enumerate(["<u2", "<u4"]):
        with DocumentStorage(tmp_path, DocumentNumpyFormat(dtype)).sync_writer() as writer:
            writer.append(shard, [1, 2])
    storage = DocumentStorage(tmp_path)
    for call in (storage.publish, storage.dataset().open):
        with pytest.raises(SchemaMismatchError, match=r"shard 1.*<u4.*<u2"):
            call()


@pytest.mark.parametrize("kind", BOTH, ids=repr)
def test_what_was_written_is_what_is_read(kind, interface, tmp_path):
    """The tests above would say nothing if it were not."""
    storage = kind.write(tmp_path, SHARDS, publish=True)
    assert kind.items_of(kind.storage_at(tmp_path, interface)) == [kind.item(number) for number in range(50)]
    assert storage.verify() == []
    check_the_rest(kind, kind.storage_at(tmp_path, interface), bad=[])
    assert len({payload_of(number) for number in range(100)}) == 100
