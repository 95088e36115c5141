"""How far an order is from an ideal shuffle, and what it fetches: against closed forms and a run through everything."""

from collections import OrderedDict

import numpy as np
import pytest

from headrace.inspection.quality import Layout, Quality, shuffle_distance, shuffle_qualities
from headrace.planning import shuffled
from headrace.planning.pools import PooledShuffle


def by_order(layout, pools, **options):
    return {(found.order, found.pool_items): found for found in shuffle_qualities(layout, pools, **options)}


def test_distance_is_none_for_an_ideal_shuffle_all_for_none_and_one_in_k_for_pools_of_k_shards():
    layout = Layout(np.full(1000, 1000), 10**9, 10**8, 256)
    found = by_order(layout, [1000, 4000, 16_000, 64_000])
    assert found["none", None].distance > 0.999
    assert found["global", None].distance < 0.01
    for shards in (4, 16, 64):
        assert found["pooled", 1000 * shards].distance == pytest.approx(1 / shards, abs=0.02)


def test_lanes_mix_more_shards_in_a_batch():
    layout = Layout(np.full(1000, 1000), 10**9, 10**8, 256)
    one, eight = (by_order(layout, [4000], lanes=lanes)["pooled", 4000].distance for lanes in (1, 8))
    assert eight == pytest.approx(one / 8, abs=0.02)


def test_distance_is_exact_where_every_pair_is_looked_at():
    n = 60
    pairs = np.array([(a, b) for a in range(n) for b in range(n) if a != b])
    assert shuffle_distance(pairs, n) == pytest.approx(0, abs=1e-12)
    assert shuffle_distance(np.array([[7, 7]]), n) == 1


def fetched_by_all(items, shard_items, shard_bytes, cache_bytes):
    """Bytes that a reader of whole shards fetches, access by access."""
    kept, fetched = OrderedDict(), 0
    for shard in np.searchsorted(np.cumsum(shard_items), items, side="right").tolist():
        if shard not in kept:
            fetched += shard_bytes[shard]
        kept[shard] = None
        kept.move_to_end(shard)
        while sum(shard_bytes[held] for held in kept) > cache_bytes and len(kept) > 1:
            kept.popitem(last=False)
    return fetched


@pytest.mark.parametrize("cache", [0, 2000, 6000, 20_000])
@pytest.mark.parametrize("lanes", [1, 2])
def test_small_epochs_are_read_through_exactly(cache, lanes):
    shards = np.array([40, 0, 100, 60, 100, 30, 70, 100])
    layout = Layout(shards, 5000 * 10, cache, 16)
    shard_bytes = (shards * 100).tolist()
    found = by_order(layout, [50, 200], lanes=lanes, seed=3)
    positions = np.arange(500)
    for pool_items in (50, 200):
        items = PooledShuffle(shards, pool_items, lanes, 3)(positions)
        assert found["pooled", pool_items].fetched_bytes == fetched_by_all(items, shards, shard_bytes, cache)
    assert found["global", None].fetched_bytes == fetched_by_all(
        shuffled(positions, 500, 3), shards, shard_bytes, cache
    )
    assert found["none", None].fetched_bytes == 50_000


@pytest.mark.parametrize(("pool_shards", "cache_shards"), [(4, 10), (4, 2), (16, 10), (16, 20)])
def test_the_model_fetches_what_a_run_through_all_of_a_large_epoch_does(pool_shards, cache_shards):
    shards = np.full(64, 1 << 14)  # a million items: read through on a model of a quarter
    layout = Layout(shards, 64 * 1000, cache_shards * 1000, 64)
    pool_items = pool_shards << 14
    items = PooledShuffle(shards, pool_items, 1, 0)(np.arange(1 << 20))
    expected = fetched_by_all(items, shards, [1000] * 64, cache_shards * 1000)
    assert by_order(layout, [pool_items])["pooled", pool_items].fetched_bytes == pytest.approx(expected, rel=0.05)


def test_everything_is_fetched_once_where_everything_is_kept():
    layout = Layout(np.full(50, 10**9), 10**12, 10**12, 4096)
    assert {found.fetched_bytes for found in shuffle_qualities(layout)} == {10**12}
    assert [found.pool_items for found in shuffle_qualities(layout)] == [None, 10**9, 4 * 10**9, 16 * 10**9, None]


@pytest.mark.parametrize("shards", [[], [0], [1], [0, 1, 0]])
def test_fewer_than_two_samples_have_no_order_to_speak_of(shards):
    assert shuffle_qualities(Layout(np.array(shards, np.int64), 100, 10, 8)) == []


@pytest.mark.parametrize("shards", [[2], [1, 1], [3, 0], [1] * 5])
def test_the_smallest_datasets_have_a_quality(shards):
    found = shuffle_qualities(Layout(np.array(shards), 100, 10, 8), lanes=3)
    assert [one.order for one in found if one.order != "pooled"] == ["none", "global"]
    assert all(isinstance(one, Quality) and 0 <= one.distance <= 1 for one in found)
