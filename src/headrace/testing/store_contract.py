# ruff: noqa: D102 - the tests' names are sentences
"""What every store promises, as a suite to inherit.

    class TestMyStore(StoreContract):
        def make_store(self, tmp_path):
            return MyStore(tmp_path / "data")

Optional capabilities are tested where the store declares them; where it does not, that it refuses them by name.
"""

import pickle  # noqa: TID251 - the contract is that stores pickle; nothing read from a data set is unpickled
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from headrace.errors import (
    AlreadyExistsError,
    NotFoundError,
    PathOutsideRootError,
    TruncatedReadError,
)
from headrace.store import Store
from headrace.testing.capability_contract import CapabilityContract

__all__ = ["StoreContract"]

ODD_NAMES = (
    "with blanks  .bin",
    "a#b",
    "a%20b",
    "a?b&c=d",
    "~tilde",
    ".hidden",
    "..dots",
    "caf\u00e9",
    "cafe\u0301",  # the same to the eye, other bytes
    "quo'te\"s",
    "star*[0]",
    "n" * 200,
)


class StoreContract(CapabilityContract):
    """Tests that hold for every store; a subclass defines make_store."""

    # Objects

    @pytest.mark.parametrize("data", [b"", b"x", bytes(range(256)) * 300])
    def test_an_object_reads_back_as_it_was_put(self, store: Store, data: bytes) -> None:
        store.put("folder/object", data)
        assert store.get("folder/object") == data
        assert store.head("folder/object").size_bytes == len(data)

    def test_every_kind_of_buffer_is_stored_byte_for_byte(self, store: Store) -> None:
        wide = np.arange(6, dtype="<u4").reshape(2, 3)
        for data in (bytearray(b"abc"), memoryview(b"abcdef")[1:4], wide.data, wide[:0].data):
            store.put("object", data)
            assert store.get("object") == (data.tobytes() if isinstance(data, memoryview) else data)

    def test_a_later_change_of_the_callers_buffer_does_not_reach_the_object(self, store: Store) -> None:
        data = bytearray(b"before")
        store.put("object", data)
        data[:] = b"after!"
        assert store.get("object") == b"before"

    def test_put_replaces_the_object_and_changes_its_version(self, store: Store) -> None:
        versions = set()
        for data in (b"one", b"two", b"two", b"three"):
            store.put("object", data)
            assert store.get("object") == data
            assert bytes(store.get_ranges("object", np.array([1]), np.array([2]))[0]) == data[1:3]
            versions.add(store.head("object").version)
        assert len(versions) == 4

    def test_the_version_stays_while_the_object_does(self, store: Store) -> None:
        store.put("object", b"data")
        first = store.head("object")
        store.get("object")
        store.put("other", b"data")
        assert store.head("object") == first

    @pytest.mark.parametrize("path", ["missing", "folder/missing", "folder", "folder/object/below"])
    def test_what_is_no_object_is_not_found_and_named_in_full(self, store: Store, path: str) -> None:
        store.put("folder/object", b"data")
        reads: list[Callable[[], object]] = [
            lambda: store.head(path),
            lambda: store.get(path),
            lambda: store.get_ranges(path, np.array([0]), np.array([0])),
        ]
        if store.capabilities.view:
            reads.append(lambda: store.view(path))
        for read in reads:
            with pytest.raises(NotFoundError) as caught:
                read()
            assert store.location in str(caught.value)
            assert path in str(caught.value)

    def test_put_if_absent_creates_once_and_changes_nothing_after(self, store: Store) -> None:
        store.put_if_absent("folder/object", b"first")
        before = store.head("folder/object")
        with pytest.raises(AlreadyExistsError, match="folder/object"):
            store.put_if_absent("folder/object", b"second")
        assert store.get("folder/object") == b"first"
        assert store.head("folder/object") == before
        assert [entry.path for entry in store.list()] == ["folder/object"]

    def test_put_if_absent_has_one_winner_among_concurrent_callers(self, store: Store) -> None:
        start = threading.Barrier(6)

        def attempt(number: int, turn: int) -> bool:
            start.wait()
            try:
                store.put_if_absent(f"folder/{turn}", bytes([number]) * 1000)
            except AlreadyExistsError:
                return False
            return True

        with ThreadPoolExecutor(6) as pool:
            for turn in range(10):
                won = list(pool.map(attempt, range(6), [turn] * 6))
                assert won.count(True) == 1
                assert store.get(f"folder/{turn}") == bytes([won.index(True)]) * 1000

    def test_a_reader_sees_whole_objects_while_they_are_replaced(self, store: Store) -> None:
        store.put("object", b"a" * 50_000)

        def replace() -> None:
            for turn in range(40):
                store.put("object", (b"b" if turn % 2 else b"c") * (30_000 + 1000 * (turn % 2)))

        with ThreadPoolExecutor(1) as pool:
            writing = pool.submit(replace)
            while not writing.done():
                seen = store.get("object")
                assert len(seen) == {b"a": 50_000, b"b": 31_000, b"c": 30_000}[seen[:1]]
                assert seen == seen[:1] * len(seen)
            writing.result()

    def test_delete_removes_an_object_and_absence_is_fine(self, store: Store) -> None:
        store.put("folder/object", b"data")
        store.delete("folder")  # a folder is no object
        assert store.get("folder/object") == b"data"
        store.delete("folder/object")
        store.delete("folder/object")
        store.delete("nowhere/at/all")
        with pytest.raises(NotFoundError):
            store.get("folder/object")
        store.put("folder/object", b"again")
        assert bytes(store.get_ranges("folder/object", np.array([0]), np.array([5]))[0]) == b"again"

    # Ranges

    def test_ranges_are_slices_over_a_whole_small_domain(self, store: Store) -> None:
        data = b"01234"
        store.put("object", data)
        spans = [(start, stop - start) for start in range(6) for stop in range(start, 6)] * 2
        starts, lengths = np.array(spans, np.int64).T
        views = store.get_ranges("object", starts, lengths)
        assert [bytes(view) for view in views] == [data[start : start + length] for start, length in spans]
        assert all(isinstance(view, memoryview) and view.readonly for view in views)

    def test_no_ranges_give_an_empty_list(self, store: Store) -> None:
        store.put("object", b"data")
        assert store.get_ranges("object", np.zeros(0, np.int64), np.zeros(0, np.int64)) == []

    @pytest.mark.parametrize(("start", "length"), [(0, 6), (5, 1), (6, 0), (2**62, 1), (2**63 - 1, 2**63 - 1)])
    def test_a_range_past_the_end_is_refused_with_the_numbers(self, store: Store, start: int, length: int) -> None:
        store.put("object", b"01234")
        with pytest.raises(TruncatedReadError, match=rf"object.*{start}.*has 5 bytes"):
            store.get_ranges("object", np.array([0, start]), np.array([1, length]))

    @pytest.mark.parametrize(
        ("starts", "lengths"),
        [([-1], [1]), ([0, 0], [1, -1]), ([0], [1, 1]), ([[0]], [[1]]), ([0.0], [1.0])],
    )
    def test_what_is_no_range_is_refused(self, store: Store, starts: object, lengths: object) -> None:
        store.put("object", b"01234")
        with pytest.raises(ValueError, match="object"):
            store.get_ranges("object", np.array(starts), np.array(lengths))

    def test_many_threads_read_ranges_of_many_objects(self, store: Store) -> None:
        for number in range(12):
            store.put(f"many/{number}", bytes([number]) * 500)

        def read(turn: int) -> bool:
            number = turn % 12
            views = store.get_ranges(f"many/{number}", np.array([0, 100]), np.array([10, 400]))
            return [bytes(view) for view in views] == [bytes([number]) * 10, bytes([number]) * 400]

        with ThreadPoolExecutor(8) as pool:
            assert all(pool.map(read, range(400)))

    # Names

    def test_a_listing_is_sorted_and_says_what_head_says(self, store: Store) -> None:
        paths = ["b", "a/c", "a/b/d", "a.b", "a/b/e", "z/y/x"]
        for path in paths:
            store.put(path, path.encode())
        assert store.list() == [store.head(path) for path in sorted(paths)]
        assert [entry.path for entry in store.list("a")] == ["a/b/d", "a/b/e", "a/c"]
        assert [entry.path for entry in store.list("a", recursive=False)] == ["a/c"]
        assert [entry.path for entry in store.list(recursive=False)] == ["a.b", "b"]
        assert store.folders() == ["a", "z"]
        assert store.folders("a") == ["b"]

    def test_an_absent_folder_lists_as_empty(self, store: Store) -> None:
        for folder in ("", "no/folder"):
            assert (store.list(folder), store.folders(folder)) == ([], [])
        store.put("object", b"data")
        assert (store.list("object"), store.folders("object")) == ([], [])

    def test_odd_names_are_kept_as_they_are(self, store: Store) -> None:
        for name in ODD_NAMES:
            store.put(f"{name}/{name}", name.encode())
        assert [entry.path for entry in store.list()] == sorted(f"{name}/{name}" for name in ODD_NAMES)
        assert store.folders() == sorted(ODD_NAMES)
        for name in ODD_NAMES:
            assert store.get(f"{name}/{name}") == name.encode()
            assert [entry.path for entry in store.list(name)] == [f"{name}/{name}"]

    @pytest.mark.parametrize("path", ["../x", "a/../../x", "/x", "a//b", "a/", "./a", "a\\b", "", ".", "..", "a\0b"])
    def test_a_path_that_could_leave_the_root_is_refused_by_everything(self, store: Store, path: str) -> None:
        one = np.array([1])
        calls: list[Callable[[], object]] = [
            lambda: store.head(path),
            lambda: store.get(path),
            lambda: store.get_ranges(path, one, one),
            lambda: store.put(path, b""),
            lambda: store.put_if_absent(path, b""),
            lambda: store.delete(path),
        ]
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
        if path:  # the root itself is a folder
            calls += [lambda: store.list(path), lambda: store.folders(path)]
        for call in calls:
            with pytest.raises(PathOutsideRootError):
                call()

    # The store itself

    def test_a_pickled_copy_reads_the_same_objects(self, store: Store) -> None:
        store.put("folder/object", b"0123456789")
        store.get_ranges("folder/object", np.array([0]), np.array([1]))  # so that there are handles to leave behind
        copied = pickle.loads(pickle.dumps(store))  # noqa: S301 - made on this line
        assert copied.get("folder/object") == b"0123456789"
        assert bytes(copied.get_ranges("folder/object", np.array([3]), np.array([4]))[0]) == b"3456"
        assert (copied.location, copied.capabilities) == (store.location, store.capabilities)

    def test_a_closed_store_opens_its_handles_anew(self, store: Store) -> None:
        with store as entered:
            assert entered is store
            store.put("object", b"data")
            first = store.get_ranges("object", np.array([0]), np.array([4]))
        store.close()
        assert bytes(first[0]) == b"data"
        assert bytes(store.get_ranges("object", np.array([1]), np.array([3]))[0]) == b"ata"

    def test_removing_orphans_leaves_objects_alone(self, store: Store) -> None:
        store.put("folder/object", b"data")
        store.remove_orphans()
        store.remove_orphans("folder")
        store.remove_orphans("absent")
        assert store.get("folder/object") == b"data"
