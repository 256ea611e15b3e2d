"""A connection whose peer does not read."""

import asyncio
import contextlib
import random

import pytest

from mailserver.errors import ConnectionLost
from mailserver.net import link as link_module
from mailserver.net.inbound import Event
from mailserver.net.pipe import WRITE_HIGH_BYTES
from mailserver.waku.packets import PacketCode
from mailserver.waku.peer import P2PRequestCompleted, P2PRequestReceived
from tests.loops import ON_UVLOOP
from tests.net.wires import Wires, hurry
from tests.raw_peer import Packet
from tests.waiting import DEADLINE_S, until


async def test_drain_returns_at_once_while_there_is_room(wires: Wires) -> None:
    running, raw = await wires.open()

    running.connection.send(PacketCode.P2P_REQUEST_COMPLETE, b"small")
    await asyncio.wait_for(running.connection.drain(), DEADLINE_S)

    assert await raw.hear_packet() == Packet(PacketCode.P2P_REQUEST_COMPLETE, b"small")


async def test_peer_that_reads_nothing_is_dropped_after_the_write_timeout(
    wires: Wires, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link_module, "WRITE_TIMEOUT_S", 0.1)
    running, _raw = await wires.open()
    sent = 0

    async def send_on() -> None:
        nonlocal sent
        while sent < 100:  # where nothing stops it, this must: it would take all memory there is
            running.connection.send(PacketCode.P2P_MESSAGE, random.randbytes(128 * 1024))
            sent += 1
            await running.connection.drain()

    with pytest.raises(ConnectionLost, match="read nothing"):
        await send_on()

    assert sent < 100
    assert "read nothing" in (await running.ended()).cause


async def test_nothing_more_is_read_from_a_peer_that_does_not_read_its_answers(wires: Wires) -> None:
    async def answer(event: Event) -> None:
        if isinstance(event, P2PRequestReceived):
            running.connection.send(PacketCode.P2P_MESSAGE, random.randbytes(256 * 1024))

    running, raw = await wires.open(act=answer)
    chunk = raw.packet(PacketCode.P2P_REQUEST, b"")
    asked = 1
    raw.write(chunk)

    async def ask_on() -> None:
        nonlocal asked
        while True:
            raw.say(PacketCode.P2P_REQUEST, b"")
            asked += 1
            await asyncio.sleep(0.001)

    asking = asyncio.create_task(ask_on())
    await until(lambda: asked >= 100)
    answered = len(running.events) - 1
    asking.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await asking

    # Each answer is 256 KiB: the write buffer, the kernel's and the reader's hold a few of them.
    assert answered * 256 * 1024 < WRITE_HIGH_BYTES + 4 * 1024 * 1024
    for _ in range(asked):
        assert (await raw.hear_packet()).code == PacketCode.P2P_MESSAGE
    assert await running.seen(P2PRequestReceived(b""))


async def test_connection_lost_while_waiting_for_a_full_buffer_ends_the_run(wires: Wires) -> None:
    async def answer(event: Event) -> None:
        if isinstance(event, P2PRequestReceived):
            for _ in range(20):
                running.connection.send(PacketCode.P2P_MESSAGE, random.randbytes(512 * 1024))

    running, raw = await wires.open(act=answer)
    raw.say(PacketCode.P2P_REQUEST, b"")
    await running.seen(P2PRequestReceived(b""))

    await raw.close()

    assert (await running.ended()).by_peer


@ON_UVLOOP
async def test_peer_is_not_idle_while_we_wait_for_it_to_read(wires: Wires, monkeypatch: pytest.MonkeyPatch) -> None:
    hurry(monkeypatch, ping_s=10, idle_s=0.5)

    async def answer(event: Event) -> None:
        if isinstance(event, P2PRequestReceived):
            for _ in range(20):
                running.connection.send(PacketCode.P2P_MESSAGE, random.randbytes(512 * 1024))

    running, raw = await wires.open(act=answer)
    raw.say(PacketCode.P2P_REQUEST, b"")
    raw.say(PacketCode.P2P_REQUEST_COMPLETE, b"said meanwhile, and still unread")
    await running.seen(P2PRequestReceived(b""))
    started = asyncio.get_running_loop().time()
    await until(lambda: asyncio.get_running_loop().time() > started + 1.0)

    assert running.connection.closed is None
    for _ in range(20):
        await raw.hear_packet()
    assert await running.seen(P2PRequestCompleted(b"said meanwhile, and still unread"))
