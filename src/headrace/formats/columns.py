"""Names of columns: those that were declared, those that a sample has, and those that a reader asks for."""

from collections.abc import Mapping, Sequence
from typing import Any

from headrace.errors import FieldError, OptionError

__all__ = ["checked_names", "refuse_extra", "refuse_other_types", "selected_names"]


def checked_names(option: str, columns: Mapping[str, Any]) -> None:
    """Returns for a mapping of names; OptionError for anything else, and where there is none."""
    if not isinstance(columns, Mapping) or not columns or not all(isinstance(name, str) for name in columns):
        raise OptionError(option, columns, "a mapping of at least one column name to its encoding")


def selected_names(columns: Sequence[str] | None, names: Sequence[str]) -> Sequence[str]:
    """columns, or all names for None; OptionError for a column that is not there."""
    if columns is None:
        return names
    if isinstance(columns, str) or (unknown := [name for name in columns if name not in names]):
        shown = columns if isinstance(columns, str) else unknown
        raise OptionError("columns", shown, f"a list of column names out of {', '.join(map(repr, names))}")
    return columns


def refuse_extra(sample: Mapping[str, Any], names: Sequence[str], number: int) -> None:
    """FieldError for a column that is not declared."""
    extra = [name for name in sample if name not in names]
    if extra:
        problem = f"is no column; there are {', '.join(map(repr, names))} (ignore_extra=True leaves out all others)"
        raise FieldError(str(extra[0]), problem, f"sample {number}")


def refuse_other_types(sample: Any, number: int) -> None:
    """TypeError unless the sample is a mapping."""
    if not isinstance(sample, Mapping):
        raise TypeError(f"sample {number} is a {type(sample).__name__}; it must map column names to values")
