"""Writers of samples: what their options mean, what they refuse, and that the writer is usable afterwards."""

import gc
import hashlib
import io
import json
import pickle
import sys
import threading

import pytest

from headrace.datasets import CSVWriter, JSONWriter, LocalDataset, MDSWriter, SampleDataset, TSVWriter, XSVWriter
from headrace.datasets.samples import sample_writer
from headrace.errors import ClosedError, FieldError, OptionError, StoreError, UnsafeDataError, WriteError
from headrace.store import MemoryStore
from headrace.testing import Delay, FaultStore, Refuse, Rule, Run
from writing_scenes import COLUMNS, everything_in, files_in, fill, ids_in, sample, write

ALL = {"mds": MDSWriter, "json": JSONWriter, "csv": CSVWriter, "tsv": TSVWriter, "xsv": XSVWriter}
EACH_FORMAT = pytest.mark.parametrize("shard_format", ALL)


def opened(shard_format, out, **options):
    separator = {"separator": ";"} if shard_format == "xsv" else {}
    return ALL[shard_format](**{"columns": COLUMNS, **separator, **options}, out=out)


@EACH_FORMAT
def test_what_is_written_comes_back_and_nothing_but_the_dataset_stays(shard_format, tmp_path):
    with opened(shard_format, tmp_path / "new" / "folder") as writing:
        fill(writing, range(25))
    assert ids_in(tmp_path / "new" / "folder") == list(range(25))
    suffixes = [""] if shard_format == "mds" else ["", ".meta"]
    shards = [f"shard.{shard:05d}.{shard_format}{suffix}" for shard in range(3) for suffix in suffixes]
    assert everything_in(tmp_path / "new" / "folder") == sorted(["index.json", *shards])


@EACH_FORMAT
@pytest.mark.parametrize("compression", [None, "zstd:3", "gz"])
def test_any_number_of_workers_gives_the_same_bytes_in_the_same_order(shard_format, compression):
    found = []
    for max_workers in (1, 4, None):
        store = FaultStore(
            MemoryStore(), [Rule(Delay(0.01), "put", "shard.*0.*")]
        )  # so that shards overtake one another
        with opened(
            shard_format,
            store,
            size_limit=150,
            max_workers=max_workers,
            compression=compression,
            hashes=["sha1", "xxh64"],
        ) as writing:
            for number in range(100):
                writing.write(sample(number))
        found.append(files_in(store.store))
        assert ids_in(store.store, verify=True) == list(range(100))
    assert len(found[0]) > 15
    assert found[0] == found[1] == found[2]


@EACH_FORMAT
def test_finishing_twice_is_harmless_and_writing_after_it_is_refused(shard_format, tmp_path):
    writing = opened(shard_format, tmp_path)
    fill(writing, range(5))
    writing.finish()
    before = files_in(tmp_path)
    writing.finish()
    with writing:
        pass
    for use in (lambda: writing.write(sample(5)), writing.flush_shard):
        with pytest.raises(ClosedError, match="finished; open another"):
            use()
    writing.cancel_future_jobs()
    assert files_in(tmp_path) == before
    assert ids_in(tmp_path) == list(range(5))


def test_flush_shard_ends_a_shard_that_has_samples_and_does_nothing_else(tmp_path):
    with MDSWriter(columns=COLUMNS, out=tmp_path) as writing:
        writing.flush_shard()
        for number in range(4):
            writing.write(sample(number))
            writing.flush_shard()
            writing.flush_shard()
    assert [entry["samples"] for entry in json.loads((tmp_path / "index.json").read_bytes())["shards"]] == [1] * 4
    assert ids_in(tmp_path) == list(range(4))


def test_no_samples_give_a_dataset_of_none(tmp_path):
    write(tmp_path, [])
    assert set(files_in(tmp_path)) == {"index.json"}
    assert everything_in(tmp_path) == ["index.json"]
    assert ids_in(tmp_path) == []


def test_cancelled_jobs_leave_no_index_and_the_reason(tmp_path):
    writing = MDSWriter(columns=COLUMNS, out=tmp_path)
    fill(writing, range(25))
    writing.cancel_future_jobs()
    for use in (lambda: writing.write(sample(25)), writing.finish, writing.flush_shard, writing.finish):
        with pytest.raises(WriteError, match="writing was cancelled"):
            use()
    assert ids_in(tmp_path) is None
    write(tmp_path, range(3))
    assert ids_in(tmp_path) == [0, 1, 2]


