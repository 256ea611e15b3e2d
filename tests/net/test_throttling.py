"""A connection reads nothing for a while when its receiver says so."""

import asyncio
import random

import pytest

from mailserver.errors import DisconnectReason, RemoteProtocolError
from mailserver.net.inbound import Event
from mailserver.net.pipe import READ_HIGH_BYTES
from mailserver.rlpx import p2p
from mailserver.rlpx.events import SessionClosed
from mailserver.rlpx.session import HANDSHAKE_TIMEOUT_S
from mailserver.waku.packets import PacketCode
from mailserver.waku.peer import P2PRequestReceived
from tests.loops import ON_UVLOOP
from tests.net.wires import UNKNOWN_CODE, Running, Wires, hurry
from tests.raw_peer import DEPLOYED_STATUS, Packet, RawPeer
from tests.waiting import DEADLINE_S, turns, until

LONG_S = 10 * DEADLINE_S
"""A pause longer than any test may take."""


class Valve:
    """A throttle that says what it is told to for the next packets, and then 0, and notes what it is asked."""

    def __init__(self, *pauses: float | RemoteProtocolError) -> None:
        self.sizes: list[int] = []
        self.times: list[float] = []
        self._pauses = list(pauses)

    def __call__(self, size: int, now: float) -> float:
        self.sizes.append(size)
        self.times.append(now)
        pause = self._pauses.pop(0) if self._pauses else 0.0
        if isinstance(pause, RemoteProtocolError):
            raise pause
        return pause


async def test_throttle_is_asked_for_each_message_by_its_length_and_the_time(wires: Wires) -> None:
    valve = Valve()
    loop = asyncio.get_running_loop()
    started = loop.time()
    running, raw = await wires.open(throttle=valve)

    raw.say(PacketCode.P2P_REQUEST, bytes(1000))
    raw.write(raw.frame(p2p.MessageId.PING, p2p.EMPTY_PAYLOAD))
    raw.say(UNKNOWN_CODE, b"12")
    raw.say(PacketCode.P2P_REQUEST, b"")
    assert await running.seen(P2PRequestReceived(b""))
    await until(lambda: len(valve.sizes) == 5)

    assert valve.sizes == [len(DEPLOYED_STATUS), 1000, 1, 2, 0]  # inflated: that is what they cost
    assert valve.times == sorted(valve.times)
    assert all(started <= time <= loop.time() for time in valve.times)


async def test_ping_is_answered_before_the_pause_that_it_costs(wires: Wires) -> None:
    running, raw = await wires.open(throttle=Valve(0.0, LONG_S))

    raw.write(raw.frame(p2p.MessageId.PING, p2p.EMPTY_PAYLOAD), raw.packet(PacketCode.P2P_REQUEST, b"1"))
    async with asyncio.timeout(HANDSHAKE_TIMEOUT_S / 2):  # before the session's timer would bring it along
        assert (await raw.hear()).message_id == p2p.MessageId.PONG
    await turns(50)

    assert P2PRequestReceived(b"1") not in running.events


async def test_packet_is_handled_before_the_pause_that_it_costs(wires: Wires) -> None:
    running, raw = await wires.open(throttle=Valve(0.0, LONG_S))

    raw.write(raw.packet(PacketCode.P2P_REQUEST, b"1"), raw.packet(PacketCode.P2P_REQUEST, b"2"))
    assert await running.seen(P2PRequestReceived(b"1"))
    await turns(50)

    assert P2PRequestReceived(b"2") not in running.events


async def test_peer_is_read_from_again_after_the_pause(wires: Wires) -> None:
    loop = asyncio.get_running_loop()
    valve = Valve(0.0, 0.05)
    running, raw = await wires.open(throttle=valve)

    raw.write(raw.packet(PacketCode.P2P_REQUEST, b"1"), raw.packet(PacketCode.P2P_REQUEST, b"2"))

    assert await running.seen(P2PRequestReceived(b"2"))
    await until(lambda: len(valve.times) == 3)
    assert valve.times[2] - valve.times[1] >= 0.049
    assert loop.time() - valve.times[1] < LONG_S


async def push(raw: RawPeer) -> int:
    """Send until nothing more goes out, though the connection has had every chance to take it; return how much.

    Gives up where it is clear that everything is taken.
    """
    sent = stuck = 0
    transport = raw.writer.transport
    while stuck < 50 and sent < READ_HIGH_BYTES + 16 * 1024 * 1024:
        if transport.get_write_buffer_size():
            stuck += 1
        else:
            stuck = 0
            chunk = raw.packet(UNKNOWN_CODE, random.randbytes(64 * 1024))
            raw.write(chunk)
            sent += len(chunk)
        await turns(2)
    return sent


