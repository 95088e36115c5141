"""Samples that cannot be decoded: which sample comes instead, what counts as damage, and what is noted."""

import copy
import json
import logging
import pickle
import struct
import threading
import zlib

import numpy as np
import pytest

from headrace import MDSWriter, SampleDataset, ShuffledDataset, StreamNumpyFormat, StreamStorage
from headrace.errors import (
    ClosedError,
    CorruptShardError,
    DatasetChangedError,
    NotFoundError,
    OptionError,
    PathOutsideRootError,
    SchemaMismatchError,
    UnsafeDataError,
)
from headrace.planning import Permutation, derive_seed
from headrace.views import dataset_settings, fetch
from headrace.views.skipping import (
    CORRUPT,
    Skipped,
    SkippedItems,
    SkippingDataset,
    corrupt_errors,
    is_corrupt,
    with_leaves,
)


class Damaged:
    """Sample i is 10 * i, but for some that raise; reads are counted."""

    def __init__(self, length, bad, error=ValueError):
        self.length = length
        self.bad = set(bad)
        self.error = error
        self.read = []

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        if not 0 <= index < self.length:
            raise IndexError(index)
        self.read.append(index)
        if index in self.bad:
            raise self.error(f"sample {index} is damaged")
        return 10 * index


class Batched(Damaged):
    """As our own datasets are: batches of arrays, in and out, with settings and lengths."""

    settings = {"data": "9f2c"}  # noqa: RUF012

    def __getitems__(self, items):
        assert isinstance(items, np.ndarray)
        return np.array([self[item] for item in items.tolist()])

    @property
    def lengths(self):
        return np.arange(self.length) * 7 % 50 + 1


def expected_substitute(dataset, item, fit=False):
    """One at a time, by the rule as it is written down."""
    order = Permutation(len(dataset), derive_seed(0, "substitute", item))
    tried = 0
    for position in range(len(dataset)):
        candidate = int(order(position))
        if candidate == item or (fit and dataset.lengths[candidate] > dataset.lengths[item]):
            continue
        tried += 1
        assert tried <= 64
        if candidate not in dataset.bad:
            return candidate
    raise AssertionError("there is none")


@pytest.mark.parametrize(("kind", "fit"), [(Damaged, False), (Batched, False), (Batched, True)])
@pytest.mark.parametrize(("length", "bad"), [(2, {0}), (50, {3, 4, 5, 48, 49}), (2000, set(range(0, 2000, 9)))])
def test_a_damaged_sample_is_replaced_by_the_first_candidate_that_can_be_read(kind, fit, length, bad):
    base = kind(length, bad)
    if fit:
        shortest = set(np.flatnonzero(base.lengths == base.lengths.min()).tolist())
        base.bad -= shortest  # for which nothing need be short enough
    dataset = SkippingDataset(base, fit=fit)
    samples = fetch(dataset, np.arange(length))
    substitutes = {item: expected_substitute(base, item, fit) for item in sorted(base.bad)}
    assert list(samples) == [10 * substitutes.get(item, item) for item in range(length)]
    assert [(one.item, one.substitute) for one in dataset.skipped] == list(substitutes.items())


@pytest.mark.parametrize(
    ("length", "item", "candidates"),
    [
        (50, 3, [10, 38, 32]),
        (1000, 999, [968, 159, 910]),
        (10**6, 123456, [363554, 936797, 291380]),
        (10**12, 5 * 10**11, [19673540775, 890825450487, 244483839546]),
    ],
)
def test_the_candidates_never_change_from_one_version_to_the_next(length, item, candidates):
    for number, expected in enumerate(candidates):
        dataset = SkippingDataset(Damaged(length, {item, *candidates[:number]}))
        assert dataset[item] == 10 * expected


def test_the_substitute_does_not_depend_on_who_meets_the_sample_when_and_in_which_batch():
    items = np.random.default_rng(0).integers(0, 60, 400)
    bad = {3, 14, 15, 59}
    one = SkippingDataset(Batched(60, bad))
    together = list(fetch(one, items))
    for size in (1, 7):
        other = SkippingDataset(Batched(60, bad), source="other")
        parts = [list(fetch(other, items[begin : begin + size])) for begin in range(0, 400, size)]
        assert [sample for part in parts for sample in part] == together
    assert [SkippingDataset(Damaged(60, bad))[item] for item in items.tolist()] == together


