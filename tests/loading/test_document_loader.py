"""Documents through the loader: the order is that of their numbers, whatever their lengths and shards."""

import itertools
import json

import numpy as np
import pytest
import torch

from dataset.payload_scenes import Marked, documents_at, unsynced
from headrace import ShuffledDataset, StatefulDataLoader, StateMismatchError, stack
from headrace.datasets import DocumentStorage
from headrace.formats.documents import DocumentBytesFormat, DocumentJsonFormat, DocumentNumpyFormat
from headrace.store import MemoryStore
from loading.payload_samples import COUNT, PROCESSES, TOKENS, document, document_shards, pad
from loading.samples import IN_PROCESS, WORKERS, epoch, make, numbers, take, together


@pytest.fixture(scope="module")
def storage(tmp_path_factory):
    return documents_at(unsynced(tmp_path_factory.mktemp("documents")), document_shards(), TOKENS, publish=True)


@pytest.mark.parametrize("workers", IN_PROCESS)
@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("drop_last", [False, True])
def test_an_epoch_is_that_of_the_numbers_in_order(storage, workers, shuffle, drop_last):
    for world_size, local in itertools.product([1, 3], [1, 4, 7]):
        options = {"local_batch_size": local, "shuffle": shuffle, "drop_last": drop_last, "world_size": world_size}
        got, expected = [], []
        for rank in range(world_size):
            with make(storage.dataset(), pad, rank=rank, **options, **WORKERS[workers]) as loader:
                got.append(epoch(loader))
                assert len(loader) == len(got[-1])
            expected.append(epoch(make(COUNT, rank=rank, **options)))
        assert got == expected
        seen = [one for batch in together(got) for one in batch]
        assert len(set(seen)) == len(seen)
        assert drop_last or sorted(seen) == list(range(COUNT))


