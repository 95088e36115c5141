"""dataframe_to_mds, with attempts made and lost as a test says."""

import threading

import pyarrow as pa
import pytest

from flat_stores import FlatFolder
from headrace import (
    MDSWriter,
    MemoryStore,
    SampleDataset,
    StreamArrayFormat,
    StreamStorage,
    UnfinishedDatasetError,
    dataframe_to_mds,
    merge_index,
)
from headrace.datasets.samples.options import opened_outputs
from headrace.errors import ExistingOutputError, FieldError, InputError, LeaseLostError, OptionError, ShardOwnedError
from headrace.integrations.attempted_parts import Run
from headrace.store import LocalStore
from integrations.pretended_spark import Frame, Type, install

ROWS = [{"id": number, "text": f"row {number}"} for number in range(11)]
SHARES = [ROWS[:4], ROWS[4:5], [], ROWS[5:]]


@pytest.fixture(autouse=True, params=["directory", "objects"])
def where(request, monkeypatch):
    """Directories are what they are, or hold the objects of a store without folders and renames."""
    install(monkeypatch)
    if request.param == "objects":
        monkeypatch.setattr(
            "headrace.integrations.spark.opened_outputs",
            lambda out, **options: [
                FlatFolder(store.location) if isinstance(store, LocalStore) else store
                for store in opened_outputs(out, **options)
            ],
        )
    return request.param


@pytest.fixture
def out(tmp_path):
    return tmp_path / "out"


