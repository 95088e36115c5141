"""Datasets of every kind in stores without maps, read by ranges: right, with few requests, never another's data."""

import numpy as np
import pytest

from dataset.remote_reading_scenes import (
    KINDS,
    SHARDS,
    all_of,
    annotated,
    copy_into,
    documents,
    flat,
    requests,
    sample,
    samples,
    streams,
    written_annotated,
    written_documents,
    written_samples,
    written_stream,
)
from headrace.datasets.payloads import DATA
from headrace.datasets.round_trips import AT_ONCE, at_once
from headrace.errors import CorruptShardError, DatasetChangedError, NoDatasetError, OptionError
from headrace.formats.annotated import SpanNumpyFormat
from headrace.store import MemoryStore
from headrace.testing import FaultStore


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("access", ["auto", "ranges"])
def test_every_kind_reads_the_same_from_an_object_store(kind, access):
    write, dataset = KINDS[kind]
    written = write()
    with dataset(written) as local, dataset(flat(written), access=access) as remote:
        assert all_of(remote) == all_of(local)
        assert remote.fingerprint == local.fingerprint


@pytest.mark.parametrize("kind", ["stream", "documents", "annotated"])
def test_unpublished_shards_read_the_same_from_an_object_store(kind):
    write, dataset = KINDS[kind]
    written = write(publish=False)
    with dataset(written) as local, dataset(flat(written)) as remote:
        assert all_of(remote) == all_of(local)


@pytest.mark.parametrize("kind", KINDS)
def test_local_files_are_read_by_ranges_on_wish(kind, tmp_path):
    write, dataset = KINDS[kind]
    written = write()
    store = FaultStore(written)
    with dataset(written) as local, dataset(store, access="ranges") as by_ranges:
        assert all_of(by_ranges) == all_of(local)
    assert not store.count("view")


@pytest.mark.parametrize("kind", KINDS)
def test_opening_a_published_dataset_takes_two_requests(kind):
    write, dataset = KINDS[kind]
    store = flat(write())
    with dataset(store) as opened:
        assert len(opened) > 0
    assert requests(store) == {"head": 1, "get_ranges_of": 1}


def test_a_batch_of_windows_is_one_request_a_shard_and_none_to_look_at_it():
    store = flat(written_stream())
    with streams(store) as dataset:
        requests(store)
        batch = np.arange(len(dataset))[::-1].copy()
        dataset.__getitems__(batch)
        assert requests(store) == {"head": SHARDS + 1, "get_ranges_of": SHARDS}  # the manifest is looked at once
        dataset.__getitems__(batch[::2])
        assert requests(store) == {"get_ranges_of": SHARDS}
        dataset[3]
        assert requests(store) == {"get_ranges_of": 1}


def test_windows_over_the_ends_of_shards_take_no_requests_of_their_own():
    store = flat(written_stream())
    with streams(store) as whole:
        every = [whole[number].tolist() for number in range(len(whole))]
    flattened = np.concatenate([np.array(window) for window in every])
    from headrace.datasets import StreamDataset, StreamStorage

    with StreamDataset(StreamStorage(store), 130, stride=7) as dataset:
        dataset.__getitems__(np.arange(len(dataset)))
        requests(store)
        found = dataset.__getitems__(np.arange(len(dataset)))
        assert requests(store) == {"get_ranges_of": SHARDS}
        for number, window in enumerate(found):
            assert window.tolist() == flattened[7 * number : 7 * number + 130].tolist()


def test_a_batch_of_documents_is_one_request_a_shard_once_its_small_index_was_read():
    store = flat(written_documents())
    with documents(store) as dataset:
        batch = np.arange(len(dataset))
        dataset.__getitems__(batch)
        requests(store)
        dataset.__getitems__(batch)
        assert requests(store) == {"get_ranges_of": SHARDS}
        dataset[5]
        assert requests(store) == {"get_ranges_of": 1}
        assert len(dataset.lengths) == len(dataset)
        assert requests(store) == {}


