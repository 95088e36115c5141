"""Batches on their way from a worker process: one message a batch, and one piece of shared memory for its tensors.

    batch --> body: everything but the large tensors, small ones included
         '--> content: the large tensors, end to end, in shared memory

torch by itself sends every tensor as a file descriptor, which the receiver must ask for over a connection of its own:
a few hundred microseconds each, many times the cost of making the batch. What torch alone can send (tensors that are
shared already, views, subclasses, other layouts) goes its way as ever.
"""

import copyreg
import threading
from collections import ChainMap
from io import BytesIO
from multiprocessing.reduction import ForkingPickler
from typing import Any, ClassVar

import torch

__all__ = ["Parcel", "needs_no_parcel"]

SMALL_BYTES = 16 * 1024  # as much is copied faster than it is shared
ALIGNED_BYTES = 64

_ALONE = frozenset({str, bytes, int, float, bool, type(None)})

# Types that NumPy has, sent by their places here: by name one is looked up for each tensor, in both processes.
_DTYPES = (
    *(torch.bool, torch.uint8, torch.int8, torch.uint16, torch.int16, torch.uint32, torch.int32, torch.uint64),
    *(torch.int64, torch.float16, torch.float32, torch.float64, torch.complex64, torch.complex128),
)
_CODES: dict[torch.dtype, int] = {dtype: code for code, dtype in enumerate(_DTYPES)}


def needs_no_parcel(batch: Any) -> bool:
    """Whether it is lists of text or numbers, by name or one alone: nothing to share, and pickling it cannot fail."""
    if type(batch) is not dict:
        return type(batch) is list and _ALONE.issuperset(map(type, batch))
    # No deeper: of what is nested a look at all of it could cost more than it saves.
    return _ALONE.issuperset(map(type, batch)) and all(
        type(column) is list and _ALONE.issuperset(map(type, column)) for column in batch.values()
    )


class Parcel:
    """A batch that is sent at once: whoever unpickles it has the batch.

    Its large tensors then lie in one piece of shared memory, which lives as long as any of them. Raises what pickling
    the batch raises, or RuntimeError when there is no shared memory left.
    """

    def __init__(self, batch: Any) -> None:
        packing = _Packing()
        packing.dump(batch)
        self._body = packing.body.getvalue()
        self._content = _end_to_end(packing.large, packing.size_bytes) if packing.large else None

    def __reduce__(self) -> Any:
        return _opened, (self._body, self._content)


class _Packing(ForkingPickler):
    """Pickles a batch and leaves its large tensors out."""

    # What is registered, now or later. Every ForkingPickler copies it, which takes as long as pickling a small batch.
    dispatch_table: ClassVar[Any] = ChainMap(ForkingPickler._extra_reducers, copyreg.dispatch_table)  # type: ignore[attr-defined, misc]

    def __init__(self) -> None:
        self.body = BytesIO()
        self.large: list[tuple[int, torch.Tensor]] = []  # (offset, tensor)
        self.size_bytes = 0
        super(ForkingPickler, self).__init__(self.body, 5)  # its own would copy the table

    def reducer_override(self, part: Any) -> Any:
        """How a tensor is sent; of all else, what pickle knows."""
        if not isinstance(part, torch.Tensor):
            return NotImplemented
        if not _is_plain(part):
            if part.layout == torch.strided and part.device.type == "cpu":
                part.share_memory_()  # type: ignore[no-untyped-call]  # nothing happens to one that is shared
            return NotImplemented
        kind = _CODES.get(part.dtype, part.dtype)
        if part.nbytes <= SMALL_BYTES:
            data = part.numpy() if type(kind) is int else _bytes_of(part).numpy()
            return _small, (kind, tuple(part.shape), bytearray(data.tobytes()))
        begin = self.size_bytes
        self.large.append((begin, part))
        self.size_bytes = begin + -(-part.nbytes // ALIGNED_BYTES) * ALIGNED_BYTES
        return _large, (kind, tuple(part.shape), part.stride(), begin)


def _is_plain(tensor: torch.Tensor) -> bool:
    """Whether it is nothing but its own bytes."""
    if type(tensor) is not torch.Tensor or tensor.layout != torch.strided or tensor.device.type != "cpu":
        return False
    if tensor.requires_grad or tensor.is_quantized or tensor.is_conj() or tensor.is_neg() or not tensor.is_contiguous():
        return False
    storage = tensor.untyped_storage()
    return storage.nbytes() == tensor.nbytes and not storage.is_shared()  # no view of more, and nobody else's


def _bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    """A plain tensor as its bytes: all of its storage, whatever the strides of sizes of 0 and 1 say."""
    return torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage())


def _end_to_end(large: list[tuple[int, torch.Tensor]], size_bytes: int) -> torch.Tensor:
    storage = torch.UntypedStorage._new_shared(size_bytes)  # type: ignore[no-untyped-call]
    content: torch.Tensor = torch.empty(0, dtype=torch.uint8).set_(storage)
    for begin, tensor in large:
        content[begin : begin + tensor.nbytes].copy_(_bytes_of(tensor))
    return content


class _Opening(threading.local):
    """The content of the parcel that is being opened in this thread."""

    content: torch.Tensor | None = None


_opening = _Opening()


def _opened(body: bytes, content: torch.Tensor | None) -> Any:
    before, _opening.content = _opening.content, content
    try:
        return ForkingPickler.loads(body)
    finally:
        _opening.content = before


def _large(kind: int | torch.dtype, shape: tuple[int, ...], stride: tuple[int, ...], begin: int) -> torch.Tensor:
    assert _opening.content is not None, "a parcel with large tensors has a content"
    dtype = _DTYPES[kind] if isinstance(kind, int) else kind
    # No view of content: to autograd, what happens to one of a batch's tensors would happen to all of them.
    made = torch.empty(0, dtype=dtype)
    made.set_(_opening.content.untyped_storage(), begin // dtype.itemsize, shape, stride)
    return made


def _small(kind: int | torch.dtype, shape: tuple[int, ...], data: bytearray) -> torch.Tensor:
    dtype = _DTYPES[kind] if isinstance(kind, int) else kind
    if not data:
        return torch.empty(shape, dtype=dtype)
    tensor = torch.frombuffer(data, dtype=dtype)
    return tensor if len(shape) == 1 else tensor.view(shape)
