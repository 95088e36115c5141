"""Runs of every kind of dataset that stop and go on in another process, with other ranks, over moved or other data.

test_state.py has what a state is, over plain numbers; here are the datasets and compositions that people train on.
"""

import json
import shutil

import pytest
import torch

from headrace import PackedDataset, ShuffledDataset, StateMismatchError
from headrace.errors import OrderError
from loading.samples import make
from loading.scenarios import CASES, Job, as_rows, flat, in_a_new_process, loader

KINDS = [name for name in CASES if name != "slow"]


def first_steps(case, folder, count, steps, **options):
    """The global batches of an undisturbed run."""
    job = Job(case, folder, count, **options)
    batches = job.run(steps)
    job.close()
    return batches


def size_of(case, size):
    return None if CASES[case].batches else size


def options_of(case, folder, count, size, **options):
    return {"case": case, "folder": str(folder), "count": count, "size": size_of(case, size), **options}


@pytest.mark.parametrize("workers", ["alone", "threads", "fork"])
def test_from_every_batch_on_a_new_process_reads_what_was_left(workers, tmp_path):
    tasks, expected = [], []
    for case in KINDS if workers != "fork" else ["samples", "packed mixture"]:  # starting processes is slow
        options = options_of(case, tmp_path, 103, 8, world_size=2, workers=workers)
        job = Job(**options)
        steps = 2 * len(job.loaders[0])
        whole = first_steps(steps=steps, **options)
        for done in range(steps):
            if (workers != "fork" and (done % 3 == 0 or steps < 30)) or done in (1, 12):
                tasks.append({**options, "steps": steps - done, **saved(job.state(), tmp_path / f"{case} {done}.pt")})
                expected.append(whole[done:])
            assert job.run(1) == whole[done : done + 1], case
        job.close()
    found = in_a_new_process(tasks)
    for task, one, rest in zip(tasks, found, expected, strict=True):
        assert one["batches"] == rest, task


def saved(state, path):
    """The state by JSON, and every other one by torch.save."""
    if state["position"] // 8 % 2:
        torch.save(state, path)
        return {"state_file": str(path)}
    return {"state": state}


def test_a_chain_of_new_processes_continues_one_run_even_where_one_reads_nothing(tmp_path):
    options = [options_of(case, tmp_path, 103, 8, world_size=2, workers="threads") for case in KINDS]
    expected = [first_steps(steps=9, **one) for one in options]
    got, states = [[] for _ in KINDS], [None for _ in KINDS]
    for steps in (3, 2, 0, 4):
        tasks = [{**one, "state": state, "steps": steps} for one, state in zip(options, states, strict=True)]
        found = in_a_new_process(tasks)
        got = [before + one["batches"] for before, one in zip(got, found, strict=True)]
        states = [one["state"] for one in found]
    assert dict(zip(KINDS, got, strict=True)) == dict(zip(KINDS, expected, strict=True))


