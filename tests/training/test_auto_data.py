"""What AutoDataProvider promises besides its order: refusals, states, epochs, errors of samples, foreign datasets."""

import itertools
import json
import logging
import multiprocessing
import threading

import numpy as np
import pytest
import torch
from torch.utils.data import IterableDataset

from headrace import (
    AutoDataConfig,
    AutoDataProvider,
    InitializeDataProviderContext,
    MicrobatchPackStream,
    ShardedDataset,
    ShardIndexingMode,
    ShuffledDataset,
    StateMismatchError,
    StreamNumpyFormat,
    StreamStorage,
    TokenBudgetBatches,
    WithLengths,
)
from headrace.errors import ClosedError, OrderError, StateError, WorkerError
from training.ranks import Place, global_steps, rows_of, stream_of, streams_of

SIZES = {"global_batch_size": 4, "microbatch_size": 2}
WORKERS = {"num_workers": 2, "multiprocessing_context": "fork"}


BUDGET = {"max_tokens": 8, "batches_per_step": 4}


class Numbers:
    """Sample i is i, if it is a good one."""

    def __init__(self, length, bad=None, stuck=None):
        self.length, self.bad, self.stuck = length, bad, stuck

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        if index == self.bad:
            raise LookupError(f"sample {index} is unreadable")
        if index == self.stuck:
            threading.Event().wait()
        return index


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        ({}, "global_batch_size=None is not valid"),
        ({"global_batch_size": 8}, "microbatch_size=None is not valid"),
        ({"global_batch_size": -8, "microbatch_size": -4}, "global_batch_size\n.*greater than or equal to 1"),
        ({"global_batch_size": 8, "microbatch_size": 0}, "microbatch_size\n.*greater than or equal to 1"),
        ({"global_batch_size": 8, "microbatch_size": 3}, "global_batch_size=8 .* a multiple of microbatch_size=3"),
        (SIZES | {"num_workers": -1}, "num_workers\n.*greater than or equal to 0"),
        (SIZES | {"persistent_workers": True}, "persistent_workers=True .* nothing with num_workers=0"),
        (SIZES | {"prefetch_factor": 2}, "prefetch_factor=2 .* nothing with num_workers=0"),
        (SIZES | {"timeout": 1.0}, "timeout=1.0 .* nothing with num_workers=0"),
        (SIZES | {"multiprocessing_context": "fork"}, "multiprocessing_context='fork' .* nothing with num_workers=0"),
        (SIZES | WORKERS | {"multiprocessing_context": "thread"}, "'fork', 'spawn' or 'forkserver'"),
        (SIZES | WORKERS | {"timeout": float("nan")}, "timeout\n.*finite number"),
        (SIZES | {"epochs": 0}, "epochs\n.*greater than or equal to 1"),
        (SIZES | {"padding": True}, "padding=True .* drop_last=False beside it"),
        (SIZES | {"pack_size": 2}, "pack_size=2 .* nothing without buffer_size"),
        (SIZES | {"buffer_size": 3}, "buffer_size=3 .* at least pack_size=4"),
        ({"max_tokens": 8}, "batches_per_step=None .* make a step together"),
        ({"batches_per_step": 8}, "max_tokens=None .* make a step together"),
        (SIZES | {"max_tokens": 8, "batches_per_step": 4}, "global_batch_size=4 .* nothing beside max_tokens"),
        ({"max_tokens": 8, "batches_per_step": 4, "buffer_size": 9}, "buffer_size=9 .* nothing beside max_tokens"),
        ({"max_tokens": 8, "batches_per_step": 4, "padding": True, "drop_last": False}, "padding=True .* False beside"),
        (SIZES | {"shufle": True}, "shufle\n.*Extra inputs are not permitted"),
    ],
)
def test_a_config_that_makes_no_sense_is_refused_with_the_reason(config, problem):
    with pytest.raises(ValueError, match=problem):
        AutoDataConfig(**config)


def test_the_config_of_the_document_needs_no_other_field():
    config = AutoDataConfig(global_batch_size=256, microbatch_size=4, num_workers=4, shuffle=True)
    assert (config.drop_last, config.seed, config.epochs, config.padding, config.pin_memory) == (
        True,
        0,
        1,
        False,
        True,
    )


