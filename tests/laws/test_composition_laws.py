"""Laws 1 to 5 and 10 over compositions that are drawn: each is the one-position-at-a-time reference's, by every way of
asking, through every loader, and over every stop."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from headrace.views import dataset_settings
from laws.compositions import nodes
from planning.composed_views import real

# Positions of a composition, as fractions of its first epochs, so that they fit whatever was drawn.
fractions = st.lists(st.floats(0, 1, exclude_max=True), max_size=12)


def ids(samples):
    return [sample["id"] for sample in samples]


@given(node=nodes(), epochs=st.integers(1, 3), far=st.integers(0, 2**40))
def test_a_composition_gives_the_reference_s_items_in_every_epoch(node, epochs, far):
    view = real(node)
    assert len(view) == node.n
    if node.n == 0:
        return
    expected = [node.place(position) for position in range(epochs * node.n)]
    assert ids(view.__getitems__(np.arange(epochs * node.n))) == expected
    assert ids(view[number] for number in range(-node.n, node.n)) == 2 * expected[: node.n]
    some = [far, far + 1, far + node.n]
    assert ids(view.__getitems__(np.array(some))) == [node.place(position) for position in some]


@given(node=nodes(), places=fractions)
def test_an_item_depends_on_its_position_alone_and_on_no_other_that_was_asked_for(node, places):
    if node.n == 0:
        return
    positions = [int(place * 3 * node.n) for place in places]
    view = real(node)
    together = ids(view.__getitems__(np.array(positions, np.int64)))
    assert together == [ids(view.__getitems__(np.array([position])))[0] for position in positions]
    assert together == [ids(real(node).__getitems__(np.array([position])))[0] for position in positions]
    assert together == ids(real(node).__getitems__(np.array(positions[::-1], np.int64)))[::-1]


@given(node=nodes(), other=nodes())
def test_two_compositions_of_equal_settings_are_equal(node, other):
    one, two = real(node), real(other)
    assert dataset_settings(one) == dataset_settings(real(node))
    if dataset_settings(one) == dataset_settings(two):
        assert [node.place(position) for position in range(2 * node.n)] == [
            other.place(position) for position in range(2 * other.n)
        ]
