"""Laws 1 to 5 and 10 over compositions that are drawn: each is the one-position-at-a-time reference's, by every way of
asking, through every loader, and over every stop."""

import pickle
from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import OrderError
from headrace.views import dataset_settings
from laws.compositions import batches, nodes, packs
from planning.composed_reference import Selected, Sharded
from planning.composed_views import real

# Positions of a composition, as fractions of its first epochs, so that they fit whatever was drawn.
fractions = st.lists(st.floats(0, 1, exclude_max=True), max_size=12)

# The reference takes its time, so there are fewer examples in `make laws`.
fewer = settings(max_examples=max(25, settings.default.max_examples // 5))


def ids(samples):
    return [sample["id"] for sample in samples]


@fewer
@given(node=nodes(), epochs=st.integers(1, 3), far=st.integers(0, 2**30))
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


@fewer
@given(node=nodes(), far=st.integers(2**30, 2**63 - 1))
def test_however_far_a_position_is_it_gives_the_reference_s_item_or_is_refused(node, far):
    view = real(node)
    try:
        got = ids(view.__getitems__(np.array([far])))
    except (IndexError, OrderError):
        assert node.n == 0 or far > 2**61 // max(leaf.n + 1 for leaf in node.leaves) ** 3
    else:
        assert got == [node.place(far)]


@fewer
@given(node=nodes(), places=fractions)
def test_an_item_depends_on_its_position_alone_and_on_no_other_that_was_asked_for(node, places):
    if node.n == 0:
        return
    positions = [int(place * 3 * node.n) for place in places]
    view = real(node)
    together = ids(view.__getitems__(np.array(positions, np.int64)))
    assert together == [ids(view.__getitems__(np.array([position])))[0] for position in positions]
    assert together == [ids(real(node).__getitems__(np.array([position])))[0] for position in positions]
    assert together == ids(pickle.loads(pickle.dumps(view)).__getitems__(np.array(positions, np.int64)))
    assert together == ids(pickle.loads(pickle.dumps(real(node))).__getitems__(np.array(positions, np.int64)))
    assert together == ids(real(node).__getitems__(np.array(positions[::-1], np.int64)))[::-1]


@fewer
@given(node=nodes(), epoch=st.integers(0, 9))
def test_views_that_order_keep_the_items_of_each_epoch_and_shards_share_them(node, epoch):
    if not hasattr(node, "base") or node.base.n == 0:
        return
    base = range(epoch * node.base.n, (epoch + 1) * node.base.n)
    view = real(node)
    located = view.locate(np.arange(epoch * node.n, (epoch + 1) * node.n)).tolist()
    match node:
        case Sharded(total=total):
            shards = [real(replace(node, current=k, padded=False)) for k in range(total)]
            parts = [shard.locate(np.arange(epoch * len(shard), (epoch + 1) * len(shard))).tolist() for shard in shards]
            assert sorted(position for part in parts for position in part) == list(base)
            assert located[: len(parts[node.current])] == parts[node.current]
            assert len(located) == (-(-len(base) // total) if node.padded else len(parts[node.current]))
        case Selected():
            assert located == sorted(set(located))
            assert set(located) <= set(base)
        case _:
            assert sorted(located) == list(base)


@fewer
@given(node=nodes(lengths=True))
def test_lengths_are_those_of_the_samples_that_stand_there(node):
    view = real(node)
    assert view.lengths.tolist() == [node.tokens(position) for position in range(node.n)]
    if node.n:
        assert view.lengths_at(np.arange(node.n, 3 * node.n)).tolist() == [
            node.tokens(position) for position in range(node.n, 3 * node.n)
        ]


@fewer
@given(node=nodes(), other=nodes())
def test_two_compositions_of_equal_settings_are_equal(node, other):
    one, two = real(node), real(other)
    assert dataset_settings(one) == dataset_settings(real(node))
    if dataset_settings(one) == dataset_settings(two):
        assert [node.place(position) for position in range(2 * node.n)] == [
            other.place(position) for position in range(2 * other.n)
        ]


@fewer
@given(node=packs(), epoch=st.integers(0, 2))
def test_packed_rows_are_the_reference_s_and_hold_every_token_once(node, epoch):
    view = real(node, tokens=True)
    rows = node.epoch(epoch)
    assert view.rows_in_epoch(epoch) == len(rows)
    addresses = [view.addresses(epoch, window) for window in range(view.num_windows)]
    samples = view.__getitems__(np.concatenate([np.zeros(0, np.int64), *addresses])) if rows else []
    assert len(samples) == len(rows)
    for sample, row in zip(samples, rows, strict=True):
        assert_packed(node, sample, row)
    tokens = sorted(token for sample in samples for token in sample["input_ids"][sample["segment_ids"] > 0].tolist())
    kept = [
        (node.base.place(position), node.base.tokens(position))
        for position in range(epoch * node.base.n, (epoch + 1) * node.base.n)
    ]
    assert tokens == sorted(
        place * 16 + k
        for place, length in kept
        for k in range(length)
        if length <= node.capacity or node.long == "split"
    )


def assert_packed(node, sample, row):
    """The sample of a row, one token at a time."""
    tokens, places, segments, edges = [], [], [], []
    for number, (position, start, stop) in enumerate(row):
        edges.append(len(tokens))
        for k in range(start, stop):
            tokens.append(node.base.place(position) * 16 + k)
            places.append(k - start)
            segments.append(number + 1)
    assert len(tokens) <= node.capacity
    edges += [len(tokens)] if len(tokens) < node.capacity else []
    rest = node.capacity - len(tokens)
    assert sample["input_ids"].tolist() == tokens + [0] * rest
    assert sample["position_ids"].tolist() == places + list(range(rest))
    assert sample["segment_ids"].tolist() == segments + [0] * rest
    assert sample["cu_seqlens"].tolist() == [*edges, node.capacity]
    leaves = node.leaves
    found = [next(leaf for leaf in leaves if 0 <= node.base.place(p) - leaf.first < leaf.n) for p, *_ in row]
    assert sample["document_ids"].tolist() == [
        node.base.place(position) - leaf.first for leaf, (position, *_) in zip(found, row, strict=True)
    ]


@fewer
@given(node=batches(), epoch=st.integers(0, 2))
def test_batches_of_a_token_budget_are_the_reference_s_and_hold_every_sample_once(node, epoch):
    view = real(node)
    rows = node.epoch(epoch)
    assert view.rows_in_epoch(epoch) == len(rows)
    assert len(rows) % node.together == 0
    addresses = [view.addresses(epoch, window) for window in range(view.num_windows)]
    found = view.__getitems__(np.concatenate(addresses)) if rows else []
    assert [ids(samples) for samples in found] == [[node.base.place(position) for position in row] for row in rows]
    for row in rows:
        lengths = [max(1, node.base.tokens(position)) for position in row]
        taken = max(lengths, default=0) * len(row) if node.padded else sum(lengths)
        assert taken <= node.max_tokens or (len(row) == 1 and node.long == "alone")
        assert node.most is None or len(row) <= node.most
    epochs = range(epoch * node.base.n, (epoch + 1) * node.base.n)
    fit = [p for p in epochs if node.base.tokens(p) <= node.max_tokens or node.long == "alone"]
    assert sorted(position for row in rows for position in row) == fit
