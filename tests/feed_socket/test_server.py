"""mailserver.feed_socket.server, over its socket, with a real intake and store behind it."""

import asyncio
import logging
import os
import struct
import time
from pathlib import Path

import pytest

from mailserver.feed_socket import server as server_module
from mailserver.feed_socket.frames import (
    BATCH_BYTES,
    MAX_POSTS_AT_ONCE,
    Envelopes,
    FeedEnvelope,
    Hello,
    Join,
    Missed,
    Post,
    PostRefusal,
    Refused,
    Role,
    Stored,
    Terms,
)
from mailserver.feed_socket.server import MAX_GATEWAYS
from mailserver.live.feed import Feed
from mailserver.metrics.labels import PostResult
from mailserver.metrics.registry import count_of
from mailserver.waku.acceptance import MAX_ENVELOPE_BYTES, MAX_EXPIRED_S, Requirements
from mailserver.waku.bloom import Interest
from mailserver.waku.envelope import Envelope
from tests.feed_socket.worlds import NETWORK_TOPIC, World, running_world
from tests.mailservers import NEWS, NOW, SPORT, make_envelope
from tests.waiting import turns, until

pytestmark = pytest.mark.integration


# What is live


async def test_hello_says_what_a_poster_must_know(tmp_path: Path) -> None:
    async with running_world(tmp_path, requirements=Requirements(0.25, Interest(topics=frozenset({NEWS})))) as world:
        gateway = await world.connect()

        assert await gateway.hear() == Hello(Terms(NETWORK_TOPIC, 0.25, MAX_ENVELOPE_BYTES, frozenset({NEWS})))


async def test_gateway_gets_what_is_published_once_it_is_connected_in_order(world: World) -> None:
    world.publish(5)

    gateway = await world.join()
    published = world.publish(3, first=5)
    heard = await gateway.hear()
    later = world.publish(2, first=8)

    assert isinstance(heard, Envelopes)
    assert [envelope.raw for envelope in heard.envelopes] == published
    assert await gateway.hear_envelopes(2) == later
    assert count_of(world.metrics.gateway_envelopes) == 5


async def test_nothing_is_left_out_between_the_connection_and_hello(world: World) -> None:
    gateway = await world.connect()
    await gateway.say(Join(Role.GATEWAY))  # before HELLO was heard
    await until(lambda: count_of(world.metrics.gateways) == 1)
    published = world.publish(3)

    assert isinstance(await gateway.hear(), Hello)
    assert await gateway.hear_envelopes(3) == published


async def test_envelopes_come_with_their_hashes_byte_for_byte(world: World) -> None:
    gateway = await world.join()
    envelope = make_envelope(1)

    await world.intake.take_own(envelope)

    assert await gateway.hear() == Envelopes((FeedEnvelope(envelope.hash(), envelope.raw),))


async def test_history_that_somebody_has_asked_for_is_not_for_gateways(world: World) -> None:
    gateway = await world.join()

    world.publish(3, is_p2p=True)
    published = world.publish(1, first=3)

    assert await gateway.hear_envelopes(1) == published


async def test_many_envelopes_come_in_few_batches(world: World) -> None:
    gateway = await world.join()

    published = world.publish(1000, data_bytes=400)
    batches: list[Envelopes] = []
    while sum(len(batch.envelopes) for batch in batches) < 1000:
        batch = await gateway.hear()
        assert isinstance(batch, Envelopes)
        batches.append(batch)

    assert [envelope.raw for batch in batches for envelope in batch.envelopes] == published
    assert len(batches) <= 1000 * 500 / BATCH_BYTES + 5
    assert all(len(batch.encode()) < BATCH_BYTES + 1000 for batch in batches)


async def test_all_gateways_get_all_at_their_own_pace(world: World) -> None:
    first, second = await world.join(), await world.join()

    published = world.publish(400)
    assert await first.hear_envelopes(400) == published
    published += world.publish(400, first=400)

    assert await second.hear_envelopes(800) == published
    assert await first.hear_envelopes(400) == published[400:]


