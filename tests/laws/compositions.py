"""Compositions of views that Hypothesis draws, as nodes of planning.composed_reference."""

from hypothesis import strategies as st

from planning.composed_mixture import Mixed
from planning.composed_reference import BufferSorted, Leaf, Pooled, Selected, Sharded, Shuffled, length_of
from planning.composed_rows import Packed, TokenBudget
from planning.composed_runs import Runs

VIEWS = ("shuffled", "pooled", "mixed", "selected", "sharded", "buffer sorted")

seeds = st.integers(0, 3) | st.integers(-(2**63), 2**64)


def some_of(n, salt, tenths):
    """About so many tenths of range(n), by arithmetic: drawing each number would take Hypothesis too long."""
    return tuple(number for number in range(n) if length_of(number, 9, salt) < tenths)


class Drawing:
    """Draws nodes; every leaf gets ids of its own."""

    def __init__(self, draw, views):
        self.draw = draw
        self.views = views
        self.ids = 0
        self.sources_left = 6

    def leaf(self, *, kinds, least=0):
        n = self.draw(st.integers(least, 50))
        longest, salt = self.draw(st.sampled_from([9, 3])), self.draw(st.integers(0, 99))
        leaf = Leaf(n, self.ids, longest, salt, self.draw(kinds), self.draw(st.integers(1, 6)))
        self.ids += n
        return leaf

    def node(self, depth, *, lengths=False, keys=False):
        """A node of at most this depth, whose leaves know lengths, or at least keys, where that is asked for."""
        kind = self.draw(st.sampled_from(self.views)) if depth else "leaf"
        draw = self.draw
        match kind:
            case "leaf":
                kinds = ["ours", "measured"] + ["keyed"] * (not lengths) + ["foreign"] * (not lengths and not keys)
                return self.leaf(kinds=st.sampled_from(kinds))
            case "shuffled":
                return Shuffled(self.node(depth - 1, lengths=lengths, keys=keys), draw(seeds))
            case "pooled":
                leaf = self.leaf(kinds=st.just("ours"))
                return Pooled(leaf, draw(seeds), draw(st.integers(1, 20)), draw(st.integers(1, 5)))
            case "mixed":
                return self.mixture(depth - 1, lengths=lengths, keys=keys)
            case "selected":
                base = self.node(depth - 1, lengths=lengths, keys=keys)
                how = draw(st.sampled_from(["ids", "bitmap", "exclude"]))
                return Selected(base, some_of(base.n, draw(st.integers(0, 99)), draw(st.integers(0, 10))), how)
            case "sharded":
                base = self.node(depth - 1, lengths=lengths, keys=keys)
                total = draw(st.integers(1, 5))
                mode = draw(st.sampled_from(["sequential", "chunked"]))
                return Sharded(base, total, draw(st.integers(0, total - 1)), mode, draw(st.booleans()))
            case "buffer sorted":
                base = self.node(depth - 1, lengths=lengths, keys=True)
                return BufferSorted(base, draw(st.integers(1, 40)), draw(st.integers(1, 12)), draw(seeds))
        raise AssertionError(kind)

    def mixture(self, depth, **needs):
        """A mixture of one to four sources, without end."""
        draw = self.draw
        count = draw(st.integers(1, max(1, min(4, self.sources_left))))
        self.sources_left -= count
        bases = tuple(self.node(draw(st.integers(0, depth)), **needs) for _ in range(count))
        seed = draw(seeds)
        full = [base.n > 0 for base in bases]
        length = draw(st.sampled_from([1, 1, 1, 2, 5, 30]))
        if not any(full) or draw(st.integers(0, 3)) == 0:
            return Runs(bases, None, seed, run_length=length) if length > 1 else Mixed(bases, None, seed)
        options = {}
        if draw(st.booleans()):
            options["schedule"] = self.schedule(full)
            options["linear"] = draw(st.booleans())
        else:
            options["weights"] = self.weights(full, least=0)
            options["exhausted"] = draw(st.sampled_from(["repeat", "repeat", "stop_first", "stop_all"]))
        if options.get("exhausted", "repeat") == "repeat":
            options["epoch_size"] = draw(st.sampled_from([None, None, None, 1, 7, 100, 257, 600]))
        if all(full) and draw(st.booleans()):
            options = {"weights": self.weights(full, least=1), "max_epochs": self.limits(count)}
        kind = Mixed
        if length > 1:
            kind, options = Runs, in_runs(options, length, bases)
        node = kind(bases, seed=seed, **options)
        if needs["lengths"] and draw(st.booleans()) and all(node.mean(s) for s in range(count) if full[s]):
            return kind(bases, seed=seed, unit="tokens", **options)
        return node

    def weights(self, full, *, least):
        """A weight for each source, 0 for empty ones; one of them at least is above 0."""
        some = st.sampled_from([0, 1, 2, 5, 0.1, 0.25, 3.5, 7][least:])
        weights = [self.draw(some) if one else 0 for one in full]
        return tuple(weights) if any(weights) else tuple(map(int, full))

    def schedule(self, full):
        positions = sorted({0, *self.draw(st.lists(st.integers(1, 900), max_size=3))})
        return tuple((position, self.weights(full, least=0)) for position in positions)

    def limits(self, count):
        """How many epochs each source has; the first one has no limit."""
        return (None, *(self.draw(st.none() | st.integers(1, 3)) for _ in range(count - 1)))


def in_runs(options, length, bases):
    """The options, with everything in whole runs of this length that must be."""
    options = {**options, "run_length": length}
    if (size := options.get("epoch_size")) is not None:
        options["epoch_size"] = -(-size // length) * length
    if "schedule" in options:
        options["schedule"] = tuple((position * length, weights) for position, weights in options["schedule"])
    if "max_epochs" in options:
        each = zip(options["max_epochs"], bases, strict=True)
        options["max_epochs"] = tuple(None if k is None or k * base.n < length else k for k, base in each)
    return options


@st.composite
def nodes(draw, views=VIEWS, depth=4, **needs):
    """A composition of at least one of these views."""
    return Drawing(draw, list(views)).node(draw(st.integers(1, depth)), **needs)


@st.composite
def packs(draw, depth=3):
    """Packed rows over a composition that has items."""
    base = draw(nodes(depth=depth, lengths=True).filter(lambda node: node.n))
    return Packed(
        base,
        draw(st.integers(1, 14)),
        draw(st.integers(1, 60)),
        draw(st.sampled_from(["best_fit", "first_fit", "concat"])),
        draw(st.sampled_from(["split", "drop"])),
        draw(seeds),
    )


@st.composite
def batches(draw, together=None, depth=3):
    """Batches of a token budget over a composition that has items."""
    base = draw(nodes(depth=depth, lengths=True).filter(lambda node: node.n))
    return TokenBudget(
        base,
        draw(st.integers(1, 30)),
        together or draw(st.integers(1, 6)),
        draw(st.integers(1, 60)),
        draw(st.booleans()),
        draw(st.sampled_from([(1, 0), (1, 1 / 8), (0, 1), (2.5, 0.1)])),
        draw(st.sampled_from(["drop", "alone"])),
        draw(st.none() | st.integers(1, 8)),
        draw(seeds),
    )
