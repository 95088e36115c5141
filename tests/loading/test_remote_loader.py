"""Loaders over datasets in remote stores: the same batches, by threads and forked workers, and files ahead of need."""

import numpy as np
import pytest

from dataset.remote_reading_scenes import copy_into, flat, samples, streams, written_samples, written_stream
from headrace import MixedDataset, SampleDataset, ShuffledDataset, StreamDataset, StreamStorage
from headrace.loading import StatefulDataLoader
from headrace.loading.announcing import announced
from headrace.store import LocalStore
from headrace.store.cache import CachedStore
from headrace.store.open import open_store


def batches(dataset, **options):
    with StatefulDataLoader(dataset, local_batch_size=5, shuffle=True, rank=0, world_size=1, **options) as loader:
        return [np.asarray(batch["id"] if isinstance(batch, dict) else batch).tolist() for batch in loader]


@pytest.mark.parametrize("options", [{}, {"num_workers": 2}])
@pytest.mark.parametrize("cached", [False, True])
def test_threads_read_the_same_batches_from_an_object_store(options, cached, tmp_path):
    written = written_stream()
    store = CachedStore(flat(written), tmp_path) if cached else flat(written)
    with streams(written) as local, streams(store) as remote:
        assert batches(remote, **options) == batches(local)


@pytest.mark.parametrize("start_method", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
@pytest.mark.parametrize("cached", [False, True])
@pytest.mark.parametrize("kind", ["stream", "samples"])
def test_worker_processes_read_the_same_batches_over_http(start_method, cached, kind, http_folder, http_url, tmp_path):
    written = written_stream() if kind == "stream" else written_samples()
    copy_into(LocalStore(http_folder, fsync=False), written)
    store = open_store(http_url)
    if cached:
        store = CachedStore(store, tmp_path / "cache")
    make = (lambda place: StreamDataset(StreamStorage(place), 10)) if kind == "stream" else SampleDataset
    options = {"num_workers": 2, "parallel_method": "process", "multiprocessing_context": start_method, "timeout_s": 60}
    with make(written) as local, make(store) as remote:
        expected = batches(local)
        remote[0]  # the parent has clients, threads and locks of its own before it forks
        remote.__getitems__(np.arange(20))
        assert batches(remote, **options) == expected
        assert batches(remote, num_workers=2) == expected


class Hinted(CachedStore):
    """Notes what is to be fetched ahead."""

    def __init__(self, store, directory):
        super().__init__(store, directory)
        self.hints = []

    def of_dataset(self, fingerprint, file):
        found = super().of_dataset(fingerprint, file)
        hint = found.prefetch

        def prefetch(paths, budget_bytes):
            self.hints.append(list(paths))
            hint(paths, budget_bytes)

        found.prefetch = prefetch
        return found


def test_a_dataset_announces_the_files_of_its_items_in_the_order_of_need(tmp_path):
    store = Hinted(flat(written_stream()), tmp_path)
    with streams(store) as dataset:
        dataset.prefetch([45, 2, 13, 3, -1])
        with StreamDataset(StreamStorage(store), 130) as long_windows:
            long_windows.prefetch([1])
    names = [[int(path[:7]) for path in paths] for paths in store.hints]
    assert names == [[4, 0, 1], [1, 2]]


def test_samples_announce_raw_files_that_a_cache_makes_itself(tmp_path):
    store = Hinted(flat(written_samples(compression="zstd")), tmp_path)
    with samples(store) as dataset:
        dataset.prefetch([len(dataset) - 1, 0])
    assert [len(paths) for paths in store.hints] == [2]
    assert store.hints[0][1] == "shard.00000.mds"


@pytest.mark.parametrize("workers", [{}, {"num_workers": 2}, {"num_workers": 2, "parallel_method": "process"}])
def test_a_loader_announces_its_steps_ahead_in_order(workers, tmp_path):
    store = Hinted(flat(written_stream()), tmp_path)
    with streams(store) as dataset:
        order = [number for batch in expected_items(dataset) for number in batch]
        assert len(batches(dataset, **workers)) == 10
    shards = list(dict.fromkeys(number // 10 for number in order))
    assert [int(path[:7]) for path in store.hints[0]] == shards


def expected_items(dataset):
    from headrace.loading import ElasticBatchSampler

    return [[item % len(dataset) for item in items] for items in ElasticBatchSampler(dataset, 5, 0, 1, shuffle=True)]


def test_views_and_mixtures_pass_hints_on(tmp_path):
    one, two = Hinted(flat(written_stream()), tmp_path / "1"), Hinted(flat(written_samples()), tmp_path / "2")
    with streams(one) as left, samples(two) as right:
        shuffled = ShuffledDataset(left, 3)
        shuffled.prefetch(np.arange(4))
        expected = list(dict.fromkeys(int(item) // 10 for item in shuffled.locate(np.arange(4)) % 50))
        assert [[int(path[:7]) for path in paths] for paths in one.hints] == [expected]
        mixed = MixedDataset({"a": shuffled, "b": right}, weights={"a": 1, "b": 1})
        mixed.prefetch(np.arange(20))
        assert len(one.hints) == 2
        assert len(two.hints) == 1
        mixed.prefetch(np.zeros(0, np.int64))
        assert one.hints[-1] == two.hints[-1] == []


def test_what_else_has_a_prefetch_is_not_given_hints(tmp_path):
    class Other(list):
        prefetch = 4

    with streams(Hinted(flat(written_stream()), tmp_path)) as dataset:
        MixedDataset({"a": dataset, "b": Other(range(9))}, weights={"a": 1, "b": 1}).prefetch(np.arange(10))


@pytest.mark.parametrize("workers", [{}, {"num_workers": 2}, {"num_workers": 2, "parallel_method": "process"}])
@pytest.mark.parametrize("steps", [3, 10])
def test_hints_end_with_the_loader_that_gave_them(workers, steps, tmp_path):
    store = Hinted(flat(written_stream()), tmp_path)
    with streams(store) as dataset:
        with StatefulDataLoader(dataset, local_batch_size=5, rank=0, world_size=1, **workers) as loader:
            for _, _ in zip(range(steps), loader, strict=False):
                pass
        assert store.hints[0]
        assert store.hints[-1] == []


def test_hints_that_end_after_the_dataset_was_closed_do_not_open_it(tmp_path):
    store = flat(written_stream())
    dataset = streams(CachedStore(store, tmp_path))
    steps = announced(iter([[1], [2], [3]]), dataset)
    next(steps)
    dataset.close()
    store.calls.clear()
    steps.close()
    assert not store.calls


def test_steps_over_local_data_are_not_looked_at():
    with streams(written_stream()) as dataset:
        steps = iter([np.arange(3)])
        assert announced(steps, dataset) is steps


def test_an_error_of_the_order_comes_after_the_steps_before_it(tmp_path):
    def steps():
        yield [1, 2]
        yield [3]
        raise ValueError("the order ends")

    with streams(CachedStore(flat(written_stream()), tmp_path)) as dataset:
        found = announced(steps(), dataset)
        assert [next(found), next(found)] == [[1, 2], [3]]
        with pytest.raises(ValueError, match="the order ends"):
            next(found)