def test_a_batch_without_damage_is_one_read_and_keeps_its_type():
    base = Batched(30, {4})
    dataset = SkippingDataset(base)
    assert isinstance(fetch(dataset, np.array([1, 2, 3])), np.ndarray)
    assert base.read == [1, 2, 3]
    assert isinstance(fetch(dataset, np.array([3, 4, 4])), np.ndarray)  # with a substitute, too
    base.read.clear()
    fetch(dataset, np.array([4, 5]))
    assert base.read == [expected_substitute(base, 4), 5]  # what is known to be damaged is not tried again


def test_single_samples_slices_and_numbers_from_the_end_are_those_of_the_base():
    dataset = SkippingDataset(Damaged(20, {19}))
    substitute = 10 * expected_substitute(dataset.base, 19)
    assert (dataset[0], dataset[-20], dataset[19], dataset[-1]) == (0, 0, substitute, substitute)
    assert dataset[17:] == [170, 180, substitute]
    assert len(dataset) == 20
    for outside in (20, -21):
        with pytest.raises(IndexError):
            dataset[outside]


def test_where_all_candidates_are_damaged_the_error_surfaces_and_says_so():
    for base in (Damaged(300, range(300)), Damaged(1, {0})):
        with pytest.raises(ValueError, match="sample 0 is damaged") as raised:
            fetch(SkippingDataset(base, source="web"), np.array([0]))
        assert any("sample 0 of source 'web' has no substitute" in note for note in raised.value.__notes__)


def test_no_more_than_64_candidates_are_read():
    base = Damaged(300, range(300))
    with pytest.raises(ValueError):
        SkippingDataset(base)[7]
    assert len(base.read) == 2 + 64  # the batch, the sample, the candidates
    assert base.read.count(7) == 2


def test_where_rows_are_planned_by_length_nothing_longer_is_taken():
    base = Batched(50, {8})
    base.bad = {int(base.lengths.argmin())}
    with pytest.raises(ValueError) as raised:
        SkippingDataset(base, fit=True)[min(base.bad)]
    assert any("no longer" in note for note in raised.value.__notes__)


@pytest.mark.parametrize(
    "error", [ValueError, KeyError, EOFError, struct.error, zlib.error, UnicodeError, json.JSONDecodeError]
)
def test_what_decoders_raise_is_damage(error):
    raised = error("x", "x", 0) if error is json.JSONDecodeError else error("x")
    assert is_corrupt(raised, CORRUPT)


class OddError(OSError, ValueError):
    """As the errors of some network libraries are."""


