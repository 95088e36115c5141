"""What feeding the loop costs: packs, rows and tokens handed out, and the time that was waited for them."""

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any, NamedTuple, TypeAlias, TypeGuard

import torch

__all__ = ["CountTokens", "DataMetrics", "Meter", "PackCount", "count_pack", "count_tokens", "tensors_called"]

CountTokens: TypeAlias = Callable[[Any], tuple[int, int]]


@dataclass(frozen=True)
class DataMetrics:
    """What a stream handed out, and how long its consumer waited. Numbers of this rank, from the stream's beginning.

    rows: the first size of what was counted, or of a microbatch's first tensor; a row is a sample unless samples are
    packed. padded_tokens: tokens and padding. elapsed_s: from the first time a pack was asked for until now, or until
    the iterator ended, so it holds the consumer's own work. wait_s: of that, the time between asking for a pack and
    having it.
    """

    packs: int = 0
    microbatches: int = 0
    rows: int = 0
    tokens: int = 0
    padded_tokens: int = 0
    wait_s: float = 0.0
    elapsed_s: float = 0.0

    @property
    def wait_share(self) -> float:
        """The share of the time that was waited for data, 0 to 1; 0 before the first pack."""
        return self.wait_s / self.elapsed_s if self.elapsed_s > 0 else 0.0

    @property
    def padding_share(self) -> float:
        """The share of padding in what was handed out, 0 to 1; 0 where no tokens were counted."""
        return 1 - self.tokens / self.padded_tokens if self.padded_tokens else 0.0

    @property
    def tokens_per_s(self) -> float:
        """Tokens a second without padding, waiting and the consumer's work included; 0 before the first pack."""
        return self.tokens / self.elapsed_s if self.elapsed_s > 0 else 0.0

    def since(self, earlier: "DataMetrics") -> "DataMetrics":
        """What came after `earlier`, which is of the same stream: the numbers of an interval of a log."""
        names = [field.name for field in dataclasses.fields(self)]
        return DataMetrics(**{name: getattr(self, name) - getattr(earlier, name) for name in names})


class PackCount(NamedTuple):
    """What is in one pack."""

    microbatches: int
    rows: int
    tokens: int
    padded_tokens: int


class Meter:
    """Adds up what one consumer got and waited for."""

    def __init__(self) -> None:
        self._packs = 0
        self._counted = PackCount(0, 0, 0, 0)
        self._wait_s = 0.0
        self._elapsed_s = 0.0  # of iterators that are over
        self._begin_s: float | None = None  # when the active iterator was first asked

    def begin(self, now_s: float) -> None:
        """A pack is asked for."""
        if self._begin_s is None:
            self._begin_s = now_s

    def waited(self, seconds: float) -> None:
        """The consumer waited, for a pack or for the end."""
        self._wait_s += seconds

    def add(self, count: PackCount) -> None:
        """A pack is handed out."""
        self._packs += 1
        self._counted = PackCount(*map(sum, zip(self._counted, count, strict=True)))

    def end(self) -> None:
        """The iterator is over. Twice is harmless."""
        begin_s, self._begin_s = self._begin_s, None
        if begin_s is not None:
            self._elapsed_s += perf_counter() - begin_s

    def read(self) -> DataMetrics:
        """The numbers until now."""
        begin_s = self._begin_s
        elapsed_s = self._elapsed_s + (0.0 if begin_s is None else perf_counter() - begin_s)
        return DataMetrics(self._packs, *self._counted, wait_s=self._wait_s, elapsed_s=elapsed_s)


def count_pack(pack: Sequence[Any], count: CountTokens | None = None) -> PackCount:
    """What is in a pack on the CPU; count gives (tokens, tokens and padding) of a microbatch, in place of the rules of
    count_tokens()."""
    rows = tokens = padded = 0
    targets = getattr(pack, "num_targets", None)
    for place, microbatch in enumerate(pack):
        found = _counted(microbatch)
        rows += found.rows
        if count is not None:
            found_tokens, found_padded = count(microbatch)
        elif found.is_guess and targets is not None:
            found_tokens = found_padded = targets[place]
        else:
            found_tokens, found_padded = found.tokens, found.padded
        tokens += int(found_tokens)
        padded += int(found_padded)
    return PackCount(len(pack), rows, tokens, padded)


