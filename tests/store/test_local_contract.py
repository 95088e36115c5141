import pytest

from headrace.store import LocalStore
from headrace.testing import StoreContract


class TestLocalStore(StoreContract):
    def make_store(self, tmp_path):
        return LocalStore(tmp_path / "data")


class TestLocalStoreWithTwoOpenFiles(StoreContract):
    def make_store(self, tmp_path):
        return LocalStore(tmp_path / "data", fsync=False, max_open_files=2)


class TestLocalStoreWithoutHardLinks(StoreContract):
    @pytest.fixture(autouse=True)
    def _no_links(self, monkeypatch):
        def link(source, target):
            raise PermissionError(1, "Operation not permitted")

        monkeypatch.setattr("os.link", link)

    def make_store(self, tmp_path):
        return LocalStore(tmp_path / "data", fsync=False)
