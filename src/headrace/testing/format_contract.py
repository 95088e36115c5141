# ruff: noqa: D102 - the tests' names are sentences
"""What every format promises, as a suite to inherit: of streams, of documents, of streams with metadata.

    class TestMyFormat(FormatContract):
        def make_format(self):
            return MyFormat()

        def records(self):
            return [{"tokens": [1, 2, 3]}, {"tokens": []}, {"tokens": [7]}]

        def refused(self):
            return [({"tokens": [-1]}, "value -1 at position 0")]

The records are written by the real storage into real files, and read back by the real readers.
"""

import pickle  # noqa: TID251 - the contract is that formats pickle; nothing read from a data set is unpickled
from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from headrace.datasets import DocumentReader, DocumentStorage, StreamDataset, open_storage
from headrace.datasets.kinds import AnyStorage
from headrace.errors import FieldError, SchemaMismatchError, UnsafeDataError
from headrace.formats.annotated import SpanNumpyFormat
from headrace.formats.documents import (
    DocumentBytesFormat,
    DocumentNumpyFormat,
    document_schema,
    item_bytes,
)
from headrace.formats.stream import StreamArrayFormat, disk_dtype
from headrace.store import LocalStore, Store
from headrace.testing.format_kinds import (
    OneStepAnElement,
    kind_of,
    packed_record,
    ready_format,
    ready_sample,
    storage_of,
)
from headrace.testing.interruption import interrupted_at_every_line
from headrace.testing.samples import SpoiledStore, same_value, spoil

__all__ = ["FormatContract"]

_SHARDS = 3  # records go to shards 0, 2 and 4; those between are empty


class Place(NamedTuple):
    """Where a record lies in the dataset: `read(*place)` gives its sample."""

    start: int  # element, or number of the document
    length: int  # elements; of a document always 1


