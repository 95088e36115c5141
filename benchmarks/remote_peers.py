"""boto3, s3fs and mosaicml-streaming's downloader, timed in an interpreter of their own.

benchmarks.remote runs this with the interpreter that has the client asked for. Each request is one line of JSON, so is
each answer; a client is made once and kept, with its connections.

Only the standard library and the client are imported, so that this file runs where Headrace is not installed.
"""

# mypy: ignore-errors

import functools
import hashlib
import itertools
import os
import pathlib
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from both_sides import serve

BUCKET, ENDPOINT, KEY, SECRET = sys.argv[1:5]


class Boto3:
    """As its guide for threads has it: one client, a pool of connections, a request a call."""

    def __init__(self, threads: int) -> None:
        import boto3
        from botocore.config import Config

        config = Config(max_pool_connections=threads, s3={"addressing_style": "path"})
        session = boto3.session.Session(KEY, SECRET, region_name="us-east-1")
        self.client = session.client("s3", endpoint_url=ENDPOINT, config=config)
        self.pool = ThreadPoolExecutor(threads)

    def whole(self, names: list[str]) -> list[bytes]:
        return list(self.pool.map(self.get, names))

    def files(self, names: list[str], folder: pathlib.Path) -> None:
        def one(name: str) -> None:
            (folder / pathlib.Path(name).name).write_bytes(self.get(name))

        list(self.pool.map(one, names))

    def ranges(self, name: str, starts: list[int], length: int) -> list[bytes]:
        return list(self.pool.map(lambda start: self.get(name, Range=f"bytes={start}-{start + length - 1}"), starts))

    def get(self, name: str, **arguments: str) -> bytes:
        return self.client.get_object(Bucket=BUCKET, Key=name, **arguments)["Body"].read()


class S3fs:
    """Its calls for many at a time, which are concurrent inside."""

    def __init__(self, threads: int) -> None:
        import s3fs

        config = {"s3": {"addressing_style": "path"}, "max_pool_connections": threads}
        self.fs = s3fs.S3FileSystem(
            key=KEY, secret=SECRET, endpoint_url=ENDPOINT, config_kwargs=config, skip_instance_cache=True
        )
        self.batch_size = threads

    def whole(self, names: list[str]) -> list[bytes]:
        found = self.fs.cat([f"{BUCKET}/{name}" for name in names], batch_size=self.batch_size)
        return [found[f"{BUCKET}/{name}"] for name in names]

    def files(self, names: list[str], folder: pathlib.Path) -> None:
        places = [str(folder / pathlib.Path(name).name) for name in names]
        self.fs.get([f"{BUCKET}/{name}" for name in names], places, batch_size=self.batch_size)

    def ranges(self, name: str, starts: list[int], length: int) -> list[bytes]:
        paths, ends = [f"{BUCKET}/{name}"] * len(starts), [start + length for start in starts]
        return self.fs.cat_ranges(paths, starts, ends, batch_size=self.batch_size, on_error="raise")


class Streaming:
    """S3Downloader, which makes files of whole objects and nothing else; its own jobs run it one file at a time."""

    def __init__(self, threads: int) -> None:
        from streaming.base.storage.download import S3Downloader

        os.environ.update(S3_ENDPOINT_URL=ENDPOINT, AWS_ACCESS_KEY_ID=KEY, AWS_SECRET_ACCESS_KEY=SECRET)
        os.environ.update(AWS_DEFAULT_REGION="us-east-1")
        self.downloader = S3Downloader()
        self.downloader._create_s3_client()  # else each of the threads would
        self.pool = ThreadPoolExecutor(threads)

    def files(self, names: list[str], folder: pathlib.Path) -> None:
        def one(name: str) -> None:
            self.downloader.download(f"s3://{BUCKET}/{name}", str(folder / pathlib.Path(name).name))

        list(self.pool.map(one, names))


CLIENTS = {"boto3": Boto3, "s3fs": S3fs, "mosaicml-streaming": Streaming}


@functools.cache
def client_of(name: str, threads: int) -> Boto3 | S3fs | Streaming:
    return CLIENTS[name](threads)


class Answers:
    """One method a request."""

    def whole(self, client: str, threads: int, names: list[str]) -> list[float]:
        """Whole objects into memory."""
        return timed(lambda: client_of(client, threads).whole(names), len(names))

    def files(self, client: str, threads: int, names: list[str], folder: str) -> list[float]:
        """Whole objects into files of a new folder."""
        place = pathlib.Path(folder)
        place.mkdir(parents=True)
        return timed(lambda: client_of(client, threads).files(names, place), len(names))

    def ranges(self, client: str, threads: int, length: int, calls: list[tuple[str, list[int]]]) -> list[float]:
        """Ranges of one length into memory, call after call."""

        def work() -> None:
            for name, starts in calls:
                client_of(client, threads).ranges(name, starts, length)

        return timed(work, sum(len(starts) for _, starts in calls))

    def digest(self, client: str, names: list[str], length: int, calls: list[tuple[str, list[int]]]) -> str:
        """Of these objects and ranges, so that all sides are seen to read the same."""
        reader = client_of(client, 8)
        ranges = (reader.ranges(name, starts, length) for name, starts in calls)
        digest = hashlib.sha256()
        for data in itertools.chain(reader.whole(names), *ranges):
            digest.update(data)
        return digest.hexdigest()


def timed(work: Callable[[], object], units: int) -> list[float]:
    begin, begin_cpu = time.perf_counter(), time.process_time()
    work()
    return [(time.perf_counter() - begin) / units, (time.process_time() - begin_cpu) / units]


def main() -> None:
    serve(Answers())


if __name__ == "__main__":
    main()
