"""A shuffled view: a dataset in another order, over datasets of ours and of others."""

import pickle
import subprocess
import sys

import numpy as np
import pytest
import torch.utils.data

from headrace.errors import OptionError
from headrace.planning import Cursor, encode_state, shuffled
from headrace.views import ShuffledDataset, dataset_settings, is_view
from planning import reference


class Windows:
    """As our own datasets are: plain items in arrays, lengths, settings; anything else is refused."""

    def __init__(self, num_samples):
        self.num_samples = num_samples
        self.calls = []

    def __len__(self):
        return self.num_samples

    def __getitem__(self, index):
        return self.__getitems__(np.array([index]))[0]

    def __getitems__(self, items):
        assert isinstance(items, np.ndarray)
        assert items.dtype == np.int64
        assert ((items >= 0) & (items < self.num_samples)).all()
        self.calls.append(len(items))
        return items * 10  # a batch that is no list

    @property
    def lengths(self):
        return np.arange(self.num_samples) + 100

    @property
    def settings(self):
        return {"data": "9f2c", "sequence_length": 2048}


class Torch(torch.utils.data.Dataset):
    def __len__(self):
        return 20

    def __getitem__(self, index):
        assert type(index) is int
        if not 0 <= index < 20:
            raise IndexError(index)
        return torch.tensor(index)


def order(n, seed=7, epoch=0):
    return (shuffled(np.arange(n) + epoch * n, n, seed) % n).tolist()


def test_a_view_is_its_base_in_the_order_of_epoch_zero():
    letters = list("abcdefghij")
    view = ShuffledDataset(letters, 7)
    assert len(view) == 10
    expected = [letters[item] for item in order(10)]
    assert [view[index] for index in range(10)] == expected
    assert [view[index - 10] for index in range(10)] == expected
    assert view[np.int32(3)] == view[np.uint8(3)] == expected[3]
    assert list(view) == expected
    assert sorted(view) == letters


@pytest.mark.parametrize(
    "cut", [slice(None), slice(2, 5), slice(-3, None), slice(None, None, -1), slice(8, 2, -2), slice(5, 5)]
)
def test_a_slice_is_as_a_list_s_slice(cut):
    letters = list("abcdefghij")
    expected = [letters[item] for item in order(10)][cut]
    assert list(ShuffledDataset(letters, 7)[cut]) == expected


@pytest.mark.parametrize("index", [10, -11, 10**30])
def test_an_index_outside_is_refused(index):
    with pytest.raises(IndexError, match=f"index {index} is outside a dataset of 10 samples"):
        ShuffledDataset(range(10), 7)[index]


def test_an_index_that_is_no_integer_is_refused_and_never_cut():
    view = ShuffledDataset(range(10), 7)
    for index in (1.5, "1", None):
        with pytest.raises(TypeError):
            view[index]
    for positions in ([1.5], np.array([0.0])):
        with pytest.raises(TypeError, match="must be integers"):
            view.__getitems__(positions)
        with pytest.raises(TypeError, match="must be integers"):
            view.locate(positions)


def test_batches_take_endless_positions():
    view = ShuffledDataset(range(10), 7)
    assert list(view.__getitems__(range(20, 30))) == order(10, epoch=2)
    assert list(view.__getitems__([5, 15, 5])) == [order(10)[5], order(10, epoch=1)[5], order(10)[5]]
    assert list(view.__getitems__(np.array([], np.int64))) == []
    assert list(view.__getitems__([])) == []
    with pytest.raises(IndexError):
        view.__getitems__([-1])


