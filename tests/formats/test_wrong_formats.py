"""Formats in the wrong place, formats that break a promise, and own ones that inherit half of a ready one."""

import json
import subprocess
import sys

import numpy as np
import pytest

from dataset.payload_scenes import documents_at, plain, spans_at, unsynced
from headrace import StatefulDataLoader
from headrace.datasets import (
    DocumentDataset,
    DocumentStorage,
    PosixPreadIO,
    StreamDataset,
    StreamStorage,
    StreamWithMetaStorage,
)
from headrace.errors import FieldError, PublishedError
from headrace.formats.annotated import SpanNumpyFormat
from headrace.formats.documents import (
    DocumentBytesFormat,
    DocumentJsonFormat,
    DocumentNumpyFormat,
    DocumentPickleFormat,
)
from headrace.formats.stream import StreamArrayFormat, StreamNumpyFormat
from headrace.manifest import Manifest
from headrace.store import MemoryStore

RECORD = {"tokens": [1, 2, 3], "span_lengths": [1, 2], "payloads": [b"a", b"bc"]}

READY = {
    StreamStorage: [StreamNumpyFormat([("tokens", "<u2")]), StreamArrayFormat("<u2")],
    DocumentStorage: [
        DocumentBytesFormat(),
        DocumentJsonFormat(),
        DocumentNumpyFormat("<u2"),
        DocumentPickleFormat(),
    ],
    StreamWithMetaStorage: [SpanNumpyFormat("<u2"), SpanNumpyFormat([("tokens", "<u2")])],
}
WRONG = [
    pytest.param(storage, wrong, id=f"{storage.__name__}-{wrong!r}")
    for storage in READY
    for other, formats in READY.items()
    if other is not storage
    for wrong in [*formats, "<u2", 7]
]


@pytest.mark.parametrize(("storage", "wrong"), WRONG)
def test_a_storage_refuses_the_format_of_another_kind_and_names_both(storage, wrong):
    with pytest.raises(TypeError, match=rf"{storage.__name__} needs a format such as .*, not a {type(wrong).__name__}"):
        storage(MemoryStore(), wrong)


@pytest.mark.parametrize("storage", READY)
def test_a_storage_takes_every_format_of_its_kind(storage):
    for ready in READY[storage]:
        assert storage(MemoryStore(), ready).storage_format is ready


@pytest.mark.parametrize("storage", [StreamStorage(MemoryStore()), StreamWithMetaStorage(MemoryStore())], ids=repr)
def test_a_dataset_of_documents_over_a_stream_is_refused_and_names_both(storage):
    with pytest.raises(TypeError, match=f"DocumentDataset needs a DocumentStorage, not a {type(storage).__name__}"):
        DocumentDataset(storage)


def test_windows_over_documents_are_refused_by_what_to_use():
    with pytest.raises(TypeError, match="DocumentStorage holds documents, which have no windows; use DocumentDataset"):
        StreamDataset(DocumentStorage(MemoryStore()), 2)


class Spans:
    """A format of spans that returns what it is told."""

    stream_dtype = np.dtype("<u2")

    def __init__(self, returned):
        self.returned = returned

    def pack_spans(self, data):
        return self.returned

    def unpack_spans(self, stream, span_lengths, payloads):
        return {"tokens": stream, "span_lengths": span_lengths, "payloads": payloads}


STREAM = np.array([1, 2, 3], "<u2")


@pytest.mark.parametrize("returned", [None, 7, ([1, 2], [b"a", b"bc"]), ([1, 2], None, STREAM), ([3], 5, STREAM)])
def test_spans_that_are_no_triple_are_a_field_error_that_says_what_they_must_be(returned):
    storage = StreamWithMetaStorage(MemoryStore(), Spans(returned))
    with (
        storage.sync_writer() as writer,
        pytest.raises(FieldError, match=r"pack_spans\(\) must return \(span_lengths, payloads, stream\)"),
    ):
        writer.append(0, None)


def test_payloads_of_spans_may_come_from_a_generator():
    returned = [1, 2], (payload for payload in [b"a", b"bc"]), STREAM
    storage = spans_at(MemoryStore(), [[None]], Spans(returned))
    assert plain(storage.dataset(3)[0]) == RECORD


class DecodedText:
    """As GuideLoom's users write it: encoded_data is a bytearray."""

    def pack(self, data):
        return data.encode()

    def unpack(self, encoded_data, shard):
        return encoded_data.decode()


class Loaded:
    def pack(self, data):
        return json.dumps(data).encode()

    def unpack(self, encoded_data, shard):
        return json.loads(encoded_data)


GUIDELOOM_STYLE = {
    "decode()": (DecodedText(), ["", "a", "é" * 3, "x" * 99]),
    "json.loads()": (Loaded(), [{"a": 1}, [], "b", 7]),
}


