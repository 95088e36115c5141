"""A permutation is a bijection, exact in both directions, the same as the one-at-a-time reference, and quick."""

import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.planning import Permutation, derive_seed
from headrace.planning.permutation import CHUNK, MAX_ITEMS, SMALL
from planning import reference

# Where a grid of a x b cells is awkward: squares, oblong numbers, and their neighbours.
AWKWARD = sorted(
    {k * k + d for k in (33, 45, 64) for d in (-1, 0, 1)} | {k * (k + 1) + d for k in (33, 64) for d in (0, 1)}
)
HUGE = [
    10**12,
    2**32 - 1,
    2**32,
    2**32 + 1,
    (2**31 - 1) ** 2 + 1,
    (2**31 - 1) * 2**31 + 1,
    2**61 - 1,
    MAX_ITEMS - 1,
    MAX_ITEMS,
]


def spread(n, count=200):
    """Positions all over range(n), its edges among them."""
    inside = [n * k // count for k in range(count)]
    return np.array(sorted({*inside, 0, 1, n // 2, n - 2, n - 1}), np.int64)


@pytest.mark.parametrize("seed", [0, 7])
def test_every_small_domain_is_permuted_exactly_and_undone_exactly(seed):
    for n in [*range(300), *range(SMALL - 24, SMALL + 40), *AWKWARD]:
        permutation = Permutation(n, seed)
        numbers = np.arange(n)
        items = permutation(numbers)
        assert items.dtype == np.int64
        assert np.sort(items).tolist() == numbers.tolist(), n
        assert permutation.inverse(items).tolist() == numbers.tolist(), n
        assert permutation(permutation.inverse(numbers)).tolist() == numbers.tolist(), n


@pytest.mark.parametrize("n", [1, 2, 3, 10, 64, SMALL, SMALL + 1, *AWKWARD[:4]])
def test_small_domains_equal_the_reference_at_every_position(n):
    seed = derive_seed(n, "reference")
    expected = [reference.permuted(n, seed, position) for position in range(0, n, 1 if n < SMALL else 17)]
    assert Permutation(n, seed)(np.arange(n))[:: 1 if n < SMALL else 17].tolist() == expected


@pytest.mark.parametrize("n", HUGE)
def test_huge_domains_equal_the_reference_and_undo_exactly(n):
    permutation = Permutation(n, 2**63 + n)
    positions = spread(n)
    items = permutation(positions)
    assert items.tolist() == [reference.permuted(n, 2**63 + n, position) for position in positions.tolist()]
    assert ((items >= 0) & (items < n)).all()
    assert (permutation.inverse(items) == positions).all()
    assert (permutation(permutation.inverse(positions)) == positions).all()


@given(n=st.integers(1, MAX_ITEMS), seed=st.integers(-(2**70), 2**70), fraction=st.floats(0, 1, exclude_max=True))
def test_any_number_of_any_domain_equals_the_reference(n, seed, fraction):
    position = min(int(n * fraction), n - 1)
    permutation = Permutation(n, seed)
    item = permutation(np.array([position]))
    assert item.tolist() == [reference.permuted(n, seed, position)]
    assert permutation.inverse(item).tolist() == [position]


def test_the_grid_wastes_less_than_one_row_of_cells():
    for n in [*range(SMALL + 1, SMALL + 3000), *HUGE]:
        left, right = reference.sides(n)
        assert 0 <= left * right - n < left, n
        assert right <= left <= 2**31


@pytest.mark.parametrize("count", [0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK + 5])
@pytest.mark.parametrize("n", [SMALL, 10**12])
def test_how_many_are_asked_for_at_once_does_not_matter(n, count):
    permutation = Permutation(n, 3)
    positions = np.arange(count) * 7919 % n
    items = permutation(positions)
    assert items.shape == (count,)
    some = range(0, count, 997)
    assert items[::997].tolist() == [int(permutation(positions[k])) for k in some]


@pytest.mark.parametrize("n", [100, 5000])
def test_arrays_of_any_shape_stride_and_integer_type_are_taken_and_left_alone(n):
    permutation = Permutation(n, 3)
    plain = np.arange(96)
    expected = permutation(plain)
    table = plain.reshape(8, 12)
    assert (permutation(table) == expected.reshape(8, 12)).all()
    assert (permutation(table.T) == expected.reshape(8, 12).T).all()
    assert (permutation(plain[::-3]) == expected[::-3]).all()
    for dtype in ("i1", "u1", "<i4", ">i4", ">i8", "u8"):
        given_numbers = plain.astype(dtype)
        assert (permutation(given_numbers) == expected).all()
        assert (given_numbers == plain).all(), "the caller's array was written to"
    assert permutation(plain.tolist()).tolist() == expected.tolist()
    for one in (permutation(5), permutation.inverse(5)):
        assert isinstance(one, np.ndarray | np.int64)
        assert one.shape == ()
    assert permutation([]).dtype == np.int64


@pytest.mark.parametrize("n", [0, 10, 5000, MAX_ITEMS])
def test_numbers_outside_the_domain_are_refused_in_both_directions(n):
    permutation = Permutation(n, 3)
    for outside in (n, n + 1, -1, np.iinfo(np.int64).max, np.iinfo(np.int64).min):
        for direction in (permutation, permutation.inverse):
            with pytest.raises(IndexError, match=rf"{outside} is outside range\({n}\)"):
                direction(np.array([*([0] if n else []), outside]))
    with pytest.raises(IndexError):
        permutation(np.array([2**63 + 1], np.uint64))


def test_what_is_no_integer_is_refused():
    with pytest.raises(TypeError, match="float64"):
        Permutation(10, 0)([1.0])
    with pytest.raises(TypeError, match="bool"):
        Permutation(10, 0)([True])


@pytest.mark.parametrize("n", [-1, MAX_ITEMS + 1])
def test_a_domain_that_is_too_large_or_negative_is_refused(n):
    with pytest.raises(ValueError, match="between 0 and"):
        Permutation(n, 0)


def test_len_and_repr_say_what_it_is():
    assert len(Permutation(10**12, 5)) == 10**12
    assert repr(Permutation(10, 5)) == "Permutation(10, seed=5)"


def test_seeds_differ_when_any_name_does_also_where_the_texts_run_together():
    arguments = [
        (7,),
        (8,),
        (-7,),
        (7, ""),
        (7, "a"),
        (7, "a", "b"),
        (7, "ab"),
        (7, "a", ""),
        (7, "", "a"),
        (7, "ab", "c"),
        (7, "a", "bc"),
        (7, 1),
        (7, "1"),
        (71,),
        (7, 1, 1),
        (7, 11),
        (7, "i1:1"),
        (7 + 2**64,),
    ]
    assert len({derive_seed(*each) for each in arguments}) == len(arguments)


@given(
    st.lists(
        st.tuples(st.integers(), st.lists(st.integers() | st.text(st.characters(codec="utf-8")), max_size=4)),
        unique_by=repr,
        max_size=20,
    )
)
def test_seeds_equal_the_reference_and_never_meet(arguments):
    seeds = [derive_seed(seed, *names) for seed, names in arguments]
    assert seeds == [reference.derive_seed(seed, *names) for seed, names in arguments]
    assert len(set(seeds)) == len(seeds)
    assert all(0 <= seed < 2**64 for seed in seeds)


def test_numpy_integers_are_the_same_seeds_and_names_as_python_s():
    assert derive_seed(np.int64(7), "shuffle", np.uint8(3)) == derive_seed(7, "shuffle", 3)


@pytest.mark.parametrize("part", [1.0, True, None, b"a", ("a",)])
def test_a_seed_or_name_that_is_neither_integer_nor_text_is_refused(part):
    with pytest.raises(TypeError, match="integers or text"):
        derive_seed(7, part)
    with pytest.raises(TypeError, match="integers or text"):
        derive_seed(part)


def least_seconds(work, times):
    """CPU seconds of the best of so many tries: the machine may be busy with something else."""
    took = []
    for _ in range(times):
        begin = time.process_time()
        work()
        took.append(time.process_time() - begin)
    return min(took)


def test_the_first_eight_items_take_much_less_than_a_millisecond():
    eight = np.arange(8)
    assert least_seconds(lambda: Permutation(10**12, 5)(eight), 20) < 0.0005


def test_no_python_step_is_taken_for_an_item():
    many = np.arange(1 << 16)
    permutation = Permutation(10**12, 5)
    # 45 ns an item were measured where this was written; a loop in Python would take 10,000.
    for direction in (permutation, permutation.inverse):
        assert least_seconds(lambda direction=direction: direction(many), 5) / len(many) < 200e-9


def test_many_permutations_at_once_are_the_same_as_one_by_one():
    rng = np.random.default_rng(5)
    for _ in range(30):
        sizes = [int(n) for n in rng.choice([1, 2, 1024, 1025, 1031, 5000, 10**6 + 3, 1 << 40, 1 << 62], 12)]
        permutations = [Permutation(n, int(rng.integers(1 << 60))) for n in sizes]
        numbers = [rng.integers(0, n, rng.choice([1, 2, 5, 511, 512, 600])) for n in sizes]
        bounds = [0, *np.cumsum([len(few) for few in numbers]).tolist()]
        together = Permutation.of_each(permutations, bounds, np.concatenate(numbers))
        one_by_one = [permutation(few) for permutation, few in zip(permutations, numbers, strict=True)]
        assert together.tolist() == np.concatenate(one_by_one).tolist()
