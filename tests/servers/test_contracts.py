"""Every store that open_store makes keeps the store contract, against a real server."""

import pytest

from headrace.store.open import open_store
from headrace.store.retrying import RetryPolicy
from headrace.testing import StoreContract

QUICK = RetryPolicy(tries=3, first_wait_s=0.05, total_s=20)


class ServedContract(StoreContract):
    large_bytes = 40 << 20  # goes up in several requests


@pytest.mark.servers
class TestS3(ServedContract):
    @pytest.fixture(autouse=True)
    def _server(self, s3_url, s3_options):
        self.url, self.options = s3_url, s3_options

    def make_store(self, tmp_path):
        return open_store(self.url, retry=QUICK, **self.options)


@pytest.mark.servers
class TestAzure(ServedContract):
    large_bytes = 80 << 20
    tells_md5 = True

    @pytest.fixture(autouse=True)
    def _server(self, azure_url, azure_options):
        self.url, self.options = azure_url, azure_options

    def make_store(self, tmp_path):
        return open_store(self.url, retry=QUICK, **self.options)


@pytest.mark.servers
class TestGoogle(ServedContract):
    tells_md5 = True

    @pytest.fixture(autouse=True)
    def _server(self, gcs_url, gcs_options):
        self.url, self.options = gcs_url, gcs_options

    def make_store(self, tmp_path):
        return open_store(self.url, retry=QUICK, **self.options)


class TestHttp(StoreContract):
    """A web server can only be read: what is written and listed is refused, and objects come behind its back."""

    @pytest.fixture(autouse=True)
    def _server(self, http_url, http_folder):
        self.url, self.folder = http_url, http_folder

    def make_store(self, tmp_path):
        return open_store(self.url, retry=QUICK)

    def make_object(self, store, path, data):
        target = self.folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        (self.folder / "written aside").write_bytes(data)
        (self.folder / "written aside").replace(target)
