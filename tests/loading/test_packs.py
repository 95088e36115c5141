"""Packers: which microbatches make a step, where a state stands, and what each microbatch weighs."""

import dataclasses
import json
import math
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader, IterableDataset
from torchdata.stateful_dataloader import StatefulDataLoader as TorchdataLoader

from headrace import (
    DataLoaderProtocol,
    FixedCountMicrobatchPacker,
    MicrobatchPackStream,
    MixedDataset,
    ShuffledDataset,
    StatefulDataLoader,
    StateMismatchError,
    TokenBudgetBatches,
    TokenBudgetMicrobatchPacker,
    TokenPack,
    WithLengths,
    num_microbatches_for_global_batch,
    tree_map,
)
from headrace.errors import ClosedError, OptionError, OrderError, StateError
from headrace.loading import count_targets
from loading.samples import WORKERS, loader_threads
from loading.test_token_counts import documents, padded, token_losses


def loader(dataset, size=2, collate=list, rank=0, world_size=1, **options):
    place = {"rank": rank, "world_size": world_size, "device": "cpu"}
    return StatefulDataLoader(dataset, collate, local_batch_size=size, **place, **options)


def torchdata(dataset, size=2, **options):
    return TorchdataLoader(dataset, batch_size=size, collate_fn=list, drop_last=True, **options)


def test_packers_are_pack_streams_and_their_loaders_are_data_loaders():
    for made in (loader(range(8)), torchdata(list(range(8)))):
        assert isinstance(made, DataLoaderProtocol)
        assert isinstance(FixedCountMicrobatchPacker(made, 2), MicrobatchPackStream)
    assert isinstance(TokenBudgetMicrobatchPacker(budget_loader()), MicrobatchPackStream)


@given(st.integers(1, 40), st.integers(1, 5), st.integers(1, 5), st.booleans())
def test_packs_are_whole_and_in_order_and_as_many_as_foretold(samples, size, per_step, drop_last):
    made = loader(range(samples), size, drop_last=False)
    packer = FixedCountMicrobatchPacker(made, per_step, drop_last)
    packs = list(packer)
    assert len(packs) == packer.total_steps
    assert all(len(pack) == per_step for pack in packs[: -1 or None][: len(packs) - (not drop_last)])
    items = [item for pack in packs for batch in pack for item in batch]
    assert items == list(range(len(items)))
    assert samples - len(items) < (size * per_step if drop_last else 1)


def test_a_state_is_that_of_the_last_pack_handed_out_at_any_place():
    for make in (loader, torchdata):
        data = list(range(24))
        expected = list(FixedCountMicrobatchPacker(make(data), 3))
        for cut in range(4):
            packer = FixedCountMicrobatchPacker(make(data), 3)
            packs = iter(packer)
            assert [next(packs) for _ in range(cut)] == expected[:cut]
            state = json.loads(json.dumps(packer.state_dict())) if make is loader else packer.state_dict()
            resumed = FixedCountMicrobatchPacker(make(data), 3)
            resumed.load_state_dict(state)
            assert list(resumed) == expected[cut:], (make, cut)


@pytest.mark.parametrize("workers", [0, 2])
def test_torchdata_s_loader_with_workers_goes_on_behind_the_last_pack(workers):
    data = list(range(40))
    expected = list(FixedCountMicrobatchPacker(torchdata(data), 4))
    packer = FixedCountMicrobatchPacker(torchdata(data, num_workers=workers), 4)
    assert not packer.is_elastic
    packs = iter(packer)
    assert [next(packs), next(packs)] == expected[:2]
    state = packer.state_dict()
    next(packs)
    resumed = FixedCountMicrobatchPacker(torchdata(data, num_workers=workers), 4)
    resumed.load_state_dict(state)
    assert list(resumed) == expected[2:]
    assert packer.total_steps == 5


class Failing:
    """A dataset that fails at one sample until it is mended."""

    def __init__(self, length, at):
        self.length, self.at = length, at

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        if index == self.at:
            raise OSError("no such sample")
        return index


@pytest.mark.parametrize("make", [loader, torchdata])
def test_an_error_within_a_pack_leaves_the_state_behind_the_last_whole_one(make):
    data = Failing(24, at=15)  # in the second of three microbatches of the third pack
    packer = FixedCountMicrobatchPacker(make(data), 3)
    packs = iter(packer)
    assert [next(packs), next(packs)][1] == [[6, 7], [8, 9], [10, 11]]
    before = json.dumps(packer.state_dict(), default=str)
    with pytest.raises(OSError, match="no such sample"):
        next(packs)
    assert json.dumps(packer.state_dict(), default=str) == before
    data.at = None
    resumed = FixedCountMicrobatchPacker(make(data), 3)
    resumed.load_state_dict(packer.state_dict())
    assert next(iter(resumed)) == [[12, 13], [14, 15], [16, 17]]


