"""StreamingDataset's options: Streaming's names and spellings, checked, and what they mean here."""

import logging
import operator
import re
from collections.abc import Sequence
from dataclasses import dataclass, fields
from fractions import Fraction
from functools import cache
from typing import Any, Literal

import numpy as np

from headrace.errors import OptionError
from headrace.planning import Batching, Shuffle, StreamOrder, StreamShards, samples_an_epoch
from headrace.planning.stream_portions import Portion
from headrace.store.eviction import limit_in_bytes
from headrace.views.options import whole_number
from headrace.views.protocol import Int64s

__all__ = ["DECIDING", "READABLE", "Settings", "number_abbrev_to_int", "size_in_bytes"]

_Batching = Literal["random", "stratified", "per_stream", "device_per_stream"]

Scope = Literal["global", "pooled"]

_log = logging.getLogger("headrace")

_NUMBER = re.compile(r"\s*([0-9]+(?:\.[0-9]*)?|\.[0-9]+)\s*([kmbt]?)\s*", re.IGNORECASE)
_THOUSANDS = {"": 0, "k": 1, "m": 2, "b": 3, "t": 4}
_NUMBERS = "a whole number, or one such as '100k', '64M', '1.5b' or '2T' (by 1,000)"

_SCOPES: dict[str, Scope] = {  # of a shuffle, by the names of the algorithms
    "pooled": "pooled",
    "global": "global",
    "py1e": "pooled",
    "py1b": "pooled",
    "py1br": "pooled",
    "py1s": "pooled",
    "py2s": "pooled",
    "naive": "global",
}
_MEANINGS = {
    "pooled": "shards in random order, and samples permuted inside pools of shuffle_block_size",
    "global": "any sample anywhere",
}
_CHOICES = {
    "sampling_method": ("balanced", "fixed"),
    "partition_algo": ("relaxed", "orig"),
    "shuffle_algo": tuple(_SCOPES),
    "batching_method": ("random", "stratified", "per_stream", "device_per_stream"),
}
_LEAST = {
    "epoch_size": 1,
    "predownload": 0,
    "sampling_granularity": 1,
    "num_canonical_nodes": 1,
    "batch_size": 1,
    "shuffle_seed": 0,
    "shuffle_block_size": 1,
    "replication": 1,
}
_NEEDED = {"sampling_granularity", "shuffle_seed"}  # None is no value of these
_POOL_ITEMS = 4_000_000  # over all lanes, by default
_FEWEST_POOL_ITEMS = 1 << 18
_LAST = 1 << 62


def size_in_bytes(size: int | str | None, option: str = "cache_limit") -> int | None:
    """A number of bytes, from a number or from text such as "64gb", "1.5 TB" or "1MiB" (by 1,024); None stays None.

    OptionError, which names the forms, for what is none of them.
    """
    return limit_in_bytes(size, option)


def number_abbrev_to_int(abbrev_str: int | str, option: str = "abbrev_str") -> int:
    """A whole number, from one or from text such as "100k", "64M", "1.5b" or "2T" (by 1,000).

    OptionError, which names the forms, for what is none of them, and for what is not whole ("1.2345k").
    """
    if not isinstance(abbrev_str, str):
        if isinstance(abbrev_str, bool) or not hasattr(type(abbrev_str), "__index__"):
            raise TypeError(f"{option} must be {_NUMBERS}, not {abbrev_str!r}")
        return operator.index(abbrev_str)
    match = _NUMBER.fullmatch(abbrev_str)
    found = Fraction(match[1]) * 1000 ** _THOUSANDS[match[2].lower()] if match else Fraction(1, 2)
    if found.denominator != 1:
        raise OptionError(option, abbrev_str, _NUMBERS)
    return int(found)


