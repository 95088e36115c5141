"""Hugging Face's hub through its own file system, with the few pages of it that reading takes."""

import json

import numpy as np
import pytest

from headrace.errors import AccessDeniedError, NotFoundError, UnsupportedOperationError
from headrace.store.fsspec_store import FsspecStore
from servers.faulty_http import HttpServer, Rule, Status
from servers.http_origins import Folder, Reply

pytest.importorskip("huggingface_hub")

REPOSITORY = "datasets/owner/name"
COMMIT = "f" * 40


class Hub:
    """Answers as the hub does for one data set whose files are those of a folder."""

    def __init__(self, folder):
        self.folder, self.files = folder, Folder(folder)

    def __call__(self, request, body):
        api, path = f"/api/{REPOSITORY}", request.path
        if path == api or path.startswith(f"{api}/revision/"):
            return self.told({"id": "owner/name", "sha": COMMIT, "siblings": []})
        if path.startswith(f"{api}/tree/"):
            folder = path.removeprefix(f"{api}/tree/").partition("/")[2]
            found = (self.folder / folder).glob("**/*" if "recursive=true" in request.query.lower() else "*")
            entries = [self.entry(each) for each in sorted(found)]
            return self.told(entries) if entries else Reply(404, {"X-Error-Code": "EntryNotFound", **NOTHING}, b"")
        if path.startswith(f"{api}/paths-info/"):
            asked = json.loads(body)["paths"]
            return self.told([self.entry(self.folder / each) for each in asked if (self.folder / each).exists()])
        inside = path.removeprefix(f"/{REPOSITORY}/resolve/").partition("/")[2]
        reply = self.files(request._replace(path=f"/{inside}"), body)
        return (
            reply if reply.status < 400 else reply._replace(headers=reply.headers | {"X-Error-Code": "EntryNotFound"})
        )

    def entry(self, path):
        name = path.relative_to(self.folder).as_posix()
        if path.is_dir():
            return {"type": "directory", "path": name, "oid": "0" * 40}
        return {
            "type": "file",
            "path": name,
            "size": path.stat().st_size,
            "oid": f"{hash(path.read_bytes()):040x}"[-40:],
        }

    @staticmethod
    def told(answer):
        text = json.dumps(answer).encode()
        return Reply(200, {"Content-Type": "application/json", "Content-Length": str(len(text))}, text)


NOTHING = {"Content-Length": "0"}


@pytest.fixture
def hub(tmp_path):
    with HttpServer(tmp_path) as server:
        server.answer = Hub(tmp_path)
        yield server


@pytest.fixture
def store(hub, tmp_path):
    (tmp_path / "train" / "deep").mkdir(parents=True)
    (tmp_path / "train" / "shard_0").write_bytes(bytes(range(100)))
    (tmp_path / "train" / "deep" / "shard_1").write_bytes(b"one")
    return FsspecStore(f"hf://{REPOSITORY}/train", endpoint=hub.url, token=False)


def test_a_data_set_of_the_hub_is_read(store):
    assert store.get("shard_0") == bytes(range(100))
    assert store.head("shard_0").size_bytes == 100
    ranges = store.get_ranges("shard_0", np.array([90, 5]), np.array([10, 3]))
    assert [bytes(view) for view in ranges] == [bytes(range(90, 100)), bytes(range(5, 8))]
    assert b"".join(store.pieces("deep/shard_1")) == b"one"
    assert [entry.path for entry in store.list()] == ["deep/shard_1", "shard_0"]
    assert [entry.path for entry in store.list(recursive=False)] == ["shard_0"]
    assert store.folders() == ["deep"]
    assert store.location == f"hf://{REPOSITORY}/train"


def test_what_is_replaced_there_has_another_version(store, tmp_path):
    before = store.head("shard_0")
    (tmp_path / "train" / "shard_0").write_bytes(bytes(100))
    assert store.head("shard_0").version != before.version
    assert store.get("shard_0") == bytes(100)


def test_what_the_hub_says_is_told_by_its_cause(store, hub):
    with pytest.raises(NotFoundError, match=r"hf://.*absent"):
        store.get("absent")
    with pytest.raises(UnsupportedOperationError, match="hf://"):
        store.put("object", b"")
    for status in (401, 403):
        hub.rules[:] = [Rule(Status(status), path="*/resolve/*")]
        with pytest.raises(AccessDeniedError, match="shard_0"):
            store.get("shard_0")