def test_documents_whose_indexes_are_too_large_to_hold_are_read_by_ranges(monkeypatch):
    monkeypatch.setattr("headrace.datasets.payloads._HELD_BYTES", 100)
    written = written_documents()
    store = flat(written)
    with documents(store) as dataset, documents(written) as local:
        assert all_of(dataset) == all_of(local)
        requests(store)
        dataset.__getitems__(np.arange(len(dataset)))
        assert requests(store) == {"get_ranges_of": 2 * SHARDS}
        assert dataset.lengths.tolist() == local.lengths.tolist()


def test_a_batch_of_samples_is_one_request_a_shard_once_its_offsets_were_read():
    store = flat(written_samples())
    with samples(store) as dataset:
        num_shards = dataset.describe()["num_shards"]
        requests(store)
        batch = np.arange(len(dataset))
        dataset.__getitems__(batch)
        assert requests(store) == {"head": num_shards + 1, "get_ranges_of": 2 * num_shards}
        assert dataset.__getitems__(batch[::-1]) == [sample(number) for number in batch[::-1].tolist()]
        assert requests(store) == {"get_ranges_of": num_shards}
        assert dataset[7] == sample(7)
        assert requests(store) == {"get_ranges_of": 1}


@pytest.mark.parametrize("access", ["auto", "ranges"])
def test_compressed_samples_are_read_whole_once(access):
    store = flat(written_samples(compression="zstd:3"))
    with samples(store, access=access) as dataset:
        num_shards = dataset.describe()["num_shards"]
        assert all_of(dataset) == [sample(number) for number in range(len(dataset))]
        requests(store)
        all_of(dataset)
        assert requests(store) == {}
    with samples(store, decompressed_bytes=0) as dataset:
        dataset.__getitems__(np.arange(len(dataset)))
        requests(store)
        dataset.__getitems__(np.arange(len(dataset)))
        assert requests(store)["get_ranges_of"] >= num_shards - 1  # one is held


def test_of_compressed_samples_only_the_form_that_is_read_is_looked_up_and_once():
    store = flat(written_samples(compression="zstd"))
    with samples(store, decompressed_bytes=0) as dataset:
        count = dataset.describe()["num_shards"]
        requests(store)
        dataset.__getitems__(np.arange(50))
        assert requests(store) == {"head": count + 1, "get_ranges_of": count}
        dataset.__getitems__(np.arange(50))
        assert set(requests(store)) == {"get_ranges_of"}


def test_samples_that_are_verified_are_read_whole():
    store = flat(written_samples(hashes=["xxh3_64"]))
    with samples(store, verify=True) as dataset:
        assert all_of(dataset) == [sample(number) for number in range(len(dataset))]
    data = store.store._objects["shard.00000.mds"]
    data.data = data.data[:-1] + b"x"
    with samples(store, verify=True) as dataset, pytest.raises(CorruptShardError, match="xxh3_64"):
        dataset[0]


@pytest.mark.parametrize("writer", ["JSONWriter", "CSVWriter", "TSVWriter"])
def test_lines_are_read_by_ranges_as_well(writer):
    import headrace

    written = MemoryStore()
    columns = {"id": "int", "text": "str"}
    with getattr(headrace, writer)(columns=columns, out=written, size_limit=300, newline="\r\n") as out:
        for number in range(50):
            out.write(sample(number))
    store = flat(written)
    with samples(store) as dataset:
        assert all_of(dataset) == [sample(number) for number in range(50)]
        requests(store)
        dataset.__getitems__(np.arange(50))
        assert requests(store) == {"get_ranges_of": dataset.describe()["num_shards"]}


