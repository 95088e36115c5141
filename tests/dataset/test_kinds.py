"""open_storage(): whichever kind of dataset lies there, whoever wrote it and however far he got."""

import itertools
import json
import shutil

import numpy as np
import pytest

from dataset.payload_scenes import plain, unsynced, write
from headrace import open_storage
from headrace.datasets import DocumentStorage, StreamDataset, StreamStorage, StreamWithMetaStorage
from headrace.errors import (
    HeadraceError,
    ManifestError,
    NoDatasetError,
    SchemaMismatchError,
    UnfinishedDatasetError,
)
from headrace.formats.annotated import SpanNumpyFormat
from headrace.formats.documents import (
    DocumentBytesFormat,
    DocumentJsonFormat,
    DocumentNumpyFormat,
    DocumentPickleFormat,
)
from headrace.formats.stream import StreamArrayFormat, StreamNumpyFormat
from headrace.manifest import Manifest
from headrace.store import LocalStore, MemoryStore

SPANS = {"tokens": [1, 2, 3, 4], "span_lengths": [1, 3], "payloads": [b"a", b"b"]}
KINDS = {
    "stream": (StreamStorage, StreamNumpyFormat([("tokens", "<u2")]), {"tokens": [1, 2, 3, 4]}),
    "documents": (DocumentStorage, DocumentJsonFormat(), {"text": "x"}),
    "annotated": (StreamWithMetaStorage, SpanNumpyFormat("<u2"), SPANS),
}


def a_dataset(kind, place, **options):
    """Two shards of one record each, and an empty one between them."""
    storage_class, storage_format, record = KINDS[kind]
    return write(storage_class(place, storage_format), [[record], [], [record]], **options)


def samples(storage):
    dataset = storage.dataset() if storage.kind == "documents" else storage.dataset(3)
    return [plain(one) if storage.kind == "annotated" else str(one) for one in dataset[:]]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("published", [True, False])
@pytest.mark.parametrize("spelled", ["path", "text", "store", "memory"])
def test_what_headrace_wrote_opens_as_what_it_is_with_the_format_that_was_recorded(kind, published, spelled, tmp_path):
    place = MemoryStore() if spelled == "memory" else LocalStore(tmp_path, fsync=False)
    written = a_dataset(kind, place, publish=published)
    given = {"path": tmp_path, "text": str(tmp_path)}.get(spelled, place)
    storage = open_storage(given)
    assert (type(storage), storage.storage_format, storage.storage_dir) == (KINDS[kind][0], None, given)
    assert samples(storage) == samples(written)
    assert storage.is_published() == published
    assert storage.describe()["kind"] == kind


@pytest.mark.parametrize(
    ("storage_format", "record"),
    [(DocumentBytesFormat(), b"x"), (DocumentNumpyFormat("<u2"), [1, 2]), (DocumentPickleFormat(), 1)],
)
def test_documents_of_any_format_are_documents(storage_format, record, tmp_path):
    write(DocumentStorage(tmp_path, storage_format), [[record]])
    storage = open_storage(tmp_path)
    assert isinstance(storage, DocumentStorage)
    assert len(storage.dataset()) == 1


@pytest.mark.parametrize("kind", KINDS)
def test_a_dataset_of_empty_shards_is_known_by_its_record(kind, tmp_path):
    storage_class, storage_format, _ = KINDS[kind]
    write(storage_class(unsynced(tmp_path), storage_format), [[], []])
    assert isinstance(open_storage(tmp_path), storage_class)


@pytest.mark.parametrize("kind", KINDS)
def test_what_another_program_wrote_opens_by_its_files(kind, tmp_path):
    written = a_dataset(kind, unsynced(tmp_path), publish=True)
    expected = samples(written)
    shutil.rmtree(tmp_path / ".headrace")
    (tmp_path / "headrace.json").unlink()
    (tmp_path / "README.txt").write_text("not a shard")
    storage = open_storage(tmp_path)
    assert type(storage) is KINDS[kind][0]
    if kind == "documents":
        assert storage.dataset()[:] == [b'{"text":"x"}'] * 2
    else:
        dataset = storage.dataset(3)
        with pytest.raises(ValueError, match="records no element type; pass the storage_format"):
            len(dataset)
    assert samples(type(storage)(tmp_path, KINDS[kind][1])) == expected


def test_another_program_s_annotated_shards_are_known_although_empty_ones_lack_payload_files(tmp_path):
    storage = a_dataset("annotated", unsynced(tmp_path))
    shutil.rmtree(tmp_path / ".headrace")
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        *("0000000.in_band.bin", "0000000.out_of_band.bin", "0000000.out_of_band.index", "0000001.in_band.bin"),
        *("0000002.in_band.bin", "0000002.out_of_band.bin", "0000002.out_of_band.index"),
    ]
    assert isinstance(open_storage(tmp_path), StreamWithMetaStorage)
    assert storage.dataset(8)[0]["span_lengths"].tolist() == [1, 3, 1, 3]


