"""Laws 1 and 4 with real loaders: every sample once an epoch, and a run that continues with other global batches."""

import json

from hypothesis import given
from hypothesis import strategies as st

from loading.samples import Numbers, epoch, make, take, together

WORLDS = [1, 2, 3, 4, 6, 8]


def ranks(num_items, world_size, seed, drop_last, *, size, threads=0, state=None):
    loaders = [
        make(
            Numbers(num_items),
            rank=rank,
            world_size=world_size,
            global_batch_size=size,
            shuffle=seed is not None,
            shuffle_seed=seed,
            drop_last=drop_last,
            num_workers=threads,
        )
        for rank in range(world_size)
    ]
    for loader in loaders:
        if state is not None:
            loader.load_state_dict(json.loads(state))
    return loaders


def state_of(loaders):
    states = {json.dumps(loader.state_dict()) for loader in loaders}
    assert len(states) == 1
    return states.pop()


@given(
    num_items=st.integers(1, 60),
    sizes=st.lists(st.integers(1, 40), min_size=2, max_size=5),
    steps=st.lists(st.integers(0, 4), min_size=5, max_size=5),
    seed=st.integers(0, 99),
)
def test_with_changing_global_batches_too_the_rows_go_on_from_the_position(num_items, sizes, steps, seed):
    state, got = None, []
    for size, count in zip(sizes, steps, strict=False):
        (loader,) = ranks(num_items, 1, seed, False, size=size, state=state)
        got += [one for batch in take(loader, count) for one in batch]
        state = state_of([loader])
    (whole,) = ranks(num_items, 1, seed, False, size=1)
    assert [[one] for one in got] == take(whole, len(got))


@given(
    num_items=st.integers(1, 200),
    world_size=st.sampled_from(WORLDS),
    local=st.integers(1, 9),
    threads=st.integers(0, 3),
    seed=st.integers(0, 99) | st.none(),
)
def test_every_sample_is_served_once_an_epoch_when_nothing_is_dropped(num_items, world_size, local, threads, seed):
    loaders = ranks(num_items, world_size, seed, False, size=local * world_size, threads=threads)
    for _ in range(2):
        batches = together([epoch(loader) for loader in loaders])
        assert sorted(one for batch in batches for one in batch) == list(range(num_items))
