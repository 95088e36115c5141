"""What tests/golden/states_v1.json says: states of loaders over every kind of order, and the batches that come next.

The file was written once, by `python tests/loading/golden_states.py` in a checkout that had none. It refuses to write
over a file: states that were saved load for good. The orders themselves are frozen from references, in order_v1.json
and order_v1_views.json.
"""

import sys
from itertools import islice
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np

from headrace import (
    BufferSortedDataset,
    LinearSchedule,
    MixedDataset,
    PackedDataset,
    SelectedDataset,
    ShardedDataset,
    ShardIndexingMode,
    ShuffledDataset,
    StatefulDataLoader,
    TokenBudgetBatches,
)
from planning import golden_order

FILE = Path(__file__).parents[1] / "golden" / "states_v1.json"


class Documents:
    """Documents with the ids first, first + 1, ...; each is its id, as often as it has tokens."""

    def __init__(self, first, number, longest):
        self.fingerprint = f"{number} documents from {first}, up to {longest} tokens"
        self.ids = np.arange(first, first + number)
        self.lengths = 1 + self.ids * 7919 % longest
        self.shard_items = np.array([number // 4, 0, number // 3, number - number // 4 - number // 3])

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, item):
        return np.full(self.lengths[item], self.ids[item], np.uint16)


WEB = Documents(0, 200, 30)
BOOKS = Documents(1000, 60, 90)
CODE = Documents(2000, 100, 50)
MANY = {f"source {number:03}": Documents(100 * number, 5 + number % 7, 20) for number in range(300)}


def mixed():
    return MixedDataset({"web": ShuffledDataset(WEB, 3), "books": BOOKS}, {"web": 0.7, "books": 0.3}, seed=7)


def other_mixed():
    """The mixture above, changed: books come more often, and code is new."""
    sources = {"web": ShuffledDataset(WEB, 3), "books": BOOKS, "code": CODE}
    return MixedDataset(sources, {"web": 0.3, "books": 0.5, "code": 0.2}, seed=7, epoch_size=260)


def without_books():
    """The mixture above once more, changed again: books left."""
    sources = {"web": ShuffledDataset(WEB, 3), "code": CODE}
    return MixedDataset(sources, {"web": 1, "code": 4}, seed=7, epoch_size=260)


def nested():
    inner = MixedDataset({"web": WEB, "code": CODE}, seed=1)
    return MixedDataset({"both": inner, "books": SelectedDataset(BOOKS, range(10, 40))}, [2, 1], seed=5)


def ramp():
    schedule = LinearSchedule([(0, {"web": 1, "books": 0}), (150, {"web": 1, "books": 2})])
    return MixedDataset({"web": WEB, "books": BOOKS}, schedule=schedule, seed=-9, unit="tokens")


def deep():
    view = ShuffledDataset(SelectedDataset(ShuffledDataset(WEB, 1), range(0, 200, 2)), 2)
    view = ShardedDataset(BufferSortedDataset(view, 40, 8, init_seed=4), 2, 1, ShardIndexingMode.sequential, False)
    return SelectedDataset(ShuffledDataset(view, 3), range(30))


VIEWS = {
    "stored": lambda: WEB,
    "shuffled": lambda: ShuffledDataset(WEB, 7),
    "shuffled, pooled": lambda: ShuffledDataset(WEB, 7, "pooled", pool_items=30, lanes=2),
    "shuffled twice": lambda: ShuffledDataset(ShuffledDataset(WEB, 7), 8),
    "selected": lambda: SelectedDataset(WEB, range(3, 150, 3), exclude=[6, 60]),
    "a shuffle selected": lambda: SelectedDataset(ShuffledDataset(WEB, 7), range(50)),
    "a selection shuffled": lambda: ShuffledDataset(SelectedDataset(WEB, range(50)), 7),
    "sorted in buffers": lambda: BufferSortedDataset(ShuffledDataset(WEB, 7), 64, 8, init_seed=5),
    "sharded": lambda: ShardedDataset(WEB, 3, 2, ShardIndexingMode.chunked, True),
    "six views": deep,
    "mixed": mixed,
    "mixed by size, with limits": lambda: MixedDataset({"web": WEB, "books": BOOKS}, max_epochs={"books": 1}, seed=2),
    "mixed by tokens, on a ramp": ramp,
    "mixed of mixtures": nested,
    "mixed of too many for a text": lambda: MixedDataset(MANY, seed=3),
    "mixed and sorted": lambda: BufferSortedDataset(mixed(), 64, 8),
    "packed": lambda: PackedDataset(ShuffledDataset(WEB, 7), 64, window=50, seed=3),
    "packed, end to end": lambda: PackedDataset(WEB, 64, window=50, strategy="concat"),
    "packed, mixed": lambda: PackedDataset(mixed(), 64, window=50, long="drop"),
    "batches": lambda: TokenBudgetBatches(ShuffledDataset(WEB, 7), 120, 4, window=100, seed=3),
    "batches, unpadded": lambda: TokenBudgetBatches(
        mixed(), 200, 2, padded=False, cost=(1, 1 / 64), max_samples=20, window=100
    ),
}
CHANGES = {  # name -> the record that is gone on with, under which other mixture
    "mixed, changed": ("mixed", other_mixed),
    "mixed, changed twice": ("mixed, changed", without_books),
    "packed, changed in a window": ("packed, mixed", lambda: PackedDataset(other_mixed(), 64, window=50, long="drop")),
    "batches, changed in a window": (
        "batches, unpadded",
        lambda: TokenBudgetBatches(other_mixed(), 200, 2, padded=False, cost=(1, 1 / 64), max_samples=20, window=100),
    ),
}
STEPS = {"stored": 0, "shuffled": 60, "mixed": 40, "packed": 45, "batches": 30}  # before the state is taken
NEXT = 3  # batches that are told


def view_of(name):
    return CHANGES[name][1]() if name in CHANGES else VIEWS[name]()


def loader_over(view):
    size = None if isinstance(view, TokenBudgetBatches) else 6
    return StatefulDataLoader(view, ids_of, global_batch_size=size, rank=0, world_size=1)


def ids_of(samples):
    """The ids of a batch; of packed rows those of each row."""
    return [sample["document_ids"].tolist() if isinstance(sample, dict) else int(sample[0]) for sample in samples]


def endless(loader):
    """The batches of all epochs from where the loader is."""
    while True:
        yield from loader


def document():
    """What the file says, by the library."""
    states = {}
    entries = []
    for name in [*VIEWS, *CHANGES]:
        loader = loader_over(view_of(name))
        if name in CHANGES:
            loader.load_state_dict(states[CHANGES[name][0]], change="from_here")
        steps = endless(loader)
        for _ in range(1 if name in CHANGES else STEPS.get(name, 11)):
            next(steps)
        states[name] = loader.state_dict()
        entries.append({"name": name, "state": states[name], "next": list(islice(steps, NEXT))})
    return {"state_version": 1, "states": entries}


if __name__ == "__main__":
    with FILE.open("x", encoding="utf-8") as file:
        file.write(golden_order.text_of(document()))