def test_cancelling_does_not_wait_for_tries_to_come():
    """Leaving the block with an exception is to cancel; a thousand tries would take more than an hour."""
    begun = threading.Event()
    rules = [Rule(action, "put", "shard.*") for action in (Run(lambda call: begun.set()), Refuse(StoreError("429")))]
    store = FaultStore(MemoryStore(), rules)

    def write_and_fail():
        with MDSWriter(columns=COLUMNS, out=store, retry=1_000) as writing:
            fill(writing, range(15))
            assert begun.wait(20)
            raise KeyError

    with pytest.raises(KeyError):
        write_and_fail()
    assert store.count("put", "shard.*") < 50


REFUSED = {
    "a column is missing": ({"id": 7}, "text", "is missing"),
    "all are missing": ({}, "id", "is missing"),
    "there is another column": ({"id": 7, "text": "", "more": 1}, "more", "column"),
    "a number is text": ({"id": "7", "text": ""}, "id", "str"),
    "text is a number": ({"id": 7, "text": 7}, "text", "int"),
    "text is a list": ({"id": 7, "text": ["a"]}, "text", "list"),
    "a number is None": ({"id": None, "text": ""}, "id", "None"),
    "it is no mapping": (["id", "text"], None, "list"),
    "it is None": (None, None, "NoneType"),
    "it is a string": ("id", None, "str"),
}


@EACH_FORMAT
@pytest.mark.parametrize("name", REFUSED)
def test_a_sample_that_does_not_fit_is_refused_with_number_and_column_and_the_writer_goes_on(shard_format, name):
    wrong, column, told = REFUSED[name]
    store = MemoryStore()
    with opened(shard_format, store) as writing:
        fill(writing, range(7), a_shard=4)
        for _ in range(2):
            with pytest.raises(TypeError if column is None else FieldError, match="sample 7") as caught:
                writing.write(wrong)
            assert told in str(caught.value)
            assert column is None or f"{column!r}" in str(caught.value)
        assert writing.num_samples == 7
        for number in (7, 8):
            writing.write(sample(number))
    assert ids_in(store) == list(range(9))


@EACH_FORMAT
def test_extra_columns_can_be_ignored(shard_format):
    store = MemoryStore()
    with opened(shard_format, store, ignore_extra=True) as writing:
        writing.write({**sample(0), "more": object()})
        with pytest.raises(FieldError, match="'text'"):
            writing.write({"id": 1, "more": 2})
    assert ids_in(store) == [0]


def test_a_sample_too_large_for_any_shard_is_refused_and_the_writer_goes_on(monkeypatch):
    monkeypatch.setattr(sample_writer, "LARGEST_OFFSET", 1000)
    store = MemoryStore()
    with MDSWriter(columns=COLUMNS, out=store, size_limit=None) as writing:
        fill(writing, range(3))
        with pytest.raises(FieldError, match=r"sample 3, .*at most 1000"):
            writing.write({"id": 3, "text": "x" * 1001})
        fill(writing, range(3, 100), a_shard=1000)
    assert ids_in(store) == list(range(100))
    assert len(files_in(store)) > 3


def test_pickles_need_the_word_of_the_writer_and_of_the_reader(tmp_path):
    columns = {"id": "int", "thing": "pkl"}
    for word in (False, None, "false", 1):
        with pytest.raises(OptionError, match=r"allow_unsafe_types=True.*json"):
            MDSWriter(columns=columns, out=tmp_path / "out", allow_unsafe_types=word)
    assert everything_in(tmp_path) == []
    with MDSWriter(columns=columns, out=tmp_path / "out", allow_unsafe_types=True) as writing:
        writing.write({"id": 1, "thing": {"a": (1, 2)}})
    with pytest.raises(UnsafeDataError, match="allow_unsafe_types=True"):
        SampleDataset(tmp_path / "out")[0]
    for dataset in (
        SampleDataset(tmp_path / "out", None, True),
        LocalDataset(tmp_path / "out", allow_unsafe_types=True),
    ):
        assert dataset[0] == {"id": 1, "thing": {"a": (1, 2)}}


class Reversed:
    """An encoding of one's own."""

    name, size = "reversed", None

    def encode(self, value):
        """The text, backwards."""
        if not isinstance(value, str):
            raise TypeError(f"needs str, not {type(value).__name__}")
        return value[::-1].encode()

    def decode(self, data):
        """The text."""
        return bytes(data).decode()[::-1]


