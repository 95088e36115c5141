"""An HTTP server that serves a folder, or stands before another server, and fails as its rules say.

    with HttpServer(folder, [Rule(Status(503), method="GET", times=2)]) as server:
        ...  # read server.url + "/name"
    assert server.count("GET", "/name") == 3

| action | what the client meets |
| --- | --- |
| `Status(code, headers, body)` | this answer instead of the right one |
| `Delay(seconds)` | nothing for that long, then what would have come |
| `Stall(after_bytes, seconds)` | the body stops there for that long, then goes on |
| `Cut(after_bytes)` | the connection ends there, though Content-Length promised more |
| `Reset(after_bytes)` | the same with a TCP reset; None: before any answer |
| `Length(delta)` | a Content-Length that is wrong by so much |
| `Flip(offset)` | a body with the bits of one byte inverted (negative counts from its end) |
| `FlipSent(offset)` | nothing: what it sent arrived with the bits of one byte inverted |
| `Whole()` | the whole object with 200 where a range was asked for |
| `Run(function)` | what would have come, after function(request) was called |

`Status` and `Reset` come before the request reaches what is served; with performed=True it is carried out first, and
only its answer is lost. Rules are looked at in their order, and all that match act.
"""

import socket
import struct
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Self
from urllib.parse import unquote

from servers.http_origins import Folder, Reply, Request, Upstream

__all__ = [
    "Cut",
    "Delay",
    "Flip",
    "FlipSent",
    "HttpServer",
    "Length",
    "Request",
    "Reset",
    "Rule",
    "Run",
    "Stall",
    "Status",
    "Whole",
]


@dataclass(frozen=True)
class Status:
    code: int
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    performed: bool = False


@dataclass(frozen=True)
class Delay:
    seconds: float


@dataclass(frozen=True)
class Stall:
    after_bytes: int = 0
    seconds: float = 3600.0


@dataclass(frozen=True)
class Cut:
    after_bytes: int


@dataclass(frozen=True)
class Reset:
    after_bytes: int | None = None
    performed: bool = False


@dataclass(frozen=True)
class Length:
    delta: int


@dataclass(frozen=True)
class Flip:
    offset: int = 0


@dataclass(frozen=True)
class FlipSent:
    offset: int = 0


@dataclass(frozen=True)
class Whole:
    pass


@dataclass(frozen=True)
class Run:
    function: Callable[[Request], object]


Action = Status | Delay | Stall | Cut | Reset | Length | Flip | FlipSent | Whole | Run


@dataclass(frozen=True)
class Rule:
    """What happens to requests that match: from the nth on (the first is 1), times times (None: for ever).

    path and query are globs, in which `*` matches "/" too; method None means any; what is sent has at least sent_bytes.
    """

    action: Action
    method: str | None = None
    path: str = "*"
    query: str = "*"
    nth: int = 1
    times: int | None = None
    sent_bytes: int = 0

    def matches(self, request: Request) -> bool:
        return (
            self.method in (None, request.method)
            and fnmatchcase(request.path, self.path)
            and fnmatchcase(request.query, self.query)
            and int(request.headers.get("content-length", 0)) >= self.sent_bytes
        )