async def test_gateway_that_is_behind_the_ring_is_told_how_much_it_missed_and_goes_on(tmp_path: Path) -> None:
    async with running_world(tmp_path, feed=Feed(max_envelopes=10)) as world:
        gateway = await world.join()
        first = world.publish(1)
        assert await gateway.hear_envelopes(1) == first

        published = world.publish(25, first=1)

        assert await gateway.hear() == Missed(15)
        assert await gateway.hear_envelopes(10) == published[15:]
        later = world.publish(1, first=30)
        assert await gateway.hear_envelopes(1) == later
        assert count_of(world.metrics.gateway_missed) == 15


async def test_gateway_is_told_what_was_not_heard_of_other_mailservers_though_nothing_else_comes(
    tmp_path: Path,
) -> None:
    async with running_world(tmp_path) as world:
        world.feed.left_out.note(5)  # before it came: it goes on from the store anyway
        gateway = await world.join()
        world.publish(1)
        await gateway.hear_envelopes(1)

        world.feed.left_out.note(7)
        assert await gateway.hear() == Missed(7)
        world.feed.left_out.note(0)
        assert await gateway.hear() == Missed(0)
        assert count_of(world.metrics.gateway_missed) == 0


async def test_gateway_that_stops_reading_for_a_while_misses_and_goes_on(tmp_path: Path) -> None:
    async with running_world(tmp_path, feed=Feed(max_envelopes=100)) as world:
        gateway = await world.join()
        for number in range(0, 2000, 10):  # far more than the kernel holds
            world.publish(10, first=number, data_bytes=2000)
            await turns(2)

        heard, missed = 0, 0
        while heard + missed < 2000:
            frame = await gateway.hear()
            if isinstance(frame, Missed):
                missed += frame.count
            else:
                assert isinstance(frame, Envelopes)
                heard += len(frame.envelopes)

        assert missed == count_of(world.metrics.gateway_missed) > 1000
        published = world.publish(1, first=2000)
        assert await gateway.hear_envelopes(1) == published


