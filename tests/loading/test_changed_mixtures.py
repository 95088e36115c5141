"""A run goes on while its mixture is another: what was drawn stays counted, and nothing is lost or comes twice."""

import json
from collections import Counter
from itertools import chain

import numpy as np
import pytest
import torch

from headrace import ElasticBatchSampler, ShuffledDataset, StatefulDataLoader
from headrace.errors import OptionError, OrderError, StateError, StateMismatchError
from headrace.loading import continued
from headrace.views import MixedDataset, PackedDataset

SIZES = {"a": 3700, "b": 2500, "c": 3900, "d": 2400}  # no source is through within a test
NUMBERS = {name: number * 10_000 for number, name in enumerate(SIZES)}


class Ids:
    """Samples that are their own number; documents of 1 to 7 tokens where they are packed."""

    def __init__(self, name):
        self.name = name
        self.settings = {"data": name, "num_samples": SIZES[name]}
        self.lengths = 1 + np.arange(SIZES[name]) * 5 % 7

    def __len__(self):
        return SIZES[self.name]

    def __getitem__(self, item):
        return self.__getitems__([item])[0]

    def __getitems__(self, items):
        return [NUMBERS[self.name] + int(item) for item in items]


class Documents(Ids):
    def __getitems__(self, items):
        return [np.full(self.lengths[item], NUMBERS[self.name] + int(item)) for item in items]


def mixture(weights, kind=Ids, **options):
    return MixedDataset({name: kind(name) for name in weights}, weights, seed=3, **{"epoch_size": 2100, **options})


