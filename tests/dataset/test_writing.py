"""What a writer commits, what it refuses, and that nothing half done is ever seen."""

import subprocess
import sys
import threading

import msgspec
import numpy as np
import pytest

from dataset.scenes import (
    U2,
    fast_storage_at,
    files_of,
    leftovers,
    open_files_below,
    ranges,
    storage_at,
    tokens_of,
    write,
)
from headrace.datasets import StreamStorage
from headrace.errors import (
    ClosedError,
    CorruptShardError,
    FieldError,
    ManifestError,
    NoDatasetError,
    PublishedError,
    SchemaMismatchError,
    UnfinishedDatasetError,
)
from headrace.formats.stream import StreamArrayFormat, StreamNumpyFormat
from headrace.store import MemoryStore


def test_what_was_written_is_read_and_nothing_else_is_left(tmp_path):
    storage = write(storage_at(tmp_path / "data"), ranges(5, 0, 7))
    assert tokens_of(storage) == list(range(12))
    assert leftovers(tmp_path / "data") == []
    described = storage.describe()
    assert described["published"] is False
    assert described["unchecked"] != []
    manifest = storage.publish()
    assert (manifest.num_shards, manifest.total_length, manifest.total_bytes) == (3, 12, 24)
    assert storage.describe()["published"] is True
    assert storage.describe()["unchecked"] == []
    assert storage.describe()["fingerprint"] == described["fingerprint"] == manifest.fingerprint
    assert leftovers(tmp_path / "data") == []


def test_publishing_twice_gives_the_same_bytes_and_so_does_preparing_twice(tmp_path):
    for name in ("one", "two"):
        write(storage_at(tmp_path / name), ranges(5, 7), publish=True)
    first = files_of(tmp_path / "one")
    storage_at(tmp_path / "one").publish()
    assert files_of(tmp_path / "one") == first
    assert (tmp_path / "one" / "headrace.json").read_bytes() == (tmp_path / "two" / "headrace.json").read_bytes()


def test_metadata_is_kept_and_cannot_be_changed_later(tmp_path):
    metadata = {"source": "here", "range": (1, 2), "nested": {"a": None}}
    storage = write(storage_at(tmp_path), ranges(5))
    storage.publish(metadata)
    assert storage.describe()["metadata"] == {"source": "here", "range": [1, 2], "nested": {"a": None}}
    storage.publish()
    storage.publish(metadata)
    with pytest.raises(PublishedError):
        storage.publish({"source": "there"})


@pytest.mark.parametrize("metadata", [{"a": object()}, {"a": {1, object()}}])
def test_metadata_that_is_no_json_is_refused_before_anything_is_written(metadata, tmp_path):
    storage = write(storage_at(tmp_path), ranges(5))
    with pytest.raises(ValueError, match="metadata must be JSON"):
        storage.publish(metadata)
    assert not storage.is_published()
    assert leftovers(tmp_path) == []


@pytest.mark.parametrize("published", [False, True])
def test_an_exception_in_the_block_commits_nothing_and_is_the_one_that_surfaces(published, tmp_path):
    storage = write(storage_at(tmp_path / "data"), ranges(10), publish=False)
    if published:
        storage.publish()
    before = files_of(tmp_path / "data")

    def fail():
        with storage.sync_writer(overwrite=published) as writer:
            writer.append(0, np.arange(100, 105, dtype=np.uint16))
            writer.append(1, np.arange(25, dtype=np.uint16))
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        fail()
    assert leftovers(tmp_path / "data") == []
    if published:  # withdrawn, so neither version is there
        with pytest.raises(UnfinishedDatasetError):
            tokens_of(storage)
    else:
        assert files_of(tmp_path / "data") == before
        assert tokens_of(storage) == list(range(10))


