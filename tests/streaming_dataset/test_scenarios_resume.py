"""Scenarios from bug reports of comparable tools: runs of StreamingDataset that stop and go on in another process, with
other ranks, over moved or other data.

test_dataset.py and test_torchdata.py have states of the dataset itself; tests/distributed a job that is killed.
"""

import json
import pickle
import shutil
from itertools import islice
from pathlib import Path

import pytest
import torch

from headrace import StatefulDataLoader, StateMismatchError, Stream, StreamingDataLoader, StreamingDataset
from headrace.errors import ClosedError, OrderError
from loading import jobs
from loading.samples import flat
from streaming_dataset.scenes import Job
from streaming_dataset.written import numbers_of, streams, write_numbers, write_streams

WORKERS = {
    "alone": {},
    "workers": {"num_workers": 3, "prefetch_factor": 4, "multiprocessing_context": "fork"},
    "kept": {"num_workers": 2, "multiprocessing_context": "fork", "persistent_workers": True},
}
pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """One stream of 103 numbers; and a mixture of three, of which an epoch has 96 rows."""
    folder = tmp_path_factory.mktemp("data")
    write_numbers(folder / "one", range(103))
    write_streams(folder / "mixed")
    return folder


def job_of(kind, folder, *, world_size=1, size=8, state=None, workers="alone", **loading):
    """A Job over what `kind` names: of "one", or of the "mixed" streams, or "some" 60 rows an epoch of the one."""
    folder = Path(folder)

    def make(**world):
        options = {"shuffle": True, "shuffle_seed": 5, **world}
        if kind == "mixed":
            folders = [folder / "mixed" / name for name in "abc"]
            return StreamingDataset(streams=streams(folders, choose=[30, 20, 46]), **options)
        return StreamingDataset(local=folder / "one", epoch_size=60 if kind == "some" else None, **options)

    return Job(make, world_size, size, state, **WORKERS[workers], **loading)


def run(**task):
    """{kind, folder, ..., steps or epochs} -> {batches, state}; a state comes as JSON, or as what torch.save wrote."""
    return jobs.run(job_of, **task)


def in_a_new_process(tasks):
    """run() of each of them, in a fresh interpreter."""
    return jobs.in_a_new_process("streaming_dataset.test_scenarios_resume", tasks)


def in_this_process(tasks):
    """The same here, where nothing of the state's run is left but the modules."""
    return json.loads(json.dumps([run(**task) for task in json.loads(json.dumps(tasks))]))


WHERE = pytest.mark.parametrize("where", [in_this_process, pytest.param(in_a_new_process, marks=pytest.mark.slow)])


def first_steps(kind, folder, steps, **options):
    """The global batches of an undisturbed run."""
    job = job_of(kind, folder, **options)
    batches = job.run(steps)
    job.close()
    return batches


# O36: a chain of resumes with the same ranks


