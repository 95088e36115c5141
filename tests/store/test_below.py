import contextlib
import pickle

import numpy as np
import pytest

from headrace.errors import NotFoundError, PathOutsideRootError, StoreError, UnsupportedOperationError
from headrace.store import Capabilities, FolderStore, LocalStore, MemoryStore
from headrace.testing import Call, FaultStore, Refuse, Rule, StoreContract


class TestFolderOfMemory(StoreContract):
    def make_store(self, tmp_path):
        return FolderStore(MemoryStore(), "deep/folder")


class TestFolderOfALocalDirectory(StoreContract):
    def make_store(self, tmp_path):
        return FolderStore(LocalStore(tmp_path, fsync=False), "data")


class TestFolderOfADirectoryWithoutMaps(StoreContract):
    def make_store(self, tmp_path):
        return FolderStore(LocalStore(tmp_path, fsync=False, mapped=False), "data")


class TestFolderOfAStoreWithoutCapabilities(StoreContract):
    def make_store(self, tmp_path):
        store = LocalStore(tmp_path, fsync=False)
        store.capabilities = Capabilities(view=False, rename=False, durable=False)
        return FolderStore(store, "data")


class TestFolderOfAFolder(StoreContract):
    def make_store(self, tmp_path):
        return FolderStore(FolderStore(FaultStore(MemoryStore()), "outer"), "inner")


class TestFolderWithoutAName(StoreContract):
    def make_store(self, tmp_path):
        return FolderStore(MemoryStore(), "")


@pytest.fixture(params=["memory", "local"])
def whole(request, tmp_path):
    return MemoryStore() if request.param == "memory" else LocalStore(tmp_path / "data", fsync=False)


def test_objects_of_the_folder_are_objects_of_the_store_below_the_folder(whole):
    part = FolderStore(whole, "a/b")
    part.put("object", b"data")
    part.put_if_absent("c/other", b"more")
    assert [entry.path for entry in whole.list()] == ["a/b/c/other", "a/b/object"]
    assert [entry.path for entry in part.list()] == ["c/other", "object"]
    assert part.folders() == ["c"]
    assert part.head("object") == whole.head("a/b/object")._replace(path="object")
    assert [bytes(view) for view in part.get_ranges("object", np.array([1]), np.array([2]))] == [b"at"]


def test_what_lies_beside_the_folder_is_neither_seen_nor_touched(whole):
    for path in ("a", "part/object", "part-2/object", "partial", "z/part/object"):
        whole.put(path, path.encode())
    part = FolderStore(whole, "part")
    assert [entry.path for entry in part.list()] == ["object"]
    assert part.folders() == []
    part.delete("object")
    part.make_folder("x")
    part.remove_folder("x")
    assert [entry.path for entry in whole.list()] == ["a", "part-2/object", "partial", "z/part/object"]


def test_renames_writers_and_folders_stay_inside(whole):
    part = FolderStore(whole, "part")
    with pytest.raises(NotFoundError):
        part.open_writer("object")  # the folder is not there yet, as with a directory that is not
    part.make_folder("")
    with contextlib.closing(part.open_writer("object")) as writer:
        writer.write(b"data")
        writer.sync()
    part.make_folder("below")
    part.rename("object", "below/object")
    assert [entry.path for entry in whole.list()] == ["part/below/object"]
    with pytest.raises(PathOutsideRootError):
        part.remove_folder("")
    for path in ("../object", "/object"):
        with pytest.raises(PathOutsideRootError) as caught:
            part.rename("below/object", path)
        assert repr(path) in str(caught.value)


@pytest.mark.parametrize("folder", ["../x", "/x", "x/", "x//y", ".", "x/../y", "x\\y"])
def test_a_folder_that_could_leave_the_store_is_refused(folder):
    with pytest.raises(PathOutsideRootError):
        FolderStore(MemoryStore(), folder)


def test_the_location_is_where_the_objects_are(tmp_path):
    local = FolderStore(LocalStore(tmp_path), "a/b")
    local.put("object", b"data")
    assert local.location == f"{tmp_path}/a/b"
    assert (tmp_path / "a/b/object").read_bytes() == b"data"
    assert FolderStore(MemoryStore(), "a").location == "memory://a"
    assert FolderStore(MemoryStore(), "").location == "memory://"
    assert FolderStore(FolderStore(LocalStore(tmp_path), "a"), "b").location == f"{tmp_path}/a/b"
    assert repr(FolderStore(LocalStore(tmp_path), "a")) == f"FolderStore(LocalStore({str(tmp_path)!r}), 'a')"


def test_a_folder_of_a_directory_is_mapped_as_the_directory_is(tmp_path):
    whole = LocalStore(tmp_path, max_open_files=7)
    part = FolderStore(whole, "a")
    part.put("object", b"before")
    view = part.view("object")
    part.put("object", b"after")
    assert bytes(view) == b"before"
    assert (part.max_views, part.capabilities) == (7, whole.capabilities)
    unmapped = FolderStore(LocalStore(tmp_path, mapped=False), "a")
    assert unmapped.capabilities == Capabilities(view=False, rename=True, durable=True)
    with pytest.raises(UnsupportedOperationError, match="map"):
        unmapped.view("object")


def test_requests_reach_the_store_and_so_do_its_faults():
    faults = FaultStore(MemoryStore(), [Rule(Refuse(StoreError("disk full")), "put", "a/b", nth=2)])
    part = FolderStore(faults, "a")
    part.put("b", b"12")
    with pytest.raises(StoreError, match="disk full"):
        part.put("b", b"345")
    assert part.get("b") == b"12"
    assert faults.calls == [Call("put", "a/b", 2), Call("put", "a/b", 3), Call("get", "a/b", 2)]


def test_closing_and_pickling_pass_on(tmp_path):
    class Closing(MemoryStore):
        closed = 0

        def close(self):
            self.closed += 1

    whole = Closing()
    with FolderStore(whole, "a"):
        pass
    assert whole.closed == 1
    part = FolderStore(LocalStore(tmp_path), "a")
    part.put("object", b"data")
    copied = pickle.loads(pickle.dumps(part))
    assert (copied.folder, copied.location, copied.get("object")) == ("a", part.location, b"data")
