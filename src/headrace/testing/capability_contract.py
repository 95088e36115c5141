# ruff: noqa: D102 - the tests' names are sentences
"""The part of the store contract that speaks of optional capabilities: views, writers, renames and folders."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from headrace.errors import NotFoundError, StoreError, UnsupportedOperationError
from headrace.store import Store

__all__ = ["CapabilityContract"]


class CapabilityContract:
    """Tests of what a store declares, and that it refuses the rest by name; StoreContract has these and all others."""

    def make_store(self, tmp_path: Path) -> Store:
        """A new, empty store; tmp_path is a fresh directory."""
        raise NotImplementedError("define make_store(self, tmp_path) in the subclass")

    def make_object(self, store: Store, path: str, data: bytes) -> None:
        """Make an object of the store; a store that cannot write needs another way here, behind its back."""
        store.put(path, data)

    @pytest.fixture
    def store(self, tmp_path: Path) -> Store:
        return self.make_store(tmp_path)

    @pytest.fixture
    def writing(self, store: Store) -> Store:
        if not store.capabilities.write:
            pytest.skip("the store declares no writes")
        return store

    @pytest.fixture
    def creating(self, store: Store) -> Store:
        if not store.capabilities.conditional:
            pytest.skip("the store declares no conditional puts")
        return store

    @pytest.fixture
    def listing(self, store: Store) -> Store:
        if not store.capabilities.listing:
            pytest.skip("the store declares no listings")
        return store

    @pytest.fixture
    def viewing(self, store: Store) -> Store:
        if not store.capabilities.view:
            pytest.skip("the store declares no views")
        return store

    @pytest.fixture
    def renaming(self, store: Store) -> Store:
        if not store.capabilities.rename:
            pytest.skip("the store declares no renames")
        return store

    def test_undeclared_capabilities_are_refused_by_name(self, store: Store) -> None:
        self.make_object(store, "folder/object", b"data")
        can = store.capabilities
        calls: list[tuple[bool, str, Callable[[], object]]] = [
            (can.view, "map", lambda: store.view("folder/object")),
            (can.rename, "piece by piece", lambda: store.open_writer("other")),
            (can.rename, "rename", lambda: store.rename("folder/object", "other")),
            (can.rename, "create folders", lambda: store.make_folder("other")),
            (can.rename, "remove folders", lambda: store.remove_folder("folder")),
            (can.write, "write", lambda: store.put("other", b"")),
            (can.write, "write", lambda: store.upload("other", __file__)),
            (can.write, "delete", lambda: store.delete("folder/object")),
            (can.conditional, "create|write", lambda: store.put_if_absent("other", b"")),
            (can.listing, "list", lambda: store.list()),
            (can.listing, "list", lambda: store.folders()),
        ]
        for declared, operation, call in calls:
            if declared:
                continue
            with pytest.raises(UnsupportedOperationError, match=operation) as caught:
                call()
            assert store.location in str(caught.value)
        assert store.get("folder/object") == b"data"
        if can.listing:
            assert [entry.path for entry in store.list()] == ["folder/object"]

    # Views

    @pytest.mark.parametrize("data", [b"", b"data", bytes(100_000)])
    def test_a_view_is_the_object_and_cannot_be_written(self, viewing: Store, data: bytes) -> None:
        viewing.put("object", data)
        view = viewing.view("object")
        assert bytes(view) == data
        assert view.readonly
        assert viewing.max_views >= 1

    def test_a_view_outlives_the_object_and_the_store(self, viewing: Store) -> None:
        viewing.put("object", b"old data")
        replaced = viewing.view("object")
        viewing.put("object", b"new")
        deleted = viewing.view("object")
        viewing.delete("object")
        viewing.close()
        assert (bytes(replaced), bytes(deleted)) == (b"old data", b"new")

    # Writers, renames and folders

    def test_a_writer_appends_whole_buffers_front_to_back(self, renaming: Store) -> None:
        renaming.put("folder/object", b"what was there before, and longer")
        writer = renaming.open_writer("folder/object")
        for data in (b"abc", bytearray(b""), np.arange(3, dtype="<u2").data, b"x" * 100_000):
            writer.write(data)
        writer.sync()
        assert renaming.get("folder/object") == b"abc" + b"\0\0\1\0\2\0" + b"x" * 100_000
        writer.write(b"end")
        writer.close()
        writer.close()
        assert renaming.get("folder/object")[-4:] == b"xend"
        with pytest.raises(ValueError, match="closed"):
            writer.write(b"more")

    def test_a_writer_needs_its_folder(self, renaming: Store) -> None:
        with pytest.raises(NotFoundError, match="absent/object"):
            renaming.open_writer("absent/object")
        renaming.make_folder("deep/folder")
        renaming.open_writer("deep/folder/object").close()
        assert renaming.get("deep/folder/object") == b""

    def test_an_appending_writer_goes_on_at_the_end_of_what_exists(self, renaming: Store) -> None:
        renaming.put("folder/object", b"first")
        before = renaming.head("folder/object")
        for data in (b"second", b"", b"third"):
            writer = renaming.open_writer("folder/object", append=True)
            writer.write(data)
            writer.sync()
            writer.close()
        assert renaming.get("folder/object") == b"firstsecondthird"
        assert bytes(renaming.get_ranges("folder/object", np.array([4]), np.array([8]))[0]) == b"tsecondt"
        assert renaming.head("folder/object").version != before.version
        for absent in ("folder/absent", "absent/object"):
            with pytest.raises(NotFoundError, match=absent):
                renaming.open_writer(absent, append=True)
        assert [entry.path for entry in renaming.list()] == ["folder/object"]

    def test_a_new_writer_leaves_views_of_the_older_object_whole(self, renaming: Store, viewing: Store) -> None:
        viewing.put("object", b"old data")
        view = viewing.view("object")
        renaming.open_writer("object").close()
        assert bytes(view) == b"old data"

    def test_a_rename_moves_an_object_and_replaces_the_target(self, renaming: Store) -> None:
        renaming.put("a/old", b"new data")
        renaming.put("b/new", b"stale")
        renaming.get_ranges("b/new", np.array([0]), np.array([5]))
        renaming.rename("a/old", "b/new")
        assert [entry.path for entry in renaming.list()] == ["b/new"]
        assert bytes(renaming.get_ranges("b/new", np.array([0]), np.array([8]))[0]) == b"new data"

    def test_a_rename_moves_a_folder_as_one(self, renaming: Store) -> None:
        renaming.put("a/b/one", b"1")
        renaming.put("a/b/c/two", b"2")
        renaming.get_ranges("a/b/one", np.array([0]), np.array([1]))
        renaming.rename("a/b", "moved")
        assert [entry.path for entry in renaming.list()] == ["moved/c/two", "moved/one"]
        assert renaming.folders() == ["a", "moved"]
        with pytest.raises(NotFoundError):
            renaming.get_ranges("a/b/one", np.array([0]), np.array([1]))

    def test_a_rename_needs_its_source_and_the_targets_folder(self, renaming: Store) -> None:
        renaming.put("a/object", b"data")
        with pytest.raises(NotFoundError, match="absent"):
            renaming.rename("absent", "a/other")
        with pytest.raises(NotFoundError, match="nowhere"):
            renaming.rename("a/object", "nowhere/object")
        assert renaming.get("a/object") == b"data"

    def test_a_rename_never_merges_folders_nor_mixes_kinds(self, renaming: Store) -> None:
        renaming.put("a/one", b"1")
        renaming.put("b/two", b"2")
        for source, target in [("a", "b"), ("a", "b/two"), ("a/one", "b"), ("a", "a/inside")]:
            with pytest.raises(StoreError):
                renaming.rename(source, target)
        assert [entry.path for entry in renaming.list()] == ["a/one", "b/two"]

    def test_a_writer_whose_folder_was_renamed_away_cannot_commit(self, renaming: Store) -> None:
        renaming.make_folder("attempts/one")
        writer = renaming.open_writer("attempts/one/object")
        writer.write(b"data")
        renaming.rename("attempts/one", "attempts/lost")
        writer.write(b"more")
        writer.sync()
        writer.close()
        with pytest.raises(NotFoundError):
            renaming.rename("attempts/one/object", "object")
        with pytest.raises(NotFoundError):
            renaming.open_writer("attempts/one/object")

    def test_folders_are_made_with_their_parents_and_removed_with_their_content(self, renaming: Store) -> None:
        renaming.make_folder("a/b/c")
        renaming.make_folder("a/b/c")
        renaming.make_folder("")
        assert (renaming.folders("a"), renaming.folders("a/b")) == (["b"], ["c"])
        renaming.put("a/b/c/object", b"data")
        renaming.put("a/bc", b"stays")
        renaming.remove_folder("a/b")
        renaming.remove_folder("a/b")
        assert renaming.folders("a") == []
        assert [entry.path for entry in renaming.list()] == ["a/bc"]
