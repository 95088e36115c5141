"""What tests/golden/order_v1_streams.json says: orders of streams, worked out by the library, or by the reference.

The file was written once, from the reference alone, by `python tests/planning/golden_streams.py` in a checkout that had
none. It refuses to write over a file: a published order never changes.
"""

import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))

from dataclasses import asdict
from itertools import product

from planning import golden_order
from planning.stream_reference import Streams

FILE = Path(__file__).parents[1] / "golden" / "order_v1_streams.json"

SHARDS = ((30, 40, 17), (5,), (20, 0, 20, 93))
CHOSEN = (87, 12, 41)
METHODS = (("random", 1, 1), ("per_stream", 3, 2), ("device_per_stream", 3, 2), ("stratified", 5, 4))
LARGE = (tuple(range(400, 440)), (900, 1100))  # pools, rows and global orders that are networks

ORDERS = [
    *(
        Streams(SHARDS, CHOSEN, shuffle, 7, fixed, *method)
        for method, shuffle, fixed in product(METHODS, (None, ("global",), ("pooled", 40, 2)), (False, True))
    ),
    Streams((SHARDS[2],), (133,), None, 7),
    Streams((SHARDS[2],), (40,), ("pooled", 50, 3), -1),
    Streams(LARGE, (5000, 2000), ("pooled", 2500, 2), 2**64 - 1, True),
    Streams(LARGE, (5000, 2000), ("pooled", 2500, 2), 2**64 - 1),
    Streams(LARGE, (5, 1), None, 7),
    Streams(LARGE, (3000, 1999), None, 7, False, "stratified", 300, 4),
]


def document(made):
    """The file's content; made(streams) is an implementation: a function of positions to ids, and the settings."""
    orders = []
    for streams in ORDERS:
        ids, settings = made(streams)
        epoch, far = streams.epoch_size, 10**6 * streams.epoch_size
        positions = [*range(5), *range(epoch - 3, epoch + 3), *range(far - 2, far + 3), 10**15 + 7]
        entry = {
            "order": asdict(streams),
            "epoch_size": epoch,
            "chosen": list(streams.kept),
            "settings": settings,
            "positions": positions,
            "ids": ids(positions),
        }
        if epoch <= 200:
            entry["sha256"] = golden_order.digest(ids(list(range(3 * epoch))))
        orders.append(entry)
    return {"order_version": 1, "orders": orders}


def from_reference():
    """The content, by the one-at-a-time reference."""

    def made(streams):
        return lambda positions: [streams.id(position) for position in positions], streams.settings

    return document(made)


if __name__ == "__main__":
    with FILE.open("x", encoding="utf-8") as file:
        file.write(golden_order.text_of(from_reference()))
