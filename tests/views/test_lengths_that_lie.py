"""Rows are planned from lengths: what is no count of tokens, or not the document's, is refused and named."""

import pickle

import numpy as np
import pytest
import torch

from headrace import (
    BufferSortedDataset,
    DocumentBytesFormat,
    DocumentJsonFormat,
    DocumentNumpyFormat,
    DocumentStorage,
    MDSWriter,
    MemoryStore,
    PackedDataset,
    SampleDataset,
    SelectedDataset,
    ShuffledDataset,
    StatefulDataLoader,
    WithLengths,
)
from headrace.errors import DatasetChangedError, OrderError
from headrace.views import MixedDataset, TokenBudgetBatches
from views.packed_scenes import Listed, documents_of, stored

LENGTHS = [3, 5, 2, 6, 4, 1, 8, 7]


class Damaged(Listed):
    """Its document `at` cannot be decoded."""

    def __init__(self, documents, at):
        super().__init__(documents)
        self.at = at

    def __getitem__(self, index):
        if index == self.at:
            raise ValueError("not UTF-8")
        return super().__getitem__(index)


def stored_as(storage_format, documents):
    storage = DocumentStorage(MemoryStore(), storage_format)
    with storage.sync_writer() as writer:
        for document in documents:
            writer.append(0, document)
    return storage.dataset()


@pytest.fixture(params=["bytes", "json", "mds"])
def stored_bytes(request, tmp_path):
    """Datasets whose lengths are bytes."""
    if request.param == "bytes":
        return stored_as(DocumentBytesFormat(), [b"abc", b"defgh"])
    if request.param == "json":
        return stored_as(DocumentJsonFormat(), [{"tokens": [1, 2, 3]}, {"tokens": [1]}])
    with MDSWriter(out=str(tmp_path / "mds"), columns={"tokens": "ndarray:int32"}) as writer:
        for length in (3, 5):
            writer.write({"tokens": np.arange(length, dtype=np.int32)})
    return SampleDataset(tmp_path / "mds")


def compositions(dataset):
    """The dataset alone, and below views and mixtures."""
    yield dataset
    yield ShuffledDataset(SelectedDataset(dataset, [1]), 3)
    yield ShuffledDataset(MixedDataset({"good": stored(LENGTHS), "bad": dataset}, {"good": 1, "bad": 1}), 3)
    yield MixedDataset({"inner": MixedDataset({"bad": BufferSortedDataset(dataset, 2, 1)})})


def windowed(base):
    return [PackedDataset(base, 8, strategy="concat"), TokenBudgetBatches(base, 1000, 2)]


def test_stored_bytes_are_not_taken_for_tokens(stored_bytes):
    for base in compositions(stored_bytes):
        for rows in windowed(base):
            kind = type(rows).__name__
            problem = rf"{kind} counts tokens, and the lengths of {type(stored_bytes).__name__} are stored bytes"
            for asked in (len, lambda rows: rows.report(), lambda rows: rows[0], lambda rows: rows.addresses(0, 0)):
                with pytest.raises(TypeError, match=rf"{problem}.*WithLengths\(dataset, lengths\)"):
                    asked(rows)
            loader = StatefulDataLoader(rows, list, device="cpu", local_batch_size=1, skip_corrupt=True)
            with pytest.raises(TypeError, match=problem):
                iter(loader)


def test_the_source_of_a_mixture_that_counts_bytes_is_named(stored_bytes):
    rows = PackedDataset(MixedDataset({"good": stored(LENGTHS), "bad": stored_bytes}, {"good": 1, "bad": 1}), 8)
    with pytest.raises(TypeError) as caught:
        rows.report()
    assert caught.value.__notes__ == ["in source 'bad' of a mixture"]


def test_shares_of_tokens_are_not_worked_out_from_stored_bytes(stored_bytes):
    sources = {"good": stored(LENGTHS), "bad": ShuffledDataset(stored_bytes, 1)}
    with pytest.raises(TypeError, match=r"unit='tokens' of a mixture, in source 'bad', counts tokens.*WithLengths"):
        MixedDataset(sources, {"good": 1, "bad": 1}, unit="tokens")
    assert len(MixedDataset(sources, {"good": 1, "bad": 0}, unit="tokens")) == 8
    assert len(MixedDataset(sources, {"good": 1, "bad": 1})) == 10


def test_sources_that_are_never_drawn_are_not_asked(stored_bytes):
    unopened = DocumentStorage("/nowhere/at/all").dataset()
    for other in (stored_bytes, unopened):
        mixed = MixedDataset({"good": stored(LENGTHS), "other": other}, {"good": 1, "other": 0})
        assert PackedDataset(mixed, 8, strategy="concat").report()["tokens"] == sum(LENGTHS)


def test_lengths_beside_a_dataset_and_elements_are_believed(stored_bytes):
    given = WithLengths(stored_bytes, [3, 1])
    assert PackedDataset(given, 8).report()["tokens"] == 4
    assert TokenBudgetBatches(given, 8, 1).report()["tokens"] == 4
    dtype = np.dtype([("tokens", "<u2"), ("mask", "u1")])
    records = stored_as(DocumentNumpyFormat(dtype), [np.array([(1, 0), (2, 1)], dtype)])
    assert PackedDataset(records, 8)[0]["mask"].tolist() == [0, 1, 0, 0, 0, 0, 0, 0]


