"""What tests/golden/order_v1_runs.json says: mixtures in runs, worked out by the library, or by the references.

The file was written once, from the references alone, by `python tests/planning/golden_runs.py` in a checkout that had
none. It refuses to write over a file: a published order never changes.
"""

import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))

from planning import golden_order
from planning.composed_reference import Shuffled
from planning.composed_runs import Runs
from planning.golden_views import HUGE, LARGE, OTHER, SMALL, positions_of, spec

FILE = Path(__file__).parents[1] / "golden" / "order_v1_runs.json"

ORDERS = [
    Runs((SMALL, OTHER), None, 7, run_length=8),
    Runs((SMALL, OTHER), (9, 1), 7, epoch_size=3000, run_length=10),
    Runs((SMALL, OTHER, LARGE), (1, 2, 3), 7, unit="tokens", epoch_size=600, run_length=3),
    Runs((SMALL, OTHER), None, 7, ((0, (1, 0)), (520, (1, 5))), linear=True, epoch_size=400, run_length=4),
    Runs((SMALL, OTHER), (1, 1), 7, exhausted="stop_all", run_length=8),
    Runs((SMALL, OTHER), (1, 1), 7, max_epochs=(2, None), epoch_size=320, run_length=8),
    Runs((HUGE, Shuffled(LARGE, 5)), (3, 1), 7, run_length=1024),
    Runs((SMALL, OTHER, LARGE), (1, 1, 1), 7, epoch_size=400, start=53, drawn=(20, 30, 3), run_length=8),
]


def document(items):
    """The file's content; items(node, positions) is that of an implementation."""
    orders = []
    for node in ORDERS:
        positions = [position for position in positions_of(node.n) if position >= node.start]
        entry = {"order": spec(node), "length": node.n, "positions": positions, "items": items(node, positions)}
        if node.n <= 5000:
            entry["sha256"] = golden_order.digest(items(node, list(range(node.start, node.n))))
        orders.append(entry)
    return {"order_version": 1, "orders": orders}


def from_references():
    """The content, by the one-at-a-time references."""
    return document(lambda node, positions: [node.place(position) for position in positions])


if __name__ == "__main__":
    with FILE.open("x", encoding="utf-8") as file:
        file.write(golden_order.text_of(from_references()))
