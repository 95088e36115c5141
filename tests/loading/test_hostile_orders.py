"""States, sizes and call patterns that nobody should come up with: refused by name, or right."""

import json

import numpy as np
import pytest

from headrace import (
    ElasticBatchSampler,
    MixedDataset,
    PackedDataset,
    ShuffledDataset,
    StatefulDataLoader,
    TokenBudgetBatches,
)
from headrace.errors import DatasetChangedError, OrderError, StateError, StateMismatchError
from headrace.loading import continued
from headrace.planning import plan_fingerprint
from headrace.planning.recipe import encode_counts, encode_departed


class Documents:
    """Documents of 1 to 7 tokens, each token the document's number from `first` on."""

    def __init__(self, name="documents", number=60, first=0):
        self.settings = {"data": name, "num_samples": number}
        self.lengths = 1 + np.arange(number) * 5 % 7
        self.first = first

    def __len__(self):
        return len(self.lengths)

    def __getitem__(self, item):
        return self.__getitems__([item])[0]

    def __getitems__(self, items):
        return [np.full(self.lengths[item], self.first + int(item)) for item in items]


class Numbers(Documents):
    def __getitems__(self, items):
        return [self.first + int(item) for item in items]


def mixture(kind=Numbers, weights=(2, 1), **options):
    sources = {name: kind(name, 60 + 40 * k, 1000 * k) for k, name in enumerate("abcd"[: len(weights)])}
    return MixedDataset(sources, list(weights), seed=5, **{"epoch_size": 150, **options})


def packed(weights=(2, 1), **options):
    return PackedDataset(mixture(Documents, weights, **options), 16, window=40)


def loader(dataset, rank=0, world_size=1, size=4, **options):
    return StatefulDataLoader(dataset, global_batch_size=size, rank=rank, world_size=world_size, **options)


def through_json(state):
    return json.loads(json.dumps(state))


def nested(depth):
    outermost = innermost = []
    for _ in range(depth):
        innermost.append([])
        innermost = innermost[0]
    return outermost


KINDS = {"mixture": mixture, "packs": packed, "shuffle": lambda: ShuffledDataset(Numbers(), 1)}


