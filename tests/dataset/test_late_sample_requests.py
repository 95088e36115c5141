"""A writer of samples to an object store that slept in any request, until another one took its place and finished."""

import contextlib

import pytest

from headrace.datasets import SampleDataset
from headrace.datasets.samples import output, withdrawal
from headrace.errors import CorruptShardError, DatasetError, HeadraceError, NoDatasetError, UnfinishedDatasetError
from headrace.store import MemoryStore
from headrace.testing import FaultStore, Rule, Run
from writing_scenes import files_in, sample, write

LATE, NEXT = range(45), range(1000, 1034)  # other samples, in files of other sizes, except where ids have equal digits
EQUAL = range(50, 95)  # files of the same sizes as many of the late ones


@pytest.fixture(autouse=True)
def distrustful(monkeypatch):
    """As if more than a second had passed since the last check, which a writer that slept sees."""
    monkeypatch.setattr(output, "_TRUSTED_S", 0.0)


def after(nth, successor):
    """A store in which the first writer's nth request comes after all that the successor does; how many there were."""
    store = MemoryStore(flat=True)

    def take_over(_):
        for info in store.list(withdrawal.LEASES):  # as when it has expired
            store.delete(info.path)
        write(store, successor, hashes=["xxh3_64"], exist_ok=True)

    watched = FaultStore(store, [Rule(Run(take_over), nth=nth, times=1)])
    with contextlib.suppress(HeadraceError):
        write(watched, LATE, hashes=["xxh3_64"], exist_ok=True, max_workers=1, retry=0)
    return store, len(watched.calls)


def ids_seen(store):
    """The ids that a reader sees; None where it is refused, or where digests or sizes tell of damage."""
    try:
        with SampleDataset(store) as dataset:
            if dataset.verify():
                return None
            found = dataset[:]
    except (UnfinishedDatasetError, NoDatasetError, CorruptShardError, DatasetError):
        return None
    assert found == [sample(one["id"]) for one in found]
    return [one["id"] for one in found]


@pytest.mark.parametrize("successor", [NEXT, EQUAL, LATE], ids=["other sizes", "equal sizes", "the same"])
def test_a_late_request_gives_one_dataset_or_the_other_or_an_error_and_never_a_mix(successor):
    nth, seen = 1, {}
    while True:
        store, num_calls = after(nth, successor)
        if nth > num_calls:
            break
        seen[nth] = ids_seen(store)
        assert seen[nth] in (None, list(successor), list(LATE)), nth
        write(store, successor, hashes=["xxh3_64"], exist_ok=True)
        assert ids_seen(store) == list(successor)
        assert len(files_in(store)) == 1 + -(-len(successor) // 10)
        nth += 1
    assert sum(ids is None for ids in seen.values()) < len(seen) / 4  # an error costs another run
