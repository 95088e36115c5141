"""Stores that refuse, lie, or are slow, and programs that fail: an index means that all is there, and errors arrive."""

import dataclasses
import subprocess
import sys
import textwrap

import pytest

from headrace.datasets import CSVWriter, JSONWriter, MDSWriter, SampleDataset
from headrace.datasets.samples import delivery, pending, sample_writer
from headrace.errors import OutputError, StoreError, UnfinishedDatasetError
from headrace.store import LocalStore, MemoryStore
from headrace.testing import Cut, Delay, FaultStore, Forget, Refuse, Rule
from writing_scenes import COLUMNS, ObjectStore, Watching, files_in, fill, ids_in, missing_files, write

TOO_MANY = Refuse(StoreError("429 too many requests"))
BROKEN = Refuse(StoreError("Input/output error"))
SETTINGS = {
    "mds, objects": (MDSWriter, "objects", "alone"),
    "csv, a directory": (CSVWriter, "local", "alone"),
    "json, a pair": (JSONWriter, "objects", "pair"),
    "mds, a pair of directories, both kept": (MDSWriter, "local", "pair, both kept"),
    "json, a pair, both kept": (JSONWriter, "memory", "pair, both kept"),
}


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    monkeypatch.setattr(delivery, "_FIRST_WAIT_S", 0.001)


@pytest.fixture(params=SETTINGS)
def scene(request, tmp_path):
    writer, kind, place = SETTINGS[request.param]
    stores = {
        "memory": MemoryStore,
        "objects": ObjectStore,
        "local": lambda: LocalStore(tmp_path / "store", fsync=False),
    }
    store = FaultStore(stores[kind]())
    if place == "alone":
        return Scene(store, writer, {"out": store})
    local = LocalStore(tmp_path / "local", fsync=False)
    return Scene(store, writer, {"out": (local, store), "keep_local": place == "pair, both kept"})


class OwnError(Exception):
    """The user's."""


class Scene:
    """A writer with options, and the store that gets its dataset, obeys rules, and logs."""

    def __init__(self, store, writer, out):
        self.store, self._writer, self._out = store, writer, out

    def writer(self, **options):
        return self._writer(columns=COLUMNS, **self._out, **options)

    def write(self, ids, **options):
        with self.writer(**options) as writing:
            fill(writing, ids)

    def write_and_fail(self, ids, **options):
        with self.writer(**options) as writing:
            fill(writing, ids)
            raise OwnError

    def rule(self, *rules):
        """These rules, from now on."""
        self.store.rules[:] = map(self._fitting, rules)

    def _fitting(self, rule):
        # A copy, since its turns are counted by its identity. Without renames these are put only if none is there.
        is_first = rule.path.startswith(("index.json", ".headrace/")) and not self.store.capabilities.rename
        return dataclasses.replace(rule, operation="put_if_absent" if is_first else rule.operation)

    def files(self):
        return files_in(self.store.store)

    def ids(self):
        return ids_in(self.store.store)


FAILURES = {
    "a shard in the middle is refused always": (Rule(TOO_MANY, "put", "shard.00002.*"), 1, "shard.00002."),
    "the last shard is refused once, no retry": (Rule(BROKEN, "put", "shard.00003.*", times=1), 0, "shard.00003."),
    "the index is refused": (Rule(TOO_MANY, "put", "index.json"), 1, "index.json"),
    "a receipt is refused": (Rule(TOO_MANY, "put", ".headrace/samples/shard.00001"), 1, "shard.00001"),
    "the first receipt is refused": (Rule(TOO_MANY, "put", ".headrace/samples/shard.00000"), 1, "shard.00000"),
}


def leave_block(writing):
    with writing:
        fill(writing, range(40))


def finish(writing):
    fill(writing, range(40))
    writing.finish()


CLOSES = {"with": leave_block, "finish": finish}


@pytest.mark.parametrize("close", CLOSES)
@pytest.mark.parametrize("name", FAILURES)
def test_a_failed_upload_reaches_the_caller_with_the_objects_name_and_there_is_no_index(name, close, scene):
    rule, retry, named = FAILURES[name]
    scene.rule(rule)
    writing = scene.writer(retry=retry)
    tries = "1 try" if retry == 0 else f"{retry + 1} tries"
    with pytest.raises(OutputError, match=rf"{scene.store.location}/.*{named}.*\({tries}\)"):
        CLOSES[close](writing)
    assert "index.json" not in scene.files()
    for again in (writing.finish, writing.finish, writing.flush_shard, lambda: writing.write({"id": 1, "text": ""})):
        with pytest.raises(OutputError, match=named):
            again()
    assert "index.json" not in scene.files()
    assert scene.ids() is None


