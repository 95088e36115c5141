"""Scenarios from bug reports of comparable tools: processes that share a machine, start in every way, fail, are many.

Kills and new starts of a job under torchrun are in tests/distributed/test_streaming_ranks.py; what a loader's workers
do about every kind of failure in tests/loading/test_workers.py, little shared memory in test_shared_memory.py.
"""

import gc
import itertools
import json
import multiprocessing
import os
import pickle
import stat
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path

import pytest

from headrace import LocalStore, MDSWriter, Stream, StreamingDataLoader, StreamingDataset
from headrace.errors import OptionError, WorkerError
from loading.samples import hurried, misbehave
from streaming_dataset.processes import forked, joined, waited_for
from streaming_dataset.written import numbers_of, write_numbers

TESTS = Path(__file__).parents[1]
COUNT = 60


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_numbers(tmp_path_factory.mktemp("numbers") / "train", range(COUNT))


@pytest.fixture(scope="module")
def other(tmp_path_factory):
    return write_numbers(tmp_path_factory.mktemp("numbers") / "val", range(1000, 1000 + COUNT))


@pytest.fixture(autouse=True)
def nobody_stays():
    yield
    assert multiprocessing.active_children() == []


@pytest.fixture
def temporary(monkeypatch):
    """A folder for temporary files that every user may use; pytest's are for its own alone."""
    with tempfile.TemporaryDirectory() as found:
        os.chmod(found, 0o1777)
        monkeypatch.setattr(tempfile, "tempdir", found)
        yield Path(found)


# O28: isolation


def build_twenty(place):
    for number in range(20):
        dataset = StreamingDataset(**place, shuffle=True, shuffle_seed=number % 2, batch_size=4)
        assert sorted(numbers_of(dataset)) == list(range(COUNT))


def shared_objects():
    """What is in shared memory under a name, but for what Python and torch have there for the tests beside this one."""
    return {name for name in os.listdir("/dev/shm") if not name.startswith(("sem.", "torch_"))}


@pytest.mark.parametrize("cached", [False, True])
def test_four_processes_build_twenty_datasets_each_on_one_directory(cached, folder, tmp_path):
    place = {"remote": folder, "local": tmp_path / "cache"} if cached else {"local": folder}
    before, shared = list(tmp_path.iterdir()), shared_objects()
    joined([forked(build_twenty, place) for _ in range(4)])
    assert list(tmp_path.iterdir()) == before + [tmp_path / "cache"] * cached
    assert shared_objects() <= shared


@pytest.mark.parametrize("used", [False, True])
def test_train_and_val_loaders_in_each_of_four_forked_ranks(used, folder, other, tmp_path):
    options = {"local": tmp_path / "cache", "shuffle": True}
    datasets = [StreamingDataset(remote=place, **options) for place in (folder, other)]
    if used:
        assert [dataset[0]["number"] for dataset in datasets] == [0, 1000]
    expected = [numbers_of(StreamingDataset(local=place, shuffle=True)) for place in (folder, other)]

    def rank_of_a_job(rank):
        os.environ |= {"RANK": str(rank), "WORLD_SIZE": "4"}
        loaders = [
            StreamingDataLoader(dataset, batch_size=5, num_workers=1, multiprocessing_context="fork")
            for dataset in datasets
        ]
        for train, val in zip(*loaders, strict=True):
            seen[rank].append(numbers_of([train]))
            seen[rank].append(numbers_of([val]))
        (tmp_path / f"rank {rank}.json").write_text(json.dumps(seen[rank]))

    seen = [[] for _ in range(4)]
    joined([forked(rank_of_a_job, rank) for rank in range(4)])
    ranks = [json.loads((tmp_path / f"rank {rank}.json").read_text()) for rank in range(4)]
    for number, whole in enumerate(expected):
        dealt = [
            row
            for step in zip(*(rank[number::2] for rank in ranks), strict=True)
            for together in zip(*step, strict=True)
            for row in together
        ]
        assert dealt == whole


