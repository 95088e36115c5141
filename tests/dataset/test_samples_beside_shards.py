"""A directory holds samples or shards of another kind: whoever comes second is refused, and nothing is changed."""

import contextlib
import shutil

import pytest

from headrace import (
    CSVWriter,
    DocumentStorage,
    JSONWriter,
    MDSWriter,
    SampleDataset,
    SampleStorage,
    StreamStorage,
    StreamWithMetaStorage,
    merge_index,
    open_storage,
    prepare,
)
from headrace.errors import (
    ExistingOutputError,
    NoDatasetError,
    PublishedError,
    SchemaMismatchError,
    UnfinishedDatasetError,
)
from headrace.formats.annotated import SpanNumpyFormat
from headrace.formats.documents import DocumentJsonFormat
from headrace.formats.stream import StreamNumpyFormat
from headrace.store import FolderStore, LocalStore, MemoryStore

COLUMNS = {"id": "int", "text": "str"}
SPANS = {"tokens": [1, 2, 3, 4], "span_lengths": [1, 3], "payloads": [b"a", b"b"]}
OTHERS = {
    "stream": (StreamStorage, StreamNumpyFormat([("tokens", "<u2")]), {"tokens": [1, 2, 3, 4]}),
    "documents": (DocumentStorage, DocumentJsonFormat(), {"text": "x"}),
    "annotated": (StreamWithMetaStorage, SpanNumpyFormat("<u2"), SPANS),
}


def samples(number):
    return [{"id": number, "text": f"sample {number}"}]


def write_samples(out, writer=MDSWriter, **options):
    with writer(columns=COLUMNS, out=out, **options) as opened:
        for number in range(3):
            opened.write(*samples(number))


def an_unfinished_dataset(out):
    with contextlib.suppress(KeyboardInterrupt), MDSWriter(columns=COLUMNS, out=out) as writer:
        writer.write(*samples(0))
        writer.flush_shard()
        raise KeyboardInterrupt


def a_merged_dataset(out):
    for part in range(2):
        write_samples(FolderStore(out, str(part)))
    merge_index(out)


def a_planned_dataset(out):
    SampleStorage(out, COLUMNS).record_plan(["a" * 32])


SAMPLES = {
    "whole": write_samples,
    "CSV": lambda out: write_samples(out, CSVWriter),
    "unfinished": an_unfinished_dataset,
    "merged": a_merged_dataset,
    "planned": a_planned_dataset,
}


def storage_of(kind, place):
    storage_class, storage_format, _ = OTHERS[kind]
    return storage_class(place, storage_format)


def append(storage, **options):
    with storage.sync_writer(**options) as writer:
        writer.append(0, OTHERS[storage.kind][2])


def prepared(storage, record, **options):
    prepare([0], lambda split: [record], storage, workers=1, progress=False, **options)


def a_dataset(kind, place, state):
    storage = storage_of(kind, place)
    if state == "begun":
        storage.record_plan(["a", "b"])
    else:
        append(storage)
    if state == "published":
        storage.publish()
    if state == "of another program":
        place.remove_folder(".headrace")


def objects(store):
    """Everything but leases, which anyone who looks may have held."""
    return {info.path: store.get(info.path) for info in store.list() if "leases" not in info.path}


@pytest.fixture(params=["directory", "memory"])
def store(request, tmp_path):
    return MemoryStore() if request.param == "memory" else LocalStore(tmp_path / "out", fsync=False)


@pytest.mark.parametrize("there", SAMPLES)
@pytest.mark.parametrize("kind", OTHERS)
def test_shards_of_another_kind_are_refused_where_samples_are_whatever_is_to_be_overwritten(kind, there, store):
    SAMPLES[there](store)
    before = objects(store)
    storage = storage_of(kind, store)
    for overwrite in (False, True):
        for attempt in (append, lambda one, **options: prepared(one, OTHERS[kind][2], **options)):
            with pytest.raises(PublishedError, match=rf"holds a dataset of samples \(.*no shards of kind '{kind}'"):
                attempt(storage, overwrite=overwrite)
    assert objects(store) == before


@pytest.mark.parametrize("state", ["begun", "committed", "published", "of another program"])
@pytest.mark.parametrize("kind", OTHERS)
def test_samples_are_refused_where_shards_of_another_kind_are_whatever_is_to_be_overwritten(kind, state, store):
    a_dataset(kind, store, state)
    before = objects(store)
    for writer in (MDSWriter, JSONWriter, CSVWriter):
        for options in ({}, {"exist_ok": True}, {"resume": True}):
            with pytest.raises(
                ExistingOutputError, match=r"holds a dataset of another kind .*remove that dataset first"
            ):
                write_samples(store, writer, **options)
    for overwrite in (False, True):
        with pytest.raises(ExistingOutputError, match="holds a dataset of another kind"):
            prepared(SampleStorage(store, COLUMNS), *samples(0), overwrite=overwrite)
    assert objects(store) == before


