"""Values and sizes, shortened to what people want to look at."""

from typing import Any

import numpy as np

__all__ = ["ITEMS_SHOWN", "SHARDS_SHOWN", "printable", "shown", "size_text"]

SHARDS_SHOWN = 10
ITEMS_SHOWN = 16
_CHARS_SHOWN = 80
_DEPTH_SHOWN = 4
_BITS_SHOWN = 256


def shown(value: Any, depth: int = 0) -> Any:
    """The value as JSON of a size to look at."""
    match value:
        case int() if not -(1 << 63) <= value < 1 << 64:  # JSON's readers have no such numbers
            bits = value.bit_length()
            return str(value) if bits <= _BITS_SHOWN else f"an integer of {bits:,} bits"
        case None | bool() | int() | float():
            return value
        case bytes():
            rest = len(value) - _CHARS_SHOWN
            return repr(value[:_CHARS_SHOWN]) + (f" and {rest:,} more bytes" if rest > 0 else "")
        case str():
            text = value[:_CHARS_SHOWN].encode("utf-8", "backslashreplace").decode()  # half a surrogate pair is no text
            return text if len(value) <= _CHARS_SHOWN else f"{text}…"
        case np.ndarray():  # how long it is, is told elsewhere
            return [shown(item, depth + 1) for item in value[:ITEMS_SHOWN].tolist()]
        case dict() | list() | tuple() if depth == _DEPTH_SHOWN:
            return "…"
        case dict():
            pairs = {shown(name): shown(item, depth + 1) for name, item in list(value.items())[:ITEMS_SHOWN]}
            return pairs if len(value) <= ITEMS_SHOWN else pairs | {"…": f"{len(value) - ITEMS_SHOWN:,} more"}
        case list() | tuple():
            items = [shown(item, depth + 1) for item in value[:ITEMS_SHOWN]]
            return items if len(value) <= ITEMS_SHOWN else [*items, f"… {len(value) - ITEMS_SHOWN:,} more"]
    return str(value)


def printable(text: str) -> str:
    """The text without characters that would move the cursor, or worse: names come from the data."""
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)


def size_text(num_bytes: int) -> str:
    """The size for people: 999 bytes, 1.0 kB, and so on by thousands."""
    size = float(num_bytes)
    for unit in ("bytes", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "bytes" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"
