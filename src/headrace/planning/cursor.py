"""Where a run is: a few integers, and the record of them that a checkpoint holds.

The record describes the run, not the machinery: no rank, worker, buffer or iterator is in it, so it is the same on
every rank and loads under any world size. `plan` is a digest of the settings that decide the order; a record made
under others is refused, naming each that differs.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import msgspec

from headrace.errors import StateError, StateMismatchError
from headrace.planning.partition import steps_left

__all__ = ["STATE_VERSION", "Cursor", "Setting", "decode_state", "encode_state", "plan_fingerprint"]

STATE_VERSION = 1

Setting = str | int | float | bool | None

_COUNTS = ("epoch", "position", "window", "row")
_FIELDS = {"version", *_COUNTS, "plan", "settings"}
_LIMIT = 1 << 63  # positions are int64


@dataclass(frozen=True, slots=True)
class Cursor:
    """How far the consumer is: the epoch, and the global rows of it that it has got.

    window and row say the same for orders whose rows vary by epoch (packed ones); they are 0 elsewhere.
    """

    epoch: int = 0
    position: int = 0
    window: int = 0
    row: int = 0

    def advanced(self, rows: int, *, num_rows: int, global_batch_size: int, drop_last: bool) -> "Cursor":
        """The cursor after the consumer got `rows` more rows; the end of an epoch is the start of the next.

        advanced(0) moves a cursor on that has no full batch left, as after a resume with larger batches.
        """
        position = self.position + rows
        if steps_left(num_rows, position, global_batch_size, drop_last) == 0:
            return Cursor(self.epoch + 1)
        return Cursor(self.epoch, position)


def plan_fingerprint(settings: Mapping[str, Setting]) -> str:
    """32 hexadecimal digits that differ when any setting does, whatever their order."""
    return blake2b(msgspec.json.encode(dict(settings), order="sorted"), digest_size=16).hexdigest()


def encode_state(cursor: Cursor, settings: Mapping[str, Setting], plan: str | None = None) -> dict[str, Any]:
    """The JSON-able record of a run that is at cursor. plan may pass plan_fingerprint(settings) where it is known."""
    return {
        "version": STATE_VERSION,
        "epoch": int(cursor.epoch),  # a NumPy integer that found its way here would not be JSON
        "position": int(cursor.position),
        "window": int(cursor.window),
        "row": int(cursor.row),
        "plan": plan or plan_fingerprint(settings),
        "settings": dict(settings),
    }


def decode_state(state: Mapping[str, Any], settings: Mapping[str, Setting], num_rows: int | None = None) -> Cursor:
    """The cursor in a record that encode_state made under the same settings.

    Raises StateMismatchError naming every setting that differs, with both values; StateError for what is no record of
    this version, has been damaged, or lies behind the end of an epoch of num_rows rows.
    """
    if not isinstance(state, Mapping):
        raise StateError(f"a loader state is a dict, not {type(state).__name__}")
    version = state.get("version")
    if type(version) is not int or version != STATE_VERSION:  # True and 1.0 are equal to 1, and no versions
        raise StateError(f"the state has version {version!r}; this Headrace reads version {STATE_VERSION}")
    if set(state) != _FIELDS:
        odd = sorted(map(str, _FIELDS ^ set(state)))
        raise StateError(f"the state has unknown fields or lacks some: {', '.join(odd)}; was something put into it?")
    for name in _COUNTS:
        value = state[name]
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < _LIMIT:
            raise StateError(f"the state's {name} is {value!r}; it must be an integer from 0 to 2**63 - 1")
    saved = state["settings"]
    if not isinstance(state["plan"], str) or state["plan"] != _fingerprint_of(saved):
        raise StateError("the state is damaged: its settings do not give its plan")
    differs = {
        name: (saved.get(name, "(absent)"), settings.get(name, "(absent)"))
        for name in [*saved, *(name for name in settings if name not in saved)]
        if name not in saved or name not in settings or _text(saved[name]) != _text(settings[name])
    }
    if differs:
        raise StateMismatchError(differs)
    if num_rows is not None and state["position"] > num_rows:
        raise StateError(f"the state is damaged: its position is {state['position']} in an epoch of {num_rows} rows")
    return Cursor(*(state[name] for name in _COUNTS))


def _fingerprint_of(saved: Any) -> str | None:
    """plan_fingerprint of what should be settings; None where it is something else."""
    if not isinstance(saved, Mapping) or not all(isinstance(name, str) for name in saved):
        return None
    try:
        return plan_fingerprint(saved)
    except (TypeError, ValueError, RecursionError):  # objects, text that is none, lists in lists without end
        return None


def _text(setting: Setting) -> bytes:
    return msgspec.json.encode(setting)  # as the fingerprint sees it: 1, 1.0 and True are three settings
