"""Stories of stopped runs, with the numbers at which others went wrong: ends of epochs, other ranks, odd lengths."""

import itertools
import json
import multiprocessing
import os

import numpy as np
import pytest
import torch

from headrace import PackedDataset, WithLengths, stack_segments
from headrace.errors import OrderError, StateMismatchError
from training.ranks import global_rows, global_steps, stream_of, streams_of

EIGHT = {"global_batch_size": 8, "microbatch_size": 8}
WORKERS = {"num_workers": 2, "multiprocessing_context": "fork"}


# Around the end of an epoch: 512 rows in batches of 8, 4 epochs.


@pytest.mark.parametrize("options", [{}, WORKERS, WORKERS | {"persistent_workers": True}], ids=["alone", "new", "kept"])
@pytest.mark.parametrize("after", [63, 64, 66, 255, 256])
def test_a_run_goes_on_exactly_around_the_end_of_an_epoch(options, after):
    config = EIGHT | {"shuffle": True, "epochs": 4}
    reference = list(stream_of(range(512), config))
    epochs = [reference[begin : begin + 64] for begin in range(0, 256, 64)]
    assert all(sorted(row for pack in epoch for row in pack[0]) == list(range(512)) for epoch in epochs)
    config |= options
    with stream_of(range(512), config) as stream:
        assert list(itertools.islice(stream, after)) == reference[:after]
        state = stream.state_dict()
    with stream_of(range(512), config) as stream:
        stream.load_state_dict(json.loads(json.dumps(state)))
        assert list(stream) == reference[after:]
        assert list(stream) == reference, "the old state is not applied again"


def test_a_state_behind_the_last_batch_of_an_epoch_is_that_of_the_next_ones_start():
    stream = stream_of(range(512), EIGHT | {"epochs": 4})
    packs = iter(stream)
    for _ in range(64):
        next(packs)
    before = stream.state_dict()
    place = json.loads(before["state"])
    assert (place["epoch"], place["position"]) == (1, 0)


# Other ranks: 96 rows, a global batch of 8.


def test_four_ranks_then_two_then_eight_give_the_steps_of_one_and_three_are_refused():
    config = {"shuffle": True, "epochs": 2}
    reference = [pack[0] for pack in stream_of(range(96), EIGHT | config)]
    got, state = [], None
    for world_size, microbatch, steps in [(4, 2, 5), (2, 4, 3), (8, 1, None)]:
        sizes = {"global_batch_size": 8, "microbatch_size": microbatch}
        streams = streams_of(range(96), sizes | config, world_size)
        for stream in streams:
            if state is not None:
                stream.load_state_dict(state)
        got += [global_rows(packs) for packs in itertools.islice(zip(*streams, strict=True), steps)]
        state = streams[-1].state_dict()
    assert got == reference
    with pytest.raises(OrderError, match="global_batch_size=8 is not a multiple of world_size=3; 6 and 9"):
        stream_of(range(96), {"global_batch_size": 8, "microbatch_size": 1} | config, 0, 3)


def test_a_larger_global_batch_does_not_end_the_run_early():
    # 64 samples, 5 steps of 8, then steps of 16: d9d takes the run for complete, with 24 samples never seen.
    first = stream_of(range(64), EIGHT)
    seen = [row for pack in itertools.islice(first, 5) for row in pack[0]]
    larger = stream_of(range(64), {"global_batch_size": 16, "microbatch_size": 16, "drop_last": True})
    larger.load_state_dict(first.state_dict())
    assert larger.steps_left == 1, "and 8 rows that fill no step, which drop_last drops"
    seen += [row for pack in larger for row in pack[0]]
    assert seen == list(range(56))


# Other data.


@pytest.mark.parametrize(
    ("saved", "now", "field"),
    [
        (WithLengths(range(100), [2] * 100), WithLengths(range(50), [2] * 50), "num_samples: saved 100, current 50"),
        (range(100), np.arange(100), "data: saved 'builtins.range', current 'numpy.ndarray'"),
    ],
)
def test_other_data_is_refused_with_both_values(saved, now, field):
    stream = stream_of(saved, EIGHT)
    next(iter(stream))
    with pytest.raises(StateMismatchError, match=field):
        stream_of(now, EIGHT).load_state_dict(stream.state_dict())


# Errors of samples in workers.


class TwoArguments(Exception):
    def __init__(self, what, where):
        super().__init__(f"{what} at {where}")


class Unsendable(Exception):
    def __reduce__(self):
        raise TypeError("not over a pipe")


