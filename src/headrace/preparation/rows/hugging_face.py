"""Rows of a directory that Hugging Face's `Dataset.save_to_disk()` wrote, read with its package."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.errors import InputError
from headrace.preparation.rows.columns import Columns
from headrace.preparation.rows.splits import Observer, Row
from headrace.preparation.rows.tables import (
    MEDIA_SAMPLED,
    batch_rows,
    media_columns,
    rows_of_batch,
    table_columns,
)

__all__ = ["HuggingFaceSource", "hugging_face_source", "is_hugging_face"]

_STATE = "state.json"
_INFO = "dataset_info.json"
_SPLITS = "dataset_dict.json"


@dataclass(frozen=True)
class HuggingFaceSource:
    """A saved dataset. Places are rows."""

    name: str  # its path
    fingerprint: str
    length: int  # rows
    size_bytes: int
    can_be_cut = has_schema = True

    def cuts(self, places: Sequence[int]) -> list[int]:
        """The places themselves."""
        return list(places)

    def columns(self) -> Columns:
        """By the table's schema and its counts of nulls."""
        dataset = self._opened()
        table = dataset.data
        nullable = {name for name in table.column_names if table.column(name).null_count}
        first = dataset[: min(MEDIA_SAMPLED, self.length)] if media_columns(table.schema) else None
        return table_columns(table.schema, self.name, nullable, first)

    def rows(
        self, start: int, stop: int, names: Sequence[str] | None, observer: Observer | None
    ) -> Iterator[tuple[int, Row]]:
        """(number, row) of the rows start to stop; InputError when the dataset is another one than before."""
        dataset = self._opened()
        wanted = None if names is None else [name for name in dataset.column_names if name in names]
        if wanted:  # a table without columns would lose its rows, too
            dataset = dataset.select_columns(wanted)
        step = batch_rows(self.length, self.size_bytes)
        for begin in range(start, stop, step):
            end = min(begin + step, stop)
            yield from enumerate(rows_of_batch(dataset[begin:end], wanted), begin)
            if observer is not None:
                observer(self.size_bytes * (end - begin) // self.length)

    def where(self, place: int) -> str:
        """The directory and the row's number, from 0."""
        return f"{self.name}, row {place} (the first one is 0)"

    def _opened(self) -> Any:
        dataset = _loaded(Path(self.name))
        if (dataset._fingerprint, len(dataset)) != (self.fingerprint, self.length):
            raise InputError(self.name, "changed since it was cut into splits; run the preparation again")
        return dataset.with_format("arrow")


def is_hugging_face(path: Path) -> bool:
    """Whether save_to_disk() wrote it."""
    return ((path / _STATE).is_file() and (path / _INFO).is_file()) or (path / _SPLITS).is_file()


def hugging_face_source(path: Path) -> HuggingFaceSource:
    """The rows of a saved dataset. InputError for a DatasetDict, which holds several, and for one that is damaged."""
    if (path / _SPLITS).is_file():
        raise InputError(str(path), _several(path))
    dataset = _loaded(path)
    size_bytes = sum(file.stat().st_size for file in path.iterdir() if file.is_file())
    return HuggingFaceSource(str(path), dataset._fingerprint, len(dataset), size_bytes)


def _several(path: Path) -> str:
    try:
        splits = [str(name) for name in json.loads((path / _SPLITS).read_bytes())["splits"]]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        splits = []
    if not splits:
        return f"holds several datasets, but {_SPLITS} does not name them; name a directory with a {_STATE}"
    return f"holds the datasets {', '.join(splits)}; name those you want, such as {path / splits[0]}"


def _loaded(path: Path) -> Any:
    try:
        import datasets
    except ImportError:
        raise ImportError(
            f"{path} is a dataset of Hugging Face's; reading it needs the package datasets; pip install 'headrace[hf]'"
        ) from None
    try:
        return datasets.load_from_disk(str(path))
    except Exception as error:  # whatever the package, Arrow or JSON raise for what is damaged
        raise InputError(str(path), f"cannot be loaded as a dataset of Hugging Face's ({error})") from None
