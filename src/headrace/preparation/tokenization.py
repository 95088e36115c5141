"""Turns the documents of a split into records of token ids, in one of three layouts.

    split -> documents -> batches of texts -> tokenizer -> stream      one record {"tokens": ids} a batch
                                                        -> documents   one record, its ids, a document
                                                        -> spans       one record a batch, with one span a document

The ids, end to end, are the same in all three. Every document is followed by the end-of-document token. Text is only
ever text: a document that spells out `<|endoftext|>` gets the ids of those characters, so that no document can end
another one.
"""

import hashlib
import multiprocessing
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol, get_args

import numpy as np
from numpy.typing import NDArray

from headrace.datasets import DocumentStorage, StreamStorage, StreamWithMetaStorage
from headrace.errors import InputError
from headrace.formats.annotated import SpanNumpyFormat
from headrace.formats.documents import DocumentNumpyFormat
from headrace.formats.stream import StreamNumpyFormat
from headrace.preparation.documents import PIECE_CHARS, read_documents
from headrace.preparation.sources import Split
from headrace.store import Store

__all__ = [
    "Layout",
    "TokenRecords",
    "Tokenizer",
    "document_id",
    "document_place",
    "end_of_document",
    "load_tokenizer",
    "token_dtype",
    "token_records",
]

Layout = Literal["stream", "documents", "spans"]

DTYPE_NAMES = ("auto", "uint16", "uint32", "int32")
_ENDS = (
    "<|endoftext|>",
    "<|end_of_text|>",
    "<|end▁of▁sentence|>",
    "<end_of_text>",
    "<|eos|>",
    "</s>",
    "<eos>",
    "<EOS>",
    "[EOS]",
)
_BATCH_CHARS = PIECE_CHARS
_BATCH_TEXTS = 4096
_ORDINAL_BITS = 40
_MAX_SPLITS = 1 << 63 - _ORDINAL_BITS  # ids are int64, and none is negative


class Tokenizer(Protocol):
    """What is asked of a tokenizer. A custom one needs these members and nothing else."""

    name: str
    vocab_size: int  # the largest id it can give, plus 1
    digest: str  # changes with anything that changes ids

    def encode_batch(self, texts: Sequence[str]) -> list[NDArray[np.uint32]]:
        """The ids of each text, in order, without special tokens."""
        ...

    def token_id(self, token: str) -> int | None:
        """The id of a token written out, None if there is no such token."""
        ...


class _HuggingFaceTokenizer:
    def __init__(self, path: Path) -> None:
        if multiprocessing.parent_process() is not None:
            # One of several workers: a pool of threads as large as the machine in each would only get in the way.
            os.putenv("TOKENIZERS_PARALLELISM", "false")
        try:
            import tokenizers
        except ImportError:
            raise InputError(str(path), "needs the package tokenizers; pip install 'headrace[tokenize]'") from None
        definition = path.read_bytes()
        try:
            inner = tokenizers.Tokenizer.from_str(definition.decode())
        except Exception as error:  # the library raises bare Exception
            raise InputError(str(path), f"is no tokenizer.json of Hugging Face's tokenizers ({error})") from None
        inner.no_truncation()  # the file may hold what training once used, which would drop most of a long document
        inner.no_padding()
        inner.encode_special_tokens = True
        self._encode = getattr(inner, "encode_batch_fast", inner.encode_batch)  # the fast one came with 0.20.1
        self._inner = inner
        self.name = str(path)
        self.vocab_size = max(inner.get_vocab(with_added_tokens=True).values(), default=-1) + 1
        self.digest = hashlib.blake2b(definition, digest_size=16).hexdigest()

    def encode_batch(self, texts: Sequence[str]) -> list[NDArray[np.uint32]]:
        return [np.array(e.ids, np.uint32) for e in self._encode(list(texts), add_special_tokens=False)]

    def token_id(self, token: str) -> int | None:
        found: int | None = self._inner.token_to_id(token)
        return found


