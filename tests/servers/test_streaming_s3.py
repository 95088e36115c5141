"""StreamingDataset over a real S3 server: the guide's two ways, workers, resume, a small cache, replaced data."""

import itertools
import os
import subprocess
import sys
import time

import numpy as np
import pytest

from headrace import MDSWriter, Stream, StreamingDataLoader, StreamingDataset, open_store
from headrace.errors import CorruptShardError, DatasetChangedError, NoDatasetError, TemporaryStoreError, WorkerError
from servers.faulty_http import Rule, Stall, Status

pytestmark = pytest.mark.servers

SAMPLES, A_SHARD = 120, 10
VALUES = 500  # of a sample, which has about 1,000 bytes
A_SHARD_BYTES = 11_000


def environment(options):
    """What a user sets who has keys for a server that is not Amazon's."""
    keys = options["credentials"]
    return {
        "AWS_ENDPOINT_URL": options["endpoint"],
        "AWS_REGION": options["region"],
        "AWS_ACCESS_KEY_ID": keys["access_key_id"],
        "AWS_SECRET_ACCESS_KEY": keys["secret_access_key"],
        "AWS_ALLOW_HTTP": "true",
    }


@pytest.fixture
def url(s3_url, s3_options, s3_proxy, monkeypatch):
    """A place in the bucket that this process reaches without further words, through the proxy."""
    for name, value in environment(s3_options | {"endpoint": s3_proxy.url}).items():
        monkeypatch.setenv(name, value)
    return s3_url


def write(url, *, salt=0, count=SAMPLES, first=0, **options):
    """Samples of one size, whose values tell their number and the salt, ten a shard."""
    with MDSWriter(out=url, columns={"id": "int", "values": f"ndarray:uint16:{VALUES}"}, **options) as out:
        for number in range(first, first + count):
            out.write({"id": number, "values": np.full(VALUES, number * 10 + salt, np.uint16)})
            if (number - first + 1) % A_SHARD == 0:
                out.flush_shard()
    return url


def ids(rows, salt=0):
    """The numbers of samples or batches, each of which must be of this salt, and whole."""
    found = []
    for row in rows:
        values = np.asarray(row["values"])
        numbers = np.asarray(row["id"]).reshape(-1)
        assert (values.reshape(len(numbers), VALUES) == numbers[:, None] * 10 + salt).all()
        found += numbers.tolist()
    return found


def kept(folder):
    return sum(path.stat().st_size for path in folder.glob("headrace-cache/1/files/**/*.mds.*") if path.is_file())


def fetched(proxy):
    """How often each shard was asked for."""
    paths = [request.path for request in proxy.requests if request.method == "GET" and ".mds" in request.path]
    return {path.rpartition("/")[2]: paths.count(path) for path in sorted(set(paths))}


# The two ways of Streaming's guide to parallel conversion, with nothing but imports and places changed

SEQUENTIAL = """
import os
from multiprocessing import Pool
from headrace import MDSWriter, StreamingDataset

out_root = {url!r}
dataset = [i for i in range(25)]
columns = {{'number': 'int'}}

def get_data(number):
    print(f'\\nWorker PID: {{os.getpid()}}\\tnumber: {{number}}', flush=True, end='')
    return {{'number': number}}

def init_worker():
    pid = os.getpid()
    print(f'\\nInitialize Worker PID: {{pid}}', flush=True, end='')

if __name__ == '__main__':
    with Pool(initializer=init_worker, processes=4) as pool:
        with MDSWriter(out=out_root, columns=columns) as out:
            for sample in pool.imap(get_data, dataset):
                out.write(sample)

    print('\\nread')
    dataset = StreamingDataset(local={local!r},
                               remote=out_root,
                               shuffle=False,)
    for sample in dataset:
        print(sample['number'])
"""

GROUPS = """
import os
from multiprocessing import Pool
from typing import Iterator, Tuple
from headrace import MDSWriter, StreamingDataset

out_root = {url!r}
num_groups = 4
num_process = 2

def init_worker():
    pid = os.getpid()
    print(f'\\nInitialize Worker PID: {{pid}}', flush=True, end='')

def each_task(out_root: str, groups: int) -> Iterator[Tuple[str, int, int]]:
    for data_group in range(groups):
        sub_out_root = os.path.join(out_root, str(data_group))
        start_sample_idx = data_group * 10
        end_sample_idx = start_sample_idx + 9
        yield sub_out_root, start_sample_idx, end_sample_idx

def convert_to_mds(args: Iterator[Tuple[str, int, int]]) -> None:
    sub_out_root, start_sample_idx, end_sample_idx = args

    def get_data(start: int, end: int):
        for i in range(start, end + 1):
            yield {{'number': i}}

    columns = {{'number': 'int'}}
    with MDSWriter(out=sub_out_root,
                   columns=columns) as out:
        for sample in get_data(start_sample_idx, end_sample_idx):
            out.write(sample)

if __name__ == '__main__':
    arg_tuples = each_task(out_root, groups=num_groups)
    with Pool(initializer=init_worker, processes=num_process) as pool:
        for count in pool.imap(convert_to_mds, arg_tuples):
            pass
    print('\\nFinished')

    from headrace import merge_index
    merge_index(out_root, keep_local=True)

    print('read')
    dataset = StreamingDataset(local={local!r},
                               remote=out_root,
                               shuffle=False)
    for ix, sample in enumerate(dataset):
        print(sample['number'])
"""