@pytest.mark.skipif(os.getuid() != 0, reason="becomes other users")
def test_users_have_caches_of_their_own_whatever_others_left_in_the_temporary_folder(
    temporary, folder, http_folder, http_url
):
    write_numbers(http_folder / "data", range(COUNT), hashes=["xxh3_64"])
    assert numbers_of(StreamingDataset(remote=f"{http_url}/data")) == list(range(COUNT))
    for path in (temporary / f"headrace-{os.getuid()}", temporary / "headrace-4320"):
        path.mkdir(exist_ok=True)
        path.chmod(0)  # what a process of somebody else left

    def another(user):
        os.setgroups([])
        os.setgid(user)
        os.setuid(user)
        dataset = StreamingDataset(remote=f"{http_url}/data", shuffle=True)
        for _ in range(2):
            assert sorted(numbers_of(dataset)) == list(range(COUNT))
        own = temporary / f"headrace-{user}"
        assert stat.S_IMODE(own.stat().st_mode) == 0o700

    def refused(user):
        os.setgid(user)
        os.setuid(user)
        with pytest.raises(OptionError, match=f"local.*headrace-{user} belongs to another user"):
            StreamingDataset(remote=f"{http_url}/data")
        given = StreamingDataset(remote=f"{http_url}/data", local=temporary / "given")
        assert numbers_of(given) == list(range(COUNT))

    joined([forked(another, 4321), forked(another, 4322), forked(refused, 4320)])
    assert sorted(path.name for path in temporary.iterdir() if path.name != "given") == [
        f"headrace-{user}" for user in (0, 4320, 4321, 4322)
    ]


# O29: start methods


def used(dataset, how):
    """The dataset after it was used here, so that handles of this process are open in it."""
    match how:
        case "read":
            dataset[0]
        case "len":
            len(dataset)
        case "epoch":
            list(dataset)
            dataset.next_epoch = 0
    return dataset


def check_start(url, cache, folder, method, num_workers, before):
    expected = numbers_of(StreamingDataset(local=folder, shuffle=True))
    dataset = StreamingDataset(
        remote=url, local=cache, download_retry=3, download_timeout=20, cache_limit="1mb", predownload=8, shuffle=True
    )
    options = {"multiprocessing_context": method} if num_workers else {}
    with StreamingDataLoader(used(dataset, before), batch_size=7, num_workers=num_workers, **options) as loader:
        batches = iter(loader)
        first = hurried(10 * 3, lambda: next(batches))  # 10 s, and this machine may be busy
        assert numbers_of([first, *batches]) == expected
    dataset.close()


# A process that starts as spawn does imports torch, which takes seconds. The processes are those of loaders over other
# datasets (tests/loading/test_workers.py), so that one worker is enough for most of these.
BEFORE = ["nothing", "read", "len", "epoch"]
QUICK = [("fork", 0, "read"), ("fork", 1, "nothing"), ("fork", 2, "epoch"), ("fork", 2, "len")]
GRID = [
    *itertools.product(["fork"], [0, 1, 2], BEFORE),
    *itertools.product(["spawn", "forkserver"], [1], BEFORE),
    ("spawn", 2, "epoch"),
]


@pytest.mark.parametrize(
    ("method", "num_workers", "before"),
    [cell if cell in QUICK else pytest.param(*cell, marks=pytest.mark.slow) for cell in GRID],
)
def test_every_start_method_gives_the_same_data_whatever_was_used_before(
    method, num_workers, before, busy_threads, folder, http_folder, http_url, tmp_path
):
    write_numbers(http_folder, range(COUNT), hashes=["xxh3_64"])
    check_start(http_url, tmp_path / "cache", folder, method, num_workers, before)


SCRIPT = """
import pickle, sys
from pathlib import Path
objects = pickle.loads(Path(sys.argv[1]).read_bytes())
print([
    [sample["number"] for sample in objects["dataset"]],
    [batch["number"].tolist() for batch in objects["loader"]],
    [sample["number"] for sample in objects["view"].__getitems__(range(30))],
    repr(objects["stream"]),
    objects["dataset"].state_dict(),
])
"""