@pytest.mark.parametrize("place", ["empty", "absent", "no dataset"])
def test_where_nothing_is_opening_the_storage_says_so(place, tmp_path):
    directory = tmp_path / place
    if place != "absent":
        directory.mkdir()
    if place == "no dataset":
        (directory / "notes.txt").write_text("nothing here")
        (directory / "1.in_band.bin").write_bytes(b"1234")
    before = sorted(tmp_path.rglob("*"))
    storage = open_storage(directory)
    for use in (lambda: storage.dataset(4).open(), storage.describe, storage.sync_reader().open, storage.verify):
        with pytest.raises(NoDatasetError, match="holds no dataset"):
            use()
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_not_whole_is_found_and_refused_as_unfinished(kind, tmp_path):
    storage_class, storage_format, record = KINDS[kind]
    with storage_class(unsynced(tmp_path), storage_format).sync_writer() as writer:
        writer.append(1, record)
    storage = open_storage(tmp_path)
    assert type(storage) is storage_class
    with pytest.raises(UnfinishedDatasetError, match=r"shards 0 of 0 to 1 have no receipt"):
        storage.describe()


@pytest.mark.parametrize("kind", KINDS)
def test_a_writer_s_first_shard_is_a_dataset_only_once_it_is_committed(kind, tmp_path):
    storage_class, storage_format, record = KINDS[kind]
    with storage_class(unsynced(tmp_path), storage_format).sync_writer() as writer:
        writer.append(0, record)
        with pytest.raises(UnfinishedDatasetError):
            open_storage(tmp_path).describe()
    assert open_storage(tmp_path).describe()["kind"] == kind


def test_a_kind_that_this_version_does_not_know_is_refused_by_name(tmp_path):
    a_dataset("stream", tmp_path, publish=True)
    manifest = json.loads((tmp_path / "headrace.json").read_text())
    shards = Manifest.from_json((tmp_path / "headrace.json").read_bytes(), "here").shards
    (tmp_path / "headrace.json").write_bytes(Manifest.of("samples", manifest["dtype"], shards).to_json())
    with pytest.raises(ManifestError, match=r"a dataset of kind 'samples'.*knows stream, documents and annotated"):
        open_storage(tmp_path)


@pytest.mark.parametrize("damage", [b"", b"{", b'{"version": 1}'])
def test_a_damaged_manifest_is_said_to_be_one(damage, tmp_path):
    a_dataset("documents", tmp_path, publish=True)
    (tmp_path / "headrace.json").write_bytes(damage)
    with pytest.raises(ManifestError, match=r"headrace\.json"):
        open_storage(tmp_path)


def test_a_directory_that_was_written_anew_as_another_kind_opens_as_that(tmp_path):
    a_dataset("stream", unsynced(tmp_path), publish=True)
    storage = DocumentStorage(unsynced(tmp_path), DocumentBytesFormat())
    with storage.sync_writer(overwrite=True) as writer:
        for shard in range(3):
            writer.append(shard, b"%d" % shard)
    assert type(open_storage(tmp_path)) is DocumentStorage
    assert open_storage(tmp_path).dataset()[:] == [b"0", b"1", b"2"]


OTHERS = list(itertools.permutations(KINDS, 2))


@pytest.mark.parametrize(("kind", "other"), OTHERS)
@pytest.mark.parametrize("published", [True, False])
def test_a_storage_of_another_kind_is_refused(kind, published, other, tmp_path):
    a_dataset(kind, unsynced(tmp_path), publish=published)
    storage = KINDS[other][0](tmp_path, KINDS[other][1])
    with pytest.raises(SchemaMismatchError, match=rf"a dataset of kind '{kind}', but '{other}'"):
        samples(storage)


@pytest.mark.parametrize(("kind", "other"), OTHERS)
def test_another_program_s_files_of_another_kind_are_refused(kind, other, tmp_path):
    a_dataset(kind, unsynced(tmp_path))
    shutil.rmtree(tmp_path / ".headrace")
    with pytest.raises(HeadraceError, match="shard 0"):
        samples(KINDS[other][0](tmp_path, KINDS[other][1]))


def test_a_stream_without_fields_opens_as_one_array(tmp_path):
    with StreamStorage(tmp_path, StreamArrayFormat("<u2")).sync_writer() as writer:
        writer.append(0, range(6))
    dataset = StreamDataset(open_storage(tmp_path), 3)
    np.testing.assert_array_equal(dataset[1], np.array([3, 4, 5], np.uint16), strict=True)
