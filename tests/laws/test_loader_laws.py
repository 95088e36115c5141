"""Laws 3 and 4 of the real loader: ranks, threads and prefetching are invisible, and any stop can be gone on from."""

import itertools
import json
from contextlib import ExitStack

from hypothesis import given, settings
from hypothesis import strategies as st

from headrace import ElasticBatchSampler
from loading.samples import Numbers, Slow, epoch, make, numbers, take, together

WORLDS = [1, 2, 3, 4, 6, 8]
SIZE = 24  # rows a global batch: every one of WORLDS divides it

# Each example makes up to 160 loaders with threads, so there are fewer of them, in `make laws` too.
few = settings(max_examples=max(5, settings.default.max_examples // 5))

shapes = st.fixed_dictionaries(
    {
        "world_size": st.sampled_from(WORLDS),
        "num_workers": st.sampled_from([0, 1, 2, 3]),
        "prefetch": st.integers(0, 5),
        "prefetch_bytes": st.sampled_from([None, 1, 100]),
    }
)
orders = st.fixed_dictionaries({"shuffle_seed": st.none() | st.integers(0, 99), "drop_last": st.booleans()})


def order_options(order):
    return {**order, "shuffle": order["shuffle_seed"] is not None}


def ranks(stack, dataset, *, state=None, world_size, **options):
    """A loader on each rank, closed at the end of the stack."""
    loaders = [
        stack.enter_context(make(dataset, rank=rank, world_size=world_size, global_batch_size=SIZE, **options))
        for rank in range(world_size)
    ]
    for loader in loaders:
        if state is not None:
            loader.load_state_dict(json.loads(state))
    return loaders


def endless(dataset, order):
    """The global batches of an uninterrupted run."""
    loader = make(dataset, local_batch_size=SIZE, **order)
    while True:
        yield from epoch(loader)


def state_of(loaders):
    """What every rank says of the run, as text."""
    texts = {json.dumps(loader.state_dict(), sort_keys=True) for loader in loaders}
    assert len(texts) == 1
    return texts.pop()


@few
@given(
    num_items=st.integers(SIZE, 150),
    order=orders,
    stops=st.lists(st.tuples(shapes, st.integers(0, 5)), min_size=20, max_size=20),
)
def test_twenty_stops_over_changing_ranks_and_threads_give_the_uninterrupted_run(num_items, order, stops):
    dataset, order, state = Numbers(num_items), order_options(order), None
    expected = endless(dataset, order)
    for shape, steps in stops:
        with ExitStack() as stack:
            loaders = ranks(stack, dataset, state=state, **shape, **order)
            assert together([take(loader, steps) for loader in loaders]) == list(itertools.islice(expected, steps))
            state = state_of(loaders)


@few
@given(num_items=st.integers(SIZE, 100), order=orders, shape=shapes, stops=st.lists(st.integers(0, 4), max_size=4))
def test_batches_that_threads_make_ahead_are_never_counted(num_items, order, shape, stops):
    dataset, order, state = Slow(num_items), order_options(order), None  # slow: threads do work ahead
    expected = endless(dataset, order)
    for steps in [*stops, 1]:
        with ExitStack() as stack:
            loaders = ranks(stack, dataset, state=state, **{**shape, "world_size": 2}, **order)
            assert together([take(loader, steps) for loader in loaders]) == list(itertools.islice(expected, steps))
            state = state_of(loaders)


moves = st.lists(
    st.one_of(
        st.tuples(st.just("next"), st.integers(1, 6)),
        st.tuples(st.just("iter"), st.just(0)),
        st.tuples(st.just("save and load"), st.just(0)),
        st.tuples(st.just("close"), st.just(0)),
        st.tuples(st.just("epoch"), st.integers(0, 3)),
    ),
    max_size=12,
)


@given(num_items=st.integers(SIZE, 100), order=orders, shape=shapes, moves=moves)
def test_whatever_is_done_to_a_loader_its_next_batch_is_the_one_its_state_tells(num_items, order, shape, moves):
    dataset, order, shape = Numbers(num_items), order_options(order), {**shape, "world_size": 1}
    with ExitStack() as stack:
        (loader,) = ranks(stack, dataset, **shape, **order)
        iterator = iter(loader)
        for move, amount in moves:
            match move:
                case "next":
                    for _ in range(amount):
                        (twin,) = ranks(stack, dataset, state=json.dumps(loader.state_dict()), **shape, **order)
                        batch = next(iterator, None)
                        if batch is None:
                            iterator = iter(loader)
                            batch = next(iterator)
                        assert [numbers(batch)] == take(twin, 1)
                case "iter":
                    begun = loader.state_dict()
                    iterator = iter(loader)
                    after = loader.state_dict()
                    assert after["epoch"] == begun["epoch"]
                    assert after["position"] in (0, begun["position"])
                case "save and load":
                    loader.load_state_dict(loader.state_dict())
                    iterator = iter(loader)
                case "close":
                    before = loader.state_dict()
                    loader.close()
                    assert loader.state_dict() == before
                    loader.load_state_dict(before)
                    iterator = iter(loader)
                case "epoch":
                    loader.set_epoch(amount)
                    iterator = iter(loader)
                    assert loader.state_dict()["epoch"] == amount


@few
@given(
    num_items=st.integers(SIZE, 150),
    order=orders,
    stops=st.lists(st.tuples(st.booleans(), st.sampled_from(WORLDS), st.integers(0, 5)), min_size=8, max_size=8),
)
def test_a_loader_and_a_sampler_take_turns_in_one_run(num_items, order, stops):
    dataset, order = Numbers(num_items), order_options(order)
    expected = endless(dataset, order)
    seed = order["shuffle_seed"]
    state = json.dumps(make(dataset, **order).state_dict())
    for by_sampler, world_size, steps in stops:
        with ExitStack() as stack:
            loaders = ranks(stack, dataset, state=state, world_size=world_size, **order)
            samplers = [
                ElasticBatchSampler(dataset, SIZE, rank, world_size, order["shuffle"], seed or 0, order["drop_last"])
                for rank in range(world_size)
            ]
            for sampler in samplers:
                sampler.load_state_dict(json.loads(state))
            if by_sampler:
                lists = together([list(itertools.islice(sampler, steps)) for sampler in samplers])
                steps = len(lists)  # fewer, where the epoch ended
                states = [sampler.state_dict(batches_consumed=steps) for sampler in samplers]
                assert all(one == states[0] for one in states)
                state = json.dumps(states[0])
            else:
                lists = together([take(loader, steps) for loader in loaders])
                state = state_of(loaders)
            assert lists == list(itertools.islice(expected, steps))
