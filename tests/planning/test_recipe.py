"""What decides a mixture as text: what was consumed follows from it alone, and damaged text is refused."""

import base64
import json
from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import StateError
from headrace.planning.recipe import (
    PLAN_TEXT_LIMIT,
    Recipe,
    consumed,
    decode_counts,
    encode_counts,
    whole_weights,
)

RECIPE = Recipe(
    names=("web", "Bücher"),
    lengths=(100, 7),
    points=((0, (9, 1)), (50, (1, 1))),
    linear=True,
    means=((7, 2), (100, 3)),
    max_epochs=(None, 3),
    epoch_size=107,
    seed=-3,
    departed=(("old", 12),),
)


def saved(recipe):
    """The settings of a state, as far as consumed() reads them."""
    settings = {"mixture_plan": recipe.encoded()}
    if recipe.start:
        settings |= {"mixture_from": recipe.start, "mixture_drawn": encode_counts(recipe.drawn)}
    return json.loads(json.dumps(settings))


IN_RUNS = replace(RECIPE, epoch_size=110, run_length=10)


@pytest.mark.parametrize(
    "recipe",
    [
        RECIPE,
        replace(RECIPE, start=60, drawn=(40, 8)),
        replace(RECIPE, means=None, max_epochs=(None, None)),
        IN_RUNS,
        replace(IN_RUNS, start=63, drawn=(40, 8)),
    ],
)
def test_a_recipe_survives_text_whole(recipe):
    assert Recipe.decoded(recipe.encoded(), recipe.start, recipe.drawn) == recipe
    assert len(recipe.encoded()) < PLAN_TEXT_LIMIT


@pytest.mark.parametrize(
    "recipe",
    [RECIPE, replace(RECIPE, start=60, drawn=(40, 8)), IN_RUNS, replace(IN_RUNS, start=63, drawn=(40, 8))],
)
def test_what_was_consumed_follows_from_the_state_alone(recipe):
    plan = recipe.plan()
    for position in range(recipe.start, 300, 7):
        expected = dict(zip(recipe.names, plan.counts(position), strict=True))
        assert consumed(saved(recipe), position) == {**expected, "old": 12}


def test_a_recipe_of_too_many_sources_has_no_text_and_the_state_says_what_to_pass():
    many = 1000
    recipe = replace(
        RECIPE,
        names=tuple(f"source {k}" for k in range(many)),
        lengths=tuple(range(1, many + 1)),
        points=((0, tuple(range(1, many + 1))),),
        means=None,
        max_epochs=(None,) * many,
    )
    assert recipe.encoded() is None
    with pytest.raises(StateError, match="draws_before"):
        consumed({"mixture": recipe.digest()}, 5)


def test_a_position_before_the_recipe_holds_is_refused():
    with pytest.raises(StateError, match="position 59 is before its mixture_from, 60"):
        consumed(saved(replace(RECIPE, start=60, drawn=(40, 8))), 59)


@given(st.lists(st.integers(0, (1 << 63) - 1)))
def test_counts_survive_text_in_at_most_sixteen_characters_each(counts):
    text = encode_counts(counts)
    assert decode_counts(text) == counts
    assert len(text) <= 16 * len(counts)


@pytest.mark.parametrize(
    "text", ["*", "gA==", "////////////////", "/////////////w==", base64.b64encode(b"\xff" * 9 + b"\x01").decode()]
)
def test_damaged_counts_are_refused(text):
    with pytest.raises(StateError, match="mixture_drawn"):
        decode_counts(text)


DAMAGE = {
    "no JSON": "%%",
    "cut": RECIPE.encoded()[:40],
    "too long": RECIPE.encoded() + " " * PLAN_TEXT_LIMIT,
    "nested deep": "[" * PLAN_TEXT_LIMIT,
    "a number": "7",
    "another shape": json.dumps({"a": 1}),
    "too few fields": json.dumps([["a"], [1]]),
}


def changed(**fields):
    names = ("names", "lengths", "points", "linear", "means", "max_epochs", "epoch_size", "seed", "departed")
    plain = dict(zip(names, json.loads(RECIPE.encoded()), strict=True))
    return json.dumps(list((plain | fields).values()))


DAMAGE |= {
    "a name that is no text": changed(names=["web", 3]),
    "a length too few": changed(lengths=[1]),
    "a negative length": changed(lengths=[1, -1]),
    "a length that is no number": changed(lengths=[1, "x"]),
    "a length that is true": changed(lengths=[1, True]),
    "a huge length": changed(lengths=[1, 1 << 63]),
    "no points": changed(points=[]),
    "points that fall": changed(points=[[0, [1, 1]], [9, [1, 1]], [5, [1, 1]]]),
    "no weights": changed(points=[[0, [0, 0]]]),
    "a weight too many": changed(points=[[0, [1, 1, 1]]]),
    "a fractional weight": changed(points=[[0, [0.5, 1]]]),
    "a mean of zero": changed(means=[[1, 0], [1, 1]]),
    "a mean too few": changed(means=[[1, 1]]),
    "a negative limit": changed(max_epochs=[-1, None]),
    "an epoch that is no number": changed(epoch_size=None),
    "linear that is no flag": changed(linear=2),
    "departed that are no counts": changed(departed=[["x", -1]]),
    "runs of nothing": changed(run_length=0),
    "runs that are true": changed(run_length=True),
    "runs that the epochs are not made of": changed(run_length=5),
    "runs of two lengths": changed(run_length=1, again=1),
}


@pytest.mark.parametrize("text", DAMAGE.values(), ids=DAMAGE)
def test_damaged_text_is_refused_and_never_believed(text):
    with pytest.raises(StateError, match=r"damaged: its mixture_plan|exceeds|cannot be read"):
        consumed({"mixture_plan": text}, 10)


@pytest.mark.parametrize("start", [-1, "5", 1.5, True, 1 << 63])
def test_a_damaged_start_is_refused(start):
    with pytest.raises(StateError, match="mixture_from"):
        consumed({"mixture_plan": RECIPE.encoded(), "mixture_from": start}, 10)


def test_counts_for_other_sources_are_refused():
    with pytest.raises(StateError, match="2 names, and 1 counts"):
        consumed({"mixture_plan": RECIPE.encoded(), "mixture_from": 5, "mixture_drawn": encode_counts([5])}, 10)


def test_weights_become_whole_numbers_without_a_common_factor():
    assert whole_weights([9, 1]) == whole_weights([Fraction(9, 10), Fraction(1, 10)]) == (9, 1)
    assert whole_weights([0, 4, 6]) == (0, 2, 3)
    primes = [Fraction(1, (1 << 200) + k) for k in range(1, 100, 2)]
    assert sum(whole_weights(primes)) == 1 << 126
    assert whole_weights([weight * 3 for weight in primes]) == whole_weights(primes)


def test_the_digest_differs_with_whatever_decides_the_order_and_with_nothing_else():
    changes = [
        {"names": ("web", "books")},
        {"lengths": (100, 8)},
        {"points": ((0, (9, 1)), (51, (1, 1)))},
        {"linear": False},
        {"means": None},
        {"max_epochs": (None, 2)},
        {"epoch_size": 108},
        {"seed": 3},
    ]
    digests = {RECIPE.digest(), RECIPE.digest("data"), *(replace(RECIPE, **change).digest() for change in changes)}
    assert len(digests) == len(changes) + 2
    assert replace(RECIPE, start=9, drawn=(5, 4), departed=()).digest() == RECIPE.digest()
