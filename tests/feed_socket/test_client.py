"""mailserver.feed_socket.client, against the daemon's side, and against what is no daemon."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from mailserver.errors import ConnectionLost
from mailserver.feed_socket import client as client_module
from mailserver.feed_socket import server as server_module
from mailserver.feed_socket.client import FeedClient, FeedGap, PostUnanswered
from mailserver.feed_socket.frames import (
    FEED_FILE,
    MAX_POSTS_AT_ONCE,
    Envelopes,
    FeedEnvelope,
    Frame,
    Hello,
    Missed,
    PostRefusal,
    Role,
    Stored,
    Terms,
)
from mailserver.live.feed import Feed
from mailserver.metrics.registry import count_of
from mailserver.net.unix_socket import bind_private
from mailserver.waku.acceptance import MAX_ENVELOPE_BYTES, Requirements
from tests.feed_socket.worlds import World, running_world
from tests.mailservers import NOW, make_envelope
from tests.raw_peer import close_stream
from tests.waiting import DEADLINE_S, turns, until

pytestmark = pytest.mark.integration

TERMS = Terms("/waku/2/rs/16/32", 0.0, 1000, None)


async def take(client: FeedClient) -> tuple[FeedEnvelope, ...] | FeedGap:
    return await asyncio.wait_for(client.next(), DEADLINE_S)


async def take_raws(client: FeedClient, count: int) -> list[bytes]:
    """So many envelopes, without a gap."""
    raws: list[bytes] = []
    while len(raws) < count:
        batch = await take(client)
        assert not isinstance(batch, FeedGap)
        raws += [envelope.raw for envelope in batch]
    return raws


async def joined(world: World) -> FeedClient:
    """A client that is connected, and whose first gap is taken."""
    client = world.client()
    assert await take(client) == FeedGap(None)
    return client


# Batches and gaps


async def test_client_says_what_it_is_on_each_connection(world: World) -> None:
    client = world.client(FeedClient(world.folder, role=Role.COMMUNITIES))

    for _ in range(2):
        await until(lambda: count_of(world.metrics.communities) == 1)
        assert await client.post(make_envelope(1).raw) is None
        assert count_of(world.metrics.gateways) == 0
        await world.restart()


async def test_first_comes_a_gap_and_then_all_in_order(world: World) -> None:
    client = await joined(world)

    published = world.publish(500)
    assert await take_raws(client, 500) == published
    published = world.publish(1, first=500)
    assert await take_raws(client, 1) == published


async def test_terms_are_there_with_the_connection_and_follow(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "TERMS_INTERVAL_S", 0.01)
    seen: list[Terms | None] = []
    client = FeedClient(world.folder, on_change=lambda: seen.append(client.terms))

    world.client(client)
    assert await take(client) == FeedGap(None)
    before = world.terms()
    world.acceptance.change(Requirements(0.5), NOW)
    await until(lambda: len(seen) == 2)
    await world.stop()
    await until(lambda: len(seen) == 3)

    assert seen == [before, world.terms(), None]


async def test_connection_outlasts_the_time_for_hello(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "HELLO_TIMEOUT_S", 0.2)
    client = await joined(world)
    loop = asyncio.get_running_loop()

    later = loop.time() + 0.3
    await until(lambda: loop.time() >= later)

    published = world.publish(1)
    assert await take_raws(client, 1) == published


async def test_gap_says_how_much_was_missed_and_all_else_comes(tmp_path: Path) -> None:
    async with running_world(tmp_path, feed=Feed(max_envelopes=50)) as world:
        client = await joined(world)
        published = []
        for number in range(0, 2000, 10):  # far more than client and kernel hold
            published += world.publish(10, first=number, data_bytes=2000)
            await turns(3)

        at = missed = 0
        while at < 2000:
            item = await take(client)
            if isinstance(item, FeedGap):
                assert item.missed is not None
                missed += item.missed
                at += item.missed
            else:
                assert [envelope.raw for envelope in item] == published[at : at + len(item)]
                at += len(item)

        assert missed == count_of(world.metrics.gateway_missed) > 500
        published = world.publish(1, first=2000)
        assert await take_raws(client, 1) == published


async def test_client_that_is_not_read_from_holds_no_more_than_it_may(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "MAX_QUEUED_BYTES", 1000)
    client = await joined(world)

    published = world.publish(2000, data_bytes=2000)
    await until(lambda: count_of(world.metrics.gateway_envelopes) > 0)
    await turns(200)

    assert count_of(world.metrics.gateway_envelopes) < 1000  # the rest waits in the ring
    assert await take_raws(client, 2000) == published


async def test_reader_may_wait_before_anything_comes(world: World) -> None:
    client = await joined(world)
    waiting = asyncio.create_task(take(client))
    await turns()

    (raw,) = world.publish(1)

    batch = await waiting
    assert not isinstance(batch, FeedGap)
    assert [envelope.raw for envelope in batch] == [raw]


# Posts


async def test_post_returns_when_the_envelope_is_on_disk(world: World) -> None:
    client = await joined(world)
    envelope = make_envelope(1)

    assert await client.post(envelope.raw) is None

    assert world.is_stored(envelope)
    assert await take_raws(client, 1) == [envelope.raw]


async def test_refused_post_says_why(world: World) -> None:
    client = await joined(world)

    assert await client.post(make_envelope(1, created=NOW - 100).raw) is PostRefusal.VERY_OLD
    assert await client.post(b"garbage") is PostRefusal.MALFORMED
    with world.disk_full():
        assert await client.post(make_envelope(2).raw) is PostRefusal.STORE_UNAVAILABLE
    assert await client.post(bytes(MAX_ENVELOPE_BYTES)) is PostRefusal.MALFORMED
    assert await client.post(bytes(MAX_ENVELOPE_BYTES + 1)) is PostRefusal.OVERSIZE


async def test_many_posts_at_once_are_all_answered(world: World) -> None:
    client = await joined(world)
    envelopes = [make_envelope(number) for number in range(5 * MAX_POSTS_AT_ONCE)]

    answers = await asyncio.gather(*(client.post(envelope.raw) for envelope in envelopes))

    assert answers == [None] * len(envelopes)
    assert all(world.is_stored(envelope) for envelope in envelopes)


async def test_post_without_a_daemon_fails_at_once(tmp_path: Path) -> None:
    client = FeedClient(tmp_path)

    with pytest.raises(ConnectionLost, match="cannot be reached"):
        await client.post(make_envelope(1).raw)


async def test_post_that_is_not_answered_in_time_fails_and_the_next_is_answered(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "POST_TIMEOUT_S", 0.2)
    client = await joined(world)

    with world.disk_busy():
        posts = [client.post(make_envelope(number).raw) for number in range(MAX_POSTS_AT_ONCE + 1)]
        answers = await asyncio.gather(*posts, return_exceptions=True)  # the last one waits for the others

    assert [type(answer) for answer in answers] == [PostUnanswered] * len(posts)
    monkeypatch.setattr(client_module, "POST_TIMEOUT_S", DEADLINE_S)
    assert await client.post(make_envelope(0).raw) is None
    assert client.terms is not None


async def test_posts_under_way_are_lost_with_the_connection(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "STOP_TIMEOUT_S", 0.05)
    client = await joined(world)

    with world.disk_busy():
        posts = [asyncio.create_task(client.post(make_envelope(number).raw)) for number in range(3)]
        await until(lambda: world.feed.end == 3)
        await world.stop()
        answers = await asyncio.gather(*posts, return_exceptions=True)

    assert [str(answer) for answer in answers] == ["the mailserver hung up"] * 3
    assert all(isinstance(answer, ConnectionLost) for answer in answers)


async def test_post_that_nobody_waits_for_any_more_is_forgotten(world: World) -> None:
    client = await joined(world)

    with world.disk_busy():
        posting = asyncio.create_task(client.post(make_envelope(1).raw))
        await until(lambda: world.feed.end == 1)
        posting.cancel()
        await asyncio.wait([posting])

    assert await client.post(make_envelope(1).raw) is None


# Connecting again


async def test_client_waits_for_its_daemon_and_says_so_once(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, client_module.__name__)
    monkeypatch.setattr(client_module, "FIRST_BACKOFF_S", 0.001)
    monkeypatch.setattr(client_module, "MAX_BACKOFF_S", 0.002)
    await world.stop()
    (world.folder / FEED_FILE).unlink(missing_ok=True)
    client = FeedClient(world.folder)

    world.client(client)
    await until(lambda: len(caplog.messages) == 1)
    await turns(50)  # it tries again and again
    await world.start()

    assert await take(client) == FeedGap(None)
    published = world.publish(1)
    assert await take_raws(client, 1) == published
    path = world.folder / FEED_FILE
    assert caplog.messages == [
        f"feed not reached cause=no mailserver answers at {path}: No such file or directory",
        f"feed connected socket={path}",
    ]


async def test_daemon_that_restarts_is_connected_again_with_a_gap(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, client_module.__name__)
    monkeypatch.setattr(client_module, "FIRST_BACKOFF_S", 0.001)
    states: list[bool] = []
    client = FeedClient(world.folder, on_change=lambda: states.append(client.terms is not None))
    world.client(client)
    assert await take(client) == FeedGap(None)

    for number in range(3):
        published = world.publish(2, first=10 * number)
        assert await take_raws(client, 2) == published
        await world.restart()
        world.publish(1, first=10 * number + 5)  # not for who is not connected
        assert await take(client) == FeedGap(None)

    assert await client.post(make_envelope(99).raw) is None
    assert states == [True, *[False, True] * 3]
    told = [message for message in caplog.messages if "not reached" not in message]
    assert [message.split(" socket=")[0] for message in told] == [
        "feed connected",
        *["feed lost cause=the mailserver hung up", "feed connected"] * 3,
    ]


async def test_what_came_before_the_daemon_stopped_is_there_and_gaps_are_one(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "FIRST_BACKOFF_S", 0.001)
    changes: list[None] = []
    client = FeedClient(world.folder, on_change=lambda: changes.append(None))
    world.client(client)
    await until(lambda: client.terms is not None)

    published = world.publish(2)
    await until(lambda: count_of(world.metrics.gateway_envelopes) == 2)
    for number in range(3):
        await world.restart()
        await until(lambda number=number: len(changes) == 3 + 2 * number)  # type: ignore[misc]

    assert await take(client) == FeedGap(None)
    assert await take_raws(client, 2) == published
    assert await take(client) == FeedGap(None)
    published = world.publish(1, first=2)
    assert await take_raws(client, 1) == published


async def test_client_that_is_stopped_loses_its_posts_and_hangs_up(world: World) -> None:
    client = await joined(world)

    with world.disk_busy():
        posting = asyncio.create_task(client.post(make_envelope(1).raw))
        await until(lambda: world.feed.end == 1)
        world.running[0].cancel()
        with pytest.raises(ConnectionLost, match="stopping"):
            await posting

    assert client.terms is None
    await until(lambda: count_of(world.metrics.gateways) == 0)


# What is no daemon


@contextlib.asynccontextmanager
async def saying(folder: Path, *frames: bytes) -> AsyncIterator[None]:
    """Something else listens there, says this, and then nothing."""
    streams: list[asyncio.StreamWriter] = []

    def on_connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        streams.append(writer)
        writer.write(b"".join(frames))

    server = await asyncio.start_unix_server(on_connected, sock=bind_private(folder / FEED_FILE))
    try:
        yield
    finally:
        server.close()
        for writer in streams:
            await close_stream(writer)


@pytest.mark.parametrize(
    ("frames", "problem"),
    [
        ([], "the mailserver said nothing for 0.1 s"),
        ([Stored(1).encode()], "the mailserver said what is not understood: first frame is not HELLO"),
        (
            [b"\0\0\0\x40\0\x07" + bytes(62)],
            "the mailserver said what is not understood: version of the feed socket is another one, got 7, limit 1",
        ),
        ([b"HTTP/1.1 400\r\n"], "the mailserver said what is not understood: frame is of an unknown kind"),
    ],
    ids=["silence", "no hello", "version", "words"],
)
async def test_what_is_no_daemon_is_not_believed(
    tmp_path: Path, frames: list[bytes], problem: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(client_module, "HELLO_TIMEOUT_S", 0.1)
    client = FeedClient(tmp_path)

    async with saying(tmp_path, *frames):
        running = asyncio.create_task(client.run())
        await until(lambda: bool(caplog.messages))
        running.cancel()
        await asyncio.wait([running])

    assert caplog.messages[0].startswith(f"feed not reached cause={problem}")
    assert client.terms is None


async def test_gaps_with_nothing_between_them_are_one(tmp_path: Path) -> None:
    batch = (FeedEnvelope(make_envelope(1).hash(), make_envelope(1).raw),)
    frames: list[Frame] = [Hello(TERMS), Missed(9), Envelopes(batch), Missed(1), Hello(TERMS), Missed(2)]
    client = FeedClient(tmp_path)

    async with saying(tmp_path, *(frame.encode() for frame in frames)):
        running = asyncio.create_task(client.run())
        assert [await take(client) for _ in range(3)] == [FeedGap(None), batch, FeedGap(3)]
        running.cancel()
        await asyncio.wait([running])


async def test_batches_that_wait_are_taken_at_once_up_to_a_gap(tmp_path: Path) -> None:
    one, other, last = ((FeedEnvelope(each.hash(), each.raw),) for each in map(make_envelope, range(3)))
    frames: list[Frame] = [Hello(TERMS), Envelopes(one), Envelopes(other), Missed(1), Envelopes(last)]
    client = FeedClient(tmp_path)

    async with saying(tmp_path, b"".join(frame.encode() for frame in frames)):
        running = asyncio.create_task(client.run())
        assert await take(client) == FeedGap(None)
        assert [client.next_envelopes() for _ in range(3)] == [one, other, ()]
        assert await take(client) == FeedGap(1)
        assert [client.next_envelopes() for _ in range(2)] == [last, ()]
        running.cancel()
        await asyncio.wait([running])


async def test_answer_to_nothing_is_ignored(tmp_path: Path) -> None:
    frames: list[Frame] = [Hello(TERMS), Stored(77), Missed(5)]
    client = FeedClient(tmp_path)

    async with saying(tmp_path, *(frame.encode() for frame in frames)):
        running = asyncio.create_task(client.run())
        assert await take(client) == FeedGap(None)
        running.cancel()
        await asyncio.wait([running])