def test_a_writer_that_is_never_closed_leaves_an_unfinished_directory(tmp_path):
    script = (
        "import sys, numpy as np\n"
        "from headrace.datasets import StreamStorage\n"
        "from headrace.formats.stream import StreamArrayFormat\n"
        "storage = StreamStorage(sys.argv[1], StreamArrayFormat('<u2'))\n"
        "with storage.sync_writer() as writer:\n"
        "    writer.append(0, np.arange(10, dtype=np.uint16))\n"
        "writer = storage.sync_writer()\n"
        "writer.open()\n"
        "writer.append(1, np.arange(600000, dtype=np.uint64) % 65536)\n"
    )
    subprocess.run([sys.executable, "-c", script, tmp_path / "data"], check=True, timeout=60)
    storage = storage_at(tmp_path / "data")
    with pytest.raises(UnfinishedDatasetError, match="a writer died while it wrote shard 1"):
        storage.sync_reader().open()
    with pytest.raises(UnfinishedDatasetError, match="a writer died"):
        storage.publish()
    storage.recover()
    assert leftovers(tmp_path / "data") == []
    assert tokens_of(storage) == list(range(10))


def test_a_writer_at_work_is_seen(tmp_path):
    storage = storage_at(tmp_path)
    with storage.sync_writer() as writer:
        writer.append(0, [1])
        with pytest.raises(UnfinishedDatasetError, match="shard 0 is being written"):
            storage.sync_reader().open()
        with pytest.raises(UnfinishedDatasetError, match="shard 0 is being written"):
            storage.publish()
    assert tokens_of(storage) == [1]


def test_two_conversions_and_then_overwriting_with_fewer_shards(tmp_path):
    train, val = storage_at(tmp_path / "train"), storage_at(tmp_path / "val")
    write(train, ranges(10, 10), publish=True)
    write(val, ranges(5), publish=True)
    assert (tokens_of(train), tokens_of(val)) == (list(range(20)), list(range(5)))
    before = files_of(tmp_path / "train")
    with pytest.raises(PublishedError, match="overwrite=True"):
        write(train, ranges(7))
    assert files_of(tmp_path / "train") == before
    write(train, ranges(7), overwrite=True)
    with pytest.raises(UnfinishedDatasetError, match="shard 1 is of an older run"):
        tokens_of(train)
    train.publish()
    assert tokens_of(train) == list(range(7))
    assert sorted(path.name for path in (tmp_path / "train").glob("*.bin")) == ["0000000.in_band.bin"]
    assert sorted(path.name for path in (tmp_path / "train" / ".headrace").glob("*.receipt")) == ["0000000.receipt"]


def test_fewer_shards_over_unpublished_ones_never_mix_with_them_silently(tmp_path):
    storage = write(storage_at(tmp_path), ranges(4, 4))
    write(storage, [[100, 101]])
    # Without overwrite or a plan nothing says that shard 1 belongs to another run: it is the same session's directory.
    assert tokens_of(storage) == [100, 101, 4, 5, 6, 7]


def test_a_plan_keeps_the_directory_closed_until_all_of_it_is_there(tmp_path):
    storage = storage_at(tmp_path)
    storage.record_plan(["a", "b"])
    with pytest.raises(UnfinishedDatasetError, match="shards 0, 1 of the 2 planned"):
        storage.publish()
    write_one(storage, 0, "a")
    with pytest.raises(UnfinishedDatasetError, match="shards 1 of the 2 planned"):
        storage.sync_reader().open()
    assert storage.finished_tasks() == {0: "a"}
    assert storage.finished_length() == 1
    write_one(storage, 1, "other")
    with pytest.raises(UnfinishedDatasetError, match="shards 1 of the 2 planned"):
        storage.publish()
    write_one(storage, 1, "b")
    write_one(storage, 2, "c")
    with pytest.raises(UnfinishedDatasetError, match="shards 2 are not of the plan"):
        storage.sync_reader().open()
    assert storage.publish().num_shards == 2
    assert tokens_of(storage) == [0, 1]


def write_one(storage, shard, task):
    with storage.sync_writer(tasks={shard: task}) as writer:
        writer.append(shard, [shard])


def test_gaps_are_refused(tmp_path):
    storage = storage_at(tmp_path)
    with storage.sync_writer() as writer:
        for shard in (0, 2, 5):
            writer.append(shard, [shard])
    for call in (storage.publish, storage.describe, storage.sync_reader().open):
        with pytest.raises(UnfinishedDatasetError, match="shards 1, 3, 4 of 0 to 5 have no receipt"):
            call()