@pytest.mark.parametrize("change", [None, "from_here"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "damage",
    [
        {"version": True},
        {"version": 1.0},
        {"version": np.int64(1)},
        {"epoch": (1 << 63) - 1},
        {"epoch": 1 << 62},
        {"position": (1 << 63) - 1},
        {"window": 1 << 62},
        {"row": 1 << 62},
        {"window": 2, "row": 1 << 30},
        {"position": True},
        {"position": -1},
        {"settings": None},
        {"settings": {"a": nested(100_000)}},
        {"settings": {"a": object()}},
        {"settings": {"a": "\udc80"}},
        {"settings": {1: 2, "a": 3}},
        {"plan": None},
        {"plan": np.zeros(3)},
    ],
    ids=lambda damage: ",".join(damage),
)
def test_a_damaged_record_is_a_state_error_and_changes_nothing(kind, damage, change):
    one = loader(KINDS[kind]())
    next(iter(one))
    before = one.state_dict()
    with pytest.raises(StateError):
        one.load_state_dict({**before, **damage}, change=change)
    assert one.state_dict() == before


@pytest.mark.parametrize("place", [(5, 0, 0), (3, 0, 4), (1 << 40, 1, 0)])
def test_rows_that_do_not_lead_to_their_window_are_no_place(place):
    one = loader(packed())
    with pytest.raises(StateError, match="do not lead to"):
        one.load_state_dict({**one.state_dict(), **dict(zip(("position", "window", "row"), place, strict=True))})


def test_a_rank_without_rows_gets_an_empty_batch_after_a_change_of_the_mixture_too():
    def ranks(weights):
        return [loader(mixture(weights=weights, epoch_size=149), rank, 4, drop_last=False) for rank in range(4)]

    before = loader(mixture(epoch_size=149), drop_last=False)
    for _, _batch in zip(range(5), before, strict=False):
        pass
    last = []
    for one in ranks((1, 3)):
        one.load_state_dict(through_json(before.state_dict()), change="from_here")
        last.append([batch.tolist() for batch in one][-1])
    assert list(map(len, last)) == [1, 0, 0, 0]


def test_a_rank_without_a_batch_gets_an_empty_one_after_a_change_below_token_budgets_too():
    class OneToken(Documents):
        def __init__(self, *given):
            super().__init__(*given)
            self.lengths = np.ones_like(self.lengths)

    def ranks(weights):
        budget = TokenBudgetBatches(mixture(OneToken, weights, epoch_size=3), 8, 4, window=40)
        return [loader(budget, rank, 4) for rank in range(4)]

    group = ranks((2, 1))
    assert sorted(len(batch) for one in group for batch in one) == [0, 1, 1, 1]
    later = ranks((1, 3))
    for one in later:
        one.load_state_dict(through_json(group[0].state_dict()), change="from_here")
    assert sorted(len(batch) for one in later for batch in one) == [0, 1, 1, 1]


@pytest.mark.parametrize("parts", [{}, {"shuffle": True}])
def test_a_dataset_that_grew_since_its_steps_were_counted_is_refused(parts):
    items = list(range(10))
    one, sampler = loader(items, **parts), ElasticBatchSampler(items, 4, **parts)
    assert len(list(one)) == len(list(sampler)) == 2
    items += [10, 11, 12]
    for stale in (one, sampler):
        with pytest.raises(DatasetChangedError, match="had 10 samples and has 13 now"):
            iter(stale)


# A mixture that changes from a position on.


def changed(dataset, state, **options):
    one = loader(dataset)
    one.load_state_dict(through_json(state), change="from_here", **options)
    return one


def stopped(dataset, steps):
    """The loader after so many batches, and what they were."""
    one = loader(dataset)
    return one, [next(iterator) for iterator in [iter(one)] for _ in range(steps)]


def two(first, second, weights, seed=5):
    return MixedDataset({"a": first, "b": second}, weights, seed=seed, epoch_size=150)


@pytest.mark.parametrize(
    ("now", "error", "said"),
    [
        (lambda: two(Numbers("a", 70), Numbers("b"), [1, 2]), OrderError, "'a' had 60 samples and has 70 now"),
        (lambda: two(Numbers("other"), Numbers("b"), [1, 2]), OrderError, "'a' has other data"),
        (lambda: two(ShuffledDataset(Numbers("a"), 1), Numbers("b"), [1, 2]), OrderError, "'a' has other data"),
        (
            lambda: two(Numbers("a"), Numbers("b"), [1, 2], seed=6),
            StateMismatchError,
            "mixture_seed: saved 5, current 6",
        ),
        (lambda: two(Numbers("a"), Numbers("other"), [1, 0]), None, ""),
        (lambda: MixedDataset({"b": Numbers("b"), "c": Numbers("other")}, seed=5, epoch_size=150), None, ""),
    ],
)
def test_a_change_keeps_the_data_and_the_order_of_each_source_that_stays(now, error, said):
    before, _ = stopped(two(Numbers("a"), Numbers("b"), [2, 1]), 5)
    if error is None:
        changed(now(), before.state_dict())
    else:
        with pytest.raises(error, match=said):
            changed(now(), before.state_dict())


def test_a_mixture_inside_a_source_does_not_change_unseen():
    def outer(weights):
        return two(mixture(weights=weights), Numbers("b"), [2, 1])

    before, _ = stopped(outer((1, 1)), 5)
    with pytest.raises(OrderError, match="source 'a' has other data or another order now"):
        changed(outer((1, 3)), before.state_dict())


def test_what_a_source_gave_is_kept_while_it_is_away_from_more_sources_than_a_state_can_describe():
    weights = {f"source-{k:04}-{'x' * 40}": 1 + k * k * 7919 % 10007 for k in range(700)}

    def many(**others):
        sources = {name: Numbers(name, 50, 1000 * k) for k, name in enumerate([*weights, "away"])}
        return MixedDataset(sources, {**weights, "away": 0, **others}, seed=5, epoch_size=3000)

    batches = []
    with_it, without_it = many(away=10**9), many()
    first, seen = stopped(with_it, 10)
    batches += seen
    second = changed(without_it, first.state_dict(), was=with_it)
    batches += [next(iterator) for iterator in [iter(second)] for _ in range(10)]
    resumed = loader(many())
    resumed.load_state_dict(through_json(second.state_dict()))
    batches += [next(iterator) for iterator in [iter(resumed)] for _ in range(10)]
    third = changed(many(away=10**9), resumed.state_dict(), was=many())
    batches += [next(iterator) for iterator in [iter(third)] for _ in range(2)]
    numbers = [number for batch in batches for number in batch.tolist() if number >= 700_000]
    assert len(numbers) == len(set(numbers)) > 40


def reworked(state, **settings):
    """The state as somebody would make it who can work out digests."""
    settings = {**state["settings"], **settings}
    return {**state, "settings": settings, "plan": plan_fingerprint(settings)}


@pytest.mark.parametrize("text", ["?", "AAAA", 7, None, encode_departed([("a", -1)]), encode_departed([(1, 1)])])
def test_what_a_state_says_of_sources_that_left_is_checked(text):
    before, _ = stopped(mixture(), 5)
    later = changed(mixture(weights=(1, 3)), before.state_dict())
    state = reworked(later.state_dict(), mixture_departed=text)
    for change in (None, "from_here"):
        with pytest.raises(StateError):
            loader(mixture(weights=(1, 3))).load_state_dict(state, change=change)


@pytest.mark.parametrize("name", ["mixture_plan", "mixture_drawn", "mixture_from", "mixture_data", "epoch_size"])
@pytest.mark.parametrize("value", [True, -1, 1 << 70, 2.5, "", "!", "A" * 4096, [1], {"a": 1}, None])
def test_odd_values_in_what_a_state_says_of_its_mixture_are_refused_or_change_nothing(name, value):
    before, _ = stopped(mixture(), 5)
    state = reworked(changed(mixture(weights=(1, 3)), before.state_dict()).state_dict(), **{name: value})
    for change in (None, "from_here"):
        one = loader(mixture(weights=(3, 1)))
        with pytest.raises(StateError):
            one.load_state_dict(state, change=change)


def test_substitutes_of_sources_with_one_name_are_not_mixed_up():
    nested = MixedDataset({"a/b": Numbers("x"), "a": MixedDataset({"b": Numbers("y")})})
    for dataset in (nested, ShuffledDataset(nested, 1)):
        with pytest.raises(OrderError, match="two are 'a/b'"):
            loader(dataset, skip_corrupt=True)
    assert len(list(loader(nested))) == 30


@pytest.mark.parametrize("kind", [mixture, packed], ids=["mixture", "packs"])
def test_an_epoch_before_a_change_is_over(kind):
    before = loader(kind())
    for _ in range(3):
        list(before)
    later = changed(kind(weights=(1, 3)), before.state_dict())
    with pytest.raises(OrderError, match="epoch 1 is over: the mixture was changed in epoch 3"):
        later.set_epoch(1)
    assert later.state_dict()["epoch"] == 3
    later.set_epoch(4)
    later.set_epoch(3)
    assert len(list(later)) > 0
    dataset, _ = continued(kind(weights=(1, 3)), before.state_dict(), change="from_here")
    with pytest.raises(OrderError, match="epoch 1 is over"):
        ElasticBatchSampler(dataset, 4).set_epoch(1)


@pytest.mark.parametrize(
    "odd",
    [
        {"mixture_drawn": encode_counts([(1 << 63) - 1, 2])},
        {"mixture_plan": '[["a","b"],[60,100],[[0,[2,1]]],false,null,[1,null],9223372036854775807,5,[]]'},
        {"mixture_plan": '[["a","b"],[60,100],[[0,[2,1]]],false,null,null,0,5,[]]'},
    ],
)
def test_counts_and_sizes_that_no_run_reaches_are_refused_before_they_overflow(odd):
    before, _ = stopped(mixture(), 5)
    state = reworked(changed(mixture(weights=(1, 3)), before.state_dict()).state_dict(), **odd)
    for change in (None, "from_here"):
        with pytest.raises(StateError):
            loader(mixture(weights=(3, 1))).load_state_dict(state, change=change)


@pytest.mark.parametrize("steps", [3, 9])
def test_a_change_that_has_not_begun_is_replaced_by_another(steps):
    before, _ = stopped(packed(), steps)
    once = changed(packed((1, 3)), before.state_dict())
    twice = changed(packed((5, 1)), once.state_dict())
    expected = changed(packed((5, 1)), before.state_dict())
    assert twice.state_dict() == expected.state_dict()
    assert [str(batch) for batch in twice] == [str(batch) for batch in expected]


def test_a_change_late_in_a_run_to_a_mixture_that_would_have_ended_comes_where_the_window_ends():
    before = loader(packed((1, 2)))
    for _ in range(3):
        list(before)
    next(iter(before))
    now = packed((1, 0, 1), max_epochs={"a": 5, "c": 1})  # from position 0 on it has 440 samples
    later = changed(now, before.state_dict())
    end = 3 * 150 + 40
    assert later.state_dict()["settings"]["mixture_from"] == end
    drawn = packed((1, 2)).base.draws_before(end)
    counts = {"a": 0, "b": 0, "c": 0}
    for _ in range(2):
        for batch in later:
            for source in batch["source_ids"].tolist():
                counts["abc"[source]] += 1
    assert counts["b"] > 0
    assert counts["c"] > 100
    assert counts["a"] <= 5 * 60 - drawn["a"] + 40
