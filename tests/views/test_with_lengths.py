"""A dataset with lengths beside it is the dataset, and views can plan by length."""

import numpy as np
import pytest

from headrace.errors import OptionError, OrderError
from headrace.views import ShuffledDataset, WithLengths, lengths_at


class Batched(list):
    def __getitems__(self, items):
        return tuple(self[item] for item in items)

    settings = {"data": "abc", "num_samples": 3}  # noqa: RUF012 (read only)


def test_samples_batches_and_settings_pass_through():
    view = WithLengths(Batched("abc"), [5, 3, 2])
    assert len(view) == 3
    assert [view[index] for index in (0, 1, -1)] == ["a", "b", "c"]
    assert list(view) == ["a", "b", "c"]
    assert view.__getitems__([2, 0]) == ("c", "a")
    assert view.settings.items() >= Batched.settings.items()
    assert WithLengths(["a", "b"], [1, 2]).__getitems__(np.array([1, 1])) == ["b", "b"]


def test_lengths_are_known_to_views_above():
    view = WithLengths(list("abc"), np.array([5, 3, 2], np.uint8))
    assert view.lengths.tolist() == [5, 3, 2]
    assert view.lengths.dtype == np.int64
    shuffled = ShuffledDataset(view, 1)
    assert [(sample, length) for sample, length in zip(shuffled, shuffled.lengths, strict=True)] == [
        (sample, [5, 3, 2]["abc".index(sample)]) for sample in shuffled
    ]
    assert lengths_at(view, np.array([4, 0])).tolist() == [3, 5]


def test_other_lengths_are_other_settings():
    one, other = (WithLengths(list("abc"), lengths).settings for lengths in ([1, 2, 3], [1, 2, 4]))
    assert one != other
    assert one == WithLengths(list("abc"), np.array([1, 2, 3], np.int8)).settings


def test_lengths_that_do_not_belong_to_the_samples_are_refused():
    for lengths in ([1, 2], [1, 2, 3, 4], [[1, 2, 3]]):
        with pytest.raises(OptionError, match="one for each of 3 samples"):
            WithLengths(list("abc"), lengths)
    with pytest.raises(OptionError, match="lengths=-1"):
        WithLengths(list("abc"), [1, -1, 2])
    with pytest.raises(TypeError, match="float64"):
        WithLengths(list("abc"), [1.0, 2.0, 3.0])
    with pytest.raises(OrderError, match="below ShuffledDataset"):
        WithLengths(ShuffledDataset(list("abc"), 1), [1, 2, 3])
