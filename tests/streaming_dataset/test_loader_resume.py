"""States of a StreamingDataLoader: taken anywhere, loaded with any number of ranks and workers, in new processes."""

import json
from functools import partial
from pathlib import Path

import pytest
import torch

from headrace import StatefulDataLoader, StateMismatchError, StreamingDataLoader, StreamingDataset
from headrace.errors import ClosedError, StateError
from loading import jobs
from streaming_dataset.scenes import Ranks, ids, merged, streams

in_a_new_process = partial(jobs.in_a_new_process, "streaming_dataset.test_loader_resume")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("streams")


def dataset_of(folder, counts=(50, 30, 23), **options):
    options.setdefault("shuffle", True)
    return partial(streams, folder, list(counts), **options)


def run(folder, counts, state, steps, world_size, batch_size, workers=0):
    """What ranks get in so many steps from the state on, and their states then."""
    with Ranks(dataset_of(Path(folder), counts), world_size, batch_size, num_workers=workers) as ranks:
        if state is not None:
            ranks.load(state)
        got = []
        while len(got) < steps:
            got += ranks.epoch(steps - len(got))
        return {"steps": got, "states": ranks.states()}


def reference(dataset, world_size, batch_size, steps):
    """The first steps of an undisturbed run, and the state before and behind each."""
    with Ranks(dataset, world_size, batch_size) as ranks:
        got, states = [], [ranks.states()[0]]
        while len(got) < steps:
            for batches in zip(*ranks.loaders, strict=True):
                got.append([batch["id"].tolist() for batch in batches])
                assert ranks.states() == [ranks.states()[0]] * world_size
                states.append(json.loads(json.dumps(ranks.states()[0])))
    return got[:steps], states[: steps + 1]


def test_from_every_batch_of_two_epochs_a_new_process_reads_what_was_left(folder):
    got, states = reference(dataset_of(folder), 2, 4, 26)
    tasks = [
        {
            "folder": str(folder),
            "counts": [50, 30, 23],
            "state": state,
            "steps": 26 - done,
            "world_size": 2,
            "batch_size": 4,
        }
        for done, state in enumerate(states[:-1])
    ]
    tasks += [{**tasks[done], "workers": 3} for done in (0, 5, 12, 13)]
    found = in_a_new_process(tasks)
    for task, one in zip(tasks, found, strict=True):
        assert one["steps"] == got[26 - task["steps"] :]


@pytest.mark.slow
def test_a_chain_of_new_processes_is_one_run_even_where_one_reads_nothing(folder):
    got, state = [], None
    for steps, world_size, workers in ((3, 2, 0), (2, 2, 3), (0, 2, 0), (4, 1, 0), (9, 4, 0)):
        task = {"folder": str(folder), "counts": [50, 30, 23], "state": state, "steps": steps}
        (found,) = in_a_new_process(
            [{**task, "world_size": world_size, "batch_size": 8 // world_size, "workers": workers}]
        )
        got += [merged(step) for step in found["steps"]]
        state = found["states"][0]
    expected, states = reference(dataset_of(folder), 2, 4, 18)
    assert got == [merged(step) for step in expected]
    assert state == states[18]


@pytest.mark.parametrize("persistent_workers", [False, True])
@pytest.mark.parametrize("choose", [None, 60], ids=["whole epochs", "60 of 100"])
def test_around_the_end_of_an_epoch_none_is_skipped_repeated_or_empty(folder, choose, persistent_workers):
    make = dataset_of(folder, (60, 40), epoch_size=choose)
    options = {"num_workers": 2, "persistent_workers": True} if persistent_workers else {}
    alone = StreamingDataLoader(make(), 8)
    epochs = [ids(alone) for _ in range(4)]
    steps = len(epochs[0])
    loader = StreamingDataLoader(make(), 8)
    batches = iter(loader)
    for _ in range(steps - 1):
        next(batches)
    before_last = loader.state_dict()
    next(batches)
    after_last = loader.state_dict()
    assert next(batches, None) is None
    at_end = loader.state_dict()
    assert after_last == at_end
    assert (at_end["epoch"], at_end["position"]) == (1, 0)
    ids(loader, 2)
    in_second = loader.state_dict()
    for state, left in (
        (before_last, [epochs[0][-1:], *epochs[1:]]),
        (after_last, epochs[1:]),
        (in_second, [epochs[1][2:], *epochs[2:]]),
    ):
        with StreamingDataLoader(make(), 8, **options) as resumed:
            resumed.load_state_dict(state)
            assert [ids(resumed) for _ in left] == left
            resumed.load_state_dict(state)  # an older state is obeyed as well
            assert ids(resumed) == left[0]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_state_loaded_while_an_iterator_lives_takes_effect_and_ends_that_iterator(folder, workers):
    make = dataset_of(folder)
    with StreamingDataLoader(make(), 8, num_workers=workers, persistent_workers=workers > 0) as loader:
        expected = ids(loader)
        state = StreamingDataLoader(make(), 8).state_dict()
        batches = iter(loader)
        next(batches)
        loader.load_state_dict(state)
        assert loader.state_dict() == state
        with pytest.raises(ClosedError, match="load_state_dict"):
            next(batches)
        assert ids(loader) == expected


def test_after_a_resume_the_first_broken_loop_starts_its_epoch_over(folder):
    make = dataset_of(folder)
    loader = StreamingDataLoader(make(), 8)
    expected = ids(loader)
    resumed = StreamingDataLoader(make(), 8)
    ids(resumed, 5)
    state = resumed.state_dict()
    loader.load_state_dict(state)
    iter(loader)  # which got nothing
    assert ids(loader, 2) == expected[5:7]
    assert ids(loader) == expected


def test_other_numbers_of_ranks_go_on_with_the_same_global_batches(folder):
    make = dataset_of(folder, (96,))
    expected, _ = reference(make, 1, 8, 12)
    expected = [merged(step) for step in expected]
    got, state = [], None
    for world_size, steps in ((4, 5), (2, 3), (8, None)):
        with Ranks(make, world_size, 8 // world_size) as ranks:
            if state is not None:
                ranks.load(state)
            got += [merged(step) for step in ranks.epoch(steps)]
            state = ranks.states()[0]
    assert got == expected
    with Ranks(make, 3, 2) as ranks:  # another global batch: the order goes on from the position
        one = StreamingDataLoader(make(), 8)
        ids(one, 5)
        ranks.load(one.state_dict())
        rows = [row for step in ranks.epoch() for row in merged(step)]
    assert rows == [row for step in expected[5:] for row in step]


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"shuffle_seed": 1}, "seed"),
        ({"shuffle": False}, "shuffle"),
        ({"shuffle_algo": "global"}, "shuffle"),
        ({"epoch_size": 100}, "chosen"),
        ({"counts": (50, 30, 24)}, "data"),
    ],
    ids=str,
)
def test_what_would_be_another_order_is_refused_by_name_and_changes_nothing(folder, options, named):
    loader = StreamingDataLoader(dataset_of(folder)(), 8)
    ids(loader, 3)
    other = StreamingDataLoader(dataset_of(folder, **options)(), 8)
    expected = StreamingDataLoader(dataset_of(folder, **options)(), 8)
    with pytest.raises(StateMismatchError, match=named):
        other.load_state_dict(loader.state_dict())
    assert ids(other) == ids(expected)


