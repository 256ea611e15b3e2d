"""Reading ahead: what comes next is read while what was read before is worked on.

What was read ahead stays in memory while its client stalls. So only a few readers do it at a time.
"""

import asyncio
from collections.abc import Coroutine
from typing import Any, Generic, Self, TypeVar

T = TypeVar("T")


class ReadAhead(Generic[T]):
    """Reads one piece ahead, once there is a place for it. When the context is left, what it reads ends, and the place
    is free again."""

    def __init__(self, places: asyncio.Semaphore) -> None:
        """Begin with nothing read.

        Args:
            places: of all that read ahead at a time.
        """
        self._places = places
        self._has_place = False
        self._ahead: asyncio.Task[T] | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        ahead, self._ahead = self._ahead, None
        try:
            if ahead is not None:
                ahead.cancel()
                await asyncio.gather(ahead, return_exceptions=True)
        finally:
            if self._has_place:
                self._has_place = False
                self._places.release()

    async def take_place(self) -> bool:
        """Take a place, which is kept; False if none is free. It does not wait for one."""
        if not self._has_place and not self._places.locked():
            self._has_place = await self._places.acquire()
        return self._has_place

    def begin(self, reading: Coroutine[Any, Any, T]) -> None:
        """Begin to read the next piece, as soon as the event loop goes on. The one before must have been taken."""
        self._ahead = asyncio.create_task(reading)

    @property
    def has_begun(self) -> bool:
        """Whether a piece was begun that `next` has not returned."""
        return self._ahead is not None

    async def next(self) -> T:
        """The piece that was begun."""
        ahead, self._ahead = self._ahead, None
        assert ahead is not None, "it has begun"
        return await ahead
