"""What the views' constructors check of a number."""

import numpy as np

from headrace.errors import OptionError

__all__ = ["whole_number"]


def whole_number(option: str, value: object, least: int | None = None, below: int | None = None) -> int:
    """value as a Python integer. TypeError for what is none, OptionError for one under least, or not under below."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise TypeError(f"{option} must be an integer, not {value!r}")
    number = int(value)
    if (least is not None and number < least) or (below is not None and number >= below):
        raise OptionError(option, number, f"at least {least}" if below is None else f"{least} to {below - 1}")
    return number
