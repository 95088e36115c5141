"""Each size, layout of shards, number of ranks, workers and rows a batch, shuffled or not, from one stream and three.

What a cell must show: all samples are seen, none with two ranks but for declared repeats, all ranks make equally many
steps, lengths are as counted, and the order is that of one process. The order knows sizes, layouts, streams and the
shuffle alone, and a share ranks, workers and batches alone: each is tested in all its combinations. Of both together,
as datasets and loaders, there are too many: every so-manieth cell is tested, with a stride that no axis divides. Ranks
are run one after the other in this process; a worker is pretended by what torch tells its workers.
"""

import contextlib
import functools
import itertools

import numpy as np
import pytest
import torch.utils.data
import torch.utils.data._utils.worker as torch_worker

from headrace import StreamingDataLoader
from headrace.errors import OrderError
from headrace.loading.world import World
from headrace.planning import Cursor
from headrace.streaming.iteration import Share
from loading.samples import flat, together
from streaming_dataset.scenes import LAYOUTS, dataset_of, stores_of
from streaming_dataset.written import numbers_of

SIZES = range(102)
FEW_SIZES = [*range(12), 49, 63, 64, 65, 100, 101]
RANKS = range(1, 9)
WORKERS = range(4)
BATCHES = range(1, 8)
ORDERS = list(itertools.product(SIZES, LAYOUTS, (1, 3), (False, True)))
CELLS = [(*order, *rest) for order in ORDERS for rest in itertools.product(RANKS, WORKERS, BATCHES)]
FAST, SLOW = 1511, 211  # primes
PARTS = 4


def sparse(stride, part):
    """The cells of one of PARTS tests, so that several processes share the work."""
    return CELLS[::stride][part::PARTS]


@functools.cache
def stores(count, layout, num_streams):
    return stores_of(num_streams, count, layout)


@functools.cache
def order_of(count, layout, num_streams, shuffle, epochs=2):
    """The order of a job of one process, which is the same however its samples are shared."""
    dataset = dataset_of(stores(count, layout, num_streams), shuffle=shuffle)
    return [numbers_of(dataset) for _ in range(epochs)]


@pytest.mark.parametrize("sizes", [FEW_SIZES, pytest.param(SIZES, marks=pytest.mark.slow)], ids=["few", "all"])
@pytest.mark.parametrize("num_streams", [1, 3])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_epoch_of_every_size_and_layout_has_every_sample_once(layout, num_streams, sizes):
    for count, shuffle in itertools.product(sizes, (False, True)):
        first, second = order_of(count, layout, num_streams, shuffle)
        assert sorted(first) == sorted(second) == list(range(count))
        if not shuffle:
            assert first == second == list(range(count))
        elif count > 10:
            assert first != second != list(range(count))