def test_ranks_that_cannot_share_a_step_are_refused():
    with pytest.raises(OrderError, match="global_batch_size=4 is not a multiple of world_size=3; 3 and 6"):
        stream_of(range(9), SIZES, 0, 3)
    with pytest.raises(ValueError, match=r"microbatch_size=2 .* a divisor of 3, a rank's rows of .*, such as 1"):
        stream_of(range(20), {"global_batch_size": 12, "microbatch_size": 2}, 0, 4)
    with pytest.raises(ValueError, match=r"batches_per_step=4 .* a multiple of 3"):
        stream_of(WithLengths(range(9), [1] * 9), {"max_tokens": 8, "batches_per_step": 4}, 0, 3)


class Endless(IterableDataset):
    def __iter__(self):
        return iter(range(10))


def budgets():
    return TokenBudgetBatches(WithLengths(range(9), [1] * 9), 4, 2)


@pytest.mark.parametrize(
    ("dataset", "config", "error", "problem"),
    [
        (Endless(), {}, TypeError, "a Endless, which has no __len__"),
        (
            ShardedDataset(range(9), 2, 1, ShardIndexingMode.sequential, True),
            {},
            OrderError,
            "shard 1 of 2; return the",
        ),
        (ShuffledDataset(range(9), 0), {"shuffle": True}, OrderError, "shuffle=True over a ShuffledDataset"),
        (budgets(), {}, OrderError, "gave a TokenBudgetBatches; return the dataset below it"),
        ({"train": range(9), "test": range(3)}, {}, TypeError, "gave a dict of 'train', 'test'; return one of them"),
    ],
)
def test_a_dataset_that_cannot_be_dealt_is_refused_at_once(dataset, config, error, problem):
    with pytest.raises(error, match=problem):
        stream_of(dataset, SIZES | config)


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"dataset_factory": [1, 2]}, "dataset_factory is a list, .* a function, as lambda dist_context: data"),
        ({"collator": "stack"}, "collator is a str, .* a function of a list of samples"),
        ({"config": SIZES}, "config is a dict, .* an AutoDataConfig"),
    ],
)
def test_an_argument_of_another_kind_is_refused_at_once(given, problem):
    arguments = {"dataset_factory": lambda _: range(8), "collator": list, "config": AutoDataConfig(**SIZES)}
    with pytest.raises(TypeError, match=problem):
        AutoDataProvider(**(arguments | given))


def test_the_factory_is_given_the_context():
    given = []
    place = Place()
    provider = AutoDataProvider(lambda context: given.append(context) or range(8), list, AutoDataConfig(**SIZES))
    stream = provider(InitializeDataProviderContext(dist_context=place))
    assert given == [place]
    assert isinstance(stream, MicrobatchPackStream)
    assert stream.is_elastic is True


def test_a_mode_of_sharding_is_accepted_and_said_to_change_nothing(caplog):
    caplog.set_level(logging.INFO, "headrace")
    plain = list(stream_of(range(8), SIZES))
    assert caplog.messages == []
    assert list(stream_of(range(8), SIZES | {"shard_indexing_mode": "chunked"})) == plain
    (message,) = caplog.messages
    assert "shard_indexing_mode=chunked changes nothing" in message


def test_epochs_are_shuffled_anew_and_each_has_every_sample_once():
    stream = stream_of(range(20), SIZES | {"epochs": 3, "shuffle": True})
    assert stream.total_steps == stream.steps_left == 15
    rows = [row for pack in stream for row in rows_of(pack)]
    epochs = [rows[begin : begin + 20] for begin in (0, 20, 40)]
    assert [sorted(epoch) for epoch in epochs] == [list(range(20))] * 3
    assert len({tuple(epoch) for epoch in epochs}) == 3


def test_a_stream_without_end_goes_on_and_says_so():
    stream = stream_of(range(6), SIZES | {"epochs": None, "drop_last": False})
    assert stream.total_steps is None
    assert stream.steps_left is None
    steps = [rows_of(pack) for pack in itertools.islice(stream, 5)]
    assert steps == [[0, 1, 2, 3], [4, 5], [0, 1, 2, 3], [4, 5], [0, 1, 2, 3]]


def test_a_run_without_end_over_nothing_is_refused_rather_than_waited_for():
    with pytest.raises(OrderError, match="epoch 0 has no rows"):
        list(stream_of([], SIZES | {"epochs": None, "drop_last": False}))
    assert list(stream_of([], SIZES | {"drop_last": False})) == []