@pytest.mark.parametrize("error", [TwoArguments("bad", "row 7"), Unsendable("bad row")], ids=["two", "unsendable"])
@pytest.mark.parametrize("persistent", [False, True])
def test_any_error_of_a_sample_arrives_with_its_type_text_and_place(error, persistent):
    class Rows(list):
        def __getitem__(self, index):
            if index == 7:
                raise error
            return super().__getitem__(index)

    config = {"global_batch_size": 4, "microbatch_size": 2, "persistent_workers": persistent} | WORKERS
    with (
        stream_of(Rows(range(40)), config) as stream,
        pytest.raises(RuntimeError, match=rf"{type(error).__name__}: {error}\nwhile loading samples 4, 5, 6, 7"),
    ):
        list(stream)
    assert multiprocessing.active_children() == []


def test_a_worker_that_dies_is_named_and_the_stream_can_go_on():
    class Deadly(list):
        def __getitem__(self, index):
            if index == 7 and multiprocessing.parent_process() is not None:
                os._exit(3)
            return super().__getitem__(index)

    config = {"global_batch_size": 4, "microbatch_size": 2} | WORKERS
    stream, got = stream_of(Deadly(range(12)), config), []
    with pytest.raises(RuntimeError, match=r"loader worker 1 .* died \(exit code 3\)"):
        got.extend(stream)  # the death may be seen before or behind the first pack
    state = stream.state_dict()
    stream.close()
    alone = stream_of(Deadly(range(12)), {"global_batch_size": 4, "microbatch_size": 2})
    alone.load_state_dict(state)
    assert got + list(alone) == [[[0, 1], [2, 3]], [[4, 5], [6, 7]], [[8, 9], [10, 11]]]


# Token budgets and packed rows.


def test_lengths_with_one_beyond_the_budget_are_refused_by_name_and_the_rest_keep_the_caps():
    lengths = [10] * 50 + [60] * 5 + [150]
    config = {"max_tokens": 100, "batches_per_step": 2, "shuffle": True}
    with pytest.raises(OrderError, match=r"item 55 of .* has 150 tokens, which max_tokens=100 does not hold"):
        list(stream_of(WithLengths(range(56), lengths), config))
    kept = WithLengths(range(55), lengths[:55])
    parts = [part for packs in zip(*streams_of(kept, config, 2), strict=True) for pack in packs for part in pack]
    assert sorted(row for part in parts for row in part) == list(range(55))
    assert all(max(lengths[row] for row in part) * len(part) <= 100 for part in parts)


def test_the_loss_of_the_packs_of_all_ranks_is_that_of_the_unsplit_batch():
    documents = [torch.arange(1, 2 + index * 3 % 7) for index in range(30)]

    def collator(rows):
        return {"labels": torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=-100)}

    def mean(labels):
        return labels[labels != -100].double().mean()

    dataset = WithLengths(documents, [len(document) for document in documents])
    streams = streams_of(dataset, {"max_tokens": 12, "batches_per_step": 4}, 2, collator)
    for packs in zip(*streams, strict=True):
        losses = sum(pack.weighted_sum([mean(part["labels"]) for part in pack]) for pack in packs)
        weights = sum(pack.loss_weights.sum() for pack in packs)
        rows = torch.cat([part["labels"][part["labels"] != -100] for pack in packs for part in pack])
        torch.testing.assert_close(losses / weights, mean(rows))


@pytest.mark.parametrize("workers", [{}, WORKERS], ids=["alone", "workers"])
def test_packed_rows_go_on_token_for_token_after_each_of_ten_packs(workers):
    documents = [np.full(1 + index * 7 % 20, index, np.int64) for index in range(200)]
    packed = PackedDataset(WithLengths(documents, [len(document) for document in documents]), 16)
    config = {"global_batch_size": 8, "microbatch_size": 4, "epochs": 2}

    def seen(packs):
        return [[part["input_ids"].tolist() for part in pack] for pack in packs]

    reference = seen(stream_of(packed, config, collator=stack_segments()))
    config |= workers
    for stop in range(1, 10, 1 if not workers else 4):
        with stream_of(packed, config, collator=stack_segments()) as stream:
            assert seen(itertools.islice(stream, stop)) == reference[:stop]
            state = stream.state_dict()
        with stream_of(packed, config, collator=stack_segments()) as stream:
            stream.load_state_dict(state)
            assert seen(stream) == reference[stop:]


def test_steps_of_one_rank_and_of_many_are_the_same_when_everything_is_odd():
    for number in (1, 2, 3, 7, 8, 9, 17):
        for ending in ({"drop_last": False}, {"drop_last": False, "padding": True}):
            alone = global_steps([stream_of(range(number), EIGHT | ending | {"epochs": 2})])
            for world_size in (2, 4, 8):
                sizes = {"global_batch_size": 8, "microbatch_size": 1}
                assert global_steps(streams_of(range(number), sizes | ending | {"epochs": 2}, world_size)) == alone