@pytest.mark.parametrize("change", [-1, 1, 5])
@pytest.mark.parametrize("strategy", ["best_fit", "first_fit", "concat"])
@pytest.mark.parametrize("capacity", [4, 20])
def test_a_document_of_another_length_than_was_given_is_an_error_that_names_it(change, strategy, capacity):
    lengths = [length + change * (number == 3) for number, length in enumerate(LENGTHS)]
    for base in (
        WithLengths(documents_of(LENGTHS), lengths),
        WithLengths(stored(LENGTHS), lengths),
        Listed(documents_of(LENGTHS), lengths),
        MixedDataset({"one": ShuffledDataset(Listed(documents_of(LENGTHS), lengths), 1)}),
    ):
        packed = PackedDataset(base, capacity, strategy=strategy)
        with pytest.raises(ValueError, match=f"document 3 has 6 tokens, but its length was given as {6 + change}"):
            packed[:]
        with (
            StatefulDataLoader(packed, device="cpu", local_batch_size=len(packed), skip_corrupt=True) as loader,
            pytest.raises(ValueError, match="document 3 has 6 tokens"),
        ):
            list(loader)


def test_a_substitute_that_is_shorter_leaves_padding():
    damaged = Damaged(documents_of(LENGTHS), at=3)
    packed = PackedDataset(damaged, 9, strategy="concat")
    with StatefulDataLoader(packed, device="cpu", local_batch_size=4, skip_corrupt=True) as loader:
        (batch,) = loader
    (skipped,) = loader.skipped
    assert skipped.item == 3
    assert LENGTHS[skipped.substitute] < 6
    tokens = batch["input_ids"][batch["segment_ids"] > 0]
    expected = documents_of(LENGTHS)
    expected[3] = expected[skipped.substitute]
    assert torch.equal(tokens.to(torch.int64), torch.from_numpy(np.concatenate(expected).astype(np.int64)))


@pytest.mark.parametrize(
    ("lengths", "error", "text"),
    [
        (np.array(LENGTHS) + 0.5, TypeError, "lengths of samples are integers, and those of Listed are float64"),
        (np.array(LENGTHS) * np.nan, TypeError, "are float64"),
        ([True] * 8, TypeError, "are bool"),
        (["3"] * 8, TypeError, "are <U1"),
        ([None] * 8, TypeError, "are object"),
        ([LENGTHS] * 8, ValueError, r"8 samples and lengths of shape \(8, 8\)"),
        (LENGTHS[:-1], ValueError, r"8 samples and lengths of shape \(7,\)"),
        ([*LENGTHS, 1], ValueError, r"8 samples and lengths of shape \(9,\)"),
        ([-1, *LENGTHS[1:]], OrderError, "-1"),
        ([1 << 62, *LENGTHS[1:]], OrderError, "4611686018427387904"),
        ([1 << 34, *LENGTHS[1:]], OrderError, "17179869184"),
        (np.array([(1 << 64) - 1, *LENGTHS[1:]], np.uint64), OrderError, "-1"),
    ],
)
def test_lengths_that_are_none_are_refused_before_anything_is_made_of_them(lengths, error, text):
    base = Listed(documents_of(LENGTHS), lengths)
    for rows in (PackedDataset(base, 8), TokenBudgetBatches(ShuffledDataset(base, 1), 1000, 2)):
        with pytest.raises(error, match=text):
            rows.report()


def rows_of(base):
    return [PackedDataset(base, 16, window=3), TokenBudgetBatches(base, 1000, 2, window=3)]


def test_a_dataset_that_grows_or_shrinks_under_its_rows_is_an_error():
    for kind in (0, 1):
        for change in (lambda base: base.documents.append(np.arange(4)), lambda base: base.documents.pop()):
            base = Listed(documents_of([4] * 9))
            rows = rows_of(ShuffledDataset(base, 1) if kind else base)[kind]
            first = rows[0]
            change(base)
            base.lengths = np.array([4] * len(base))
            with pytest.raises(DatasetChangedError, match="it had 9 samples and has"):
                rows[0]
            with pytest.raises(DatasetChangedError, match="it had 9 samples and has"):
                pickle.loads(pickle.dumps(rows)).report(1)
            assert first is not None


def test_a_dataset_that_gives_fewer_samples_than_were_asked_for_is_an_error():
    class Short(Listed):
        def __getitems__(self, items):
            return [self.documents[item] for item in items][:-1]

    for rows in rows_of(Short(documents_of(LENGTHS))):
        with pytest.raises(ValueError, match=r"Short.__getitems__ gave \d+ samples for \d+ items"):
            rows[0]


@pytest.mark.parametrize(
    ("tell", "error"), [(lambda items: items + 0.5, TypeError), (lambda items: items[1:], ValueError)]
)
def test_lengths_that_a_dataset_tells_of_some_items_are_checked_as_well(tell, error):
    class Telling(Listed):
        def lengths_at(self, items):
            return tell(items)

    with pytest.raises(error, match="Telling"):
        PackedDataset(Telling(documents_of(LENGTHS)), 8).report()