def files(folder):
    """What is there, hidden files included: path -> bytes."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def top(folder):
    """The names at the top under which files are."""
    return sorted({path.partition("/")[0] for path in files(folder)})


def rows_in(folder):
    return [
        {name: value if isinstance(value, str) else int(value) for name, value in row.items()}
        for row in SampleDataset(folder)
    ]


def test_the_rows_are_samples_in_the_order_of_the_partitions(out, where):
    named = dataframe_to_mds(Frame(SHARES), mds_kwargs={"out": str(out)})
    assert named == ((str(out), "") if where == "directory" else ("", str(out)))
    assert rows_in(out) == ROWS
    with SampleDataset(out) as samples:
        described = samples.describe()
    assert described["compression"] == "zstd"
    assert samples.verify() == []


def test_a_part_is_named_by_its_partition_and_an_empty_one_leaves_nothing(out):
    dataframe_to_mds(Frame(SHARES), mds_kwargs={"out": out})
    assert top(out) == ["00000", "00001", "00003", "index.json"]
    assert {path.name for path in out.rglob("*") if path.is_file()} == {"shard.00000.mds.zstd", "index.json"}


def test_the_files_are_the_same_whoever_comes_first(out, tmp_path):
    def backwards(attempt):
        return [result for partition in (3, 1, 2, 0) for result in attempt(partition)]

    dataframe_to_mds(Frame(SHARES), mds_kwargs={"out": out})
    dataframe_to_mds(Frame(SHARES, backwards), mds_kwargs={"out": tmp_path / "other"})
    assert files(out) == files(tmp_path / "other")


def test_an_attempt_that_failed_is_overwritten_by_the_next_one(out, tmp_path):
    def rows_that_fail():
        yield from ROWS[:3]
        raise ConnectionError("the executor is gone")

    def run_all(attempt):
        with pytest.raises(ConnectionError):
            attempt(0, rows_that_fail())
        return [result for partition in range(4) for result in attempt(partition)]

    dataframe_to_mds(Frame(SHARES, run_all), mds_kwargs={"out": out})
    dataframe_to_mds(Frame(SHARES), mds_kwargs={"out": tmp_path / "undisturbed"})
    assert files(out) == files(tmp_path / "undisturbed")


def test_an_attempt_whose_result_was_lost_counts_nowhere(out):
    def run_all(attempt):
        assert attempt(0, ROWS[6:]) == [(0, "00000")]  # other rows than the next time, as after a lost shuffle
        return [result for partition in range(4) for result in attempt(partition)]

    dataframe_to_mds(Frame(SHARES, run_all), mds_kwargs={"out": out})
    assert rows_in(out) == ROWS
    assert "00000" not in top(out)


@pytest.mark.parametrize("winner", [0, 1])
def test_of_two_attempts_at_once_the_one_whose_result_spark_took_counts(out, winner):
    def run_all(attempt):
        results = {}

        def slow_rows():
            yield from SHARES[0][:3]
            results[1] = attempt(0)
            yield from SHARES[0][3:]

        results[0] = attempt(0, slow_rows())
        assert results == {0: [(0, "00000")], 1: [(0, "00000-1")]}
        return [*results[winner], *(result for partition in range(1, 4) for result in attempt(partition))]

    dataframe_to_mds(Frame(SHARES, run_all), mds_kwargs={"out": out})
    assert rows_in(out) == ROWS
    assert len([name for name in top(out) if name.startswith("00000")]) == 1


def test_an_attempt_that_still_writes_at_the_end_can_commit_nothing(out, where):
    begun, go_on, raised = threading.Event(), threading.Event(), []

    def run_all(attempt):
        def slow_rows():
            yield from SHARES[0][:3]
            begun.set()
            assert go_on.wait(30)
            yield from SHARES[0][3:]

        def slow_attempt():
            try:
                attempt(0, slow_rows())
            except Exception as error:
                raised.append(error)

        threads.append(threading.Thread(target=slow_attempt))
        threads[0].start()
        assert begun.wait(30)
        return [result for partition in range(4) for result in attempt(partition)]

    threads = []
    dataframe_to_mds(Frame(SHARES, run_all), mds_kwargs={"out": out})
    there = files(out)
    go_on.set()
    threads[0].join(30)
    assert [type(error) for error in raised] == [LeaseLostError]
    left = files(out).keys() - there.keys()
    assert files(out) == there if where == "directory" else "00000/index.json" not in left  # a shard may still come
    assert rows_in(out) == ROWS


def test_a_task_that_starts_behind_the_end_is_refused_and_leaves_nothing(out):
    late = []

    def run_all(attempt):
        late.append(attempt)
        return [result for partition in range(4) for result in attempt(partition)]

    dataframe_to_mds(Frame(SHARES, run_all), mds_kwargs={"out": out})
    there = files(out)
    with pytest.raises(UnfinishedDatasetError, match="has ended"):
        late[0](1)
    assert files(out) == there


def test_two_results_of_one_partition_are_refused(out):
    with pytest.raises(UnfinishedDatasetError, match="two results of partition 0"):
        dataframe_to_mds(Frame(SHARES, lambda attempt: attempt(0) + attempt(0)), mds_kwargs={"out": out})
    assert files(out) == {}


def test_a_part_that_the_driver_does_not_see_is_an_error(out):
    with pytest.raises(UnfinishedDatasetError, match=r"00009.*all its workers reach"):
        dataframe_to_mds(Frame(SHARES, lambda attempt: [(9, "00009")]), mds_kwargs={"out": out})


def test_a_job_that_fails_leaves_nothing_and_runs_again(out):
    rows = [*ROWS[:4], {"id": None, "text": "no number"}]
    with pytest.raises(FieldError, match=r"sample 1, field 'id'"):
        dataframe_to_mds(Frame([ROWS[:3], [ROWS[3], rows[4]]]), mds_kwargs={"out": out})
    assert files(out) == {}
    dataframe_to_mds(Frame(SHARES), mds_kwargs={"out": out})
    assert rows_in(out) == ROWS


def test_what_a_driver_that_was_killed_left_is_replaced(out, monkeypatch):
    def killed(attempt):
        attempt(0, ROWS[7:])
        attempt(2, ROWS[7:])
        raise SystemExit

    with monkeypatch.context() as patch:
        patch.setattr(Run, "__exit__", lambda self, *_: self._owned.release())  # as a successor treats a dead one's
        with pytest.raises(SystemExit):
            dataframe_to_mds(Frame(SHARES, killed), mds_kwargs={"out": out})
    assert (out / "00002" / "index.json").exists()
    dataframe_to_mds(Frame(SHARES), mds_kwargs={"out": out})
    assert rows_in(out) == ROWS
    assert "00002" not in top(out)


def test_a_dataset_that_is_there_is_refused_or_replaced(out):
    dataframe_to_mds(Frame(SHARES), mds_kwargs={"out": out})
    (out / "notes.txt").write_text("mine")
    there = files(out)
    with pytest.raises(ExistingOutputError, match="exist_ok=True"):
        dataframe_to_mds(Frame([ROWS[:2]]), mds_kwargs={"out": out})
    assert files(out) == there
    dataframe_to_mds(Frame([ROWS[:2]]), mds_kwargs={"out": out, "exist_ok": True})
    assert rows_in(out) == ROWS[:2]
    assert top(out) == ["00000", "index.json", "notes.txt"]


def test_other_files_are_refused(out):
    out.mkdir()
    (out / "notes.txt").write_text("mine")
    with pytest.raises(ExistingOutputError, match=r"notes\.txt"):
        dataframe_to_mds(Frame(SHARES), mds_kwargs={"out": out})
    assert files(out) == {"notes.txt": b"mine"}


def test_a_dataset_of_another_kind_is_refused(out):
    with StreamStorage(out, StreamArrayFormat("<u2")).sync_writer() as writer:
        writer.append(0, [1, 2])
    with pytest.raises(ExistingOutputError, match="another kind"):
        dataframe_to_mds(Frame(SHARES), mds_kwargs={"out": out, "exist_ok": True})


def test_a_second_writer_in_the_same_place_is_refused(out):
    def run_all(attempt):
        with pytest.raises(ShardOwnedError):
            dataframe_to_mds(Frame(SHARES), mds_kwargs={"out": out})
        with pytest.raises(ShardOwnedError):
            MDSWriter(out=out, columns={"id": "int"}, exist_ok=True)
        return [result for partition in range(4) for result in attempt(partition)]

    dataframe_to_mds(Frame(SHARES, run_all), mds_kwargs={"out": out})
    assert rows_in(out) == ROWS


def test_until_the_index_is_there_no_dataset_is(out):
    def run_all(attempt):
        results = [result for partition in range(4) for result in attempt(partition)]
        with pytest.raises(UnfinishedDatasetError):
            len(SampleDataset(out))
        return results

    dataframe_to_mds(Frame(SHARES, run_all), mds_kwargs={"out": out})


def test_parts_can_be_left_unmerged(out, where):
    dataframe_to_mds(Frame(SHARES), merge_index=False, mds_kwargs={"out": out})
    assert top(out) == ["00000", "00001", "00003"]
    assert rows_in(out / "00003") == ROWS[5:]
    merge_index(out if where == "directory" else FlatFolder(out))
    assert rows_in(out) == ROWS


def test_a_pair_writes_to_the_remote_and_keeps_local_if_told_so(tmp_path):
    local, remote = tmp_path / "local", tmp_path / "remote"
    given = {"out": (str(local), str(remote))}
    assert dataframe_to_mds(Frame(SHARES), mds_kwargs=given) == (str(local), str(remote))
    assert not local.exists()
    dataframe_to_mds(Frame(SHARES), mds_kwargs={**given, "keep_local": True, "exist_ok": True})
    assert files(local) == files(remote)
    assert rows_in(local) == ROWS


def test_mds_kwargs_are_the_writers_and_stay_as_they_are(out):
    given = {"out": out, "compression": None, "hashes": None, "size_limit": 100, "max_workers": 1, "progress_bar": True}
    kept = dict(given)
    dataframe_to_mds(Frame(SHARES), mds_kwargs=given)
    assert given == kept
    assert (out / "00003" / "shard.00001.mds").exists()


def test_the_columns_named_are_those_written_with_their_encodings(out):
    dataframe_to_mds(Frame(SHARES), mds_kwargs={"out": out, "columns": {"id": "str_int"}})
    assert list(SampleDataset(out)) == [{"id": row["id"]} for row in ROWS]


def test_a_column_of_any_name_is_found(out):
    rows = [{"a.b": 1, "c`d": "x"}]
    dataframe_to_mds(Frame([rows]), mds_kwargs={"out": out})
    assert rows_in(out) == rows


@pytest.mark.parametrize(
    ("given", "encoding"),
    [
        (Type("byte"), "int8"),  # Spark's bytes and shorts have signs
        (Type("short"), "int16"),
        (Type("integer"), "int32"),
        (Type("long"), "int64"),
        (Type("float"), "float32"),
        (Type("double"), "float64"),
        (Type("decimal"), "str_decimal"),
        (Type("string"), "str"),
        (Type("binary"), "bytes"),
        (Type("boolean"), "json"),
        (Type("array", Type("short")), "ndarray:int16"),
        (Type("array", Type("string")), "json"),
        (Type("struct", fields=[Type("long"), Type("string")]), "json"),
    ],
    ids=lambda given: given.typeName() if isinstance(given, Type) else given,
)
def test_columns_follow_from_the_schema(given, encoding):
    from headrace.integrations.spark import _columns

    assert _columns(Frame([[{"x": 1}]], fields=[("x", given)]), None) == {"x": encoding}


@pytest.mark.parametrize("given", [Type("timestamp"), Type("date"), Type("struct", fields=[Type("binary")])])
def test_a_type_that_has_no_encoding_is_refused_with_its_column(out, given):
    with pytest.raises(OptionError, match=r"when: (timestamp|date|struct).*cast it in Spark"):
        dataframe_to_mds(Frame([[{"when": 1}]], fields=[("when", given)]), mds_kwargs={"out": out})
    assert not out.exists()


def test_arrays_are_brought_into_the_type_of_their_column_by_value(out):
    frame = Frame([[{"tokens": [1, 2]}, {"tokens": [65535]}]])
    dataframe_to_mds(frame, mds_kwargs={"out": out, "columns": {"tokens": "ndarray:uint16"}})
    assert [row["tokens"].tolist() for row in SampleDataset(out)] == [[1, 2], [65535]]
    with pytest.raises(FieldError, match="'tokens'"):
        dataframe_to_mds(
            Frame([[{"tokens": [65536]}]]),
            mds_kwargs={"out": out, "columns": {"tokens": "ndarray:uint16"}, "exist_ok": True},
        )


def test_a_null_is_refused_and_never_becomes_a_number(out):
    with pytest.raises(FieldError, match="'id'"):
        dataframe_to_mds(Frame([[{"id": None}]], schema=pa.schema([("id", pa.int64())])), mds_kwargs={"out": out})
    big = [{"id": (1 << 53) + 1}, {"id": None}]  # which pandas holds as floats
    columns = {"id": "json"}
    dataframe_to_mds(Frame([big]), mds_kwargs={"out": out, "columns": columns})
    assert list(SampleDataset(out)) == big


def tripled(frame, times, add=0):
    for number in frame["id"]:
        for _ in range(times):
            yield {"number": int(number) + add}


def test_a_function_makes_samples_of_batches_of_rows(out):
    dataframe_to_mds(
        Frame(SHARES),
        mds_kwargs={"out": out, "columns": {"number": "int"}},
        udf_iterable=tripled,
        udf_kwargs={"times": 3, "add": 5},
    )
    assert [row["number"] for row in SampleDataset(out)] == [row["id"] + 5 for row in ROWS for _ in range(3)]


def test_a_function_that_gives_nothing_leaves_nothing(out):
    with pytest.raises(InputError, match="no samples"):
        dataframe_to_mds(
            Frame(SHARES),
            mds_kwargs={"out": out, "columns": {"number": "int"}},
            udf_iterable=tripled,
            udf_kwargs={"times": 0},
        )
    assert files(out) == {}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"mds_kwargs": None}, "out in it"),
        ({"mds_kwargs": {"columns": {"id": "int"}}}, "out in it"),
        ({"mds_kwargs": {"out": "x", "resume": True}}, "resume"),
        ({"mds_kwargs": {"out": "x", "exist_ok": 1}}, "exist_ok"),
        ({"mds_kwargs": {"out": "x", "columns": {"nowhere": "int"}}}, "id, text"),
        ({"mds_kwargs": {"out": "x", "colums": {}}}, "colums"),
        ({"mds_kwargs": {"out": "x", "compression": "zip"}}, "zip"),
        ({"mds_kwargs": {"out": ("x", "x/y"), "keep_local": True}}, "inside"),
        ({"mds_kwargs": {"out": MemoryStore()}}, "memory"),
        ({"mds_kwargs": {"out": "x"}, "udf_iterable": tripled}, "columns in it"),
        ({"mds_kwargs": {"out": "x"}, "merge_index": "no"}, "merge_index"),
    ],
)
def test_arguments_that_mean_nothing_are_refused_before_anything_is_written(given, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(OptionError, match=message):
        dataframe_to_mds(Frame(SHARES), **given)
    assert list(tmp_path.iterdir()) == []


def test_what_is_no_dataframe_is_refused():
    with pytest.raises(TypeError, match="NoneType"):
        dataframe_to_mds(None, mds_kwargs={"out": "x"})
