"""A thousand sources with 10^12 tokens in all, mixed and packed: a run that goes on at half of the epoch has its first
batch as soon as one at the beginning, in a fresh process, with and without a loader."""

import json
import subprocess
import sys
from functools import lru_cache
from pathlib import Path

import pytest

from headrace.planning import Cursor, encode_state
from headrace.views import dataset_settings
from planning.composed_mixture import Mixed
from planning.composed_reference import Leaf
from planning.composed_rows import Packed
from planning.composed_views import real, tokens_of

TESTS = Path(__file__).parent.parent
SOURCES, LENGTH, RANKS, LOCAL = 1000, 8192, 64, 2
MOST_CPU_S, MOST_MIB = 2.0, 200
MOST_STATE_S = 150e-6  # 32 were measured on a busy machine


def packed(window):
    """About 1,000 tokens a document, a million documents a source; shares of tokens from 1 to 17."""
    leaves = tuple(Leaf(1_000_000 + 37 * k, 10_000_000 * k, 1999, k) for k in range(SOURCES))
    mixed = Mixed(leaves, tuple(1 + k % 17 for k in range(SOURCES)), seed=11, unit="tokens")
    return Packed(mixed, LENGTH, window, seed=12)


START = """
import json, sys, time
from pathlib import Path

tests, given = json.loads(sys.argv[1])
sys.path.insert(0, tests)
import numpy as np
from planning.composed_views import real
from planning.test_scale_packed import *

def kib(name):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name))

def measured(work):
    linux = sys.platform == "linux"
    if linux:
        Path("/proc/self/clear_refs").write_text("5")
        before = kib("VmRSS:")
    begin = time.process_time()
    result = work()
    cpu_s = time.process_time() - begin
    return result, cpu_s, kib("VmHWM:") - before if linux else None
"""

# What a rank does: the state's window and row, the rows from there on, those of this rank, read.
BY_VIEWS = """
from headrace.planning import decode_state
from headrace.views import dataset_settings

def first_batch():
    view = real(packed(given["window"]), tokens=True)
    cursor = decode_state(given["state"], {**dataset_settings(view), "drop_last": True})
    rows = view.addresses(cursor.epoch, cursor.window, cursor.row)[given["rank"]::RANKS][:LOCAL]
    return [sample["input_ids"][sample["segment_ids"] > 0].tolist() for sample in view.__getitems__(rows)]

batch, cpu_s, grown_kib = measured(first_batch)
print(json.dumps([batch, cpu_s, grown_kib, "torch" in sys.modules]))
"""

BY_LOADER = """
import statistics
from headrace import StatefulDataLoader

def rows(samples):
    return [sample["input_ids"][sample["segment_ids"] > 0].tolist() for sample in samples]

def first_batch():
    view = real(packed(given["window"]), tokens=True)
    loader = StatefulDataLoader(
        view, rows, device="cpu", global_batch_size=RANKS * LOCAL, rank=given["rank"], world_size=RANKS
    )
    loader.load_state_dict(given["state"])
    batches = iter(loader)
    return loader, batches, next(batches)

(loader, batches, batch), cpu_s, grown_kib = measured(first_batch)
took_s = []
for _ in range(20):
    next(batches)  # so that the state is another one each time
    begin = time.perf_counter()
    state = loader.state_dict()
    took_s.append(time.perf_counter() - begin)
print(json.dumps([batch, cpu_s, grown_kib, len(json.dumps(state)), statistics.median(took_s)]))
"""


def in_a_fresh_process(script, given):
    done = subprocess.run(
        [sys.executable, "-c", START + script, json.dumps([str(TESTS), given])],
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


@lru_cache
def at_half(window, row=5, rank=63):
    """A state in the middle of epoch 1, and the rows of this rank's first batch from there on."""
    node = packed(window)
    middle = node.windows // 2
    view = real(node, tokens=True)
    state = encode_state(Cursor(1, 10**8, middle, row), {**dataset_settings(view), "drop_last": True})
    assert len(json.dumps(state)) < 4096
    rows = node.rows(1, middle)[row + rank :: RANKS][:LOCAL]
    return {"window": window, "state": state, "rank": rank}, [tokens_of(node, each) for each in rows]


@pytest.mark.parametrize("window", [2048, pytest.param(65_536, marks=pytest.mark.slow)])
def test_a_thousand_packed_sources_go_on_at_half_without_a_loader(window):
    given, expected = at_half(window)
    batch, cpu_s, grown_kib, torch_loaded = in_a_fresh_process(BY_VIEWS, given)
    assert batch == expected
    assert not torch_loaded
    assert cpu_s < MOST_CPU_S
    assert grown_kib is None or grown_kib < MOST_MIB * 1024


@pytest.mark.parametrize("window", [2048, pytest.param(65_536, marks=pytest.mark.slow)])
def test_a_thousand_packed_sources_go_on_at_half_through_a_loader(window):
    given, expected = at_half(window)
    batch, cpu_s, grown_kib, state_bytes, took_s = in_a_fresh_process(BY_LOADER, given)
    assert batch == expected
    assert cpu_s < MOST_CPU_S
    assert grown_kib is None or grown_kib < MOST_MIB * 1024
    assert state_bytes < 4096
    assert took_s < MOST_STATE_S