@pytest.mark.parametrize(
    "error",
    [
        OSError("timed out"),
        ConnectionResetError(),
        OddError(),
        MemoryError(),
        IndexError(),
        TypeError(),
        RuntimeError(),
        NotFoundError("gone"),
        PathOutsideRootError("../x"),
        ClosedError(),
        OptionError("a", 1, "2"),
        UnsafeDataError("a", "b", "c"),
        SchemaMismatchError("a", "b", "c", "d"),
        DatasetChangedError("a", "b"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_what_others_would_not_meet_is_no_damage(error):
    assert not is_corrupt(error, CORRUPT)
    base = Damaged(10, {2}, lambda _: error)
    with pytest.raises(type(error)):
        fetch(SkippingDataset(base), np.arange(10))


def test_an_error_of_the_system_counts_only_where_its_family_is_named():
    assert not is_corrupt(OSError(), (Exception,))
    assert not is_corrupt(MemoryError(), (Exception, ValueError))
    assert not is_corrupt(ClosedError(), (Exception, RuntimeError, OSError))
    assert not is_corrupt(NotFoundError("x"), (Exception, OSError))
    assert is_corrupt(IndexError(), (Exception,))
    assert is_corrupt(ConnectionResetError(), (OSError,))
    assert is_corrupt(NotFoundError("x"), (NotFoundError,))
    assert is_corrupt(CorruptShardError("a", 0, "b"), CORRUPT)
    assert not is_corrupt(CorruptShardError("a", 0, "b"), (ValueError,))


def test_what_to_skip_is_true_or_types_of_exceptions():
    assert corrupt_errors(True) == CORRUPT
    assert corrupt_errors(False) == ()
    assert corrupt_errors((KeyError, OSError)) == (KeyError, OSError)
    assert corrupt_errors([KeyError]) == (KeyError,)
    for wrong in ("yes", 1, None, KeyError, (1,), (KeyboardInterrupt,), (ValueError("x"),)):
        with pytest.raises(TypeError, match="skip_corrupt"):
            corrupt_errors(wrong)
    with pytest.raises(OptionError, match="skip_corrupt"):
        corrupt_errors(())


def test_an_error_that_is_no_damage_beside_one_that_is_surfaces():
    class Both(Damaged):
        def __getitem__(self, index):
            if index == 5:
                raise ConnectionResetError
            return super().__getitem__(index)

    with pytest.raises(ConnectionResetError):
        fetch(SkippingDataset(Both(10, {2})), np.arange(10))
    dataset = SkippingDataset(Both(10, {2}))
    substitutes = Permutation(10, derive_seed(0, "substitute", 2))(np.arange(10)).tolist()
    while substitutes.pop(0) != 5:
        dataset.base.bad.add(substitutes[0])
    with pytest.raises(ConnectionResetError):  # as a candidate, too: the next one would be another sample
        dataset[2]


def test_a_batch_that_fails_as_a_whole_while_each_sample_can_be_read_is_read_one_by_one():
    class Picky(Damaged):
        def __getitems__(self, items):
            if len(items) > 1:
                raise ValueError("too many")
            return [self[item] for item in items]

    dataset = SkippingDataset(Picky(10, ()))
    assert list(fetch(dataset, np.array([1, 2]))) == [10, 20]
    assert list(dataset.skipped) == []


def test_each_item_is_noted_and_logged_once_and_in_the_order_met(caplog):
    dataset = SkippingDataset(Damaged(40, {7, 8, 30}), source="web")
    with caplog.at_level(logging.WARNING, logger="headrace"):
        for items in ([8, 1], [8, 7], [30, 7], [8, 8]):
            fetch(dataset, np.array(items))
    found = list(dataset.skipped)
    assert [one.item for one in found] == [8, 7, 30]
    assert found[0] == Skipped("web", 8, expected_substitute(dataset.base, 8), "ValueError: sample 8 is damaged")
    assert [record.name for record in caplog.records] == ["headrace"] * 3
    assert "sample 8 of source 'web' cannot be decoded" in caplog.text


def test_threads_share_one_list_and_get_the_same_samples():
    dataset = SkippingDataset(Damaged(400, range(0, 400, 5)))
    expected = list(fetch(SkippingDataset(Damaged(400, range(0, 400, 5))), np.arange(400)))
    results = [None] * 8

    def work(number):
        results[number] = [
            sample for begin in range(0, 400, 16) for sample in fetch(dataset, np.arange(begin, begin + 16))
        ]

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [expected] * 8
    assert sorted(one.item for one in dataset.skipped) == list(range(0, 400, 5))


def test_a_reporting_record_tells_of_every_item_in_a_batch_known_or_new_and_logs_none(caplog):
    dataset = SkippingDataset(Damaged(40, {7, 8}))
    with caplog.at_level(logging.WARNING, logger="headrace"), dataset.skipped.reporting() as met:
        fetch(dataset, np.array([7, 1]))
    assert [one.item for one in met.values()] == [7]
    with dataset.skipped.reporting() as met:
        fetch(dataset, np.array([2, 7, 8]))
    assert sorted(one.item for one in met.values()) == [7, 8]
    with dataset.skipped.reporting() as met:
        fetch(dataset, np.array([2]))
    assert (met, caplog.records) == ({}, [])


def test_a_record_pickles_with_what_it_has():
    dataset = SkippingDataset(Damaged(40, {7, 8}))
    fetch(dataset, np.array([8, 7]))
    for other in (pickle.loads(pickle.dumps(dataset)), copy.deepcopy(dataset)):
        assert list(other.skipped) == list(dataset.skipped)
        other.base.read.clear()
        assert list(fetch(other, np.array([7]))) == list(fetch(dataset, np.array([7])))
        assert 7 not in other.base.read
        other.skipped.add(Skipped("", 1, 2, "x"))
    assert len(dataset.skipped) == 2


def test_all_that_a_view_may_ask_is_the_base_s():
    class Sorted(Batched):
        fingerprint = "abc"
        shard_lengths = (10, 20)

        def sort_keys(self, items):
            return -items

        def sort_key(self, item):
            return -item

        def lengths_at(self, items):
            return items + 1

    base = Sorted(30, {4})
    dataset = SkippingDataset(base)
    names = ["settings", "fingerprint", "shard_lengths", "sort_keys", "sort_key", "lengths_at"]
    assert all(getattr(dataset, name) == getattr(base, name) for name in names)
    assert (dataset.lengths == base.lengths).all()
    plain = SkippingDataset(Damaged(30, {4}))
    assert [name for name in (*names, "lengths") if hasattr(plain, name)] == ["settings"]
    assert dataset_settings(plain) == dataset_settings(plain.base)


def test_under_views_every_dataset_at_the_bottom_is_wrapped_and_the_views_stay_as_they_are():
    base = Damaged(30, {4, 20})
    view = ShuffledDataset(ShuffledDataset(base, 1), 2)
    record = SkippedItems()
    wrapped = with_leaves(view, lambda leaf, source: SkippingDataset(leaf, CORRUPT, record, source=source))
    assert view.base.base is base
    assert wrapped.base.base.base is base
    assert wrapped.settings == view.settings
    positions = np.arange(60)
    assert (wrapped.locate(positions) == view.locate(positions)).all()
    substitutes = {item: expected_substitute(base, item) for item in base.bad}
    items = view.base.locate(view.locate(positions)) % 30
    assert list(fetch(wrapped, positions)) == [10 * substitutes.get(item, item) for item in items.tolist()]
    assert {one.item for one in record} == {4, 20}


def test_a_flipped_byte_in_a_shard_of_samples_costs_the_samples_of_that_shard_only(tmp_path):
    out = tmp_path / "data"
    with MDSWriter(columns={"id": "int"}, out=out, size_limit=200, hashes=["xxh64"]) as writer:
        for number in range(60):
            writer.write({"id": number})
    whole = SampleDataset(out, verify=True)
    lengths = whole.shard_lengths.tolist()
    assert len(lengths) > 3
    path = out / "shard.00001.mds"
    raw = bytearray(path.read_bytes())
    raw[-3] ^= 1
    path.write_bytes(raw)
    dataset = SkippingDataset(SampleDataset(out, verify=True))
    ids = [sample["id"] for sample in fetch(dataset, np.arange(60))]
    damaged = range(lengths[0], lengths[0] + lengths[1])
    assert [number for number in range(60) if ids[number] != number] == list(damaged)
    assert [one.item for one in dataset.skipped] == list(damaged)
    assert not set(ids) & set(damaged)
    assert all("CorruptShardError" in one.error and "shard.00001" in one.error for one in dataset.skipped)


def test_parts_of_documents_are_those_of_the_substitute_where_the_document_is_damaged():
    class Sliced(Batched):
        """Document i is i, lengths[i] times."""

        reads_slices = True

        def __getitems__(self, items):
            return [np.full(self.lengths[item], self[item] // 10) for item in items.tolist()]

        def read_slices(self, items, starts, stops):
            documents = self.__getitems__(items)
            return [document[a:b] for document, a, b in zip(documents, starts, stops, strict=True)]

    class Closed(Sliced):
        def read_slices(self, items, starts, stops):
            raise ClosedError

    rng = np.random.default_rng(1)
    items, starts = rng.integers(0, 50, 200), rng.integers(0, 20, 200)
    stops = starts + rng.integers(0, 20, 200)
    dataset = SkippingDataset(Sliced(50, {3, 17, 49}), fit=True)
    assert dataset.reads_slices
    substitutes = {item: expected_substitute(dataset.base, item, fit=True) for item in dataset.base.bad}
    for begin in range(0, 200, 20):
        batch = slice(begin, begin + 20)
        parts = dataset.read_slices(items[batch], starts[batch], stops[batch])
        for part, item, start, stop in zip(parts, items[batch], starts[batch], stops[batch], strict=True):
            read = substitutes.get(int(item), int(item))
            assert part.tolist() == [read] * len(range(dataset.base.lengths[read])[start:stop])
    assert {one.item for one in dataset.skipped} == set(items.tolist()) & dataset.base.bad
    assert dataset.read_slices(items[:0], starts[:0], stops[:0]) == []
    with pytest.raises(ClosedError):
        SkippingDataset(Closed(50, {3})).read_slices(items, starts, stops)
    assert not SkippingDataset(Batched(50, {3})).reads_slices


def test_batches_of_windows_stay_batches_of_windows(tmp_path):
    storage = StreamStorage(tmp_path / "data", StreamNumpyFormat([("tokens", "<u2")]))
    with storage.sync_writer() as writer:
        writer.append(0, {"tokens": np.arange(100, dtype=np.uint16)})
    dataset = storage.dataset(10)
    batch = fetch(SkippingDataset(dataset), np.array([3, 1]))
    assert batch.stacked()["tokens"].tolist() == [list(range(30, 40)), list(range(10, 20))]