def per_document(samples):
    return list(samples)


@pytest.mark.parametrize("interface", [None, PosixPreadIO()], ids=["mapped", "read"])
@pytest.mark.parametrize("name", GUIDELOOM_STYLE)
def test_a_format_that_decodes_as_guideloom_s_users_do_works_everywhere(name, interface, tmp_path):
    own, documents = GUIDELOOM_STYLE[name]
    documents_at(unsynced(tmp_path / "documents"), [documents[:3], documents[3:]], own)
    storage = DocumentStorage(tmp_path / "documents", own, interface)
    dataset = storage.dataset()
    assert [dataset[place] for place in range(4)] == dataset[:] == dataset.__getitems__([0, 1, 2, 3]) == documents
    assert dataset.__getitems__([3, 0, 3]) == [documents[3], documents[0], documents[3]]
    with storage.sync_reader() as reader:
        assert [reader.read(place) for place in range(4)] == reader.read_many([0, 1, 2, 3]) == documents
    loader = StatefulDataLoader(dataset, per_document, local_batch_size=2)
    assert list(loader) == [documents[:2], documents[2:]]

    record = {"tokens": range(8), "span_lengths": [2] * 4, "payloads": documents}
    spans_at(unsynced(tmp_path / "spans"), [[record]], SpanNumpyFormat("<u2", own))
    storage = StreamWithMetaStorage(tmp_path / "spans", SpanNumpyFormat("<u2", own), interface)
    assert storage.dataset(8)[0]["payloads"] == documents
    assert [sample["payloads"] for sample in storage.dataset(4)[:]] == [documents[:2], documents[2:]]
    with storage.sync_reader() as reader:
        assert reader.read(1, 8)["payloads"] == [*documents, documents[0]]


class Views(DocumentBytesFormat):
    """Keeps the memory that it is given, unlike the format it inherits from, which says that it does not."""

    def unpack(self, encoded_data, shard):
        return np.frombuffer(encoded_data, np.uint8)


class PromisesToo(Views):
    """Says for its own unpack() that samples keep nothing."""

    reads_in_place = True

    def unpack(self, encoded_data, shard):
        return type(encoded_data)


def test_whoever_overrides_unpack_does_not_inherit_that_it_reads_in_place(tmp_path):
    storage = documents_at(unsynced(tmp_path), [[b"abc", b"defg"]], Views())
    dataset = storage.dataset()
    kept = [dataset[0], *dataset[:], *dataset.__getitems__([1])]
    dataset.close()
    for sample in kept:
        assert sample.flags.writeable
        sample[:] = 7
    assert storage.dataset()[:][0].tobytes() == b"abc"
    record = {"tokens": [1], "span_lengths": [1], "payloads": [b"abc"]}
    sample = spans_at(MemoryStore(), [[record]], SpanNumpyFormat("<u2", Views())).dataset(1)[0]
    assert sample["payloads"][0].flags.writeable
    promised = DocumentStorage(tmp_path, PromisesToo()).dataset()
    assert (promised[0], promised[:]) == (memoryview, [memoryview] * 2)


class OwnUnpack(SpanNumpyFormat):
    def unpack(self, stream_data, document_shard, document_index, document_data):
        return stream_data.tolist(), document_shard.tolist(), document_index.tolist(), list(map(bytes, document_data))


class OwnPack(SpanNumpyFormat):
    def size(self, data):
        return 2

    def pack(self, data):
        yield 0, b"own"
        yield 0, None
        return np.array([7, 8], "<u2")


class OwnUnpackSpans(OwnUnpack):
    def unpack_spans(self, stream, span_lengths, payloads):
        return "spans"


def test_a_subclass_s_own_pack_and_unpack_win_over_those_of_spans_that_it_inherits():
    storage = spans_at(MemoryStore(), [[RECORD]], OwnUnpack("<u2"))
    expected = [1, 2, 3], [0, 0], [0, 1, 1], [b"a", b"bc"]
    assert storage.dataset(3)[0] == storage.dataset(3).__getitems__([0])[0] == expected
    with storage.sync_reader() as reader:
        assert reader.read(0, 3) == expected
    storage = spans_at(MemoryStore(), [["anything"]], OwnPack("<u2"))
    assert plain(storage.dataset(2)[0]) == {"tokens": [7, 8], "span_lengths": [2], "payloads": [b"own"]}
    assert spans_at(MemoryStore(), [[RECORD]], OwnUnpackSpans("<u2")).dataset(3)[0] == "spans"


class Shout:
    """A payload format with a parameter."""

    def __init__(self, mark="!", nested=None):
        self.mark = mark
        self.nested = nested
        self._calls = 0

    def pack(self, data):
        self._calls += 1
        return (data + self.mark).encode()

    def unpack(self, encoded_data, shard):
        return encoded_data.decode()