@pytest.mark.parametrize("name", FAILURES)
def test_after_a_failed_upload_the_same_command_writes_all_and_resuming_goes_on(name, scene):
    rule, retry, _ = FAILURES[name]
    for resume in (False, True):
        scene.rule(rule)
        with pytest.raises(OutputError):
            scene.write(range(40), retry=retry, hashes=["sha1"], exist_ok=True)
        scene.store.rules.clear()
        with scene.writer(hashes=["sha1"], resume=resume) as writing:
            assert writing.num_safe_samples in ((0, 10, 20, 30, 40) if resume else (0,))
            fill(writing, range(writing.num_safe_samples, 40))
        assert scene.ids() == list(range(40))
        assert not any(path.startswith(".headrace") for path in scene.files())
        if not resume:
            undisturbed = scene.files()
    assert scene.files() == undisturbed


TEMPORARY = {
    "a data file is refused once": Rule(TOO_MANY, "put", "shard.00001.*", times=1),
    "the index is refused once": Rule(TOO_MANY, "put", "index.json", times=1),
    "a receipt is refused once": Rule(TOO_MANY, "put", ".headrace/samples/shard.00001", times=1),
    "nothing is kept of the first shard": Rule(Cut(0), "put", "shard.00000.*", times=1),
    "half a shard is kept": Rule(Cut(40), "put", "shard.00000.*", times=1),
    "a shard is acknowledged and forgotten": Rule(Forget(), "put", "shard.00001.*", times=1),
    "the index is acknowledged and forgotten": Rule(Forget(), "put", "index.json", times=1),
    "half an index is kept": Rule(Cut(100), "put", "index.json", times=1),
}


@pytest.mark.parametrize("name", TEMPORARY)
def test_what_fails_once_is_done_again(name, scene):
    scene.rule(TEMPORARY[name])
    scene.write(range(20), retry=2)
    assert scene.ids() == list(range(20))
    assert missing_files(scene.files()) == []


@pytest.mark.parametrize("kept", [Forget(), Cut(9)], ids=repr)
def test_a_receipt_that_a_store_did_not_keep_is_written_again_so_that_resuming_finds_it(kept, scene):
    scene.rule(Rule(kept, "put", ".headrace/samples/shard.00000", times=1), Rule(BROKEN, "put", "index.json"))
    with pytest.raises(OutputError, match="index"):
        scene.write(range(25))
    scene.store.rules.clear()
    with scene.writer(resume=True) as writing:
        assert writing.num_safe_samples == 25


@pytest.mark.parametrize("kept", [Cut(0), Cut(40), Forget()], ids=repr)
def test_a_store_that_always_keeps_less_than_it_says_is_an_error_with_both_sizes(kept, scene):
    scene.rule(Rule(kept, "put", "shard.00001.*"))
    told = "kept nothing" if isinstance(kept, Forget) else rf"kept {kept.num_bytes} of \d+ bytes"
    with pytest.raises(OutputError, match=rf"shard\.00001.*({told}).*3 tries"):
        scene.write(range(20), retry=2)
    assert "index.json" not in scene.files()


def test_no_index_is_ever_seen_before_all_its_files(scene):
    scene.store.rules += [Rule(Delay(0.3), "put", "shard.00001.*"), Rule(Delay(0.02), "put", "shard.*")]
    with Watching(scene.store.store) as watching:
        scene.write(range(40), max_workers=4)
        assert "index.json" in scene.files()
        assert missing_files(scene.files()) == []
    assert watching.looks > 5
    assert watching.wrong == []
    assert scene.ids() == list(range(40))


def test_a_failure_in_the_background_is_raised_by_a_later_write_and_nothing_more_is_stored(scene):
    scene.rule(Rule(TOO_MANY, "put", "shard.00001.*"))
    writing = scene.writer(retry=0, max_workers=1)
    with pytest.raises(OutputError, match=r"shard\.00001\."):
        fill(writing, range(10_000))
    assert scene.store.count("put", "shard.*") < 10
    with pytest.raises(OutputError, match=r"shard\.00001\."):
        writing.finish()


def test_a_file_that_cannot_be_stored_takes_no_room_on_the_disk(tmp_path, monkeypatch):
    for module in (pending, sample_writer):
        monkeypatch.setattr(module, "SPILL_BYTES", 200)
    for operation in ("write", "sync", "rename"):
        store = FaultStore(LocalStore(tmp_path / operation), [Rule(BROKEN, operation, "*.part")])
        with pytest.raises(OutputError, match="Input/output error"):
            write(store, range(100), retry=2)
        assert store.count("open_writer", "*.part") >= 3
        assert not list((tmp_path / operation).rglob("*.part"))