def check_shares(count, ranks, workers, batch):
    """The rows of all ranks and workers of an epoch: dealt one by one, batch by batch to workers in turn."""
    num_workers = max(1, workers)
    steps = -(-count // (ranks * batch))
    rows_a_rank = -(-count // ranks)
    dealt = np.full((steps * batch, ranks), -1)
    for rank, worker in itertools.product(range(ranks), range(num_workers)):
        share = Share(count, batch, World(rank, ranks), worker, num_workers)
        found = np.concatenate([np.empty(0, np.int64), *share.positions(Cursor(), 0)])
        assert share.rows_a_rank == rows_a_rank
        mine = [row for step in range(worker, steps, num_workers) for row in range(step * batch, (step + 1) * batch)]
        dealt[[row for row in mine if row < rows_a_rank], rank] = found
        if worker == 0:
            assert share.padding(0) == rows_a_rank - len(range(rank, count, ranks))
    expected = np.arange(rows_a_rank * ranks) % max(1, count)
    assert (dealt[:rows_a_rank].ravel() == expected).all()
    assert (dealt[rows_a_rank:] == -1).all()


def test_ranks_and_workers_share_the_rows_of_an_epoch_of_any_size():
    for count, ranks in itertools.product(SIZES, RANKS):
        for workers in (0, 3):
            check_shares(count, ranks, workers, 1 + (count + 3 * ranks + workers) % 7)


@pytest.mark.slow
@pytest.mark.parametrize("workers", WORKERS)
def test_ranks_and_workers_share_the_rows_of_an_epoch_in_every_combination(workers):
    for count, ranks, batch in itertools.product(SIZES, RANKS, BATCHES):
        check_shares(count, ranks, workers, batch)


@contextlib.contextmanager
def as_worker(number, num_workers):
    """Within it this process is worker `number` of a DataLoader; None of none is the main process."""
    told = torch_worker._worker_info
    if num_workers:
        torch_worker._worker_info = torch_worker.WorkerInfo(
            id=number, num_workers=num_workers, seed=1000 + number, dataset=None
        )
    try:
        yield
    finally:
        torch_worker._worker_info = told


def rows_of_a_rank(make, num_workers, batch_size, epochs):
    """For each epoch the numbers that a rank's DataLoader collects from its workers in turn; make() is its dataset."""
    turns = []
    for number in range(max(1, num_workers)):
        with as_worker(number, num_workers):
            dataset = make()
            turns.append([batches_of(numbers_of(dataset), batch_size) for _ in range(epochs)])
    return [collected([worker[epoch] for worker in turns]) for epoch in range(epochs)]


def batches_of(rows, batch_size):
    return [rows[begin : begin + batch_size] for begin in range(0, len(rows), batch_size)]


def collected(workers):
    """The rows of one batch after another, from each worker in turn."""
    turns = itertools.zip_longest(*workers)
    batches = [batch for turn in turns for batch in turn]
    while batches and batches[-1] is None:
        batches.pop()
    assert None not in batches, "a worker ended before its turn"
    assert len({len(batch) for batch in batches[:-1]}) <= 1, "a batch within an epoch is short"
    return [row for batch in batches for row in batch]


def check_iterations(order, ranks, workers, batch, *, processes=False):
    """Iterations over the dataset itself: as many rows for all ranks, of which those that repeat are declared."""
    count, layout, num_streams, shuffle = order
    of_stores = stores(count, layout, num_streams)
    rows, padding = [], 0
    for rank in range(ranks):

        def make(rank=rank):
            return dataset_of(of_stores, shuffle=shuffle, batch_size=batch, rank=rank, world_size=ranks)

        dataset = make()
        if processes:
            loader = torch.utils.data.DataLoader(
                make(), batch_size=batch, num_workers=workers, multiprocessing_context="fork"
            )
            rows.append([numbers_of(loader) for _ in range(2)])
            assert len(loader) == -(-len(dataset) // batch)
        else:
            rows.append(rows_of_a_rank(make, workers, batch, 2))
        assert [len(epoch) for epoch in rows[-1]] == [len(dataset)] * 2 == [-(-count // ranks)] * 2
        padding += dataset.padding
    for epoch, expected in enumerate(order_of(*order)):
        dealt = [row for step in zip(*(mine[epoch] for mine in rows), strict=True) for row in step]
        assert dealt == list(itertools.islice(itertools.cycle(expected), len(dealt)))
        assert len(dealt) == count + padding
        assert padding < ranks


def check_loaders(order, ranks, workers, batch, *, drop_last, **options):
    """StreamingDataLoaders: every sample once, or full batches alone."""
    count, layout, num_streams, shuffle = order
    size = ranks * batch
    epochs = []
    for rank in range(ranks):
        dataset = dataset_of(stores(count, layout, num_streams), shuffle=shuffle, rank=rank, world_size=ranks)
        with StreamingDataLoader(
            dataset, batch_size=batch, num_workers=workers, drop_last=drop_last, **options
        ) as loader:
            if drop_last and count < size:
                for ask in (len, list):
                    with pytest.raises(OrderError, match=f"{count} samples do not fill one global batch of {size}"):
                        ask(loader)
                continue
            epochs.append([[numbers_of([step]) for step in loader] for _ in range(2)])
            assert {len(loader)} == {len(epoch) for epoch in epochs[-1]}
            assert len(loader) == (count // size if drop_last else -(-count // size))
            assert loader.padding == 0
    if not epochs:
        return
    for epoch, expected in enumerate(order_of(*order)):
        ranks_of = [mine[epoch] for mine in epochs]
        for step in zip(*ranks_of, strict=True):
            lengths = [len(rows) for rows in step]
            assert max(lengths) - min(lengths) <= 1
        steps = together(ranks_of)
        assert {len(step) for step in steps[:-1]} <= {size}
        assert flat(steps) == expected[: count // size * size if drop_last else count]


@pytest.mark.parametrize("part", range(PARTS))
def test_iterations_give_all_ranks_equally_many_rows_of_one_order(part):
    for *order, ranks, workers, batch in sparse(FAST, part):
        check_iterations(order, ranks, workers, batch)


@pytest.mark.parametrize("part", range(PARTS))
def test_loaders_give_every_sample_once_in_equally_many_steps(part):
    for number, (*order, ranks, _, batch) in enumerate(sparse(FAST, part)):
        check_loaders(order, ranks, 0, batch, drop_last=number % 2 == 0)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("part", range(PARTS))
def test_both_hold_in_many_more_cells(part):
    for *order, ranks, workers, batch in sparse(SLOW, part):
        check_iterations(order, ranks, workers, batch)
        for drop_last in (False, True):
            check_loaders(order, ranks, 0, batch, drop_last=drop_last)


PROCESSES = [
    # samples, layout, streams, shuffle; ranks, workers, batch
    ((0, "one shard", 1, True), 2, 1, 3),
    ((1, "skewed", 3, True), 2, 3, 2),
    ((101, "skewed", 3, True), 3, 2, 7),
]


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
@pytest.mark.parametrize(("order", "ranks", "workers", "batch"), PROCESSES, ids=str)
def test_real_worker_processes_change_nothing(order, ranks, workers, batch):
    check_iterations(order, ranks, workers, batch, processes=True)
    check_loaders(order, ranks, workers, batch, drop_last=False, multiprocessing_context="fork")


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.filterwarnings("ignore:This DataLoader will create")
@pytest.mark.parametrize("persistent", [False, True])
def test_real_worker_processes_change_nothing_in_more_cells(persistent):
    for *order, ranks, workers, batch in CELLS[persistent::16223]:
        if workers:
            check_iterations(order, ranks, workers, batch, processes=True)
            options = {"multiprocessing_context": "fork", "persistent_workers": persistent}
            check_loaders(order, ranks, workers, batch, drop_last=persistent, **options)