def count_tokens(microbatch: Any) -> tuple[int, int]:
    """The tokens of a microbatch, and its tokens and padding together.

    By the first of these fields that the microbatch has, as a mapping, dataclass or named tuple, or that a tree within
    it has:

    | field | tokens | with padding |
    | --- | --- | --- |
    | attention_mask (rows, length) or (length,) | its places that are not 0 | all its places |
    | segment_ids | its places above 0 | all its places |
    | num_targets | its sum | the same: what is padding cannot be told |
    | input_ids, or tokens | all its places | the same |

    A pack's own num_targets stand in for those that its microbatches lack. A microbatch that is a tensor of integers
    has a token in each place; where there is nothing of all that, it has none. Tensors that are not on the CPU are not
    looked into, since that would wait for the device.
    """
    found = _counted(microbatch)
    return found.tokens, found.padded


class _Found(NamedTuple):
    rows: int
    tokens: int
    padded: int
    is_guess: bool = False  # every place was taken for a token


def _counted(microbatch: Any) -> _Found:
    for name, rule in _RULES:
        for tensor in tensors_called(microbatch, name):
            found = rule(tensor)
            if found is not None:
                return found
    if _is_on_cpu(microbatch) and not (microbatch.is_floating_point() or microbatch.is_complex()):
        return _all_places(microbatch)
    return _Found(_first_size(microbatch), 0, 0, is_guess=True)


def tensors_called(tree: Any, name: str) -> Iterator[torch.Tensor]:
    """The tensors called so, the outermost first."""
    children: Iterable[Any]
    if isinstance(tree, Mapping):
        found, children = tree.get(name), tree.values()
    elif isinstance(tree, tuple | list):
        found, children = getattr(tree, name, None) if name in getattr(tree, "_fields", ()) else None, tree
    elif dataclasses.is_dataclass(tree):
        fields = tree.__dataclass_fields__
        found, children = getattr(tree, name, None) if name in fields else None, _values(tree)
    else:
        return
    if _is_on_cpu(found):
        yield found
    for child in children:
        if not isinstance(child, torch.Tensor):
            yield from tensors_called(child, name)


def _values(batch: Any) -> Iterable[Any]:
    """What a dataclass holds, in order."""
    return [getattr(batch, name, None) for name in batch.__dataclass_fields__]


def _is_on_cpu(value: Any) -> TypeGuard[torch.Tensor]:
    return isinstance(value, torch.Tensor) and value.is_cpu


def _by_mask(mask: torch.Tensor) -> _Found | None:
    if not 1 <= mask.ndim <= 2:
        return None  # which keys each query sees, say: not what is a token
    return _Found(_rows(mask), int(mask.count_nonzero()), mask.numel())


def _by_segments(segments: torch.Tensor) -> _Found:
    return _Found(_rows(segments), int((segments > 0).count_nonzero()), segments.numel())


def _by_targets(targets: torch.Tensor) -> _Found:
    tokens = int(targets.sum())
    return _Found(targets.numel() if targets.ndim else 1, tokens, tokens)


def _all_places(tokens: torch.Tensor) -> _Found:
    return _Found(_rows(tokens), tokens.numel(), tokens.numel(), is_guess=True)


_RULES: tuple[tuple[str, Callable[[torch.Tensor], _Found | None]], ...] = (
    ("attention_mask", _by_mask),
    ("segment_ids", _by_segments),
    ("num_targets", _by_targets),
    ("input_ids", _all_places),
    ("tokens", _all_places),
)


def _rows(tensor: torch.Tensor) -> int:
    return tensor.shape[0] if tensor.ndim > 1 else 1


def _first_size(tree: Any) -> int:
    """The first size of the first tensor that has one; 0 without."""
    if isinstance(tree, torch.Tensor):
        return tree.shape[0] if tree.ndim else 0
    if isinstance(tree, Mapping):
        tree = tree.values()
    elif dataclasses.is_dataclass(tree):
        tree = _values(tree)
    elif not isinstance(tree, tuple | list):
        return 0
    return next((size for child in tree if (size := _first_size(child))), 0)
