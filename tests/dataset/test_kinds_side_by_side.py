"""Writers of another kind in a directory that holds one: refused before anything changes, or started over cleanly."""

import pytest

from dataset.payload_scenes import unsynced
from dataset.scenes import files_of, leftovers
from dataset.test_kinds import KINDS, OTHERS, a_dataset, samples
from headrace import open_storage, prepare
from headrace.errors import PreparationError, PublishedError


def storage_of(kind, place):
    storage_class, storage_format, _ = KINDS[kind]
    return storage_class(unsynced(place), storage_format)


def append(storage, shards, **options):
    record = KINDS[storage.kind][2]
    with storage.sync_writer(**options) as writer:
        for shard in shards:
            writer.append(shard, record)
    return storage


def data_of(folder):
    """Everything but leases, which anyone who looks may have held."""
    return {name: raw for name, raw in files_of(folder).items() if "leases" not in name}


def start(storage, shard):
    with storage.sync_writer() as writer:
        writer.start(shard)


def prepared(storage, **options):
    prepare([0, 1], lambda split: [KINDS[storage.kind][2]], storage, workers=1, progress=False, **options)


TRIES = {
    "append": lambda storage: append(storage, [0]),
    "start": lambda storage: start(storage, 2),
    "append to a shard that is not there yet": lambda storage: append(storage, [3]),
    "prepare": prepared,
}


@pytest.mark.parametrize(("kind", "other"), OTHERS)
@pytest.mark.parametrize("name", TRIES)
def test_another_kind_is_refused_before_anything_is_changed_and_what_is_there_stays_open(kind, other, name, tmp_path):
    there = a_dataset(kind, unsynced(tmp_path))  # three shards
    reading = there.dataset() if kind == "documents" else there.dataset(3)
    expected, before = samples(there), data_of(tmp_path)
    assert len(reading) == len(expected)
    with pytest.raises((PublishedError, PreparationError)) as caught:
        TRIES[name](storage_of(other, tmp_path))
    for told in (f"holds a dataset of kind '{kind}', so no shards of kind '{other}'", "overwrite=True"):
        assert told in str(caught.value)
    assert data_of(tmp_path) == before
    assert leftovers(tmp_path) == []
    assert samples(there) == expected
    assert len(reading[:]) == len(expected)
    assert there.verify() == []
    assert there.publish().kind == open_storage(tmp_path).kind == kind


@pytest.mark.parametrize(("kind", "other"), OTHERS)
@pytest.mark.parametrize("published", [True, False])
@pytest.mark.parametrize("verb", ["write", "prepare"])
def test_overwriting_with_another_kind_starts_over_and_leaves_no_file_of_the_old_one(
    kind, other, published, verb, tmp_path
):
    a_dataset(kind, unsynced(tmp_path), publish=published)  # three shards
    storage = storage_of(other, tmp_path)
    if verb == "write":
        append(storage, [0, 1], overwrite=True).publish()
    else:
        prepared(storage, overwrite=True)
    assert open_storage(tmp_path).kind == other
    assert storage.is_published()
    assert storage.verify() == []
    fresh = append(storage_of(other, tmp_path / "fresh"), [0, 1])
    assert samples(storage) == samples(fresh)
    shard_files = sorted(path.name for path in tmp_path.iterdir() if path.name[0] == "0")
    assert shard_files == sorted(path.name for path in (tmp_path / "fresh").iterdir() if path.name[0] == "0")


@pytest.mark.parametrize(("kind", "other"), OTHERS)
def test_kinds_may_take_turns_over_one_directory(kind, other, tmp_path):
    for turn, each in enumerate([kind, other, kind, other]):
        storage = append(storage_of(each, tmp_path), range(3 - turn % 2), overwrite=turn > 0)
        if turn % 2:
            storage.publish()
        assert open_storage(tmp_path).kind == each
        assert storage.verify() == []


@pytest.mark.parametrize(("kind", "other"), OTHERS)
def test_a_writer_that_was_told_to_overwrite_withdraws_only_once_however_many_there_are(kind, other, tmp_path):
    a_dataset(kind, unsynced(tmp_path))
    storage = storage_of(other, tmp_path)
    for shard in range(3):  # a writer each, as many processes would
        append(storage, [shard], overwrite=True)
    assert storage.publish().num_shards == 3


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_kind_goes_on_where_it_was(kind, tmp_path):
    storage = storage_of(kind, tmp_path)
    for shard in range(3):
        append(storage, [shard])
    assert storage.publish().num_shards == 3
