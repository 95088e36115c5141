"""What `headrace inspect`, `verify` and `publish` tell of datasets at URLs is what they tell of local ones."""

import pytest

from dataset.remote_reading_scenes import KINDS, copy_into, flat, written_samples, written_stream
from headrace.errors import NoDatasetError, OptionError
from headrace.inspection import description, found_in, readable, verdict
from headrace.store import LocalStore

DATA = {"stream": "0000002.in_band.bin", "documents": "0000002.out_of_band.bin"}
DATA |= {"annotated": "0000002.out_of_band.bin", "samples": "shard.00002.mds"}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("cached", [False, True])
def test_a_dataset_at_a_url_is_described_and_verified_as_a_local_one(kind, cached, tmp_path):
    written = KINDS[kind][0]()
    local = LocalStore(tmp_path / "data", fsync=False)
    copy_into(local, written)
    here, there = found_in(tmp_path / "data"), found_in(flat(written), tmp_path / "cache" if cached else None)
    expected, found = description(here), description(there)
    assert found.pop("location") == "memory://"
    assert expected.pop("location") == str(tmp_path / "data")
    assert found == expected
    assert list(readable(found | {"location": ""})) == list(readable(expected | {"location": ""}))
    assert verdict(there) == verdict(here)
    assert verdict(there).damages == []


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("cached", [False, True])
def test_damages_at_a_url_are_found_where_the_data_is(kind, cached, tmp_path):
    written = KINDS[kind][0](**({"hashes": ["xxh64"]} if kind == "samples" else {}))
    store = flat(written)
    found = found_in(store, tmp_path if cached else None)
    assert verdict(found).damages == []
    data = store.store.get(DATA[kind])
    store.store.put(DATA[kind], data[:-1] + bytes([data[-1] ^ 1]))
    (damage,) = verdict(found).damages
    assert (damage.shard, damage.file) == (2, DATA[kind])
    store.store.delete(DATA[kind])
    (damage,) = verdict(found).damages
    assert (damage.shard, damage.file, damage.problem) == (2, DATA[kind], "is missing")


def test_a_cache_for_a_local_dataset_is_refused(tmp_path):
    copy_into(LocalStore(tmp_path, fsync=False), written_stream())
    with pytest.raises(OptionError, match="local"):
        found_in(tmp_path, tmp_path / "cache")


def test_a_url_without_a_dataset_says_so():
    with pytest.raises(NoDatasetError, match="no dataset"):
        description(found_in("memory://nothing"))


@pytest.mark.parametrize("write", [written_stream, written_samples])
def test_datasets_are_looked_at_over_http_where_nothing_can_be_listed(write, http_folder, http_url):
    written = write()
    copy_into(LocalStore(http_folder, fsync=False), written)
    found = found_in(http_url)
    assert description(found)["published"]
    assert verdict(found).damages == []
    with pytest.raises(NoDatasetError):
        description(found_in(f"{http_url}/elsewhere"))