@pytest.mark.parametrize(("program", "count"), [(SEQUENTIAL, 25), (GROUPS, 40)], ids=["sequential", "groups"])
def test_what_the_guide_writes_is_read_from_s3(program, count, s3_url, s3_options, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(program.format(url=s3_url, local=str(tmp_path / "cache")))
    done = subprocess.run(
        [sys.executable, str(script)],
        cwd=tmp_path,
        env={**os.environ, **environment(s3_options)},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.partition("\nread\n")[2].split() == [str(number) for number in range(count)]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cache", "script.py"]


# Reading


@pytest.mark.parametrize("options", [{}, {"hashes": ["xxh64"]}, {"compression": "zstd", "hashes": ["sha1"]}], ids=str)
def test_each_shard_is_fetched_once_for_all_epochs_datasets_and_directories_of_a_cache(
    options, url, s3_proxy, tmp_path
):
    write(url, **options)
    s3_proxy.requests.clear()
    orders = []
    for _ in range(2):
        dataset = StreamingDataset(remote=f"{url}/", local=tmp_path, shuffle=True)
        for _ in range(2):
            orders.append(ids(dataset))
            assert sorted(orders[-1]) == list(range(SAMPLES))
    assert orders[:2] == orders[2:]
    assert orders[0] != orders[1]
    assert set(fetched(s3_proxy).values()) == {1}
    assert len(fetched(s3_proxy)) == SAMPLES // A_SHARD


def test_constructing_asks_nothing_and_opening_two_streams_four_things(url, s3_proxy, tmp_path):
    for name, first in (("a", 0), ("b", 1000)):
        write(f"{url}/{name}/train", count=20, first=first, hashes=["sha1"])
    s3_proxy.requests.clear()
    streams = [Stream(remote=f"{url}/{name}", local=tmp_path, validate_hash="sha1") for name in "ab"]
    dataset = StreamingDataset(streams=streams, split="train", shuffle=True)
    assert s3_proxy.requests == []
    assert len(dataset) == 40
    assert [(request.method, request.path.rpartition("/")[2]) for request in s3_proxy.requests] in (
        [("HEAD", "index.json")] * 2 + [("GET", "index.json")] * 2,
        [("HEAD", "index.json"), ("GET", "index.json")] * 2,
    )
    assert sorted(ids(dataset)) == [*range(20), *range(1000, 1020)]


@pytest.mark.parametrize("limit", [0, A_SHARD_BYTES // 2, 3 * A_SHARD_BYTES])
def test_a_small_cache_gives_every_sample_and_keeps_its_limit(limit, url, tmp_path):
    write(url, hashes=["xxh64"])
    dataset = StreamingDataset(remote=url, local=tmp_path, shuffle=True, cache_limit=limit, shuffle_block_size=20)
    for _ in range(2):
        assert sorted(ids(dataset)) == list(range(SAMPLES))
        assert kept(tmp_path) <= limit


def loaders(url, cache, ranks, workers, batch_size, **options):
    """A loader for each rank of a job."""
    for rank in range(ranks):
        dataset = StreamingDataset(
            remote=url, local=cache, batch_size=batch_size, shuffle=True, rank=rank, world_size=ranks, **options
        )
        yield StreamingDataLoader(dataset, batch_size=batch_size, num_workers=workers)


@pytest.mark.parametrize("limit", [None, 3 * A_SHARD_BYTES])
def test_ranks_with_workers_read_each_sample_once_and_each_shard_of_a_large_cache_once(limit, url, s3_proxy, tmp_path):
    write(url, hashes=["xxh64"])
    s3_proxy.requests.clear()
    by_rank = []
    for loader in loaders(url, tmp_path, 2, 2, 7, cache_limit=limit):
        with loader:
            by_rank.append([ids([batch]) for batch in loader])
    assert len(by_rank[0]) == len(by_rank[1]) == -(-SAMPLES // 14)
    assert sorted(itertools.chain(*itertools.chain(*by_rank))) == list(range(SAMPLES))
    if limit is None:
        assert set(fetched(s3_proxy).values()) == {1}
    else:
        assert kept(tmp_path) <= limit


def test_a_job_goes_on_with_other_ranks_workers_and_an_empty_cache(url, tmp_path):
    write(url, hashes=["xxh64"])

    def steps(cache, ranks, workers, state=None, count=None):
        """The samples of each step of two epochs, and the state after count steps."""
        runs, states = [], []
        for loader in loaders(url, tmp_path / cache, ranks, workers, 12 // ranks):
            with loader:
                if state is not None:
                    loader.load_state_dict(state)
                found = []
                for _ in range(2):
                    for batch in loader:
                        found.append(ids([batch]))
                        if len(found) == count:
                            states.append(loader.state_dict())
                runs.append(found)
        assert all(saved == states[0] for saved in states)
        return [sorted(itertools.chain(*step)) for step in zip(*runs, strict=True)], states[:1]

    expected, (state,) = steps("a", 2, 2, count=7)
    assert len(expected) == 20
    for ranks, workers in ((1, 2), (3, 0), (2, 1)):
        resumed, _ = steps(f"b{ranks}", ranks, workers, state)
        assert resumed[:13] == expected[7:20]


# What goes wrong


def later():
    """Times in S3 are whole seconds; what is written in one second with equal bytes of an index is the same to it."""
    time.sleep(1.1)


@pytest.mark.parametrize("options", [{}, {"hashes": ["xxh64"]}, {"compression": "zstd"}], ids=str)
@pytest.mark.parametrize("workers", [0, 2])
def test_a_dataset_that_is_replaced_by_one_of_equal_names_and_sizes_is_never_mixed(workers, options, url, tmp_path):
    write(url, **options)
    dataset = StreamingDataset(remote=url, local=tmp_path, batch_size=5, predownload=0)
    loader = StreamingDataLoader(
        dataset, batch_size=5, num_workers=workers, **({"prefetch_factor": 1} if workers else {})
    )
    got = []
    with loader, pytest.raises(WorkerError if workers else DatasetChangedError) as raised:  # noqa: PT012
        for batch in loader:
            got += ids([batch], salt=0)
            if len(got) == 15:
                later()
                write(url, salt=1, exist_ok=True, **options)
    assert "changed while it was open: index.json" in str(raised.value)
    assert got == list(range(len(got)))
    assert 15 <= len(got) < SAMPLES
    again = StreamingDataset(remote=url, local=tmp_path, batch_size=5)
    assert ids(again, salt=1) == list(range(SAMPLES))


def test_a_file_that_is_replaced_alone_is_seen_by_its_digest(url, s3_options, tmp_path):
    write(f"{url}/data", hashes=["xxh64"])
    write(f"{url}/other", hashes=["xxh64"], salt=1)
    store = open_store(url, **s3_options)
    store.put("data/shard.00003.mds", store.get("other/shard.00003.mds"))
    dataset = StreamingDataset(remote=f"{url}/data", local=tmp_path, batch_size=5)
    got = []
    with StreamingDataLoader(dataset, batch_size=5) as loader:
        batches = iter(loader)
        with pytest.raises(CorruptShardError, match=r"shard\.00003\.mds"):
            got += itertools.chain.from_iterable(ids([batch]) for batch in batches)
    assert got == list(range(30))
    assert ids([dataset[40]]) == [40]


def test_requests_are_tried_again_as_often_as_is_said(url, s3_proxy, tmp_path):
    write(url)
    s3_proxy.rules[:] = [Rule(Status(503), method="GET", path="*.mds", times=2)]
    dataset = StreamingDataset(remote=url, local=tmp_path / "a", download_retry=2)
    assert ids(dataset) == list(range(SAMPLES))
    s3_proxy.rules[:] = [Rule(Status(503), path="*index.json")]
    for retries in (0, 1):
        s3_proxy.requests.clear()
        with pytest.raises(TemporaryStoreError):
            len(StreamingDataset(remote=url, local=tmp_path / "b", download_retry=retries))
        assert len(s3_proxy.requests) == retries + 1


def test_a_request_that_stalls_ends_after_the_time_that_is_said(url, s3_proxy, tmp_path):
    write(url)
    s3_proxy.rules[:] = [Rule(Stall(100), method="GET", path="*shard.00000.mds", times=1)]
    dataset = StreamingDataset(remote=url, local=tmp_path, download_timeout=0.5)
    began_s = time.monotonic()
    assert ids(dataset) == list(range(SAMPLES))
    assert 0.5 < time.monotonic() - began_s < 20


def test_a_place_without_a_dataset_is_named_and_no_cache_is_left(url, tmp_path):
    with pytest.raises(NoDatasetError, match=url):
        len(StreamingDataset(remote=url, local=tmp_path / "cache"))
    assert kept(tmp_path) == 0
