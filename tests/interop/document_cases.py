"""Documents that both libraries write and read: the same records on both sides, without either library."""

import json

import numpy as np

MASKED = np.dtype([("tokens", "<u4"), ("loss_mask", "u1")])
CASES = ("bytes", "json", "masked", "pickle", "tokens_u2")
SHARDS = (0, 2, 0, 1, 2, 0, 3, 2, 2, 0, 2)  # of the documents in the order of writing; shard 1 has an empty one only
MANY = (list(range(11)), list(range(10, -1, -1)), [4, 4, 5, 6, 1, 4], [3, 9, 3], [])
SLICES = ((None, None, None), (1, 9, 2), (7, 2, None), (5, None, 3))
TOKENS = [
    np.arange(length) * 31 % 251 + number for number, length in enumerate((5, 0, 1, 0, 7, 40_000, 0, 2, 300, 11, 1))
]
OBJECTS = [
    {"id": 7, "tokens": [1, 2, 3]},
    None,
    [],
    "",
    "snow \u2603 and \U0001f40d",
    [0, -1, 1 << 40],
    1.5,
    {},
    {"nested": {"x": [1.25, None, True]}},
    0,
    "end",
]


def value(name, number):
    """Document number of this case, as it is appended and as it is read."""
    match name:
        case "bytes":
            return TOKENS[number].astype(np.uint8).tobytes()
        case "tokens_u2":
            return TOKENS[number].astype("<u2")
        case "masked":
            document = np.zeros(len(TOKENS[number]), MASKED)
            document["tokens"], document["loss_mask"] = TOKENS[number], TOKENS[number] % 2
            return document
    return OBJECTS[number]


def encoded(name, document):
    """The payload of a document, for every case but "pickle"."""
    match name:
        case "bytes":
            return document
        case "json":
            return json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode()
    return document.tobytes()


def decoded(name, payload):
    """The document of a payload, for every case but "pickle"."""
    match name:
        case "bytes":
            return bytes(payload)
        case "json":
            return json.loads(bytes(payload))
    return np.frombuffer(payload, MASKED if name == "masked" else "<u2")


def records(name, empty_shard=None):
    """(shard, document) in the order of writing. Later shards make room for one that stays empty, if there is one."""
    for number, shard in enumerate(SHARDS):
        is_behind = empty_shard is not None and shard >= empty_shard
        yield shard + is_behind, value(name, number)


def plain(document):
    """The document as JSON can hold it."""
    match document:
        case bytes():
            return document.hex()
        case np.ndarray():
            return [str(document.dtype.descr), document.tolist()]
    return document


def seen_by(reader, dataset):
    """What an opened reader and an opened dataset give, of either library; plain, as JSON gives it back."""
    found = {
        "lengths": [reader.length(shard) for shard in range(reader.num_shards)],
        "read": [plain(reader.read(number)) for number in range(reader.total_length)],
        "many": [[plain(document) for document in reader.read_many(np.array(items, np.int64))] for items in MANY],
        "items": [plain(dataset[number]) for number in range(len(dataset))],
        "slices": [[plain(document) for document in dataset[slice(*cut)]] for cut in SLICES],
    }
    return json.loads(json.dumps(found))


class DocumentFormat:
    """A format of one's own in both libraries."""

    def __init__(self, name):
        self.name = name

    def pack(self, data):
        return encoded(self.name, data)

    def unpack(self, encoded_data, shard):
        return decoded(self.name, encoded_data)


class ShardFormat:
    """Samples are the shard that unpack() is told, and the payload."""

    def pack(self, data):
        raise NotImplementedError

    def unpack(self, encoded_data, shard):
        return [int(shard), bytes(encoded_data).hex()]