def test_locate_names_the_base_s_endless_positions():
    view = ShuffledDataset(range(10), 7)
    positions = np.array([0, 9, 10, 25])
    assert (view.locate(positions) == shuffled(positions, 10, 7)).all()
    assert (view.locate(positions) // 10 == [0, 0, 1, 2]).all()


def test_a_base_that_takes_batches_gets_one_call_and_answers_with_its_own_kind_of_batch():
    base = Windows(50)
    view = ShuffledDataset(base, 7)
    batch = view.__getitems__(np.arange(98, 102))
    assert isinstance(batch, np.ndarray)
    assert batch.tolist() == [10 * item for item in (order(50, epoch=1) + order(50, epoch=2))[48:52]]
    assert base.calls == [4]
    assert view[-1] == 10 * order(50)[-1]


def test_lengths_are_the_base_s_in_the_order_of_epoch_zero_and_absent_where_it_has_none():
    view = ShuffledDataset(Windows(50), 7)
    assert view.lengths.tolist() == [100 + item for item in order(50)]
    assert ShuffledDataset(view, 8).lengths.tolist() == [view.lengths[item] for item in order(50, seed=8)]
    assert not hasattr(ShuffledDataset(range(10), 7), "lengths")


def test_a_view_over_a_view_keeps_the_epochs_of_both():
    inner = ShuffledDataset(range(10), 7)
    outer = ShuffledDataset(inner, 8)
    assert outer.base is inner
    for epoch in range(3):
        got = outer.__getitems__(np.arange(10 * epoch, 10 * epoch + 10))
        expected = [order(10, 7, epoch)[place] for place in order(10, 8, epoch)]
        assert list(got) == expected
        assert sorted(got) == list(range(10))


def test_settings_describe_base_and_order_also_of_a_view_over_a_view():
    view = ShuffledDataset(Windows(50), 7)
    own = {"shuffle": "global", "seed": 7, "order_version": 1}
    assert view.settings == {"data": "9f2c", "sequence_length": 2048, **own}
    twice = ShuffledDataset(view, 8).settings
    assert twice.items() > view.settings.items()
    assert twice != ShuffledDataset(ShuffledDataset(Windows(50), 8), 7).settings
    thrice = ShuffledDataset(ShuffledDataset(view, 8), 9).settings
    assert thrice.items() > {**twice, "views": "shuffle, shuffle, shuffle"}.items()
    encode_state(Cursor(), thrice)  # flat and JSON-able


def test_settings_are_a_new_dict_each_time():
    view = ShuffledDataset(Windows(50), 7)
    view.settings["seed"] = 8
    assert view.settings["seed"] == 7


def test_a_view_says_that_it_orders():
    view = ShuffledDataset(range(10), 7)
    assert view.ordered is True
    assert is_view(view)
    assert not is_view(view.base)


@pytest.mark.parametrize(
    "base", [list(range(20)), range(20), Torch(), torch.arange(20)], ids=lambda b: type(b).__name__
)
def test_datasets_of_others_are_read_item_by_item(base):
    view = ShuffledDataset(base, 7)
    assert [int(sample) for sample in view.__getitems__(np.arange(20, 40))] == order(20, epoch=1)


def test_a_torch_subset_is_read_by_its_own_batches():
    base = torch.utils.data.Subset(Torch(), list(range(19, -1, -1)))
    assert [int(sample) for sample in ShuffledDataset(base, 7).__getitems__(range(20))] == [19 - k for k in order(20)]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_stock_data_loader_over_a_view_serves_epoch_zero_each_time(workers):
    loader = torch.utils.data.DataLoader(ShuffledDataset(Torch(), 7), batch_size=5, num_workers=workers)
    for _ in range(2):
        assert [int(sample) for batch in loader for sample in batch] == order(20)


def test_a_view_pickles_small_and_reads_the_same():
    view = ShuffledDataset(range(10**12), 7)
    raw = pickle.dumps(view)
    assert len(raw) < 500
    copy = pickle.loads(raw)
    assert copy.__getitems__([5, 10**12 + 5]) == view.__getitems__([5, 10**12 + 5])
    assert copy.settings == view.settings


def test_an_empty_base_gives_an_empty_view():
    view = ShuffledDataset([], 7)
    assert len(view) == 0
    assert list(view) == list(view[:]) == []
    with pytest.raises(IndexError):
        view[0]
    with pytest.raises(IndexError):
        view.__getitems__([0])


@pytest.mark.parametrize("seed", [1.0, "7", None, True])
def test_a_seed_that_is_no_integer_is_refused(seed):
    with pytest.raises(TypeError, match="seed must be an integer"):
        ShuffledDataset(range(10), seed)


def test_any_integer_is_a_seed_and_numpy_s_are_python_s():
    assert ShuffledDataset(range(10), np.int64(7)).settings == ShuffledDataset(range(10), 7).settings
    assert sorted(ShuffledDataset(range(10), -(2**80))) == list(range(10))


def test_repr_says_base_and_seed():
    assert repr(ShuffledDataset(range(10), 7)) == "ShuffledDataset(range(0, 10), seed=7)"


def test_views_need_no_torch():
    script = "import sys, headrace.views; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], timeout=60).returncode == 0


def test_settings_of_a_shuffled_foreign_dataset_name_its_type_and_length():
    assert dataset_settings(ShuffledDataset(range(10), 7)) == {
        "data": "builtins.range",
        "num_samples": 10,
        "shuffle": "global",
        "seed": 7,
        "order_version": 1,
    }


class Sharded(Windows):
    """Windows whose shards are known."""

    def __init__(self, *shard_lengths):
        super().__init__(sum(shard_lengths))
        self.shard_lengths = np.array(shard_lengths, np.int64)


def test_a_pooled_view_is_its_base_in_a_pooled_order():
    base = Sharded(10, 0, 25, 5, 10)
    view = ShuffledDataset(base, 7, "pooled", pool_items=12, lanes=2)
    assert len(view) == 50
    positions = np.arange(200)
    located = view.locate(positions)
    assert located.tolist() == [reference.pooled(k, [10, 0, 25, 5, 10], 12, 2, 7) for k in positions.tolist()]
    assert (view.positions_of(located) == positions).all()
    assert view.__getitems__(positions).tolist() == (located % 50 * 10).tolist()
    assert [view[index] for index in range(50)] == (located[:50] * 10).tolist()
    assert view.lengths.tolist() == (located[:50] + 100).tolist()
    assert not view.same_each_epoch


def test_a_global_view_finds_where_items_stand():
    view = ShuffledDataset(range(50), 7)
    positions = np.arange(200)
    assert (view.positions_of(view.locate(positions)) == positions).all()


def test_a_pooled_view_mixes_four_shards_unless_told_otherwise():
    assert ShuffledDataset(Sharded(10, 0, 25, 5, 10), 7, "pooled").pool_items == 50
    assert ShuffledDataset(Sharded(*[10] * 20), 7, "pooled").pool_items == 40
    assert ShuffledDataset(Sharded(*[10] * 20), 7, "pooled").settings["pool_items"] == 40
    assert ShuffledDataset(Sharded(10), 7, "pooled", pool_items=3).pool_items == 3
    assert ShuffledDataset(Sharded(10), 7).pool_items is None


def test_settings_of_a_pooled_view_tell_apart_pools_lanes_seeds_and_shards():
    def described(*shards, **options):
        view = ShuffledDataset(Sharded(*shards), options.pop("seed", 7), "pooled", **options)
        encode_state(Cursor(), view.settings)
        return tuple(sorted(view.settings.items()))

    different = [
        described(10, 10, pool_items=5),
        described(10, 10, pool_items=6),
        described(10, 10, pool_items=5, lanes=2),
        described(10, 10, pool_items=5, seed=8),
        described(5, 15, pool_items=5),
        described(10, 0, 10, pool_items=5),
        tuple(sorted(ShuffledDataset(Sharded(10, 10), 7).settings.items())),
    ]
    assert len(set(different)) == len(different)
    assert described(10, 10, pool_items=5) == described(10, 10, pool_items=np.int64(5), lanes=1)
    settings = dict(described(10, 10, pool_items=5))
    assert {name: settings[name] for name in ("shuffle", "seed", "order_version", "pool_items", "lanes")} == {
        "shuffle": "pooled",
        "seed": 7,
        "order_version": 1,
        "pool_items": 5,
        "lanes": 1,
    }
    assert all(len(value) <= 64 for value in settings.values() if isinstance(value, str))


def test_a_pooled_view_pickles_as_its_configuration():
    view = ShuffledDataset(Sharded(*[10] * 1000), 7, "pooled", pool_items=30, lanes=3)
    expected = view.locate(np.arange(100))
    small = ShuffledDataset(range(10), 7)
    assert len(pickle.dumps(view)) - len(pickle.dumps(view.base)) < len(pickle.dumps(small)) + 200
    assert (pickle.loads(pickle.dumps(view)).locate(np.arange(100)) == expected).all()


def test_a_pooled_view_over_what_has_no_shards_or_counts_other_things_in_them_is_refused():
    for base in (list(range(10)), ShuffledDataset(range(10), 7)):
        with pytest.raises(OptionError, match=r"'global' over .*pools are made of shards.*has none"):
            ShuffledDataset(base, 7, "pooled")
    tokens = Sharded(100, 200)
    tokens.num_samples = 3
    with pytest.raises(OptionError, match="counts 300 in its shards, for 3 items"):
        ShuffledDataset(tokens, 7, "pooled").locate(np.arange(3))
    tokens.shard_items = np.array([1, 2])
    assert sorted(ShuffledDataset(tokens, 7, "pooled").locate(np.arange(3)).tolist()) == [0, 1, 2]
    for odd in (np.array([[3]]), np.array([4, -1]), np.array([1.5, 1.5])):
        tokens.shard_items = odd
        with pytest.raises(OptionError, match="no list of counts"):
            ShuffledDataset(tokens, 7, "pooled").locate(np.arange(3))


def test_options_that_mean_nothing_are_refused():
    base = Sharded(10)
    for options in ({"scope": "shards"}, {"pool_items": 5}, {"lanes": 2}):
        with pytest.raises(OptionError):
            ShuffledDataset(base, 7, **options)
    for options in ({"pool_items": 0}, {"lanes": 0}, {"pool_items": -1}):
        with pytest.raises(OptionError, match="at least 1"):
            ShuffledDataset(base, 7, "pooled", **options)
    for options in ({"pool_items": 1.5}, {"lanes": True}):
        with pytest.raises(TypeError, match="must be an integer"):
            ShuffledDataset(base, 7, "pooled", **options)


def test_making_a_pooled_view_opens_nothing():
    class Unopened:
        @property
        def shard_lengths(self):
            raise AssertionError("opened")

        def __len__(self):
            raise AssertionError("opened")

        def __getitem__(self, index):
            raise AssertionError("opened")

    view = ShuffledDataset(Unopened(), 7, "pooled")
    assert "pooled" in repr(view)
    pickle.dumps(view.__getstate__()["seed"])


def test_an_empty_pooled_view_is_empty():
    view = ShuffledDataset(Sharded(0, 0), 7, "pooled")
    assert list(view) == []
    with pytest.raises(IndexError):
        view.__getitems__([0])
