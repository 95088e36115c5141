"""Windows with spans through the loader."""

import itertools
import json

import numpy as np
import pytest
import torch

from dataset.payload_scenes import documents_at, unsynced
from headrace import ShuffledDataset, StatefulDataLoader, StateMismatchError
from headrace.datasets import SpanBatch, StreamWithMetaStorage
from headrace.store import MemoryStore
from loading.payload_samples import PROCESSES, TOKENS, first_tokens, numbered_spans
from loading.samples import IN_PROCESS, WORKERS, epoch, make, take, together

COUNT = 20  # windows of 5 in 100 elements


@pytest.fixture(scope="module")
def storage(tmp_path_factory):
    return numbered_spans(unsynced(tmp_path_factory.mktemp("spans")))


@pytest.mark.parametrize("workers", IN_PROCESS)
@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("drop_last", [False, True])
def test_an_epoch_is_that_of_the_numbers_in_order(storage, workers, shuffle, drop_last):
    for world_size, local in itertools.product([1, 3], [1, 3, 6]):
        options = {"local_batch_size": local, "shuffle": shuffle, "drop_last": drop_last, "world_size": world_size}
        for rank in range(world_size):
            with make(storage.dataset(5), first_tokens, rank=rank, **options, **WORKERS[workers]) as loader:
                assert epoch(loader) == epoch(make(COUNT, rank=rank, **options))


@pytest.mark.parametrize("method", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
@pytest.mark.parametrize("used", [False, True])
def test_worker_processes_give_the_same(storage, method, used):
    dataset = storage.dataset(5)
    if used:
        dataset[:]
    options = {"local_batch_size": 3, "shuffle": True, "drop_last": False}
    with make(dataset, first_tokens, **options, **PROCESSES[method]) as loader:
        assert epoch(loader) == epoch(make(COUNT, **options))


@pytest.mark.parametrize("workers", [*IN_PROCESS, "fork"])
def test_a_collate_function_gets_the_whole_batch_and_may_hand_it_on(storage, workers):
    with make(storage.dataset(5), handed_on, local_batch_size=4, shuffle=True, **WORKERS[workers]) as loader:
        batches = list(loader)
    order = list(itertools.chain.from_iterable(epoch(make(COUNT, local_batch_size=4, shuffle=True))))
    assert all(isinstance(batch, SpanBatch) for batch in batches)
    tokens = np.concatenate([batch.elements for batch in batches])
    assert tokens.tolist() == [list(range(5 * k, 5 * k + 5)) for k in order]
    assert [first_tokens(batch).tolist() for batch in batches] == np.reshape(order, (-1, 4)).tolist()


def handed_on(samples):
    return samples


def test_from_every_position_another_number_of_ranks_goes_on(storage):
    options = {"shuffle": True, "drop_last": False, "global_batch_size": 6}
    expected = take(make(COUNT, **options), 8)  # two epochs of three batches and a short one
    loader = make(storage.dataset(5), first_tokens, **options)
    states = [loader.state_dict()]
    while len(states) < 8:
        for _ in loader:
            states.append(loader.state_dict())
    for done, (state, world_size) in enumerate(zip(states[:8], itertools.cycle([2, 1, 3, 6]), strict=False)):
        ranks = []
        for rank in range(world_size):
            resumed = make(storage.dataset(5), first_tokens, rank=rank, world_size=world_size, **options)
            resumed.load_state_dict(json.loads(json.dumps(state)))
            ranks.append(take(resumed, 8 - done))
        assert together(ranks) == expected[done:]


def test_a_rank_without_rows_gets_what_the_collate_function_makes_of_nothing(storage):
    for rank in range(6):  # the last batch has 2 rows
        options = {"rank": rank, "world_size": 6, "global_batch_size": 6, "drop_last": False}
        assert [len(batch) for batch in epoch(make(storage.dataset(5), first_tokens, **options))] == [1, 1, 1, rank < 2]


def test_the_default_collate_function_refuses_ragged_spans_and_says_what_to_do(storage):
    with pytest.raises(ValueError, match=r"'span_lengths'.*pad them in a collate_fn of your own"):
        next(iter(make(storage.dataset(5), local_batch_size=4)))


def test_from_storage_needs_a_sequence_length_for_windows_and_none_for_documents(storage, tmp_path):
    alone = {"rank": 0, "world_size": 1, "device": "cpu"}
    loader = StatefulDataLoader.from_storage(storage, first_tokens, sequence_length=5, local_batch_size=4, **alone)
    with loader:
        assert [batch.tolist() for batch in loader] == epoch(make(COUNT, local_batch_size=4))
    assert loader.dataset._opened is None  # it owned the dataset
    with pytest.raises(ValueError, match="a stream has no windows of its own; pass sequence_length"):
        StatefulDataLoader.from_storage(storage, first_tokens, **alone)
    with pytest.raises(ValueError, match="sequence_length=0 must be at least 1"):
        StatefulDataLoader.from_storage(storage, first_tokens, sequence_length=0, **alone)
    documents = documents_at(tmp_path, [[[1]]], TOKENS)
    (batch,) = StatefulDataLoader.from_storage(documents, **alone)
    assert batch.tolist() == [[1]]
    for no_storage in (storage.dataset(5), object(), str(tmp_path)):
        with pytest.raises(TypeError, match="is no storage"):
            StatefulDataLoader.from_storage(no_storage, sequence_length=5, **alone)


def test_the_state_fits_the_same_data_and_windows_only(storage):
    loader = make(storage.dataset(5), first_tokens, local_batch_size=4, shuffle=True)
    take(loader, 2)
    state = loader.state_dict()
    elsewhere = numbered_spans(MemoryStore())
    resumed = make(elsewhere.dataset(5), first_tokens, local_batch_size=4, shuffle=True)
    resumed.load_state_dict(state)
    assert take(resumed, 2) == take(make(COUNT, local_batch_size=4, shuffle=True), 4)[2:]
    for other in (
        elsewhere.dataset(5, stride=4),
        elsewhere.dataset(4),
        elsewhere.dataset(5, extra=1),
        numbered_spans(MemoryStore(), (20, 3, 41, 36)).dataset(5),
    ):
        with pytest.raises(StateMismatchError):
            make(other, first_tokens, local_batch_size=4, shuffle=True).load_state_dict(state)


def test_a_shuffled_view_gives_batches_of_spans(storage):
    view = ShuffledDataset(storage.dataset(5), 7)
    batch = view.__getitems__(np.arange(20))
    assert isinstance(batch, SpanBatch)
    assert sorted(first_tokens(batch).tolist()) == list(range(20))
    assert first_tokens([view[3]]).tolist() == first_tokens(batch)[3:4].tolist()
    assert view.lengths.tolist() == [5] * 20


def test_a_window_that_cannot_be_decoded_names_its_batch(storage):
    class Failing:
        stream_dtype = np.dtype("<u2")

        def pack_spans(self, data):
            raise NotImplementedError

        def unpack_spans(self, stream, span_lengths, payloads):
            raise RuntimeError("cannot decode these")

    dataset = StreamWithMetaStorage(storage.storage_dir, Failing()).dataset(5)
    with pytest.raises(RuntimeError, match="cannot decode these") as failed:
        next(iter(make(dataset, list, local_batch_size=2)))
    assert failed.value.__notes__ == ["while loading samples 0, 1"]
    assert torch.is_tensor(next(iter(make(dataset, elements_only, local_batch_size=2))))  # nothing is decoded unasked


def elements_only(samples):
    return torch.from_numpy(samples.elements.copy())
