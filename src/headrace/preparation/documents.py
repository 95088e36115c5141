"""Reads the documents of a split, block by block, so that no input is ever held whole.

A document comes as one or more texts, the last of them marked. A text longer than 262,144 characters is cut in
front of a single space between letters or digits, or, in text without spaces, behind a single newline between them:
the pre-tokenizers in use (those of GPT-2, GPT-4 and their descendants, white space, Metaspace) never join characters
across such a place, so the token ids are those of the whole text. A tokenizer that joins words may give a few other
ids there, and one that puts a space in front of every text, where there are no spaces.
Where the cuts lie depends on the text alone, not on splits, compression or block sizes.
"""

import json
import re
from collections.abc import Iterator

import msgspec

from headrace.errors import InputError
from headrace.preparation.blocks import blocks_of, checked_decode, line_error, lines_of, text_of
from headrace.preparation.sources import Piece, Split, text_kind

__all__ = ["PIECE_CHARS", "pieces_of", "read_documents"]

PIECE_CHARS = 1 << 18  # a tokenizer needs some hundred bytes a character meanwhile
_LONGEST_PIECE_CHARS = 4 * PIECE_CHARS  # a text without any safe place is cut here, come what may
_SAFE_PLACE = re.compile(r"(?<=[^\W_])[ \n](?=[^\W_])")


def read_documents(split: Split, *, field: str = "text") -> Iterator[tuple[str, bool]]:
    """(text, ends) in input order; ends is True at the last text of a document. No text is empty.

    Documents without any text are left out, and so is a byte order mark at the start of a file. `file` documents keep
    every character, `line` documents lack their line end, `paragraph` documents their last one. For JSONL, `field`
    names the member that holds the text. Raises InputError, naming file and line or byte, for a line that is not a JSON
    object with that string, for what is not UTF-8, for a damaged archive, and for a file changed since it was cut.
    """
    for piece in split.pieces:
        blocks = blocks_of(piece, split.observer)
        match text_kind(piece.path), split.document:
            case "jsonl", _:
                yield from _json_documents(piece, blocks, field)
            case _, "file":
                yield from _marked(pieces_of(_decoded(piece, blocks)))
            case _, "line":
                for offset, line in lines_of(piece, blocks):
                    if line.strip():
                        yield from _marked(pieces_of([text_of(piece, offset, line.rstrip(b"\r\n"))]))
            case _:
                yield from _paragraphs(piece, blocks)


def pieces_of(texts: Iterator[str] | list[str]) -> Iterator[str]:
    """The same characters in pieces of about PIECE_CHARS, cut at safe places only; nothing for no characters."""
    parts: list[str] = []
    held_chars, enough_chars = 0, PIECE_CHARS + 1  # one more: whether a place is safe shows in the character behind it
    for text in texts:
        parts.append(text)
        held_chars += len(text)
        if held_chars < enough_chars:
            continue
        whole, begin = "".join(parts), 0
        while (place := _cut(whole, begin)) is not None:
            yield whole[begin:place]
            begin = place
        parts, held_chars = [whole[begin:]], len(whole) - begin
        # Without a safe place so far, look again only after another piece's worth: never quadratic.
        enough_chars = max(PIECE_CHARS + 1, held_chars + PIECE_CHARS)
    if rest := "".join(parts):
        yield from _rest(rest)


def _rest(text: str) -> Iterator[str]:
    begin = 0
    while (place := _cut(text, begin)) is not None:
        yield text[begin:place]
        begin = place
    yield text[begin:]


def _cut(text: str, begin: int) -> int | None:
    """Where the piece from begin on ends, None if the text from begin on is too short to tell."""
    if len(text) - begin <= PIECE_CHARS:
        return None
    for separator in " \n":
        place = text.rfind(separator, begin + 1, begin + PIECE_CHARS)
        while place != -1:
            if text[place - 1].isalnum() and text[place + 1].isalnum():
                return _behind(text, place)
            place = text.rfind(separator, begin + 1, place)
    last = begin + _LONGEST_PIECE_CHARS
    if found := _SAFE_PLACE.search(text, begin + PIECE_CHARS - 1, last + 1):
        return _behind(text, found.start())
    return last if len(text) > last else None


def _behind(text: str, place: int) -> int:
    # The space belongs to the word behind it, the newline to the line before it.
    return place if text[place] == " " else place + 1


def _marked(texts: Iterator[str]) -> Iterator[tuple[str, bool]]:
    held = next(texts, None)
    if held is None:
        return
    for text in texts:
        yield held, False
        held = text
    yield held, True


def _json_documents(piece: Piece, blocks: Iterator[bytes], field: str) -> Iterator[tuple[str, bool]]:
    line_type = msgspec.defstruct(
        "Line", [("text", str, msgspec.field(name=field))]
    )  # other members are skipped unread
    decoder = msgspec.json.Decoder(line_type)
    for offset, line in lines_of(piece, blocks):
        try:
            text: str = decoder.decode(line).text  # type: ignore[attr-defined]
        except msgspec.DecodeError as error:
            if not line.strip():
                continue
            text = _json_text(piece, offset, line, field, str(error))
        if len(text) > PIECE_CHARS:
            yield from _marked(pieces_of([text]))
        elif text:
            yield text, True


def _json_text(piece: Piece, offset: int, line: bytes, field: str, problem: str) -> str:
    """The text after all, where only msgspec is stricter than the world's writers (NaN); InputError otherwise."""
    try:
        value = json.loads(text_of(piece, offset, line))
    except ValueError as error:
        if isinstance(error, InputError):
            raise
        raise line_error(piece, offset, f"not JSON ({error})") from None
    except RecursionError:
        raise line_error(piece, offset, "JSON nested too deeply") from None
    if not isinstance(value, dict) or not isinstance(value.get(field), str):
        names = f"; it has {', '.join(map(repr, list(value)[:8]))}" if isinstance(value, dict) else ""
        raise line_error(piece, offset, f"no object with a string {field!r} ({problem}){names}")
    text: str = value[field]
    try:
        text.encode()
    except UnicodeEncodeError:
        raise line_error(piece, offset, f"{field!r} holds half a surrogate pair, which is no character") from None
    return text


def _paragraphs(piece: Piece, blocks: Iterator[bytes]) -> Iterator[tuple[str, bool]]:
    lines = lines_of(piece, blocks)
    for offset, line in lines:
        if line.strip():
            yield from _marked(pieces_of(_one_paragraph(piece, offset, line, lines)))


def _one_paragraph(piece: Piece, offset: int, line: bytes, lines: Iterator[tuple[int, bytes]]) -> Iterator[str]:
    """The texts of the paragraph that begins with line; takes its other lines, and the blank one behind, from lines."""
    end = b""
    while line.strip():
        body = line.rstrip(b"\r\n")
        yield text_of(piece, offset - len(end), end + body)
        end = line[len(body) :]
        offset, line = next(lines, (0, b""))


def _decoded(piece: Piece, blocks: Iterator[bytes]) -> Iterator[str]:
    offset, rest = piece.start, b""
    for block in blocks:
        data = rest + block
        text, used = checked_decode(piece, offset, data, final=False)
        yield text.removeprefix("\ufeff") if offset == 0 else text
        offset, rest = offset + used, data[used:]
    checked_decode(piece, offset, rest, final=True)  # raises if the last character is cut off
