"""One set of columns for many inputs: found, brought together, and checked before the first row is converted."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from headrace.errors import InputError
from headrace.preparation.rows.columns import FOREIGN, NULL, Columns, is_json, joined
from headrace.preparation.rows.delimited import CsvSource, text_columns
from headrace.preparation.rows.splits import RowSource

__all__ = ["Input", "Named", "check_json", "encodings", "inspected"]

Named = Mapping[str, str | None]  # columns to keep, with an encoding or with None, which is inferred


@dataclass(frozen=True)
class Input:
    """An input and what its columns hold."""

    source: RowSource
    columns: Columns


def inspected(sources: Sequence[RowSource], named: Named | None = None) -> list[Input]:
    """The inputs with their columns.

    CSV has no types. There a column gets the one that is named; or else `int` or `float64`, where its first fields in
    all CSV files look so and it is not `str` in the other inputs; or else `str`.
    """
    found = [Input(source, source.columns()) for source in sources]
    types = {name: encoding for name, encoding in (named or {}).items() if encoding is not None}
    csv = [given for given in found if isinstance(given.source, CsvSource)]
    others = [given for given in found if not isinstance(given.source, CsvSource)]
    for name in {name: None for given in csv for name in given.columns}:
        if name not in types:
            known = _joined([given.columns[name] for given in others if name in given.columns])
            guesses = [given.columns[name] for given in csv if name in given.columns]
            types[name] = "str" if known == "str" else text_columns(guesses)
    return [_typed(given, types, named or {}) for given in found]


def encodings(inputs: Sequence[Input], named: Named | None = None) -> Columns:
    """The encoding of each column to keep, all if none are named: the one that is named, or one that fits all inputs.

    InputError for a column that is nowhere, that an input with a fixed set of columns lacks, whose values have no
    common encoding, and for one that is pickled.
    """
    names = list(named if named is not None else {name: None for given in inputs for name in given.columns})
    for name in names:
        _refuse_nowhere(name, inputs)
    return {name: (named or {}).get(name) or _encoding(name, inputs) for name in names}


def check_json(inputs: Sequence[Input], named: Named | None) -> None:
    """InputError for a column to keep that is nowhere, and for one whose values JSON cannot hold."""
    for name, encoding in (named or {}).items():
        if encoding is None and not any(name in given.columns for given in inputs):
            raise _nowhere(name, inputs)
        _refuse_nowhere(name, inputs)
    for given in inputs:
        kept = {name: encoding for name, encoding in given.columns.items() if named is None or name in named}
        for name, encoding in kept.items():
            stored = (named or {}).get(name) or encoding
            if not is_json(stored):
                rest = ",".join(other for other in kept if is_json(kept[other]))
                advice = f"leave it out: --columns {rest}" if rest else "it is the only one"
                raise InputError(given.source.name, f"column {name!r} is {stored}, which JSON cannot hold; {advice}")


def _typed(given: Input, types: Columns, named: Named) -> Input:
    if not isinstance(given.source, CsvSource):
        return given
    own = {name: types[name] for name in given.columns}
    return Input(given.source.typed(own, [name for name in own if named.get(name) is None]), own)


def _joined(found: Sequence[str]) -> str | None:
    encoding = found[0] if found else None
    for other in found[1:]:
        encoding = None if encoding is None else joined(encoding, other)
    return encoding


def _encoding(name: str, inputs: Sequence[Input]) -> str:
    having = [given for given in inputs if name in given.columns]
    lacking = [given.source for given in inputs if name not in given.columns]
    if not having:
        raise _nowhere(name, inputs)
    for source in lacking:
        if source.has_schema:
            raise InputError(
                source.name,
                f"has no column {name!r}, which {having[0].source.name} has; convert them apart, or name the columns "
                "to keep with --columns",
            )
    encoding = having[0].columns[name]
    for given in having[1:]:
        both = joined(encoding, given.columns[name])
        if both is None:
            raise InputError(
                given.source.name,
                f"column {name!r} is {given.columns[name]}, but {encoding} in {having[0].source.name}; convert them "
                "apart, or leave it out by naming the columns to keep with --columns",
            )
        encoding = both
    _refuse_unconvertible(name, encoding, having[0].source.name)
    return "json" if encoding == NULL or (lacking and is_json(encoding)) else encoding


def _refuse_unconvertible(name: str, encoding: str, where: str) -> None:
    advice = "leave it out by naming the columns to keep with --columns"
    if encoding == "pkl":
        raise InputError(where, f"column {name!r} is pickled, and reading it can run any code that is in it; {advice}")
    if encoding.startswith(FOREIGN):
        raise InputError(where, f"column {name!r} is {encoding}, which has no form elsewhere; {advice}, or cast it")


def _refuse_nowhere(name: str, inputs: Sequence[Input]) -> None:
    """InputError for a column that no row can have, which as `json` would be null in all of them."""
    if all(given.source.has_schema and name not in given.columns for given in inputs):
        raise _nowhere(name, inputs)


def _nowhere(name: str, inputs: Sequence[Input]) -> InputError:
    known = {name: None for given in inputs for name in given.columns}
    return InputError(inputs[0].source.name, f"has no column {name!r}, nor has another input; {_listed(known)}")


def _listed(names: Mapping[str, object]) -> str:
    shown = ", ".join(list(names)[:20])
    return (
        f"there are {shown}" + (f" and {len(names) - 20} more" if len(names) > 20 else "") if names else "none has any"
    )
