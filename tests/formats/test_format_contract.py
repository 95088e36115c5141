"""FormatContract finds what is wrong: formats that break one promise each, and the test that says so."""

import threading
from itertools import chain

import numpy as np
import pytest
import torch

from headrace.errors import FieldError
from headrace.store import MemoryStore
from headrace.testing import FormatContract
from headrace.testing.interruption import interrupted_at_every_line
from headrace.testing.samples import SpoiledStore, same_value, spoil


class Lists:
    """A sound format of lists of small numbers, as documents."""

    def pack(self, data):
        if not all(type(value) is int and 0 <= value < 256 for value in data):
            raise FieldError("values", "are not all below 256")
        return bytes(data)

    def unpack(self, encoded_data, shard):
        return list(encoded_data)


class Sound(FormatContract):
    broken = Lists

    def make_format(self):
        return self.broken()

    def records(self):
        return [[1, 2, 3], [], [4], [5, 6]]

    def refused(self):
        return [([7, 300], "below 256")]


class LosesTheLast(Lists):
    def pack(self, data):
        return super().pack(data)[: max(2, len(data) - 1)]


class Keeps(Lists):
    """Samples are the file's own memory."""

    reads_in_place = True

    def unpack(self, encoded_data, shard):
        return np.frombuffer(encoded_data, np.uint8)


class Remembers(Lists):
    """Equal payloads give one and the same list; the format grows with use."""

    def __init__(self):
        self.known = {}

    def unpack(self, encoded_data, shard):
        return self.known.setdefault(bytes(encoded_data), list(encoded_data))


class Counts(Lists):
    """No two payloads are the same."""

    def __init__(self):
        self.count = 0

    def pack(self, data):
        self.count += 1
        return super().pack(data) + bytes([self.count % 256])

    def unpack(self, encoded_data, shard):
        return list(encoded_data[:-1])


class CountsForEver(Counts):
    total = 0

    def pack(self, data):
        type(self).total += 1
        return Lists.pack(self, data) + bytes([type(self).total % 256])


class Takes(Lists):
    """Packing empties the record."""

    def pack(self, data):
        packed = super().pack(data)
        data.clear()
        return packed


class Casts(Lists):
    def pack(self, data):
        return bytes(value % 256 for value in data)


class Complains(Lists):
    """Refuses with an error that names no field."""

    def pack(self, data):
        return bytes(data)


class KeepsTheGoodHalf(Lists):
    """What was good of a refused record goes into the next one."""

    def __init__(self):
        self.waiting = b""

    def pack(self, data):
        for place, value in enumerate(data):
            if value > 255:
                self.waiting = bytes(data[:place])
                raise FieldError("values", "are not all below 256")
        packed, self.waiting = self.waiting + bytes(data), b""
        return packed


class Locked(Lists):
    def __init__(self):
        self.lock = threading.Lock()


class OneDesk(Lists):
    """All threads pack and unpack on one desk."""

    def __init__(self):
        self.desk = []

    def pack(self, data):
        self.desk = []
        for value in super().pack(data):
            self.desk.append(value)
        return bytes(self.desk)

    def unpack(self, encoded_data, shard):
        self.desk = []
        for value in encoded_data:
            self.desk.append(value)
        return list(self.desk)

    def __getstate__(self):
        return {"desk": []}


class SaysJson(Lists):
    encoding = "json"


class NamesNoType(Lists):
    dtype = "u1"


class Tokens:
    """A sound stream format."""

    stream_dtype = np.dtype("<u2")

    def pack(self, data):
        return np.array(data, self.stream_dtype)

    def unpack(self, stream, shard_lengths, shards):
        return stream.tolist()


class TwoReadings(Tokens):
    """A batch is read otherwise than a single window."""

    def unpack_rows(self, rows):
        return rows[..., ::-1]


class Spans:
    """Spans packed in two ways; a span is a list of numbers, its payload their count."""

    stream_dtype = np.dtype("<u2")

    def size(self, data):
        return sum(map(len, data))

    def pack(self, data):
        for key, span in enumerate(data):
            for _ in span:
                yield key, bytes([len(span)])
        return np.array([*chain(*data)], self.stream_dtype)

    def pack_spans(self, data):
        spans = [span for span in data if span]
        return [len(span) for span in spans], [b"?"] * len(spans), np.array([*chain(*spans)], self.stream_dtype)

    def unpack_spans(self, stream, span_lengths, payloads):
        ends = np.cumsum(span_lengths)
        return [span.tolist() for span in np.split(stream, ends[:-1])]


