"""What spans may be: every promise of pack(), pack_spans() and size() is checked before anything is written."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from headrace.datasets import StreamWithMetaStorage
from headrace.errors import FieldError
from headrace.formats.annotated import (
    AnnotatedFormat,
    SpanFormat,
    SpanNumpyFormat,
    annotated_dtype,
    packed_spans,
)
from headrace.store import MemoryStore
from headrace.testing.samples import same_value

U2 = np.dtype("<u2")


class Yields:
    """GuideLoom's protocol; a record is (pairs to yield, what to return, what size() says or None)."""

    def __init__(self, dtype="<u2"):
        self.stream_dtype = np.dtype(dtype)

    def size(self, data):
        return len(data[0]) if len(data) < 3 else data[2]

    def pack(self, data):
        yield from data[0]
        return data[1]

    def unpack(self, stream_data, document_shard, document_index, document_data):
        return stream_data.tolist(), document_index.tolist(), [bytes(payload) for payload in document_data]


def ids(*numbers, dtype=U2):
    return np.array(numbers, dtype)


def plain(spans):
    """Spans as Python has them."""
    return spans.lengths.tolist(), [bytes(payload) for payload in spans.payloads], spans.stream.tolist()


AB = [("a", b"A"), ("a", None), ("b", b"B")]


# One step an element


def test_a_span_begins_where_the_key_changes_and_its_other_payloads_are_not_looked_at():
    spans = packed_spans(
        Yields(), ([("a", b"A"), ("a", object()), ("b", bytearray(b"B")), ("b", b"no")], ids(1, 2, 3, 4))
    )
    assert plain(spans) == ([2, 2], [b"A", b"B"], [1, 2, 3, 4])
    assert (spans.lengths.dtype, spans.stream.dtype) == (np.int64, U2)


def test_a_record_without_elements_has_no_spans():
    assert plain(packed_spans(Yields(), ([], ids()))) == ([], [], [])


def test_keys_are_compared_by_value_and_may_be_anything_that_hashes():
    keys = [None, (1, "a"), 1.5, "1", frozenset()]
    spans = packed_spans(Yields(), ([(key, b"x") for key in keys for _ in range(2)], ids(*range(10))))
    assert spans.lengths.tolist() == [2] * 5
    assert plain(packed_spans(Yields(), ([(1, b"x"), (1.0, None), (True, None)], ids(1, 2, 3))))[0] == [3]


def test_a_payload_may_be_changed_before_the_next_one_is_yielded():
    """GuideLoom writes it at once, so a format may fill one buffer again and again."""

    class OneBuffer(Yields):
        def pack(self, data):
            buffer = bytearray()
            for key, name in enumerate(data[0]):
                buffer[:] = name
                yield key, buffer if key % 2 else memoryview(bytes(buffer))
            buffer.clear()
            return data[1]

    names = [b"one", b"", b"three", b"four4"]
    assert plain(packed_spans(OneBuffer(), (names, ids(1, 2, 3, 4)))) == ([1] * 4, names, [1, 2, 3, 4])


