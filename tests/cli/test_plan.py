"""The plan of a run, as the command tells it: what the loader would serve, without reading a sample."""

import json
import os
import re
import shutil

import numpy as np
import pytest

from cli.commands import headrace as headrace_process
from cli.commands import headrace_here as headrace
from cli.commands import one_error_line
from headrace import (
    DocumentDataset,
    DocumentNumpyFormat,
    DocumentStorage,
    MDSWriter,
    MixedDataset,
    PackedDataset,
    Plan,
    ShuffledDataset,
    StreamArrayFormat,
    StreamDataset,
    StreamStorage,
    derive_seed,
)


def write_documents(folder, counts, longest=50):
    storage = DocumentStorage(folder, DocumentNumpyFormat(np.uint16))
    with storage.sync_writer() as writer:
        for shard, count in enumerate(counts):
            for number in range(count):
                writer.append(shard, np.full(1 + (number * 7 + shard) % longest, number, np.uint16))
    storage.publish()
    return folder


@pytest.fixture
def books(tmp_path):
    return write_documents(tmp_path / "books", [10, 20, 10, 20])


@pytest.fixture
def web(tmp_path):
    return write_documents(tmp_path / "web", [40] * 5)


@pytest.fixture
def tokens(tmp_path):
    storage = StreamStorage(tmp_path / "tokens", StreamArrayFormat(np.uint16))
    with storage.sync_writer() as writer:
        for shard in range(4):
            writer.append(shard, np.arange(100, dtype=np.uint16))
    storage.publish()
    return tmp_path / "tokens"


@pytest.fixture
def samples(tmp_path):
    with MDSWriter(columns={"id": "int"}, out=tmp_path / "samples") as writer:
        for number in range(12):
            writer.write({"id": number})
    return tmp_path / "samples"


def documents(folder):
    return DocumentDataset(DocumentStorage(folder, DocumentNumpyFormat(np.uint16)))


def told(*arguments):
    finished = headrace("plan", *arguments)
    assert (finished.returncode, finished.stderr) == (0, "")
    return finished.stdout.splitlines()


def ranks_told(lines):
    """What each rank gets, as the lines say: lists of (name, item)."""
    found = [line.split(": ", 1)[1] for line in lines if line.startswith("  rank ")]
    return [[(name, int(item)) for name, item in re.findall(r"([^\s\[\]]+):(\d+)", line)] for line in found]


def test_a_dataset_s_sizes_and_steps_are_told(books):
    lines = told(books, "--global-batch-size", 8, "--world-size", 2)
    assert lines == [
        "books  60 samples in 4 shards",
        "epoch 0: 60 samples, 7 steps of 8 (4 for each of 2 ranks); 4 are left over and dropped",
    ]
    assert told(books, "--global-batch-size", 8, "--no-drop-last")[1].endswith("8 steps of 8; the last step is short")


def test_a_dataset_at_a_url_is_planned_as_where_it_was_copied_from(books, http_folder, http_url):
    shutil.copytree(books, http_folder / "books")
    options = ("--global-batch-size", 8, "--step", 3)
    assert told(f"{http_url}/books/", *options) == told(books, *options)


@pytest.mark.parametrize("epoch", [0, 2])
def test_a_step_has_what_a_loader_over_the_same_shuffle_gets(books, epoch):
    sizes = ("--global-batch-size", 8, "--world-size", 2, "--seed", 5)
    lines = told(books, *sizes, "--step", 3, "--epoch", epoch)
    assert f"epoch {epoch}, step 3:" in lines
    expected = Plan(ShuffledDataset(documents(books), 5), 8, 2).samples_of_step(3, epoch)
    assert ranks_told(lines) == [[("books", item) for _, item in rank] for rank in expected]


def test_pools_and_no_shuffle_are_planned_too(books):
    pools = ("--shuffle", "pooled", "--pool-items", 9, "--lanes", 2)
    lines = told(books, *pools, "--global-batch-size", 6, "--step", 1)
    view = ShuffledDataset(documents(books), 0, "pooled", pool_items=9, lanes=2)
    assert ranks_told(lines) == [[("books", item) for _, item in Plan(view, 6).samples_of_step(1)[0]]]
    stored = told(books, "--shuffle", "none", "--global-batch-size", 6, "--step", 1)
    assert ranks_told(stored) == [[("books", item) for item in range(6, 12)]]


@pytest.mark.parametrize("weights", [None, "books=3,web=1", "3,1"])
def test_several_datasets_are_a_mixture_named_by_their_folders(books, web, weights):
    options = ("--global-batch-size", 8, "--world-size", 2, "--step", 2)
    lines = told(books, web, *options, *(() if weights is None else ("--weights", weights)))
    mixed = MixedDataset(
        {"books": documents(books), "web": documents(web)}, None if weights is None else {"books": 3, "web": 1}
    )
    assert ranks_told(lines) == [list(rank) for rank in Plan(mixed, 8, 2).samples_of_step(2)]
    assert any(re.match(r"books +\d+", line) and "%" in line for line in lines)


def test_a_mixture_of_pooled_datasets_gives_each_a_seed_of_its_own(books, web):
    lines = told(books, web, "--shuffle", "pooled", "--pool-items", 9, "--global-batch-size", 8, "--step", 2)
    sources = {
        name: ShuffledDataset(documents(folder), derive_seed(0, "source", name), "pooled", pool_items=9)
        for name, folder in (("books", books), ("web", web))
    }
    assert ranks_told(lines) == [list(Plan(MixedDataset(sources), 8).samples_of_step(2)[0])]