ALONE = "test_each_record_comes_back_alone"
SEVERAL = "test_all_records_come_back_from_several_shards_with_empty_ones_between"
TWICE = "test_the_same_records_give_the_same_files_and_stay_as_they_are"
REFUSED = "test_a_refused_record_is_a_field_error_and_leaves_nothing_behind"
FILES = "test_samples_keep_nothing_of_the_files"
SHARED = "test_writing_into_a_sample_changes_no_other_and_no_file"
PICKLED = "test_a_pickled_copy_writes_and_reads_the_same"
PACKS = "test_another_thread_may_pack_between_any_two_lines"
UNPACKS = "test_another_thread_may_unpack_between_any_two_lines"
RECORDED = "test_the_record_alone_reads_what_was_packed"
TYPES = "test_a_format_declares_types_that_can_be_stored"
BATCHES = "test_batches_and_single_reads_of_any_length_agree"
WAYS = "test_both_ways_of_packing_give_the_same_spans"
OTHER = "test_another_format_is_refused_when_the_directory_is_opened"

PAIR = [("a", "<i8"), ("b", "<f8", (1,))]
TESTS = {name for name in dir(FormatContract) if name.startswith("test_")}


def run(test, storage_format, tmp_path, records=None):
    class Contract(Sound):
        broken = storage_format

        def records(self):
            return super().records() if records is None else records

    method = getattr(Contract(), test)
    method(*[tmp_path] * (method.__code__.co_argcount - 1))


@pytest.mark.parametrize(
    ("test", "storage_format", "complaint"),
    [
        (ALONE, LosesTheLast, r"\[1, 2, 3\] came back as \[1, 2\]"),
        (SEVERAL, LosesTheLast, r"\[1, 2, 3\] came back as \[1, 2\]"),
        (FILES, Keeps, r"\[1, 2, 3\] lies in a mapped file"),
        (SHARED, Remembers, r"came back as \[\]"),
        (PICKLED, Remembers, "pickles as its configuration"),
        (TWICE, CountsForEver, "other bytes the second time: 0000000.out_of_band.bin"),
        (TWICE, Takes, r"pack\(\) changed its record"),
        (REFUSED, Casts, "DID NOT RAISE"),
        (REFUSED, Complains, "range"),
        (REFUSED, KeepsTheGoodHalf, "left something behind"),
        (PICKLED, Locked, "pickle"),
        (PACKS, OneDesk, r"\[1, 2, 3\] was packed as b'.*' while \[\] was, too"),
        (PACKS, Counts, "was packed as"),
        (UNPACKS, OneDesk, r"\[1, 2, 3\] was read as \[.*\] while another was, too"),
        (RECORDED, SaysJson, "JSON"),
        (TYPES, NamesNoType, "dtype must be a NumPy dtype"),
    ],
)
def test_a_format_that_breaks_a_promise_is_found(test, storage_format, complaint, tmp_path):
    run(test, Lists, tmp_path / "sound")
    with pytest.raises((Exception, pytest.fail.Exception), match=complaint):
        run(test, storage_format, tmp_path / "broken")


def test_a_batch_that_is_read_otherwise_than_a_window_is_found(tmp_path):
    records = [[1, 2, 3], [4]]
    run(BATCHES, Tokens, tmp_path / "sound", records)
    with pytest.raises(AssertionError, match="!="):
        run(BATCHES, TwoReadings, tmp_path / "broken", records)


def test_two_ways_of_packing_that_differ_are_found(tmp_path):
    with pytest.raises(AssertionError, match=r"pack_spans\(\) and pack\(\) differ for \[\[1\], \[2, 3\]\]"):
        run(WAYS, Spans, tmp_path, [[[1], [2, 3]]])


def test_every_test_of_the_contract_is_seen_to_fail_here_or_does_not_depend_on_the_format():
    assert {
        ALONE,
        SEVERAL,
        TWICE,
        REFUSED,
        FILES,
        SHARED,
        PICKLED,
        PACKS,
        UNPACKS,
        RECORDED,
        TYPES,
        BATCHES,
        WAYS,
    } == TESTS - {OTHER}


