"""Files that are not what was written, manifests that were damaged, data that changes under a reader."""

import json
import os
import shutil
import threading

import msgspec
import numpy as np
import pytest

from dataset.scenes import U2, fast_storage_at, files_of, leftovers, ranges, storage_at, tokens_of, write
from dataset.test_windows import RangesOnly
from headrace.datasets import StreamDataset, StreamStorage
from headrace.errors import (
    CorruptShardError,
    DatasetChangedError,
    HeadraceError,
    ManifestError,
    ManifestVersionError,
    OptionError,
    UnfinishedDatasetError,
)
from headrace.manifest import Manifest, ShardRecord
from headrace.store import LocalStore
from headrace.testing import FaultStore


class NoViews(FaultStore):
    """A local store that is read by ranges."""

    def __init__(self, folder):
        super().__init__(LocalStore(folder))
        self.capabilities = self.capabilities._replace(view=False)


READ = {"mapped": LocalStore, "by ranges": NoViews}


@pytest.fixture
def folder(tmp_path):
    write(fast_storage_at(tmp_path), ranges(*[10] * 5), publish=True)
    return tmp_path


def cut_1(path):
    os.truncate(path, path.stat().st_size - 1)


def cut_half(path):
    os.truncate(path, path.stat().st_size // 2)


def cut_all(path):
    os.truncate(path, 0)


def garbage(path):
    with path.open("ab") as file:
        file.write(b"\xab" * 64)


def other_shard(path):
    path.write_bytes(np.arange(9, dtype="<u2").tobytes())


def remove(path):
    path.unlink()


DAMAGES = [cut_1, cut_half, cut_all, garbage, other_shard, remove]


@pytest.mark.parametrize("read", READ)
@pytest.mark.parametrize("published", [True, False])
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_shard_of_the_wrong_size_is_an_error_that_names_it_and_never_a_sample(damage, published, read, folder):
    if not published:
        (folder / "headrace.json").unlink()
    damage(folder / "0000003.in_band.bin")
    storage = StreamStorage(READ[read](folder), U2)
    if not published:
        with pytest.raises(CorruptShardError, match=r"shard 3 \(global range 30 to 40, exclusive\)"):
            StreamDataset(storage, 10).open()
    damages = storage.verify()
    assert [(entry.shard, entry.file, entry.elements) for entry in damages] == [(3, "0000003.in_band.bin", (30, 40))]
    if not published:
        return
    dataset = StreamDataset(storage, 10)
    for good in (0, 1, 2, 4):
        assert dataset[good].tolist() == list(range(good * 10, good * 10 + 10))
    for bad in (lambda: dataset[3], lambda: dataset.__getitems__([0, 3]), lambda: StreamDataset(storage, 15)[2]):
        with pytest.raises(CorruptShardError, match="shard 3") as caught:
            bad()
        assert damage is remove or ("bytes" in str(caught.value) and " 20 " in str(caught.value))


def test_verify_finds_every_flipped_byte(folder):
    file = folder / "0000002.in_band.bin"
    whole = file.read_bytes()
    for offset in range(len(whole)):
        flipped = bytearray(whole)
        flipped[offset] ^= 1 << offset % 8
        file.write_bytes(flipped)
        damages = storage_at(folder).verify()
        assert [(entry.shard, entry.elements) for entry in damages] == [(2, (20, 30))]
        assert "content was changed" in damages[0].problem
    file.write_bytes(whole)
    assert storage_at(folder).verify() == []


def test_verify_lists_all_bad_files_in_order(folder):
    cut_1(folder / "0000004.in_band.bin")
    remove(folder / "0000001.in_band.bin")
    assert [entry.shard for entry in storage_at(folder).verify()] == [1, 4]


def test_a_foreign_file_with_a_part_of_an_element_is_refused(tmp_path):
    (tmp_path / "0000000.in_band.bin").write_bytes(bytes(8))
    (tmp_path / "0000001.in_band.bin").write_bytes(bytes(7))
    with pytest.raises(CorruptShardError, match=r"shard 1.*7 bytes, and an element has 2"):
        StreamDataset(storage_at(tmp_path), 2).open()


def test_a_foreign_directory_of_another_kind_is_refused(tmp_path):
    for suffix in ("in_band.bin", "out_of_band.bin", "out_of_band.index"):
        (tmp_path / f"0000000.{suffix}").write_bytes(bytes(8))
    with pytest.raises(HeadraceError, match="out_of_band"):
        StreamDataset(storage_at(tmp_path), 2).open()


def edited(raw, **changes):
    manifest = json.loads(raw)
    manifest.update(changes)
    return json.dumps(manifest).encode()


def with_shard(raw, shard=0, refingerprint=True, **changes):
    manifest = json.loads(raw)
    manifest["shards"][shard]["files"][0].update(changes)
    if refingerprint:
        records = msgspec.convert(manifest["shards"], tuple[ShardRecord, ...])
        manifest = msgspec.to_builtins(Manifest.of(manifest["kind"], manifest["dtype"], records))
    return json.dumps(manifest).encode()


MANIFESTS = {
    "of 0 bytes": (lambda raw: b"", "is empty"),
    "cut": (lambda raw: raw[:100], "is not the JSON"),
    "binary": (lambda raw: bytes(range(256)), "is not the JSON"),
    "other JSON": (lambda raw: b'{"shards": []}', "has version None"),
    "a list": (lambda raw: b"[1, 2]", "is not the JSON"),
    "a number": (lambda raw: b"17", "is not the JSON"),
    "of version 2": (lambda raw: edited(raw, version=2), "has version 2; this Headrace reads version 1"),
    "of version '1'": (lambda raw: edited(raw, version="1"), "has version '1'"),
    "of version true": (lambda raw: edited(raw, version=True), "has version True"),
    "of version 1.0": (lambda raw: edited(raw, version=1.5), "has version 1.5"),
    "with an unknown field": (lambda raw: edited(raw, compression="zstd"), "compression"),
    "without a field": (lambda raw: raw.replace(b'"kind"', b'"k"'), "k"),
    "with a wrong total": (lambda raw: edited(raw, total_length=51), "total_length is 51"),
    "with wrong bytes": (lambda raw: edited(raw, total_bytes=99), "total_bytes is 99"),
    "with wrong num_shards": (lambda raw: edited(raw, num_shards=6), "num_shards is 6"),
    "with a wrong fingerprint": (lambda raw: edited(raw, fingerprint="0" * 32), "fingerprint is"),
    "that claims 11 elements": (lambda raw: raw.replace(b'"length": 10', b'"length": 11', 1), "total_length is 50"),
    "with a huge total": (lambda raw: edited(raw, total_length=2**70), "is not a manifest|too many"),
    "with no shards": (lambda raw: edited(raw, shards=[]), "num_shards is 5"),
    "with a negative size": (lambda raw: with_shard(raw, bytes=-20), "-20 bytes"),
    "with a huge size": (lambda raw: with_shard(raw, False, bytes=2**63), "bytes"),
    "with another digest": (lambda raw: with_shard(raw, 0, False, xxh3_128="0" * 32), "fingerprint is"),
    "that leaves the directory": (lambda raw: with_shard(raw, name="../x"), "does not belong to shard 0"),
    "that leaves it by the prefix": (lambda raw: with_shard(raw, name="0000000./../../x"), "does not belong to"),
    "with back-slashes": (lambda raw: with_shard(raw, name="0000000.\\..\\x"), "does not belong to shard 0"),
    "with an absolute path": (lambda raw: with_shard(raw, name="/etc/passwd"), "does not belong to shard 0"),
    "of another shard's file": (lambda raw: with_shard(raw, name="0000001.in_band.bin"), "does not belong to shard 0"),
    "of objects": (lambda raw: edited(raw, dtype="|O"), "fingerprint|cannot be stored|element type"),
    "nested deeply": (lambda raw: edited(raw, metadata=None).replace(b"null", b"[" * 9000 + b"]" * 9000), "recursion"),
}


@pytest.mark.parametrize("name", MANIFESTS)
def test_a_manifest_is_refused(name, folder):
    change, words = MANIFESTS[name]
    path = folder / "headrace.json"
    path.write_bytes(change(path.read_bytes()))
    for call in (storage_at(folder).describe, StreamDataset(storage_at(folder), 5).open, storage_at(folder).verify):
        with pytest.raises(ManifestError, match=words) as caught:
            call()
        assert str(path) in str(caught.value)
    if "version" in name:
        assert isinstance(caught.value, ManifestVersionError)


def test_a_length_that_its_size_does_not_hold_is_refused(folder):
    manifest = Manifest.from_json((folder / "headrace.json").read_bytes(), "here")
    shards = [msgspec.structs.replace(manifest.shards[0], length=11), *manifest.shards[1:]]
    (folder / "headrace.json").write_bytes(Manifest.of("stream", "<u2", shards).to_json())
    with pytest.raises(CorruptShardError, match="20 bytes for 11 elements"):
        StreamDataset(storage_at(folder), 5).open()


@pytest.mark.parametrize("damage", [lambda raw: b"", lambda raw: raw[:50], lambda raw: b"{}"])
def test_a_damaged_receipt_is_refused_by_path_and_writing_the_shard_again_heals_it(damage, folder):
    (folder / "headrace.json").unlink()
    receipt = folder / ".headrace" / "0000001.receipt"
    receipt.write_bytes(damage(receipt.read_bytes()))
    for call in (storage_at(folder).publish, storage_at(folder).describe):
        with pytest.raises(ManifestError, match=r"0000001\.receipt"):
            call()
    with storage_at(folder).sync_writer() as writer:
        writer.append(1, range(10, 20))
    storage_at(folder).publish()
    assert tokens_of(storage_at(folder)) == list(range(50))


def test_an_empty_shard_between_others_is_harmless_and_one_that_claims_elements_is_not(tmp_path):
    storage = write(storage_at(tmp_path), ranges(5, 0, 5), publish=True)
    assert tokens_of(storage) == list(range(10))
    assert storage.verify() == []
    (tmp_path / "0000000.in_band.bin").write_bytes(b"")
    with pytest.raises(CorruptShardError, match="has 0 bytes, but 10 were recorded"):
        tokens_of(storage)


@pytest.mark.parametrize("read", READ)
@pytest.mark.parametrize("published", [True, False])
def test_data_replaced_under_a_reader_is_noticed_at_the_next_file(published, read, tmp_path):
    storage = write(storage_at(tmp_path), ranges(10, 10, 10), publish=published)
    dataset = StreamDataset(StreamStorage(READ[read](tmp_path), U2), 10)
    assert dataset[0].tolist() == list(range(10))
    write(storage, ranges(10, 10, 10, start=500), overwrite=True, publish=published)
    for item in (1, 2):
        with pytest.raises(DatasetChangedError, match="changed while it was open"):
            dataset[item]
    dataset.close()
    assert dataset[1].tolist() == list(range(510, 520))


def test_what_is_mapped_stays_readable_after_a_replacement(tmp_path):
    storage = write(storage_at(tmp_path), ranges(10, 10), publish=True)
    dataset = StreamDataset(storage, 10)
    dataset[:]
    write(storage, ranges(10, 10, start=500), overwrite=True, publish=True)
    assert [sample.tolist() for sample in dataset[:]] == [list(range(10)), list(range(10, 20))]


def test_a_foreign_file_replaced_under_a_reader_is_noticed(tmp_path):
    for shard in range(2):
        (tmp_path / f"{shard:07d}.in_band.bin").write_bytes(np.arange(4, dtype="<u2").tobytes())
    dataset = StreamDataset(storage_at(tmp_path), 4)
    assert dataset[0].tolist() == [0, 1, 2, 3]
    (tmp_path / "new").write_bytes(np.arange(9, 13, dtype="<u2").tobytes())
    (tmp_path / "new").rename(tmp_path / "0000001.in_band.bin")
    with pytest.raises(DatasetChangedError):
        dataset[1]


def test_readers_that_open_while_the_data_is_replaced_see_one_whole_version(tmp_path):
    one, two = ranges(10, 10), ranges(10, 10, start=500)
    storage = write(fast_storage_at(tmp_path), one, publish=True)
    allowed = [np.concatenate(one).tolist(), np.concatenate(two).tolist()]
    stop, seen, strange = threading.Event(), set(), []

    def look():
        while not stop.is_set():
            try:
                tokens = tokens_of(fast_storage_at(tmp_path))
            except (UnfinishedDatasetError, DatasetChangedError) as error:
                seen.add(type(error).__name__)
            except Exception as error:
                strange.append(error)
                return
            else:
                seen.add(tokens[0])
                if tokens not in allowed:
                    strange.append(tokens)

    readers = [threading.Thread(target=look) for _ in range(3)]
    for reader in readers:
        reader.start()
    for repeat in range(60):
        write(storage, two if repeat % 2 == 0 else one, overwrite=True, publish=True)
    stop.set()
    for reader in readers:
        reader.join()
    assert strange == []
    assert {0, 500} & seen


def test_readers_that_open_while_unpublished_shards_are_replaced_see_one_whole_version(tmp_path):
    one, two = ranges(10, 10), ranges(10, 10, start=500)
    storage = write(fast_storage_at(tmp_path), one)
    allowed = [np.concatenate(one).tolist(), np.concatenate(two).tolist()]
    stop, strange = threading.Event(), []

    def look():
        while not stop.is_set():
            try:
                tokens = tokens_of(fast_storage_at(tmp_path))
            except (UnfinishedDatasetError, DatasetChangedError):
                continue
            except Exception as error:
                strange.append(error)
                return
            if tokens not in allowed:
                strange.append(tokens)

    readers = [threading.Thread(target=look) for _ in range(3)]
    for reader in readers:
        reader.start()
    for repeat in range(60):
        write(storage, two if repeat % 2 == 0 else one)
    stop.set()
    for reader in readers:
        reader.join()
    assert strange == []


FORMS = [
    "~/ds",
    "rel/ative",
    "slash/",
    "blank s",
    "a#b",
    "p%20q",
    "caf\u00e9",
    "cafe\u0301",
    "n" * 200,
    "./dot/../dot2",
]


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_a_path_is_the_same_dataset(form, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    storage = write(storage_at(form), ranges(5, 3), publish=True)
    dataset = StreamDataset(storage, 4)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    assert dataset[1].tolist() == [4, 5, 6, 7]
    assert list(elsewhere.iterdir()) == []
    monkeypatch.chdir(tmp_path / "work")
    assert storage_at(form).publish().fingerprint == dataset.fingerprint
    place = tmp_path / "home" / "ds" if form.startswith("~") else tmp_path / "work" / form
    assert json.loads((place / "headrace.json").read_text())["shards"][1]["files"][0]["name"] == "0000001.in_band.bin"


def test_links_and_read_only_directories_read_the_same(folder, tmp_path):
    (tmp_path / "link").symlink_to(folder, target_is_directory=True)
    assert tokens_of(storage_at(tmp_path / "link")) == list(range(50))
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy, ignore=shutil.ignore_patterns("link", "copy"))
    real = tmp_path / "real.bin"
    (copy / "0000001.in_band.bin").rename(real)
    (copy / "0000001.in_band.bin").symlink_to(real)
    before = files_of(copy)
    for path in [copy, *copy.rglob("*")]:
        if not path.is_symlink():
            path.chmod(0o555 if path.is_dir() else 0o444)
    assert tokens_of(storage_at(copy)) == list(range(50))
    assert storage_at(copy).verify() == []
    storage_at(copy).publish()
    assert files_of(copy) == before
    for path in [copy, *copy.rglob("*")]:
        if path.is_dir():
            path.chmod(0o755)


def test_a_url_is_no_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for url in ("s3://bucket/x", "https://host/x"):
        assert storage_at(url).store.capabilities.remote
    with pytest.raises(OptionError, match="nosuch"):
        storage_at("nosuch://host/x")
    assert list(tmp_path.iterdir()) == []


def test_a_copied_dataset_has_the_same_fingerprint_and_one_number_changed_another(folder, tmp_path):
    first = StreamDataset(storage_at(folder), 5).settings["data"]
    other = write(StreamStorage(RangesOnly(), U2), [*ranges(10, 10, 10, 10), np.arange(41, 51)], publish=True)
    assert other.describe()["fingerprint"] != first
    same = write(StreamStorage(RangesOnly(), U2), ranges(*[10] * 5))
    assert same.describe()["fingerprint"] == first
    assert leftovers(folder) == []
