"""Mixtures that change while a run goes on: what was consumed stays counted, and the order is the reference's."""

import json
from contextlib import ExitStack
from dataclasses import replace

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from laws.changes import check_changes, phases_of
from laws.runs import item_rows, packed_rows, together
from loading.samples import make
from planning.composed_mixture import Mixed
from planning.composed_reference import Leaf, Shuffled
from planning.composed_rows import Packed
from planning.composed_views import real, tokens_of

LEAVES = 5
few = settings(max_examples=max(12, settings.default.max_examples // 4))


@few
@given(
    sizes=st.lists(st.integers(1, 50), min_size=LEAVES, max_size=LEAVES),
    phases=phases_of(
        LEAVES,
        leave_out=st.booleans(),
        epoch_size=st.sampled_from([None, None, 1, 40, 257, 600]),
        steps=st.integers(0, 12),
    ),
)
def test_mixtures_that_change_again_and_again_go_on_as_the_reference(sizes, phases):
    leaves = [Leaf(size, 100 * k) for k, size in enumerate(sizes)]
    bases = (*leaves[:3], *(Shuffled(leaf, 7) for leaf in leaves[3:]))
    check_changes(
        phases, lambda phase: Mixed(bases, tuple(phase["weights"]), 3, epoch_size=phase["epoch_size"]), loader
    )


def loader(node, phase, rank):
    """A loader of the mixture, with or without the sources that have no weight."""
    view = real(node)
    if phase["leave_out"]:
        kept = [name for name, weight in zip(view.names, node.weights, strict=True) if weight]
        view = type(view)(
            {name: view.sources[name] for name in kept},
            [weight for weight in node.weights if weight],
            node.seed,
            epoch_size=node.epoch_size,
        )
    size = phase["world_size"] * phase["local"]
    return make(
        view,
        item_rows,
        rank=rank,
        world_size=phase["world_size"],
        global_batch_size=size,
        drop_last=False,
        num_workers=0,
    )


class PackedRun:
    """Packed rows of mixtures that follow one another: each window is of the last one that began before it."""

    def __init__(self, node):
        self.mixtures = [(0, node)]  # (first position, the mixture)
        self.epoch = self.window = self.row = 0

    @property
    def windows(self):
        return self.packed.windows

    @property
    def packed(self):
        begin = self.begin
        node = next(node for first, node in reversed(self.mixtures) if first <= begin)
        return Packed(node, 10, 20, seed=5)

    @property
    def begin(self):
        n = self.mixtures[0][1].n
        return self.epoch * n + self.window * 20

    def end(self):
        last = self.window == self.windows - 1
        return (self.epoch + 1) * self.mixtures[0][1].n if last else self.begin + 20

    def change(self, node):
        """The new mixture begins with the next window, or with this one, where nothing of it was read. A change that
        comes with the next window already is replaced."""
        first, before = self.mixtures[-1]
        if (node.points, node.n) == (before.points, before.n):
            return
        position = self.end() if self.row else self.begin
        if self.begin < first:
            self.mixtures.pop()
            position = first
        first, before = self.mixtures[-1]
        drawn = list(before.drawn or [0] * LEAVES)
        for place in range(first, position):
            drawn[before.draw(place)[0]] += 1
        self.mixtures.append((position, replace(node, start=position, drawn=tuple(drawn))))

    def batch(self, size):
        rows, epoch = [], self.epoch
        while len(rows) < size and self.epoch == epoch:
            packed = self.packed
            found = packed.rows(self.epoch, self.window)
            if self.row < len(found):
                rows.append(tokens_of(packed, found[self.row]))
                self.row += 1
            if self.row >= len(found):
                self.row, self.window = 0, self.window + 1
                if self.window == packed.windows:
                    self.window, self.epoch = 0, self.epoch + 1
        return rows


packed_phases = st.fixed_dictionaries(
    {
        "weights": st.lists(st.sampled_from([0, 1, 2, 0.5, 9]), min_size=LEAVES, max_size=LEAVES).filter(any),
        "world_size": st.integers(1, 3),
        "local": st.integers(1, 4),
        "steps": st.integers(0, 6),
    }
)


@few
@given(
    sizes=st.lists(st.integers(1, 50), min_size=LEAVES, max_size=LEAVES),
    epoch_size=st.sampled_from([15, 45, 100]),
    phases=st.lists(packed_phases, min_size=1, max_size=6),
)
def test_packed_mixtures_that_change_finish_their_window_and_go_on_as_the_reference(sizes, epoch_size, phases):
    leaves = tuple(Leaf(size, 100 * k, longest=8, salt=7 * k) for k, size in enumerate(sizes))
    assume(all(leaf.mean for leaf in leaves))  # every epoch has a row then
    run, state = None, None
    for phase in phases:
        node = Mixed(leaves, tuple(phase["weights"]), 3, epoch_size=epoch_size)
        size = phase["world_size"] * phase["local"]
        if run is None:
            run = PackedRun(node)
        else:
            run.change(node)
        with ExitStack() as stack:
            options = {"world_size": phase["world_size"], "global_batch_size": size, "drop_last": False}
            ranks = [
                stack.enter_context(make(packed_view(node), packed_rows, rank=rank, **options))
                for rank in range(phase["world_size"])
            ]
            for one in ranks:
                if state is not None:
                    one.load_state_dict(json.loads(state), change="from_here")
            iterators, epoch = None, None
            for _ in range(phase["steps"]):
                if iterators is None or run.epoch != epoch:
                    iterators, epoch = [iter(one) for one in ranks], run.epoch
                assert together([next(iterator) for iterator in iterators]) == run.batch(size)
            texts = {json.dumps(one.state_dict(), sort_keys=True) for one in ranks}
            assert len(texts) == 1
            state = texts.pop()
            assert len(state) < 4096


def packed_view(node):
    return real(Packed(node, 10, 20, seed=5), tokens=True)