def test_a_dataset_that_fills_no_step_is_refused_when_steps_are_counted():
    stream = stream_of(range(3), SIZES)
    with pytest.raises(OrderError, match="3 samples do not fill one global batch of 4"):
        _ = stream.total_steps


@pytest.mark.parametrize("workers", [{}, WORKERS], ids=["alone", "workers"])
def test_a_rank_without_rows_in_the_last_step_gets_an_empty_pack_and_its_collator_no_call(workers):
    def collator(rows):
        assert len(rows) > 0
        return list(rows)

    config = {"global_batch_size": 8, "microbatch_size": 1, "drop_last": False} | workers
    streams = streams_of(Numbers(10), config, 4, collator)
    packs = [list(stream) for stream in streams]
    assert [pack[-1] for pack in packs] == [[[8]], [[9]], [], []]
    assert [rows for step in zip(*packs, strict=True) for pack in step for rows in pack if pack] != []
    for stream in streams:
        stream.close()


def test_an_evaluation_sees_every_sample_once_on_any_number_of_ranks():
    for number, world_size in itertools.product([1, 7, 8, 9, 1001], [1, 2, 4, 8]):
        config = {"global_batch_size": 8, "microbatch_size": 1, "drop_last": False}
        steps = global_steps(streams_of(range(number), config, world_size))
        assert [row for step in steps for row in step] == list(range(number))


def test_without_a_collator_samples_are_stacked():
    (pack,) = stream_of([{"id": index} for index in range(4)], SIZES, collator=None)
    assert [microbatch["id"].tolist() for microbatch in pack] == [[0, 1], [2, 3]]


def test_windows_of_a_token_stream_are_read_and_stacked_at_once(tmp_path):
    storage = StreamStorage(tmp_path / "tokens", StreamNumpyFormat(np.dtype([("tokens", "<u2")])))
    with storage.sync_writer() as writer:
        writer.append(0, {"tokens": np.arange(64, dtype=np.uint16)})
    storage.publish()
    packs = list(stream_of(storage.dataset(8), SIZES, collator=None))
    assert torch.equal(
        torch.cat([microbatch["tokens"] for pack in packs for microbatch in pack]).int().flatten(),
        torch.arange(64).int(),
    )


def test_a_loop_that_is_broken_off_goes_on_and_one_that_ended_begins_anew():
    stream = stream_of(range(12), SIZES | {"epochs": 2, "shuffle": True})
    reference = list(stream)
    assert list(stream) == reference, "a second pass is the first one again"
    first = list(itertools.islice(stream, 4))
    assert first + list(stream) == reference
    assert stream.steps_left == 0


def test_a_loaded_state_of_the_end_gives_nothing_and_then_a_new_pass():
    done = stream_of(range(8), SIZES)
    reference = list(done)
    stream = stream_of(range(8), SIZES)
    stream.load_state_dict(done.state_dict())
    assert stream.steps_left == 0
    assert list(stream) == []
    assert list(stream) == reference


def test_an_overtaken_iterator_is_refused_rather_than_served_twice():
    stream = stream_of(range(12), SIZES)
    old = iter(stream)
    next(old)
    new = iter(stream)
    assert next(new) == [[4, 5], [6, 7]]
    with pytest.raises(ClosedError, match="this iterator is over"):
        next(old)
    stream.load_state_dict(stream_of(range(12), SIZES).state_dict())
    with pytest.raises(ClosedError):
        next(new)


@pytest.mark.parametrize("overtake", ["iter", "load", "close"])
def test_an_iterator_that_is_overtaken_before_its_first_pack_is_refused_too(overtake):
    stream = stream_of(range(12), SIZES)
    never_asked = iter(stream)
    if overtake == "iter":
        assert next(iter(stream)) == [[0, 1], [2, 3]]
    elif overtake == "load":
        stream.load_state_dict(stream.state_dict())
    else:
        stream.close()
    with pytest.raises(ClosedError, match="this iterator is over"):
        next(never_asked)
    served = 1 if overtake == "iter" else 0
    assert list(stream) == list(stream_of(range(12), SIZES))[served:]