def test_the_hooks_say_what_is_missing():
    for hook in ("make_format", "records"):
        with pytest.raises(NotImplementedError, match=f"define {hook}"):
            getattr(FormatContract(), hook)()


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (np.array([1, 2], "<u2"), [1, 2]),
        (torch.tensor([1.0]), np.array([1], np.int8)),
        (np.array([float("nan")]), np.array([float("nan")], np.float32)),
        (np.zeros(0), []),
        (np.array([(1, [float("nan")])], [("a", "<u2"), ("b", "<f4", (1,))]), np.array([(1, [float("nan")])], PAIR)),
        (memoryview(b"ab"), bytearray(b"ab")),
        ({"a": [1, (2.5, None)]}, {"a": [1, (2.5, None)]}),
        ([float("nan")], [float("nan")]),
    ],
)
def test_equal_values_are_equal_whatever_holds_them(one, other):
    assert same_value(one, other)
    assert same_value(other, one)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (np.array([1, 2]), [1, 3]),
        (np.array([1]), [[1]]),
        (np.array([(1, [2])], PAIR), np.array([(1, [3])], PAIR)),
        (np.array([(1, [2])], PAIR), np.array([(1, [2])], [("a", "<i8"), ("c", "<f8", (1,))])),
        (np.zeros(1, PAIR), np.zeros(1)),
        (np.array([1, 2]), [1]),
        (np.array([1, 2]), [[1], [2, 3]]),
        (np.array([2**63 + 1], np.uint64), np.array([2**63], np.uint64)),
        (b"ab", b"abc"),
        (b"ab", "ab"),
        (1, True),
        (1, 1.0),
        ([1], (1,)),
        ([1], [1, 2]),
        ({"a": 1}, {"a": 2}),
        ({"a": 1}, {"b": 1}),
        ({"a": 1}, {"a": 1, "b": 1}),
        (None, 0),
        (float("nan"), 0.0),
    ],
)
def test_other_values_and_other_types_differ(one, other):
    assert not same_value(one, other)
    assert not same_value(other, one)


def test_spoiling_reaches_all_memory_that_a_sample_hands_out():
    memory = bytearray(b"abc")
    array, tensor, strided = np.arange(3), torch.arange(3), np.zeros((3, 2), [("a", "<u2")])[:, 1]
    frozen = np.arange(3)
    frozen.flags.writeable = False
    inner = [1]
    spoil({"a": [array, (tensor, strided)], "b": memoryview(memory), "c": frozen, "d": inner, "e": "text", "f": 5})
    assert memory == bytes(byte ^ 0xFF for byte in b"abc")
    assert array.tolist() == tensor.tolist() == [-1, -2, -3]
    assert strided["a"].tolist() == [65_535] * 3
    assert frozen.tolist() == [0, 1, 2]
    assert inner == []


def test_a_spoiled_store_has_the_objects_and_its_views_go_bad():
    store = SpoiledStore({"0000000.in_band.bin": b"data"})
    view = store.view("0000000.in_band.bin")
    assert (bytes(view), view.readonly, isinstance(store, MemoryStore)) == (b"data", True, True)
    store.spoil_views()
    assert bytes(view) == bytes(byte ^ 0xFF for byte in b"data")
    assert store.get("0000000.in_band.bin") == bytes(store.view("0000000.in_band.bin")) == b"data"


def test_an_interruption_comes_before_every_line_once_and_in_another_thread():
    log = []

    def work():
        log.append("one")
        log.append("two")
        return list(log)

    def other():
        log.append(threading.get_ident())

    seen = []
    for result in interrupted_at_every_line(work, other):
        assert threading.get_ident() not in result
        seen.append([entry if isinstance(entry, str) else "other" for entry in result])
        log.clear()
    assert seen == [["other", "one", "two"], ["one", "other", "two"], ["one", "two", "other"]]


def test_a_lock_keeps_the_interruption_out_and_its_error_is_raised():
    lock, values = threading.Lock(), []

    def guarded(value):
        with lock:
            values.append(value)
            return values.pop()

    for result in interrupted_at_every_line(lambda: guarded(1), lambda: guarded(2)):
        assert result == 1
    assert values == []
    with pytest.raises(ZeroDivisionError):
        list(interrupted_at_every_line(lambda: guarded(1), lambda: 1 / 0))
