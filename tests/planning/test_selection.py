"""A selection answers select, rank and membership as a sorted list does, in the smallest form, with one digest."""

import tracemalloc
from hashlib import blake2b

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import OptionError
from headrace.planning.selection import CHUNK, Selection

FORMS = ("ids", "without", "bitmap")
FROZEN = ["da4ad3dd16025ef8d7a8d4c39adfda5c", "6d3208e248b2beb049f49cd7064217a4", "859934a8e181e58fae594204b66efa76"]


def some(num_items, share, seed=0):
    """A bitmap of num_items in which about this share is chosen."""
    return np.random.default_rng(seed).random(num_items) < share


def check(selection, chosen, num_items):
    """Against a sorted list, at every item."""
    assert len(selection) == len(chosen)
    assert selection.num_items == num_items
    items = np.arange(num_items)
    assert selection.select(np.arange(len(chosen))).tolist() == chosen
    chosen_set = set(chosen)
    assert selection.holds(items).tolist() == [item in chosen_set for item in range(num_items)]
    before = np.cumsum([item in chosen_set for item in range(num_items)], dtype=np.int64)
    assert selection.rank(items).tolist() == [0, *before.tolist()][:num_items]


def three_ways(bitmap):
    ids = np.flatnonzero(bitmap)
    return [
        Selection.of_bitmap(bitmap),
        Selection.of_ids(ids[::-1], len(bitmap)),
        Selection.without_ids(np.flatnonzero(~bitmap).tolist() * 2, len(bitmap)),
    ]


@pytest.mark.parametrize("num_items", range(8))
def test_every_subset_of_a_few_items_is_as_a_sorted_list(num_items):
    for number in range(1 << num_items):
        bitmap = np.array([number >> item & 1 for item in range(num_items)], bool)
        for selection in three_ways(bitmap):
            check(selection, np.flatnonzero(bitmap).tolist(), num_items)


@pytest.mark.parametrize("num_items", [63, 64, 65, 511, 512, 513, 1024, 3000, 10_007])
@pytest.mark.parametrize("share", [0.0, 0.001, 0.1, 0.5, 0.9, 0.999, 1.0])
def test_words_and_blocks_are_crossed_without_a_slip(num_items, share):
    bitmap = some(num_items, share, num_items)
    for selection in three_ways(bitmap):
        check(selection, np.flatnonzero(bitmap).tolist(), num_items)


@given(data=st.data(), num_items=st.integers(1, 200))
def test_any_subset_is_the_same_whichever_way_it_was_given(data, num_items):
    bitmap = np.array(data.draw(st.lists(st.booleans(), min_size=num_items, max_size=num_items)))
    ways = three_ways(bitmap)
    assert len({way.digest for way in ways}) == 1
    assert len({way.form for way in ways}) == 1
    for way in ways:
        check(way, np.flatnonzero(bitmap).tolist(), num_items)


