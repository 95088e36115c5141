"""What an HttpServer answers from: a folder, or another server."""

import http.client
import os
import re
import threading
from collections.abc import Mapping
from email.utils import formatdate
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

__all__ = ["Folder", "Reply", "Request", "Upstream"]


class Request(NamedTuple):
    """One request as it came in."""

    method: str
    path: str  # decoded, begins with "/", without the query
    query: str  # as it was sent, without the "?"
    headers: Mapping[str, str]  # names in lower case
    at_s: float  # time.monotonic()
    target: str  # path and query as they were sent


class Reply(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes


class Folder:
    """Answers from the files below a folder."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def __call__(self, request: Request, body: bytes) -> Reply:
        if request.method not in ("GET", "HEAD"):
            return _short(405, request, {"Allow": "GET, HEAD"})
        path = self.root / request.path.lstrip("/")
        if ".." in request.path.split("/"):
            return _short(404, request)
        try:
            with path.open("rb") as opened:
                status = os.fstat(opened.fileno())
                return self._file(request, opened.read(), status)
        except (OSError, ValueError):
            return _short(404, request)

    def _file(self, request: Request, data: bytes, status: os.stat_result) -> Reply:
        tag = f'"{status.st_ino:x}-{len(data):x}-{status.st_mtime_ns:x}"'
        headers = {
            "ETag": tag,
            "Last-Modified": formatdate(status.st_mtime, usegmt=True),
            "Accept-Ranges": "bytes",
            "Content-Type": "application/octet-stream",
        }
        if request.headers.get("if-match", tag) not in (tag, "*"):
            return _short(412, request)
        if request.headers.get("if-none-match") == tag:
            return Reply(304, headers, b"")
        code, wanted = 200, re.fullmatch(r"bytes=(\d*)-(\d*)", request.headers.get("range", ""))
        if wanted and wanted[0] != "bytes=-":
            first, last = wanted[1], wanted[2]
            start = int(first) if first else max(0, len(data) - int(last))
            stop = min(len(data), int(last) + 1) if first and last else len(data)
            if start >= len(data) or stop <= start:
                return _short(416, request, {"Content-Range": f"bytes */{len(data)}"})
            headers["Content-Range"] = f"bytes {start}-{stop - 1}/{len(data)}"
            code, data = 206, data[start:stop]
        headers["Content-Length"] = str(len(data))
        return Reply(code, headers, b"" if request.method == "HEAD" else data)


HOP_BY_HOP = {"connection", "keep-alive", "transfer-encoding", "date", "server"}


class Upstream:
    """Passes everything on, the Host header as it came: signatures cover it."""

    def __init__(self, url: str) -> None:
        self.address = urlsplit(url).netloc
        self.local = threading.local()

    def __call__(self, request: Request, body: bytes) -> Reply:
        for last in (False, True):
            if (connection := getattr(self.local, "connection", None)) is None:
                connection = self.local.connection = http.client.HTTPConnection(self.address, timeout=120)
            try:
                connection.putrequest(request.method, request.target, skip_host=True, skip_accept_encoding=True)
                for name, value in request.headers.items():
                    if name not in HOP_BY_HOP - {"date"} | {"content-length", "expect"}:
                        connection.putheader(name, value)
                if body or "content-length" in request.headers:
                    connection.putheader("content-length", str(len(body)))
                connection.endheaders(body or None)
                reply = connection.getresponse()
                data = reply.read()
            except (OSError, http.client.HTTPException):
                self.local.connection = None  # an idle connection may have ended
                if last:
                    raise
            else:
                break
        headers = {name: value for name, value in reply.getheaders() if name.lower() not in HOP_BY_HOP}
        if request.method != "HEAD" and reply.status != 204:
            headers = {name: value for name, value in headers.items() if name.lower() != "content-length"}
            headers["Content-Length"] = str(len(data))
        return Reply(reply.status, headers, data)


def _short(status: int, request: Request, headers: Mapping[str, str] | None = None) -> Reply:
    text = b"" if request.method == "HEAD" else f"{status} for {request.target}\n".encode()
    return Reply(status, {"Content-Length": str(len(text))} | dict(headers or {}), text)
