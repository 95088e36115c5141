"""What a document holds: its tokens, and other arrays of the same length.

{"tokens": [5, 6, 7], "mask": [1, 1, 0], "text": "a b c"}   -->   {"input_ids": [5, 6, 7], "mask": [1, 1, 0]}
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.errors import OptionError

__all__ = ["MADE", "TOKENS", "DocumentFields", "Fields"]

Fields = dict[str, NDArray[Any]]

TOKENS = "input_ids"
MADE = frozenset(["position_ids", "segment_ids", "cu_seqlens", "document_ids", "source_ids", "row_segments"])
_NAMES = ("tokens", TOKENS)


@dataclass(frozen=True)
class DocumentFields:
    """Which arrays of a document are read: `tokens` names them, None for "tokens" or "input_ids"; `others` those that
    go along, None for every array of numbers."""

    tokens: str | None = None
    others: tuple[str, ...] | None = None

    @classmethod
    def of_option(cls, field: str | Sequence[str] | None) -> "DocumentFields":
        """What the option says: nothing, the name of the tokens, or it and the names of all others."""
        if field is None or isinstance(field, str):
            return cls(field)
        names = tuple(field) if isinstance(field, Iterable) else ()
        if not names or not all(isinstance(name, str) for name in names) or len({*names}) < len(names):
            raise OptionError("field", field, "the name of the documents' tokens, or different names, that one first")
        return cls(names[0], names[1:])

    def __call__(self, document: Any) -> Fields:
        """The arrays of a document, all of one length, its tokens first and under "input_ids".

        document is an array of one dimension, or has named ones. TypeError for what is no such document, ValueError for
        a field that is missing, of another length, or named as what packing makes.
        """
        if isinstance(document, np.ndarray) and document.dtype.names is not None:
            document = {name: document[name] for name in document.dtype.names}
        if not isinstance(document, Mapping):
            return {TOKENS: _array(document)}
        name = self._tokens_name(document)
        tokens = _numbers(document[name])
        if tokens is None:
            raise TypeError(f"the documents' field {name!r} is no array of tokens in one dimension")
        fields = {TOKENS: tokens}
        for other, array in self._others(document, name):
            if len(array) != len(tokens):
                self._refuse(name, f"{other!r} has {len(array)} numbers for {len(tokens)} tokens")
            if other in MADE or other == TOKENS:
                self._refuse(name, f"{other!r} would hide what packing makes")
            fields[other] = array
        return fields

    def _tokens_name(self, document: Mapping[str, Any]) -> str:
        names = _NAMES if self.tokens is None else (self.tokens,)
        found = [name for name in names if name in document]
        if len(found) == 1:
            return found[0]
        if found:
            raise ValueError(
                "the documents have fields 'tokens' and 'input_ids'; pass field= to say which are the tokens"
            )
        wanted, known = " or ".join(map(repr, names)), ", ".join(map(repr, document))
        raise ValueError(f"the documents have no field {wanted}; they have {known}; pass field=")

    def _others(self, document: Mapping[str, Any], tokens: str) -> Iterable[tuple[str, NDArray[Any]]]:
        if self.others is None:
            for name, values in document.items():
                if name != tokens and (isinstance(values, list | tuple) or hasattr(values, "__array__")):
                    array = _numbers(values)
                    if array is not None:
                        yield name, array
            return
        for name in self.others:
            if name not in document:
                raise ValueError(f"the documents have no field {name!r}; they have {', '.join(map(repr, document))}")
            array = _numbers(document[name])
            if array is None:
                raise TypeError(f"the documents' field {name!r} is no array of numbers in one dimension")
            yield name, array

    @staticmethod
    def _refuse(tokens: str, problem: str) -> None:
        raise ValueError(
            f"the documents' field {problem}; field=({tokens!r}, ...) names the fields that go along, and only those"
        )


def _array(document: Any) -> NDArray[Any]:
    """A document that is its tokens."""
    if isinstance(document, np.ndarray) and document.ndim == 1 and document.dtype.kind in "iuf":
        return document
    tokens = _numbers(document)
    if tokens is None:
        shape = f" of shape {document.shape}" if isinstance(document, np.ndarray) else ""
        found = type(document).__name__ + shape
        raise TypeError(f"a document is an array of tokens in one dimension, or a dict with one, not {found}")
    return tokens


def _numbers(values: Any) -> NDArray[Any] | None:
    """values as an array of numbers in one dimension, or None."""
    try:
        array = np.asarray(values)
    except ValueError:  # lists of unequal lengths
        return None
    return array if array.ndim == 1 and array.dtype.kind in "biuf" else None
