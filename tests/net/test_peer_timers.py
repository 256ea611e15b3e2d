"""mailserver.net.peer_timers over a connection: timeouts, pings and probes."""

import asyncio
import functools
import random

import pytest

from mailserver.errors import DisconnectReason
from mailserver.net import peer_timers
from mailserver.net.connection import Connection
from mailserver.rlpx import liveness as liveness_module
from mailserver.rlpx import p2p
from mailserver.rlpx import session as session_module
from mailserver.waku.packets import PacketCode
from mailserver.waku.peer import P2PRequestReceived
from tests.loops import ON_UVLOOP
from tests.net.wires import Wires, hurry, wait_at_requests
from tests.raw_peer import WAKU_OFFSET, Heard
from tests.waiting import DEADLINE_S, turns, until

# Timeouts


async def test_silent_stranger_is_dropped_when_the_handshake_takes_too_long(
    wires: Wires, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_module, "HANDSHAKE_TIMEOUT_S", 0.02)

    running, reader, writer = await wires.stranger()

    assert await asyncio.wait_for(reader.read(), DEADLINE_S) == b""
    writer.close()
    assert "no handshake" in (await running.ended()).cause


async def test_peer_that_never_says_hello_hears_that_it_is_dropped(
    wires: Wires, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_module, "HANDSHAKE_TIMEOUT_S", 0.5)  # long enough for keys, on a busy machine

    running, raw = await wires.connect()

    assert (await raw.hear()).message_id == p2p.MessageId.HELLO
    assert (await raw.hear()).message_id == p2p.MessageId.DISCONNECT
    await raw.close()
    assert not (await running.ended()).by_peer


@ON_UVLOOP
async def test_idle_peer_is_pinged_and_then_dropped(wires: Wires, monkeypatch: pytest.MonkeyPatch) -> None:
    hurry(monkeypatch, ping_s=0.05, idle_s=0.8)
    running, raw = await wires.open()

    ping = await raw.hear()
    while (last := await raw.hear()).message_id == p2p.MessageId.PING:
        pass

    assert ping == Heard(p2p.MessageId.PING, p2p.EMPTY_PAYLOAD)
    assert last == Heard(p2p.MessageId.DISCONNECT, p2p.encode_disconnect(DisconnectReason.PING_TIMEOUT))
    await raw.close()
    assert (await running.ended()).reason is DisconnectReason.PING_TIMEOUT


async def test_ping_is_answered(wires: Wires) -> None:
    _running, raw = await wires.open()

    raw.write(raw.frame(p2p.MessageId.PING, p2p.EMPTY_PAYLOAD))

    assert await raw.hear() == Heard(p2p.MessageId.PONG, p2p.EMPTY_PAYLOAD)


@ON_UVLOOP
async def test_peer_that_answers_pings_stays(wires: Wires, monkeypatch: pytest.MonkeyPatch) -> None:
    hurry(monkeypatch, ping_s=0.05, idle_s=0.8)
    running, raw = await wires.open()
    started = asyncio.get_running_loop().time()

    while asyncio.get_running_loop().time() < started + 1.0:
        assert (await raw.hear()).message_id == p2p.MessageId.PING
        raw.write(raw.frame(p2p.MessageId.PONG, p2p.EMPTY_PAYLOAD))

    assert running.connection.closed is None


@ON_UVLOOP
async def test_peer_is_not_idle_while_the_handler_makes_it_wait(wires: Wires, monkeypatch: pytest.MonkeyPatch) -> None:
    hurry(monkeypatch, ping_s=0.05, idle_s=0.5)
    gate = asyncio.Event()
    running, raw = await wires.open(act=wait_at_requests(gate))

    raw.write(raw.packet(PacketCode.P2P_REQUEST, b"1"), raw.packet(PacketCode.P2P_REQUEST, b"2"))
    pings = [await raw.hear() for _ in range(20)]
    gate.set()

    assert {ping.message_id for ping in pings} == {p2p.MessageId.PING}
    assert await running.seen(P2PRequestReceived(b"2"))
    assert running.connection.closed is None


# Probing


@ON_UVLOOP
async def test_silent_peer_is_gone_soon_after_it_was_probed(wires: Wires, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(liveness_module, "PROBE_TIMEOUT_S", 0.1)
    monkeypatch.setattr(liveness_module, "SEEN_RECENTLY_S", 0.0)
    running, raw = await wires.open()
    loop = asyncio.get_running_loop()
    started = loop.time()

    running.connection.probe()
    heard = [await raw.hear() for _ in range(2)]
    waited = loop.time() - started
    await raw.close()

    assert heard == [
        Heard(p2p.MessageId.PING, p2p.EMPTY_PAYLOAD),
        Heard(p2p.MessageId.DISCONNECT, p2p.encode_disconnect(DisconnectReason.PING_TIMEOUT)),
    ]
    assert 0.09 <= waited < liveness_module.IDLE_TIMEOUT_S
    closed = await running.ended()
    assert (closed.reason, closed.cause) == (DisconnectReason.PING_TIMEOUT, "peer was silent for 0.1 s")


def has_received_more(connection: Connection, than_bytes: int) -> bool:
    return connection.received_bytes > than_bytes


@ON_UVLOOP
async def test_peer_that_answers_a_probe_stays(wires: Wires, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(liveness_module, "PROBE_TIMEOUT_S", 0.2)
    monkeypatch.setattr(liveness_module, "SEEN_RECENTLY_S", 0.0)
    running, raw = await wires.open()
    loop = asyncio.get_running_loop()
    started = loop.time()

    for _ in range(3):
        assert not running.connection.probe()
        assert (await raw.hear()).message_id == p2p.MessageId.PING
        received = running.connection.received_bytes
        raw.write(raw.frame(p2p.MessageId.PONG, p2p.EMPTY_PAYLOAD))
        await until(functools.partial(has_received_more, running.connection, received))
    await until(lambda: loop.time() > started + 0.5)

    assert running.connection.closed is None


@ON_UVLOOP
async def test_peer_that_does_not_read_is_gone_soon_after_it_was_probed(
    wires: Wires, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While it does not, nothing is read from it: its silence says nothing."""
    monkeypatch.setattr(peer_timers, "PROBE_TIMEOUT_S", 0.1)
    monkeypatch.setattr(liveness_module, "SEEN_RECENTLY_S", 0.0)
    running, raw = await wires.open()
    for _ in range(100):
        running.connection.send(PacketCode.P2P_MESSAGE, random.randbytes(128 * 1024))
    answered = running.connection.received_bytes
    raw.write(raw.frame(p2p.MessageId.PING, p2p.EMPTY_PAYLOAD))  # from then on, we wait for it to read the answer
    await until(lambda: running.connection.received_bytes > answered)
    await turns()

    assert not running.connection.probe()

    closed = await running.ended()
    assert (closed.reason, closed.cause) == (DisconnectReason.TCP_ERROR, "peer read nothing for 0.1 s")


async def test_probe_before_the_handshake_and_after_the_end_does_nothing(wires: Wires) -> None:
    running, raw = await wires.connect()
    running.connection.probe()
    raw.write(raw.hello())
    assert (await raw.hear()).message_id == p2p.MessageId.HELLO
    raw.compressed = True
    assert (await raw.hear()).message_id == WAKU_OFFSET + PacketCode.STATUS

    running.connection.abort("gone")
    running.connection.probe()
    await running.ended()
    running.connection.probe()

    assert await raw.hear_hangup() is None