class _TiktokenTokenizer:
    def __init__(self, name: str) -> None:
        try:
            import tiktoken
        except ImportError:
            raise InputError(
                f"tokenizer {name!r}", "needs the package tiktoken; pip install 'headrace[tokenize]'"
            ) from None
        known = tiktoken.list_encoding_names()
        if name not in known:
            raise InputError(
                f"tokenizer {name!r}", f"is neither a file nor one of tiktoken's encodings ({', '.join(sorted(known))})"
            )
        try:
            inner = tiktoken.get_encoding(name)
        except Exception as error:  # whatever the download raised
            raise InputError(
                f"tokenizer {name!r}",
                f"its vocabulary is not on this machine and could not be fetched ({type(error).__name__}: "
                f"{str(error).splitlines()[0] if str(error) else 'no reason given'}); run once with a network, "
                "set TIKTOKEN_CACHE_DIR to a folder that has it, or give the path of a tokenizer.json",
            ) from None
        self._inner = inner
        self.name = name
        self.vocab_size = inner.n_vocab
        self.digest = f"tiktoken-{name}-{inner.n_vocab}"  # tiktoken never changes an encoding under its name

    def encode_batch(self, texts: Sequence[str]) -> list[NDArray[np.uint32]]:
        # One by one: tiktoken's own batches bring eight threads into each worker. encode_to_numpy makes no Python ints.
        return [
            self._inner.encode_to_numpy(text, disallowed_special=()).astype(np.uint32, copy=False) for text in texts
        ]

    def token_id(self, token: str) -> int | None:
        try:
            return int(self._inner.encode_single_token(token))
        except KeyError:
            return None


def load_tokenizer(spec: str) -> Tokenizer:
    """The tokenizer behind spec: a tokenizer.json (or a folder that has one), or the name of a tiktoken encoding.

    A file is loaded once a process, and again when it was replaced. Raises InputError for a file that is no tokenizer,
    an unknown name, a missing package, and a tiktoken vocabulary that is neither on this machine nor to be had.
    """
    path = Path(spec).expanduser()
    if (path / "tokenizer.json").is_file():
        path = path / "tokenizer.json"
    if path.is_file():
        stat = path.stat()
        return _from_file(path, (stat.st_mtime_ns, stat.st_size))
    if path.suffix == ".json" or len(path.parts) > 1:
        raise InputError(str(path), "no such file; a tokenizer is a tokenizer.json or the name of a tiktoken encoding")
    return _TiktokenTokenizer(spec)  # tiktoken keeps what it loaded


@lru_cache(maxsize=4)
def _from_file(path: Path, version: tuple[int, int]) -> Tokenizer:
    return _HuggingFaceTokenizer(path)


def end_of_document(tokenizer: Tokenizer, eos: str | int | None = None) -> int:
    """The id that follows each document: eos (an id, or a token written out), or else the tokenizer's own.

    Its own is the first of <|endoftext|>, <|end_of_text|>, </s>, <eos> and a few more that it has. Raises InputError if
    it has none of them, or if eos is not in its vocabulary.
    """
    where = f"tokenizer {tokenizer.name}"
    if eos is None:
        for token in _ENDS:
            if (found := tokenizer.token_id(token)) is not None:
                return found
        raise InputError(where, "has no end-of-document token of a known name; give one with --eos ID or --eos TOKEN")
    if isinstance(eos, int) or eos.isdecimal():
        if not 0 <= int(eos) < tokenizer.vocab_size:
            raise InputError(where, f"has ids 0 to {tokenizer.vocab_size - 1}; eos={eos} is not one of them")
        return int(eos)
    if (found := tokenizer.token_id(eos)) is None:
        raise InputError(where, f"has no token {eos!r} for the end of a document")
    return found


