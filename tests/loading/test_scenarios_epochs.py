"""Epochs of every kind of dataset, whole: equal shares, reported lengths, few samples, and the order of each run.

test_loader.py has the grids over plain numbers; here are the datasets and compositions that people train on.
"""

import itertools

import pytest

from headrace import MixedDataset, SelectedDataset, ShuffledDataset
from headrace.errors import OrderError
from loading.samples import Numbers, Slow, epoch, make
from loading.scenarios import CASES, WORKERS, Job, as_rows, flat, ids, in_a_new_process, window_ids

KINDS = [name for name in CASES if name != "slow"]
ONE_ROW_A_SAMPLE = [name for name in KINDS if not CASES[name].repeats and not CASES[name].batches]


def epoch_of(case, folder, count, **options):
    """The global batches of an epoch, each rank's length as reported, and the state behind it."""
    job = Job(case, folder, count, **options)
    batches = job.epoch()
    lengths = {len(one) for one in Job(case, folder, count, **options).loaders}
    state = job.state()
    job.close()
    return batches, lengths, state


@pytest.mark.parametrize("drop_last", [True, False])
@pytest.mark.parametrize("case", KINDS)
def test_ranks_make_equally_many_steps_and_share_the_batches_of_one_rank_whatever_their_number(
    case, drop_last, tmp_path
):
    for count, size in [(64, 8), (101, 24)]:
        folder, expected, rows = tmp_path / str(count), None, None
        for world_size in (1, 2, 4, 8, 3)[: 4 if size == 8 else 5]:
            options = {"world_size": world_size, "size": size, "drop_last": drop_last}
            if CASES[case].batches and world_size == 3:
                with pytest.raises(OrderError, match="8 batches, which 3 ranks cannot share equally"):
                    Job(case, folder, count, **options).epoch()
                continue
            batches, lengths, state = epoch_of(case, folder, count, **options)
            assert lengths == {len(batches)}
            assert (state["epoch"], state["position"]) == (1, 0)
            if expected is None:
                expected, rows = batches, flat(batches)
            assert flat(batches) == rows
            if not CASES[case].batches:
                assert batches == expected
                assert [len(batch) for batch in batches[:-1]] == [size] * (len(batches) - 1)
                assert len(batches[-1]) == size or not drop_last
        if case in ONE_ROW_A_SAMPLE:
            seen = ids(case, expected)
            assert len(set(seen)) == len(seen) == (count // size * size if drop_last else count)
            assert set(seen) <= set(range(count))


@pytest.mark.parametrize("workers", ["threads", "fork"])
@pytest.mark.parametrize("case", KINDS)
def test_workers_change_nothing_of_that(case, workers, tmp_path):
    for size, drop_last in [(6, True), (14, False)]:
        options = {"size": size, "drop_last": drop_last, "world_size": 2}
        got, lengths, state = epoch_of(case, tmp_path, 101, workers=workers, **options)
        assert (got, lengths, state) == epoch_of(case, tmp_path, 101, **options)


@pytest.mark.parametrize("case", ONE_ROW_A_SAMPLE)
def test_a_hundred_samples_are_25_full_batches_and_fifty_are_seven_with_a_short_last_one(case, tmp_path):
    batches, lengths, _ = epoch_of(case, tmp_path / "a", 100, size=4, workers="threads")
    assert ([len(batch) for batch in batches], lengths) == ([4] * 25, {25})
    batches, lengths, _ = epoch_of(case, tmp_path / "b", 50, size=8, workers="threads", drop_last=False)
    assert ([len(batch) for batch in batches], lengths) == ([8] * 6 + [2], {7})


@pytest.mark.parametrize("case", ONE_ROW_A_SAMPLE)
def test_few_samples_come_once_each_or_are_refused_alike_on_all_ranks(case, tmp_path):
    for count, world_size, workers in itertools.product([0, 1, 2, 3, 49], [1, 2, 8], ["alone", "threads"]):
        options = {"world_size": world_size, "size": world_size, "workers": workers}
        folder = tmp_path / str(count)
        batches, lengths, _ = epoch_of(case, folder, count, drop_last=False, **options)
        assert sorted(ids(case, batches)) == list(range(count))
        assert lengths == {-(-count // world_size)}
        if count >= world_size:
            assert len(epoch_of(case, folder, count, **options)[0]) == count // world_size
            continue
        for one in Job(case, folder, count, **options).loaders:
            for ask in (len, iter, type(one).open):
                with pytest.raises(OrderError, match=f"{count} samples .* {world_size} .*{world_size} ranks"):
                    ask(one)


@pytest.mark.parametrize("count", [0, 1, 2, 3, 49])
def test_more_lanes_than_samples_give_each_sample_once(count, tmp_path):
    base = CASES["windows"].build(tmp_path / "data", count)
    for lanes in (1, 64):
        view = ShuffledDataset(base, 3, "pooled", pool_items=8, lanes=lanes)
        for world_size in (1, 2, 8):
            ranks = [
                make(view, as_rows, rank=rank, world_size=world_size, drop_last=False) for rank in range(world_size)
            ]
            assert {len(one) for one in ranks} == {-(-count // world_size)}
            rows = [row for one in ranks for batch in one for row in batch]
            assert sorted(one for row in rows for one in window_ids(row)) == list(range(count))


def test_a_mixture_of_three_samples_and_a_thousand_has_each_once_an_epoch(tmp_path):
    mixed = MixedDataset({"few": Numbers(3), "many": list(range(1000))}, seed=1)
    for workers in ({}, {"num_workers": 2}):
        batches = list(make(mixed, list, local_batch_size=10, drop_last=False, **workers))
        assert [len(batch) for batch in batches] == [10] * 100 + [3]
        few = [sample["id"] for batch in batches for sample in batch if isinstance(sample, dict)]
        many = [sample for batch in batches for sample in batch if not isinstance(sample, dict)]
        assert (sorted(few), sorted(many)) == ([0, 1, 2], list(range(1000)))


@pytest.mark.parametrize("workers", ["alone", "threads", "kept"])
def test_ten_samples_of_a_hundred_are_the_same_ten_each_epoch_in_another_order(workers, tmp_path):
    ten = list(range(3, 100, 10))
    view = ShuffledDataset(SelectedDataset(Slow(100), keep=ten), 1)
    loader = make(view, local_batch_size=5, **WORKERS[workers])
    epochs = [flat(epoch(loader)) for _ in range(3)]
    loader.close()
    assert [sorted(one) for one in epochs] == [ten] * 3
    assert len({tuple(one) for one in epochs}) == 3
    other = make(view, local_batch_size=5)
    assert [flat(epoch(other)) for _ in range(3)] == epochs


def three_epochs(case, folder, workers="alone", told=False, **options):
    """Three epochs of ids, counted by the loader or told to it."""
    job = Job(case, folder, 100, size=10, workers=workers, **options)
    found = []
    for number in range(3):
        if told:
            for one in job.loaders:
                one.set_epoch(number)
        found.append(ids(case, job.epoch()))
    job.close()
    return found


@pytest.mark.parametrize("case", [name for name in CASES if CASES[name].shuffle])
def test_epochs_are_three_permutations_that_fresh_and_kept_workers_and_another_process_repeat(case, tmp_path):
    first = three_epochs(case, tmp_path)
    assert len({tuple(epoch) for epoch in first}) == 3
    assert all(sorted(epoch) == list(range(100)) for epoch in first)
    for workers in list(WORKERS)[1:] if case in ("slow", "documents") else ["threads"]:
        assert three_epochs(case, tmp_path, workers, told=workers == "threads") == first
    assert all(a != b for a, b in zip(three_epochs(case, tmp_path, shuffle_seed=2), first, strict=True))
    plain = three_epochs(case, tmp_path, shuffle=False)
    assert plain == [list(range(100))] * 3


def test_another_process_gives_the_same_three_epochs_of_every_kind(tmp_path):
    tasks = [{"case": case, "folder": str(tmp_path), "count": 100, "size": 10} for case in KINDS]
    for task in tasks:
        task["size"] = None if CASES[task["case"]].batches else 10
    expected = []
    for task in tasks:
        job = Job(**task)
        expected.append([job.epoch() for _ in range(3)])
    found = in_a_new_process([{**task, "epochs": 3} for task in tasks])
    assert [one["batches"] for one in found] == expected
    for case, epochs in zip(KINDS, expected, strict=True):
        assert len({str(epoch) for epoch in epochs}) == 3, case
