"""Jobs under torchrun that read a StreamingDataset through one cache: killed in every way, started again at once, with
other ranks, and side by side. Each line of each rank is compared with the order of one process.
"""

import json
import os
import random
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest

from distributed.conftest import alive_with, launcher
from headrace import StreamingDataset
from servers.faulty_http import HttpServer
from streaming_dataset.processes import waited_for
from streaming_dataset.written import numbers_of, write_numbers

pytestmark = [
    pytest.mark.distributed,
    pytest.mark.timeout(900),
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="killing whole process trees needs /proc"),
]

JOB = Path(__file__).with_name("streaming_job.py")
COUNT, BATCH = 1003, 12
FOLDER_OF = {}  # of what a job reads, where that is a URL
STEPS_PER_EPOCH = -(-COUNT // BATCH)
FIRST_BATCH_S = 5.0


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_numbers(
        tmp_path_factory.mktemp("numbers") / "data", range(COUNT), a_shard=25, hashes=["xxh3_64"], compression="zstd"
    )


@pytest.fixture(params=["http", "path"])
def remote(request, folder):
    if request.param == "path":
        yield str(folder)
    else:
        with HttpServer(folder) as server:
            FOLDER_OF[server.url] = folder
            yield server.url


class Job:
    """A job of a command that is always the same, but for the number of ranks where that is what is tested."""

    def __init__(self, out, remote, steps, *, cache=None, seed=7, **options):
        self.out, self.remote, self.steps, self.seed = out, remote, steps, seed
        out.mkdir()
        self.temporary = out / "temporary"
        self.temporary.mkdir()
        options = {"remote": remote, "out": out, "steps": steps, "seed": seed, "cache": cache, **options}
        given = {name.replace("_", "-"): value for name, value in options.items() if value is not None}
        self.program = [str(JOB), *(text for name, value in given.items() for text in (f"--{name}", str(value)))]
        self.marks = []

    def start(self, ranks=2):
        """torchrun, in a session of its own; the files that were there before are others'."""
        mark = f"HEADRACE_TEST_JOB={uuid.uuid4()}"  # every process of this launch inherits it
        self.marks.append(mark)
        self.before = set(self.out.glob("*.jsonl"))
        tests = str(JOB.parents[1])
        environment = os.environ | {
            "OMP_NUM_THREADS": "1",
            "GLOO_SOCKET_IFNAME": "lo",
            "TMPDIR": str(self.temporary),
            "PYTHONPATH": tests,
        }
        with (self.out / "log").open("ab") as log:
            self.process = subprocess.Popen(
                ["env", mark, *launcher.torchrun(ranks, self.program)],
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env=environment,
            )

    def lines(self, *, new=False):
        """What the ranks wrote, of all attempts, or of the newest."""
        found = []
        for path in sorted(set(self.out.glob("*.jsonl")) - (self.before if new else set())):
            whole, _, _ = path.read_text().rpartition("\n")
            found += map(json.loads, whole.splitlines())
        return found

    def ranks(self):
        """The processes of the newest attempt's ranks that have begun."""
        return [line["begun"] for line in sorted(self.lines(new=True), key=lambda one: one["rank"]) if "begun" in line]

    def ended(self, code=None, within_s=120):
        """Wait for torchrun's end."""
        try:
            found = self.process.wait(within_s)
        except subprocess.TimeoutExpired:
            launcher.kill_tree(self.process.pid)
            pytest.fail(f"the job did not end in {within_s} s:\n{self.tail()}")
        assert code is None or found == code, self.tail()

    def tail(self):
        return "\n".join((self.out / "log").read_text(errors="replace").splitlines()[-60:])

    def reaches(self, is_so, within_s=100):
        """Wait until it is so; it must come to that before the job ends."""
        assert waited_for(lambda: is_so() or self.process.poll() is not None, within_s), self.tail()
        assert is_so(), self.tail()

    def steps_recorded(self):
        return max((line["step"] for line in self.lines() if "step" in line), default=0)

    def check(self):
        """Each line is what one process would deal, every step was made, and the first batches came in time."""
        alone = StreamingDataset(local=FOLDER_OF.get(self.remote, self.remote), shuffle=True, shuffle_seed=self.seed)
        epochs = [numbers_of(alone) for _ in range(-(-self.steps // STEPS_PER_EPOCH))]
        seen = set()
        for line in self.lines():
            if "step" in line:
                epoch, number = divmod(line["step"] - 1, STEPS_PER_EPOCH)
                rows = epochs[epoch][number * BATCH : (number + 1) * BATCH]
                assert line["ids"] == rows[line["rank"] :: line["world_size"]], line
                if line["rank"] == 0:
                    assert line["all"] == [rows[rank :: line["world_size"]] for rank in range(line["world_size"])], line
                    seen.add(line["step"])
            if "first_batch_s" in line:
                assert line["first_batch_s"] < FIRST_BATCH_S
        assert sorted(seen) == list(range(1, self.steps + 1))

    def check_leftovers(self, shared_before):
        """No process, no shared object, and of files nothing of ours."""
        for mark in self.marks:
            assert waited_for(lambda mark=mark: not alive_with(mark), 20), alive_with(mark)
        assert waited_for(lambda: shared_objects() <= shared_before, 30)
        left = [path for path in self.temporary.rglob("*") if "torchelastic" not in str(path)]
        assert left == []


def shared_objects():
    """What is in shared memory under a name, but for semaphores: of other tests, as a forked worker's have no name."""
    return {name for name in os.listdir("/dev/shm") if not name.startswith("sem.mp-")}


@pytest.fixture
def shared():
    """What was there before."""
    return shared_objects()


def check_cache(cache):
    """Nothing is on its way in a cache that nobody uses, and what is kept is whole."""
    assert waited_for(lambda: not list(cache.rglob("downloads/*")))


KILLS = {
    "rank 0": lambda job: os.kill(job.ranks()[0], signal.SIGKILL),
    "all": lambda job: launcher.kill_tree(job.process.pid),
    "ctrl-c": lambda job: job.process.send_signal(signal.SIGINT),
    "rank 1": lambda job: os.kill(job.ranks()[-1], signal.SIGKILL),
    "terminated": lambda job: job.process.send_signal(signal.SIGTERM),
}


@pytest.mark.parametrize("remote", ["http"], indirect=True)
def test_a_job_that_is_killed_in_ten_ways_and_moments_goes_on_at_once_with_the_same_command(remote, shared, tmp_path):
    cache = tmp_path / "cache"
    job = Job(tmp_path / "job", remote, 600, cache=cache, limit="20kb")
    moments = random.Random(7)
    for number in range(10):
        kill = list(KILLS.values())[number % len(KILLS)]
        before = job.steps_recorded()
        job.start()
        job.reaches(lambda: len(job.ranks()) == 2)
        # From the first moment on, in later rounds when batches came.
        if number >= 3:
            job.reaches(lambda before=before: job.steps_recorded() > before)
        time.sleep(moments.uniform(0, 0.6))
        kill(job)
        job.ended()
        assert job.process.returncode != 0, job.tail()
    assert 7 <= job.steps_recorded() < 600
    job.start()
    job.ended(0)
    job.check()
    job.check_leftovers(shared)
    check_cache(cache)


def test_two_then_four_ranks_then_one_go_on_with_the_same_global_batches(remote, shared, tmp_path):
    job = Job(tmp_path / "job", remote, 200, cache=tmp_path / "cache")
    for ranks, until in ((2, 60), (4, 130), (1, None)):
        job.start(ranks)
        if until is None:
            job.ended(0)
        else:
            job.reaches(lambda until=until: job.steps_recorded() >= until)
            launcher.kill_tree(job.process.pid)
            job.ended()
    job.check()
    assert {line["world_size"] for line in job.lines()} == {1, 2, 4}
    job.check_leftovers(shared)


@pytest.mark.parametrize("remote", ["http"], indirect=True)
def test_two_jobs_on_one_cold_cache_and_then_one_that_is_killed_beside_the_other(remote, shared, tmp_path):
    cache = tmp_path / "cache"
    jobs = [Job(tmp_path / name, remote, 150, cache=cache, seed=seed) for name, seed in (("a", 7), ("b", 8))]
    for job in jobs:
        job.start()
    jobs[0].reaches(lambda: jobs[0].steps_recorded() >= 20)
    launcher.kill_tree(jobs[0].process.pid)
    jobs[0].ended()
    jobs[0].start()
    for job in jobs:
        job.ended(0)
        job.check()
        job.check_leftovers(shared)
    check_cache(cache)


@pytest.mark.skipif(os.getuid() != 0, reason="becomes another user")
def test_two_users_read_one_dataset_each_with_a_cache_of_its_own(folder, shared, tmp_path):
    with HttpServer(folder) as server:
        FOLDER_OF[server.url] = folder
        mine = Job(tmp_path / "mine", server.url, 100)
        theirs = Job(tmp_path / "theirs", server.url, 100, user=4321)
        top = Path("/tmp", f"headrace-test-{uuid.uuid4().hex}")  # pytest's folders are for its user alone
        top.mkdir()
        top.chmod(0o1777)
        try:
            for job in (mine, theirs):
                job.temporary = top  # both have the same one
                job.start()
            for job in (mine, theirs):
                job.ended(0)
                job.check()
            own = [top / f"headrace-{user}" for user in (0, 4321)]
            assert [path.stat().st_uid for path in own] == [0, 4321]
            assert [path.stat().st_mode & 0o777 for path in own] == [0o700] * 2
            left = {path.name for path in top.iterdir() if not path.name.startswith("torchelastic")}
            assert left == {path.name for path in own}
        finally:
            subprocess.run(["rm", "-rf", str(top)], check=True)
        for job in (mine, theirs):
            job.check_leftovers(shared)
