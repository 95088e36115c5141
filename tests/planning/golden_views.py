"""What tests/golden/order_v1_views.json says, worked out by the views of the library, or by the references.

The file was written once, from the references alone, by `python tests/planning/golden_views.py` in a checkout that had
none. It refuses to write over a file: a published order never changes, and a better one gets a file of its own.
"""

import dataclasses
import json
import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))

from planning import golden_order, reference
from planning.composed_mixture import Mixed
from planning.composed_reference import BufferSorted, Leaf, Pooled, Selected, Sharded, Shuffled
from planning.composed_rows import Packed, TokenBudget

FILE = Path(__file__).parents[1] / "golden" / "order_v1_views.json"

BLOCKS = [  # total, block, seed, epoch
    (10, 3, 7, 0),
    (10, 3, 7, 1),
    (3000, 256, 0, 5),
    (3000, 1024, -1, 0),
    (5000, 2048, 7, 2),
    (10**12 + 5, 256, 7, 3),
    (10**12 + 5, 10**6, 2**64 - 1, 10**6),
    (2**62, 2**40, 7, 1),
]
SMALL = Leaf(50, shards=5)
OTHER = Leaf(30, first=1000, longest=40, salt=3)
LARGE = Leaf(5000, longest=300, salt=2, shards=12)
HUGE = Leaf(10**12, longest=999, shards=40)
ORDERS = [
    Shuffled(SMALL, 7),
    Pooled(SMALL, 7, 20),
    Pooled(SMALL, 7, 20, 3),
    Pooled(LARGE, -5, 1500, 4),
    Pooled(HUGE, 7, 10**11, 8),
    Selected(SMALL, (3, 4, 20, 49)),
    Selected(Shuffled(SMALL, 1), (0, 7, 49), "exclude"),
    Sharded(SMALL, 4, 3, "sequential", True),
    Sharded(SMALL, 4, 3, "chunked", False),
    BufferSorted(SMALL, 20, 4, 7),
    BufferSorted(Shuffled(LARGE, 3), 1500, 16, 7),
    Mixed((SMALL, OTHER), None, 7),
    Mixed((SMALL, OTHER), (9, 1), 7, epoch_size=300),
    Mixed((SMALL, OTHER, LARGE), (1, 2, 3), 7, unit="tokens", epoch_size=600),
    Mixed((SMALL, OTHER), None, 7, ((0, (1, 1)), (100, (1, 5)), (1000, (3, 1))), epoch_size=400),
    Mixed((SMALL, OTHER), None, 7, ((0, (1, 0)), (500, (1, 5))), linear=True, epoch_size=400),
    Mixed((SMALL, OTHER), (1, 1), 7, exhausted="stop_all"),
    Mixed((SMALL, OTHER), (1, 1), 7, max_epochs=(2, None), epoch_size=300),
    Mixed((HUGE, Shuffled(LARGE, 5)), (3, 1), 7),
    BufferSorted(Mixed((Shuffled(SMALL, 1), Mixed((OTHER, SMALL), (2, 1), 3)), (1, 4), 9, epoch_size=200), 64, 8, 2),
    Shuffled(Selected(Shuffled(Selected(HUGE, (5, 10**11), "exclude"), 3), (0,), "exclude"), 9),
]
ROWS = [
    *(Packed(Shuffled(OTHER, 7), 40, 12, strategy, "split", 5) for strategy in ("best_fit", "first_fit", "concat")),
    Packed(LARGE, 256, 1000, "best_fit", "drop", 5),
    Packed(Mixed((SMALL, OTHER), (1, 1), 7, epoch_size=100), 30, 60, "best_fit", "split", 5),
    TokenBudget(Shuffled(OTHER, 7), 80, 2, 15),
    TokenBudget(OTHER, 80, 2, 15, padded=False, seed=3),
    TokenBudget(LARGE, 2048, 8, 2000, cost=(4096, 1), most=40),
    TokenBudget(LARGE, 2048, 8, 2000, padded=False, cost=(1, 0.25), long="alone"),
]


def spec(node):
    """A node as JSON: its kind, its settings, and those below."""
    if isinstance(node, tuple):
        return [spec(one) for one in node]
    if not dataclasses.is_dataclass(node):
        return node
    fields = {field.name: spec(getattr(node, field.name)) for field in dataclasses.fields(node)}
    return {"kind": type(node).__name__, **fields}


def positions_of(n):
    """The first, those around the ends of epochs, and some far away."""
    edges = {epoch * n + offset for epoch in (1, 2, 5) for offset in range(-3, 3)}
    return sorted({*range(12), n // 2, n // 2 + 1, *(position for position in edges if position >= 0)})


def document(*, block, items, rows):
    """The file's content. Each argument is one function of the implementation, over plain Python lists."""
    blocks = []
    for total, size, seed, epoch in BLOCKS:
        wanted = {*range(8), size - 1, size, total // 2, total - 1}
        indices = sorted(index for index in wanted if index < total)
        settings = {"total": total, "block": size, "seed": seed, "epoch": epoch}
        blocks.append({**settings, "indices": indices, "items": block(indices, total, size, seed, epoch)})
    orders = []
    for node in ORDERS:
        length = node.n
        entry = {"order": spec(node), "length": length, "positions": positions_of(length)}
        entry["items"] = items(node, entry["positions"])
        if length <= 5000:
            entry["sha256"] = golden_order.digest(items(node, list(range(length))))
        orders.append(entry)
    windows = []
    for node in ROWS:
        found = [rows(node, 1, window) for window in (0, node.windows - 1)]
        entry = {"order": spec(node), "windows": node.windows, "epoch": 1}
        if max(map(len, found)) <= 20:
            entry["rows_of_first_and_last"] = found
        entry["sha256"] = [golden_order.digest([json.dumps(row) for row in one]) for one in found]
        windows.append(entry)
    return {"order_version": 1, "blocks": blocks, "orders": orders, "rows": windows}


def from_references():
    """The content, by the one-at-a-time references."""

    def block(indices, total, size, seed, epoch):
        return [reference.permuted_in_block(index, total, size, seed, epoch) for index in indices]

    def rows(node, epoch, window):
        found = node.rows(epoch, window)
        return [[list(piece) if isinstance(piece, tuple) else piece for piece in row] for row in found]

    return document(block=block, items=lambda node, positions: [node.place(p) for p in positions], rows=rows)


if __name__ == "__main__":
    with FILE.open("x", encoding="utf-8") as file:
        file.write(golden_order.text_of(from_references()))
