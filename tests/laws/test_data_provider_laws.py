"""Laws of AutoDataProvider: ranks, microbatches, workers and stops change nothing in the order of the rows."""

import itertools
import json

from hypothesis import given, settings
from hypothesis import strategies as st

from headrace import (
    BufferSortedDataset,
    PackedDataset,
    ShuffledDataset,
    TokenBudgetBatches,
    WithLengths,
    build_device_pack_stream,
)
from training.ranks import dealt_back, global_rows, global_steps, rows_of, stream_of, streams_of
from views.packed_scenes import with_lengths

WORKERS = {"num_workers": 2, "multiprocessing_context": "fork"}

few = settings(max_examples=max(6, settings.default.max_examples // 25))  # each starts processes
some = settings(max_examples=max(15, settings.default.max_examples // 5))  # and threads


@st.composite
def jobs(draw):
    """A dataset of numbered rows with lengths, and a config but for its sizes, as a dict; and the rows a step."""
    number = draw(st.integers(1, 80))
    factor = draw(st.integers(1, 9))
    lengths = [1 + index * factor % 9 for index in range(number)]
    rows = draw(st.sampled_from([1, 2, 4, 6, 12]))
    ending = draw(st.sampled_from(["drop", "short", "pad"] if rows <= number else ["short", "pad"]))
    config = {
        "shuffle": draw(st.booleans()),
        "seed": draw(st.integers(0, 5)),
        "epochs": draw(st.integers(1, 3)),
        "drop_last": ending == "drop",
        "padding": ending == "pad",
    }
    if draw(st.booleans()):
        config["buffer_size"] = draw(st.integers(rows, 40))
        config["pack_size"] = draw(st.integers(1, rows))
    return WithLengths(range(number), lengths), config, rows


def expected(dataset, config, rows):
    """The rows of each step of each epoch, straight from the views."""
    number = len(dataset)
    view = ShuffledDataset(dataset, config["seed"]) if config["shuffle"] else dataset
    if "buffer_size" in config:
        view = BufferSortedDataset(view, config["buffer_size"], config["pack_size"], config["seed"])
    steps = []
    for epoch in range(config["epochs"]):
        if view is dataset:
            order = list(range(number))
        else:
            order = list(view.__getitems__([epoch * number + index for index in range(number)]))
        for begin in range(0, number, rows):
            step = order[begin : begin + rows]
            if len(step) < rows and config["padding"]:
                step += list(itertools.islice(itertools.cycle(order), rows - len(step)))
            if len(step) == rows or not config["drop_last"]:
                steps.append(step)
    return steps


@st.composite
def layouts(draw, rows):
    """How many ranks share a step of so many rows, and rows of a microbatch."""
    world_size = draw(st.sampled_from([size for size in range(1, 7) if rows % size == 0]))
    local = rows // world_size
    microbatch = draw(st.sampled_from([size for size in range(1, local + 1) if local % size == 0]))
    return world_size, {"global_batch_size": rows, "microbatch_size": microbatch}


@given(jobs(), st.data())
def test_the_global_order_is_the_views_order_whatever_the_ranks_and_microbatches(job, data):
    dataset, config, rows = job
    world_size, sizes = data.draw(layouts(rows))
    streams = streams_of(dataset, config | sizes, world_size)
    steps = expected(dataset, config, rows)
    assert {stream.total_steps for stream in streams} == {len(steps)}
    assert global_steps(streams) == steps
    assert {stream.steps_left for stream in streams} == {0}


@given(jobs(), st.data())
def test_a_run_that_is_stopped_again_and_again_goes_on_exactly_with_other_ranks(job, data):
    dataset, config, rows = job
    steps = expected(dataset, config, rows)
    done, state = 0, None
    for _ in range(data.draw(st.integers(1, 4))):
        world_size, sizes = data.draw(layouts(rows))
        streams = streams_of(dataset, config | sizes, world_size)
        if state is not None:
            for stream in streams:
                stream.load_state_dict(json.loads(state))
        assert {stream.steps_left for stream in streams} == {len(steps) - done}
        more = data.draw(st.integers(0, len(steps) - done))
        packs = list(itertools.islice(zip(*streams, strict=True), more))
        assert [global_rows(pack) for pack in packs] == steps[done : done + more]
        done += more
        (state,) = {json.dumps(stream.state_dict()) for stream in streams}
    tail = streams_of(dataset, config | {"global_batch_size": rows, "microbatch_size": rows}, 1)
    tail[0].load_state_dict(json.loads(state))
    assert global_steps(tail) == steps[done:]


@given(jobs(), st.data())
def test_a_resume_with_another_global_batch_reads_the_rows_behind_the_position(job, data):
    dataset, config, rows = job
    config["padding"] = False
    number, epochs = len(dataset), config["epochs"]
    other = data.draw(st.sampled_from([1, 2, 3, 5, 8]))
    config["drop_last"] = config["drop_last"] and other <= number
    if "buffer_size" in config:
        config["buffer_size"] += other  # a buffer holds a global batch, by either size
    whole = expected(dataset, config | {"drop_last": False}, number)  # an epoch a step
    first = stream_of(dataset, config | {"global_batch_size": rows, "microbatch_size": rows})
    done = data.draw(st.integers(0, first.total_steps))
    list(itertools.islice(first, done))
    epoch, step = divmod(done, first.total_steps // epochs)
    rest = [whole[number][step * rows if number == epoch else 0 :] for number in range(epoch, epochs)]
    steps = [
        order[begin : begin + other]
        for order in rest
        for begin in range(0, len(order), other)
        if len(order) - begin >= other or not config["drop_last"]
    ]
    world_size, sizes = data.draw(layouts(other))
    streams = streams_of(dataset, config | sizes, world_size)
    for stream in streams:
        stream.load_state_dict(first.state_dict())
    assert {stream.steps_left for stream in streams} == {len(steps)}
    assert global_steps(streams) == steps


@some
@given(jobs(), st.data())
def test_packs_ahead_are_invisible_in_the_states_too(job, data):
    dataset, config, rows = job
    steps = expected(dataset, config, rows)
    done, state = 0, None
    for _ in range(3):
        world_size, sizes = data.draw(layouts(rows))
        ahead = data.draw(st.integers(0, 3))
        streams = [
            build_device_pack_stream(each, "cpu", ahead) for each in streams_of(dataset, config | sizes, world_size)
        ]
        if state is not None:
            for stream in streams:
                stream.load_state_dict(json.loads(state))
        more = data.draw(st.integers(0, len(steps) - done))
        packs = list(itertools.islice(zip(*streams, strict=True), more))
        assert [global_rows(pack) for pack in packs] == steps[done : done + more]
        done += more
        (state,) = {json.dumps(stream.state_dict()) for stream in streams}
        assert {stream.steps_left for stream in streams} == {len(steps) - done}
        for stream in streams:
            stream.close()


@few
@given(jobs(), st.data())
def test_workers_and_the_batches_they_made_ahead_are_invisible(job, data):
    dataset, config, rows = job
    steps = expected(dataset, config, rows)
    world_size, sizes = data.draw(layouts(rows))
    config |= sizes | WORKERS | {"prefetch_factor": data.draw(st.integers(1, 3))}
    config["persistent_workers"] = data.draw(st.booleans())
    rank = data.draw(st.integers(0, world_size - 1))
    own = [step[rank::world_size] for step in steps]
    cut = data.draw(st.integers(0, len(steps)))
    with stream_of(dataset, config, rank, world_size) as stream:
        head = [rows_of(pack) for pack in itertools.islice(stream, cut)]
        state = stream.state_dict()
    assert head == own[:cut]
    with stream_of(dataset, config, rank, world_size) as stream:
        stream.load_state_dict(state)
        assert [rows_of(pack) for pack in stream] == own[cut:]


@given(jobs(), st.data())
def test_padding_is_marked_row_by_row(job, data):
    dataset, config, rows = job
    config |= {"drop_last": False, "padding": True}
    world_size, sizes = data.draw(layouts(rows))
    seen = []
    for packs in zip(*streams_of(dataset, config | sizes, world_size), strict=True):
        real = [
            [row for part, repeats in zip(pack, pack.num_repeats, strict=True) for row in part[: len(part) - repeats]]
            for pack in packs
        ]
        assert all(len(part) == sizes["microbatch_size"] for pack in packs for part in pack)
        seen += dealt_back(real)
    assert sorted(seen) == sorted([*dataset] * config["epochs"])


@given(jobs(), st.integers(9, 30), st.sampled_from([1, 2, 4, 6]), st.data())
def test_steps_of_token_budgets_are_the_same_for_any_ranks_and_stops(job, max_tokens, per_step, data):
    dataset, config, _ = job
    config = {name: config[name] for name in ("shuffle", "seed", "epochs")}
    view = ShuffledDataset(dataset, config["seed"]) if config["shuffle"] else dataset
    batches = TokenBudgetBatches(view, max_tokens, per_step, seed=config["seed"])
    planned = []
    for epoch in range(config["epochs"]):
        rows = [
            batch
            for window in range(batches.num_windows)
            for batch in batches.__getitems__(batches.addresses(epoch, window))
        ]
        planned += [rows[begin : begin + per_step] for begin in range(0, len(rows), per_step)]
    config |= {"max_tokens": max_tokens, "batches_per_step": per_step}
    done, state = 0, None
    while done < len(planned):
        world_size = data.draw(st.sampled_from([size for size in (1, 2, 3, 4, 6) if per_step % size == 0]))
        streams = streams_of(dataset, config, world_size)
        if state is None:
            assert {stream.total_steps for stream in streams} == {len(planned)}
        for stream in streams:
            if state is not None:
                stream.load_state_dict(state)
            assert stream.steps_left == len(planned) - done
        more = data.draw(st.integers(1, len(planned) - done))
        for packs in itertools.islice(zip(*streams, strict=True), more):
            step = [list(batch) for batch in planned[done]]
            assert [[list(batch) for batch in pack] for pack in packs] == [
                [batch for batch in step[rank::world_size] if batch] for rank in range(world_size)
            ]
            done += 1
        (state,) = {json.dumps(stream.state_dict()) for stream in streams}
        state = json.loads(state)


@given(st.integers(1, 60), st.integers(1, 9), st.sampled_from([1, 2, 4]), st.integers(1, 2), st.booleans(), st.data())
def test_packed_rows_go_on_exactly_although_their_number_differs_by_epoch(number, factor, rows, epochs, pad, data):
    documents = ShuffledDataset(with_lengths([1 + index * factor % 9 for index in range(number)]), 3)
    packed = PackedDataset(documents, 8, window=data.draw(st.integers(8, 40)), seed=1)
    config = {"drop_last": False, "padding": pad, "epochs": epochs}
    steps = []
    for epoch in range(epochs):
        order = [
            row["input_ids"].tolist()
            for window in range(packed.num_windows)
            for row in packed.__getitems__(packed.addresses(epoch, window))
        ]
        filled = order + list(itertools.islice(itertools.cycle(order), -len(order) % rows if pad else 0))
        steps += [filled[begin : begin + rows] for begin in range(0, len(filled), rows)]
    done, state = 0, None
    for _ in range(3):
        world_size, sizes = data.draw(layouts(rows))
        streams = streams_of(
            packed, config | sizes, world_size, lambda part: [row["input_ids"].tolist() for row in part]
        )
        if state is not None:
            for stream in streams:
                stream.load_state_dict(json.loads(state))
        assert {stream.total_steps for stream in streams} == {len(steps)}
        assert {stream.steps_left for stream in streams} == {len(steps) - done}
        more = data.draw(st.integers(0, len(steps) - done))
        packs = list(itertools.islice(zip(*streams, strict=True), more))
        assert [global_rows(pack) for pack in packs] == steps[done : done + more]
        done += more
        (state,) = {json.dumps(stream.state_dict()) for stream in streams}