@pytest.mark.slow
@pytest.mark.parametrize("is_used", [False, True])
def test_every_public_object_gives_the_same_in_a_fresh_interpreter(is_used, folder, tmp_path):
    def objects():
        options = {"streams": [Stream(remote=folder, local=tmp_path / "cache", choose=50)], "shuffle": True}
        dataset = StreamingDataset(**options, batch_size=4, rank=1, world_size=2)
        return {
            "stream": dataset.streams[0],
            "dataset": dataset,
            "view": dataset.as_view(),
            "loader": StreamingDataLoader(StreamingDataset(**options, rank=1, world_size=2), batch_size=4),
        }

    made = objects()
    if is_used:
        list(made["dataset"])
        made["dataset"].next_epoch = 0
        made["dataset"][3], made["view"][5]
    (tmp_path / "objects").write_bytes(pickle.dumps(made))
    command = [sys.executable, "-c", SCRIPT, str(tmp_path / "objects")]
    there = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert there.returncode == 0, there.stderr
    here = objects()
    assert there.stdout.strip() == str(
        [
            numbers_of(here["dataset"]),
            [batch["number"].tolist() for batch in here["loader"]],
            numbers_of(here["view"].__getitems__(range(30))),
            repr(here["stream"]),
            here["dataset"].state_dict(),
        ]
    )


def test_no_secret_shows_in_a_dataset_or_where_it_cannot_be_sent_to_a_worker(tmp_path):
    dataset = StreamingDataset(remote="https://user:geheim@host.invalid/data", local=tmp_path)
    loader = StreamingDataLoader(
        dataset, batch_size=4, num_workers=1, multiprocessing_context="spawn", collate_fn=lambda samples: samples
    )
    assert "geheim" not in f"{dataset!r} {dataset.streams!r} {loader!r} {dataset.stored!r} {dataset.options!r}"
    with pytest.raises(Exception) as refused:
        next(iter(loader))
    assert "geheim" not in "".join(traceback.format_exception(refused.value))
    loader.close()


# O30: a worker dies or raises


class Broken(StreamingDataset):
    """Sample 7 does something else, unless there is the file."""

    how, mended = "", Path()

    def __getitem__(self, at):
        if at == 7 and not self.mended.exists():
            misbehave(self.how)
        return super().__getitem__(at)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize(
    ("how", "text"),
    [
        ("two-part", r"TwoPartError: left and right\nwhile loading samples 4, 5, 6, 7\n"),
        ("unpicklable", r"LocalError: made here\nwhile loading samples 4, 5, 6, 7\n"),
        ("kill", r"worker 1 \(process \d+\) died \(exit code -9\)"),
        ("sleep", r"worker 1 \(process \d+\) gave no batch in time"),
    ],
)
def test_a_failing_worker_is_named_with_its_samples_and_the_loader_goes_on(how, text, persistent, folder, tmp_path):
    dataset = Broken(local=folder)
    dataset.how, dataset.mended = how, tmp_path / "mended"
    with StreamingDataLoader(
        dataset,
        batch_size=4,
        num_workers=2,
        multiprocessing_context="fork",
        persistent_workers=persistent,
        timeout=1 if how == "sleep" else 30,
    ) as loader:
        got = []
        with pytest.raises(WorkerError, match=text) as failed:
            hurried(20, lambda: got.extend(numbers_of([batch]) for batch in loader))
        assert got == [[0, 1, 2, 3]]
        if how in ("two-part", "unpicklable"):
            assert "Traceback (most recent call last)" in str(failed.value)
        assert loader.state_dict()["position"] == 4
        dataset.mended.touch()
        assert numbers_of(loader) == list(range(COUNT))  # the loop that broke starts over
    assert multiprocessing.active_children() == []


class WaitsForItsParentsEnd:
    """A worker_init_fn that tells its worker's process, and ends once the one that started it is gone."""

    def __init__(self, told):
        self.told = told

    def __call__(self, worker):
        parent = os.getppid()
        (self.told / str(os.getpid())).touch()
        assert waited_for(lambda: os.getppid() != parent, 60)


def iterate(folder, told, method):
    loader = StreamingDataLoader(
        StreamingDataset(local=folder),
        batch_size=4,
        num_workers=2,
        multiprocessing_context=method,
        worker_init_fn=WaitsForItsParentsEnd(told),
    )
    next(iter(loader))