def test_a_loaded_state_counts_even_after_an_error_within_a_pack():
    data = Failing(24, at=3)
    packer = FixedCountMicrobatchPacker(loader(data), 3)
    start = packer.state_dict()
    with pytest.raises(OSError):
        list(packer)
    data.at = None
    made = loader(data)
    later = FixedCountMicrobatchPacker(made, 3)
    next(iter(later))
    packer.load_state_dict(later.state_dict())
    assert packer.state_dict() == later.state_dict() != start
    assert next(iter(packer)) == [[6, 7], [8, 9], [10, 11]]


def test_a_consumer_that_breaks_off_leaves_no_thread_and_no_other_state():
    made = loader(range(400), num_workers=2, prefetch=8)
    packer = FixedCountMicrobatchPacker(made, 4)
    for pack in packer:
        assert pack[0] == [0, 1]
        break
    del pack
    assert loader_threads() == []
    assert packer.state_dict()["position"] == 8
    packer.close()
    packer.close()
    assert packer.state_dict()["position"] == 8


def test_the_next_pass_is_the_loader_s_next_epoch():
    packer = FixedCountMicrobatchPacker(loader(range(12), shuffle=True, shuffle_seed=3), 2)
    passes = [[item for pack in packer for batch in pack for item in batch] for _ in range(3)]
    assert [sorted(items) for items in passes] == [list(range(12))] * 3
    assert len({tuple(items) for items in passes}) == 3


def test_behind_the_last_pack_the_next_epoch_begins_and_nothing_is_left_of_the_pass():
    packer = FixedCountMicrobatchPacker(loader(range(12)), 2)
    packs = iter(packer)
    for _ in range(3):
        next(packs)
    resumed = FixedCountMicrobatchPacker(loader(range(12)), 2)
    resumed.load_state_dict(packer.state_dict())
    assert resumed.steps_left == 0
    assert len(list(resumed)) == 3


class Endless(IterableDataset):
    def __iter__(self):
        return iter(range(100))


def test_a_loader_without_a_length_gives_packs_and_no_total():
    packer = FixedCountMicrobatchPacker(DataLoader(Endless(), batch_size=2, collate_fn=list), 2)
    assert packer.total_steps is None
    assert packer.steps_left is None
    assert next(iter(packer)) == [[0, 1], [2, 3]]
    with pytest.raises(TypeError, match=r"a DataLoader has no state_dict.*use a StatefulDataLoader"):
        packer.state_dict()
    packer = FixedCountMicrobatchPacker(TorchdataLoader(Endless(), batch_size=2, collate_fn=list), 2)
    assert packer.total_steps is None
    packs = iter(packer)
    next(packs)
    resumed = FixedCountMicrobatchPacker(TorchdataLoader(Endless(), batch_size=2, collate_fn=list), 2)
    resumed.load_state_dict(packer.state_dict())
    assert next(iter(resumed)) == next(packs) == [[4, 5], [6, 7]]

    class Unsized:
        def __iter__(self):
            return iter(range(5))

        def state_dict(self):
            return {}

        def load_state_dict(self, state_dict):
            pass

    packer = FixedCountMicrobatchPacker(Unsized(), 2, drop_last=False)
    assert packer.total_steps is None
    assert list(packer) == [[0, 1], [2, 3], [4]]


@pytest.mark.parametrize(("drop_last", "after"), [(True, [6, 5, 4, 3, 2, 1, 0]), (False, [7, 6, 5, 4, 3, 2, 1, 0])])
def test_the_steps_that_are_left_are_counted_down_to_the_end_of_the_pass(drop_last, after):
    packer = FixedCountMicrobatchPacker(loader(range(50)), 4, drop_last)  # 25 microbatches
    left = [packer.steps_left]
    for _ in packer:
        left.append(packer.steps_left)
    assert (left[: len(after)], packer.total_steps) == (after, after[0])
    assert packer.steps_left == 0
    assert FixedCountMicrobatchPacker(torchdata(list(range(50))), 4).steps_left is None