def test_errors_of_a_store_that_are_not_ours_arrive_as_output_errors(scene):
    scene.rule(Rule(Refuse(RuntimeError("a bug in the client")), "put", "shard.00000.*"))
    with pytest.raises(OutputError, match=r"RuntimeError: a bug in the client"):
        scene.write(range(15))
    assert scene.ids() is None


def test_the_exception_in_the_block_is_the_one_that_surfaces_and_the_dataset_is_unfinished(scene):
    for _ in range(2):  # the second time after an unfinished one
        with pytest.raises(OwnError):
            scene.write_and_fail(range(25))
        assert "index.json" not in scene.files()
        with pytest.raises(UnfinishedDatasetError, match="resume=True"):
            SampleDataset(scene.store.store)[0]
    with scene.writer(resume=True) as writing:
        assert writing.num_safe_samples in (0, 10, 20)
        fill(writing, range(writing.num_safe_samples, 25))
    assert scene.ids() == list(range(25))


def test_the_users_exception_surfaces_also_where_storing_has_failed(scene):
    scene.rule(Rule(TOO_MANY, "put", "shard.*"))
    with pytest.raises(OwnError):
        scene.write_and_fail(range(15), retry=5)
    assert "index.json" not in scene.files()


def test_a_writer_that_is_dropped_lets_the_next_one_of_its_process_in(scene):
    writing = scene.writer()
    fill(writing, range(25))
    del writing
    assert scene.ids() is None
    scene.write(range(3))
    assert scene.ids() == [0, 1, 2]


def run(script, *arguments):
    command = [sys.executable, "-c", textwrap.dedent(script), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def test_a_script_whose_upload_fails_does_not_end_with_0(tmp_path):
    result = run(
        """
        import sys
        from headrace import JSONWriter
        from headrace.errors import StoreError
        from headrace.store import LocalStore
        from headrace.testing import FaultStore, Refuse, Rule

        store = FaultStore(LocalStore(sys.argv[1]), [Rule(Refuse(StoreError("429")), "put", "shard.00000.json")])
        with JSONWriter(columns={"id": "int"}, out=store, retry=0) as writer:
            writer.write({"id": 1})
        print("not reached")
        """,
        tmp_path,
    )
    assert result.returncode == 1
    assert result.stdout == ""
    assert "OutputError" in result.stderr.splitlines()[-1]
    assert not (tmp_path / "index.json").exists()


DROPPED = """
    import sys
    from headrace import JSONWriter

    writer = JSONWriter(columns={"id": "int", "text": "str"}, out=sys.argv[1])
    for number in range(25):
        if number and number % 10 == 0:
            writer.flush_shard()
        writer.write({"id": number, "text": f"text {number}"})
"""
ENDS = {
    "the interpreter exits": "",
    "the writer is deleted": "del writer",
    "the writer is in a cycle": "writer = [writer]; writer.append(writer)",
    "an exception ends the script": "1 / 0",
}


@pytest.mark.parametrize("name", ENDS)
def test_a_writer_that_is_never_closed_leaves_an_unfinished_dataset_and_the_process_says_nothing_of_its_own(
    name, tmp_path
):
    result = run(textwrap.dedent(DROPPED) + ENDS[name], tmp_path)
    if "exception" in name:
        assert result.returncode == 1
        assert result.stderr.splitlines()[-1] == "ZeroDivisionError: division by zero"
        assert result.stderr.count("Error") == 1
    else:
        assert (result.returncode, result.stderr) == (0, "")
    assert not (tmp_path / "index.json").exists()
    with pytest.raises(UnfinishedDatasetError):
        SampleDataset(tmp_path)[0]
    write(tmp_path, range(25), writer=JSONWriter)
    assert ids_in(tmp_path) == list(range(25))


@pytest.mark.parametrize("writer", [MDSWriter, JSONWriter])
def test_never_more_shards_are_alive_than_workers_and_two(writer):
    """One that is being filled, one that waits, and one a worker: seen by what was taken and is not noted yet."""
    most, num_workers = 0, 2
    store = FaultStore(ObjectStore(), [Rule(Delay(0.02), "put", "shard.*")])
    with writer(columns=COLUMNS, out=store, max_workers=num_workers, size_limit=None) as writing:
        for shard in range(12):
            writing.write({"id": shard, "text": "x" * 1000})
            stored = sum(path.startswith(".headrace/samples/shard.") for path in files_in(store.store))
            most = max(most, shard + 1 - stored)
            writing.flush_shard()
    assert 2 <= most <= num_workers + 2
    assert [one["id"] for one in SampleDataset(store)[:]] == list(range(12))
