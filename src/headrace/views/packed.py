"""Whole documents in rows of one length, planned from lengths alone."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.errors import OptionError, OrderError
from headrace.planning.packing import LONG_POLICIES, STRATEGIES, Long, PackedRows, Strategy, pack
from headrace.planning.permutation import derive_seed
from headrace.views.document_fields import TOKENS, DocumentFields, Fields
from headrace.views.leaves import leaf_paths, leaves_at, some_leaf
from headrace.views.options import whole_number
from headrace.views.packed_rows import PackedBatch, joined, padding_of
from headrace.views.protocol import Int64s, MapDataset, Setting, fetch
from headrace.views.windowed import ROW_BITS, WindowedDataset, WindowRows

__all__ = ["PackedDataset"]

DEFAULT_WINDOW = 65_536
PACKING_VERSION = 1
LENGTH_BITS = 38  # of a document's tokens: lengths of a window add up to less than 2^62

_COUNTED = ("tokens", "dropped_documents", "dropped_tokens", "split_documents", "empty_documents")


class PackedDataset(WindowedDataset[PackedRows]):
    """Rows of sequence_length tokens that hold whole documents of base, as few rows as can be found.

    `view[i]` is row i of epoch 0, a dict as PackedBatch describes it, with position ids, segment ids and cumulative
    lengths that keep the documents of a row apart. Every token of base is in one row an epoch, but those of documents
    that `long="drop"` leaves out. Rows are planned from the lengths of base, `window` documents at a time.

    strategy is "best_fit" (best-fit decreasing), "first_fit", or "concat", which puts documents end to end and cuts
    them where rows end. `long` is for documents of more than sequence_length tokens: "split" cuts them into rows of
    their own and a rest, "drop" leaves them out, and "error" is an OrderError; report() counts them. `seed` decides the
    order of the rows of a window, except for "concat", which keeps the documents' order.

    Documents are arrays of tokens, or dicts with one under "tokens", "input_ids" or `field`. Their other arrays of
    numbers, of the same length, go along under their names; field=("tokens", "mask") says which ones, and only those.
    pad_id stands behind the documents of a row. docs/design/packing.md has the rules.

    OptionError for a value that means nothing, and TypeError for one of another type.
    """

    def __init__(  # noqa: PLR0913 -- how rows are made, what is read, and the window: all are switches
        self,
        base: MapDataset,
        sequence_length: int,
        window: int = DEFAULT_WINDOW,
        strategy: Strategy = "best_fit",
        long: Long = "split",
        seed: int = 0,
        *,
        pad_id: int = 0,
        field: str | Sequence[str] | None = None,
        cache: str | Path | None = None,
    ) -> None:
        super().__init__(base, window, cache)
        self.sequence_length = whole_number("sequence_length", sequence_length, least=1, below=1 << 31)
        if strategy not in STRATEGIES:
            raise OptionError("strategy", strategy, ", ".join(map(repr, STRATEGIES)))
        if long not in LONG_POLICIES:
            raise OptionError("long", long, ", ".join(map(repr, LONG_POLICIES)))
        self.strategy: Strategy = strategy
        self.long: Long = long
        self.seed = whole_number("seed", seed)
        self.pad_id = whole_number("pad_id", pad_id)
        self.field = field
        self._fields_of = DocumentFields.of_option(field)
        self._sources: dict[tuple[str, ...], int] | None = None

    def __repr__(self) -> str:
        return (
            f"PackedDataset({self.base!r}, {self.sequence_length}, window={self.window}, strategy={self.strategy!r}, "
            f"long={self.long!r}, seed={self.seed})"
        )

    @property
    def own_settings(self) -> Mapping[str, Setting]:
        """Everything that decides the rows."""
        return {
            "packing": self.strategy,
            "packing_version": PACKING_VERSION,
            "row_length": self.sequence_length,
            "long": self.long,
            "window": self.window,
            "pack_seed": self.seed,
        }

    @property
    def source_names(self) -> list[str]:
        """What the numbers in source_ids mean: the datasets below all views, "outer/inner" in a mixture of mixtures."""
        return ["/".join(path) for path in leaf_paths(self.base)]

    def report(self, epoch: int = 0) -> dict[str, Any]:
        """What an epoch's rows hold, from lengths alone; plans all of its windows.

        Counts of rows, documents and tokens in them, tokens that they could hold (capacity), documents in more than one
        piece (split), documents and tokens left out (dropped), and documents of no tokens (empty). utilisation is
        tokens over capacity, 1 where there are no rows.
        """
        counts = dict.fromkeys(_COUNTED, 0)
        rows = 0
        for window in range(self.num_windows):
            plan = self.window_plan(epoch, window)
            rows += plan.num_rows
            for name in _COUNTED:
                counts[name] += getattr(plan, name)
        left_out = counts["dropped_documents"] + counts["empty_documents"]
        capacity = rows * self.sequence_length
        return {
            "rows": rows,
            "documents": len(self.base) - left_out,
            "capacity": capacity,
            "utilisation": counts["tokens"] / capacity if capacity else 1.0,
            **counts,
        }

    def row_positions(self, epoch: int, window: int) -> tuple[Int64s, Int64s]:
        """The base's endless positions of the documents in a window's rows, and where each row begins among them.

        Row k has positions[offsets[k] : offsets[k + 1]].
        """
        plan = self.window_plan(epoch, window)
        return self.window_positions(epoch, window)[0] + plan.documents, plan.offsets

    def no_rows(self) -> PackedBatch:
        """A batch of no rows, with the fields and types of a document."""
        if len(self.base) == 0:
            raise IndexError("a dataset of 0 documents does not tell their type")
        first = self._fields_of(fetch(some_leaf(self.base), np.zeros(1, np.int64))[0])
        none = np.zeros(0, np.int64)
        return PackedBatch(
            {name: np.empty((0, self.sequence_length), array.dtype) for name, array in first.items()},
            none,
            np.zeros(1, np.int64),
            none,
            None if () in self._numbers else none,
        )

    def _planned(self, lengths: Int64s, epoch: int, window: int) -> PackedRows:
        if self.long == "error":
            too_long = np.flatnonzero(lengths > self.sequence_length)
            if len(too_long):
                begin, _ = self.window_positions(epoch, window)
                raise self._too_long(begin + int(too_long[0]), int(lengths[too_long[0]]))
        if self.long == "split" and len(lengths):
            longest, least_rows = int(lengths.max()), int(lengths.sum()) // self.sequence_length
            if longest >> LENGTH_BITS or least_rows >> ROW_BITS:
                raise OrderError(
                    f"window {window} of epoch {epoch} has documents of up to {longest} tokens, too many for the "
                    f"{1 << ROW_BITS} rows that a window may have; if the lengths are right, make the window smaller"
                )
        seed = derive_seed(self.seed, "pack", epoch, window)
        return pack(lengths, self.sequence_length, strategy=self.strategy, long=self.long, seed=seed)

    def _read(self, parts: Sequence[WindowRows[PackedRows]], num_rows: int) -> PackedBatch:
        if num_rows == 0:
            return self.no_rows()
        pieces = _Pieces(parts, num_rows)
        sources = np.zeros(len(pieces.positions), np.int64)
        items = np.empty(len(pieces.positions), np.int64)
        documents: list[Fields] = [{}] * len(pieces.positions)
        for leaf in leaves_at(self.base, pieces.positions):
            items[leaf.places] = leaf.items
            sources[leaf.places] = self._numbers[leaf.path]
            try:
                self._read_pieces(leaf.dataset, leaf.items, pieces.at(leaf.places), leaf.places, documents)
            except Exception as error:
                if leaf.source:
                    error.add_note(f"in source {leaf.source!r} of a mixture")
                raise
        return self._batch(documents, pieces.row_segments, items, sources)

    def _read_pieces(
        self, dataset: Any, items: Int64s, spans: NDArray[np.int64], places: Int64s, documents: list[Fields]
    ) -> None:
        """Put the pieces of these items of a dataset into documents, at their places."""
        starts, stops, lengths = spans
        slow = np.ones(len(items), bool)
        if getattr(dataset, "reads_slices", False) and len(cut := np.flatnonzero(stops - starts < lengths)):
            slow[cut] = False
            for place, part in zip(
                places[cut].tolist(), dataset.read_slices(items[cut], starts[cut], stops[cut]), strict=True
            ):
                documents[place] = self._fields_of(part)
            items, starts, stops, lengths, places = (array[slow] for array in (items, starts, stops, lengths, places))
        samples = fetch(dataset, items) if len(items) else []
        for sample, place, item, start, stop, length in zip(
            samples, *(array.tolist() for array in (places, items, starts, stops, lengths)), strict=True
        ):
            try:
                fields = self._fields_of(sample)
            except Exception as error:
                error.add_note(f"in document {item}, of type {type(sample).__name__}")
                raise
            found = len(fields[TOKENS])
            if found > length or (found < length and not _is_substitute(dataset, item)):
                raise ValueError(f"document {item} has {found} tokens, but its length was given as {length}")
            if start or stop < found:  # of a substitute for a damaged document there may be less than was planned
                fields = {name: array[start:stop] for name, array in fields.items()}
            documents[place] = fields

    def _batch(self, documents: Sequence[Fields], row_segments: Int64s, items: Int64s, sources: Int64s) -> PackedBatch:
        lengths = np.fromiter((len(fields[TOKENS]) for fields in documents), np.int64, len(documents))
        ends = np.concatenate([np.zeros(1, np.int64), lengths.cumsum()])
        rests = self.sequence_length - np.diff(ends[row_segments])
        padded = np.flatnonzero(rests)
        paddings = list(zip(row_segments[1:][padded].tolist(), rests[padded].tolist(), strict=True))
        names = documents[0].keys()
        for number, fields in enumerate(documents):
            if fields.keys() != names:
                raise ValueError(
                    f"document {items[number]} has other fields than document {items[0]}, {', '.join(fields)} and "
                    f"{', '.join(names)}; field= names those that go along"
                )
        arrays = {}
        for name in names:
            found = [fields[name] for fields in documents]
            pad = padding_of(name, found[0].dtype, self.pad_id)
            arrays[name] = joined(name, found, paddings, pad).reshape(-1, self.sequence_length)
        return PackedBatch(arrays, lengths, row_segments, items, None if () in self._numbers else sources)

    @property
    def _numbers(self) -> dict[tuple[str, ...], int]:
        """The number of each source in source_ids; {(): 0} where there is no mixture."""
        if self._sources is None:
            self._sources = {path: number for number, path in enumerate(leaf_paths(self.base))}
        return self._sources

    def _too_long(self, position: int, length: int) -> OrderError:
        (leaf,) = leaves_at(self.base, np.array([position], np.int64))
        of = f" of source {leaf.source!r}" if leaf.source else ""
        return OrderError(
            f"the document at position {position} (item {int(leaf.items[0])} of {type(leaf.dataset).__name__}{of}) has "
            f"{length} tokens, more than a row of {self.sequence_length}; long='split' cuts such documents, and "
            "long='drop' leaves them out"
        )


def _is_substitute(dataset: Any, item: int) -> bool:
    """Whether what the dataset gave for an item may be shorter, since another one stands for it."""
    replaces = getattr(dataset, "replaces", None)
    return replaces is not None and bool(replaces(item))


class _Pieces:
    """The pieces of documents in the rows of a batch, row by row."""

    def __init__(self, parts: Sequence[WindowRows[PackedRows]], num_rows: int) -> None:
        counts = np.zeros(num_rows, np.int64)
        for part in parts:
            counts[part.places] = part.plan.offsets[part.rows + 1] - part.plan.offsets[part.rows]
        self.row_segments = np.concatenate([np.zeros(1, np.int64), counts.cumsum()])
        self.positions = np.empty(int(self.row_segments[-1]), np.int64)
        self._spans = np.empty((3, len(self.positions)), np.int64)  # start, stop, and the document's length
        for part in parts:
            plan = part.plan
            here = counts[part.places]
            within = np.arange(here.sum()) - np.repeat(here.cumsum() - here, here)
            places = np.repeat(self.row_segments[part.places], here) + within
            pieces = np.repeat(plan.offsets[part.rows], here) + within
            documents = plan.documents[pieces]
            self.positions[places] = part.start + documents
            self._spans[:, places] = plan.starts[pieces], plan.stops[pieces], plan.lengths[documents]

    def at(self, places: Int64s) -> NDArray[np.int64]:
        """(start, stop, length of the document) of the pieces at these places, shape (3, k)."""
        return self._spans[:, places]
