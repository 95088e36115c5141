"""Datasets of every kind on every server: by ranges, through a cache, in forked processes, overwritten when open."""

import multiprocessing

import pytest

from dataset.remote_reading_scenes import KINDS, all_of, copy_into
from headrace import CachedStore
from headrace.errors import DatasetChangedError
from headrace.store.open import open_store


class Behind:
    """Puts objects where a web server shows them, as it cannot be written."""

    def __init__(self, folder):
        self.folder = folder

    def put(self, path, data):
        target = self.folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        (self.folder / "new").write_bytes(data)
        (self.folder / "new").replace(target)


@pytest.fixture(params=["http", *(pytest.param(kind, marks=pytest.mark.servers) for kind in ("s3", "azure", "gcs"))])
def place(request):
    """What puts objects there, and what opens a store there."""
    url = request.getfixturevalue(f"{request.param}_url")
    if request.param == "http":
        return Behind(request.getfixturevalue("http_folder")), lambda: open_store(url)
    options = request.getfixturevalue(f"{request.param}_options")
    return open_store(url, **options), lambda: open_store(url, **options)


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_reads_the_same_by_ranges_and_through_a_cache(kind, place, tmp_path):
    target, opened = place
    write, dataset = KINDS[kind]
    written = write()
    copy_into(target, written)
    with dataset(written) as local:
        expected, fingerprint = all_of(local), local.fingerprint
    cached = CachedStore(opened(), tmp_path / "cache")
    for store in (opened(), cached, cached):
        with dataset(store) as remote:
            assert all_of(remote) == expected
            assert remote.fingerprint == fingerprint


def read(dataset, number, answers):
    answers.put((number, all_of(dataset)))


@pytest.mark.parametrize("kind", ["stream", "samples"])
def test_forked_processes_read_the_same(kind, place, tmp_path):
    target, opened = place
    write, dataset = KINDS[kind]
    copy_into(target, write())
    context = multiprocessing.get_context("fork")
    answers = context.Queue()
    for store in (opened(), CachedStore(opened(), tmp_path / "cache")):
        with dataset(store) as remote:
            expected = all_of(remote)  # used here first: what a process holds is no use to those that come from it
            children = [context.Process(target=read, args=(remote, number, answers)) for number in range(2)]
            for child in children:
                child.start()
            got = dict(answers.get(timeout=90) for _ in children)
            for child in children:
                child.join(30)
            assert got == {0: expected, 1: expected}
            assert all_of(remote) == expected


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_overwritten_under_a_reader_is_an_error(kind, place):
    target, opened = place
    write, dataset = KINDS[kind]
    copy_into(target, write())
    with dataset(opened()) as remote:
        assert len(all_of(remote)) > 0
        copy_into(target, write(salt=1))
        with pytest.raises(DatasetChangedError):
            all_of(remote)
    with dataset(opened()) as anew, dataset(write(salt=1)) as local:
        assert all_of(anew) == all_of(local)
