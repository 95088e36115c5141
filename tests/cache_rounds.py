"""Rounds of eight processes on one cold cache, for the tests: what goes wrong in them is chosen by the round's number.

    python cache_rounds.py FOLDER FIRST LAST

prints a line of JSON a round, and ends with 1 where a reader got wrong data, hung, or failed without reason. Readers
are forked as a training job's are: two ranks, four workers each.
"""

import contextlib
import hashlib
import json
import os
import shutil
import signal
import sys
import time
import traceback
import zlib
from pathlib import Path

from cache_scenes import NAMES, LoggedRemote, bind, content, describe, kept, on_their_way, usage
from headrace import CachedStore
from headrace.errors import DamagedObjectError

SIZE = 60_000
RANKS, WORKERS = 2, 4
TAKEOVER_S = 0.4
LONGEST_S = 30
PLANS = (
    {},
    {"compressed": True},
    {"kill": 3},
    {"stop": 2},
    {"limit": 0},
    {"limit": SIZE - 1},
    {"limit": SIZE, "kill": 2},
    {"limit": 3 * SIZE, "stop": 2},
    {"limit": 10 * SIZE},
    {"two": True},
    {"overwrite": True},
    {"compressed": True, "kill": 2, "stop": 1},
    {"digests": False, "kill": 2},
    {"same_order": True},
    {"limit": 4 * SIZE, "kill": 2, "stop": 1, "two": True},
    {"kill": 8},
    {"overwrite": True, "limit": 2 * SIZE},
)


def chosen(below, *names):
    """A number that these names decide."""
    return int.from_bytes(hashlib.blake2b(repr(names).encode(), digest_size=8).digest(), "big") % below


def described(plan):
    return {"size": SIZE, "compressed": plan.get("compressed", False), "digests": plan.get("digests", True)}


def read(folder, plan, number, reader, *, keep=True):
    """One reader: every file of its dataset, in an order of its own, some of them kept mapped."""
    seed = "b" if plan.get("two") and reader % 2 else "a"
    remote = LoggedRemote(folder / f"remote-{seed}", folder / f"log-{seed}", pause_s=0.002)
    dataset = bind(
        remote, folder / "cache", seed, limit=plan.get("limit"), takeover_s=TAKEOVER_S, seed=seed, **described(plan)
    )
    step = 1 if plan.get("same_order") else (1, 3, 7, 9)[chosen(4, number, reader, "step")]
    start = 0 if plan.get("same_order") else chosen(10, number, reader, "start")
    views = []
    for place in range(len(NAMES) + 4):
        name = NAMES[(start + place * step) % len(NAMES)]
        try:
            view = dataset.view(name)
        except DamagedObjectError:
            if not plan.get("overwrite"):
                raise
            continue
        assert view == content(name, seed, SIZE), f"{name} is wrong"
        views = [*views, view][-3:] if keep else []
    assert all(len(view) == SIZE for view in views)


def forked(function, *arguments):
    sys.stdout.flush()
    pid = os.fork()
    if pid:
        return pid
    try:
        function(*arguments)
        os._exit(0)
    except BaseException:
        traceback.print_exc()
        os._exit(1)


def rank(folder, plan, number, first, gate):
    """Forks its workers, tells their process ids, and waits for them."""
    os.read(gate, 1)
    pids = [forked(read, folder, plan, number, first + worker) for worker in range(WORKERS)]
    (folder / f"pids-{first}.new").write_text(json.dumps(pids))
    (folder / f"pids-{first}.new").rename(folder / f"pids-{first}")
    ends = [os.waitpid(pid, 0)[1] for pid in pids]
    (folder / f"ends-{first}").write_text(json.dumps(ends))


def write_remotes(folder, plan, suffix=""):
    for seed in "ab" if plan.get("two") else "a":
        remote = LoggedRemote(folder / f"remote-{seed}", folder / "log-unused")
        for name in NAMES:
            data = content(name, seed + suffix, SIZE)
            if plan.get("compressed"):
                remote.put(name + ".zz", zlib.compress(data))
            else:
                remote.put(name, data)


def round_of(folder, number):
    plan = PLANS[number % len(PLANS)]
    write_remotes(folder, plan)
    sources = [os.pipe() for _ in range(RANKS)]
    ranks = [forked(rank, folder, plan, number, index * WORKERS, sources[index][0]) for index in range(RANKS)]
    for _, gate in sources:
        os.write(gate, b"g")
    harmed = harm(folder, plan, number)
    most = wait_for(folder, ranks, plan)
    for pair in sources:
        os.close(pair[0])
        os.close(pair[1])
    return judged(folder, plan, number, harmed, most)


