"""mailserver.history.read_ahead: what comes next is read early, where there is room for it."""

import asyncio
import contextlib
from collections.abc import Sequence

import pytest

from mailserver.errors import StoreError
from mailserver.history.read_ahead import ReadAhead


class Source:
    """Reads numbers, or fails; each when the test says so. `begun`: how many readings were."""

    def __init__(self, *pieces: int | StoreError) -> None:
        self._pieces = iter(pieces)
        self.begun = self.cancelled = 0
        self.go_on = asyncio.Event()

    async def read(self) -> int:
        self.begun += 1
        try:
            await self.go_on.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        piece = next(self._pieces)
        if isinstance(piece, StoreError):
            raise piece
        return piece


@pytest.fixture
async def source() -> Source:
    source = Source(1, 2, 3)
    source.go_on.set()
    return source


def one_place() -> asyncio.Semaphore:
    return asyncio.Semaphore(1)


async def test_next_piece_is_read_before_it_is_asked_for(source: Source) -> None:
    async with ReadAhead[int](one_place()) as ahead:
        assert await ahead.take_place()
        ahead.begin(source.read())
        has_begun = ahead.has_begun
        await asyncio.sleep(0)
        begun = source.begun

        assert (has_begun, begun, await ahead.next()) == (True, 1, 1)
        assert not ahead.has_begun
        assert source.begun == 1


async def test_failure_is_raised_where_its_piece_is_asked_for() -> None:
    source = Source(StoreError("a disk is gone"), 2)
    source.go_on.set()
    async with ReadAhead[int](one_place()) as ahead:
        ahead.begin(source.read())
        await asyncio.sleep(0)
        with pytest.raises(StoreError, match="a disk is gone"):
            await ahead.next()

        ahead.begin(source.read())
        assert await ahead.next() == 2


@pytest.mark.parametrize("pieces", [(), (StoreError("a disk is gone"),)])
async def test_reading_that_nobody_waits_for_is_ended(pieces: Sequence[StoreError]) -> None:
    source = Source(*pieces)

    async with ReadAhead[int](one_place()) as ahead:
        ahead.begin(source.read())
        await asyncio.sleep(0)
        if pieces:
            source.go_on.set()
            await asyncio.sleep(0)
            await asyncio.sleep(0)

    assert source.cancelled == (not pieces)  # what has failed meanwhile is not told to anybody either


async def test_reading_of_who_no_longer_waits_is_cancelled() -> None:
    source = Source(1, 2)
    async with ReadAhead[int](one_place()) as ahead:
        ahead.begin(source.read())

        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0):
                await ahead.next()

    assert source.cancelled == source.begun == 1


async def test_place_is_kept_until_the_context_is_left() -> None:
    places = one_place()

    async with ReadAhead[int](places) as ahead, ReadAhead[int](places) as other:
        taken = [await each.take_place() for each in (ahead, ahead, other)]
    async with ReadAhead[int](places) as other:
        is_free_again = await other.take_place()

    assert taken == [True, True, False]
    assert is_free_again
    assert not places.locked()


async def test_place_is_free_again_whatever_ends_the_reading() -> None:
    places, source = one_place(), Source(1)

    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(0), ReadAhead[int](places) as ahead:
            await ahead.take_place()
            ahead.begin(source.read())
            await ahead.next()

    assert not places.locked()
