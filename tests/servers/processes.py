"""Server processes that serve when the call returns, and that end with us, however we end."""

import os
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

__all__ = ["ServerError", "ServerProcess", "Start", "answers", "free_ports", "started"]

# A shell beside the server waits for the end of a pipe that we hold. It comes when we close it, and when we die, too.
GUARD = """
"$@" </dev/null &
server=$!
( cat >/dev/null; kill -TERM $server; for turn in 1 2 3 4 5 6 7 8 9 10; do
    kill -0 $server || exit; sleep 0.1; done; kill -KILL $server ) 2>/dev/null <&3 &
exec 3<&-
wait $server
rm -f $LEFTOVERS
"""


class ServerError(RuntimeError):
    """A server did not start; the text ends with what it said."""


class Start(NamedTuple):
    """How to start a server, and how to know that it serves."""

    line: list[str]
    serves: Callable[[], bool]
    leftovers: tuple[str, ...] = ()  # files that it makes outside its folder and would leave there


class ServerProcess:
    """A running program whose output is in a file; close() ends it, and so does our own death."""

    def __init__(self, command: list[str], log: Path, leftovers: tuple[str, ...] = ()) -> None:
        self.log = log
        with log.open("ab") as output:
            # The guard's standard input becomes its descriptor 3, which only the waiting shell keeps.
            self._guard = subprocess.Popen(
                ["sh", "-c", f"exec 3<&0 </dev/null\n{GUARD}", "guard", *command],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, "LEFTOVERS": " ".join(leftovers)},
                start_new_session=True,  # so that a Ctrl-C ends the tests first, which then end the servers
            )

    def ended(self) -> bool:
        """Whether the program is over."""
        return self._guard.poll() is not None

    def said(self, num_bytes: int = 2000) -> str:
        """The end of its output."""
        return self.log.read_bytes()[-num_bytes:].decode(errors="replace")

    def close(self) -> None:
        """End the program and wait for it. Twice is harmless."""
        if self._guard.stdin is not None and not self._guard.stdin.closed:
            self._guard.stdin.close()
        self._guard.wait(30)


def started(command: Callable[[], Start], log: Path, within_s: float = 60, tries: int = 3) -> ServerProcess:
    """The server, serving. command() says how to start it, with ports of its own.

    A free port may be taken before the server opens it, so another try takes others.
    """
    for last in range(tries - 1, -1, -1):
        line, serves, leftovers = command()
        server = ServerProcess(line, log, leftovers)
        with ExitStack() as ending:
            ending.callback(server.close)
            deadline = time.monotonic() + within_s
            while not server.ended() and time.monotonic() < deadline:
                if serves():
                    ending.pop_all()
                    return server
                time.sleep(0.05)
        if not last:
            raise ServerError(f"{line[0]} does not serve after {tries} tries; it said:\n{server.said()}")
    raise AssertionError("never reached")


def free_ports(count: int) -> list[int]:
    """Ports of 127.0.0.1 on which nobody listens now."""
    with ExitStack() as opened:
        sockets = [opened.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def answers(request: str | urllib.request.Request, statuses: tuple[int, ...] = (200,)) -> bool:
    """Whether something answers this request with one of these statuses within a few seconds."""
    try:
        with urllib.request.urlopen(request, timeout=5) as reply:
            reply.read()
            return reply.status in statuses
    except urllib.error.HTTPError as error:
        with error:
            return error.code in statuses
    except OSError:
        return False
