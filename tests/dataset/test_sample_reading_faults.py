"""What readers of samples must refuse or survive, whatever the index or the caller says."""

import json
import os
import threading

import pytest

from headrace.cli import main
from headrace.datasets import MDSWriter, SampleDataset
from headrace.errors import ManifestError


@pytest.fixture
def written(tmp_path):
    with MDSWriter(out=tmp_path / "samples", columns={"id": "int", "j": "json", "t": "str"}) as writer:
        for number in range(20):
            writer.write({"id": number, "j": {"n": number}, "t": "x" * number})
    return tmp_path / "samples"


def edited(directory, **changes):
    index = json.loads((directory / "index.json").read_bytes())
    index["shards"][0].update(changes)
    (directory / "index.json").write_text(json.dumps(index))


def test_columns_of_fewer_than_no_bytes_are_refused_even_where_they_are_not_read(written):
    edited(written, column_sizes=[-8, None, None])

    with pytest.raises(ManifestError, match="values of \\(-8, None, None\\) bytes"):
        SampleDataset(written, columns=["t"])[0]


def test_a_batch_given_as_an_iterator_is_refused_and_not_empty(written):
    with pytest.raises(TypeError, match="must be a list of integers"):
        SampleDataset(written).__getitems__(iter([1, 2]))


def test_columns_that_are_named_twice_are_the_same_settings(written):
    assert SampleDataset(written, columns=["id", "id"]).settings == SampleDataset(written, columns=["id"]).settings


def test_threads_of_a_fork_take_no_lock_that_the_parent_held(written, monkeypatch):
    opened = SampleDataset(written).storage.open_shards()
    opened._lock.acquire()  # as another thread of the parent may, while it forks
    opened._process -= 1
    old, met = opened._lock, []

    def looked(made=threading.Lock):
        # What another thread of the child finds at this moment.
        met.append(opened._process == os.getpid() and opened._lock is old)
        return made()

    monkeypatch.setattr(threading, "Lock", looked)

    assert opened.sample(3)["id"] == 3
    assert met == [False]


def run(capsys, *arguments):
    with pytest.raises(SystemExit) as left:
        main([str(argument) for argument in arguments])
    captured = capsys.readouterr()
    return left.value.code or 0, captured.out, captured.err


def test_inspect_tells_of_half_a_surrogate_pair_without_failing(tmp_path, capsys):
    with MDSWriter(out=tmp_path / "samples", columns={"j": "json"}) as writer:
        writer.write({"j": {"\ud800": "a\udfff"}})

    code, out, _ = run(capsys, "inspect", tmp_path / "samples", "--json")

    assert code == 0
    assert json.loads(out)["first"] == {"j": {"\\ud800": "a\\udfff"}}
    assert run(capsys, "inspect", tmp_path / "samples")[0] == 0


@pytest.mark.parametrize("command", ["inspect", "verify"])
def test_names_from_an_index_do_not_steer_the_terminal(written, capsys, command):
    name = "\x1b]0;owned\x07\r\nshard"
    edited(written, hashes=["\x1b[2J"], raw_data={"basename": name, "bytes": 1 << 20, "hashes": {}})

    _, out, err = run(capsys, command, written)

    assert "owned" in out
    assert all(char.isprintable() for char in (out + err).replace("\n", ""))
    assert "\\nshard" in out
