# ruff: noqa: D102 - the tests' names are sentences
"""The part of the store contract that speaks of reading: objects, ranges, pieces, names, and the store itself."""

import pickle  # noqa: TID251 - the contract is that stores pickle; nothing read from a data set is unpickled
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from headrace.errors import NotFoundError, ObjectChangedError, TruncatedReadError
from headrace.store import Capabilities, DatasetFile, Store
from headrace.testing.capability_contract import CapabilityContract

__all__ = ["ReadingContract"]

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


class ReadingContract(CapabilityContract):
    """Tests of what every store can do, also one that cannot write; StoreContract has these and all others."""

    # Objects

    @pytest.mark.parametrize("path", ["missing", "folder/missing", "folder", "folder/object/below"])
    def test_what_is_no_object_is_not_found_and_named_in_full(self, store: Store, path: str) -> None:
        self.make_object(store, "folder/object", b"data")
        reads: list[Callable[[], object]] = [
            lambda: store.head(path),
            lambda: store.get(path),
            lambda: store.get_ranges(path, np.array([0]), np.array([0])),
            lambda: store.get_ranges(path, np.array([0]), np.array([1])),
            lambda: list(store.pieces(path)),
        ]
        if store.capabilities.view:
            reads.append(lambda: store.view(path))
        for read in reads:
            with pytest.raises(NotFoundError) as caught:
                read()
            assert store.location in str(caught.value)
            assert path in str(caught.value)

    # Ranges

    def test_ranges_are_slices_over_a_whole_small_domain(self, store: Store) -> None:
        data = b"01234"
        self.make_object(store, "object", data)
        spans = [(start, stop - start) for start in range(6) for stop in range(start, 6)] * 2
        starts, lengths = np.array(spans, np.int64).T
        views = store.get_ranges("object", starts, lengths)
        assert [bytes(view) for view in views] == [data[start : start + length] for start, length in spans]
        assert all(isinstance(view, memoryview) and view.readonly for view in views)

    def test_no_ranges_give_an_empty_list(self, store: Store) -> None:
        self.make_object(store, "object", b"data")
        assert store.get_ranges("object", np.zeros(0, np.int64), np.zeros(0, np.int64)) == []

    @pytest.mark.parametrize(("start", "length"), [(0, 6), (5, 1), (6, 0), (2**62, 1), (2**63 - 1, 2**63 - 1)])
    def test_a_range_past_the_end_is_refused_with_the_numbers(self, store: Store, start: int, length: int) -> None:
        self.make_object(store, "object", b"01234")
        with pytest.raises(TruncatedReadError, match=rf"object.*{start}.*has 5 bytes"):
            store.get_ranges("object", np.array([0, start]), np.array([1, length]))

    @pytest.mark.parametrize(
        ("starts", "lengths"),
        [([-1], [1]), ([0, 0], [1, -1]), ([0], [1, 1]), ([[0]], [[1]]), ([0.0], [1.0])],
    )
    def test_what_is_no_range_is_refused(self, store: Store, starts: object, lengths: object) -> None:
        self.make_object(store, "object", b"01234")
        with pytest.raises(ValueError, match="object"):
            store.get_ranges("object", np.array(starts), np.array(lengths))

    def test_many_threads_read_ranges_of_many_objects(self, store: Store) -> None:
        for number in range(12):
            self.make_object(store, f"many/{number}", bytes([number]) * 500)

        def read(turn: int) -> bool:
            number = turn % 12
            views = store.get_ranges(f"many/{number}", np.array([0, 100]), np.array([10, 400]))
            return [bytes(view) for view in views] == [bytes([number]) * 10, bytes([number]) * 400]

        with ThreadPoolExecutor(8) as pool:
            assert all(pool.map(read, range(400)))

    def test_ranges_that_are_far_apart_repeated_and_unsorted_come_in_their_order(self, store: Store) -> None:
        data = np.arange(100_000, dtype="<u4").tobytes()
        self.make_object(store, "object", data)
        spans = [(399_999, 1), (7, 9), (0, 0), (200_000, 70_000), (7, 9), (400_000, 0), (201_000, 10), (0, 400_000)]
        starts, lengths = np.array(spans, np.int64).T
        views = store.get_ranges("object", starts, lengths)
        assert [bytes(view) for view in views] == [data[start : start + length] for start, length in spans]

    def test_ranges_of_the_object_that_was_found_are_slices(self, store: Store) -> None:
        self.make_object(store, "folder/object", b"0123456789")
        found = store.head("folder/object")
        spans = [(0, 10), (3, 4), (9, 1), (3, 4), (10, 0)]
        starts, lengths = np.array(spans, np.int64).T
        views = store.get_ranges_of(found, starts, lengths)
        assert [bytes(view) for view in views] == [b"0123456789"[start : start + length] for start, length in spans]
        assert all(view.readonly for view in views)
        assert store.get_ranges_of(found, np.zeros(0, np.int64), np.zeros(0, np.int64)) == []
        with pytest.raises(TruncatedReadError, match=r"folder/object.*has 10 bytes"):
            store.get_ranges_of(found, np.array([8]), np.array([3]))
        with pytest.raises(ValueError, match="folder/object"):
            store.get_ranges_of(found, np.array([-1]), np.array([1]))

    def test_ranges_of_an_object_that_was_replaced_by_other_bytes_are_refused(self, store: Store) -> None:
        one = np.array([1])
        for other in (b"abcdef", b"abc", b"abcdefghi"):
            self.make_object(store, "folder/object", b"012345")
            found = store.head("folder/object")
            assert bytes(store.get_ranges_of(found, one, one)[0]) == b"1"
            self.make_object(store, "folder/object", other)
            with pytest.raises(ObjectChangedError, match="folder/object"):
                store.get_ranges_of(found, one, one)
            assert bytes(store.get_ranges_of(store.head("folder/object"), one, one)[0]) == other[1:2]

    # The whole object in pieces

    @pytest.mark.parametrize("size", [0, 1, 4095, 4096, 4097, 100_000])
    def test_pieces_are_the_object_from_front_to_back(self, store: Store, size: int) -> None:
        data = (bytes(range(251)) * 400)[:size]
        self.make_object(store, "folder/object", data)
        pieces = list(store.pieces("folder/object", 4096))
        assert b"".join(pieces) == data
        assert all(isinstance(piece, memoryview) and piece.readonly for piece in pieces)
        assert all(0 < len(piece) <= 4096 for piece in pieces)
        assert b"".join(store.pieces("folder/object")) == data

    def test_pieces_are_of_one_version_whatever_happens_meanwhile(self, store: Store) -> None:
        for size in (200_000, 3_000_000):
            self.make_object(store, "object", b"a" * size)
            pieces = store.pieces("object", 60_000)
            got = [bytes(next(pieces))]
            self.make_object(store, "object", b"b" * size)
            try:
                got.extend(map(bytes, pieces))
            except ObjectChangedError as error:
                assert "object" in str(error)  # noqa: PT017 - both outcomes are right
                assert set(b"".join(got)) == {ord("a")}
            else:
                assert b"".join(got) == b"a" * size

    def test_pieces_that_nobody_reads_to_the_end_leave_the_store_in_order(self, store: Store) -> None:
        self.make_object(store, "object", bytes(3_000_000))
        for _ in range(20):
            assert len(next(store.pieces("object", 1000))) <= 1000
        assert store.head("object").size_bytes == 3_000_000

    # Names

    def test_a_listing_is_sorted_and_says_what_head_says(self, listing: Store) -> None:
        paths = ["b", "a/c", "a/b/d", "a.b", "a/b/e", "z/y/x"]
        for path in paths:
            self.make_object(listing, path, path.encode())
        assert listing.list() == [listing.head(path) for path in sorted(paths)]
        assert [entry.path for entry in listing.list("a")] == ["a/b/d", "a/b/e", "a/c"]
        assert [entry.path for entry in listing.list("a", recursive=False)] == ["a/c"]
        assert [entry.path for entry in listing.list(recursive=False)] == ["a.b", "b"]
        assert listing.folders() == ["a", "z"]
        assert listing.folders("a") == ["b"]

    def test_an_absent_folder_lists_as_empty(self, listing: Store) -> None:
        for folder in ("", "no/folder"):
            assert (listing.list(folder), listing.folders(folder)) == ([], [])
        self.make_object(listing, "object", b"data")
        assert (listing.list("object"), listing.folders("object")) == ([], [])

    def test_odd_names_are_kept_as_they_are(self, store: Store) -> None:
        for name in ODD_NAMES:
            self.make_object(store, f"{name}/{name}", name.encode())
        for name in ODD_NAMES:
            assert store.get(f"{name}/{name}") == name.encode()
            assert store.head(f"{name}/{name}").path == f"{name}/{name}"

    def test_odd_names_are_listed_as_they_are(self, listing: Store) -> None:
        for name in ODD_NAMES:
            self.make_object(listing, f"{name}/{name}", name.encode())
        assert [entry.path for entry in listing.list()] == sorted(f"{name}/{name}" for name in ODD_NAMES)
        assert listing.folders() == sorted(ODD_NAMES)
        for name in ODD_NAMES:
            assert [entry.path for entry in listing.list(name)] == [f"{name}/{name}"]

    # The store itself

    def test_a_pickled_copy_reads_the_same_objects(self, store: Store) -> None:
        self.make_object(store, "folder/object", b"0123456789")
        store.get_ranges("folder/object", np.array([0]), np.array([1]))  # so that there are handles to leave behind
        copied = pickle.loads(pickle.dumps(store))  # noqa: S301 - made on this line
        assert copied.get("folder/object") == b"0123456789"
        assert bytes(copied.get_ranges("folder/object", np.array([3]), np.array([4]))[0]) == b"3456"
        assert (copied.location, copied.capabilities) == (store.location, store.capabilities)

    def test_a_closed_store_opens_its_handles_anew(self, store: Store) -> None:
        with store as entered:
            assert entered is store
            self.make_object(store, "object", b"data")
            first = store.get_ranges("object", np.array([0]), np.array([4]))
        store.close()
        assert bytes(first[0]) == b"data"
        assert bytes(store.get_ranges("object", np.array([1]), np.array([3]))[0]) == b"ata"

    def test_removing_orphans_leaves_objects_alone(self, store: Store) -> None:
        self.make_object(store, "folder/object", b"data")
        store.remove_orphans()
        store.remove_orphans("folder")
        store.remove_orphans("absent")
        assert store.get("folder/object") == b"data"

    def test_a_store_says_what_it_can_do_and_nothing_that_is_not_so(self, store: Store) -> None:
        assert isinstance(store.capabilities, Capabilities)
        assert all(isinstance(each, bool) for each in store.capabilities)
        assert store.capabilities.write or not store.capabilities.conditional
        assert store.capabilities.write or not store.capabilities.rename
        assert isinstance(store.location, str)
        assert store.location

    def test_the_store_of_a_dataset_reads_the_same_bytes(self, store: Store) -> None:
        content = {"shard_0": b"0123456789", "folder/shard_1": b"", "folder/shard_2": bytes(100_000)}
        for path, data in content.items():
            self.make_object(store, path, data)
        bound = store.of_dataset("0" * 64, lambda path: DatasetFile(len(content[path])))
        for path, data in content.items():
            assert bound.get(path) == data
            assert bound.head(path).size_bytes == len(data)
            spans = np.array([[0, len(data) // 2], [len(data) // 2, len(data) - len(data) // 2]], np.int64)
            assert b"".join(bound.get_ranges(path, *spans.T)) == data
            if bound.capabilities.view:
                assert bytes(bound.view(path)) == data
        bound.close()

    def test_a_hint_returns_at_once_whatever_it_names(self, store: Store) -> None:
        self.make_object(store, "object", b"data")
        for paths in ([], ["object"], ["absent", "object", "object"]):
            for budget_bytes in (0, 1, 1 << 30):
                store.prefetch(paths, budget_bytes)
        assert store.get("object") == b"data"
        store.close()