@pytest.mark.parametrize("state", ["committed", "published", "of another program"])
@pytest.mark.parametrize("kind", OTHERS)
def test_parts_are_not_merged_into_a_directory_of_another_kind(kind, state, store):
    a_dataset(kind, store, state)
    for part in "ab":
        write_samples(FolderStore(store, part))
    before = objects(store)
    for arguments in ([store], [[FolderStore(store, "a"), FolderStore(store, "b")], store]):
        with pytest.raises(ExistingOutputError, match="holds a dataset of another kind"):
            merge_index(*arguments)
    assert objects(store) == before


def test_of_a_pair_both_places_are_looked_at(tmp_path):
    a_dataset("stream", LocalStore(tmp_path / "local"), "published")
    with pytest.raises(ExistingOutputError, match="local holds a dataset of another kind"):
        write_samples((tmp_path / "local", tmp_path / "remote"), keep_local=True, exist_ok=True)
    assert not (tmp_path / "remote").exists()


class Meanwhile(MemoryStore):
    """A store in which somebody else does something just before the first object whose path begins so is written."""

    def __init__(self, begins, happens):
        super().__init__()
        self.begins = begins
        self.happens = happens

    def put_if_absent(self, path, data):
        super().put_if_absent(path, data)
        if path.startswith(self.begins) and self.happens is not None:
            happens, self.happens = self.happens, None
            happens(self)


@pytest.mark.parametrize("kind", OTHERS)
def test_of_two_that_begin_at_once_with_samples_and_another_kind_one_at_most_goes_on(kind):
    store = Meanwhile(".headrace/generation", write_samples)
    with pytest.raises((PublishedError, ExistingOutputError)):
        append(storage_of(kind, store))
    assert not [path for path in objects(store) if path.startswith("0000000.")]

    store = Meanwhile(".headrace/samples/leases", lambda store: append(storage_of(kind, store)))
    with pytest.raises((PublishedError, ExistingOutputError)):
        write_samples(store)
    assert "index.json" not in objects(store)


@pytest.mark.parametrize("there", SAMPLES)
def test_open_storage_says_that_samples_are_read_by_sample_dataset(there, store):
    SAMPLES[there](store)
    with pytest.raises(SchemaMismatchError, match=r"kind 'samples', but .* was requested; open it with SampleDataset"):
        open_storage(store)


@pytest.mark.parametrize("kind", OTHERS)
def test_a_storage_of_another_kind_says_what_is_there_and_what_opens_it(kind, store):
    write_samples(store)
    storage = storage_of(kind, store)
    for use in (storage.describe, storage.verify, storage.sync_reader().open, storage.publish):
        with pytest.raises(SchemaMismatchError, match=r"open it with SampleDataset\(directory\)"):
            use()


@pytest.mark.parametrize("kind", OTHERS)
def test_samples_that_are_being_written_are_unfinished_to_a_storage_of_another_kind(kind, store):
    an_unfinished_dataset(store)
    with pytest.raises(UnfinishedDatasetError, match=r"there is no index\.json yet; finish them"):
        storage_of(kind, store).describe()


@pytest.mark.parametrize("state", ["committed", "published", "of another program"])
@pytest.mark.parametrize("kind", OTHERS)
def test_a_dataset_of_samples_is_not_made_of_shards_of_another_kind(kind, state, store):
    a_dataset(kind, store, state)
    with pytest.raises(NoDatasetError, match=r"holds a dataset of another kind .*open it with open_storage\(\)"):
        len(SampleDataset(store))


@pytest.mark.parametrize("state", ["committed", "published", "of another program"])
@pytest.mark.parametrize("kind", OTHERS)
def test_an_index_of_some_other_program_beside_shards_decides_nothing(kind, state, store):
    a_dataset(kind, store, state)
    expected = storage_of(kind, store).describe()
    store.put("index.json", b'{"pages": ["a.html"]}')
    assert open_storage(store).kind == kind
    assert storage_of(kind, store).describe() == expected
    assert storage_of(kind, store).verify() == []
    if state == "committed":  # and more shards can be written
        with storage_of(kind, store).sync_writer() as writer:
            writer.append(1, OTHERS[kind][2])
        assert storage_of(kind, store).publish().num_shards == 2


@pytest.mark.parametrize("read", [SampleDataset, lambda place: StreamStorage(place).sync_reader()])
def test_a_directory_of_parts_without_an_index_of_all_names_them_and_merge_index(read, store):
    for part in range(5):
        write_samples(FolderStore(store, f"part-{part}"))
    with pytest.raises(NoDatasetError) as caught:
        read(store).open()
    assert "no index.json" in str(caught.value)
    assert "5 of its folders have an index.json (part-0, part-1, part-2, ...)" in str(caught.value)
    assert "make one dataset of all with merge_index()" in str(caught.value)


def test_a_writer_takes_the_place_again_once_the_other_dataset_is_removed(tmp_path):
    out = tmp_path / "out"
    a_dataset("documents", LocalStore(out), "published")
    shutil.rmtree(out)
    write_samples(out)
    assert len(SampleDataset(out)) == 3