def test_what_changes_which_rows_are_left_out_is_refused(folder):
    loader = StreamingDataLoader(dataset_of(folder)(), 8, drop_last=True)
    with pytest.raises(StateMismatchError, match="drop_last"):
        StreamingDataLoader(dataset_of(folder)(), 8).load_state_dict(loader.state_dict())


@pytest.mark.parametrize("state", [7, {}, {"version": 2}, [], "state"], ids=str)
def test_what_is_no_state_is_refused(folder, state):
    with pytest.raises(StateError):
        StreamingDataLoader(dataset_of(folder)(), 8).load_state_dict(state)


def test_workers_prefetch_files_and_batch_are_no_part_of_a_state(folder, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    loader = StreamingDataLoader(dataset_of(folder)(), 8)
    ids(loader, 4)
    other = StreamingDataLoader(dataset_of(tmp_path / "elsewhere")(), 4, num_workers=2, prefetch_factor=4)
    with other:
        other.load_state_dict(loader.state_dict())
        assert [row for batch in ids(other) for row in batch] == [
            row for batch in reference(dataset_of(folder), 1, 8, 13)[0][4:] for row in merged(batch)
        ]


def test_the_same_state_goes_on_in_the_dataset_and_in_headraces_own_loader(folder):
    make = dataset_of(folder, batch_size=8)
    loader = StreamingDataLoader(make())
    expected = [row for batch in ids(loader) for row in batch]
    ids(loader, 0)
    loader = StreamingDataLoader(make())
    ids(loader, 5)
    state = loader.state_dict()
    dataset = make()
    dataset.load_state_dict(state)
    assert [sample["id"] for sample in dataset] == expected[40:]
    own = StatefulDataLoader(make().as_view(), local_batch_size=8, drop_last=False)
    own.load_state_dict(state)
    assert [row for batch in own for row in batch["id"].tolist()] == expected[40:]
    back = make()
    back.load_state_dict(own.state_dict())
    assert back.next_epoch == 1


def test_a_state_survives_torch_save(folder, tmp_path):
    loader = StreamingDataLoader(dataset_of(folder)(), 8)
    ids(loader, 4)
    torch.save(loader.state_dict(), tmp_path / "state.pt")
    assert torch.load(tmp_path / "state.pt", weights_only=True) == loader.state_dict()


def test_ten_million_batches_in_a_state_is_taken_in_microseconds(folder):
    dataset = StreamingDataset(local=str(folder / "stream 0 of [50, 30, 23]"), epoch_size=10**12, shuffle=True)
    loader = StreamingDataLoader(dataset, 8)
    state = loader.state_dict()
    loader.load_state_dict({**state, "position": 8 * 10**10})
    assert ids(loader, 1)
    assert loader.state_dict()["position"] == 8 * 10**10 + 8