def source_of(sample):
    return list(SIZES)[sample // 10_000]


def read(loaders, steps=None):
    """The global batches of these ranks, so many or up to the end of the epoch."""
    out = []
    iterators = [iter(loader) for loader in loaders]
    while steps is None or len(out) < steps:
        batches = [next(iterator, None) for iterator in iterators]
        if batches[0] is None:
            break
        rows = [batch.tolist() if isinstance(batch, torch.Tensor) else batch for batch in batches]
        out.append([row for places in zip(*rows, strict=True) for row in places])
    return out


def flat(batches):
    return list(chain.from_iterable(batches))


def loaders(dataset, world_size=1, size=24, **options):
    return [
        StatefulDataLoader(dataset, global_batch_size=size, rank=rank, world_size=world_size, **options)
        for rank in range(world_size)
    ]


def stopped(dataset, steps, **options):
    """The batches of so many steps, and the state behind them, through JSON."""
    (loader,) = loaders(dataset, **options)
    batches = read([loader], steps)
    return batches, json.loads(json.dumps(loader.state_dict()))


BEFORE, AFTER = {"a": 0.5, "b": 0.3, "c": 0.2}, {"b": 1, "c": 1, "d": 2}


@pytest.mark.parametrize("steps", [0, 1, 7, 11, 30])
def test_each_source_goes_on_where_it_was_and_the_weights_of_now_hold_from_there(steps):
    first, state = stopped(mixture(BEFORE), steps)
    resumed = loaders(mixture(AFTER))
    resumed[0].load_state_dict(state, change="from_here")
    rest = read(resumed)
    before, after = flat(first), flat(rest)
    assert len(before) + len(after) == 2100 - 2100 % 24
    for name in SIZES:
        seen = [sample for sample in before + after if source_of(sample) == name]
        uninterrupted = ShuffledDataset(Ids(name), mixture(BEFORE if name in BEFORE else AFTER).asked(name).seed)
        assert seen == [uninterrupted.__getitems__([draw])[0] for draw in range(len(seen))]
    shares = {"b": 0.25, "c": 0.25, "d": 0.5}
    for end in range(0, len(after), 50):
        counts = Counter(source_of(sample) for sample in after[:end])
        assert "a" not in counts
        for name, share in shares.items():
            assert abs(counts[name] - share * end) <= 2 + share * 256


def test_the_change_is_refused_unless_it_is_asked_for_and_named():
    _, state = stopped(mixture(BEFORE), 5)
    (loader,) = loaders(mixture(AFTER))
    with pytest.raises(StateMismatchError, match=r"mixture: saved '[0-9a-f]{32}', current '[0-9a-f]{32}'"):
        loader.load_state_dict(state)
    assert loader.state_dict()["position"] == 0
    with pytest.raises(OptionError, match="from_there"):
        loader.load_state_dict(state, change="from_there")


def test_what_is_not_the_mixture_must_still_fit():
    _, state = stopped(mixture(BEFORE), 5, drop_last=False)
    (loader,) = loaders(mixture(AFTER), drop_last=True)
    with pytest.raises(StateMismatchError, match="drop_last"):
        loader.load_state_dict(state, change="from_here")


def test_a_change_that_changes_nothing_is_none():
    batches, state = stopped(mixture(BEFORE), 5)
    (loader,) = loaders(mixture(BEFORE))
    loader.load_state_dict(state, change="from_here")
    assert loader.state_dict() == state
    assert batches + read([loader]) == read(loaders(mixture(BEFORE)))


def test_later_states_tell_of_the_change_and_load_on_any_number_of_ranks_without_saying_so_again():
    _, state = stopped(mixture(BEFORE), 5)
    now = mixture(AFTER)
    (loader,) = loaders(now)
    loader.load_state_dict(state, change="from_here")
    expected = read([loader])
    loader.load_state_dict(state, change="from_here")
    group, seen = [loader], []
    for ranks in (2, 3, 4, 8, 1):
        seen += read(group, 9)
        state = group[0].state_dict()
        assert len(json.dumps(state)) < 4096
        group = loaders(mixture(AFTER), ranks)
        for member in group:
            member.load_state_dict(json.loads(json.dumps(state)))
    assert seen + read(group) == expected


def test_a_mixture_is_changed_again_and_again_and_no_draw_is_lost_or_repeated():
    batches, state = stopped(mixture(BEFORE), 9)
    for weights in (AFTER, {"a": 1, "d": 3}, {"a": 3, "b": 2, "c": 2, "d": 1}):
        (loader,) = loaders(mixture(weights, epoch_size=2500))
        loader.load_state_dict(state, change="from_here")
        batches += read([loader], 11)
        state = json.loads(json.dumps(loader.state_dict()))
    seen = flat(batches)
    assert len(seen) == len(set(seen)) == (9 + 33) * 24


def test_an_epoch_in_which_the_mixture_changed_starts_over_at_the_change():
    _, state = stopped(mixture(BEFORE), 5)
    (loader,) = loaders(mixture(AFTER))
    loader.load_state_dict(state, change="from_here")
    first = read([loader], 3)
    assert read([loader], 3) == first
    loader.set_epoch(1)
    loader.set_epoch(0)
    assert read([loader], 3) == first


def test_the_next_epoch_counts_on():
    size = 240
    _, state = stopped(mixture(BEFORE, epoch_size=size), 5)
    (loader,) = loaders(mixture(AFTER, epoch_size=size))
    loader.load_state_dict(state, change="from_here")
    seen = flat(read([loader]) + read([loader]))
    counts = Counter(map(source_of, seen))
    assert len(seen) == len(set(seen)) == 2 * size - 120
    assert abs(counts["d"] - len(seen) / 2) <= 2


def test_ranks_workers_and_threads_go_on_alike():
    _, state = stopped(mixture(BEFORE), 7)
    now = mixture(AFTER)
    (plain,) = loaders(now)
    plain.load_state_dict(state, change="from_here")
    expected = read([plain], 12)
    for options in ({"num_workers": 2}, {"num_workers": 2, "parallel_method": "process"}):
        group = loaders(now, 2, **options)
        for member in group:
            member.load_state_dict(state, change="from_here")
        assert read(group, 12) == expected
        for member in group:
            member.close()


def test_a_stock_data_loader_goes_on_with_the_dataset_that_continued_gives():
    _, state = stopped(mixture(BEFORE), 7)
    (loader,) = loaders(mixture(AFTER))
    loader.load_state_dict(state, change="from_here")
    expected = read([loader], 12)
    loader.load_state_dict(state, change="from_here")
    read([loader], 2)
    later = loader.state_dict()
    sampler = ElasticBatchSampler(mixture(AFTER), 24)
    with pytest.raises(OrderError, match="continued"):
        sampler.load_state_dict(later)
    for saved, change, begin in ((state, "from_here", 0), (later, None, 2)):
        dataset, record = continued(mixture(AFTER), saved, change=change)
        sampler = ElasticBatchSampler(dataset, 24)
        sampler.load_state_dict(record)
        stock = iter(torch.utils.data.DataLoader(dataset, batch_sampler=sampler))
        assert [next(stock).tolist() for _ in range(12 - begin)] == expected[begin:]


def test_only_a_mixture_can_change_and_only_where_its_draws_are_a_count():
    for dataset in (ShuffledDataset(Ids("a"), 1), ShuffledDataset(mixture(BEFORE), 1)):
        _, state = stopped(dataset, 3)
        (loader,) = loaders(ShuffledDataset(mixture(AFTER), 1))
        with pytest.raises((OrderError, StateMismatchError)):
            loader.load_state_dict(state, change="from_here")
    _, state = stopped(ShuffledDataset(mixture(BEFORE), 1), 3)
    (loader,) = loaders(ShuffledDataset(mixture(AFTER), 1))
    with pytest.raises(OrderError, match="a count a source"):
        loader.load_state_dict(state, change="from_here")


# Mixtures that a state cannot describe.


def many(weights, **options):
    sources = {f"source-{number:04}-{'x' * 40}": Ids("a") for number in range(len(weights))}
    return MixedDataset(sources, weights, seed=1, epoch_size=3000, **options)


def test_a_mixture_of_too_many_sources_is_changed_with_the_one_of_before():
    rng = np.random.default_rng(0)
    old, new = many(rng.integers(1, 1 << 40, 700).tolist()), many(rng.integers(1, 1 << 40, 700).tolist())
    (loader,) = loaders(old)
    read([loader], 20)
    state = json.loads(json.dumps(loader.state_dict()))
    assert len(json.dumps(state)) < 4096
    (loader,) = loaders(new)
    with pytest.raises(StateError, match="was="):
        loader.load_state_dict(state, change="from_here")
    with pytest.raises(StateError, match="mixture differ"):
        loader.load_state_dict(state, change="from_here", was=new)
    loader.load_state_dict(state, change="from_here", was=old)
    expected = read([loader], 20)
    loader.load_state_dict(state, change="from_here", was=old)
    read([loader], 5)
    later = json.loads(json.dumps(loader.state_dict()))
    assert len(json.dumps(later)) < 4096 + 16 * 700
    (loader,) = loaders(many(new.options.points[0][1]))
    loader.load_state_dict(later)
    assert read([loader], 15) == expected[5:]


# Packed rows: a window that was begun is finished as it was planned.


def packed(weights, **options):
    return PackedDataset(mixture(weights, Documents, epoch_size=2000, **options), 16, window=300)


def documents(batch):
    """(source, item) of the documents of a batch of packed rows."""
    return list(zip(batch["source_ids"].tolist(), batch["document_ids"].tolist(), strict=True))


def read_documents(loader, steps=None):
    out = []
    for batch in loader:
        names = list(loader.dataset.base.sources)
        out.append([(names[source], item) for source, item in documents(batch)])
        if len(out) == steps:
            break
    return out


WITH_A = {"a": 0, **AFTER}


@pytest.mark.parametrize("steps", [0, 1, 3, 10, 19, 20, 31])
def test_packed_rows_finish_their_window_and_change_with_the_next(steps):
    (loader,) = loaders(packed(BEFORE), size=4)
    first = read_documents(loader, steps) if steps else []
    state = json.loads(json.dumps(loader.state_dict()))
    (later,) = loaders(packed(WITH_A), size=4)
    with pytest.raises(StateMismatchError):
        later.load_state_dict(state)
    later.load_state_dict(state, change="from_here")
    rest = read_documents(later)
    seen = flat(first + rest)
    pieces = Counter(seen)
    assert set(pieces.values()) == {1}  # no document of up to 7 tokens is cut by rows of 16
    end = (state["window"] + bool(state["row"])) * 300
    old = packed(BEFORE).base.draws_before(end)
    counts = Counter(name for name, _ in seen)
    assert counts["a"] == old["a"] or steps == 0
    now = 2000 - end
    assert abs(counts["d"] - now / 2) <= 130  # the rows that fill no batch at the end are dropped

    # and again from every later state
    later.load_state_dict(state, change="from_here")
    for stop in (1, 5, 12):
        taken = read_documents(later, stop)
        again = json.loads(json.dumps(later.state_dict()))
        assert len(json.dumps(again)) < 4096
        (later,) = loaders(packed(WITH_A), size=4)
        later.load_state_dict(again)
        assert taken == rest[:stop]
        rest = rest[stop:]
    assert read_documents(later) == rest


def test_a_source_that_leaves_while_a_window_still_needs_it_is_refused():
    (loader,) = loaders(packed(BEFORE), size=4)
    read_documents(loader, 3)
    (later,) = loaders(packed(AFTER), size=4)
    with pytest.raises(OrderError, match="source 'a' left the mixture, but is still needed up to position 300"):
        later.load_state_dict(loader.state_dict(), change="from_here")


def test_windows_keep_their_places_when_a_mixture_below_them_changes():
    (loader,) = loaders(packed(BEFORE), size=4)
    read_documents(loader, 3)
    other = PackedDataset(mixture(WITH_A, Documents, epoch_size=1900), 16, window=300)
    with pytest.raises(OrderError, match="epoch_size=2000"):
        loaders(other, size=4)[0].load_state_dict(loader.state_dict(), change="from_here")


def test_the_rows_of_an_epoch_within_which_a_mixture_changed_have_no_number_and_are_a_list_all_the_same():
    (loader,) = loaders(packed(BEFORE), size=4)
    read_documents(loader, 20)
    (later,) = loaders(packed(WITH_A), size=4)
    later.load_state_dict(loader.state_dict(), change="from_here")
    for asked in (len, lambda loader: loader.dataset_size):
        with pytest.raises(TypeError, match="rows of epoch 0 cannot be counted: the mixture below was changed"):
            asked(later)
    assert later.describe()["packing"] == "best_fit"
    assert len(list(later)) > 10  # list() asks for the length
    assert len(later) == len(list(later)), "epoch 1 is whole"
