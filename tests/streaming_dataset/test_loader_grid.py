"""What each rank gets, by size, layout, ranks, workers, batch and drop_last: cover, no repeats, equal steps."""

import pickle
from functools import partial
from itertools import product

import pytest

from headrace import ElasticBatchSampler, StatefulDataLoader, StreamingDataLoader, StreamingDataset
from headrace.errors import OrderError
from streaming_dataset.scenes import LAYOUTS, Ranks, ids, loader_of, merged, numbers, streams

SIZES = (1, 2, 7, 8, 9, 64, 100, 101)
RANKS = (1, 2, 3, 4, 8)
BATCHES = (1, 4, 7)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """made(size, streams, **options) -> a function that makes the dataset."""
    folder = tmp_path_factory.mktemp("streams")

    def make(size, parts=1, **options):
        counts = [size] if parts == 1 else [size // 3, size // 6, size - size // 3 - size // 6]
        return partial(streams, folder, counts, **options)

    return make


def check_epoch(steps, size, world_size, batch_size, drop_last):
    """Everything that one epoch on all ranks must be."""
    rows = [row for step in steps for row in merged(step)]
    rows_a_step = world_size * batch_size
    assert len(set(rows)) == len(rows)
    assert set(rows) <= set(range(size))
    if drop_last:
        assert len(steps) == size // rows_a_step
        assert all(len(rows) == batch_size for step in steps for rows in step)
    else:
        assert sorted(rows) == list(range(size))
        assert len(steps) == -(-size // rows_a_step)
        assert all(len(rows) == batch_size for step in steps[:-1] for rows in step)
        assert max(map(len, steps[-1])) - min(map(len, steps[-1])) <= 1
    return rows


@pytest.mark.parametrize("drop_last", [False, True], ids=["all", "drop last"])
@pytest.mark.parametrize("shuffle", [False, True], ids=["stored order", "shuffled"])
@pytest.mark.parametrize("parts", [1, 3], ids=["one stream", "three streams"])
def test_ranks_share_each_epoch_in_equally_many_steps(made, parts, shuffle, drop_last):
    for size, world_size, batch_size in product(SIZES, RANKS, BATCHES):
        if parts > size:
            continue
        ranks = Ranks(made(size, parts, shuffle=shuffle), world_size, batch_size, drop_last=drop_last)
        if drop_last and size < world_size * batch_size:
            for loader in ranks.loaders:
                with pytest.raises(OrderError, match=f"{size} samples do not fill one global batch"):
                    len(loader)
                with pytest.raises(OrderError, match=f"{size} samples do not fill one global batch"):
                    iter(loader)
            continue
        for _ in range(2):
            steps = ranks.epoch()
            assert {len(loader) for loader in ranks.loaders} == {len(steps)}
            rows = check_epoch(steps, size, world_size, batch_size, drop_last)
            if not shuffle:
                assert rows == list(range(len(rows)))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_how_samples_lie_in_shards_changes_no_count(layout, tmp_path):
    for size in (1, 9, 64):
        place = numbers(tmp_path / f"{size}", size, layout=layout)
        dataset_of = partial(StreamingDataset, local=place, shuffle=True)
        for world_size in (1, 3):
            with Ranks(dataset_of, world_size, 4) as ranks:
                check_epoch(ranks.epoch(), size, world_size, 4, drop_last=False)


def test_every_world_size_that_divides_the_global_batch_gives_the_same_global_batches(made):
    expected = None
    for world_size in (1, 2, 3, 4, 6, 12):
        with Ranks(made(101, 3, shuffle=True), world_size, 12 // world_size) as ranks:
            steps = [merged(step) for _ in range(2) for step in ranks.epoch()]
        expected = expected or steps
        assert steps == expected


def check_workers(made, world_size, workers, batch_size, drop_last, size=33, **options):
    reference = [
        loader_of(made(size, 3, shuffle=True), rank, world_size, batch_size, drop_last=drop_last)
        for rank in range(world_size)
    ]
    for rank, alone in enumerate(reference):
        dataset_of = made(size, 3, shuffle=True)
        with loader_of(
            dataset_of, rank, world_size, batch_size, drop_last=drop_last, num_workers=workers, **options
        ) as loader:
            for _ in range(2):
                assert ids(loader) == ids(alone)
                assert loader.state_dict() == alone.state_dict()
                assert len(loader) == len(alone)


@pytest.mark.parametrize("drop_last", [False, True], ids=["all", "drop last"])
@pytest.mark.parametrize(("world_size", "workers", "batch_size"), [(1, 1, 7), (2, 3, 4), (3, 2, 1)])
def test_any_number_of_workers_gives_the_same_batches_and_states(made, world_size, workers, batch_size, drop_last):
    check_workers(made, world_size, workers, batch_size, drop_last, persistent_workers=workers == 3)


@pytest.mark.slow
@pytest.mark.parametrize("drop_last", [False, True], ids=["all", "drop last"])
@pytest.mark.parametrize("persistent_workers", [False, True])
def test_any_number_of_workers_gives_the_same_batches_and_states_in_the_rest_of_the_grid(
    made, persistent_workers, drop_last
):
    cells = list(product((1, 2, 3, 4), (1, 2, 3), BATCHES, (9, 33)))
    for world_size, workers, batch_size, size in cells[2 * persistent_workers + drop_last :: 5]:  # no axis has 5 values
        if not (drop_last and size < world_size * batch_size):
            check_workers(made, world_size, workers, batch_size, drop_last, size, persistent_workers=persistent_workers)


@pytest.mark.parametrize(
    ("size", "batch_size", "drop_last", "steps"), [(100, 4, True, 25), (50, 8, False, 7), (50, 8, True, 6)]
)
def test_the_length_is_the_number_of_batches_with_four_workers(made, size, batch_size, drop_last, steps):
    with loader_of(made(size), 0, 1, batch_size, drop_last=drop_last, num_workers=4) as loader:
        got = ids(loader)
        assert len(loader) == len(got) == steps
    sizes = [len(batch) for batch in got]
    assert sizes == [batch_size] * (steps - 1) + [batch_size if drop_last else size - batch_size * (steps - 1)]


def test_a_rank_without_rows_in_the_last_step_gets_a_batch_of_no_rows(made):
    for workers in (0, 1):
        with loader_of(made(9), 3, 4, 2, num_workers=workers) as loader:
            *_, last = loader
        assert last["id"].shape == (0,)
        assert last["id"].dtype.is_floating_point is False
        assert last["text"] == []


@pytest.mark.parametrize(
    ("size", "options", "told"),
    [(9, {}, "3 of 4 ranks"), (12, {}, None), (9, {"pad": True}, None), (9, {"drop_last": True}, None)],
)
def test_it_is_told_once_that_ranks_get_no_rows(size, options, told, made, caplog):
    loader = loader_of(made(size), 0, 4, 2, **options)
    for _ in range(2):
        ids(loader)
    messages = [record.getMessage() for record in caplog.records]
    assert len(messages) == (told is not None)
    assert told is None or (told in messages[0] and "pad=True" in messages[0])


def test_a_collate_function_of_the_users_gets_an_empty_list_where_a_rank_has_no_rows(made):
    loader = loader_of(made(9), 3, 4, 2, collate_fn=len)
    assert list(loader) == [2, 0]


def test_padding_fills_the_last_step_with_the_first_rows(made):
    with Ranks(made(9), 4, 2, pad=True) as ranks:
        steps = ranks.epoch()
        assert [merged(step) for step in steps] == [list(range(8)), [8, *range(7)]]
        assert [loader.padding for loader in ranks.loaders] == [1, 2, 2, 2]
        assert [loader.num_samples_yielded for loader in ranks.loaders] == [4, 4, 4, 4]


@pytest.mark.parametrize("workers", [0, 2])
def test_without_a_batch_size_samples_come_one_by_one_and_as_many_on_each_rank(made, workers):
    got = []
    for rank in range(2):
        with loader_of(made(9, batch_size=4), rank, 2, None, num_workers=workers) as loader:
            got.append([sample["id"] for sample in loader])
            assert len(loader) == 5
            assert loader.padding == rank
    assert got == [[0, 2, 4, 6, 8], [1, 3, 5, 7, 0]]


def test_over_the_dataset_itself_the_rows_are_those_of_its_rank(made):
    dataset_of = made(33, 3, shuffle=True)
    for options in ({"rank": 1, "world_size": 2}, {"rank": 3, "world_size": 4, "replication": 2}):
        ours = ids(StreamingDataLoader(dataset_of(**options), 4, drop_last=True))
        with StatefulDataLoader(dataset_of(**options), local_batch_size=4) as other:
            assert (other.rank, other.world_size) == (1, 2)
            assert ids(pickle.loads(pickle.dumps(other))) == ids(other) == ours
        dataset = dataset_of(**options)
        sampler = ElasticBatchSampler(dataset, 8)
        assert [[dataset.as_view()[item]["id"] for item in items] for items in sampler] == ours
    told = StatefulDataLoader(dataset_of(rank=1, world_size=2), global_batch_size=8, rank=0, world_size=4)
    assert (told.rank, told.world_size) == (0, 4)


def test_an_order_that_depends_on_the_number_of_ranks_is_made_when_that_is_known(made, monkeypatch):
    dataset_of = made(64, 3, batch_size=4, batching_method="device_per_stream")
    dataset = dataset_of()
    assert dataset.epoch_size
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert ids(StreamingDataLoader(dataset)) == ids(StreamingDataLoader(dataset_of(rank=1, world_size=2)))


def test_statefuldataloader_over_the_view_gives_the_same_rows_and_states(made):
    dataset_of = made(33, 3, shuffle=True)
    ours = loader_of(dataset_of, 1, 2, 4, drop_last=True)
    view = dataset_of(rank=1, world_size=2).as_view()
    other = StatefulDataLoader(view, local_batch_size=4, rank=1, world_size=2)
    assert ids(ours) == ids(other)
    assert ours.state_dict() == other.state_dict()
