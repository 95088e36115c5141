"""torchrun, and how to kill it: all of its processes at once, as a machine that goes down would."""

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

__all__ = ["run", "run_until", "torchrun"]

POLL_S = 0.02
TIMEOUT_S = 240.0


def torchrun(ranks: int, program: Sequence[str]) -> list[str]:
    """The command that runs a program (a script, or -m and a module, then its arguments) as that many ranks here."""
    elastic = ["torch.distributed.run", "--standalone", "--local-addr=127.0.0.1", f"--nproc-per-node={ranks}"]
    return [sys.executable, "-m", *elastic, *program]


def run(command: Sequence[str]) -> None:
    """Run a command to its end, its output going to ours; SystemExit when it fails."""
    code = subprocess.run(command, check=False).returncode
    if code != 0:
        raise SystemExit(f"{' '.join(command)} failed with exit code {code}")


def run_until(command: Sequence[str], log: Path, reached: Callable[[], bool] | None = None) -> bool:
    """True when the command was SIGKILLed, with every process it had started, as soon as reached() said so.

    False when it ended by itself. Raises SystemExit with the log's end when it fails or takes too long. It does not
    outlive this call, an interrupted one included.
    """
    environment = os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    deadline = time.monotonic() + TIMEOUT_S
    kill = False
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=subprocess.STDOUT, start_new_session=True, env=environment
        )
        try:
            while process.poll() is None and time.monotonic() < deadline and not kill:
                time.sleep(POLL_S)
                kill = reached is not None and reached()
        finally:
            ended_with = process.poll()
            if ended_with is None:
                kill_tree(process.pid)
                process.wait()
    if ended_with == 0 or (ended_with is None and kill):
        return ended_with is None
    tail = "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-40:])
    fault = f"took more than {TIMEOUT_S:.0f} s" if ended_with is None else f"failed with exit code {ended_with}"
    raise SystemExit(f"{' '.join(command)} {fault}; the end of {log}:\n{tail}")


def kill_tree(root: int) -> None:
    """SIGKILL a process and all its descendants; returns when they are gone.

    torchrun gives each rank a session of its own, so killing the process group of torchrun would leave the ranks alive.
    """
    handles: dict[int, int] = {}  # pid -> pidfd, which stays with the process though its number be given to another
    # All stand still first, and whoever was started meanwhile too: from the dead nobody could tell their children.
    while new := [pid for pid in (root, *descendants(root)) if pid not in handles]:
        for pid in new:
            try:
                handles[pid] = os.pidfd_open(pid)
                signal.pidfd_send_signal(handles[pid], signal.SIGSTOP)
            except ProcessLookupError:
                handles.setdefault(pid, -1)  # it ended while we looked
    for handle in handles.values():
        if handle >= 0:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(handle, signal.SIGKILL)
    for handle in handles.values():
        if handle >= 0:
            select.select([handle], [], [], 10.0)  # readable once the process has ended
            os.close(handle)


def descendants(root: int) -> list[int]:
    """Every process below root, parents first; needs /proc."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()  # the name in brackets may hold blanks
        except OSError:
            continue  # it ended while we looked
        children.setdefault(int(fields[1]), []).append(int(stat.parent.name))
    found: list[int] = []
    todo = [root]
    while todo:
        below = children.get(todo.pop(0), [])
        found += below
        todo += below
    return found
