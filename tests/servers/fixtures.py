"""The fixtures that tests/servers/__init__.py tells of, loaded by tests/conftest.py for all tests."""

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from servers import object_stores
from servers.faulty_http import HttpServer

_numbers = itertools.count(1)


def _running(start: Callable[[Path], object_stores.ObjectStore], folder: Path) -> Iterator[object_stores.ObjectStore]:
    try:
        server = start(folder)
    except object_stores.MissingServerError as error:
        pytest.skip(str(error))
    yield server
    server.process.close()


@pytest.fixture(scope="session")
def seaweedfs(tmp_path_factory) -> Iterator[object_stores.ObjectStore]:
    yield from _running(object_stores.seaweedfs, tmp_path_factory.mktemp("seaweedfs"))


@pytest.fixture(scope="session")
def azurite(tmp_path_factory) -> Iterator[object_stores.ObjectStore]:
    yield from _running(object_stores.azurite, tmp_path_factory.mktemp("azurite"))


@pytest.fixture(scope="session")
def fake_gcs(tmp_path_factory) -> Iterator[object_stores.ObjectStore]:
    yield from _running(object_stores.fake_gcs, tmp_path_factory.mktemp("fake_gcs"))


def _fresh(server: object_stores.ObjectStore) -> str:
    return f"{server.url}/test-{next(_numbers):05}/data"


@pytest.fixture
def s3_url(seaweedfs) -> str:
    """A place in a real S3 server where nothing is yet."""
    return _fresh(seaweedfs)


@pytest.fixture
def s3_options(seaweedfs) -> dict[str, Any]:
    """What open_store needs for s3_url."""
    return dict(seaweedfs.options)


@pytest.fixture
def s3_proxy(seaweedfs) -> Iterator[HttpServer]:
    """A server before S3 that can make requests fail: give its url as the endpoint."""
    with HttpServer(seaweedfs.endpoint) as proxy:
        yield proxy


@pytest.fixture
def azure_url(azurite) -> str:
    """A place in Azurite where nothing is yet."""
    return _fresh(azurite)


@pytest.fixture
def azure_options(azurite) -> dict[str, Any]:
    """What open_store needs for azure_url."""
    return dict(azurite.options)


@pytest.fixture
def gcs_url(fake_gcs) -> str:
    """A place in fake-gcs-server where nothing is yet."""
    return _fresh(fake_gcs)


@pytest.fixture
def gcs_options(fake_gcs) -> dict[str, Any]:
    """What open_store needs for gcs_url."""
    return dict(fake_gcs.options)


@pytest.fixture
def http_folder(tmp_path) -> Path:
    """The folder that http_url shows."""
    folder = tmp_path / "served over http"
    folder.mkdir()
    return folder


@pytest.fixture
def http_server(http_folder) -> Iterator[HttpServer]:
    """Serves http_folder; its rules make requests fail."""
    with HttpServer(http_folder) as server:
        yield server


@pytest.fixture
def http_url(http_server) -> str:
    """The URL of http_folder."""
    return http_server.url