@pytest.mark.parametrize("missing", [0, 1])
def test_a_lost_receipt_or_file_is_noticed(missing, tmp_path):
    storage = write(storage_at(tmp_path), ranges(3, 3))
    kept = (tmp_path / ".headrace" / f"{missing:07d}.receipt").rename(tmp_path / "kept")
    with pytest.raises(UnfinishedDatasetError, match="no receipt"):
        tokens_of(storage)
    with pytest.raises(UnfinishedDatasetError, match="no receipt"):
        storage.publish()
    kept.rename(tmp_path / ".headrace" / f"{missing:07d}.receipt")
    (tmp_path / f"{missing:07d}.in_band.bin").unlink()
    for call in (storage.publish, storage.sync_reader().open):
        with pytest.raises(CorruptShardError, match=f"shard {missing} .*is missing"):
            call()


def test_an_empty_or_mistyped_directory_is_no_dataset(tmp_path):
    for place in (tmp_path, tmp_path / "mistyped"):
        for call in (storage_at(place).describe, storage_at(place).publish, storage_at(place).sync_reader().open):
            with pytest.raises(NoDatasetError, match="holds no dataset"):
                call()
    assert not (tmp_path / "mistyped").exists()


def test_files_of_another_program_are_not_touched_without_leave(tmp_path):
    for shard in range(3):
        (tmp_path / f"{shard:07d}.in_band.bin").write_bytes(bytes(4))
    before = files_of(tmp_path)
    storage = storage_at(tmp_path)
    with pytest.raises(UnfinishedDatasetError, match="was not written by Headrace"):
        write(storage, ranges(2))
    with pytest.raises(UnfinishedDatasetError, match="no receipts"):
        storage.publish()
    assert files_of(tmp_path) == before
    write(storage, ranges(2), overwrite=True)
    with pytest.raises(UnfinishedDatasetError, match="has no receipt"):
        tokens_of(storage)
    storage.publish()
    assert tokens_of(storage) == [0, 1]


def test_a_closed_or_unopened_writer_refuses_and_keeps_what_it_wrote(tmp_path):
    storage = storage_at(tmp_path)
    writer = storage.sync_writer()
    with pytest.raises(ClosedError):
        writer.append(0, [1])
    with writer:
        writer.append(0, range(1000))
        assert writer.length(0) == 1000
        with pytest.raises(KeyError):
            writer.length(1)
    with pytest.raises(ClosedError):
        writer.append(0, [1, 2, 3])
    writer.close()
    assert writer.length(0) == 1000
    assert tokens_of(storage) == list(range(1000))


def test_a_later_writer_replaces_a_shard_whole(tmp_path):
    storage = write(storage_at(tmp_path), ranges(20, 12))
    with storage.sync_writer() as writer:
        writer.append(0, [9])
        storage_before = files_of(tmp_path)["0000000.in_band.bin"]
        assert len(storage_before) == 40
    assert tokens_of(storage) == [9, *range(20, 32)]


@pytest.mark.parametrize("shard", [-1, 1.5, "0"])
def test_shard_numbers_are_integers_from_0(shard, tmp_path):
    with storage_at(tmp_path).sync_writer() as writer, pytest.raises((IndexError, TypeError, ValueError)):
        writer.append(shard, [1])


def test_numpy_and_large_shard_numbers_get_their_file_names(tmp_path):
    with storage_at(tmp_path).sync_writer() as writer:
        writer.append(np.int64(12_345_678), [1])
        writer.append(np.uint8(3), [1])
        assert writer.length(3) == 1
    assert sorted(path.name for path in tmp_path.glob("*.bin")) == ["0000003.in_band.bin", "12345678.in_band.bin"]


def test_a_refused_record_leaves_nothing_behind(tmp_path):
    storage = StreamStorage(tmp_path, StreamNumpyFormat([("tokens", "<u2")]))
    with storage.sync_writer() as writer:
        writer.append(0, {"tokens": [1, 2]})
        for bad in ([3, 70_000], [3.5], [[1]]):
            with pytest.raises(FieldError):
                writer.append(0, {"tokens": bad})
        with pytest.raises(FieldError):
            writer.append(1, {"tokens": [-1]})
        writer.append(0, {"tokens": [3]})
    with storage.sync_reader() as reader:
        assert reader.num_shards == 1
        assert reader.read(0, 3)["tokens"].tolist() == [1, 2, 3]


