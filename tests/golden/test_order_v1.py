"""Law 10: a published order never changes. order_v1.json is what version 1 is, for good.

A failure here means that a checkpoint of a released version would go on in another order. Do not touch the file: give
the new order the next version number, and keep this one readable.
"""

import json

import numpy as np
import pytest

from headrace.planning import (
    ORDER_VERSION,
    STATE_VERSION,
    Cursor,
    Permutation,
    decode_state,
    derive_seed,
    encode_state,
    rank_positions,
    shuffled,
)
from planning import golden_order


@pytest.fixture(scope="module")
def golden():
    return json.loads(golden_order.FILE.read_text(encoding="utf-8"))


def dealt(position, num_steps, num_rows, global_batch_size, world_size):
    ranks = []
    for rank in range(world_size):
        rows, offsets = rank_positions(
            position,
            num_steps,
            num_rows=num_rows,
            global_batch_size=global_batch_size,
            rank=rank,
            world_size=world_size,
        )
        ranks.append([rows[offsets[k] : offsets[k + 1]].tolist() for k in range(num_steps)])
    return ranks


def test_the_library_gives_the_golden_order(golden):
    content = golden_order.document(
        derive_seed=derive_seed,
        permuted=lambda n, seed, positions: Permutation(n, seed)(np.array(positions)).tolist(),
        shuffled=lambda positions, n, seed: shuffled(np.array(positions), n, seed).tolist(),
        dealt=dealt,
        state=lambda cursor, settings: encode_state(Cursor(**cursor), settings),
    )
    assert set(content) == set(golden)
    for name, value in content.items():
        assert value == golden[name], name


def test_the_reference_gives_the_golden_order_byte_for_byte():
    assert golden_order.text_of(golden_order.from_reference()) == golden_order.FILE.read_text(encoding="utf-8")


def test_every_golden_permutation_is_undone(golden):
    for entry in golden["permutation"]:
        permutation = Permutation(entry["n"], entry["seed"])
        assert permutation.inverse(np.array(entry["items"])).tolist() == entry["positions"]


def test_every_golden_state_still_loads(golden):
    for entry in golden["states"]:
        record = entry["record"]
        assert decode_state(record, record["settings"]) == Cursor(**entry["cursor"])


def test_the_versions_are_the_golden_ones(golden):
    assert golden["order_version"] == ORDER_VERSION == 1
    assert {entry["record"]["version"] for entry in golden["states"]} == {STATE_VERSION}