def test_what_is_left_is_counted_by_the_sizes_of_now():
    data = range(64)
    packer = FixedCountMicrobatchPacker(loader(data), 4)
    packs = iter(packer)
    for _ in range(5):
        next(packs)
    resumed = FixedCountMicrobatchPacker(loader(data, 4), 4)
    resumed.load_state_dict(packer.state_dict())
    assert (resumed.total_steps, resumed.steps_left) == (4, 1)
    resumed = FixedCountMicrobatchPacker(loader(data, 1), 4)
    resumed.load_state_dict(packer.state_dict())
    assert (resumed.total_steps, resumed.steps_left) == (16, 6)
    assert [batch for pack in resumed for batch in pack] == [[item] for item in range(40, 64)]


def test_an_epoch_whose_mixture_was_changed_has_no_known_number_of_packs():
    def over(weights):
        sources = {
            "a": WithLengths(Failing(40, None), [3] * 40),
            "b": WithLengths(Failing(30, None), [4] * 30),
        }
        mixed = MixedDataset(sources, weights)
        return StatefulDataLoader(
            TokenBudgetBatches(mixed, 12, 4, window=16), list, device="cpu", rank=0, world_size=1, drop_last=False
        )

    packer = TokenBudgetMicrobatchPacker(over({"a": 1, "b": 1}), count_targets=len)
    before, packs = packer.steps_left, iter(packer)
    for _ in range(3):
        next(packs)
    assert (packer.total_steps, packer.steps_left) == (before, before - 3)
    changed = over({"a": 3, "b": 1})
    changed.load_state_dict(packer.state_dict(), change="from_here")
    packer = TokenBudgetMicrobatchPacker(changed, count_targets=len)
    assert (packer.total_steps, packer.steps_left) == (None, None)
    assert len(list(packer)) > 0


def test_ranks_go_on_in_another_number():
    data = ShuffledDataset(range(96), 1)
    steps = [
        sorted(item for pack in packs for batch in pack for item in batch)
        for packs in zip(
            *(FixedCountMicrobatchPacker(loader(data, 2, rank=r, world_size=2), 3) for r in range(2)), strict=True
        )
    ]
    packers = [FixedCountMicrobatchPacker(loader(data, 2, rank=rank, world_size=2), 3) for rank in range(2)]
    running = [iter(packer) for packer in packers]
    for _ in range(3):
        for packs in running:
            next(packs)
    states = [packer.state_dict() for packer in packers]
    assert states[0] == states[1]
    assert packers[0].is_elastic
    resumed = [FixedCountMicrobatchPacker(loader(data, 1, rank=rank, world_size=3), 4) for rank in range(3)]
    for packer in resumed:
        packer.load_state_dict(states[0])
    found = [sorted(item for pack in packs for batch in pack for item in batch) for packs in zip(*resumed, strict=True)]
    assert found == steps[3:]


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"microbatches_per_step": 0}, OptionError, "microbatches_per_step=0"),
        ({"microbatches_per_step": 2.0}, TypeError, "microbatches_per_step must be an integer, not 2.0"),
        ({"microbatches_per_step": 2, "drop_last": "no"}, TypeError, "drop_last must be a bool, not 'no'"),
    ],
)
def test_sizes_that_mean_nothing_are_refused(options, error, text):
    with pytest.raises(error, match=text):
        FixedCountMicrobatchPacker(loader(range(4)), **options)


def test_a_global_batch_that_does_not_divide_is_refused_with_the_nearest_that_do():
    class Context:
        mesh_params = type("Parameters", (), {"is_distributed": False})()

    assert num_microbatches_for_global_batch(Context(), 12, 4) == 3
    with pytest.raises(OptionError, match=r"global_batch_size=10 .* multiple of 4 \(1 data-parallel.*: 8 or 12"):
        num_microbatches_for_global_batch(Context(), 10, 4)
    with pytest.raises(OptionError, match=r"global_batch_size=3 .*: 4 would be near"):
        num_microbatches_for_global_batch(Context(), 3, 4)
    with pytest.raises(TypeError, match="microbatch_size must be an integer"):
        num_microbatches_for_global_batch(Context(), 8, "4")


# ----- token budgets -----


def corpus(count=120, longest=25):
    return documents(np.random.default_rng(2).integers(1, longest, count).tolist())


def budget_loader(rank=0, world_size=1, per_step=12, collate=padded, dataset=None, **options):
    dataset = TokenBudgetBatches(ShuffledDataset(dataset or corpus(), 5), 60, per_step, window=50)
    place = {"rank": rank, "world_size": world_size, "device": "cpu"}
    return StatefulDataLoader(dataset, collate, **place, **options)


