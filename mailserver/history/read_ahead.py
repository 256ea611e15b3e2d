"""Reading ahead: what comes next is read while what was read before is worked on.

What was read ahead stays in memory while its client stalls. So only a few readers do it at a time.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Places:
    """Of so many readers that may read ahead at a time."""

    def __init__(self, count: int) -> None:
        self._free = count

    def take(self) -> bool:
        """Take a place; False if there is none."""
        if not self._free:
            return False
        self._free -= 1
        return True

    def give_back(self) -> None:
        """Give back a place that was taken."""
        self._free += 1


class ReadAhead(Generic[T]):
    """Reads piece after piece, at most one of them ahead. Once it has begun it has to be stopped."""

    def __init__(self, read: Callable[[], Awaitable[T]]) -> None:
        """Begin with nothing read.

        Args:
            read: reads the next piece.
        """
        self._read = read
        self._ahead: asyncio.Future[T] | None = None

    def begin(self) -> None:
        """Begin to read the next piece, as soon as the event loop goes on."""
        if self._ahead is None:
            self._ahead = asyncio.ensure_future(self._read())

    async def next(self) -> T:
        """The next piece: the one that was begun, or one that is read now."""
        if self._ahead is None:
            return await self._read()
        try:
            return await self._ahead
        finally:
            self._ahead = None

    async def stop(self) -> None:
        """End what is read ahead."""
        if self._ahead is not None:
            self._ahead.cancel()
            await asyncio.gather(self.next(), return_exceptions=True)