async def test_gateway_that_reads_nothing_is_dropped_and_no_other(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(server_module, "WRITE_TIMEOUT_S", 0.2)
    stuck, other = await world.join(), await world.join()

    published = world.publish(1000, data_bytes=2000)

    assert await other.hear_envelopes(1000) == published
    await until(lambda: count_of(world.metrics.gateways) == 1)
    assert "WARNING" in caplog.text
    assert "cause=it read nothing for 0.2 s" in caplog.text
    await stuck.hear_all()
    published = world.publish(1, first=1000)
    assert await other.hear_envelopes(1) == published


async def test_new_terms_are_told(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "TERMS_INTERVAL_S", 0.01)
    gateway = await world.join()

    world.acceptance.change(Requirements(0.5, max_envelope_bytes=1000), NOW)

    assert await gateway.hear() == Hello(Terms(NETWORK_TOPIC, 0.5, 1000, None))
    looks = world.looks
    await until(lambda: world.looks > looks + 3)
    assert gateway.hears_nothing()


# What gateways post


async def test_posted_envelope_is_on_disk_before_the_answer_and_comes_by_the_feed(world: World) -> None:
    poster, other = await world.join(), await world.join()
    envelope = make_envelope(1)

    with world.disk_busy():
        await poster.say(Post(7, envelope.raw))
        assert await other.hear_envelopes(1) == [envelope.raw]
        assert await poster.hear_envelopes(1) == [envelope.raw]
        await turns(20)
        assert poster.hears_nothing()
        assert not world.is_stored(envelope)

    assert await poster.hear() == Stored(7)
    assert world.is_stored(envelope)
    assert other.hears_nothing()
    assert count_of(world.metrics.gateway_posts[PostResult.STORED]) == 1


async def test_envelope_that_is_there_already_is_confirmed_and_not_published_again(world: World) -> None:
    gateway = await world.join()
    raw = make_envelope(1).raw

    await gateway.say(Post(1, raw))
    assert [await gateway.hear_envelopes(1), await gateway.hear()] == [[raw], Stored(1)]
    await gateway.say(Post(2, raw))

    assert await gateway.hear() == Stored(2)


REQUIREMENTS = Requirements(0.001, Interest(topics=frozenset({NEWS})), max_envelope_bytes=500)
OLD = NOW - MAX_EXPIRED_S - 51


@pytest.mark.parametrize(
    ("envelope", "refusal"),
    [
        (make_envelope(1, created=NOW - 60), PostRefusal.EXPIRED),
        (make_envelope(1, created=OLD), PostRefusal.VERY_OLD),
        (make_envelope(1, created=NOW + 100), PostRefusal.FROM_THE_FUTURE),
        (make_envelope(1, data_bytes=500), PostRefusal.OVERSIZE),
        (make_envelope(1), PostRefusal.LOW_POW),
        (make_envelope(1, topic=SPORT), PostRefusal.UNWANTED_TOPIC),
    ],
    ids=lambda value: value.name if isinstance(value, PostRefusal) else "",
)
async def test_envelope_that_no_node_would_take_is_refused(
    tmp_path: Path, envelope: Envelope, refusal: PostRefusal
) -> None:
    async with running_world(tmp_path, requirements=REQUIREMENTS) as world:
        gateway = await world.join()

        await gateway.say(Post(9, envelope.raw))

        assert await gateway.hear() == Refused(9, refusal)
        assert not world.is_stored(envelope)
        assert count_of(world.metrics.gateway_posts[PostResult.REFUSED]) == 1


@pytest.mark.parametrize("raw", [b"", b"garbage", make_envelope(1).raw[:-1], make_envelope(1).raw + b"\0"])
async def test_bytes_that_are_no_envelope_are_refused(world: World, raw: bytes) -> None:
    gateway = await world.join()

    await gateway.say(Post(1, raw), Post(2, make_envelope(2).raw))

    answers = {frame for frame in [await gateway.hear() for _ in range(3)] if not isinstance(frame, Envelopes)}
    assert answers == {Refused(1, PostRefusal.MALFORMED), Stored(2)}
    assert count_of(world.metrics.gateway_posts[PostResult.MALFORMED]) == 1


async def test_envelope_that_cannot_be_stored_is_refused_and_stored_when_it_comes_again(world: World) -> None:
    gateway = await world.join()
    envelope = make_envelope(1)

    with world.disk_full():
        await gateway.say(Post(1, envelope.raw))
        assert await gateway.hear_envelopes(1) == [envelope.raw]
        assert await gateway.hear() == Refused(1, PostRefusal.STORE_UNAVAILABLE)
    await gateway.say(Post(2, envelope.raw))

    assert await gateway.hear() == Stored(2)
    assert world.is_stored(envelope)
    assert count_of(world.metrics.gateway_posts[PostResult.FAILED]) == 1


async def test_longest_envelope_can_be_posted_and_comes_by_the_feed(world: World) -> None:
    gateway = await world.join()
    longest = make_envelope(1, data_bytes=MAX_ENVELOPE_BYTES - 20)
    assert len(longest.raw) == MAX_ENVELOPE_BYTES

    posting = asyncio.create_task(gateway.say(Post(1, longest.raw)))

    assert await gateway.hear_envelopes(1) == [longest.raw]
    assert await gateway.hear() == Stored(1)
    await posting


async def test_no_more_posts_are_taken_at_once_than_may_be(world: World) -> None:
    gateway = await world.join()
    posts = [Post(number, make_envelope(number).raw) for number in range(3 * MAX_POSTS_AT_ONCE)]

    with world.disk_busy():
        await gateway.say(*posts)
        await until(lambda: world.feed.end == MAX_POSTS_AT_ONCE)
        await turns(50)
        assert world.feed.end == MAX_POSTS_AT_ONCE

    await until(lambda: count_of(world.metrics.gateway_posts[PostResult.STORED]) == len(posts))
    frames = [await gateway.hear() for _ in range(len(posts) + 1)]
    assert sum(isinstance(frame, Stored) for frame in frames) > 0


async def test_no_more_bytes_are_taken_at_once_than_may_be(world: World) -> None:
    gateway = await world.join()
    posts = [Post(number, make_envelope(number, data_bytes=900_000).raw) for number in range(4)]

    with world.disk_busy():
        posting = asyncio.create_task(gateway.say(*posts))
        raws = await gateway.hear_envelopes(3)  # the third reaches the bound
        await turns(50)
        assert world.feed.end == 3

    assert [*raws, *[post.raw for post in posts[3:]]] == [post.raw for post in posts]
    await until(lambda: world.feed.end == 4)
    await posting


async def test_gateway_that_posts_too_fast_is_slowed_down(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "POSTS_PER_SECOND", 100.0)
    monkeypatch.setattr(server_module, "BURST_S", 0.5)
    gateway = await world.join()
    began = time.monotonic()

    await gateway.say(*(Post(number, b"") for number in range(80)))
    answers = [await gateway.hear() for _ in range(80)]

    assert answers == [Refused(number, PostRefusal.MALFORMED) for number in range(80)]
    assert time.monotonic() - began >= 0.29


async def test_bytes_count_for_the_rate_too(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "POSTED_BYTES_PER_SECOND", 100_000.0)
    monkeypatch.setattr(server_module, "BURST_S", 0.5)
    gateway = await world.join()
    began = time.monotonic()

    posting = asyncio.create_task(gateway.say(*(Post(number, bytes(20_000)) for number in range(4))))
    answers = [await gateway.hear() for _ in range(4)]

    assert answers == [Refused(number, PostRefusal.MALFORMED) for number in range(4)]
    assert time.monotonic() - began >= 0.29
    await posting


async def test_flood_of_one_gateway_leaves_the_others_alone(world: World) -> None:
    flooder, other = await world.join(), await world.join()
    flooding = asyncio.create_task(flooder.say(*(Post(number, b"x" * 50) for number in range(100_000))))

    await other.say(Post(1, make_envelope(1).raw))
    envelopes, answer = await other.hear(), await other.hear()

    assert (type(envelopes), answer) == (Envelopes, Stored(1))
    assert not flooding.done()
    flooding.cancel()
    await asyncio.wait([flooding])


@pytest.mark.parametrize(
    "garbage",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        struct.pack(">IB", MAX_ENVELOPE_BYTES + 10, 0x10),
        Hello(Terms("t", 0, 1, None)).encode(),
    ],
    ids=["words", "length", "kind"],
)
async def test_gateway_that_says_what_is_no_frame_is_dropped(
    world: World, garbage: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    gateway, other = await world.join(), await world.join()

    await gateway.say(Post(1, make_envelope(1).raw))
    await gateway.write(garbage)
    await gateway.hear_all()

    await until(lambda: count_of(world.metrics.gateways) == 1)
    (line,) = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert "gateway gone" in line.getMessage()
    assert "cause=frame is" in line.getMessage()
    await other.say(Post(2, b""))
    while (frame := await other.hear()) != Refused(2, PostRefusal.MALFORMED):
        assert isinstance(frame, Envelopes)


# Who connects and goes


async def test_no_more_connect_than_may_and_who_leaves_makes_room(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    gateways = [await world.join() for _ in range(MAX_GATEWAYS)]

    assert await (await world.connect()).hear() is None
    assert await (await world.connect()).hear() is None
    await until(lambda: count_of(world.metrics.gateways) == MAX_GATEWAYS)
    gateways[0].end.close()
    await until(lambda: count_of(world.metrics.gateways) == MAX_GATEWAYS - 1)

    published = world.publish(1)
    assert [await gateway.hear_envelopes(1) for gateway in gateways[1:]] == [published] * (MAX_GATEWAYS - 1)
    gateway = await world.join()
    published = world.publish(1, first=1)
    assert await gateway.hear_envelopes(1) == published
    assert sum("gateway refused" in message for message in caplog.messages) == 1


async def test_gateway_that_comes_and_goes_is_logged_with_its_process(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, server_module.__name__)
    gateway = await world.join()

    await until(lambda: count_of(world.metrics.gateways) == 1)
    gateway.end.close()
    await until(lambda: count_of(world.metrics.gateways) == 0)

    pid = os.getpid()
    assert caplog.messages == [f"gateway connected pid={pid} gateways=1", f"gateway gone pid={pid} cause=it hung up"]


async def test_service_for_communities_is_never_a_gateway_and_gets_nothing_live(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, server_module.__name__)
    service = await world.join(Role.COMMUNITIES)

    await until(lambda: count_of(world.metrics.communities) == 1)
    world.publish(3)
    envelope = make_envelope(9)
    await service.say(Post(1, envelope.raw))

    assert await service.hear() == Stored(1)  # and no envelopes, which would have come before
    assert world.is_stored(envelope)
    assert count_of(world.metrics.gateways) == count_of(world.metrics.gateway_envelopes) == 0
    service.end.close()
    await until(lambda: count_of(world.metrics.communities) == 0)
    pid = os.getpid()
    assert caplog.messages == [f"communities connected pid={pid}", f"communities gone pid={pid} cause=it hung up"]


async def test_who_has_not_said_what_it_is_gets_nothing_live_and_what_came_meanwhile_afterwards(world: World) -> None:
    gateway = await world.connect()
    assert isinstance(await gateway.hear(), Hello)
    published = world.publish(3)
    other = await world.join()
    await until(lambda: count_of(world.metrics.gateways) == 1)
    assert gateway.hears_nothing()

    await gateway.say(Join(Role.GATEWAY))

    assert await gateway.hear_envelopes(3) == published
    assert count_of(world.metrics.gateways) == 2
    other.end.close()


@pytest.mark.parametrize(
    ("said", "cause"),
    [
        ((Post(1, b"raw"),), "it has not said what it is"),
        ((Join(Role.GATEWAY), Join(Role.COMMUNITIES)), "it has joined twice"),
    ],
)
async def test_who_does_not_say_once_what_it_is_is_dropped(
    world: World, caplog: pytest.LogCaptureFixture, said: tuple[Post | Join, ...], cause: str
) -> None:
    gateway = await world.connect()
    assert isinstance(await gateway.hear(), Hello)

    await gateway.say(*said)

    assert await gateway.hear() is None
    assert f"cause={cause}" in caplog.text


async def test_what_a_gateway_has_posted_before_it_died_hurts_nobody(world: World) -> None:
    gateway, other = await world.join(), await world.join()
    envelope = make_envelope(1)

    with world.disk_busy():
        await gateway.say(Post(1, envelope.raw))
        assert await other.hear_envelopes(1) == [envelope.raw]
        gateway.end.close()
        await until(lambda: count_of(world.metrics.gateways) == 1)
    await other.say(Post(2, envelope.raw))

    assert await other.hear() == Stored(2)
    assert world.is_stored(envelope)


async def test_gateway_that_dies_while_much_is_sent_to_it_hurts_nobody(world: World) -> None:
    gateway, other = await world.join(), await world.join()
    published = world.publish(1000, data_bytes=2000)
    await turns()

    gateway.end.close()

    assert await other.hear_envelopes(1000) == published
    await until(lambda: count_of(world.metrics.gateways) == 1)


async def test_fault_of_ours_ends_one_gateway_and_is_logged(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(server_module, "TERMS_INTERVAL_S", 0.01)
    gateway = await world.join()

    world.fault = ZeroDivisionError()
    assert await gateway.hear() is None
    world.fault = None

    await until(lambda: count_of(world.metrics.gateways) == 0)
    (record,) = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert record.getMessage() == f"internal error gateway={os.getpid()}"
    assert record.exc_info is not None
    other = await world.join()
    published = world.publish(1)
    assert await other.hear_envelopes(1) == published