@pytest.mark.slow  # test_loader_resume.py has one such run among the fast ones
@pytest.mark.parametrize(
    ("kind", "workers", "every"),
    [("one", "alone", 1), ("mixed", "alone", 1), ("one", "workers", 5), ("mixed", "kept", 5)],
)
def test_from_every_batch_on_a_new_process_reads_what_was_left_of_two_epochs(kind, workers, every, data, tmp_path):
    options = {"kind": kind, "folder": str(data), "world_size": 2, "workers": workers}
    job = job_of(**options)
    steps = 2 * len(job.loaders[0])
    whole = first_steps(steps=steps, **{**options, "workers": "alone"})
    tasks = []
    for done in range(steps):
        if done % every == 0 or done in (1, steps // 2 - 1, steps // 2):
            state, path = job.state(), tmp_path / f"{done}.pt"
            if done % 2:
                torch.save(state, path)
            tasks.append(
                {**options, "steps": steps - done, **({"state_file": str(path)} if done % 2 else {"state": state})}
            )
        assert job.run(1) == whole[done : done + 1]
    job.close()
    for task, found in zip(tasks, in_a_new_process(tasks), strict=True):
        assert found["batches"] == whole[steps - task["steps"] :], task


@WHERE
@pytest.mark.parametrize("workers", ["alone", pytest.param("workers", marks=pytest.mark.slow)])
def test_a_chain_of_resumes_continues_one_run_even_where_one_reads_nothing(workers, where, data):
    options = [
        {"kind": kind, "folder": str(data), "world_size": 2, "workers": workers} for kind in ("one", "mixed", "some")
    ]
    got, states = [[] for _ in options], [None for _ in options]
    for steps in (3, 2, 0, 4):
        tasks = [{**one, "state": state, "steps": steps} for one, state in zip(options, states, strict=True)]
        found = where(tasks)
        got = [before + one["batches"] for before, one in zip(got, found, strict=True)]
        states = [one["state"] for one in found]
    assert got == [first_steps(steps=9, **{**one, "workers": "alone"}) for one in options]


def test_a_state_counts_batches_that_were_handed_out_and_none_that_were_only_read(data):
    job = job_of("one", data, workers="workers")
    for steps in range(1, 14):
        job.run(1)
        state = job.state()
        assert (state["epoch"], state["position"]) == ((0, 8 * steps) if steps < 13 else (1, 0))
    job.close()


def test_a_state_that_is_loaded_in_the_middle_ends_what_was_begun(data):
    whole = first_steps("one", data, 13)
    for workers in ("alone", "workers"):
        job = job_of("one", data, workers=workers)
        (loader,) = job.loaders
        batches = iter(loader)
        state = None
        for step in range(5):
            next(batches)
            state = state or (step == 1 and job.state()) or None
        loader.load_state_dict(state)
        with pytest.raises(ClosedError):
            next(batches)
        assert [numbers_of([batch]) for batch in loader] == whole[2:]
        job.close()


# O37: around the end of an epoch


@WHERE
@pytest.mark.parametrize(
    "workers", ["alone", *(pytest.param(some, marks=pytest.mark.slow) for some in ("workers", "kept"))]
)
def test_around_the_end_of_an_epoch_a_resume_skips_and_repeats_none(workers, where, data):
    tasks, expected = [], []
    for kind in ("mixed", "one", "some"):
        options = {"kind": kind, "folder": str(data), "workers": workers}
        reference = job_of(kind, data)
        epochs = [reference.epoch() for _ in range(4)]
        per_epoch = len(epochs[0])
        assert {len(epoch) for epoch in epochs} == {per_epoch}
        for stop in (per_epoch - 1, per_epoch, "exhausted", per_epoch + 2):
            job = job_of(**options)
            done = len(job.epoch()) if stop == "exhausted" else len(job.run(stop))
            tasks.append({**options, "state": job.state(), "epochs": 4 - done // per_epoch})
            expected.append([epochs[done // per_epoch][done % per_epoch :], *epochs[1 + done // per_epoch :]])
            job.close()
    for task, found, rest in zip(tasks, where(tasks), expected, strict=True):
        assert found["batches"] == rest, task
        assert (found["state"]["epoch"], found["state"]["position"]) == (4, 0)


# O38: other numbers of ranks


@WHERE
def test_four_then_two_then_eight_ranks_continue_one_run(where, data):
    options = [{"kind": kind, "folder": str(data)} for kind in ("one", "mixed", "some")]
    expected = [flat(first_steps(steps=24, **one)) for one in options]
    got, states = [[] for _ in options], [None for _ in options]
    for world_size, steps, workers in ((4, 5, "alone"), (2, 3, "workers"), (8, 4, "alone")):
        tasks = [
            {**one, "state": state, "world_size": world_size, "steps": steps, "workers": workers}
            for one, state in zip(options, states, strict=True)
        ]
        found = where(tasks)
        got = [before + flat(one["batches"]) for before, one in zip(got, found, strict=True)]
        states = [one["state"] for one in found]
    for one, rows, whole, state in zip(options, got, expected, states, strict=True):
        assert rows == whole[: len(rows)]
        # Another global batch goes on from the row that was reached, with three ranks too.
        job = job_of(**one, world_size=3, size=12, state=state)
        others = flat(job.run(2))
        assert len(others) > 12  # an epoch may end within
        assert others == whole[len(rows) : len(rows) + len(others)]
        # The same record in the dataset itself, and in a loader over its view.
        (dataset,) = (loader.dataset for loader in job_of(**one).loaders)
        dataset.load_state_dict(state)
        rest = numbers_of(dataset)
        assert rest[:20] == whole[len(rows) : len(rows) + 20][: len(rest)]
        with StatefulDataLoader(dataset.as_view(), local_batch_size=4, rank=0, world_size=1, drop_last=False) as loader:
            loader.load_state_dict(state)
            assert numbers_of(islice(loader, 1)) == whole[len(rows) : len(rows) + 4]


def test_batches_made_of_streams_go_on_with_other_ranks_and_those_of_one_a_device_only_with_as_many(data):
    def make(rank, world_size, batch_size=4, method="device_per_stream"):
        folders = [data / "mixed" / name for name in "abc"]
        options = {"batching_method": method, "batch_size": batch_size, "shuffle": True}
        return StreamingDataset(streams=streams(folders), **options, rank=rank, world_size=world_size)

    job = Job(make, 2, 8)
    whole = job.run(6)
    other = Job(make, 2, 8)
    other.run(2)
    again = Job(make, 2, 8, other.state())
    assert again.run(4) == whole[2:]
    with pytest.raises(StateMismatchError, match="devices"):
        Job(lambda **world: make(**world, batch_size=2), 4, 8, other.state())
    for method in ("per_stream", "stratified"):

        def made(rank, world_size, method=method):
            return make(rank, world_size, 8 // world_size, method)

        whole = Job(made, 2, 8).run(15)  # an epoch has 11 of them
        stopped = Job(made, 2, 8)
        for done, more in ((2, 2), (11, 9)):
            stopped.run(more)
            for ranks in (1, 4):
                assert Job(made, ranks, 8, stopped.state()).run(15 - done) == whole[done:]


def test_ranks_that_cannot_share_a_batch_are_told_before_the_first(data):
    with pytest.raises(OrderError, match="replication=3 does not divide the 4 ranks"):
        StreamingDataset(local=data / "one", rank=0, world_size=4, replication=3)


# O39: moved data, and other data


@WHERE
def test_moved_data_and_other_caches_continue_exactly(where, data, tmp_path):
    shutil.copytree(data, tmp_path / "here")
    states = {}
    for kind in ("one", "mixed"):
        job = job_of(kind, tmp_path / "here")
        job.run(5)
        states[kind] = job.state()
        job.close()
    shutil.move(tmp_path / "here", tmp_path / "elsewhere")
    tasks = [
        {"kind": kind, "folder": str(tmp_path / "elsewhere"), "state": state, "steps": 7}
        for kind, state in states.items()
    ]
    for task, found in zip(tasks, where(tasks), strict=True):
        assert found["batches"] == first_steps(task["kind"], data, 12)[5:]
    for cache in ("a", "b"):
        dataset = StreamingDataset(
            remote=tmp_path / "elsewhere" / "one", local=tmp_path / cache, shuffle=True, shuffle_seed=5
        )
        with StreamingDataLoader(dataset, batch_size=8) as loader:
            loader.load_state_dict(states["one"])
            assert numbers_of(loader) == flat(first_steps("one", data, 13)[5:])


def test_other_data_and_other_weights_are_refused_with_both_fingerprints(data, tmp_path):
    job = job_of("one", data)
    job.run(5)
    state = job.state()
    shorter = write_numbers(tmp_path / "shorter", range(50))
    hashes = {"hashes": ["xxh3_64"]}
    original = write_numbers(tmp_path / "original", range(103), **hashes)
    rewritten = write_numbers(tmp_path / "rewritten", [*range(99), 1000, *range(100, 103)], **hashes)
    options = {"shuffle": True, "shuffle_seed": 5}
    with_digests = StreamingDataset(local=original, **options).state_dict(40)
    added = StreamingDataset(streams=[Stream(local=data / "one"), Stream(local=shorter)], **options)
    weighed = StreamingDataset(streams=[Stream(local=data / "one", repeat=2)], **options)
    cases = [
        (state, StreamingDataset(local=shorter, **options), "data"),
        (with_digests, StreamingDataset(local=rewritten, **options), "data"),
        (state, added, "streams"),
        (state, weighed, "chosen"),
    ]
    for saved, dataset, name in cases:
        with pytest.raises(StateMismatchError) as refused:
            dataset.load_state_dict(saved)
        assert name in refused.value.differences
        for before, now in refused.value.differences.values():
            assert before != now
            assert str(before) in str(refused.value)
            assert str(now) in str(refused.value)
        loader = StreamingDataLoader(dataset, batch_size=8)
        with pytest.raises(StateMismatchError):
            loader.load_state_dict(saved)
        assert loader.state_dict()["position"] == dataset.next_epoch == 0  # a refused state changes nothing
    StreamingDataset(local=original, **options).load_state_dict(with_digests)


def test_what_a_state_is_not_about_may_be_another(data):
    options = {"shuffle": True, "shuffle_seed": 5}
    state = StreamingDataset(local=data / "one", **options).state_dict(40)
    expected = numbers_of(StreamingDataset(local=data / "one", **options))[40:]
    for other in (
        {"predownload": 3, "cache_limit": 0},
        {"download_retry": 7, "download_timeout": 3.0, "keep_zip": True},
        {"batch_size": 5, "num_canonical_nodes": 1, "partition_algo": "orig", "sampling_granularity": 4},
        {"shuffle_algo": "py1s"},  # the same shuffle here
    ):
        dataset = StreamingDataset(local=data / "one", **options, **other)
        dataset.load_state_dict(state)
        assert numbers_of(pickle.loads(pickle.dumps(dataset))) == expected
        assert numbers_of(dataset) == expected