def token_dtype(vocab_size: int, name: str = "auto") -> np.dtype[Any]:
    """The little-endian dtype of the ids: `auto` is uint16 up to 65,536 entries (ids to 65,535), else uint32.

    Raises InputError for a name that is none of auto, uint16, uint32, int32, and for one too small for the vocabulary.
    """
    if name not in DTYPE_NAMES:
        raise InputError(f"dtype {name!r}", f"is not one of {', '.join(DTYPE_NAMES)}")
    if name == "auto":
        name = "uint16" if vocab_size <= 1 << 16 else "uint32"
    dtype = np.dtype(name).newbyteorder("<")
    largest = int(np.iinfo(dtype).max)
    if vocab_size - 1 > largest:
        raise InputError(
            f"dtype {name}", f"holds ids to {largest}, but the vocabulary goes to {vocab_size - 1}; use auto"
        )
    return dtype


def document_id(split_number: int, ordinal: int) -> int:
    """The id of document `ordinal` of a split, the payload of its span: split_number << 40 | ordinal.

    Both count from 0; documents without any text are left out and do not count. So the ids ascend through the dataset,
    and in a dataset of layout "documents" of the same splits, it is document `ordinal` of shard `split_number`. Raises
    ValueError for a split from 8,388,608 on, and a document from 2**40 on.
    """
    if not (0 <= split_number < _MAX_SPLITS and 0 <= ordinal < 1 << _ORDINAL_BITS):
        raise ValueError(
            f"document {ordinal} of split {split_number} has no id: there are ids for splits 0 to {_MAX_SPLITS - 1:,} "
            f"and documents 0 to {(1 << _ORDINAL_BITS) - 1:,} of each"
        )
    return split_number << _ORDINAL_BITS | ordinal


def document_place(number: int) -> tuple[int, int]:
    """(split_number, ordinal) of the document with this id; ValueError for a number that is no id."""
    if not 0 <= number < 1 << 63:
        raise ValueError(f"{number} is no document id; ids go from 0 to 2**63 - 1")
    return int(number) >> _ORDINAL_BITS, int(number) & (1 << _ORDINAL_BITS) - 1


