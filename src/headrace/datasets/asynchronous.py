"""One thin wrapper that makes any reader awaitable: the one place where Headrace has a second colour."""

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import Any, Generic, Protocol, Self, TypeVar

__all__ = ["AsyncReader"]


class _Reader(Protocol):
    def open(self) -> None: ...

    def close(self) -> None: ...


R = TypeVar("R", bound=_Reader)


class AsyncReader(Generic[R]):
    """`await` for every method and item of a synchronous reader, each run in asyncio's thread pool.

    Properties and lengths answer at once: they are known when the reader is open.
    """

    def __init__(self, reader: R) -> None:
        self.reader = reader

    async def open(self) -> None:
        """Open the reader."""
        await asyncio.to_thread(self.reader.open)

    async def close(self) -> None:
        """Close the reader. Twice is harmless."""
        await asyncio.to_thread(self.reader.close)

    def close_sync(self) -> None:
        """Close the reader from code that cannot await."""
        self.reader.close()

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def read(self, *arguments: Any) -> Any:
        """What reader.read(...) returns."""
        return await asyncio.to_thread(_method(self.reader, "read"), *arguments)

    async def read_many(self, *arguments: Any) -> Any:
        """What reader.read_many(...) returns."""
        return await asyncio.to_thread(_method(self.reader, "read_many"), *arguments)

    def __getitem__(self, index: Any) -> Any:
        """An awaitable of reader[index]."""
        return asyncio.to_thread(_method(self.reader, "__getitem__"), index)

    def __len__(self) -> int:
        return int(_method(self.reader, "__len__")())

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name == "reader":
            raise AttributeError(name)
        return getattr(self.reader, name)


def _method(reader: Any, name: str) -> Callable[..., Any]:
    method = getattr(reader, name, None)
    if method is None:
        raise TypeError(f"{type(reader).__name__} has no {name}()")
    return method  # type: ignore[no-any-return]
