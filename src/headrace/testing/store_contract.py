# ruff: noqa: D102 - the tests' names are sentences
"""What every store promises, as a suite to inherit.

    class TestMyStore(StoreContract):
        def make_store(self, tmp_path):
            return MyStore(tmp_path / "data")

Optional capabilities are tested where the store declares them; where it does not, that it refuses them by name.
"""

import hashlib
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from headrace.errors import AlreadyExistsError, NotFoundError, ObjectChangedError, PathOutsideRootError
from headrace.store import FileInfo, Store
from headrace.testing.reading_contract import ReadingContract

__all__ = ["StoreContract"]


class StoreContract(ReadingContract):
    """Tests that hold for every store; a subclass defines make_store.

    One whose store cannot write defines make_object, too. large_bytes is the size of the file in the test of large
    uploads: more than the store sends in one request.
    tells_md5=True asks stored() for the digest of what went up in one request.
    """

    large_bytes = 1 << 20
    tells_md5 = False

    # Objects

    @pytest.mark.parametrize("data", [b"", b"x", bytes(range(256)) * 300])
    def test_an_object_reads_back_as_it_was_put(self, writing: Store, data: bytes) -> None:
        writing.put("folder/object", data)
        assert writing.get("folder/object") == data
        assert writing.head("folder/object").size_bytes == len(data)

    def test_the_digest_that_a_store_tells_is_that_of_what_it_keeps(self, writing: Store, tmp_path: Path) -> None:
        for data in (b"", b"data", b"dat\0", bytes(range(256)) * 300):
            (tmp_path / "a file").write_bytes(data)
            for put in (writing.put, lambda path, _: writing.upload(path, tmp_path / "a file")):
                put("folder/object", data)
                stored = writing.stored("folder/object")
                assert stored.found == writing.head("folder/object")
                right = hashlib.md5(data, usedforsecurity=False).hexdigest()
                assert stored.md5 in ((right,) if self.tells_md5 else (right, ""))
        writing.delete("folder/object")
        with pytest.raises(NotFoundError, match="folder/object"):
            writing.stored("folder/object")

    def test_every_kind_of_buffer_is_stored_byte_for_byte(self, writing: Store) -> None:
        wide = np.arange(6, dtype="<u4").reshape(2, 3)
        for data in (bytearray(b"abc"), memoryview(b"abcdef")[1:4], wide.data, wide[:0].data):
            writing.put("object", data)
            assert writing.get("object") == (data.tobytes() if isinstance(data, memoryview) else data)

    def test_a_later_change_of_the_callers_buffer_does_not_reach_the_object(self, writing: Store) -> None:
        data = bytearray(b"before")
        writing.put("object", data)
        data[:] = b"after!"
        assert writing.get("object") == b"before"

    def test_put_replaces_the_object_and_changes_its_version(self, writing: Store) -> None:
        versions = set()
        for data in (b"one", b"two", b"two", b"three"):
            writing.put("object", data)
            assert writing.get("object") == data
            assert bytes(writing.get_ranges("object", np.array([1]), np.array([2]))[0]) == data[1:3]
            versions.add(writing.head("object").version)
        assert len(versions) >= (4 if writing.capabilities.exact_versions else 3)

    def test_ranges_of_an_object_that_was_replaced_by_equal_bytes_are_refused_where_versions_are_exact(
        self, writing: Store
    ) -> None:
        one = np.array([1])
        writing.put("object", b"data")
        found = writing.head("object")
        writing.put("object", b"data")
        if writing.capabilities.exact_versions:
            with pytest.raises(ObjectChangedError, match="object"):
                writing.get_ranges_of(found, one, one)
        writing.delete("object")
        with pytest.raises(NotFoundError, match="object"):
            writing.get_ranges_of(found, one, one)

    def test_the_version_stays_while_the_object_does(self, writing: Store) -> None:
        writing.put("object", b"data")
        first = writing.head("object")
        writing.get("object")
        writing.put("other", b"data")
        assert writing.head("object") == first

    def test_put_if_absent_creates_once_and_changes_nothing_after(self, creating: Store) -> None:
        creating.put_if_absent("folder/object", b"first")
        before = creating.head("folder/object")
        with pytest.raises(AlreadyExistsError, match="folder/object"):
            creating.put_if_absent("folder/object", b"second")
        assert creating.get("folder/object") == b"first"
        assert creating.head("folder/object") == before
        assert paths_of(creating, "folder/object") == ["folder/object"]

    def test_put_if_absent_has_one_winner_among_concurrent_callers(self, creating: Store) -> None:
        start = threading.Barrier(6)

        def attempt(number: int, turn: int) -> bool:
            start.wait()
            try:
                creating.put_if_absent(f"folder/{turn}", bytes([number]) * 1000)
            except AlreadyExistsError:
                return False
            return True

        with ThreadPoolExecutor(6) as pool:
            for turn in range(10):
                won = list(pool.map(attempt, range(6), [turn] * 6))
                assert won.count(True) == 1
                assert creating.get(f"folder/{turn}") == bytes([won.index(True)]) * 1000

    def test_a_reader_sees_whole_objects_while_they_are_replaced(self, writing: Store) -> None:
        writing.put("object", b"a" * 50_000)

        def replace() -> None:
            for turn in range(40):
                writing.put("object", (b"b" if turn % 2 else b"c") * (30_000 + 1000 * (turn % 2)))

        with ThreadPoolExecutor(1) as pool:
            replacing = pool.submit(replace)
            while not replacing.done():
                seen = writing.get("object")
                assert len(seen) == {b"a": 50_000, b"b": 31_000, b"c": 30_000}[seen[:1]]
                assert seen == seen[:1] * len(seen)
            replacing.result()

    def test_delete_removes_an_object_and_absence_is_fine(self, writing: Store) -> None:
        writing.put("folder/object", b"data")
        writing.delete("folder")  # a folder is no object
        assert writing.get("folder/object") == b"data"
        writing.delete("folder/object")
        writing.delete("folder/object")
        writing.delete("nowhere/at/all")
        with pytest.raises(NotFoundError):
            writing.get("folder/object")
        writing.put("folder/object", b"again")
        assert bytes(writing.get_ranges("folder/object", np.array([0]), np.array([5]))[0]) == b"again"

    # Files that go up

    @pytest.mark.parametrize("size", [0, 1, 100_000])
    def test_a_file_goes_up_as_it_is(self, writing: Store, tmp_path: Path, size: int) -> None:
        data = (bytes(range(251)) * 400)[:size]
        (tmp_path / "a file").write_bytes(data)
        for file in (tmp_path / "a file", str(tmp_path / "a file")):
            writing.upload("folder/object", file)
            assert writing.get("folder/object") == data
            writing.put("folder/object", b"another")

    def test_a_large_file_goes_up_whole_or_not_at_all(self, writing: Store, tmp_path: Path) -> None:
        with (tmp_path / "file").open("wb") as file:
            for begin in range(0, self.large_bytes // 4, 1 << 16):
                file.write(np.arange(begin, begin + (1 << 16), dtype="<u4").tobytes())  # no two blocks alike
            file.write(b"end")
        with pytest.raises(LookupError, match="the lease is lost"):
            writing.upload("folder/object", tmp_path / "file", check=lost)
        with pytest.raises(NotFoundError):
            writing.head("folder/object")
        assert paths_of(writing) == []
        checks: list[int] = []
        writing.upload("folder/object", tmp_path / "file", check=lambda: checks.append(1))
        assert checks
        assert writing.head("folder/object").size_bytes == (tmp_path / "file").stat().st_size
        with (tmp_path / "file").open("rb") as file:
            for piece in writing.pieces("folder/object", 1 << 20):
                assert piece == file.read(len(piece))
            assert file.read() == b""

    def test_a_check_that_raises_leaves_the_object_as_it_was(self, writing: Store, tmp_path: Path) -> None:
        (tmp_path / "file").write_bytes(b"new")
        writing.put("folder/object", b"old")
        before = writing.head("folder/object")
        with pytest.raises(LookupError, match="the lease is lost"):
            writing.upload("folder/object", tmp_path / "file", check=lost)
        assert writing.get("folder/object") == b"old"
        assert writing.head("folder/object") == before
        assert paths_of(writing, "folder/object") == ["folder/object"]

    def test_a_file_that_is_not_there_changes_nothing(self, writing: Store, tmp_path: Path) -> None:
        writing.put("folder/object", b"old")
        with pytest.raises(FileNotFoundError):
            writing.upload("folder/object", tmp_path / "absent")
        assert writing.get("folder/object") == b"old"

    # Names

    @pytest.mark.parametrize("path", ["../x", "a/../../x", "/x", "a//b", "a/", "./a", "a\\b", "", ".", "..", "a\0b"])
    def test_a_path_that_could_leave_the_root_is_refused_by_everything(self, store: Store, path: str) -> None:
        one = np.array([1])
        calls: list[Callable[[], object]] = [
            lambda: store.head(path),
            lambda: store.get(path),
            lambda: store.get_ranges(path, one, one),
            lambda: store.get_ranges_of(FileInfo(path, 2, "", 0.0), one, one),
            lambda: list(store.pieces(path)),
        ]
        if store.capabilities.write:
            calls += [
                lambda: store.put(path, b""),
                lambda: store.upload(path, __file__),
                lambda: store.delete(path),
            ]
        if store.capabilities.conditional:
            calls.append(lambda: store.put_if_absent(path, b""))
        if store.capabilities.view:
            calls.append(lambda: store.view(path))
        if store.capabilities.rename:
            store.put("object", b"data")
            calls += [
                lambda: store.open_writer(path),
                lambda: store.rename(path, "other"),
                lambda: store.rename("object", path),
                lambda: store.remove_folder(path),
            ]
        if path and store.capabilities.listing:  # the root itself is a folder
            calls += [lambda: store.list(path), lambda: store.folders(path)]
        for call in calls:
            with pytest.raises(PathOutsideRootError):
                call()


def lost() -> None:
    """A check that finds that this writer may not go on."""
    raise LookupError("the lease is lost")


def paths_of(store: Store, *otherwise: str) -> list[str]:
    """All paths in the store; otherwise where it cannot list."""
    return [entry.path for entry in store.list()] if store.capabilities.listing else list(otherwise)
