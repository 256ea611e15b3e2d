"""mailserver.history.read_ahead: what comes next is read early, where there is room for it."""

import asyncio
from collections.abc import Sequence

import pytest

from mailserver.errors import StoreError
from mailserver.history.read_ahead import Places, ReadAhead


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


async def test_next_piece_is_read_before_it_is_asked_for(source: Source) -> None:
    ahead = ReadAhead(source.read)

    first = await ahead.next()
    ahead.begin()
    ahead.begin()  # it has begun
    await asyncio.sleep(0)
    begun = source.begun

    assert (first, begun) == (1, 2)
    assert [await ahead.next(), await ahead.next()] == [2, 3]


async def test_failure_is_raised_where_its_piece_is_asked_for() -> None:
    source = Source(StoreError("a disk is gone"), 2)
    source.go_on.set()
    ahead = ReadAhead(source.read)
    ahead.begin()
    await asyncio.sleep(0)

    with pytest.raises(StoreError, match="a disk is gone"):
        await ahead.next()

    assert await ahead.next() == 2


@pytest.mark.parametrize("pieces", [(), (StoreError("a disk is gone"),)])
async def test_reading_that_nobody_waits_for_is_ended(pieces: Sequence[StoreError]) -> None:
    source = Source(*pieces)
    ahead = ReadAhead(source.read)
    ahead.begin()
    await asyncio.sleep(0)
    if pieces:
        source.go_on.set()
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    await ahead.stop()
    await ahead.stop()

    assert source.cancelled == (not pieces)  # what has failed meanwhile is not told to anybody either


async def test_reading_of_who_no_longer_waits_is_cancelled() -> None:
    source = Source(1, 2)
    ahead = ReadAhead(source.read)
    ahead.begin()

    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0):
            await ahead.next()

    assert source.cancelled == source.begun == 1


def test_places_are_given_back() -> None:
    places = Places(2)

    taken = [places.take() for _ in range(3)]
    places.give_back()

    assert taken == [True, True, False]
    assert places.take()
    assert not places.take()
