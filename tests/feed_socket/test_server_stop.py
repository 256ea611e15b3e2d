"""mailserver.feed_socket.server: its socket, and how it stops, whatever its gateways do."""

import asyncio
import stat
import time

import pytest

from mailserver.errors import StartupError
from mailserver.feed_socket import server as server_module
from mailserver.feed_socket.frames import FEED_FILE, Envelopes, Post, Stored
from mailserver.feed_socket.server import STOP_TIMEOUT_S
from mailserver.metrics.labels import PostResult
from mailserver.metrics.registry import count_of
from tests.feed_socket.worlds import World
from tests.mailservers import make_envelope
from tests.waiting import turns, until

pytestmark = pytest.mark.integration


async def test_socket_is_its_owners_alone(world: World) -> None:
    assert stat.S_IMODE((world.folder / FEED_FILE).stat().st_mode) == 0o600


async def test_socket_of_a_killed_daemon_is_replaced(world: World) -> None:
    await world.restart()  # stopping leaves the file, as a kill does

    gateway = await world.join()
    published = world.publish(1)
    assert await gateway.hear_envelopes(1) == published


async def test_socket_that_cannot_be_made_is_named(world: World) -> None:
    await world.stop()
    (world.folder / FEED_FILE).unlink(missing_ok=True)
    (world.folder / FEED_FILE).mkdir()

    with pytest.raises(StartupError, match=f"cannot create {world.folder}/{FEED_FILE}: Is a directory"):
        await world.start()


async def test_stop_hangs_up_on_all(world: World) -> None:
    gateways = [await world.join() for _ in range(3)]

    stopping = asyncio.create_task(world.stop())

    for gateway in gateways:
        assert await gateway.hear() is None
        gateway.end.close()
    began = time.monotonic()
    await stopping
    assert time.monotonic() - began < STOP_TIMEOUT_S / 2
    assert count_of(world.metrics.gateways) == 0


async def test_what_was_posted_is_stored_and_answered_before_the_end(world: World) -> None:
    gateway = await world.join()
    envelope = make_envelope(1)

    with world.disk_busy():
        await gateway.say(Post(1, envelope.raw))
        await until(lambda: world.feed.end == 1)
        stopping = asyncio.create_task(world.stop())
        await turns(20)
        await gateway.say(Post(2, make_envelope(2).raw))  # too late

    frames = await gateway.hear_all()
    gateway.end.close()
    await stopping
    assert [frame for frame in frames if not isinstance(frame, Envelopes)] == [Stored(1)]
    assert world.is_stored(envelope)
    assert world.feed.end == 1


async def test_gateways_that_do_not_leave_or_read_do_not_hold_the_stop_up(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "STOP_TIMEOUT_S", 0.1)
    idle, stuck = await world.join(), await world.join()
    world.publish(1000, data_bytes=2000)
    await until(lambda: count_of(world.metrics.gateway_envelopes) > 0)
    await turns(20)

    await world.stop()

    for gateway in (idle, stuck):
        await gateway.hear_all()


async def test_posts_that_the_disk_does_not_take_do_not_hold_the_stop_up(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "STOP_TIMEOUT_S", 0.1)
    gateway = await world.join()

    with world.disk_busy():
        await gateway.say(*(Post(number, make_envelope(number).raw) for number in range(100)))
        await until(lambda: world.feed.end > 0)
        await world.stop()

    assert Stored(0) not in await gateway.hear_all()
    assert count_of(world.metrics.gateway_posts[PostResult.FAILED]) == 0


# Not after one step: asyncio, unlike uvloop, loses whom it is just accepting when the server is closed.
@pytest.mark.parametrize("steps", [0, 2, 3, 4, 5])
async def test_stop_hangs_up_on_whoever_has_just_connected(
    world: World, steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "STOP_TIMEOUT_S", 0.1)
    gateway = await world.connect()
    await turns(steps)

    await world.stop()

    await gateway.hear_all()