def test_folders_of_one_name_are_told_apart_by_their_paths(tmp_path):
    one, two = (write_documents(tmp_path / part / "data", [5]) for part in ("one", "two"))
    lines = told(one, two, "--global-batch-size", 10, "--step", 0)
    assert {name for name, _ in ranks_told(lines)[0]} == {str(one), str(two)}


def test_packed_rows_show_their_documents(books):
    lines = told(books, "--pack", 64, "--global-batch-size", 4, "--world-size", 2, "--step", 1)
    packed = PackedDataset(ShuffledDataset(documents(books), 0), 64)
    expected = Plan(packed, 4, 2).samples_of_step(1)
    assert ranks_told(lines) == [[("books", item) for row in rank for _, item in row] for rank in expected]
    assert [line.count("[") for line in lines if line.startswith("  rank")] == [2, 2]
    assert any(line.startswith("packed: 60 documents") and line.endswith("% full") for line in lines)


def test_a_sample_is_found_in_its_steps(books, web):
    options = ("--global-batch-size", 8, "--weights", "5,1")
    line = told(books, web, *options, "--seen", "books:17")[-1]
    steps = [int(step) for step in re.findall(r"\d+", line.partition("at step")[2])]
    assert len(steps) > 1
    for step in steps:
        assert ("books", 17) in ranks_told(told(books, web, *options, "--step", step))[0]
    assert told(books, "--seen", "17", "--epoch", 1)[-1].startswith("books:17 is seen in epoch 1 at step")
    assert told(books, "--seen", "books:17", "--global-batch-size", 100)[-1] == "books:17 is not seen in epoch 0"


def test_windows_of_a_stream_need_a_length_and_samples_do_not(tokens, samples):
    one_error_line(headrace("plan", tokens), tokens, "pass --sequence-length")
    assert told(tokens, "--sequence-length", 30)[0] == "tokens  13 samples in 4 shards"
    lines = told(tokens, "--sequence-length", 30, "--step", 4)
    dataset = StreamDataset(StreamStorage(tokens, StreamArrayFormat(np.uint16)), 30)
    assert ranks_told(lines) == [[("tokens", ShuffledDataset(dataset, 0).locate(np.array([4]))[0])]]
    assert told(samples)[0] == "samples  12 samples in 1 shards"


def test_quality_falls_with_larger_pools_and_fetching_rises(web):
    lines = told(web, "--quality", "--global-batch-size", 20)
    begin = next(k for k, line in enumerate(lines) if line.startswith("web: batches of 20"))
    rows = [line.split() for line in lines[begin + 2 :]]
    assert [row[0] for row in rows] == ["none", "pooled", "global"]
    distances = [float(row[-5]) for row in rows]
    assert distances == sorted(distances, reverse=True)
    assert distances[0] > 0.8
    assert distances[-1] < 0.05
    times = [float(row[-2].strip("(")) for row in rows]
    assert times[0] == 1.0 < times[-1]
    kept = told(web, "--quality", "--cache-bytes", 10**9)
    assert all(line.endswith("(1.0 x)") for line in kept[begin + 2 :])


def test_what_cannot_be_planned_is_one_line_that_says_why(books, web, samples, tmp_path):
    one_error_line(headrace("plan", books, "--step", 60), books, "step 60 is outside epoch 0, which has 60 steps")
    one_error_line(headrace("plan", books, "--seen", "books:60"), "item 60 is outside a dataset of 60 samples")
    one_error_line(headrace("plan", tmp_path / "nothing"), "there is no such directory")
    one_error_line(headrace("plan", books, "--global-batch-size", 4, "--world-size", 3), "not a multiple")
    one_error_line(headrace("plan", samples, "--pack", 64), "samples", "cannot be packed")
    one_error_line(headrace("plan", books, web, "--weights", "books=1,movies=2"), "movies")
    one_error_line(headrace("plan", books, web, "--weights", "-1,1"), "-1")


@pytest.mark.parametrize(
    "options",
    [
        ("--weights", "3"),
        ("--lanes", "2"),
        ("--pool-items", "2"),
        ("--seen", "web"),
        ("--seen", "films:3"),
        ("--seen", "books:x"),
        ("--step", "-1"),
        ("--shuffle", "some"),
    ],
)
def test_a_wrong_command_line_is_refused_as_such(books, options):
    assert headrace("plan", books, *options).returncode == 2


@pytest.mark.parametrize("weights", ["1", "1,2,3", "books=1,2", "books=1,books=2", "a,b", "nan,1", ""])
def test_weights_that_say_nothing_are_refused(books, web, weights):
    assert headrace("plan", books, web, "--weights", weights).returncode == 2


def test_a_directory_that_is_named_twice_is_refused_and_a_mixture_is_never_in_stored_order(books, web):
    assert headrace("plan", books, books).returncode == 2
    assert headrace("plan", books, web, "--shuffle", "none").returncode == 2


def test_planning_reads_no_sample_and_no_torch(books):
    for path in books.glob("*.bin"):
        if "index" not in path.name:
            path.write_bytes(b"\xff" * path.stat().st_size)
    assert told(books, "--step", 3, "--seen", "3")
    script = headrace_process("plan", books, "--step", 3)
    assert script.returncode == 0
    assert json.dumps(script.stderr) == '""'


def test_an_epoch_beyond_all_positions_is_an_error_in_one_line(books):
    for more in (("--step", 0), ("--seen", 3), ("--pack", 64)):
        one_error_line(headrace("plan", books, "--epoch", 10**30, *more), f"epoch {10**30}", "2**63")


def test_help_names_every_option_in_full_in_a_narrow_terminal():
    shown = headrace_process("plan", "--help", env={**os.environ, "COLUMNS": "80"}).stdout
    for option in ("--global-batch-size", "--sequence-length", "--no-drop-last", "global, pooled"):
        assert option in shown
    assert "<int" not in shown