def test_the_state_is_one_small_text_equal_on_every_rank_before_and_after_any_pack():
    streams = streams_of(range(64), {"global_batch_size": 8, "microbatch_size": 1, "shuffle": True, "epochs": 2}, 4)
    states = [stream.state_dict() for stream in streams]
    for packs in zip(*streams, strict=True):
        assert len(packs) == 4
        states += [stream.state_dict() for stream in streams]
        assert len({state["state"] for state in states[-4:]}) == 1
    assert all(set(state) == {"state"} and len(json.dumps(state)) < 4096 for state in states)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"seed": 1}, "seed"),
        ({"shuffle": False}, "shuffle"),
        ({"drop_last": False}, "drop_last"),
        ({"buffer_size": 8}, "buffer_size"),
    ],
)
def test_a_state_of_another_order_is_refused_by_name(change, field):
    config = SIZES | {"shuffle": True}
    state = stream_of(range(12), config).state_dict()
    with pytest.raises(StateMismatchError, match=field):
        stream_of(range(12), config | change).load_state_dict(state)
    with pytest.raises(StateMismatchError, match="num_samples: saved 12, current 13"):
        stream_of(range(13), config).load_state_dict(state)


@pytest.mark.parametrize(
    "state", [None, {}, {"state": 3}, {"state": "{"}, {"state": "[]"}, {"state": "{}"}, {"dp_0": {}}]
)
def test_what_is_no_state_is_refused_and_changes_nothing(state):
    stream = stream_of(range(12), SIZES)
    head = list(itertools.islice(stream, 1))
    with pytest.raises(StateError):
        stream.load_state_dict(state)
    assert head + list(stream) == list(stream_of(range(12), SIZES))


@pytest.mark.parametrize("fault", ["raises", "dies"])
def test_an_error_in_a_worker_names_the_sample_and_leaves_no_process(fault):
    def collator(rows):
        if fault == "dies" and 7 in rows:
            multiprocessing.current_process().kill()
        return list(rows)

    dataset = Numbers(40, bad=7 if fault == "raises" else None)
    stream = stream_of(dataset, SIZES | WORKERS, collator=collator)
    with pytest.raises(WorkerError, match=r"samples 4, 5, 6, 7") as caught:
        list(stream)
    if fault == "raises":
        assert "LookupError: sample 7 is unreadable" in str(caught.value)
    stream.close()
    assert multiprocessing.active_children() == []


def test_a_worker_that_gives_nothing_in_time_is_an_error():
    stream = stream_of(Numbers(40, stuck=7), SIZES | WORKERS | {"timeout": 1.0})
    with pytest.raises(WorkerError, match="gave no batch in time"):
        list(stream)
    stream.close()


def test_a_loop_that_is_broken_off_leaves_no_process():
    stream = stream_of(Numbers(400), SIZES | WORKERS)
    packs = iter(stream)
    next(packs)
    assert len(multiprocessing.active_children()) == 2
    packs.close()
    assert multiprocessing.active_children() == []
    assert rows_of(next(iter(stream))) == [4, 5, 6, 7]
    stream.close()
    assert multiprocessing.active_children() == []


def rows_of_lists(value):
    datasets = pytest.importorskip("datasets")
    return datasets.Dataset.from_dict({"input_ids": [[value, value]] * 4, "labels": list(range(4))})


def stacked(rows):
    return torch.stack([row["input_ids"] for row in rows])


@pytest.mark.parametrize("workers", [{}, WORKERS], ids=["alone", "workers"])
def test_rows_of_lists_of_numbers_become_tensors_for_a_collator_that_needs_them(workers):
    with stream_of(rows_of_lists(7), SIZES | workers, collator=stacked) as stream:
        assert [[part.tolist() for part in pack] for pack in stream] == [[[[7, 7]] * 2] * 2]
    assert [rows_of(pack) for pack in stream_of(rows_of_lists(7), SIZES)] == [list(rows_of_lists(7))]


@pytest.mark.parametrize("workers", [{}, WORKERS], ids=["alone", "workers"])
def test_rows_of_lists_of_texts_are_refused_with_the_way_to_tensors(workers):
    error = WorkerError if workers else TypeError
    problem = r"rows whose 'input_ids' are lists, .*return dataset.with_format\('torch'\)"
    with (
        stream_of(rows_of_lists("text"), SIZES | workers, collator=stacked) as stream,
        pytest.raises(error, match=problem),
    ):
        list(stream)


def test_another_type_error_of_a_collator_is_left_as_it_is():
    with pytest.raises(TypeError, match=r"^mine\n"):
        list(stream_of(range(4), SIZES, collator=lambda rows: (_ for _ in ()).throw(TypeError("mine"))))