class Executing(Reversed):
    """One that says of itself that reading it may run code."""

    name, unsafe = "executing", True


class TooLong(Reversed):
    """One that does not keep its word."""

    name, size = "too long", 2


def test_an_encoding_of_ones_own_is_written_and_read_by_its_name(tmp_path):
    with MDSWriter(columns={"id": "int", "text": Reversed()}, out=tmp_path) as writing:
        writing.write({"id": 1, "text": "abc"})
        with pytest.raises(FieldError, match=r"sample 1, field 'text': needs str, not int"):
            writing.write({"id": 1, "text": 17})
    assert b"cba" in (tmp_path / "shard.00000.mds").read_bytes()
    assert SampleDataset(tmp_path, encodings=[Reversed()])[0] == {"id": 1, "text": "abc"}
    with pytest.raises(ValueError, match="reversed"):
        SampleDataset(tmp_path)[0]


def test_encodings_of_ones_own_are_held_to_what_they_say(tmp_path):
    with pytest.raises(OptionError, match="allow_unsafe_types=True"):
        MDSWriter(columns={"x": Executing()}, out=tmp_path / "out")
    for wrong in (object(), 17, None, str):
        with pytest.raises(OptionError, match="name, size, encode and decode"):
            MDSWriter(columns={"x": wrong}, out=tmp_path / "out")
    assert everything_in(tmp_path) == []
    with MDSWriter(columns={"x": TooLong()}, out=tmp_path / "out") as writing:
        writing.write({"x": "ab"})
        with pytest.raises(FieldError, match=r"sample 1, field 'x': its encoding gave 3 bytes"):
            writing.write({"x": "abc"})
        writing.write({"x": "cd"})
    assert SampleDataset(tmp_path / "out", encodings=[TooLong()])[:] == [{"x": "ab"}, {"x": "cd"}]


class Terminal(io.StringIO):
    """Standard error as a terminal is."""

    def isatty(self):
        return True


@pytest.mark.parametrize("show", [True, False])
def test_a_progress_bar_counts_on_a_terminal_only_and_only_if_asked_for(show, tmp_path, monkeypatch):
    for screen, expected in ((Terminal(), show), (io.StringIO(), False)):
        monkeypatch.setattr(sys, "stderr", screen)
        write(MemoryStore(), range(2_500), a_shard=1_000, progress_bar=show)
        text = screen.getvalue()
        assert bool(text) == expected
        if expected:
            assert "3 shards" in text
            assert "2,500 samples" in text


def test_a_progress_bar_ends_with_an_interrupted_writer(monkeypatch):
    monkeypatch.setattr(sys, "stderr", Terminal())
    with pytest.raises(FieldError), MDSWriter(columns=COLUMNS, out=MemoryStore(), progress_bar=True) as writing:
        fill(writing, ["no number"])
    for thread in threading.enumerate():
        if "rich" in type(thread).__module__:  # told to end; waiting for it is nobody's concern but this test's
            thread.join(10)
            assert not thread.is_alive()


def test_no_thread_outlives_its_writer():
    before = set(threading.enumerate())
    for _ in range(3):
        write(MemoryStore(), range(25))
    assert set(threading.enumerate()) <= before
    writing = MDSWriter(columns=COLUMNS, out=MemoryStore())
    fill(writing, range(25))
    del writing
    gc.collect()
    for thread in set(threading.enumerate()) - before:  # of a writer that was dropped they end by themselves
        thread.join(10)
        assert not thread.is_alive()


def test_digests_of_files_are_those_of_hashlib(tmp_path):
    write(tmp_path, range(25), hashes=["sha256", "md5"], compression="zstd")
    for entry in json.loads((tmp_path / "index.json").read_bytes())["shards"]:
        data = (tmp_path / entry["zip_data"]["basename"]).read_bytes()
        assert entry["hashes"] == ["md5", "sha256"]
        for name in entry["hashes"]:
            assert entry["zip_data"]["hashes"][name] == hashlib.new(name, data).hexdigest()


def test_a_writer_is_not_pickled():
    writing = MDSWriter(columns=COLUMNS, out=MemoryStore())
    with pytest.raises(TypeError):
        pickle.dumps(writing)
    writing.finish()
