"""The servers that other tests rely on do what they are said to do."""

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from http.client import IncompleteRead
from pathlib import Path

import pytest

from servers.faulty_http import Cut, Delay, Flip, HttpServer, Length, Reset, Rule, Run, Stall, Status, Whole
from servers.processes import ServerError, ServerProcess, Start, free_ports, started

TESTS = Path(__file__).resolve().parents[1]


def ask(url, method="GET", data=None, timeout=10, **headers):
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    with urllib.request.urlopen(urllib.request.Request(url, data, names, method=method), timeout=timeout) as reply:
        return reply.status, dict(reply.headers), reply.read()


def status_of(url, **more):
    with pytest.raises(urllib.error.HTTPError) as caught:
        ask(url, **more)
    with caught.value as error:
        return error.code, error.headers, error.read()


@pytest.fixture
def page(http_folder, http_url):
    (http_folder / "a b").write_bytes(bytes(range(100)))
    return f"{http_url}/a%20b"


@pytest.mark.parametrize(
    ("wanted", "status", "body"),
    [
        ("bytes=0-9", 206, bytes(range(10))),
        ("bytes=90-200", 206, bytes(range(90, 100))),
        ("bytes=95-", 206, bytes(range(95, 100))),
        ("bytes=-3", 206, bytes(range(97, 100))),
        ("nonsense", 200, bytes(range(100))),
    ],
)
def test_ranges_are_answered_as_the_standard_says(page, wanted, status, body):
    got, headers, data = ask(page, range=wanted)
    assert (got, data, headers["Content-Length"]) == (status, body, str(len(body)))


def test_a_range_past_the_end_an_absent_page_and_a_write_are_refused(page, http_url):
    assert status_of(page, range="bytes=100-")[1]["Content-Range"] == "bytes */100"
    assert status_of(f"{http_url}/absent")[0] == 404
    assert status_of(f"{http_url}/")[0] == 404
    assert status_of(f"{http_url}/../secret")[0] == 404
    assert status_of(page, method="PUT", data=b"x")[0] == 405


def test_the_etag_of_a_page_that_was_replaced_no_longer_matches(page, http_folder):
    tag = ask(page, method="HEAD")[1]["ETag"]
    assert ask(page, if_match=tag)[0] == 200
    assert status_of(page, if_none_match=tag)[0] == 304
    (http_folder / "new").write_bytes(bytes(100))
    os.replace(http_folder / "new", http_folder / "a b")
    assert status_of(page, if_match=tag)[0] == 412


def test_statuses_come_as_often_as_the_rule_says_and_are_logged(page, http_server):
    http_server.rules.append(Rule(Status(429, {"Retry-After": "7"}, b"later"), method="GET", nth=2, times=1))
    assert ask(page)[0] == 200
    status, headers, body = status_of(page)
    assert (status, headers["Retry-After"], body) == (429, "7", b"later")
    assert ask(page)[0] == 200
    assert (http_server.count("GET", "/a b"), http_server.count("HEAD")) == (3, 0)


def test_bodies_are_cut_reset_damaged_and_of_wrong_length(page, http_server):
    for action in (Cut(10), Length(5)):
        http_server.rules[:] = [Rule(action)]
        with pytest.raises(IncompleteRead):
            ask(page)
    http_server.rules[:] = [Rule(Length(-50))]
    assert len(ask(page)[2]) == 50
    for after in (None, 10):
        http_server.rules[:] = [Rule(Reset(after))]
        with pytest.raises(OSError, match=r"reset"):
            ask(page)
    http_server.rules[:] = [Rule(Flip(-1))]
    assert ask(page)[2] == bytes(range(99)) + b"\x9c"
    http_server.rules[:] = [Rule(Whole())]
    assert ask(page, range="bytes=0-1")[::2] == (200, bytes(range(100)))


def test_a_stall_lasts_and_the_end_of_the_server_ends_it(page, http_server):
    http_server.rules[:] = [Rule(Stall(50))]
    with pytest.raises(TimeoutError):
        ask(page, timeout=0.2)
    http_server.rules[:] = [Rule(Delay(0.2)), Rule(Stall(50, 0.2))]
    begin = time.monotonic()
    assert ask(page)[2] == bytes(range(100))
    assert 0.4 <= time.monotonic() - begin < 10
    http_server.rules[:] = [Rule(Delay(600))]
    with socket.create_connection(http_server._server.server_address) as waiting:
        waiting.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        while http_server.count(path="/") == 0:
            time.sleep(0.01)
        http_server.close()
        waiting.settimeout(10)
        assert waiting.recv(1) in (b"", b"H")


def test_a_proxy_passes_requests_on_and_can_lose_the_answer(page, http_server, http_folder):
    seen = []
    with HttpServer(http_server.url) as proxy:
        through = page.replace(http_server.url, proxy.url)
        assert ask(through, range="bytes=1-2")[::2] == (206, b"\1\2")
        length = ask(through, method="HEAD")[1]["Content-Length"]
        assert length == "100"
        proxy.rules[:] = [Rule(Run(seen.append)), Rule(Reset(performed=True), times=1)]
        with pytest.raises(OSError, match=r"reset|closed"):
            ask(through)
        assert http_server.count("GET") == 2
        assert seen[0].path == "/a b"
        proxy.rules[:] = [Rule(Status(503))]
        assert status_of(through)[0] == 503
        assert http_server.count("GET") == 2


def test_a_server_that_does_not_start_says_why(tmp_path):
    with pytest.raises(ServerError, match="no such option"):
        started(lambda: Start(["sh", "-c", "echo no such option; exit 3"], lambda: False), tmp_path / "log", tries=2)


def test_a_server_ends_with_the_process_that_started_it_however_that_ends(tmp_path):
    port = free_ports(1)[0]
    program = (
        f"import sys, time; sys.path.insert(0, {str(TESTS)!r})\n"
        "from pathlib import Path; from servers.processes import *\n"
        f"command = [sys.executable, '-m', 'http.server', '{port}', '--bind', '127.0.0.1']\n"
        f"log = Path({str(tmp_path / 'log')!r})\n"
        f"server = started(lambda: Start(command, lambda: answers('http://127.0.0.1:{port}')), log)\n"
        "print('serves', flush=True); time.sleep(600)\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as owner:
        assert owner.stdout.readline() == b"serves\n"
        owner.send_signal(signal.SIGKILL)
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
        except ConnectionRefusedError:
            return
        time.sleep(0.05)
    pytest.fail("the server outlives its owner")


def test_closing_a_server_twice_is_harmless(tmp_path):
    (tmp_path / "socket").touch()
    server = ServerProcess(["sleep", "600"], tmp_path / "log", (str(tmp_path / "socket"),))
    assert not server.ended()
    assert (tmp_path / "socket").exists()
    server.close()
    server.close()
    assert server.ended()
    assert not (tmp_path / "socket").exists()


@pytest.mark.servers
def test_the_object_stores_serve(s3_url, azure_url, gcs_url, s3_options, azure_options, gcs_options):
    assert [url.partition("://")[0] for url in (s3_url, azure_url, gcs_url)] == ["s3", "az", "gs"]
    assert s3_options["endpoint"].startswith("http://127.0.0.1:")
