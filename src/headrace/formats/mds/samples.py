"""A sample's columns, compiled once: which bytes lie where, and who makes values of them.

u32 size for each column whose values vary in size | the columns' bytes, in the order of their names
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from struct import Struct
from struct import error as StructError
from typing import Any

from headrace.errors import FieldError, OptionError
from headrace.formats.columns import checked_names, refuse_extra, refuse_other_types, selected_names
from headrace.formats.mds.encodings import Encoding, encoding
from headrace.formats.sample_shards import LARGEST_OFFSET, Decode

__all__ = ["SampleColumns"]


class SampleColumns:
    """The columns of an MDS sample: to bytes, and back.

    columns maps each name to an encoding's name or to an Encoding. A sample that has other columns is refused;
    ignore_extra=True leaves out the ones that are not declared, as Streaming does.
    """

    def __init__(self, columns: Mapping[str, str | Encoding], *, ignore_extra: bool = False) -> None:
        checked_names("columns", columns)
        # By code point, whatever the order in which they were declared.
        self.names = tuple(sorted(columns))
        self._encodings = tuple(_encoding(name, columns[name]) for name in self.names)
        self.encodings = tuple(found.name for found in self._encodings)
        self.sizes = tuple(found.size for found in self._encodings)
        self._ignore_extra = ignore_extra
        self._num_columns = len(self.names)
        self._fixed_bytes = sum(size for size in self.sizes if size is not None)
        variable = self.sizes.count(None)
        self._sizes_head = Struct(f"<{variable}I")
        self._plan = tuple(
            (name, found.encode if isinstance(columns[name], str) else _checked_encode(found), found.size is None)
            for name, found in zip(self.names, self._encodings, strict=True)
        )

    @property
    def unsafe(self) -> tuple[str, ...]:
        """The columns whose values run code when they are read."""
        pairs = zip(self.names, self._encodings, strict=True)
        return tuple(name for name, found in pairs if getattr(found, "unsafe", False))

    def encode(self, sample: Mapping[str, Any], number: int) -> bytes:
        """The bytes of the sample; FieldError with its number and column where it does not fit."""
        parts, sizes = [b""], []
        name = ""
        try:
            for name, encode, is_variable in self._plan:
                data = encode(sample[name])
                parts.append(data)
                if is_variable:
                    sizes.append(len(data))
        except Exception as error:
            raise _refusal(sample, name, number, error) from error
        if len(sample) != self._num_columns and not self._ignore_extra:
            refuse_extra(sample, self.names, number)
        try:
            parts[0] = self._sizes_head.pack(*sizes)
        except StructError:
            at = sizes.index(max(sizes))
            name = [name for name, _, is_variable in self._plan if is_variable][at]
            raise FieldError(name, f"has {max(sizes)} bytes; a value has less than 4 GiB", f"sample {number}") from None
        encoded = b"".join(parts)
        if len(encoded) != self._sizes_head.size + self._fixed_bytes + sum(sizes):
            self._refuse_size(parts[1:], number)
        return encoded

    def decoder(self, columns: Sequence[str] | None = None) -> Decode:
        """A function of (data file, begin, end) that gives the sample there: all columns, or only these.

        It raises ValueError, with the column, where the bytes are no such sample.
        """
        selected = set(selected_names(columns, self.names))
        wanted = [found.decode if name in selected else None for name, found in self._pairs()]
        if len(self.names) == 1 and self._sizes_head.size + self._fixed_bytes:
            return self._single_decoder(wanted[0])
        # With one column of varying size at most, every column has its place, from the begin or from the end.
        return self._placed_decoder(wanted) if self.sizes.count(None) <= 1 else self._variable_decoder(wanted)

    def _pairs(self) -> Iterable[tuple[str, Encoding]]:
        return zip(self.names, self._encodings, strict=True)

    def _single_decoder(self, decode: Any) -> Decode:
        """The shortest way, for samples of one column that takes bytes: no loop, and one slice."""
        [name], head_bytes, fixed_bytes = self.names, self._sizes_head.size, self._fixed_bytes
        unpack_size = self._sizes_head.unpack_from if head_bytes else None

        def decode_single(data: memoryview, begin: int, end: int) -> dict[str, Any]:
            claimed = head_bytes + fixed_bytes
            if unpack_size is not None and end - begin >= head_bytes:
                claimed += unpack_size(data, begin)[0]
            if end - begin != claimed:
                raise ValueError(f"it has {end - begin} bytes, but its columns claim {claimed}")
            try:
                return {name: decode(data[begin + head_bytes : end])}
            except ValueError as error:
                raise ValueError(f"column {name!r}: {error}") from error

        return decode_single

    def _placed_decoder(self, wanted: Sequence[Any]) -> Decode:
        head_bytes = self._sizes_head.size
        rest_bytes = head_bytes + self._fixed_bytes
        unpack_size = self._sizes_head.unpack_from if head_bytes else None
        plan, at = [], head_bytes
        for name, size, decode in zip(self.names, self.sizes, wanted, strict=True):
            first = at
            # Behind the column that varies places count from the end, so they are negative, and the end itself is None.
            at = at - rest_bytes if size is None else at + size
            if decode is not None:
                plan.append((name, decode, slice(first, at or None) if size != 0 else slice(0)))

        def decode_placed(data: memoryview, begin: int, end: int) -> dict[str, Any]:
            claimed = rest_bytes
            if unpack_size is not None and end - begin >= head_bytes:
                claimed += unpack_size(data, begin)[0]
            if end - begin != claimed:
                raise ValueError(f"it has {end - begin} bytes, but its columns claim {claimed}")
            part = data[begin:end]
            sample = {}
            name = ""
            try:
                for name, decode, place in plan:
                    sample[name] = decode(part[place])
            except ValueError as error:
                raise ValueError(f"column {name!r}: {error}") from error
            return sample

        return decode_placed

    def _variable_decoder(self, wanted: Sequence[Any]) -> Decode:
        plan = tuple(zip(self.names, self.sizes, wanted, strict=True))
        unpack_sizes, head_bytes = self._sizes_head.unpack_from, self._sizes_head.size
        rest_bytes = head_bytes + self._fixed_bytes

        def decode_variable(data: memoryview, begin: int, end: int) -> dict[str, Any]:
            try:
                sizes = unpack_sizes(data, begin)
            except StructError:
                sizes = ()
            if not sizes or end - begin != rest_bytes + sum(sizes):
                raise ValueError(f"it has {end - begin} bytes, but its columns claim {rest_bytes + sum(sizes)}")
            at = begin + head_bytes
            sample = {}
            next_size = iter(sizes).__next__
            name = ""
            try:
                for name, size, decode in plan:
                    stop = at + (next_size() if size is None else size)
                    if decode is not None:
                        sample[name] = decode(data[at:stop])
                    at = stop
            except ValueError as error:
                raise ValueError(f"column {name!r}: {error}") from error
            return sample

        return decode_variable

    def _refuse_size(self, parts: Sequence[bytes], number: int) -> None:
        for name, size, part in zip(self.names, self.sizes, parts, strict=True):
            if size is not None and len(part) != size:
                problem = f"its encoding gave {len(part)} bytes, but every value has {size}"
                raise FieldError(name, problem, f"sample {number}")


def _encoding(column: str, given: str | Encoding) -> Encoding:
    if isinstance(given, str):
        try:
            return encoding(given)
        except OptionError as error:
            raise OptionError("columns", {column: given}, error.expected) from None
    if not all(hasattr(given, member) for member in ("name", "size", "encode", "decode")):
        expected = "the name of an encoding, or an object with name, size, encode and decode"
        raise OptionError("columns", {column: given}, expected)
    if not isinstance(given.name, str) or not given.name:
        raise OptionError("columns", {column: given}, f"an encoding whose name is a string, not {given.name!r}")
    if given.size is not None and (type(given.size) is not int or not 0 <= given.size <= LARGEST_OFFSET):
        raise OptionError("columns", {column: given}, f"an encoding whose size is bytes or None, not {given.size!r}")
    return given


def _checked_encode(own: Encoding) -> Callable[[Any], bytes]:
    """The encode() of somebody else's encoding, which has to keep to what it says value by value.

    Two that are wrong in opposite ways would make a sample of the right size.
    """
    encode, size = own.encode, own.size

    def checked(value: Any) -> bytes:
        data: object = encode(value)
        if not isinstance(data, bytes):
            if not isinstance(data, bytearray | memoryview):
                raise TypeError(f"its encoding gave {type(data).__name__}, not bytes")
            data = bytes(data)
        if size is not None and len(data) != size:
            raise ValueError(f"its encoding gave {len(data)} bytes, but every value has {size}")
        return data

    return checked


def _refusal(sample: Mapping[str, Any], name: str, number: int, error: Exception) -> FieldError:
    refuse_other_types(sample, number)
    problem = "is missing" if name not in sample else str(error) or type(error).__name__
    return FieldError(name, problem, f"sample {number}")
