"""Streams that both libraries write and read: the same records on both sides, without either library."""

import numpy as np

CASES = {
    "tokens_u2": [("tokens", "<u2")],
    "tokens_i4": [("tokens", "<i4")],
    "tokens_u4": [("tokens", "<u4")],
    "masked": [("tokens", "<u2"), ("loss_mask", "u1")],
    "many": [("tokens", "<u2"), ("document", "<u4"), ("weight", "<f4"), ("position", "<i8"), ("vector", "<f2", (3,))],
}
RECORD_LENGTHS = [(0, 7), (0, 6), (2, 40), (3, 1), (2, 9), (5, 300)]  # (shard, elements); shards 1 and 4 stay empty
EMPTY_SHARDS = (1, 4)
READS = [(0, 4), (10, 8), (12, 2), (60, 5), (355, 20), (0, 0), (3, 800)]  # over shards, to the end, round and round
WINDOW = 5


def records(name):
    """(shard, record) in the order of writing; every value follows from its place."""
    dtype = np.dtype(CASES[name])
    place = 0
    for shard in EMPTY_SHARDS:
        yield shard, {field: np.zeros((0, *dtype[field].shape), dtype[field].base) for field in dtype.names}
    for shard, length in RECORD_LENGTHS:
        at = np.arange(place, place + length)
        record = {}
        for number, field in enumerate(dtype.names):
            base, shape = dtype[field].base, dtype[field].shape
            size = int(np.prod(shape, dtype=int))
            values = (at[:, None] * 31 + np.arange(size) * 7 + number) % 251
            record[field] = values.reshape(length, *shape).astype(base)
        yield shard, record
        place += length


def seen_by(reader, windows):
    """What an opened reader and an opened dataset of WINDOW give, of either library."""
    return {
        "lengths": [reader.length(shard) for shard in range(reader.num_shards)],
        "reads": [_plain(reader.read(start, length)) for start, length in READS],
        "windows": [_plain(windows[number]) for number in range(len(windows))],
    }


def _plain(sample):
    return {field: values.tolist() for field, values in sample.items()}