def test_threads_may_share_a_writer(tmp_path):
    storage = fast_storage_at(tmp_path)
    with storage.sync_writer() as writer:

        def work(number):
            for _ in range(300):
                writer.append(number % 2, np.full(50, number, np.uint16))

        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    with storage.sync_reader() as reader:
        records = reader.read(0, reader.total_length).reshape(-1, 50)
        assert (records == records[:, :1]).all()
        assert np.bincount(records[:, 0]).tolist() == [300] * 4


def test_a_writer_of_many_shards_keeps_at_most_64_files_open(tmp_path):
    storage = fast_storage_at(tmp_path)
    most = 0
    with storage.sync_writer() as writer:
        for repeat in range(3):
            for shard in range(200):
                writer.append(shard, [repeat, shard])
                most = max(most, open_files_below(tmp_path))
    assert 32 <= most <= 66
    assert tokens_of(storage) == [token for shard in range(200) for r in range(3) for token in (r, shard)]
    assert storage.verify() == []
    assert leftovers(tmp_path) == []


def test_shards_of_two_element_types_never_become_one_dataset(tmp_path):
    write(storage_at(tmp_path), ranges(4))
    other = StreamStorage(tmp_path, StreamArrayFormat("<i2"))
    with other.sync_writer() as writer:
        writer.append(1, [1])
    for call in (other.publish, other.sync_reader().open, storage_at(tmp_path).describe):
        with pytest.raises(SchemaMismatchError, match="shard 1"):
            call()


@pytest.mark.parametrize("published", [False, True])
@pytest.mark.parametrize("dtype", ["<i2", "<u4", [("tokens", "<u2")]])
def test_reading_with_another_element_type_is_refused(dtype, published, tmp_path):
    write(storage_at(tmp_path), ranges(4), publish=published)
    wrong = np.dtype(dtype)
    storage_format = StreamArrayFormat(wrong) if wrong.names is None else StreamNumpyFormat(wrong)
    with pytest.raises(SchemaMismatchError, match="requested"):
        StreamStorage(tmp_path, storage_format).sync_reader().open()
    assert tokens_of(StreamStorage(tmp_path)) == [0, 1, 2, 3]  # the directory itself knows


def test_a_memory_store_holds_a_dataset_too():
    storage = write(StreamStorage(MemoryStore(), U2), ranges(5, 0, 2), publish=True)
    assert tokens_of(storage) == list(range(7))
    assert storage.verify() == []


def test_a_generation_that_is_no_number_is_refused(tmp_path):
    storage = write(storage_at(tmp_path), ranges(3))
    (tmp_path / ".headrace" / "generation").write_bytes(b"x")
    with pytest.raises(ManifestError, match="generation: is no number"):
        tokens_of(storage)


def test_a_receipt_of_another_shard_is_refused(tmp_path):
    storage = write(storage_at(tmp_path), ranges(3, 3))
    receipt = tmp_path / ".headrace" / "0000001.receipt"
    raw = msgspec.json.decode(receipt.read_bytes())
    receipt.write_bytes((tmp_path / ".headrace" / "0000000.receipt").read_bytes())
    with pytest.raises(ManifestError, match="is the receipt of shard 0"):
        tokens_of(storage)
    raw["files"][0]["name"] = "0000001./../../x"
    receipt.write_bytes(msgspec.json.encode(raw))
    with pytest.raises(ManifestError, match="does not belong to shard 1"):
        tokens_of(storage)


def test_opening_an_open_writer_again_changes_nothing(tmp_path):
    storage = StreamStorage(tmp_path / "data", StreamNumpyFormat([("tokens", "<u2")]))
    writer = storage.sync_writer()
    writer.open()
    writer.append(0, {"tokens": [1, 2]})
    with writer:
        writer.append(0, {"tokens": [3]})
    assert writer.length(0) == 3
    with storage.sync_reader() as reader:
        assert reader.read(0, 3)["tokens"].tolist() == [1, 2, 3]


def test_a_refused_record_is_named_by_shard_and_place(tmp_path):
    storage = StreamStorage(tmp_path / "data", StreamNumpyFormat([("tokens", "<u2")]))
    with storage.sync_writer() as writer:
        writer.append(3, {"tokens": [1, 2]})
        with pytest.raises(FieldError) as refused:
            writer.append(3, {"tokens": [5, 65_536]})
    text = "the record after 2 elements of shard 3, field 'tokens': value 65536 at position 1 does not fit uint16"
    assert str(refused.value).startswith(text)