@pytest.mark.parametrize("kind", KINDS)
def test_a_dataset_that_is_overwritten_under_a_reader_is_an_error_and_never_mixed(kind):
    write, dataset = KINDS[kind]
    store = flat(write())
    with dataset(store) as opened:
        opened[0]  # its first shard was looked at, the others were not
        copy_into(store.store, write(salt=1))
        for item in (0, len(opened) - 1):
            with pytest.raises(DatasetChangedError):
                opened[item]
            with pytest.raises(DatasetChangedError):
                opened.__getitems__([item])
    with dataset(store) as again, dataset(write(salt=1)) as expected:
        assert all_of(again) == all_of(expected)


def test_a_data_file_alone_that_is_overwritten_is_an_error():
    store = flat(written_stream())
    with streams(store) as opened:
        opened[0]
        store.store.put("0000000.in_band.bin", bytes(200))
        with pytest.raises(DatasetChangedError, match=r"0000000\.in_band\.bin"):
            opened[1]


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_that_is_missing_or_cut_is_named(kind):
    write, dataset = KINDS[kind]
    store = flat(write())
    names = sorted(
        info.path for info in store.store.list(recursive=False) if info.path.endswith(("in_band.bin", DATA, ".mds"))
    )
    name = names[-1]
    data = store.store.get(name)
    with dataset(store) as opened:
        store.store.delete(name)
        with pytest.raises(CorruptShardError, match=f"{name} is missing"):
            opened[-1]
    with dataset(store) as opened:
        store.store.put(name, data[:-1])
        with pytest.raises(CorruptShardError, match=f"{name}.* has {len(data) - 1} bytes"):
            opened[-1]


@pytest.mark.parametrize("kind", KINDS)
def test_files_of_a_store_that_keeps_none_are_refused_with_the_way_out(kind):
    write, dataset = KINDS[kind]
    with pytest.raises(OptionError, match="CachedStore"):
        len(dataset(flat(write()), access="files"))


@pytest.mark.parametrize("kind", KINDS)
def test_an_access_that_there_is_not_is_refused_at_once(kind):
    with pytest.raises(OptionError, match="'auto', 'files' or 'ranges'"):
        KINDS[kind][1](MemoryStore(), access="file")


def test_a_store_that_lists_nothing_opens_what_is_published_and_says_so_of_all_else():
    published, unpublished = flat(written_stream()), flat(written_stream(publish=False))
    for store in (published, unpublished):
        store.capabilities = store.capabilities._replace(listing=False, write=False, conditional=False)
    assert len(streams(published)) == 50
    with pytest.raises(NoDatasetError, match="cannot be listed"):
        len(streams(unpublished))
    with pytest.raises(NoDatasetError, match=r"index\.json"):
        len(samples(unpublished))


def test_many_requests_wait_at_the_same_time():
    from time import monotonic

    from headrace.testing import Delay, Rule

    store = flat(written_stream())
    with streams(store) as dataset:
        store.rules.append(Rule(Delay(0.1), path="*.bin"))
        begin = monotonic()
        dataset.__getitems__(np.arange(len(dataset)))
        assert monotonic() - begin < 0.45  # 10 requests, of which those for a shard follow one another


@pytest.mark.timeout(30)
def test_requests_that_make_requests_do_not_wait_for_one_another():
    many = list(range(2 * AT_ONCE))
    assert at_once(lambda first: sum(at_once(lambda second: first * second, many)), many)[3] == 3 * sum(many)


def test_a_foreign_directory_opens_with_its_shards_looked_at_at_the_same_time():
    from time import monotonic

    from headrace.testing import Delay, Rule

    store = flat(written_annotated(publish=False))
    for info in store.store.list(".headrace"):
        store.store.delete(info.path)
    store.rules.append(Rule(Delay(0.1), path="*.bin"))
    begin = monotonic()
    with annotated(store, storage_format=SpanNumpyFormat([("tokens", "<u2")])) as opened:
        assert len(opened) > 0
    assert monotonic() - begin < 0.1 * 2 * SHARDS  # one by one it is at least 3 requests a shard
