"""The order of streams once more, from docs/design/streams.md: one position at a time, passes written out as lists.

It shares no code with headrace.planning.
"""

from dataclasses import dataclass
from functools import cached_property, lru_cache
from hashlib import blake2b

from planning import reference
from planning.composed_mixture import Mixed, apportioned
from planning.composed_runs import Runs


@dataclass(frozen=True)
class Source:
    n: int  # whatever a mixture asks of the datasets that it mixes


@dataclass(frozen=True)
class Streams:
    shards: tuple
    chosen: tuple
    shuffle: tuple | None  # ("global",), ("pooled", pool_items, lanes), or None
    seed: int
    fixed: bool = False
    method: str = "random"
    batch: int = 1
    devices: int = 1

    @property
    def sizes(self):
        return [sum(shards) for shards in self.shards]

    @cached_property
    def run(self):
        """How many rows in a row are of one stream, before they are dealt to devices."""
        return {"per_stream": self.batch * self.devices, "device_per_stream": self.batch}.get(self.method, 1)

    @cached_property
    def stratum(self):
        """The rows of each stream in a global batch."""
        total = self.batch * self.devices
        return apportioned(self.chosen, total) if any(self.chosen) else [0] * len(self.chosen)

    @cached_property
    def kept(self):
        """The rows of each stream an epoch."""
        if self.method != "stratified":
            return [rows - rows % self.run for rows in self.chosen]
        pairs = list(zip(self.chosen, self.stratum, strict=True))
        assert all(share for rows, share in pairs if rows)
        steps = 0
        while any(self.chosen) and all((steps + 1) * share <= rows for rows, share in pairs):
            steps += 1
        return [steps * share for share in self.stratum]

    @cached_property
    def refused(self):
        """Whether some stream would never have a row in a batch, or an epoch no batch."""
        served = self.stratum if self.method == "stratified" else self.kept
        never = any(rows and not share for rows, share in zip(self.chosen, served, strict=True))
        return never or (any(self.chosen) and not self.epoch_size)

    @cached_property
    def epoch_size(self):
        total = sum(self.kept)
        return total - total % (self.batch * self.devices) if self.method == "device_per_stream" else total

    def origin(self, position):
        """The stream at a position, and which of its draws it is."""
        if self.method == "stratified":
            step, slot = divmod(position, self.batch * self.devices)
            if self.shuffle:
                size = self.batch * self.devices
                slot = reference.permuted_in_block(slot, size, size, self.derived("stratified"), step)
            listed = [(s, step * share + j) for s, share in enumerate(self.stratum) for j in range(share)]
            return listed[slot]
        if self.method == "device_per_stream":
            batch, row = divmod(position, self.batch * self.devices)
            runs = [[(device, j) for j in range(self.batch)] for device in range(self.devices)]
            rows = [run[j] for j in range(self.batch) for run in runs]  # device after device, element by element
            device, element = rows[row]
            position = (batch * self.devices + device) * self.batch + element
        if self.shuffle and sum(map(bool, self.kept)) > 1:
            return self.mixture.draw(position)
        epoch, index = divmod(position, sum(self.kept))
        for stream, rows in enumerate(self.kept):
            if index < rows:
                return stream, epoch * rows + index
            index -= rows
        raise AssertionError(position)

    @cached_property
    def mixture(self):
        sources = tuple(Source(rows) for rows in self.kept)
        options = {"weights": tuple(self.kept), "seed": self.seed, "epoch_size": sum(self.kept)}
        return Mixed(sources, **options) if self.run == 1 else Runs(sources, **options, run_length=self.run)

    def item(self, stream, draw):
        """The item of the stream that this draw of it is."""
        if self.fixed:
            epoch, index = divmod(draw, self.kept[stream])
            draw = self.fixed_draws(stream, epoch)[index]
        size = self.sizes[stream]
        return self.passes(stream, draw // size)[draw % size]

    @lru_cache(maxsize=256)  # noqa: B019 -- these live as long as a test
    def fixed_draws(self, stream, epoch):
        """The draws of the first epoch, as they come in this one."""
        rows, seed = self.kept[stream], self.derived("stream", stream)
        if not self.shuffle:
            return list(range(rows))
        if not self.in_pools(stream):
            seed = reference.derive_seed(seed, "fixed")
            return [reference.shuffled(epoch * rows + k, rows, seed) - epoch * rows for k in range(rows)]
        block, seed = min(rows, self.shuffle[1] * self.shuffle[2]), reference.derive_seed(seed, "fixed")
        return [reference.permuted_in_block(k, rows, block, seed, epoch) for k in range(rows)]

    @lru_cache(maxsize=256)  # noqa: B019
    def passes(self, stream, number):
        """All items of a stream, in the order in which this pass through them has them."""
        size, seed = self.sizes[stream], self.derived("stream", stream)
        if not self.shuffle:
            return stored_pass(size, self.kept[stream], seed, number)
        if not self.in_pools(stream):
            return [reference.shuffled(number * size + k, size, seed) - number * size for k in range(size)]
        _, pool_items, lanes = self.shuffle
        return reference.pooled_epoch(tuple(self.shards[stream]), pool_items, lanes, seed, number)

    def in_pools(self, stream):
        return self.shuffle[0] == "pooled" and self.sizes[stream] > self.shuffle[1]

    def derived(self, *names):
        return reference.derive_seed(self.seed, *names)

    def id(self, position):
        stream, draw = self.origin(position)
        return sum(self.sizes[:stream]) + self.item(stream, draw)

    @property
    def settings(self):
        """What a state says of the order."""
        found = {"shuffle": self.shuffle[0] if self.shuffle else "off"}
        if found["shuffle"] == "pooled":
            shards = [number for items in self.shards for number in (len(items), *items)]
            found |= {"pool_items": self.shuffle[1], "lanes": self.shuffle[2], "shards": digest(shards)}
        sampling = "fixed" if self.fixed else "balanced"
        found |= {"seed": self.seed, "order_version": 1, "sampling": sampling, "batching": self.method}
        if self.method == "device_per_stream":
            found |= {"batch_size": self.batch, "devices": self.devices}
        elif self.method != "random":
            found |= {"global_batch_size": self.batch * self.devices}
        return found | {"sizes": counts(self.sizes), "chosen": counts(self.chosen)}


def counts(numbers):
    text = ",".join(map(str, numbers))
    return text if len(text) <= 100 else f"{len(numbers)}:{digest(numbers)}"


def digest(numbers):
    return blake2b(b"".join(number.to_bytes(8, "little") for number in numbers), digest_size=16).hexdigest()


def stored_pass(size, rows, seed, number):
    """The items 0 to size - 1: column by column of rows of neighbours, each of which is permuted."""
    if rows >= size:
        return list(range(size))
    permuted = []
    for row in range(rows):
        begin, end = row * size // rows, (row + 1) * size // rows
        assert (end - begin) in (size // rows, size // rows + 1)
        key = reference.mixed(row, reference.mixed(number, reference.derive_seed(seed, "rows")))
        *keys, turn = [reference.mixed(k, key) for k in range(9)]
        moved = [(reference.by_network(end - begin, keys, k) + turn) % (end - begin) for k in range(end - begin)]
        permuted.append([begin + k for k in moved])
    width = max(map(len, permuted))
    return [row[column] for column in range(width) for row in permuted if column < len(row)]