def test_a_hugging_face_dataset_is_read_many_rows_at_a_time(monkeypatch):
    datasets = pytest.importorskip("datasets")
    dataset = datasets.Dataset.from_dict({"input_ids": [[index, index] for index in range(8)]}).with_format("torch")
    asked = []
    whole = type(dataset).__getitems__
    monkeypatch.setattr(type(dataset), "__getitems__", lambda self, keys: asked.append(list(keys)) or whole(self, keys))
    packs = list(stream_of(dataset, SIZES, collator=stacked))
    assert asked == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert torch.equal(torch.cat([part for pack in packs for part in pack])[:, 0], torch.arange(8))


def test_buckets_put_rows_of_like_length_together():
    lengths = [1 + index * 7 % 50 for index in range(200)]
    dataset = WithLengths(range(200), lengths)

    def spread(config):
        stream = stream_of(dataset, {"global_batch_size": 20, "microbatch_size": 5} | config)
        parts = [[lengths[row] for row in part] for pack in stream for part in pack]
        return sum(max(part) * len(part) - sum(part) for part in parts)

    plain = spread({"shuffle": True})
    by_step = spread({"shuffle": True, "buffer_size": 200})
    by_microbatch = spread({"shuffle": True, "buffer_size": 200, "pack_size": 5})
    assert by_microbatch < by_step < plain


def test_microbatches_of_token_budgets_hold_the_budget_and_every_sample_once():
    lengths = [1 + index * 5 % 13 for index in range(101)]
    dataset = WithLengths(range(101), lengths)
    streams = streams_of(dataset, {"max_tokens": 26, "batches_per_step": 6, "shuffle": True}, 3)
    parts = [part for packs in zip(*streams, strict=True) for pack in packs for part in pack]
    assert all(max(lengths[row] for row in part) * len(part) <= 26 for part in parts)
    assert sorted(row for part in parts for row in part) == list(range(101))


def labelled(rows):
    """Rows are lengths: so many labels each, the first of which is none."""
    labels = torch.zeros(len(rows), max(rows), dtype=torch.int64)
    labels[:, 0] = -100
    return {"labels": labels}


@pytest.mark.parametrize("workers", [{}, WORKERS], ids=["alone", "workers"])
def test_packs_of_token_budgets_count_the_targets_of_each_microbatch(workers):
    lengths = [1 + index % 4 for index in range(40)]
    streams = streams_of(WithLengths(lengths, lengths), BUDGET | workers, 2, labelled)
    packs = [pack for stream in streams for pack in stream]
    for pack in packs:
        assert pack.num_targets.tolist() == [int((part["labels"] != -100).sum()) for part in pack]
    assert sum(pack.num_targets.sum() for pack in packs) > 0
    uncountable = stream_of(WithLengths(lengths, lengths), BUDGET, collator=lambda rows: {"rows": list(rows)})
    assert all(type(pack) is list for pack in uncountable)
    for stream in streams:
        stream.close()


def test_a_step_with_too_few_samples_gives_shorter_packs_and_the_collator_no_empty_list():
    def collator(rows):
        assert len(rows) > 0
        return list(rows)

    streams = streams_of(WithLengths(range(3), [8, 8, 8]), BUDGET, 4, collator)
    packs = [next(iter(stream)) for stream in streams]
    assert sorted(map(len, packs)) == [0, 1, 1, 1]


def test_an_error_within_a_pack_leaves_the_state_at_the_pack_before_it():
    class Once(Numbers):
        def __getitem__(self, index):
            if index == self.bad:
                self.bad = None
                raise LookupError("not now")
            return index

    lengths = [3] * 40
    reference = list(stream_of(WithLengths(range(40), lengths), BUDGET))
    bad = reference[1][2][0]
    stream = stream_of(WithLengths(Once(40, bad=bad), lengths), BUDGET)
    packs = iter(stream)
    assert next(packs) == reference[0]
    before = stream.state_dict()
    with pytest.raises(LookupError):
        next(packs)
    assert stream.state_dict() == before
    assert list(stream) == reference[1:]


def test_a_state_from_within_a_step_is_refused():
    stream = stream_of(WithLengths(range(40), [3] * 40), BUDGET)
    within = iter(stream.loader)
    next(within)
    state = {"state": json.dumps(stream.loader.state_dict())}
    with pytest.raises(StateError, match="within a step: 1 of its 4 batches"):
        stream_of(WithLengths(range(40), [3] * 40), BUDGET).load_state_dict(state)