def test_all_three_forms_cross_the_chunks_they_are_made_in():
    num_items = 2 * CHUNK + 700
    forms = set()
    for share in (0.001, 0.4, 0.999):
        bitmap = some(num_items, share)
        bitmap[[0, CHUNK - 1, CHUNK, 2 * CHUNK, num_items - 1]] = [True, False, True, True, False]
        chosen = np.flatnonzero(bitmap)
        numbers = np.arange(len(chosen))
        numbers = np.unique([*numbers[:: max(1, len(numbers) // 2000)], *np.searchsorted(chosen, [CHUNK, 2 * CHUNK])])
        ways = three_ways(bitmap)
        for way in ways:
            assert (way.select(numbers) == chosen[numbers]).all()
            assert (way.rank(chosen[numbers]) == numbers).all()
            assert (way.holds(np.arange(num_items)) == bitmap).all()
        assert len({way.digest for way in ways}) == 1
        forms.add(ways[0].form)
    assert forms == set(FORMS)


def test_a_few_of_10_to_the_12_items_and_all_but_a_few_take_no_memory():
    num_items = 10**12
    few = np.array([7, 10**11, 10**12 - 1])
    chosen = Selection.of_ids(few, num_items)
    assert chosen.select(np.arange(3)).tolist() == few.tolist()
    assert chosen.rank(few).tolist() == [0, 1, 2]
    rest = Selection.without_ids(few, num_items)
    assert len(rest) == num_items - 3
    assert rest.select(np.array([6, 7, 10**11 - 2, 10**11 - 1, 10**12 - 4])).tolist() == [
        6,
        8,
        10**11 - 1,
        10**11 + 1,
        10**12 - 2,
    ]
    assert rest.rank(np.array([7, 8, 10**12 - 1])).tolist() == [7, 7, 10**12 - 3]
    assert chosen.num_bytes < 100
    assert rest.num_bytes < 100


def test_a_bitmap_takes_nine_64ths_of_a_byte_an_item_and_is_made_without_8_bytes_an_item():
    num_items = 40_000_000
    bitmap = some(num_items, 0.5)
    tracemalloc.start()
    selection = Selection.of_bitmap(bitmap)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert selection.num_bytes <= num_items * 9 / 64 + 128
    assert peak < num_items


def test_the_smallest_form_is_taken():
    for share in (0.0, 0.01, 0.02, 0.3, 0.97, 0.99, 1.0):
        selection = Selection.of_bitmap(some(64_000, share))
        chosen = len(selection)
        sizes = {"ids": 8 * chosen, "without": 8 * (64_000 - chosen), "bitmap": 64_000 * 9 // 64}
        assert sizes[selection.form] == min(sizes.values()), (share, sizes)


def test_digests_differ_when_any_item_or_the_range_does():
    bitmaps = [some(1000, 0.5), some(1000, 0.5, 1), some(1000, 0.001), some(1000, 0.999), np.zeros(1000, bool)]
    bitmaps += [np.zeros(1001, bool), np.ones(1000, bool), np.append(some(1000, 0.5), False), np.zeros(0, bool)]
    assert len({Selection.of_bitmap(bitmap).digest for bitmap in bitmaps}) == len(bitmaps)


@given(data=st.data(), num_items=st.integers(1, 150))
def test_an_intersection_has_what_both_have(data, num_items):
    bitmaps = [
        np.array(data.draw(st.lists(st.sampled_from(kinds), min_size=num_items, max_size=num_items)))
        for kinds in data.draw(
            st.tuples(*[st.sampled_from([[True], [False], [True, False], [True] * 200 + [False]])] * 2)
        )
    ]
    both = Selection.of_bitmap(bitmaps[0]).intersection(Selection.of_bitmap(bitmaps[1]))
    check(both, np.flatnonzero(bitmaps[0] & bitmaps[1]).tolist(), num_items)
    assert both.digest == Selection.of_bitmap(bitmaps[0] & bitmaps[1]).digest


def test_arrays_of_any_shape_are_answered_in_their_shape():
    for share in (0.001, 0.5, 0.999):
        selection = Selection.of_bitmap(some(4000, share))
        numbers = np.arange(len(selection))[:2].reshape(2, 1)
        assert selection.select(numbers).shape == (2, 1)
        assert selection.rank(numbers).shape == (2, 1)
        assert selection.holds(numbers).shape == (2, 1)
        assert selection.select(np.empty(0, np.int64)).shape == (0,)


def test_membership_of_one_item_is_asked_with_in():
    selection = Selection.of_ids([3, 5], 10)
    assert 3 in selection
    assert 4 not in selection
    assert 10 not in selection
    assert -1 not in selection


@pytest.mark.parametrize("share", [0.001, 0.5, 0.999])
def test_what_is_outside_is_refused_by_number(share):
    selection = Selection.of_bitmap(some(2000, share))
    for ask, outside in (
        (selection.select, len(selection)),
        (selection.select, -1),
        (selection.rank, 2000),
        (selection.holds, -1),
    ):
        with pytest.raises(IndexError, match=f"{outside} is outside"):
            ask(np.array([0, outside]))


def test_items_outside_or_given_twice_are_refused_by_name():
    for wrong in ([10], [-1], [3, 11, 2]):
        with pytest.raises(OptionError, match=r"keep=.* expected items in range\(10\)"):
            Selection.of_ids(wrong, 10)
        with pytest.raises(OptionError, match="exclude="):
            Selection.without_ids(wrong, 10)
    with pytest.raises(OptionError, match="keep=4 is not valid; expected each item once"):
        Selection.of_ids([4, 3, 4], 10)
    for wrong in ([1.0], [[1, 2]], ["a"]):
        with pytest.raises(TypeError, match="row of integers"):
            Selection.of_ids(wrong, 10)


def test_the_callers_array_is_left_alone_and_may_change_later():
    ids = np.array([5, 3, 1])
    selection = Selection.of_ids(ids, 10)
    assert ids.tolist() == [5, 3, 1]
    ascending = np.array([1, 3, 5])
    selection = Selection.of_ids(ascending, 10**6)
    ascending[:] = 0
    assert selection.select(np.arange(3)).tolist() == [1, 3, 5]


def told(chosen, num_items):
    """The digest as docs/design/buckets.md has it, without NumPy."""
    rest = sorted(set(range(num_items)) - set(chosen))
    sizes = {"ids": 8 * 64 * len(chosen), "without": 8 * 64 * len(rest), "bitmap": 9 * num_items}
    form = min(sizes, key=sizes.get)
    if form == "bitmap":
        held = sum(1 << item for item in chosen).to_bytes(-(-num_items // 512) * 64, "little")
    else:
        held = b"".join(item.to_bytes(8, "little") for item in (chosen if form == "ids" else rest))
    return form, blake2b(f"{form}:{num_items}:".encode() + held, digest_size=16).hexdigest()


@pytest.mark.parametrize("num_items", [0, 1, 2, 57, 64, 511, 512, 513, 1500])
def test_form_and_digest_are_as_the_design_says(num_items):
    for step in (1, 2, 3, 50, 56, 57, 1000):
        for chosen in (list(range(0, num_items, step)), sorted({*range(num_items)} - {*range(0, num_items, step)})):
            selection = Selection.of_ids(chosen, num_items)
            assert (selection.form, selection.digest) == told(chosen, num_items)


def test_digests_of_released_versions_stay_for_states_hold_them():
    assert Selection.of_ids([3, 5], 1000).digest == FROZEN[0]
    assert Selection.without_ids([3, 5], 1000).digest == FROZEN[1]
    assert Selection.of_ids(range(0, 1000, 3), 1000).digest == FROZEN[2]