BROKEN = {
    "too few pairs": ((AB, ids(1, 2, 3, 4), 4), r"pack\(\) yielded 3 pairs, but size\(\) promised 4"),
    "too many pairs": ((AB, ids(1, 2), 2), r"pack\(\) yields more pairs than the 2 that size\(\) promised"),
    "pairs for no element": ((AB, ids(), 0), "more pairs than the 0"),
    "no pair at all": (([], ids(1)), r"returned 1 elements, but size\(\) promised 0"),
    "array too short": ((AB, ids(1, 2)), r"pack\(\) returned 2 elements, but size\(\) promised 3"),
    "array too long": ((AB, ids(1, 2, 3, 4)), r"pack\(\) returned 4 elements, but size\(\) promised 3"),
    "array of one": ((AB, ids(99)), r"pack\(\) returned 1 elements, but size\(\) promised 3"),
    "nothing returned": ((AB, None), r"pack\(\) returned nothing; it must `return` the elements"),
    "list returned": ((AB, [1, 2, 3]), r"pack\(\) returned list, not a NumPy array"),
    "tensor returned": ((AB, torch.arange(3)), r"pack\(\) returned Tensor"),
    "other type": ((AB, ids(1, 2, 3, dtype="<i4")), "elements of int32, but the stream stores uint16"),
    "objects": ((AB, ids(1, 2, 3, dtype=object)), "elements of object"),
    "matrix": ((AB, ids(1, 2, 3).reshape(3, 1)), r"array of shape \(3, 1\); it must have one dimension"),
    "number": ((AB[:1], np.uint16(3)), "returned uint16, not a NumPy array"),
    "key that came back": (([("a", b"A"), ("b", b"B"), ("a", b"A")], ids(1, 2, 3)), "key 'a' came back at element 2"),
    "first payload None": (([("a", None)], ids(1)), "key 'a' begins at element 0 without a payload"),
    "later payload None": (([("a", b"A"), ("b", None)], ids(1, 2)), "key 'b' begins at element 1 without a payload"),
    "payload of text": (([("a", "A")], ids(1)), r"pack\(\) returned str, not bytes"),
    "payload of a number": (([("a", 65)], ids(1)), r"pack\(\) returned int, not bytes"),
    "payload of an array": (([("a", ids(1))], ids(1)), r"pack\(\) returned ndarray"),
    "payload with gaps": (([("a", memoryview(b"abcd")[::2])], ids(1)), "not contiguous"),
    "key that cannot be hashed": (([(["a"], b"A")], ids(1)), r"key \['a'\] at element 0 cannot be hashed"),
    "array for a key": (([(ids(1, 2), b"A")], ids(1)), "cannot be hashed"),
    "no pair": (([("a", b"A"), b"B"], ids(1, 2)), r"yielded b'B' at element 1, not \(key, payload\)"),
    "triple": (([("a", b"A", 1)], ids(1)), r"not \(key, payload\)"),
    "None yielded": (([None], ids(1)), r"yielded None at element 0"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_promise_that_pack_breaks_is_named(name):
    record, problem = BROKEN[name]
    with pytest.raises(FieldError, match=problem):
        packed_spans(Yields(), record)


def test_a_pack_that_is_no_generator_is_refused():
    class Returns(Yields):
        def pack(self, data):
            return data[1]

    with pytest.raises(FieldError, match=r"pack\(\) must be a generator, not ndarray"):
        packed_spans(Returns(), ([], ids()))
    Returns.pack = lambda self, data: iter(AB)
    with pytest.raises(FieldError, match=r"must be a generator, not list_iterator"):
        packed_spans(Returns(), (AB, ids()))


@pytest.mark.parametrize("name", ["array too short", "array of one", "too few pairs", "too many pairs"])
def test_pairs_and_elements_that_do_not_match_write_nothing_instead_of_memory_that_was_never_set(name):
    """GuideLoom stores what was in memory before, or the one element for all of them."""
    record, problem = BROKEN[name]
    storage = StreamWithMetaStorage(MemoryStore(), Yields())
    with storage.sync_writer() as writer:
        writer.append(0, (AB, ids(1, 2, 3)))
        with pytest.raises(FieldError, match=f"the record after 3 elements of shard 0, .*{problem}"):
            writer.append(0, record)
        writer.append(0, (AB[:2], ids(4, 5)))
    with storage.sync_reader() as reader:
        assert reader.total_length == 5
        assert reader.read(0, 5) == ([1, 2, 3, 4, 5], [0, 0, 1, 2, 2], [b"A", b"B", b"A"])


@pytest.mark.parametrize("error", [RuntimeError, FieldError, KeyboardInterrupt])
def test_an_exception_inside_pack_leaves_no_payload_that_belongs_to_nothing(error):
    """GuideLoom has written the payloads by then, and never points at them."""

    class Raises(Yields):
        def pack(self, data):
            yield from data[0]
            if data[1] is None:
                raise error("tokens", "of this record are broken")
            return data[1]

    def files(records):
        store = MemoryStore()
        with StreamWithMetaStorage(store, Raises()).sync_writer() as writer:
            writer.start(0)
            for record in records:
                if record[1] is None:
                    with pytest.raises(error, match="broken"):
                        writer.append(0, record)
                else:
                    writer.append(0, record)
        return {info.path: store.get(info.path) for info in store.list(recursive=False)}

    good, bad = (AB, ids(1, 2, 3)), ([("p0", b"p0"), ("p1", b"p1")], None)
    assert files([bad, good, bad, good, bad]) == files([good, good])
    assert files([good, good])["0000000.out_of_band.bin"] == b"ABAB"
    assert files([bad]) == files([])


def test_a_stream_in_the_other_byte_order_is_stored_by_value():
    for declared in ("<u2", ">u2"):
        spans = packed_spans(Yields(declared), (AB, ids(1, 2, 258, dtype=">u2")))
        assert (spans.stream.dtype, spans.stream.tolist()) == (U2, [1, 2, 258])
    strided = packed_spans(Yields(), (AB, np.arange(6, dtype=">u2")[::2]))
    assert strided.stream.tolist() == [0, 2, 4]
    assert strided.stream.flags.c_contiguous


@pytest.mark.parametrize("dtype", [">i4", [("t", ">u2"), ("w", ">f8", (2,))]])
@pytest.mark.parametrize("native", ["=", ">"])
def test_a_declared_big_endian_type_can_be_written_and_is_little_endian_on_disk(dtype, native):
    """GuideLoom cannot write it."""
    values = np.zeros(3, dtype)
    values.view(np.uint8)[:] = np.arange(values.nbytes)
    storage = StreamWithMetaStorage(MemoryStore(), Yields(dtype))
    with storage.sync_writer() as writer:
        writer.append(0, (AB, values.astype(np.dtype(dtype).newbyteorder(native))))
    with storage.sync_reader() as reader:
        assert same_value(reader.read(0, 3)[0], values.tolist())
    stored = np.frombuffer(storage.store.get("0000000.in_band.bin"), annotated_dtype(np.dtype(dtype)))
    assert stored["user"].dtype == np.dtype(dtype).newbyteorder("<")
    assert same_value(stored["user"], values)
    assert stored["index"].tolist() == [0, 0, 1]


def test_an_element_on_disk_is_its_payload_s_number_and_the_value_without_a_gap():
    assert annotated_dtype(np.dtype(">u2")) == np.dtype([("index", "<i4"), ("user", "<u2")])
    assert annotated_dtype(np.dtype("u1")).itemsize == 5


# Whole spans


class Gives:
    """The fast protocol; a record is what pack_spans() returns."""

    stream_dtype = U2

    def pack_spans(self, data):
        return data

    def unpack_spans(self, stream, span_lengths, payloads):
        return stream.tolist(), span_lengths.tolist(), [bytes(payload) for payload in payloads]


def test_any_integers_are_span_lengths_and_any_buffers_payloads():
    for lengths in ([2, 1], (2, 1), np.array([2, 1], np.uint8), np.array([2, 1], ">i8"), torch.tensor([2, 1])):
        spans = packed_spans(Gives(), (lengths, (b"A", np.arange(1, dtype="<u4").data), ids(1, 2, 3)))
        assert plain(spans) == ([2, 1], [b"A", bytes(4)], [1, 2, 3])
        assert spans.lengths.dtype == np.int64
    for nothing in ([], (), np.zeros(0), np.zeros(0, "u1")):
        assert plain(packed_spans(Gives(), (nothing, [], ids()))) == ([], [], [])


BROKEN_SPANS = {
    "sum too small": (([1, 1], [b"", b""], ids(1, 2, 3)), "add up to 2, but the stream has 3 elements"),
    "sum too large": (([4], [b""], ids(1, 2, 3)), "add up to 4, but the stream has 3 elements"),
    "sum that wraps": (([2**63, 2**63], [b"", b""], ids()), "add up to 18446744073709551616"),
    "zero": (([3, 0], [b"", b""], ids(1, 2, 3)), "span 1 has 0 elements, but nothing can point at it"),
    "negative": (([4, -1], [b"", b""], ids(1, 2, 3)), "span 1 has -1 elements"),
    "floats": (([1.0, 2.0], [b"", b""], ids(1, 2, 3)), "list of integers, not float64"),
    "flags": (([True, True], [b"", b""], ids(1, 2)), "list of integers, not bool"),
    "text": ((["1"], [b""], ids(1)), "list of integers, not <U1"),
    "objects": ((np.array([1], object), [b""], ids(1)), "list of integers, not object"),
    "nothing": ((None, [b""], ids(1)), "list of integers, not object"),
    "one number": ((3, [b""], ids(1, 2, 3)), r"of shape \(\)"),
    "matrix": (([[1, 2]], [b""], ids(1, 2, 3)), r"of shape \(1, 2\)"),
    "ragged": (([[1], [1, 2]], [b""], ids(1)), "'span_lengths': is not rectangular"),
    "spans but no element": (([1], [b""], ids()), "add up to 1, but the stream has 0"),
    "elements but no span": (([], [], ids(1)), "add up to 0, but the stream has 1"),
    "payload too few": (([1, 2], [b""], ids(1, 2, 3)), "'payloads': there are 1 for 2 spans"),
    "payload too many": (([3], [b"", b""], ids(1, 2, 3)), "'payloads': there are 2 for 1 spans"),
    "payload of text": (([3], ["A"], ids(1, 2, 3)), "'payloads': pack.. returned str"),
    "payload None": (([3], [None], ids(1, 2, 3)), "'payloads': pack.. returned NoneType"),
    "payload with gaps": (([3], [memoryview(b"abcd")[::2]], ids(1, 2, 3)), "'payloads': .*not contiguous"),
    "list for a stream": (([3], [b""], [1, 2, 3]), "returned list, not a NumPy array"),
    "other type": (([3], [b""], ids(1, 2, 3, dtype="<u4")), "elements of uint32, but the stream stores uint16"),
}


@pytest.mark.parametrize("name", BROKEN_SPANS)
def test_spans_that_make_no_sense_are_named_and_leave_nothing_behind(name):
    record, problem = BROKEN_SPANS[name]
    with pytest.raises(FieldError, match=problem):
        packed_spans(Gives(), record)
    storage = StreamWithMetaStorage(MemoryStore(), Gives())
    with storage.sync_writer() as writer:
        writer.append(0, ([2], [b"A"], ids(1, 2)))
        with pytest.raises(FieldError, match=f"after 2 elements of shard 0, .*{problem}"):
            writer.append(0, record)
    with storage.sync_reader() as reader:
        assert reader.read(0, reader.total_length) == ([1, 2], [2], [b"A"])
    assert storage.store.get("0000000.out_of_band.bin") == b"A"


@given(
    st.lists(st.integers(-1, 4), max_size=5),
    st.integers(0, 12),
    st.integers(0, 5),
)
def test_lengths_are_taken_exactly_when_they_share_out_the_elements(lengths, num_elements, num_payloads):
    sound = len(lengths) == num_payloads and all(length >= 1 for length in lengths) and sum(lengths) == num_elements
    record = lengths, [b"x"] * num_payloads, np.arange(num_elements, dtype=U2)
    try:
        spans = packed_spans(Gives(), record)
    except FieldError:
        assert not sound
    else:
        assert sound
        assert plain(spans) == (lengths, [b"x"] * num_payloads, list(range(num_elements)))


@given(st.lists(st.tuples(st.integers(1, 4), st.binary(max_size=5)), max_size=6))
def test_a_generator_and_whole_spans_say_the_same(spans):
    pairs = [(key, payload) for key, (length, payload) in enumerate(spans) for _ in range(length)]
    stream = np.arange(len(pairs), dtype=U2)
    lengths, payloads = [length for length, _ in spans], [payload for _, payload in spans]
    assert plain(packed_spans(Yields(), (pairs, stream))) == plain(packed_spans(Gives(), (lengths, payloads, stream)))


def test_a_format_that_has_both_is_asked_for_whole_spans():
    class Both(Yields):
        def pack_spans(self, data):
            return [len(data[1])], [b"whole"], data[1]

    assert packed_spans(Both(), (AB, ids(1, 2, 3))).payloads == [b"whole"]
    assert isinstance(Both(), AnnotatedFormat)
    assert not isinstance(Both(), SpanFormat)  # unpacking its own way needs no unpack_spans()


def test_objects_with_the_members_are_formats():
    assert isinstance(Yields(), AnnotatedFormat)
    assert isinstance(Gives(), SpanFormat)
    assert isinstance(SpanNumpyFormat("<u2"), SpanFormat)
    assert not isinstance(Gives(), AnnotatedFormat)
    assert not isinstance(Yields(), SpanFormat)


def test_a_stream_type_of_python_objects_is_refused_before_anything_is_written():
    """GuideLoom writes the addresses of the objects."""
    storage = StreamWithMetaStorage(MemoryStore(), Yields("O"))
    with pytest.raises(ValueError, match="Python objects"):
        storage.sync_writer()
    assert storage.store.list() == []
