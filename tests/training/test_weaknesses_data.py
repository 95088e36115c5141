"""d9d's weaknesses 1 to 7, wrong data without a word: what Headrace does in their place. A test a weakness."""

from itertools import chain

import numpy as np
import pytest
from torch.utils.data import DataLoader

from headrace import BufferSortedDataset, ShardedDataset, ShuffledDataset, StatefulDataLoader
from headrace.errors import OrderError
from training.ranks import rows_of, stream_of, streams_of
from training.weakness_scenes import LENGTHS, Keyed, mean_padding, second_sample, shards


@pytest.mark.parametrize("ranks", [1, 2, 4, 8])
def test_1_the_second_sample_without_a_seed_serves_every_sample_once_on_any_number_of_ranks(ranks):
    streams = [
        second_sample(Keyed(), rank, ranks, buffer_size=1024, global_batch_size=256, microbatch_size=8)
        for rank in range(ranks)
    ]
    assert sorted(chain(*(rows_of(pack) for stream in streams for pack in stream))) == list(range(4096))


@pytest.mark.parametrize("buffer_size", [64, 256, 1024])
def test_2_a_shuffle_above_buckets_is_refused_and_below_them_it_loses_nothing_and_keeps_them(buffer_size):
    with pytest.raises(OrderError, match="shuffle=True over a BufferSortedDataset, which already orders"):
        stream_of(
            BufferSortedDataset(Keyed(), buffer_size, 16),
            {"global_batch_size": 16, "microbatch_size": 16, "shuffle": True},
        )
    base = Keyed()
    config = {"global_batch_size": 16, "microbatch_size": 16, "shuffle": True}
    stream = stream_of(base, config | {"buffer_size": buffer_size, "pack_size": 16})
    rows = [row for pack in stream for row in rows_of(pack)]
    assert sorted(rows) == list(range(4096))
    assert base.calls == 4096
    plain = [row for pack in stream_of(Keyed(), config) for row in rows_of(pack)]
    assert mean_padding(plain, LENGTHS, 16) > 800
    assert mean_padding(rows, LENGTHS, 16) < 800 * 48 / buffer_size
    shuffled = ShuffledDataset(BufferSortedDataset(Keyed(), buffer_size, 16), 1)  # whoever wants it, has it by the view
    assert sorted(shuffled[:]) == list(range(4096))


@pytest.mark.parametrize(("buffer_size", "batch_size"), [(48, 32), (24, 16), (64, 48), (100, 7)])
def test_3_workers_agree_on_every_buffer_so_that_their_number_is_invisible(buffer_size, batch_size):
    view = BufferSortedDataset(Keyed(LENGTHS[:480]), buffer_size, 12)
    orders = [
        list(chain(*DataLoader(view, batch_size=batch_size, collate_fn=list, num_workers=workers)))
        for workers in (0, 1, 3)
    ]
    assert sorted(orders[0]) == list(range(480))
    assert orders[0] == orders[1] == orders[2]


def test_4_a_second_pass_is_the_same_order_or_a_new_one_as_was_asked_whatever_the_number_of_workers():
    keys = LENGTHS[:96]
    passes = {}
    for workers in (0, 2):
        loader = DataLoader(BufferSortedDataset(Keyed(keys), 24, 8), batch_size=8, collate_fn=list, num_workers=workers)
        passes[workers] = [list(chain(*loader)) for _ in range(2)]
        assert passes[workers][0] == passes[workers][1], "nothing is shuffled, so nothing changes"
    assert passes[0] == passes[2]

    new = {}
    for workers in (0, 2):
        order = BufferSortedDataset(ShuffledDataset(Keyed(keys), 7), 24, 8)
        options = {"num_workers": workers, "parallel_method": "process"}
        with StatefulDataLoader(order, list, device="cpu", global_batch_size=8, **options) as loader:
            new[workers] = [list(chain(*loader)) for _ in range(2)]
        assert new[workers][0] != new[workers][1], "each epoch is shuffled anew"
        assert sorted(new[workers][0]) == sorted(new[workers][1]) == list(range(96))
    assert new[0] == new[2]


def test_5_unpadded_chunks_cover_every_sample_once_however_many_of_them_are_short():
    for size in range(40):
        for number in range(1, 12):
            chunks = shards(range(size), number, "chunked", pad=False)
            assert [item for chunk in chunks for item in chunk] == list(range(size))
            assert [len(chunk) for chunk in chunks] == [len(list(chunk)) for chunk in chunks]


@pytest.mark.parametrize(("size", "ranks"), [(9, 8), (1001, 64)])
def test_6_padding_is_marked_and_an_evaluation_needs_none(size, ranks):
    metric = np.arange(size) == size - 1  # 1 for the last sample alone

    def mean(rows):
        return metric[rows].mean()

    served = [
        (item, shard.is_padding(place)) for shard in shards(range(size), ranks) for place, item in enumerate(shard)
    ]
    assert mean([item for item, is_padding in served if not is_padding]) == metric.mean()

    config = {"global_batch_size": 2 * ranks, "microbatch_size": 1, "drop_last": False}
    streams = streams_of(range(size), config, ranks)
    assert mean([row for stream in streams for pack in stream for row in rows_of(pack)]) == metric.mean()

    real, repeats = [], 0
    for packs in zip(*streams_of(range(size), config | {"padding": True}, ranks), strict=True):
        assert {len(pack) for pack in packs} == {2}, "with padding all ranks have as much to do"
        for pack in packs:
            for microbatch, again in zip(pack, pack.num_repeats.tolist(), strict=True):
                real += microbatch[: len(microbatch) - again]
                repeats += again
    assert mean(real) == metric.mean()
    assert repeats == -size % (2 * ranks)


def test_7_views_end_where_they_end_and_count_from_the_end_below_zero():
    shard = ShardedDataset(range(10), 4, 1, "sequential", True)
    view = BufferSortedDataset(Keyed(LENGTHS[:10]), 4, 2)
    for dataset in (shard, view):
        items = list(dataset)  # comes to an end
        assert len(items) == len(dataset)
        assert [dataset[place] for place in range(-len(items), 0)] == items
        for outside in (len(items), 100, -len(items) - 1):
            with pytest.raises(IndexError):
                dataset[outside]
