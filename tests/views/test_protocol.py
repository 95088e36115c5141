"""What a view may ask of any dataset, and what it takes instead where the dataset has no answer."""

from itertools import product

import numpy as np
import pytest

from headrace.planning import plan_fingerprint
from headrace.views import (
    BufferSortedDataset,
    SelectedDataset,
    ShardedDataset,
    ShardIndexingMode,
    ShuffledDataset,
    View,
    dataset_settings,
    fetch,
    is_view,
)
from headrace.views.protocol import knows_lengths


class Plain:
    def __init__(self, **attributes):
        self.__dict__.update(attributes)

    def __len__(self):
        return 10

    def __getitem__(self, index):
        return index


class Batched(Plain):
    def __getitems__(self, items):
        return ("batch", type(items).__name__, list(items))


def test_a_dataset_s_own_settings_describe_it():
    settings = {"data": "9f2c", "stride": 5}
    described = dataset_settings(Plain(settings=settings))
    assert described == settings
    described["stride"] = 6
    assert settings["stride"] == 5


class Reversed(View):
    own_settings = {}  # noqa: RUF012

    def __len__(self):
        return len(self.base)

    def locate(self, positions):
        return positions + len(self) - 1 - 2 * (positions % len(self))


WHOLE = {  # views that leave as many samples as there are, so that only their settings tell them apart
    "shuffle": lambda base: ShuffledDataset(base, 7),
    "select": lambda base: SelectedDataset(base, range(12)),
    "sort": lambda base: BufferSortedDataset(base, 4, 2),
    "shard": lambda base: ShardedDataset(base, 1, 0, ShardIndexingMode.chunked, False),
    "reverse": Reversed,
}


def test_every_order_of_views_on_views_has_settings_of_its_own():
    found = {}
    for depth in range(5):
        for names in product(WHOLE, repeat=depth):
            view = list(range(12))
            for name in names:
                view = WHOLE[name](view)
            settings = dataset_settings(view)
            assert all(len(value) <= 64 for value in settings.values() if isinstance(value, str))
            assert found.setdefault(plan_fingerprint(settings), names) == names
    assert len(found) == sum(len(WHOLE) ** depth for depth in range(5))


def test_settings_say_which_view_stands_on_which():
    one = SelectedDataset(ShuffledDataset(list(range(12)), 7), range(5))
    other = ShuffledDataset(SelectedDataset(list(range(12)), range(5)), 7)
    assert "views" not in one.base.settings
    assert one.settings == {**other.settings, "views": "shuffle, selected"}
    assert other.settings["views"] == "selected, shuffle"


@pytest.mark.parametrize("name", ["fingerprint", "_fingerprint"])
def test_a_fingerprint_describes_a_dataset_without_settings(name):
    assert dataset_settings(Plain(**{name: "abc"})) == {"data": "abc", "num_samples": 10}


def test_the_public_fingerprint_wins():
    assert dataset_settings(Plain(_fingerprint="inner", fingerprint="outer"))["data"] == "outer"


def test_type_and_length_describe_any_other():
    assert dataset_settings([1, 2, 3]) == {"data": "builtins.list", "num_samples": 3}
    assert dataset_settings(Plain()) == {"data": f"{Plain.__module__}.Plain", "num_samples": 10}
    # A fingerprint that is a method or a number is not what we take it for.
    assert dataset_settings(Plain(fingerprint=len, _fingerprint=3))["data"] == f"{Plain.__module__}.Plain"


def test_items_of_a_plain_dataset_are_positions_modulo_its_length_as_python_integers():
    assert fetch(Plain(), np.array([9, 10])) == [9, 0]
    got = fetch(Plain(), np.array([3, 13, 29]))
    assert got == [3, 3, 9]
    assert {type(item) for item in got} == {int}


def test_a_batched_dataset_gets_one_call_with_a_list_and_ours_with_an_array():
    positions = np.array([3, 13, 4])
    assert fetch(Batched(), positions) == ("batch", "list", [3, 3, 4])
    assert fetch(Batched(settings={}), positions) == ("batch", "ndarray", [3, 3, 4])
    with pytest.raises(ValueError, match=r"Batched\.__getitems__ gave 3 samples for 2 items"):
        fetch(Batched(), positions[:2])


def test_a_view_gets_endless_positions_as_they_are():
    view = ShuffledDataset(Plain(), 7)
    assert fetch(view, np.array([13])) == [view.locate(np.array([13]))[0] % 10]


def test_no_positions_fetch_no_samples():
    nothing = np.array([], np.int64)
    assert fetch(Plain(), nothing) == []
    assert list(fetch(ShuffledDataset(Plain(), 7), nothing)) == []


def test_only_what_orders_and_locates_is_a_view():
    assert is_view(ShuffledDataset([1], 7))
    for other in ([1], Plain(), Plain(ordered=True), Plain(locate=len), Plain(ordered=False, locate=len)):
        assert not is_view(other)


class Counted(Plain):
    """Its lengths and settings take work."""

    def __init__(self):
        self.asked = []

    @property
    def lengths(self):
        self.asked.append("lengths")
        return np.arange(10)

    @property
    def settings(self):
        self.asked.append("settings")
        return {"data": "counted"}

    def __getitems__(self, items):
        return items


def test_lengths_through_many_views_are_worked_out_once_and_a_batch_works_out_no_view_s_settings():
    base = Counted()
    view = base
    for seed in range(6):
        view = ShuffledDataset(view, seed)
    assert sorted(view.lengths.tolist()) == list(range(10))
    assert base.asked.count("lengths") <= 2
    base.asked.clear()
    view.__getitems__(np.arange(10))
    assert base.asked.count("settings") <= 1


def test_lengths_are_known_where_the_dataset_below_all_views_knows_them():
    assert knows_lengths(ShuffledDataset(ShuffledDataset(Counted(), 1), 2))
    assert not knows_lengths(ShuffledDataset(ShuffledDataset(Plain(), 1), 2))
    assert not hasattr(ShuffledDataset(ShuffledDataset(Plain(), 1), 2), "lengths")