async def test_bytes_of_a_throttled_peer_stay_in_its_own_kernel(wires: Wires) -> None:
    valve = Valve(0.0, LONG_S)
    running, raw = await wires.open(throttle=valve)
    raw.say(PacketCode.P2P_REQUEST, b"")
    await until(lambda: len(valve.sizes) == 2)

    sent = await push(raw)
    stuck = raw.writer.transport.get_write_buffer_size()
    received = running.connection.received_bytes

    assert stuck > 0  # its own buffer fills, not ours
    assert sent < READ_HIGH_BYTES + 4 * 1024 * 1024
    assert received < READ_HIGH_BYTES + 2 * 256 * 1024
    assert len(running.events) == 2


async def test_other_peers_are_read_from_while_one_is_throttled(wires: Wires) -> None:
    _, flooder = await wires.open(throttle=Valve(LONG_S))
    running, raw = await wires.open(throttle=Valve())
    flooder.say(PacketCode.P2P_REQUEST, b"flood")

    raw.say(PacketCode.P2P_REQUEST, b"1")

    assert await running.seen(P2PRequestReceived(b"1"))


async def throttled(wires: Wires) -> tuple[Running, RawPeer]:
    """A connection in a pause longer than any test may take."""
    valve = Valve(0.0, LONG_S)
    running, raw = await wires.open(throttle=valve)
    raw.say(PacketCode.P2P_REQUEST, b"")
    await until(lambda: len(valve.sizes) == 2)
    return running, raw


async def test_throttled_connection_ends_when_we_end_it(wires: Wires) -> None:
    running, raw = await throttled(wires)

    running.connection.disconnect(DisconnectReason.CLIENT_QUITTING, "we are quitting")

    assert await raw.hear_hangup() is DisconnectReason.CLIENT_QUITTING
    await raw.close()
    assert (await running.ended()).cause == "we are quitting"


async def test_throttled_connection_ends_when_it_is_cut(wires: Wires) -> None:
    running, _raw = await throttled(wires)

    running.connection.abort("no time")

    assert (await running.ended()).cause == "no time"


@ON_UVLOOP
@pytest.mark.parametrize("flooding", [False, True], ids=["silent", "flooding"])
async def test_throttled_peer_that_goes_away_is_missed_at_the_next_ping(
    wires: Wires, monkeypatch: pytest.MonkeyPatch, flooding: bool
) -> None:
    hurry(monkeypatch, ping_s=0.05, idle_s=0.5)
    running, raw = await throttled(wires)
    if flooding:
        await push(raw)

    await raw.close()

    assert (await running.ended()).by_peer


@ON_UVLOOP
async def test_throttled_peer_is_pinged_and_not_taken_for_idle(wires: Wires, monkeypatch: pytest.MonkeyPatch) -> None:
    hurry(monkeypatch, ping_s=0.05, idle_s=0.5)
    running, raw = await throttled(wires)

    pings = [await raw.hear() for _ in range(20)]  # takes a second

    assert {ping.message_id for ping in pings} == {p2p.MessageId.PING}
    assert running.connection.closed is None


async def test_packets_in_the_write_buffer_go_out_before_the_pause(wires: Wires) -> None:
    async def answer(event: Event) -> None:
        if isinstance(event, P2PRequestReceived):
            running.connection.send(PacketCode.P2P_REQUEST_COMPLETE, b"answer")

    running, raw = await wires.open(act=answer, throttle=Valve(0.0, LONG_S))

    raw.say(PacketCode.P2P_REQUEST, b"")

    assert await raw.hear_packet() == Packet(PacketCode.P2P_REQUEST_COMPLETE, b"answer")


async def test_peer_that_goes_on_over_its_limit_is_told_why_it_is_disconnected(wires: Wires) -> None:
    fault = RemoteProtocolError(DisconnectReason.SUBPROTOCOL_ERROR, "too much")
    valve = Valve(0.0, fault)
    running, raw = await wires.open(throttle=valve)

    raw.write(raw.packet(PacketCode.P2P_REQUEST, b"1"), raw.packet(PacketCode.P2P_REQUEST, b"2"))

    assert await raw.hear_hangup() is DisconnectReason.SUBPROTOCOL_ERROR
    await raw.close()
    assert await running.ended() == SessionClosed(DisconnectReason.SUBPROTOCOL_ERROR, by_peer=False, cause="too much")
    assert running.events[1:] == [P2PRequestReceived(b"1")]
    assert len(valve.sizes) == 2


async def test_connection_that_its_handler_has_ended_takes_no_pause(wires: Wires) -> None:
    async def cut(event: Event) -> None:
        if isinstance(event, P2PRequestReceived):
            running.connection.abort("seen enough")

    running, raw = await wires.open(act=cut, throttle=Valve(0.0, LONG_S))

    raw.say(PacketCode.P2P_REQUEST, b"")

    assert (await running.ended()).cause == "seen enough"