def pids_of(folder):
    until = time.monotonic() + LONGEST_S
    paths = [folder / f"pids-{index * WORKERS}" for index in range(RANKS)]
    while not all(path.exists() for path in paths):
        assert time.monotonic() < until, "no workers"
        time.sleep(0.001)
    return [pid for path in paths for pid in json.loads(path.read_text())]


def harm(folder, plan, number):
    """Kills and stops readers, and overwrites what they read, each at a time of its own."""
    pids = pids_of(folder)
    order = sorted(range(8), key=lambda index: chosen(1 << 32, number, index, "victim"))
    kills, stops = plan.get("kill", 0), plan.get("stop", 0)
    acts = [(pids[index], signal.SIGKILL) for index in order[:kills]]
    acts += [(pids[index], signal.SIGSTOP) for index in order[kills : kills + stops]]
    acts += [(0, 0)] * bool(plan.get("overwrite"))
    times = sorted(chosen(150, number, index, "when") / 1000 for index in range(len(acts)))
    begin = time.monotonic()
    for when, (pid, number_of_signal) in zip(times, acts, strict=True):
        time.sleep(max(0, begin + when - time.monotonic()))
        if pid:
            with contextlib.suppress(ProcessLookupError):  # done already
                os.kill(pid, number_of_signal)
        else:
            write_remotes(folder, plan, "-new")
    return acts


def wait_for(folder, ranks, plan):
    """The largest usage seen until all have ended; stopped readers go on once the others are done."""
    most, left = 0, set(ranks)
    pids = pids_of(folder)
    until = time.monotonic() + LONGEST_S
    while left:
        if plan.get("limit") is not None:
            most = max(most, sum(usage(folder / "cache")))
        for pid in list(left):
            if os.waitpid(pid, os.WNOHANG)[0]:
                left.remove(pid)
        states = [state_of(pid) for pid in pids]
        if all(state in "TZX" for state in states):
            for pid in [pid for pid, state in zip(pids, states, strict=True) if state == "T"]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)
        assert time.monotonic() < until, f"readers hang: {states}"
        time.sleep(0.002)
    return most


def state_of(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "X"


def judged(folder, plan, number, acts, most):
    ends = [end for index in range(RANKS) for end in json.loads((folder / f"ends-{index * WORKERS}").read_text())]
    kills = sum(sent == signal.SIGKILL for _, sent in acts)
    assert sum(end != 0 for end in ends) <= kills, f"a reader failed: {ends}"
    assert all(end in (0, signal.SIGKILL) for end in ends), f"a reader failed: {ends}"
    limit = plan.get("limit")
    if limit is not None:
        assert most <= limit + 8 * SIZE, f"{most} bytes, with a limit of {limit}"
    counts = {}
    for seed in "ab":
        remote = LoggedRemote(folder / f"remote-{seed}", folder / f"log-{seed}")
        for _, path in remote.fetched():
            counts[seed, path] = counts.get((seed, path), 0) + 1
    if not plan.get("overwrite") and (limit is None or limit >= 10 * SIZE):
        spare = len(acts)  # a reader that was killed or stopped may have been fetching
        assert sum(counts.values()) <= 10 * (1 + bool(plan.get("two"))) + spare, counts
    # And now the cache as they left it: a reader alone, without anything that goes wrong.
    after = {key: value for key, value in plan.items() if key != "overwrite"}
    if plan.get("overwrite"):
        cached = CachedStore(LoggedRemote(folder / "remote-a", folder / "log-after"), folder / "cache", limit)
        dataset = cached.of_dataset("a-new", describe(seed="a-new", size=SIZE))
        assert all(dataset.view(name) == content(name, "a-new", SIZE) for name in NAMES)
    else:
        read(folder, after, number, 0, keep=False)
    assert on_their_way(folder / "cache") == []
    if limit is not None:
        assert sum(usage(folder / "cache")) <= limit
    good = {content(name, seed, SIZE) for name in NAMES for seed in ("a", "b", "a-new")}
    assert all(path.read_bytes() in good for path in kept(folder / "cache").values())
    return {"round": number, "plan": plan, "fetches": sum(counts.values()), "most": most}


def main(folder, first, last):
    for number in range(int(first), int(last)):
        place = Path(folder, str(number))
        place.mkdir(parents=True)
        begin = time.monotonic()
        result = round_of(place, number)
        print(json.dumps({**result, "seconds": round(time.monotonic() - begin, 2)}), flush=True)
        shutil.rmtree(place)


if __name__ == "__main__":
    main(*sys.argv[1:])