class HttpServer:
    """Serves as soon as it is made, on a free port of 127.0.0.1, in threads of this process; close() ends it.

    origin is a folder (GET and HEAD of the files in it, with ranges, ETag and If-Match), or the URL of another server,
    to which everything is passed on. `requests` is the log; rules may be appended to `rules` at any time.
    """

    def __init__(self, origin: Path | str, rules: Iterable[Rule] = ()) -> None:
        self.rules = list(rules)
        self.requests: list[Request] = []
        self.most_at_once = 0
        self.answer = Folder(origin) if isinstance(origin, Path) else Upstream(origin)
        self.closing = threading.Event()
        self._seen: dict[int, tuple[Rule, int]] = {}  # by id; the rule is kept, so that no other gets its id
        self._lock = threading.Lock()
        self._running = 0
        self._connections: set[socket.socket] = set()
        self._server = _Server(("127.0.0.1", 0), _Handler)
        self._server.owner = self
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()

    def count(self, method: str | None = None, path: str = "*") -> int:
        """How many requests came that match; as in a Rule, None means any method."""
        return sum(method in (None, each.method) and fnmatchcase(each.path, path) for each in list(self.requests))

    def close(self) -> None:
        """End, also what stalls. Twice is harmless."""
        self.closing.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
        with self._lock:
            for connection in self._connections:
                _shut(connection)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def begin(self, request: Request) -> list[Action]:
        """Log the request; the actions of all rules that are due."""
        with self._lock:
            self.requests.append(request)
            self._running += 1
            self.most_at_once = max(self.most_at_once, self._running)
            return [rule.action for rule in self.rules if rule.matches(request) and self._is_due(rule)]

    def end(self) -> None:
        with self._lock:
            self._running -= 1

    def connected(self, connection: socket.socket, *, ended: bool = False) -> None:
        with self._lock:
            (self._connections.discard if ended else self._connections.add)(connection)

    def _is_due(self, rule: Rule) -> bool:
        turn = self._seen.get(id(rule), (rule, 0))[1] + 1
        self._seen[id(rule)] = rule, turn
        return turn >= rule.nth and (rule.times is None or turn < rule.nth + rule.times)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128
    owner: HttpServer

    def handle_error(self, request, client_address) -> None:
        """A client that hangs up is part of what is tested."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _Server

    def setup(self) -> None:
        super().setup()
        self.server.owner.connected(self.connection)

    def finish(self) -> None:
        self.server.owner.connected(self.connection, ended=True)
        super().finish()

    def log_message(self, format: str, *args: object) -> None:
        """Silent: `requests` is the log."""

    def _serve(self) -> None:
        owner = self.server.owner
        path, _, query = self.path.partition("?")
        headers = {name.lower(): value for name, value in self.headers.items()}
        request = Request(self.command, unquote(path), query, headers, time.monotonic(), self.path)
        body = self._body(headers)
        actions = owner.begin(request)
        try:
            self._answer(request, body, actions)
        finally:
            owner.end()

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _serve

    def _body(self, headers: Mapping[str, str]) -> bytes:
        if headers.get("transfer-encoding", "").lower() != "chunked":
            return self.rfile.read(int(headers.get("content-length", 0)))
        parts = []
        while size := int(self.rfile.readline().split(b";")[0], 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)

    def _answer(self, request: Request, body: bytes, actions: list[Action]) -> None:
        owner = self.server.owner
        for action in actions:
            if isinstance(action, Delay):
                owner.closing.wait(action.seconds)
            elif isinstance(action, Run):
                action.function(request)
            elif isinstance(action, FlipSent) and body:
                damaged = bytearray(body)
                damaged[action.offset % len(body)] ^= 0xFF
                body = bytes(damaged)
        instead = next((each for each in actions if isinstance(each, Status)), None)
        reset = next((each for each in actions if isinstance(each, Reset) and each.after_bytes is None), None)
        if reset is not None:
            if reset.performed:
                owner.answer(request, body)
            return self._reset()
        if instead is not None:
            if instead.performed:
                owner.answer(request, body)
            text = b"" if request.method == "HEAD" else instead.body
            reply = Reply(instead.code, {"Content-Length": str(len(text))} | dict(instead.headers), text)
        else:
            if any(isinstance(each, Whole) for each in actions):
                request = request._replace(
                    headers={name: value for name, value in request.headers.items() if name != "range"}
                )
            reply = owner.answer(request, body)
        self._send(reply, actions)

    def _send(self, reply: Reply, actions: list[Action]) -> None:
        body = bytearray(reply.body)
        headers = dict(reply.headers)
        for action in actions:
            if isinstance(action, Flip) and body:
                body[action.offset % len(body)] ^= 0xFF
            elif isinstance(action, Length):
                length = max(0, len(body) + action.delta)
                headers["Content-Length"] = str(length)
                self.close_connection = True
        self.send_response_only(reply.status)
        self.send_header("Date", self.date_time_string())
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        sent = 0
        for action in actions:
            if isinstance(action, Stall | Cut | Reset):
                stop = min(len(body), action.after_bytes or 0)
                self.wfile.write(body[sent:stop])
                self.wfile.flush()
                sent = max(sent, stop)
                if isinstance(action, Stall):
                    self.server.owner.closing.wait(action.seconds)
                elif isinstance(action, Reset):
                    return self._reset()
                else:
                    self.close_connection = True
                    return _shut(self.connection)
        self.wfile.write(body[sent:])

    def _reset(self) -> None:
        self.close_connection = True
        # Closing with a linger time of 0 sends RST. The server's own shutdown() would come first, so it is done here.
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.rfile.close()
        self.connection.close()


def _shut(connection: socket.socket) -> None:
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