@pytest.mark.parametrize("method", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
@pytest.mark.parametrize("used", [False, True])
def test_worker_processes_give_the_same(storage, method, used):
    dataset = storage.dataset()
    if used:
        dataset.lengths, dataset[:]
    options = {"local_batch_size": 4, "shuffle": True, "drop_last": False}
    with make(dataset, pad, **options, **PROCESSES[method]) as loader:
        assert epoch(loader) == epoch(make(COUNT, **options))
    assert dataset[5].tolist() == document(5)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_torch_s_own_data_loader_reads_documents_too(storage, num_workers):
    loader = torch.utils.data.DataLoader(
        storage.dataset(),
        batch_size=7,
        collate_fn=pad,
        num_workers=num_workers,
        multiprocessing_context="fork" if num_workers else None,
    )
    assert [numbers(batch) for batch in loader] == epoch(make(COUNT, local_batch_size=7, drop_last=False))


@pytest.mark.parametrize("workers", IN_PROCESS)
def test_from_every_position_another_number_of_ranks_goes_on(storage, workers):
    size, worlds = 12, [1, 2, 3, 4, 6]
    options = {"shuffle": True, "drop_last": False, "global_batch_size": size}
    expected = take(make(COUNT, **options), 12)  # two epochs of five batches and one short one
    loader = make(storage.dataset(), pad, **options)
    states = [loader.state_dict()]
    while len(states) < len(expected):
        for _ in loader:
            states.append(loader.state_dict())
    for done, state in enumerate(states[:12]):
        world_size = worlds[done % len(worlds)]
        ranks = []
        for rank in range(world_size):
            with make(
                DocumentStorage(storage.storage_dir).dataset(),
                pad,
                rank=rank,
                world_size=world_size,
                **options,
                **WORKERS[workers],
            ) as resumed:
                resumed.load_state_dict(json.loads(json.dumps(state)))
                ranks.append(take(resumed, min(4, 12 - done)))
        assert together(ranks) == expected[done : done + 4]


@pytest.mark.parametrize("workers", [*IN_PROCESS, "fork"])
def test_a_rank_without_rows_gets_what_the_collate_function_makes_of_nothing(storage, workers):
    options = {"global_batch_size": 12, "world_size": 12, "drop_last": False}  # 61 documents: one in the last batch
    for rank in (0, 1, 11):
        with make(storage.dataset(), pad, rank=rank, **options, **WORKERS[workers]) as loader:
            batches = list(loader)
        assert [len(batch["id"]) for batch in batches] == [1] * 5 + [rank == 0]
        assert tuple(batches[-1]["tokens"].shape) == ((1, len(document(60))) if rank == 0 else (0, 0))


def test_documents_of_one_length_need_no_collate_function(tmp_path):
    storage = documents_at(tmp_path, [[[i, i + 1] for i in range(5)]], DocumentNumpyFormat("<u2"))
    batches = list(make(storage.dataset(), local_batch_size=2, drop_last=False))
    assert [batch.tolist() for batch in batches] == [[[0, 1], [1, 2]], [[2, 3], [3, 4]], [[4, 5]]]
    assert batches[0].dtype == torch.uint16
    cast = next(iter(make(storage.dataset(), stack(dtype=torch.int64), local_batch_size=2)))
    assert (cast.dtype, cast.tolist()) == (torch.int64, [[0, 1], [1, 2]])
    empty = list(make(storage.dataset(), rank=1, world_size=2, global_batch_size=4, drop_last=False))[-1]
    assert (tuple(empty.shape), empty.dtype) == ((0, 2), torch.uint16)


def test_json_documents_are_stacked_by_field_and_bytes_listed():
    records = [{"text": f"t{i}", "score": i / 2, "ids": [i, i]} for i in range(4)]
    storage = documents_at(MemoryStore(), [records[:3], records[3:]], DocumentJsonFormat())
    batch = next(iter(make(storage.dataset(), local_batch_size=4)))
    assert batch["text"] == ["t0", "t1", "t2", "t3"]
    assert batch["score"].tolist() == [0, 0.5, 1, 1.5]
    assert [column.tolist() for column in batch["ids"]] == [[0, 1, 2, 3]] * 2
    raw = DocumentStorage(storage.store, DocumentBytesFormat())
    assert next(iter(make(raw.dataset(), local_batch_size=2))) == [
        json.dumps(r, separators=(",", ":")).encode() for r in records[:2]
    ]


@pytest.mark.parametrize("workers", IN_PROCESS)
def test_the_default_collate_function_refuses_ragged_documents_and_says_what_to_do(storage, workers):
    with (
        make(storage.dataset(), local_batch_size=4, **WORKERS[workers]) as loader,
        pytest.raises(ValueError, match=r"different shapes, .*; pad them in a collate_fn of your own") as failed,
    ):
        next(iter(loader))
    assert "while loading samples 0, 1, 2, 3" in failed.value.__notes__


@pytest.mark.parametrize("workers", IN_PROCESS)
def test_what_a_document_s_format_raises_names_document_and_batch(workers, tmp_path):
    documents_at(tmp_path, [[b"1", b"2"], [b"3", b"{", b"5"]], Marked())
    dataset = DocumentStorage(tmp_path, DocumentJsonFormat()).dataset()
    loader = make(dataset, list, local_batch_size=2, drop_last=False, **WORKERS[workers])
    with loader, pytest.raises(ValueError, match="truncated") as failed:
        list(loader)
    assert failed.value.__notes__ == [f"while reading document 3 of {tmp_path}", "while loading samples 2, 3"]


# from_storage.


def test_from_storage_takes_documents_without_a_sequence_length(storage):
    loader = StatefulDataLoader.from_storage(storage, pad, local_batch_size=4, rank=0, world_size=1, device="cpu")
    with loader:
        assert [numbers(batch) for batch in loader] == epoch(make(COUNT, local_batch_size=4))
    assert loader.dataset._opened is None  # it owned the dataset
    for length in (8, 1, 0):
        with pytest.raises(TypeError, match="documents have lengths of their own; leave sequence_length out"):
            StatefulDataLoader.from_storage(storage, pad, sequence_length=length, rank=0, world_size=1)


def test_fewer_documents_than_a_batch_are_refused_unless_the_rest_is_served(tmp_path):
    storage = documents_at(tmp_path, [[[1], [2]]], TOKENS)
    with pytest.raises(ValueError, match="2 samples do not fill one global batch of 3"):
        iter(make(storage.dataset(), local_batch_size=3))
    (batch,) = make(storage.dataset(), local_batch_size=3, drop_last=False)
    assert batch.tolist() == [[1], [2]]


def test_no_documents_are_an_epoch_of_no_batches(tmp_path):
    storage = documents_at(tmp_path, [[], []], TOKENS)
    assert list(make(storage.dataset(), pad, drop_last=False)) == []


# What the state rests on.


def test_the_state_names_data_and_order_and_fits_the_same_data_only(storage):
    loader = make(storage.dataset(), pad, local_batch_size=4, shuffle=True)
    take(loader, 3)
    state = loader.state_dict()
    assert loader.describe()["num_samples"] == COUNT
    elsewhere = documents_at(MemoryStore(), document_shards(), TOKENS)  # equal data, not published
    resumed = make(elsewhere.dataset(), pad, local_batch_size=4, shuffle=True)
    resumed.load_state_dict(state)
    assert take(resumed, 2) == take(make(COUNT, local_batch_size=4, shuffle=True), 5)[3:]
    shards = document_shards()
    shards[0][0], shards[0][1] = shards[0][1], shards[0][0]
    other = documents_at(MemoryStore(), shards, TOKENS)
    with pytest.raises(StateMismatchError, match="data"):
        make(other.dataset(), pad, local_batch_size=4, shuffle=True).load_state_dict(state)


def test_lengths_follow_a_shuffled_view(storage):
    view = ShuffledDataset(storage.dataset(), 7)
    assert view.lengths.dtype == np.int64
    assert view.lengths.tolist() == [len(sample) for sample in view]
    assert sorted(view.lengths.tolist()) == sorted(storage.dataset().lengths.tolist())
    assert view.lengths.tolist() != storage.dataset().lengths.tolist()
    twice = ShuffledDataset(view, 8)
    assert twice.lengths.tolist() == [len(sample) for sample in twice]
    assert [sample.tolist() for sample in view[3:9]] == [view[k].tolist() for k in range(3, 9)]
