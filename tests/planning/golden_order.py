"""What tests/golden/order_v1.json says, worked out by an implementation of the order: the library, or the reference.

The file was written once, from the reference alone, by `python tests/planning/golden_order.py` in a checkout that had
none. It refuses to write over a file: a published order never changes, and a better one gets a file of its own.
"""

import hashlib
import sys
from pathlib import Path

FILE = Path(__file__).parents[1] / "golden" / "order_v1.json"

SEEDS = [0, 1, 7, -1, 2**64 - 1]
SIZES = [1, 2, 3, 10, 1000, 1024, 1025, 4096, 10**6, 10**12, 2**61 - 1, 2**62]
NAMES = [[], ["shuffle", 0], ["shuffle", 1], ["round", 0], ["ab", "c"], ["a", "bc"], ["1"], [1], ["ä", -5], [""]]
STATES = [
    ({"epoch": 0, "position": 0, "window": 0, "row": 0}, {"data": "3b5d", "num_samples": 10}),
    (
        {"epoch": 3, "position": 500_000_000_000, "window": 0, "row": 0},
        {
            "data": "6f1ed002ab5595859014ebf0951522d9",
            "sequence_length": 2048,
            "stride": 2048,
            "extra": 1,
            "shuffle": "global",
            "seed": 7,
            "order_version": 1,
            "drop_last": True,
        },
    ),
    ({"epoch": 1, "position": 4096, "window": 61, "row": 17}, {"data": "é", "none": None, "half": 0.5}),
]
DEALS = [  # position, steps, rows an epoch, global batch, ranks
    (0, 2, 100, 8, 4),
    (96, 1, 100, 8, 4),
    (5, 3, 30, 12, 3),
    (10**12 - 20, 2, 10**12, 12, 6),
]


def positions_of(num_items):
    """All of a few; of many the first, a middle run, and the last."""
    if num_items <= 10:
        return list(range(num_items))
    middle = num_items // 2
    return sorted({*range(5), *range(middle, middle + 3), *range(num_items - 3, num_items)})


def edges_of(num_items):
    """Endless positions around the ends of epochs."""
    if num_items <= 10:
        return list(range(3 * num_items))
    epochs = [1] if num_items > 2**60 else [1, 2, 1000]
    return [epoch * num_items + offset for epoch in epochs for offset in (-2, -1, 0, 1)]


def digest(numbers):
    """Of a whole permutation: its numbers in decimal, joined by commas."""
    return hashlib.sha256(",".join(map(str, numbers)).encode()).hexdigest()


def document(*, derive_seed, permuted, shuffled, dealt, state):
    """The file's content. Each argument is one function of the implementation, over plain Python lists."""
    return {
        "order_version": 1,
        "derive_seed": [{"seed": s, "names": names, "value": derive_seed(s, *names)} for s in SEEDS for names in NAMES],
        "permutation": [
            {"n": n, "seed": s, "positions": positions_of(n), "items": permuted(n, s, positions_of(n))}
            for n in SIZES
            for s in SEEDS
        ],
        "whole_permutation": [
            {"n": n, "seed": 7, "sha256": digest(permuted(n, 7, list(range(n))))} for n in (1000, 1024, 1025, 4096)
        ],
        "shuffled": [
            {"num_items": n, "seed": s, "positions": edges_of(n), "items": shuffled(edges_of(n), n, s)}
            for n in SIZES
            for s in (0, 7)
        ],
        "dealt": [
            {
                "position": position,
                "num_steps": steps,
                "num_rows": rows,
                "global_batch_size": size,
                "world_size": ranks,
                "ranks": dealt(position, steps, rows, size, ranks),
            }
            for position, steps, rows, size, ranks in DEALS
        ],
        "states": [{"cursor": cursor, "record": state(cursor, settings)} for cursor, settings in STATES],
    }


def from_reference():
    """The content, by the one-at-a-time reference."""
    import json

    from planning import reference

    def dealt(position, steps, num_rows, size, world_size):
        starts = [position + step * size for step in range(steps)]
        batches = [list(range(start, min(start + size, num_rows))) for start in starts]
        return [[batch[rank::world_size] for batch in batches] for rank in range(world_size)]

    def state(cursor, settings):
        text = json.dumps(settings, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        plan = hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
        return {"version": 1, **cursor, "plan": plan, "settings": settings}

    return document(
        derive_seed=reference.derive_seed,
        permuted=reference.whole_or_some,
        shuffled=lambda positions, n, seed: [reference.shuffled(position, n, seed) for position in positions],
        dealt=dealt,
        state=state,
    )


def text_of(content):
    """The file's text: one entry a line."""
    import json

    lines = ["{"]
    for number, (name, value) in enumerate(content.items()):
        comma = "," if number + 1 < len(content) else ""
        if isinstance(value, list):
            entries = ",\n".join(f"  {json.dumps(entry, ensure_ascii=False)}" for entry in value)
            lines.append(f' "{name}": [\n{entries}\n ]{comma}')
        else:
            lines.append(f' "{name}": {json.dumps(value)}{comma}')
    return "\n".join([*lines, "}", ""])


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))
    with FILE.open("x", encoding="utf-8") as file:
        file.write(text_of(from_reference()))