@dataclass(frozen=True, init=False)
class Settings:
    """What a StreamingDataset was asked for beside its streams: checked, and texts such as "64M" as numbers.

    It is made of Streaming's arguments, all by name; the properties say what is done here. OptionError (a ValueError)
    names the values there are, TypeError is for values of other types. Where a value means something else here, and
    the samples that are seen are the same, the logger `headrace` says so at INFO, once a process.
    """

    epoch_size: int | None = None
    predownload: int | None = None
    cache_limit: int | None = None  # bytes
    sampling_method: Literal["balanced", "fixed"] = "balanced"
    sampling_granularity: int = 1
    partition_algo: str = "relaxed"
    num_canonical_nodes: int | None = None
    batch_size: int | None = None
    shuffle: bool = False
    shuffle_algo: str = "py1e"
    shuffle_seed: int = 9176
    shuffle_block_size: int | None = None
    batching_method: _Batching = "random"
    allow_unsafe_types: bool = False
    replication: int | None = None

    def __init__(self, **given: Any) -> None:
        _refuse_registered(given.pop("stream_name", "stream"), given.pop("stream_config", None))
        values = {field.name: field.default for field in fields(self)}
        if unknown := given.keys() - values.keys():
            raise TypeError(f"StreamingDataset has no option {min(unknown)!r}")
        for name, value in _checked({**values, **given}).items():
            object.__setattr__(self, name, value)
        self._say_what_differs()

    def _say_what_differs(self) -> None:
        if self.shuffle and self.shuffle_algo != self.scope:
            _say(f"shuffle_algo={self.shuffle_algo!r} shuffles as {self.scope!r} does: {_MEANINGS[self.scope]}")
        if self.partition_algo != "relaxed":
            _say(
                f"partition_algo={self.partition_algo!r} makes no difference: a global batch is dealt to the ranks row "
                "by row, whatever the number of nodes"
            )

    def order(self, shards: Sequence[Int64s], portions: Sequence[Portion], num_ranks: int) -> StreamOrder:
        """The order of streams: for each the samples of its shards, and what an epoch has of it.

        num_ranks read different samples. OptionError for portions and an epoch_size that do not go together.
        """
        chosen = samples_an_epoch([int(items.sum()) for items in shards], portions, self.epoch_size)
        batching = Batching("random")
        if self.batching_method != "random":
            batching = Batching(self.batching_method, self.batch_size, num_ranks)
        shuffle = None
        if self.shuffle:
            pools = (self.pool_items, self.lanes) if self.scope == "pooled" else ()
            shuffle = Shuffle(self.scope, *pools)
        return StreamOrder(
            [StreamShards(items, number) for items, number in zip(shards, chosen, strict=True)],
            shuffle=shuffle,
            seed=self.shuffle_seed,
            sampling=self.sampling_method,
            batching=batching,
        )

    @property
    def scope(self) -> Scope:
        """What a shuffle mixes: "pooled" or "global"."""
        return _SCOPES[self.shuffle_algo]

    @property
    def lanes(self) -> int:
        """Parts of an epoch that are read in turn, each with its own run of shards."""
        return self.num_canonical_nodes or 1

    @property
    def pool_items(self) -> int:
        """Samples of a lane that a pooled shuffle mixes."""
        return self.shuffle_block_size or max(_POOL_ITEMS // self.lanes, _FEWEST_POOL_ITEMS)


READABLE = frozenset(field.name for field in fields(Settings)) - {"epoch_size"}  # which is a number of rows, always
DECIDING = frozenset(
    {
        "batch_size",
        "batching_method",
        "num_canonical_nodes",
        "replication",
        "sampling_method",
        "shuffle",
        "shuffle_algo",
        "shuffle_block_size",
        "shuffle_seed",
    }
)


def _checked(values: dict[str, Any]) -> dict[str, Any]:
    """The values as they are kept; OptionError and TypeError as Settings says."""
    if isinstance(values["epoch_size"], str):
        values["epoch_size"] = number_abbrev_to_int(values["epoch_size"], "epoch_size")
    for name, least in _LEAST.items():
        if values[name] is not None or name in _NEEDED:
            values[name] = whole_number(name, values[name], least, _LAST)
    values["cache_limit"] = size_in_bytes(values["cache_limit"])
    for name in ("shuffle", "allow_unsafe_types"):
        if not isinstance(values[name], bool | np.bool_):
            raise TypeError(f"{name} must be True or False, not {values[name]!r}")
        values[name] = bool(values[name])
    for name, choices in _CHOICES.items():
        if not isinstance(values[name], str):
            raise TypeError(f"{name} must be a text, not {values[name]!r}")
        if values[name] not in choices:
            raise OptionError(name, values[name], f"one of {', '.join(map(repr, choices))}")
    if values["batching_method"] != "random" and values["batch_size"] is None:
        expected = f"a number, as batching_method={values['batching_method']!r} fills batches"
        raise OptionError("batch_size", None, expected)
    return values


def _refuse_registered(name: object, config: object) -> None:
    """OptionError for a class of streams by its name, and for what it would be made with."""
    if name == "stream" and not config:
        return
    option, value = ("stream_config", config) if name == "stream" else ("stream_name", name)
    expected = "its default, as there is no registry: pass streams=[Stream(...)], or objects of a subclass of Stream"
    raise OptionError(option, value, expected)


@cache  # once is enough, however many datasets there are
def _say(message: str) -> None:
    _log.info(message)
