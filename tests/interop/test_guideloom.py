"""GuideLoom itself reads the streams that Headrace wrote and published, and Headrace reads what GuideLoom wrote."""

import numpy as np
import pytest

from headrace import StreamDataset, StreamNumpyFormat, StreamStorage
from interop.cases import CASES, WINDOW, records, seen_by
from interop.sides import INTERFACES, data_files

pytestmark = pytest.mark.interop
KIND = "streams"


def ours(root, name, interface=None):
    return StreamStorage(root / name, StreamNumpyFormat(np.dtype(CASES[name])), interface)


def written_by_us(root):
    for name in CASES:
        with ours(root, name).sync_writer() as writer:
            for shard, record in records(name):
                writer.append(shard, record)
        ours(root, name).publish({"by": "headrace"})


def seen_by_us(root, interface=None):
    seen = {}
    for name in CASES:
        storage = ours(root, name, interface)
        with storage.sync_reader() as reader, StreamDataset(storage, WINDOW) as windows:
            seen[name] = seen_by(reader, windows)
    return seen


def test_guideloom_reads_what_headrace_wrote_and_published(guideloom, tmp_path):
    written_by_us(tmp_path)
    assert guideloom.read(tmp_path) == [seen_by_us(tmp_path)]


@pytest.mark.parametrize("interface", INTERFACES, ids=repr)
def test_headrace_reads_what_guideloom_wrote(theirs, seen_in_theirs, interface):
    assert seen_by_us(theirs, interface) == seen_in_theirs


def test_both_write_the_same_bytes(theirs, tmp_path):
    written_by_us(tmp_path)
    assert data_files(tmp_path) == data_files(theirs)
    assert len(data_files(tmp_path)) == 6 * len(CASES)