class Whisper(Shout):
    pass


def digest(payload):
    return StreamWithMetaStorage("somewhere", SpanNumpyFormat("<u2", payload)).settings_digest()


def all_digests():
    """Of settings that all decide bytes."""
    return [
        *map(digest, [None, DecodedText(), Loaded(), Shout(), Whisper(), Shout("?"), Shout(nested=Shout("."))]),
        *map(digest, [Shout(nested=[1, "2"]), Shout(nested={"a": 1}), Shout(nested={"a": "1"}), DocumentJsonFormat()]),
        DocumentStorage("somewhere", Shout()).settings_digest(),
        DocumentStorage("somewhere", Shout("?")).settings_digest(),
        DocumentStorage("somewhere", Whisper()).settings_digest(),
    ]


def test_digests_of_settings_differ_with_formats_of_one_s_own_and_their_parameters():
    digests = all_digests()
    assert len(set(digests)) == len(digests)


def test_private_attributes_and_the_place_do_not_change_the_digest():
    used = Shout()
    used.pack("a")
    assert used._calls == 1
    assert digest(used) == digest(Shout())
    assert DocumentStorage("elsewhere", Shout()).settings_digest() == DocumentStorage("there", used).settings_digest()


def test_every_process_makes_the_same_digests():
    program = (
        f"import sys; sys.path[:0] = {sys.path!r}; from formats.test_wrong_formats import all_digests as a; print(a())"
    )
    found = {
        subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=100, check=True).stdout
        for _ in range(2)
    }
    assert len(found) == 1
    assert found.pop().count("Shout") > 5


ALIGNED = np.dtype([("a", "u1"), ("b", "<i4")], align=True)  # three bytes of padding


def trash():
    """Memory that was written to, given back to whoever allocates next."""
    for count in (12, 24, 36, 120, 1200, 12_000, 120_000):
        np.full(count, 255, np.uint8)


def test_aligned_elements_give_the_same_bytes_twice_and_nothing_of_old_memory(tmp_path):
    count = 1000
    record = {"a": np.ones(count, np.uint8), "b": np.arange(count), "span_lengths": [count], "payloads": [b"z"]}
    raw = []
    for number in range(3):
        trash()
        storage = StreamWithMetaStorage(unsynced(tmp_path / str(number)), SpanNumpyFormat(ALIGNED))
        with storage.sync_writer() as writer:
            trash()
            writer.append(0, record)
        raw.append((tmp_path / str(number) / "0000000.in_band.bin").read_bytes())
        assert storage.dataset(count)[0]["b"].tolist() == list(range(count))
    elements = np.frombuffer(raw[0], np.uint8).reshape(count, 4 + ALIGNED.itemsize)
    assert not elements[:, 5:8].any()
    assert raw[0] == raw[1] == raw[2]


def test_publishing_again_with_other_metadata_names_the_metadata():
    storage = documents_at(MemoryStore(), [[b"a"]], DocumentBytesFormat())
    manifest = storage.publish({"a": 1})
    assert storage.publish() == storage.publish({"a": 1}) == manifest
    with pytest.raises(PublishedError, match="is published with other metadata"):
        storage.publish({"a": 2})
    assert storage.publish() == manifest


class Uint16s:
    """Its element type is given as a class."""

    dtype = np.uint16

    def pack(self, data):
        return np.asarray(data, np.uint16).tobytes()

    def unpack(self, encoded_data, shard):
        return np.frombuffer(encoded_data, np.uint16)


def test_an_element_type_given_as_a_class_is_recorded_and_counted():
    storage = documents_at(MemoryStore(), [[[1, 2, 3], [], [4]]], Uint16s())
    assert storage.describe()["dtype"] == "<u2"
    assert storage.dataset().lengths.tolist() == [3, 0, 1]
    assert DocumentStorage(storage.store).dataset()[0].tolist() == [1, 2, 3]


DEEP = b"[" * 100_000 + b"]" * 100_000


def test_json_nested_too_deep_is_a_value_error():
    with pytest.raises(ValueError, match="nested too deeply"):
        DocumentJsonFormat().unpack(DEEP, 0)


def test_inspecting_json_nested_too_deep_shows_it_as_bytes(tmp_path):
    shards = documents_at(unsynced(tmp_path), [[DEEP]], DocumentBytesFormat()).publish().shards
    (tmp_path / "headrace.json").write_bytes(Manifest.of("documents", {"encoding": "json"}, shards).to_json())
    for options in ([], ["--json"]):
        found = subprocess.run(
            [sys.executable, "-m", "headrace", "inspect", str(tmp_path), *options], capture_output=True, text=True
        )
        assert (found.returncode, found.stderr) == (0, "")
        assert "b'[[[[" in found.stdout
        assert "and 199,920 more bytes" in found.stdout
