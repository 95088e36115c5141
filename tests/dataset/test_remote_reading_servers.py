"""Datasets of every kind in real object stores: read by ranges and through a cache, and overwritten under a reader."""

import pytest

from dataset.remote_reading_scenes import KINDS, all_of, copy_into
from headrace.errors import DatasetChangedError
from headrace.loading import StatefulDataLoader
from headrace.store.cache import CachedStore
from headrace.store.open import open_store

pytestmark = pytest.mark.servers


@pytest.fixture(params=["s3", "azure", "gcs"])
def store(request):
    """A fresh place in a real store."""
    url, options = (request.getfixturevalue(f"{request.param}_{name}") for name in ("url", "options"))
    with open_store(url, **options) as opened:
        yield opened


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_reads_the_same_by_ranges_and_through_a_cache(kind, store, tmp_path):
    write, dataset = KINDS[kind]
    written = write()
    copy_into(store, written)
    with dataset(written) as local:
        expected = all_of(local)
    with dataset(store) as remote:
        assert all_of(remote) == expected
    with dataset(CachedStore(store, tmp_path)) as cached:
        assert all_of(cached) == expected


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("cached", [False, True])
def test_what_is_overwritten_with_equal_names_and_sizes_is_never_mixed(kind, cached, store, tmp_path):
    write, dataset = KINDS[kind]
    copy_into(store, write())
    place = CachedStore(store, tmp_path) if cached else store
    with dataset(place) as opened:
        opened[0]
        if kind == "samples":  # its index has no digests, so it is the same; a second later the store's clock shows it
            pause()
        copy_into(store, write(salt=1))
        with pytest.raises(DatasetChangedError):
            opened[len(opened) - 1]
    with dataset(place) as again, dataset(write(salt=1)) as expected:
        assert all_of(again) == all_of(expected)


def pause():
    import threading

    threading.Event().wait(1.1)


@pytest.mark.parametrize("method", ["thread", "process"])
def test_workers_read_from_a_real_store(method, store):
    write, dataset = KINDS["stream"]
    written = write()
    copy_into(store, written)
    options = {"local_batch_size": 5, "shuffle": True, "rank": 0, "world_size": 1}
    with dataset(written) as local, StatefulDataLoader(local, **options) as loader:
        expected = [batch.tolist() for batch in loader]
    with dataset(store) as remote:
        remote[0]  # the parent's client is in use before it forks
        with StatefulDataLoader(remote, num_workers=2, parallel_method=method, timeout_s=60, **options) as loader:
            assert [batch.tolist() for batch in loader] == expected
