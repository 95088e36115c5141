import pickle

import pytest

from headrace.errors import StoreError
from headrace.store import Capabilities, MemoryStore, Store
from headrace.testing import StoreContract


class TestMemoryStore(StoreContract):
    def make_store(self, tmp_path):
        return MemoryStore()


class TestFlatMemoryStore(StoreContract):
    def make_store(self, tmp_path):
        return MemoryStore(flat=True)


class PlainStore(Store):
    """No optional capability, as an object store without extras: shows that the contract asks for nothing more."""

    def __init__(self):
        self.inner = MemoryStore()
        self.location = self.inner.location
        self.capabilities = Capabilities(view=False, rename=False, durable=False)

    def head(self, path):
        return self.inner.head(path)

    def get(self, path):
        return self.inner.get(path)

    def get_ranges(self, path, starts, lengths):
        return self.inner.get_ranges(path, starts, lengths)

    def put(self, path, data):
        self.inner.put(path, data)

    def put_if_absent(self, path, data):
        self.inner.put_if_absent(path, data)

    def delete(self, path):
        self.inner.delete(path)

    def folders(self, folder=""):
        return self.inner.folders(folder)

    def list(self, folder="", *, recursive=True):
        return self.inner.list(folder, recursive=recursive)


class TestPlainStore(StoreContract):
    def make_store(self, tmp_path):
        return PlainStore()


def test_a_pickled_memory_store_carries_its_content_and_goes_its_own_way():
    store = MemoryStore()
    store.put("a/object", b"data")
    copied = pickle.loads(pickle.dumps(store))
    copied.put("a/object", b"other")
    copied.make_folder("b")
    assert store.get("a/object") == b"data"
    assert store.folders() == ["a"]


def test_an_object_is_not_also_a_folder():
    store = MemoryStore()
    store.put("a/object", b"data")
    with pytest.raises(StoreError, match="is an object"):
        store.put("a/object/below", b"data")
    with pytest.raises(StoreError, match="is a folder"):
        store.put("a", b"data")
    with pytest.raises(StoreError, match="is an object"):
        store.make_folder("a/object")


def test_memory_is_not_durable():
    assert not MemoryStore().capabilities.durable
