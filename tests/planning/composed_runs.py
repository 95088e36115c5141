"""A mixture in runs once more, from docs/design/mixture.md: the mixture of its runs, and a division."""

from dataclasses import dataclass, replace
from functools import cached_property

from planning.composed_mixture import Mixed


@dataclass(frozen=True, eq=False)
class OfRuns(Mixed):
    """The mixture whose draws are the runs."""

    run_length: int = 1
    given: tuple | None = None  # draws of each source before the first run

    @cached_property
    def limits(self):
        given = self.given or (0,) * len(self.bases)
        before = super().limits
        return [None if k is None else max(0, k - c) // self.run_length for k, c in zip(before, given, strict=True)]

    def wanted(self, s):
        return -(-self.bases[s].n // self.run_length)


@dataclass(frozen=True, eq=False)
class Runs(Mixed):
    """A mixture of which run_length positions in a row are of one source."""

    run_length: int = 1

    @cached_property
    def of_runs(self):
        """Epochs are as long as their rule makes them, or as the epochs of this."""
        length, fields = self.run_length, {**self.__dict__}
        fields = {name: fields[name] for name in Mixed.__dataclass_fields__}
        if self.schedule is not None:
            fields["schedule"] = tuple((position // length, weights) for position, weights in self.schedule)
            assert all(position % length == 0 for position, _ in self.schedule)
        fields |= {"epoch_size": None, "start": self.start // length, "drawn": None}
        return OfRuns(**fields, run_length=length, given=self.drawn)

    @cached_property
    def order(self):
        return replace(self.of_runs, epoch_size=self.n // self.run_length)

    @property
    def end(self):
        return None if self.of_runs.end is None else self.of_runs.end * self.run_length

    @cached_property
    def n(self):
        if self.epoch_size is not None or not any(base.n for base in self.bases):
            assert (self.epoch_size or 0) % self.run_length == 0
            return self.epoch_size or 0
        if self.exhausted != "repeat":
            return self.of_runs.n * self.run_length
        total = sum(base.n for base, used in zip(self.bases, self.used, strict=True) if used)
        total = -(-total // self.run_length) * self.run_length
        return total if self.max_epochs is None or self.end is None else min(total, self.end)

    def counts(self, number):
        assert number % self.run_length == 0
        assert not self.start
        return [count * self.run_length for count in self.of_runs.counts(number // self.run_length)]

    def draw(self, position):
        run, offset = divmod(position, self.run_length)
        source, number = self.order.draw(run)
        draw = number * self.run_length + offset + (self.drawn[source] if self.drawn else 0)
        first, cut = divmod(self.start, self.run_length)
        return source, draw - (cut if cut and source == self.order.draw(first)[0] else 0)