def test_a_pack_is_all_of_a_step_that_a_rank_gets():
    batches = list(budget_loader())
    for world_size in (1, 2, 3, 4, 6, 12):
        ranks = [TokenBudgetMicrobatchPacker(budget_loader(rank, world_size)) for rank in range(world_size)]
        packs = [list(packer) for packer in ranks]
        assert {len(of_rank) for of_rank in packs} == {ranks[0].total_steps} == {len(batches) // 12}
        for step in range(ranks[0].total_steps):
            assert {len(of_rank[step]) for of_rank in packs} == {12 // world_size}
            for rank in range(world_size):
                for place, microbatch in enumerate(packs[rank][step]):
                    expected = batches[12 * step + place * world_size + rank]
                    assert torch.equal(microbatch["input_ids"], expected["input_ids"])
                    assert packs[rank][step].num_targets[place] == int(expected["num_targets"])


@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_weighted_losses_of_all_ranks_packs_are_the_loss_of_the_unsplit_batch(world_size, workers):
    data = corpus(60)
    total = torch.zeros(2, dtype=torch.float64)
    for rank in range(world_size):
        with budget_loader(rank, world_size, dataset=data, **WORKERS[workers]) as made:
            for pack in TokenBudgetMicrobatchPacker(made):
                means = [token_losses(microbatch).sum() / microbatch["num_targets"] for microbatch in pack]
                total += torch.tensor([float(pack.weighted_sum(means)), pack.loss_weights.sum()])
    unsplit = padded([data[index] for index in range(len(data))])
    assert total[1] == int(unsplit["num_targets"])
    assert float(total[0] / total[1]) == pytest.approx(
        float(token_losses(unsplit).sum() / unsplit["num_targets"]), abs=1e-6
    )


def test_what_has_no_targets_weighs_nothing_and_its_loss_is_not_looked_at():
    pack = TokenPack(["four", "none", "eight"], [4, 0, 8])
    assert pack.loss_weights.tolist() == [4, 0, 8]
    assert pack.weighted_sum([1.0, math.nan, 2.0]) == 20
    gradients = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
    losses = [gradients[0], gradients[1] * math.nan, gradients[2]]
    (pack.weighted_sum(losses) / 12).backward()
    assert gradients.grad.tolist() == pytest.approx([4 / 12, 0, 8 / 12])
    assert TokenPack([1], [0]).weighted_sum([math.nan]) == 0
    with pytest.raises(OptionError, match=r"2 losses.*one for each of 3 microbatches"):
        pack.weighted_sum([1.0, 2.0])


def test_empty_batches_of_a_step_have_no_targets():
    packs = list(TokenBudgetMicrobatchPacker(budget_loader(dataset=corpus(3), per_step=6)))
    assert [pack.num_targets.tolist().count(0) >= 3 for pack in packs] == [True]
    assert all(np.isfinite(pack.loss_weights).all() for pack in packs)


def test_packs_stay_what_they_are_when_their_tensors_are_mapped():
    pack = next(iter(TokenBudgetMicrobatchPacker(budget_loader())))
    mapped = tree_map(lambda tensor: tensor + 0, pack)
    assert type(mapped) is TokenPack
    assert mapped.num_targets.tolist() == pack.num_targets.tolist()
    assert mapped is not pack
    assert mapped[0]["input_ids"] is not pack[0]["input_ids"]


@pytest.mark.parametrize("workers", WORKERS)
def test_a_run_of_token_packs_goes_on_exactly_with_any_number_of_ranks(workers):
    def step_of(packs):
        return sorted(microbatch["input_ids"].tolist() for pack in packs for microbatch in pack)

    data = corpus(300)
    expected = [step_of([pack]) for pack in TokenBudgetMicrobatchPacker(budget_loader(dataset=data))]
    state, found = None, []
    for world_size, steps in ((4, 2), (2, 1), (3, 1), (12, 0), (1, 100)):
        loaders = [budget_loader(rank, world_size, dataset=data, **WORKERS[workers]) for rank in range(world_size)]
        packers = [TokenBudgetMicrobatchPacker(made) for made in loaders]
        for packer in packers:
            assert packer.is_elastic
            if state is not None:
                packer.load_state_dict(state)
        assert packers[0].steps_left == len(expected) - len(found)
        running = [iter(packer) for packer in packers]
        for _ in range(min(steps, len(expected) - len(found))):
            found.append(step_of([next(packs) for packs in running]))
        states = [json.dumps(packer.state_dict()) for packer in packers]
        assert len(set(states)) == 1
        state = json.loads(states[0])
        for packs, packer in zip(running, packers, strict=True):
            packs.close()
            packer.close()
    assert found == expected
    assert len(expected) > 4


def test_a_state_from_within_a_step_is_refused_and_changes_nothing():
    made = budget_loader(world_size=2)
    packer = TokenBudgetMicrobatchPacker(made)
    before = packer.state_dict()
    alone = budget_loader(world_size=2)
    next(iter(alone))
    with pytest.raises(StateError, match="taken within a step: 2 of its 12 batches"):
        packer.load_state_dict(alone.state_dict())
    assert packer.state_dict() == before
    with pytest.raises(StateMismatchError, match="batches_per_step"):
        packer.load_state_dict(budget_loader(per_step=6).state_dict())
    with pytest.raises(StateError, match="a loader state is a dict, not list"):
        packer.load_state_dict([])


def test_ranks_that_cannot_share_a_step_are_refused():
    packer = TokenBudgetMicrobatchPacker(budget_loader(world_size=5))
    with pytest.raises(OrderError, match="12 batches, which 5 ranks cannot share equally"):
        _ = packer.total_steps
    with pytest.raises(OrderError, match="5 ranks"):
        next(iter(packer))


def test_a_loader_of_something_else_is_refused():
    for other, text in (
        (loader(range(4)), "not a StatefulDataLoader over range; FixedCountMicrobatchPacker"),
        ([1, 2], "over TokenBudgetBatches, not a list"),
    ):
        with pytest.raises(TypeError, match=text):
            TokenBudgetMicrobatchPacker(other)


def test_an_iterator_that_was_overtaken_says_so():
    packer = TokenBudgetMicrobatchPacker(budget_loader())
    first, second = iter(packer), iter(packer)
    next(first)
    next(second)
    with pytest.raises(ClosedError, match="a newer one took its place"):
        next(first)


def test_a_pack_s_counts_fit_its_microbatches():
    for wrong in ([1], [1, 2, 3], [1, -1]):
        with pytest.raises(OptionError, match="a count for each of the 2 microbatches"):
            TokenPack(["a", "b"], wrong)
    packer = TokenBudgetMicrobatchPacker(budget_loader(), count_targets=lambda batch: len(batch["input_ids"]))
    pack = next(iter(packer))
    assert pack.num_targets.tolist() == [len(microbatch["input_ids"]) for microbatch in pack]
    assert pack.num_targets.dtype == np.int64


# ----- targets -----


@dataclasses.dataclass
class Batch:
    labels: Any
    attention_mask: Any = None


class Pair(NamedTuple):
    inputs: Any
    labels: Any


ONES = torch.ones(2, 3, dtype=torch.int64)
LABELS = torch.tensor([[1, -100, 2], [-100, -100, -100]])


@pytest.mark.parametrize(
    ("microbatch", "expected"),
    [
        ({"num_targets": torch.tensor(5), "labels": LABELS}, 5),
        ({"num_targets": torch.tensor([5, 6])}, 11),
        ({"num_targets": 7, "labels": LABELS}, 7),
        ({"num_targets": np.int64(7)}, 7),
        ({"labels": LABELS, "attention_mask": ONES}, 2),
        ({"deep": {"labels": LABELS}}, 2),
        (Batch(LABELS), 2),
        (Pair(ONES, LABELS), 2),
        ({"attention_mask": ONES * LABELS.clamp(min=0)}, 2),
        ({"attention_mask": ONES * 0}, 0),
        ({"segment_ids": torch.tensor([1, 1, 0])}, 2),
        ({"input_ids": ONES}, 6),
        (ONES, 6),
        (ONES[:0], 0),
        ({}, 0),
        (None, 0),
    ],
    ids=str,
)
def test_targets_are_counted_by_what_a_microbatch_has(microbatch, expected):
    assert count_targets(microbatch) == expected


@pytest.mark.parametrize("microbatch", [{"images": torch.ones(2, 3)}, torch.ones(3), ["text"], Batch(None, "none")])
def test_a_microbatch_without_anything_to_count_is_refused(microbatch):
    with pytest.raises(TypeError, match="pass count_targets="):
        count_targets(microbatch)


def test_what_is_on_a_device_already_is_not_counted_there():
    with pytest.raises(TypeError, match=r'give the loader device="cpu"'):
        count_targets({"labels": LABELS.to("meta")})