@pytest.mark.parametrize("workers", ["alone", "threads", "kept", pytest.param("fork", marks=pytest.mark.slow)])
def test_around_the_end_of_an_epoch_another_process_skips_and_repeats_none(workers, tmp_path):
    tasks, expected = [], []
    for case in ["numbers", *(name for name in KINDS if not CASES[name].shuffle)]:
        options = options_of(case, tmp_path, 96, 8, workers=workers)
        reference = Job(**{**options, "workers": "alone"})
        epochs = [reference.epoch() for _ in range(4)]
        per_epoch = len(epochs[0])
        for stop in (per_epoch - 1, per_epoch, "exhausted", per_epoch + 2):
            job = Job(**options)
            done = len(job.epoch()) if stop == "exhausted" else len(job.run(stop))
            tasks.append({**options, "state": job.state(), "epochs": 4 - done // per_epoch})
            expected.append([epochs[done // per_epoch][done % per_epoch :], *epochs[1 + done // per_epoch :]])
            job.close()
    found = in_a_new_process(tasks)
    for task, one, rest in zip(tasks, found, expected, strict=True):
        assert one["batches"] == rest, task
        assert (one["state"]["epoch"], one["state"]["position"]) == (4, 0)


def test_four_then_two_then_eight_ranks_in_processes_of_their_own_continue_one_run(tmp_path):
    options = [options_of(case, tmp_path, 96, 8) for case in KINDS]
    expected = [flat(first_steps(steps=24 * (8 if CASES[one["case"]].batches else 1), **one)) for one in options]
    got, states = [[] for _ in KINDS], [None for _ in KINDS]
    for world_size, steps in ((4, 5), (2, 3), (8, 4)):
        tasks = []
        for one, state in zip(options, states, strict=True):
            # Where a row is a batch, each rank gets one a step.
            times = 8 // world_size if CASES[one["case"]].batches else 1
            tasks.append({**one, "state": state, "world_size": world_size, "steps": steps * times})
        found = in_a_new_process(tasks)
        got = [before + flat(one["batches"]) for before, one in zip(got, found, strict=True)]
        states = [one["state"] for one in found]
    for one, rows, whole, state in zip(options, got, expected, states, strict=True):
        assert rows == whole[: len(rows)], one
        with pytest.raises(OrderError, match=r"8.*3"):
            Job(**one, world_size=3, state=state).run(1)
        if not CASES[one["case"]].batches:
            # Another global batch goes on from the position, with three ranks too.
            job = Job(**{**one, "size": 12}, world_size=3, state=state)
            assert flat(job.run(2)) == whole[len(rows) : len(rows) + 24], one


def test_moved_data_continues_exactly(tmp_path):
    tasks, expected = [], []
    for case in KINDS:
        options = options_of(case, tmp_path / "here", 100, 8)
        expected.append(first_steps(steps=12, **options)[5:])
        job = Job(**options)
        job.run(5)
        tasks.append({**options, "folder": str(tmp_path / "elsewhere"), "state": job.state(), "steps": 7})
        job.close()
    shutil.move(tmp_path / "here", tmp_path / "elsewhere")
    found = in_a_new_process(tasks)
    assert dict(zip(KINDS, (one["batches"] for one in found), strict=True)) == dict(zip(KINDS, expected, strict=True))


def test_where_the_lengths_of_epochs_are_kept_is_no_part_of_the_run(tmp_path):
    base = ShuffledDataset(CASES["documents"].build(tmp_path / "data", 200), 3)
    expected = state = None
    for cache in (None, tmp_path / "rows.json", tmp_path / "moved.json"):
        one = make(PackedDataset(base, 16, window=40, cache=cache), as_rows, local_batch_size=4)
        if state is not None:
            one.load_state_dict(state)
        assert len(one) > 10  # counts the rows of the epoch, and keeps them
        steps = iter(one)
        if state is None:
            for _ in range(5):
                next(steps)
            state, expected = one.state_dict(), list(steps)
        else:
            assert list(steps) == expected
        if cache is not None and cache.exists():
            cache.rename(tmp_path / "moved.json")


@pytest.mark.parametrize("case", KINDS)
def test_fewer_samples_of_the_same_kind_are_refused_before_the_first_batch(case, tmp_path):
    job = Job(case, tmp_path / "whole", 100, size=size_of(case, 8))
    job.run(5)
    state = job.state()
    other = loader(case, tmp_path / "half", 50, size=size_of(case, 8))
    before = other.state_dict()
    with pytest.raises(StateMismatchError) as refused:
        other.load_state_dict(state)
    for _, (saved, current) in refused.value.differences.items():
        assert repr(saved) in str(refused.value)
        assert repr(current) in str(refused.value)
    assert other.state_dict() == before


def rewritten(case, folder):
    """The same dataset with another value in one of its shards, in a folder beside it."""
    build = {"windows": rewritten_windows, "documents": rewritten_documents, "samples": rewritten_samples}[case]
    build(folder / case)


def rewritten_windows(folder):
    from headrace import StreamNumpyFormat, StreamStorage

    tokens = StreamStorage(folder.with_name("original"), StreamNumpyFormat([("tokens", "<i4")])).dataset(1)[:]
    storage = StreamStorage(folder, StreamNumpyFormat([("tokens", "<i4")]))
    with storage.sync_writer() as writer:
        for shard, (begin, end) in enumerate([(0, 57), (57, 58), (58, 400)]):
            values = [int(tokens[number]["tokens"][0]) for number in range(begin, end)]
            writer.append(shard, {"tokens": [value + (value == 399) for value in values]})
    storage.publish()


def rewritten_documents(folder):
    from headrace import DocumentNumpyFormat, DocumentStorage

    documents = DocumentStorage(folder.with_name("original"), DocumentNumpyFormat("<i4")).dataset()
    storage = DocumentStorage(folder, DocumentNumpyFormat("<i4"))
    with storage.sync_writer() as writer:
        number = 0
        for shard, count in enumerate(documents.shard_lengths.tolist()):
            for _ in range(count):
                writer.append(shard, documents[number] + (number == 99))
                number += 1
    storage.publish()


def rewritten_samples(folder):
    from headrace import MDSWriter, SampleDataset

    originals = SampleDataset(folder.with_name("original"))
    with MDSWriter(columns={"id": "int"}, out=folder, size_limit=200, hashes=["xxh64"]) as writer:
        for sample in originals:
            writer.write({"id": sample["id"] + (sample["id"] == 99)})


@pytest.mark.parametrize("case", ["windows", "documents", "samples"])
def test_one_shard_of_the_same_size_with_other_content_is_refused_with_both_fingerprints(case, tmp_path):
    job = Job(case, tmp_path, 100, size=8)
    job.run(5)
    saved = job.state()
    job.close()
    (tmp_path / case).rename(tmp_path / "original")
    rewritten(case, tmp_path)
    other = loader(case, tmp_path, 100, size=8)
    assert len(other) == 12
    with pytest.raises(StateMismatchError) as refused:
        other.load_state_dict(json.loads(json.dumps(saved)))
    ((name, (before, now)),) = refused.value.differences.items()
    assert name == "data"
    assert before != now
    assert before in str(refused.value)
    assert now in str(refused.value)
    shutil.rmtree(tmp_path / case)
    (tmp_path / "original").rename(tmp_path / case)
    loader(case, tmp_path, 100, size=8).load_state_dict(saved)