@dataclass(frozen=True)
class TokenRecords:
    """make_records for `prepare`: the records of a split of text files. `token_records` makes one.

    Plain settings, so that it pickles; each process loads the tokenizer itself. All fields are part of the tasks' ids.
    """

    spec: str
    digest: str
    eos_id: int
    dtype: str
    field: str = "text"
    layout: Layout = "stream"

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer; InputError if it is no longer the one that the settings were made from."""
        tokenizer = load_tokenizer(self.spec)
        if tokenizer.digest != self.digest:
            raise InputError(f"tokenizer {tokenizer.name}", "changed since the preparation began; start it again")
        return tokenizer

    @property
    def metadata(self) -> dict[str, Any]:
        """What a reader of the tokens will want to know, for the manifest."""
        found: dict[str, Any] = {
            "tokenizer": self.digest,
            "vocab_size": self.tokenizer.vocab_size,
            "end_of_document": self.eos_id,
        }
        if self.layout == "spans":
            found["payload"] = f"document id: split << {_ORDINAL_BITS} | ordinal in the split"
        return found

    def storage(self, directory: str | Path | Store) -> StreamStorage | DocumentStorage | StreamWithMetaStorage:
        """A storage at a directory, URL or store, of the kind and format of these records: a target for `prepare`."""
        elements = np.dtype([("tokens", self.dtype)])
        match self.layout:
            case "stream":
                return StreamStorage(directory, StreamNumpyFormat(elements))
            case "documents":
                return DocumentStorage(directory, DocumentNumpyFormat(self.dtype))
            case _:
                return StreamWithMetaStorage(directory, SpanNumpyFormat(elements, DocumentNumpyFormat("<i8")))

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "tokenizer"}

    def __call__(self, split: Split) -> Iterator[Any]:
        """The split's records. What they are follows from the layout; end to end their ids are the same in all.

        stream     {"tokens": ids} a batch of about 262,144 characters: many documents, or a part of one
        documents  one 1-D array a document
        spans      {"tokens", "span_lengths", "payloads"} for the documents that end in a batch; a payload is an int64
                   array with the document's id
        """
        match self.layout:
            case "stream":
                for batch in self._batches(split):
                    yield {"tokens": batch.tokens}
            case "documents":
                for documents in self._documents(split):
                    yield from documents
            case _:
                yield from self._spans(split)

    def _spans(self, split: Split) -> Iterator[dict[str, Any]]:
        ordinal = 0
        for documents in self._documents(split):
            if documents:
                ordinal += len(documents)
                last = document_id(split.number, ordinal - 1)
                yield {
                    "tokens": np.concatenate(documents),
                    "span_lengths": np.array([len(ids) for ids in documents], np.int64),
                    "payloads": list(last + np.arange(1 - len(documents), 1, dtype=np.int64)[:, None]),
                }

    def _documents(self, split: Split) -> Iterator[list[NDArray[Any]]]:
        """The documents that end in each batch; one that goes on is held until it ends."""
        held: list[NDArray[Any]] = []
        for batch in self._batches(split):
            documents, start = [], 0
            for length, last in zip(batch.lengths, batch.ends, strict=True):
                held.append(batch.tokens[start : start + length])
                start += length
                if last:
                    documents.append(np.concatenate(held) if len(held) > 1 else held[0])
                    held = []
            yield documents

    def _batches(self, split: Split) -> Iterator["_Batch"]:
        texts: list[str] = []
        ends: list[bool] = []
        num_chars = 0
        for text, last in read_documents(split, field=self.field):
            texts.append(text)
            ends.append(last)
            num_chars += len(text)
            if num_chars >= _BATCH_CHARS or len(texts) == _BATCH_TEXTS:
                yield self._encoded(texts, ends)
                texts, ends, num_chars = [], [], 0
        if texts:
            yield self._encoded(texts, ends)

    def _encoded(self, texts: list[str], ends: list[bool]) -> "_Batch":
        end = np.array([self.eos_id], np.uint32)
        parts: list[NDArray[np.uint32]] = []
        lengths: list[int] = []
        for ids, last in zip(self.tokenizer.encode_batch(texts), ends, strict=True):
            parts.append(ids)
            if last:
                parts.append(end)
            lengths.append(len(ids) + last)
        # Never out of range: the dtype was checked against the whole vocabulary.
        return _Batch(np.concatenate(parts).astype(self.dtype), lengths, ends)


class _Batch(NamedTuple):
    """The ids of some texts, those of the end of a document included."""

    tokens: NDArray[Any]
    lengths: list[int]  # of each text
    ends: list[bool]  # whether a text is the last one of its document


def token_records(
    tokenizer: str,
    *,
    dtype: str = "auto",
    eos: str | int | None = None,
    field: str = "text",
    layout: Layout = "stream",
) -> TokenRecords:
    """A make_records that gives token ids; `.dtype` is the dtype of the ids, `.eos_id` the end of a document.

    layout is what the records are of: "stream" for StreamStorage, "documents" for DocumentStorage, "spans" for
    StreamWithMetaStorage; `.storage(directory)` is the one that fits. tokenizer, eos and dtype are as in
    load_tokenizer, end_of_document and token_dtype, and raise as they do; InputError for an unknown layout.
    """
    if layout not in get_args(Layout):
        raise InputError(f"layout={layout!r}", f"is not one of {', '.join(get_args(Layout))}")
    path = Path(tokenizer).expanduser()
    spec = os.path.abspath(path) if path.exists() else tokenizer  # workers may stand in another folder
    loaded = load_tokenizer(spec)
    return TokenRecords(
        spec=spec,
        digest=loaded.digest,
        eos_id=end_of_document(loaded, eos),
        dtype=token_dtype(loaded.vocab_size, dtype).str,
        field=field,
        layout=layout,
    )
