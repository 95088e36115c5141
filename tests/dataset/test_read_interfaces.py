"""GuideLoom's ways to read give the same samples, and are real: maps or none."""

import pickle
from pathlib import Path

import numpy as np
import pytest

from headrace import MmapIO, PosixPreadIO, SeekIO, StreamDataset, StreamNumpyFormat, StreamStorage
from headrace.errors import UnsupportedOperationError
from headrace.store import LocalStore, MemoryStore

FORMAT = StreamNumpyFormat([("tokens", "<u2")])


def maps_of(folder):
    return [line for line in Path("/proc/self/maps").read_text().splitlines() if str(folder) in line]


@pytest.fixture
def folder(tmp_path):
    with StreamStorage(tmp_path / "data", FORMAT).sync_writer() as writer:
        for shard in range(3):
            writer.append(shard, {"tokens": np.arange(50) + shard * 50})
    return tmp_path / "data"


@pytest.mark.parametrize("interface", [MmapIO(), PosixPreadIO(), PosixPreadIO(advice=True), SeekIO()], ids=repr)
def test_every_read_interface_gives_the_same_windows(folder, interface):
    assert interface.is_supported()
    storage = pickle.loads(pickle.dumps(StreamStorage(folder, FORMAT, interface)))
    windows = StreamDataset(storage, 7)
    found = windows.__getitems__(list(range(len(windows)))).stacked()["tokens"]
    assert found.tolist() == np.arange(21 * 7).reshape(21, 7).tolist()
    with storage.sync_reader() as reader:
        assert reader.read(145, 10)["tokens"].tolist() == [*range(145, 150), *range(5)]
    assert bool(maps_of(folder)) == isinstance(interface, MmapIO)


def test_an_unmapped_store_refuses_views_and_reads_by_position_only(folder):
    store = LocalStore(folder, mapped=False)
    assert repr(store) == f"LocalStore({str(folder)!r}, mapped=False)"
    with pytest.raises(UnsupportedOperationError, match="map objects into memory"):
        store.view("0000000.in_band.bin")


def test_a_read_interface_for_local_files_is_refused_elsewhere():
    with pytest.raises(TypeError, match="no local directory"):
        StreamStorage(MemoryStore(), FORMAT, PosixPreadIO())
    with pytest.raises(TypeError, match="read_interface must be a Store, or one of MmapIO"):
        StreamStorage("data", FORMAT, "mmap")
