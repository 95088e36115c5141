"""Order version 1 once more: one number at a time, in Python's unbounded integers, from docs/design/order.md.

It shares no code with headrace.planning, so that a slip in the vectorised arithmetic (an overflow, a chunk's edge, a
wrong dtype) shows as a difference.
"""

import hashlib
from functools import lru_cache

WORD = 1 << 64


def derive_seed(seed, *names):
    text = b""
    for part in (seed, *names):
        raw = str(part).encode()
        text += (b"s" if isinstance(part, str) else b"i") + str(len(raw)).encode() + b":" + raw
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")


def mixed(value, key):
    value = (value + key) * 0x9E3779B97F4A7C15 % WORD
    value ^= value >> 32
    value = value * 0xD6E8FEB86659FD93 % WORD
    return value ^ (value >> 32)


@lru_cache(maxsize=1024)
def sides(n):
    """The grid of at least n cells: left is the smallest number whose square is at least n."""
    low, high = 0, 1 << 32
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if middle * middle >= n else (middle + 1, high)
    return low, (n + low - 1) // low


def permuted(n, seed, position):
    """The item at this position of Permutation(n, seed)."""
    if n <= 1024:
        return by_table(n, derive_seed(seed, "table"))[position]
    return by_network(n, [derive_seed(seed, "round", number) for number in range(8)], position)


def by_table(n, key):
    """The numbers of range(n), sorted by a hash of each."""
    return sorted(range(n), key=lambda number: mixed(number, key))


table_of = lru_cache(maxsize=1024)(by_table)


def by_network(n, keys, position):
    """The item at this position, by a round a key."""
    left_side, right_side = sides(n)
    value = position
    while True:
        left, right = value // right_side, value % right_side
        for number, key in enumerate(keys):
            if number % 2 == 0:
                left = (left + mixed(right, key)) % left_side
            else:
                right = (right + mixed(left, key)) % right_side
        value = left * right_side + right
        if value < n:
            return value


def whole_or_some(n, seed, positions):
    """The items at these positions; a table is sorted once for all of them."""
    if n <= 1024:
        table = by_table(n, derive_seed(seed, "table"))
        return [table[position] for position in positions]
    return [permuted(n, seed, position) for position in positions]


def shuffled(position, num_items, seed):
    """The base's endless position behind this endless position of a global shuffle."""
    epoch, index = position // num_items, position % num_items
    return epoch * num_items + permuted(num_items, derive_seed(seed, "shuffle", epoch), index)


def permuted_in_block(index, total, block, seed, epoch=0):
    """What this number of range(total) becomes when each block is permuted by itself."""
    number = index // block
    size = min(block, total - number * block)
    key = mixed(number, mixed(epoch, derive_seed(seed, "blocks")))
    if size <= 1024:
        return number * block + table_of(size, key)[index % block]
    return number * block + by_network(size, [mixed(k, key) for k in range(8)], index % block)


def pooled(position, shard_items, pool_items, lanes, seed):
    """The base's endless position behind this endless position of a pooled shuffle: an epoch is written out whole."""
    total = sum(shard_items)
    epoch, index = position // total, position % total
    return epoch * total + pooled_epoch(tuple(shard_items), pool_items, lanes, seed, epoch)[index]


@lru_cache(maxsize=64)
def pooled_epoch(shard_items, pool_items, lanes, seed, epoch):
    """The items of an epoch of a pooled shuffle, in order."""
    shards, number = [], 0
    for size in shard_items:
        shards.append(list(range(number, number + size)))
        number += size
    shard_seed = derive_seed(seed, "shards", epoch)
    order = whole_or_some(len(shards), shard_seed, range(len(shards)))
    queue = [item for shard in order for item in shards[shard]]
    lanes = min(lanes, number)
    rows = []
    for lane in range(lanes):
        size = number // lanes + (lane < number % lanes)
        own, queue = queue[:size], queue[size:]
        key = epoch * lanes + lane
        rows.append([own[permuted_in_block(k, size, pool_items, derive_seed(seed, "pools"), key)] for k in range(size)])
    return [rows[index % lanes][index // lanes] for index in range(number)]


def global_batches(num_rows, position, global_batch_size, drop_last):
    """The rows of each global batch that an epoch still has from position on."""
    batches = [
        list(range(start, min(start + global_batch_size, num_rows)))
        for start in range(position, num_rows, global_batch_size)
    ]
    return [batch for batch in batches if len(batch) == global_batch_size or not drop_last]


def dealt(batch, world_size):
    """The rows of one global batch for each rank, dealt like cards."""
    return [batch[rank::world_size] for rank in range(world_size)]