class FormatContract:
    """Tests that hold for every format; a subclass defines make_format and records, and better refused too.

    | hook | says | default |
    | --- | --- | --- |
    | `make_format()` | the format, made anew | |
    | `records()` | two or more records that differ, made anew; an empty one too where there is such a thing | |
    | `refused()` | (record, part of the FieldError's message) for records that pack() must refuse | none |
    | `expected(record)` | the sample that a record comes back as, read alone | the record itself |
    | `same(sample, expected)` | whether a sample is that one | equal values (`same_value`) |
    | `make_storage(store, format)` | the storage that the records go into | by the format's members, see below |

    A format with `pack_spans` or `unpack_spans`, or with `size` and an `unpack` of four arguments, is one of streams
    with metadata; any other with `stream_dtype` one of streams; the rest are formats of documents.
    """

    def make_format(self) -> Any:
        """The format, made anew."""
        raise NotImplementedError("define make_format(self) in the subclass")

    def records(self) -> Sequence[Any]:
        """Records to append, made anew."""
        raise NotImplementedError("define records(self) in the subclass")

    def refused(self) -> Sequence[tuple[Any, str]]:
        """Records that must be refused, each with a part of the message."""
        return ()

    def expected(self, record: Any) -> Any:
        """The sample that the record comes back as."""
        return record

    def same(self, sample: Any, expected: Any) -> bool:
        """Whether a sample is the expected one."""
        return same_value(sample, expected)

    def make_storage(self, store: Store, storage_format: Any) -> AnyStorage:
        """The storage that the format is for."""
        return storage_of(self.make_format())(store, storage_format)

    # Round trips

    def test_a_format_declares_types_that_can_be_stored(self) -> None:
        storage_format = self.make_format()
        for name in ("stream_dtype", "dtype"):
            declared = getattr(storage_format, name, None)
            assert declared is None or isinstance(declared, np.dtype), f"{name} must be a NumPy dtype: {declared!r}"
            assert declared is None or disk_dtype(declared).itemsize > 0
        encoding = getattr(storage_format, "encoding", None)
        assert encoding is None or isinstance(encoding, str), f"encoding must be a name: {encoding!r}"
        assert len(self.records()) >= 2, "records() must give two or more"

    def test_each_record_comes_back_alone(self, tmp_path: Path) -> None:
        for number, record in enumerate(self.records()):
            storage, places = self._write(tmp_path / str(number), [record])
            self._check(storage, places, [record])

    def test_all_records_come_back_from_several_shards_with_empty_ones_between(self, tmp_path: Path) -> None:
        storage, places = self._write(tmp_path, self.records())
        self._check(storage, places, self.records())
        self._check(storage, places[::-1], self.records()[::-1])

    def test_batches_and_single_reads_of_any_length_agree(self, tmp_path: Path) -> None:
        storage, _ = self._write(tmp_path, self.records())
        with storage.sync_reader() as reader:
            total = reader.total_length
            longest = 1 if isinstance(storage, DocumentStorage) else total
            for length in sorted({1, min(2, longest), min(3, longest), longest}):
                places = [Place(start, length) for start in range(total - length + 1)]
                expected = [_read(reader, place) for place in places]
                with _dataset(storage, length) as dataset:
                    assert len(dataset) == len(places)
                    items = [*range(len(places)), *range(len(places) - 1, -1, -1), -1, 0, 0]
                    batch = dataset.__getitems__(items)
                    assert len(batch) == len(items)
                    for item, sample in zip(items, batch, strict=True):
                        assert self.same(sample, expected[item]), f"{sample} != {expected[item]} (item {item})"
                    if hasattr(batch, "stacked"):
                        for row, item in enumerate(items):
                            assert same_value(_row(batch.stacked(), row), expected[item]), f"stacked, item {item}"

    # Writing

    def test_the_same_records_give_the_same_files_and_stay_as_they_are(self, tmp_path: Path) -> None:
        used = self.records()
        self._write(tmp_path / "one", used)
        self._write(tmp_path / "two", self.records())
        _check_files(tmp_path / "two", _files(tmp_path / "one"), "the same records gave other bytes the second time")
        assert same_value(list(used), list(self.records())), "pack() changed its record"

    def test_a_refused_record_is_a_field_error_and_leaves_nothing_behind(self, tmp_path: Path) -> None:
        refused = self.refused()
        if not refused:
            pytest.skip("refused() names no record")
        self._write(tmp_path / "without", self.records())
        expected = _files(tmp_path / "without")
        for number, (bad, message) in enumerate(refused):
            storage = self._storage(tmp_path / str(number), self.make_format())
            with storage.sync_writer() as writer:
                for shard, records in enumerate(_dealt(self.records())):
                    _refuse(writer, shard, bad, message)
                    writer.start(shard)
                    for record in records:
                        writer.append(shard, record)
                        _refuse(writer, shard, bad, message)
            storage.publish()
            _check_files(tmp_path / str(number), expected, f"{bad!r} left something behind")

    def test_both_ways_of_packing_give_the_same_spans(self) -> None:
        storage_format = self.make_format()
        if not (hasattr(storage_format, "pack_spans") and hasattr(storage_format, "size")):
            pytest.skip("the format has only one way of packing")
        slow_format: Any = OneStepAnElement(storage_format)
        for record in self.records():
            fast, slow = packed_record(storage_format, record), packed_record(slow_format, record)
            assert same_value(fast, slow), f"pack_spans() and pack() differ for {record!r}"

    # Samples

    def test_samples_keep_nothing_of_the_files(self, tmp_path: Path) -> None:
        written, places = self._write(tmp_path, self.records())
        store = SpoiledStore(_files(tmp_path))
        storage = self.make_storage(store, self.make_format())
        full = [(place, record) for place, record in zip(places, self.records(), strict=True) if place.length]
        with storage.sync_reader() as reader:
            samples = [_read(reader, place) for place, _ in full]
        with _dataset(storage, 1) as dataset:
            batch = list(dataset.__getitems__(range(len(dataset))))
        store.spoil_views()
        for sample, (_, record) in zip(samples, full, strict=True):
            assert self.same(sample, self.expected(record)), f"the sample of {record!r} lies in a mapped file"
        with _dataset(written, 1) as dataset:
            for sample, expected in zip(batch, dataset.__getitems__(range(len(dataset))), strict=True):
                assert self.same(sample, expected), "a sample of a batch lies in a mapped file"

    def test_writing_into_a_sample_changes_no_other_and_no_file(self, tmp_path: Path) -> None:
        storage, places = self._write(tmp_path, self.records())
        before = _files(tmp_path)
        with storage.sync_reader() as reader:
            for place in places:
                if place.length:
                    spoil(_read(reader, place))
        self._check(storage, places, self.records())
        with _dataset(storage, 1) as dataset:
            twice = [*range(len(dataset))] * 2
            expected = list(dataset.__getitems__(twice))
            for victim in twice:
                batch = list(dataset.__getitems__(twice))
                spoil(batch[victim])
                for item, sample in enumerate(batch):
                    assert item == victim or self.same(sample, expected[item]), (
                        f"sample {item} shares {victim}'s memory"
                    )
        _check_files(tmp_path, before, "writing into samples changed files")

    # The format itself

    def test_a_pickled_copy_writes_and_reads_the_same(self, tmp_path: Path) -> None:
        storage_format = self.make_format()
        unused = pickle.dumps(storage_format)
        storage, places = self._write(tmp_path / "one", self.records(), storage_format)
        self._check(storage, places, self.records())
        used = pickle.dumps(storage_format)
        assert len(used) == len(unused), "a format pickles as its configuration, whatever it has packed and read"
        copied = pickle.loads(used)  # noqa: S301 - made four lines above
        storage, places = self._write(tmp_path / "two", self.records(), copied)
        self._check(storage, places, self.records())
        _check_files(tmp_path / "two", _files(tmp_path / "one"), "the pickled copy wrote other bytes")

    def test_another_thread_may_pack_between_any_two_lines(self) -> None:
        storage_format, records = self.make_format(), self.records()
        for record, other in pairwise([*records, records[0]]):
            expected = packed_record(self.make_format(), record)

            def pack(record: Any) -> Any:
                return packed_record(storage_format, record)

            for packed in interrupted_at_every_line(partial(pack, record), partial(pack, other)):
                assert same_value(packed, expected), f"{record!r} was packed as {packed!r} while {other!r} was, too"

    def test_another_thread_may_unpack_between_any_two_lines(self, tmp_path: Path) -> None:
        storage, places = self._write(tmp_path, self.records())
        full = [place for place in places if place.length]
        with storage.sync_reader() as reader:
            for place, other in pairwise([*full, full[0]]):
                expected = _read(reader, place)
                for sample in interrupted_at_every_line(partial(_read, reader, place), partial(_read, reader, other)):
                    assert self.same(sample, expected), f"{expected!r} was read as {sample!r} while another was, too"

    # What the directory records

    def test_the_record_alone_reads_what_was_packed(self, tmp_path: Path) -> None:
        written, places = self._write(tmp_path, self.records())
        storage = open_storage(tmp_path)
        assert type(storage) is type(written)
        own, ready = self.make_format(), ready_format(self.make_format())
        with storage.sync_reader() as reader:
            for place, record in zip(places, self.records(), strict=True):
                if not place.length:
                    continue
                try:
                    expected = ready_sample(own, ready, record)
                except UnsafeDataError:
                    with pytest.raises(UnsafeDataError):
                        _read(reader, place)
                    continue
                sample = _read(reader, place)
                assert same_value(sample, expected), f"{sample} != {expected}, which is how {ready!r} reads {record!r}"
                if type(own) is type(ready):
                    assert self.same(sample, self.expected(record))
        if isinstance(storage, DocumentStorage):
            sizes = [len(packed_record(own, record)) for record in self.records()]
            assert storage.dataset().lengths.tolist() == [size // item_bytes(own) for size in sizes]

    def test_another_format_is_refused_when_the_directory_is_opened(self, tmp_path: Path) -> None:
        self._write(tmp_path, self.records())
        own = self.make_format()
        kind = kind_of(own)
        if kind == "documents" and document_schema(own) is None:
            pytest.skip("nothing is recorded of this format")
        stored = getattr(own, "dtype" if kind == "documents" else "stream_dtype", None)
        other = "<u1" if stored == np.dtype("<c16") else "<c16"
        make = {"stream": StreamArrayFormat, "documents": DocumentNumpyFormat, "annotated": SpanNumpyFormat}[kind]
        with pytest.raises(SchemaMismatchError):
            self._storage(tmp_path, make(other)).sync_reader().open()
        if kind == "documents":
            with self._storage(tmp_path, DocumentBytesFormat()).sync_reader() as raw:
                payloads = [packed_record(own, record) for record in self.records()]
                assert [_read(raw, Place(number, 1)) for number in range(len(payloads))] == payloads

    # What the tests share

    def _storage(self, place: Path, storage_format: Any) -> AnyStorage:
        return self.make_storage(LocalStore(place, fsync=False), storage_format)

    def _write(self, place: Path, records: Sequence[Any], storage_format: Any = None) -> tuple[AnyStorage, list[Place]]:
        """A published dataset of these records, and where each of them lies."""
        storage = self._storage(place, self.make_format() if storage_format is None else storage_format)
        places, end = [], 0
        with storage.sync_writer() as writer:
            for shard, dealt in enumerate(_dealt(records)):
                writer.start(shard)
                for record in dealt:
                    before = writer.length(shard)
                    writer.append(shard, record)
                    places.append(Place(end, writer.length(shard) - before))
                    end += places[-1].length
        storage.publish()
        return storage, places

    def _check(self, storage: AnyStorage, places: Sequence[Place], records: Sequence[Any]) -> None:
        with storage.sync_reader() as reader:
            for place, record in zip(places, records, strict=True):
                if place.length:  # of a stream's empty record nothing can be read
                    sample = _read(reader, place)
                    assert self.same(sample, self.expected(record)), f"{record!r} came back as {sample!r}"


def _dealt(records: Sequence[Any]) -> list[Sequence[Any]]:
    """The records of each shard, in order; every second shard is empty."""
    edges = [len(records) * k // _SHARDS for k in range(_SHARDS + 1)]
    dealt: list[Sequence[Any]] = [[]] * (2 * _SHARDS - 1)
    dealt[::2] = [records[edges[k] : edges[k + 1]] for k in range(_SHARDS)]
    return dealt


def _read(reader: Any, place: Place) -> Any:
    return reader.read(place.start) if isinstance(reader, DocumentReader) else reader.read(*place)


def _refuse(writer: Any, shard: int, bad: Any, message: str) -> None:
    with pytest.raises(FieldError) as caught:
        writer.append(shard, bad)
    assert message in str(caught.value)
    assert f"shard {shard}" in str(caught.value)


def _dataset(storage: AnyStorage, length: int) -> Any:
    """Documents, or windows that begin at every element."""
    return storage.dataset() if isinstance(storage, DocumentStorage) else StreamDataset(storage, length, stride=1)


def _row(stacked: Any, row: int) -> Any:
    return {name: column[row] for name, column in stacked.items()} if isinstance(stacked, dict) else stacked[row]


def _files(place: Path) -> dict[str, bytes]:
    """What readers of a published dataset look at: headrace.json and the shards' files."""
    return {path.name: path.read_bytes() for path in sorted(place.iterdir()) if path.is_file()}


def _check_files(place: Path, expected: dict[str, bytes], problem: str) -> None:
    found = _files(place)
    differ = [name for name in sorted({*found, *expected}) if found.get(name) != expected.get(name)]
    assert not differ, f"{problem}: {', '.join(differ)}"
