"""Law 10 for mixtures in runs: a published order never changes. Do not touch order_v1_runs.json."""

import json

import numpy as np

from headrace import MixedDataset, StatefulDataLoader
from headrace.views.leaves import leaves_at
from planning import golden_order, golden_runs
from planning.composed_views import real


def items(node, positions):
    view = real(node)
    if node.start:
        view = view.continued(node.start, {f"s{k}": count for k, count in enumerate(node.drawn)})
    found = np.empty(len(positions), np.int64)
    for leaf in leaves_at(view, np.array(positions)):
        found[leaf.places] = leaf.dataset.leaf.first + leaf.items
    return found.tolist()


def test_mixtures_in_runs_give_the_golden_orders():
    golden = json.loads(golden_runs.FILE.read_text(encoding="utf-8"))
    assert json.loads(json.dumps(golden_runs.document(items))) == golden


def test_the_references_give_the_golden_orders_of_runs_byte_for_byte():
    assert golden_order.text_of(golden_runs.from_references()) == golden_runs.FILE.read_text(encoding="utf-8")


# A record as it was saved; and the batch that came next.
STATE = {
    "version": 1,
    "epoch": 0,
    "position": 56,
    "window": 0,
    "row": 0,
    "plan": "35e9a4b7f54fd8a3aae5cd38284ec36b",
    "settings": {
        "mixture": "d068c065483ffcafc0d678096e860b2d",
        "mixture_sources": 2,
        "mixture_seed": 7,
        "epoch_size": 400,
        "mixture_run_length": 8,
        "mixture_plan": '[["a","b"],[30,100],[[0,[1,3]]],false,null,[3,null],400,7,[],8]',
        "mixture_data": "TQlpdLku",
        "drop_last": True,
    },
}
NEXT = [140, 166, 121, 183, 149, 132, 178, 155]


def test_a_saved_state_of_runs_loads_for_good():
    sources = {"a": range(30), "b": range(100, 200)}
    mixed = MixedDataset(sources, {"a": 0.25, "b": 0.75}, 7, run_length=8, epoch_size=400, max_epochs={"a": 3})
    loader = StatefulDataLoader(mixed, list, global_batch_size=8, rank=0, world_size=1)
    loader.load_state_dict(STATE)
    assert loader.state_dict() == STATE
    assert next(iter(loader)) == NEXT
