"""mailserver.live.feed."""

import asyncio

import pytest

from mailserver.live.feed import Feed, LiveEnvelope
from mailserver.live.seen import Sighting
from mailserver.waku.envelope import Envelope
from tests.mailservers import make_envelope
from tests.waiting import DEADLINE_S, turns


def live(number: int, *, data_bytes: int = 100) -> LiveEnvelope:
    envelope = make_envelope(number, data_bytes=data_bytes)
    return LiveEnvelope(envelope, envelope.hash())


def publish(feed: Feed, count: int, *, data_bytes: int = 100) -> list[LiveEnvelope]:
    """Publish so many envelopes; return them."""
    envelopes = [live(number, data_bytes=data_bytes) for number in range(count)]
    for envelope in envelopes:
        feed.publish(envelope)
    return envelopes


async def test_reader_gets_what_is_published_from_its_start_on_in_order() -> None:
    feed = Feed()
    publish(feed, 3)

    reader = feed.reader()
    published = publish(feed, 2)

    assert await reader.read() == published
    assert reader.read_nowait() == []
    assert reader.missed == 0


async def test_each_reader_goes_at_its_own_pace() -> None:
    feed = Feed()
    fast, slow = feed.reader(), feed.reader()

    first = publish(feed, 2)
    assert await fast.read() == first
    second = publish(feed, 3)

    assert await fast.read() == second
    assert await slow.read() == first + second


async def test_all_waiting_readers_are_woken_and_wait_again() -> None:
    feed = Feed()
    readers = [feed.reader() for _ in range(3)]

    for number in range(3):
        waiting = [asyncio.create_task(reader.read()) for reader in readers]
        await turns()
        assert not any(task.done() for task in waiting)
        published = live(number)
        feed.publish(published)
        async with asyncio.timeout(DEADLINE_S):
            assert await asyncio.gather(*waiting) == [[published]] * 3


async def test_reader_that_gives_up_waiting_misses_nothing() -> None:
    feed = Feed()
    reader = feed.reader()
    waiting = asyncio.create_task(reader.read())
    await turns()

    waiting.cancel()
    published = publish(feed, 2)

    assert await reader.read() == published


async def test_reader_behind_the_ring_loses_what_has_left_it_and_learns_how_much() -> None:
    feed = Feed(max_envelopes=10)
    slow, fast = feed.reader(), feed.reader()

    first = publish(feed, 8)
    assert fast.read_nowait() == first
    second = publish(feed, 7)

    assert slow.read_nowait() == [*first[5:], *second]
    assert slow.missed == 5
    assert fast.read_nowait() == second
    assert fast.missed == 0
    third = publish(feed, 12)
    assert slow.read_nowait() == third[2:]
    assert slow.missed == 7


@pytest.mark.parametrize("behind", [0, 1, 3, 4, 5, 7, 8, 10])
async def test_reader_may_take_some_at_a_time_wherever_in_the_ring_it_is(behind: int) -> None:
    feed = Feed(max_envelopes=8)
    publish(feed, 20)
    reader = feed.reader()
    published = publish(feed, behind)

    parts = [reader.read_nowait(3) for _ in range(4)]

    held = published[-8:]
    assert parts == [held[:3], held[3:6], held[6:], []]
    assert reader.missed == behind - len(held)


async def test_reader_that_takes_some_misses_what_leaves_the_ring_before_the_rest() -> None:
    feed = Feed(max_envelopes=8)
    reader = feed.reader()
    published = publish(feed, 8)
    assert await reader.read(2) == published[:2]

    published += publish(feed, 5)

    assert (await reader.read(2), reader.missed) == (published[5:7], 3)
    assert (await reader.read(), reader.missed) == (published[7:], 3)


async def test_ring_is_bounded_in_bytes_too() -> None:
    size = len(live(0, data_bytes=1000).envelope.raw)
    feed = Feed(max_bytes=3 * size)
    reader = feed.reader()

    published = publish(feed, 10, data_bytes=1000)

    assert reader.read_nowait() == published[7:]
    assert reader.missed == 7


async def test_envelope_longer_than_the_ring_is_handed_on_alone() -> None:
    feed = Feed(max_bytes=100)
    reader = feed.reader()

    published = publish(feed, 2, data_bytes=1000)

    assert reader.read_nowait() == published[1:]


async def test_end_numbers_the_next_envelope_whatever_has_left_the_ring() -> None:
    feed = Feed(max_envelopes=2)

    assert feed.end == 0
    publish(feed, 5)

    assert feed.end == 5


@pytest.mark.parametrize("ahead", [0, 5])
def test_proof_of_work_is_the_one_its_receivers_count_and_hashed_once(
    ahead: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    envelope = make_envelope(1)
    expected = envelope.pow(ahead)
    published = LiveEnvelope(envelope, envelope.hash(), ahead=ahead)
    hashed: list[int] = []
    true_pow = Envelope.pow

    def counted(self: Envelope, ahead: int = 0) -> float:
        hashed.append(ahead)
        return true_pow(self, ahead)

    monkeypatch.setattr(Envelope, "pow", counted)

    assert hashed == []
    assert [published.pow, published.pow] == [expected, expected]
    assert hashed == [ahead]


def test_live_envelope_has_a_sighting_of_its_own_unless_one_is_given() -> None:
    envelope, sighting = make_envelope(1), Sighting()

    assert LiveEnvelope(envelope, envelope.hash(), sighting).sighting is sighting
    assert LiveEnvelope(envelope, envelope.hash()).sighting.peers == ()
