"""GuideLoom itself reads the documents that Headrace wrote and published, and Headrace reads what GuideLoom wrote."""

import json
import pickle

import numpy as np
import pytest

from headrace import (
    DocumentBytesFormat,
    DocumentJsonFormat,
    DocumentNumpyFormat,
    DocumentPickleFormat,
    DocumentStorage,
    open_storage,
)
from interop.document_cases import CASES, MASKED, SHARDS, DocumentFormat, ShardFormat, plain, records, seen_by, value
from interop.sides import INTERFACES, data_files

pytestmark = pytest.mark.interop
KIND = "documents"
FORMATS = {
    "bytes": DocumentBytesFormat(),
    "json": DocumentJsonFormat(),
    "masked": DocumentNumpyFormat(MASKED),
    "pickle": DocumentPickleFormat(allow_pickle=True),
    "tokens_u2": DocumentNumpyFormat("<u2"),
}


def own(name):
    """The format that GuideLoom writes this case with, in Headrace."""
    return FORMATS["pickle"] if name == "pickle" else DocumentFormat(name)


FORMATS_OF = {"Headrace's formats": FORMATS.get, "formats of one's own": own}
both_formats = pytest.mark.parametrize("format_of", FORMATS_OF.values(), ids=FORMATS_OF)


def write(root, format_of, empty_shard=None):
    for name in CASES:
        storage = DocumentStorage(root / name, format_of(name))
        with storage.sync_writer() as writer:
            for shard, document in records(name, empty_shard):
                writer.append(shard, document)
            if empty_shard is not None:
                writer.start(empty_shard)
        storage.publish({"by": "headrace"})


def seen_by_us(root, format_of, interface=None):
    seen = {}
    for name in CASES:
        storage = DocumentStorage(root / name, format_of(name), interface)
        with storage.sync_reader() as reader, storage.dataset() as dataset:
            seen[name] = seen_by(reader, dataset)
        with DocumentStorage(root / name, ShardFormat(), interface).sync_reader() as reader:
            seen[name]["payloads"] = reader.read_many(range(reader.total_length))
    return seen


def test_guideloom_reads_what_headrace_wrote_and_published(guideloom, tmp_path):
    for how, format_of in FORMATS_OF.items():
        write(tmp_path / how, format_of)
    in_order = np.argsort(SHARDS, kind="stable").tolist()
    appended = {name: json.loads(json.dumps([plain(value(name, k)) for k in in_order])) for name in CASES}
    for how, seen in zip(FORMATS_OF, guideloom.read(*(tmp_path / how for how in FORMATS_OF)), strict=True):
        assert {name: found["read"] for name, found in seen.items()} == appended
        for format_of in FORMATS_OF.values():
            assert seen == seen_by_us(tmp_path / how, format_of)


def test_guideloom_reads_over_the_empty_shards_that_only_headrace_writes(guideloom, tmp_path):
    places = (0, 2, 4)  # first, between others, last
    for place in places:
        write(tmp_path / str(place), FORMATS.get, empty_shard=place)
    for place, seen in zip(places, guideloom.read(*(tmp_path / str(place) for place in places)), strict=True):
        assert seen == seen_by_us(tmp_path / str(place), FORMATS.get)
        for found in seen.values():
            assert (len(found["lengths"]), found["lengths"][place], sum(found["lengths"])) == (5, 0, len(SHARDS))


@pytest.mark.parametrize("interface", INTERFACES, ids=repr)
@both_formats
def test_headrace_reads_what_guideloom_wrote(theirs, seen_in_theirs, format_of, interface):
    assert seen_by_us(theirs, format_of, interface) == seen_in_theirs


@both_formats
def test_both_write_the_same_bytes_and_the_same_files(theirs, format_of, tmp_path):
    write(tmp_path, format_of)
    written, wanted = data_files(tmp_path), data_files(theirs)
    assert written.keys() == wanted.keys()
    assert len(written) == 8 * len(CASES)
    if pickle.DEFAULT_PROTOCOL != 4:  # GuideLoom's, which is Python 3.13's
        written, wanted = (
            {path: data for path, data in files.items() if "pickle" not in path} for files in (written, wanted)
        )
    assert written == wanted


def test_what_guideloom_wrote_is_known_for_what_it_is(theirs):
    for name in CASES:
        assert type(open_storage(theirs / name)) is DocumentStorage