@pytest.mark.parametrize("method", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_workers_whose_main_process_is_killed_as_they_begin_do_not_stay(method, folder, tmp_path):
    rank = forked(iterate, folder, tmp_path, method)
    assert waited_for(lambda: len(list(tmp_path.iterdir())) == 2, 60)
    rank.kill()
    rank.join(10)
    workers = [Path("/proc", path.name) for path in tmp_path.iterdir()]
    assert waited_for(lambda: not any(worker.exists() for worker in workers), 20)


# O31: many shards


def weight_bytes():
    """What this process alone holds in memory."""
    gc.collect()
    with open("/proc/self/smaps_rollup") as file:
        sizes = {line.split(":")[0]: int(line.split()[1]) * 1024 for line in file if ":" in line and "kB" in line}
    return sizes["Private_Dirty"]


def weigh(samples):
    """In place of the batch, which process this is, what it weighs, and its open files; every so often."""
    weigh.calls += 1
    if weigh.calls % 50 == 1:
        weigh.last = (os.getpid(), weight_bytes(), len(os.listdir("/proc/self/fd")))
    return weigh.last


weigh.calls = 0


@pytest.fixture(scope="module")
def many_shards(tmp_path_factory):
    folder = tmp_path_factory.mktemp("many")
    (one,) = write_numbers(folder / "one", range(1)).glob("*.mds")
    index = json.loads((folder / "one" / "index.json").read_text())
    names = [folder / f"shard.{number:07d}.mds" for number in range(100_000)]
    for number, name in enumerate(names):
        first = names[number // 50_000 * 50_000]  # few files under many names, as many as a file may have
        if name is first:
            name.write_bytes(one.read_bytes())
        else:
            os.link(first, name)
    (shard,) = index["shards"]
    index["shards"] = [{**shard, "raw_data": {**shard["raw_data"], "basename": name.name}} for name in names]
    (folder / "index.json").write_text(json.dumps(index))
    return folder


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("method", ["fork", "spawn"])
@pytest.mark.filterwarnings("ignore:This DataLoader will create")
def test_workers_over_100000_shards_start_soon_and_do_not_grow(method, many_shards):
    dataset = StreamingDataset(local=many_shards, shuffle=True)
    assert dataset.num_shards == 100_000
    assert len(pickle.dumps(dataset)) < 1_000_000
    begun_s = time.monotonic()
    weights = []
    with StreamingDataLoader(
        dataset,
        batch_size=100,
        num_workers=8,
        multiprocessing_context=method,
        persistent_workers=True,
        collate_fn=weigh,
    ) as loader:
        for epoch in range(3):
            seen = {}
            for number, (process, weight, descriptors) in enumerate(loader):
                if epoch == number == 0:
                    assert time.monotonic() - begun_s < 15 * 4  # 15 s, and this machine may be busy
                seen[process] = weight
                assert descriptors < 1024 + 50
            weights.append(seen)
    assert len(weights[0]) == 8
    assert weights[0].keys() == weights[2].keys()
    assert max(weights[2][process] - weights[0][process] for process in weights[0]) < 50 << 20


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_memory_stays_where_it_was_over_200_real_shards_that_are_streamed(tmp_path):
    with MDSWriter(
        out=LocalStore(tmp_path / "data", fsync=False), columns={"number": "int", "data": "bytes"}, size_limit=4 << 20
    ) as out:
        for number in range(200 * 8):
            out.write({"number": number, "data": number.to_bytes(4, "little") * (127 << 10)})
    script = f"""
import os, resource
from headrace import StreamingDataset
resource.setrlimit(resource.RLIMIT_NOFILE, (1024, 1024))
dataset = StreamingDataset(remote={str(tmp_path / "data")!r}, local={str(tmp_path / "cache")!r}, cache_limit="64mb")
print(dataset.num_shards)
for count, sample in enumerate(dataset):
    assert sample["data"][:4] == count.to_bytes(4, "little")
    if count % 160 == 159:
        resident = int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        print(resident, len(os.listdir("/proc/self/fd")))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    shards, *lines = done.stdout.split("\n")[:-1]
    assert 200 <= int(shards) <= 240
    resident, descriptors = zip(*(map(int, line.split()) for line in lines), strict=True)
    assert len(resident) == 10
    assert resident[-1] < 1.2 * resident[0], resident
    assert max(descriptors) < 1024 / 4 + 100  # a store keeps a quarter of what there may be open
