"""Splits and lists of directories in remote stores, with and without a cache."""

import numpy as np
import pytest

from dataset.remote_reading_scenes import SHARDS, all_of, copy_into, flat, requests, sample, written_samples
from headrace import MDSWriter, SampleDataset
from headrace.errors import DatasetChangedError, UnsupportedOperationError
from headrace.store import FolderStore, LocalStore, MemoryStore
from headrace.store.cache import CachedStore
from headrace.testing import FaultStore


def split_store(compression=None):
    """Two splits in one flat store."""
    store = MemoryStore(flat=True)
    for name, salt in (("train", 0), ("val", 100)):
        copy_into(FolderStore(store, name), written_samples(salt, compression=compression))
    return FaultStore(store)


@pytest.mark.parametrize("compression", [None, "zstd"])
@pytest.mark.parametrize("cached", [False, True])
def test_splits_are_told_apart(compression, cached, tmp_path):
    store = split_store(compression)
    place = CachedStore(store, tmp_path) if cached else store
    for name, salt in (("train", 0), ("val", 100)):
        with SampleDataset(place, split=name) as dataset:
            dataset.prefetch(np.arange(len(dataset)))
            assert all_of(dataset) == [sample(number, salt) for number in range(SHARDS * 10)]


def test_local_and_remote_directories_are_one_dataset(tmp_path):
    local, remote = LocalStore(tmp_path / "local", fsync=False), flat(written_samples(50))
    copy_into(local, written_samples(compression="gz"))
    with SampleDataset([local, remote, CachedStore(flat(written_samples(100)), tmp_path / "cache")]) as dataset:
        assert all_of(dataset) == [sample(number) for number in range(3 * SHARDS * 10)]
        assert dataset.lengths.tolist() == SampleDataset(written_samples()).lengths.tolist() * 3


def test_shards_of_merged_folders_are_found_below_them(tmp_path):
    from headrace import merge_index

    written = MemoryStore()
    for part in range(2):
        with MDSWriter(columns={"id": "int", "text": "str"}, out=FolderStore(written, f"part {part}")) as out:
            for number in range(10):
                out.write(sample(10 * part + number))
    merge_index([FolderStore(written, f"part {part}") for part in range(2)], written)
    store = flat(written)
    for place in (store, CachedStore(store, tmp_path)):
        with SampleDataset(place) as dataset:
            assert all_of(dataset) == [sample(number) for number in range(20)]


def test_without_digests_an_index_that_was_written_again_is_another_one(tmp_path):
    # Without digests in it, the index of other data of the same sizes is the same, byte for byte.
    store = flat(written_samples())
    with SampleDataset(CachedStore(store, tmp_path)) as dataset:
        dataset[0]
        store.store.put("index.json", store.store.get("index.json"))
        with pytest.raises(DatasetChangedError):
            dataset[-1]
    requests(store)
    digested = flat(written_samples(hashes=["sha1"]))
    with SampleDataset(CachedStore(digested, tmp_path)) as dataset:
        all_of(dataset)
    copied = flat(digested.store)
    with SampleDataset(CachedStore(copied, tmp_path)) as dataset:
        all_of(dataset)
    assert requests(copied) == {"head": 1, "get_ranges_of": 1}  # with digests a copy elsewhere is the same dataset


def test_a_server_that_knows_no_ranges_serves_whole_files_to_a_cache(tmp_path):
    class NoRanges(FaultStore):
        def get_ranges(self, path, starts, lengths):
            raise UnsupportedOperationError(path, "be read by ranges", "read whole files")

        def get_ranges_of(self, found, starts, lengths):
            return self.get_ranges(found.path, starts, lengths)

    plain = NoRanges(flat(written_samples()).store)
    compressed = NoRanges(flat(written_samples(compression="zstd")).store)
    with SampleDataset(compressed) as dataset:  # read whole in any case
        assert all_of(dataset) == [sample(number) for number in range(SHARDS * 10)]
    with SampleDataset(compressed, decompressed_bytes=0) as dataset:
        dataset[0]
        compressed.put("shard.00000.mds.zstd", bytes(compressed.head("shard.00000.mds.zstd").size_bytes))
        dataset[-1]
        with pytest.raises(DatasetChangedError):
            dataset[0]
    with SampleDataset(plain) as dataset, pytest.raises(UnsupportedOperationError):
        dataset[0]
    with SampleDataset(CachedStore(plain, tmp_path)) as dataset:
        assert all_of(dataset) == [sample(number) for number in range(SHARDS * 10)]
