"""Google's store, as fake-gcs-server plays it, through gcsfs."""

import pytest

from headrace.store.fsspec_store import FsspecStore
from headrace.testing import StoreContract

pytestmark = pytest.mark.servers


class TestGoogle(StoreContract):
    @pytest.fixture(autouse=True)
    def _place(self, gcs_url, gcs_options):
        self.place = gcs_url, gcs_options

    def make_store(self, tmp_path):
        return FsspecStore(self.place[0], **self.place[1])
