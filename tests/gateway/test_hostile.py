"""Clients that mean harm: each costs itself, never another client.

The gateway's own parts run here, in this process, with the bounds of production but for the times.
"""

import asyncio
import contextlib
import resource
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
from websockets.frames import Frame, Opcode

from mailserver.codec import varint
from mailserver.gateway import host as host_module
from mailserver.gateway import peer as peer_module
from mailserver.gateway.limits import HostLimits
from mailserver.gateway.pace import BYTES_BURST, BYTES_PER_SECOND, FRAME_BYTES
from mailserver.gateway.peer import MAX_UNREAD_BYTES
from mailserver.gateway.transport import CHUNK_BYTES
from mailserver.libp2p import connection as connection_module
from mailserver.libp2p.framed_muxer import MAX_FRAMES_AT_ONCE
from mailserver.libp2p.mplex import Flag
from mailserver.libp2p.multistream import HEADER, encode_line
from mailserver.libp2p.ping import PING
from mailserver.libp2p.streams import MAX_STREAMS
from mailserver.waku2.frames import encode_frame
from tests.gateway.clients import HOST, MPLEX, YAMUX, LightClient, TcpWire, WebSocketWire, Wire
from tests.gateway.hosts import ECHO, LATER, MAX_REQUEST_BYTES, NO_LIMITS, World, running_host
from tests.gateway.pushing import Pushed
from tests.loops import ON_UVLOOP
from tests.usage import ThreadWaits
from tests.waiting import DEADLINE_S, until

pytestmark = pytest.mark.integration

KIB = 1024
MIB = 1024 * KIB
SERVED_WITHIN_S = 3.0
"""It takes 50 ms. A machine that is shared with others may stand still for a second, and no counter says so."""
CROWD = 200


class Crowd:
    """The attackers, and five honest clients, which are connected before them."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.attackers: list[LightClient] = []
        self.honest: list[LightClient] = []
        self.wires: list[Wire] = []
        self.tasks: list[asyncio.Task[None]] = []

    async def attacker(self, muxer: str = MPLEX, kind: str = "tcp") -> LightClient:
        """One that has shaken hands."""
        wire: Wire
        if kind == "tcp":
            wire = await TcpWire.open(self.world.port)
        else:
            wire = await WebSocketWire.open(self.world.websocket_port)
        self.attackers.append(await LightClient.over(wire, muxer))
        return self.attackers[-1]

    async def deaf(self, muxer: str = MPLEX) -> LightClient:
        """One that reads nothing any more."""
        client = await self.attacker(muxer)
        await client.stop_reading()
        return client

    async def honest_are_served(self) -> None:
        """All of the honest ask at once, and are answered soon: the attackers' own work counts, too."""
        with ThreadWaits() as waited:
            began = time.perf_counter() - waited()
            async with asyncio.timeout(DEADLINE_S):
                answers = await asyncio.gather(*[client.ask(ECHO, b"still here") for client in self.honest])
            took = time.perf_counter() - waited() - began
        assert answers == [b"still here"] * len(self.honest)
        assert took < SERVED_WITHIN_S

    async def close(self) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        for attacker in self.attackers:
            attacker.wire.abort()
        for client in (*self.attackers, *self.honest):
            await client.close()
        for wire in self.wires:
            await wire.close()


@pytest.fixture
async def crowd() -> AsyncIterator[Crowd]:
    async with running_host(HostLimits(admission=NO_LIMITS)) as world:
        crowd = Crowd(world)
        for _ in range(5):
            crowd.honest.append(await LightClient.over(await TcpWire.open(world.port)))
        try:
            yield crowd
        finally:
            await crowd.close()


def memory_bytes() -> int:
    """What this process has now."""
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * resource.getpagesize()


# Handshakes.


@pytest.mark.parametrize(
    "begun",
    [b"", b"\x13/multistream/1.0.0\n", b"\x13/multistream/1.0.0\n\x07/noise\n", b"GET / HTTP/1.1\r\nHost: a\r\n"],
    ids=["nothing", "multistream", "noise", "upgrade"],
)
async def test_handshakes_that_are_never_finished_keep_nobody_out(crowd: Crowd, begun: bytes) -> None:
    world = crowd.world
    port = world.websocket_port if begun.startswith(b"GET") else world.port
    for _ in range(host_module.MAX_PENDING + 50):
        crowd.wires.append(await TcpWire.open(port))
        await crowd.wires[-1].write(begun)
    await until(lambda: world.endings().get("too_many_handshakes") == 50)

    await crowd.attacker()
    await crowd.attacker(kind="websocket")

    assert len(world.host) == len(crowd.honest) + 2
    assert world.host.handshakes <= host_module.MAX_PENDING
    await crowd.honest_are_served()


async def test_handshakes_that_are_never_finished_end(crowd: Crowd, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_module, "HANDSHAKE_TIMEOUT_S", 0.3)
    for _ in range(50):
        crowd.wires.append(await TcpWire.open(crowd.world.port))
        crowd.wires.append(await TcpWire.open(crowd.world.websocket_port))
        await crowd.wires[-1].write(b"GET / HTTP/1.1\r\n")

    await until(lambda: crowd.world.endings() == {"libp2p_fault": 100})

    assert crowd.world.host.handshakes == 0
    assert crowd.world.admission.told.count(f"{HOST} failed") == 100


# Floods.


async def ended(crowd: Crowd, client: LightClient, reason: str) -> None:
    """The attacker is disconnected, and nobody else."""
    await until(lambda: client.closed is not None)
    await until(lambda: crowd.world.endings() == {reason: 1})
    assert len(crowd.world.told.present) == len(crowd.honest)
    await crowd.honest_are_served()


def sealed(client: LightClient, plaintext: bytes) -> bytes:
    """Any bytes instead of frames of a muxer."""
    channel = client.machine._channel  # noqa: SLF001 - it breaks the rules
    assert channel is not None
    return b"".join(channel.seal([plaintext]))


def mplex_frame(number: int, flag: Flag, data: bytes = b"") -> bytes:
    return varint.encode(number << 3 | flag) + varint.encode(len(data)) + data


async def test_storm_of_streams_ends_its_connection(crowd: Crowd) -> None:
    client = await crowd.attacker()
    proposal = encode_line(HEADER) + encode_line(PING)

    for number in range(1000, 1000 + round(peer_module.STREAMS_BURST) + 300):
        opened = mplex_frame(number, Flag.NEW_STREAM) + mplex_frame(number, Flag.MESSAGE_INITIATOR, proposal)
        await client.wire.write(sealed(client, opened + mplex_frame(number, Flag.RESET_INITIATOR)))

    await ended(crowd, client, "too_many_streams")


async def test_streams_that_are_opened_and_left_are_refused_beyond_a_bound(crowd: Crowd) -> None:
    client = await crowd.attacker()
    opened = b"".join(mplex_frame(number, Flag.NEW_STREAM) for number in range(1000, 1000 + MAX_STREAMS + 5))

    await client.wire.write(sealed(client, opened))
    await crowd.honest_are_served()

    muxer = crowd.world.told.present[-1].machine._muxer  # noqa: SLF001 - nothing else tells
    assert muxer is not None
    assert muxer.refused_streams == 5
    assert crowd.world.endings() == {}


async def test_flood_of_the_shortest_frames_of_mplex_ends_its_connection(crowd: Crowd) -> None:
    client = await crowd.attacker()

    await client.wire.write(sealed(client, bytes([1 << 3 | Flag.CLOSE_INITIATOR, 0]) * 30_000))

    await ended(crowd, client, "libp2p_fault")


async def test_flood_of_streams_opened_and_reset_is_slowed(crowd: Crowd) -> None:
    client = await crowd.attacker()
    cycle = mplex_frame(15, Flag.NEW_STREAM) + mplex_frame(15, Flag.RESET_INITIATOR)
    message = cycle * (MAX_FRAMES_AT_ONCE // 2)

    async def flood() -> None:
        while client.closed is None:
            await client.wire.write(sealed(client, message))

    crowd.tasks.append(asyncio.create_task(flood()))
    for _ in range(5):
        await crowd.honest_are_served()

    assert crowd.world.told.present[-1].transport.received_bytes < 200 * KIB


@pytest.mark.parametrize(
    "frames",
    [
        b"\x79\xff\xff\xff\x7f",  # mplex: 256 MiB
        b"\x80" * 20,
    ],
)
async def test_giant_frame_of_mplex_ends_its_connection(crowd: Crowd, frames: bytes) -> None:
    client = await crowd.attacker()

    await client.wire.write(sealed(client, frames))

    await ended(crowd, client, "libp2p_fault")


YAMUX_SYN = b"\0\0\0\1\0\0\0\x65"


@pytest.mark.parametrize(
    "frames",
    [
        YAMUX_SYN + b"\0\5\0\0",  # more data than any window
        YAMUX_SYN + b"\0\0\0\0" + b"\0\1\0\0\0\0\0\x65\xff\xff\xff\xff" * 2,  # a window that overflows
        YAMUX_SYN + b"\0\0\0\0" + YAMUX_SYN + b"\0\0\0\0",  # the stream is open
        b"\0\0\0\1\0\0\0\x02\0\0\0\0",  # a stream of ours
        b"\0\2\0\2\0\0\0\0\0\0\0\0" * 5000,  # answers to pings that nobody has sent
    ],
)
async def test_games_with_windows_of_yamux_end_their_connection(crowd: Crowd, frames: bytes) -> None:
    client = await crowd.attacker(YAMUX)

    await client.wire.write(sealed(client, frames))

    await ended(crowd, client, "libp2p_fault")


async def test_flood_of_web_socket_pings_is_slowed(crowd: Crowd) -> None:
    client = await crowd.attacker(kind="websocket")
    assert isinstance(client.wire, WebSocketWire)

    transport = crowd.world.told.present[-1].transport
    began = time.monotonic()
    ping = Frame(Opcode.PING, b"").serialize(mask=True)
    client.wire.socket.transport.write(ping * 200_000)
    await until(lambda: transport.received_frames > 0)
    for _ in range(5):
        await crowd.honest_are_served()

    paid = (BYTES_BURST + BYTES_PER_SECOND * (time.monotonic() - began)) / (len(ping) + FRAME_BYTES)
    assert transport.received_frames < paid + CHUNK_BYTES / len(ping)  # what one read brought may go beyond


# Those that do not read.


async def never_read(crowd: Crowd, monkeypatch: pytest.MonkeyPatch, act: Callable[[], Awaitable[None]]) -> None:
    """What a deaf client does is bounded, and ends with its connection."""
    monkeypatch.setattr(peer_module, "BLOCKED_S", 1.0)
    task = asyncio.ensure_future(act())
    while not task.done() and not crowd.world.told.gone:
        assert crowd.world.host.unread_bytes < MAX_UNREAD_BYTES + MIB
        await asyncio.sleep(0.001)
    await until(lambda: crowd.world.endings() == {"not_reading": 1})
    await task
    assert crowd.world.host.unread_bytes == 0
    await crowd.honest_are_served()


async def test_pings_whose_answers_are_not_read(crowd: Crowd, monkeypatch: pytest.MonkeyPatch) -> None:
    client = await crowd.deaf()
    stream = await client.open(PING)

    async def act() -> None:
        while not crowd.world.told.gone:
            client.machine.send(stream, bytes(32 * KIB))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.1):
                    await client.flush()

    await never_read(crowd, monkeypatch, act)


async def test_requests_whose_answers_are_not_read(crowd: Crowd, monkeypatch: pytest.MonkeyPatch) -> None:
    client = await crowd.deaf(YAMUX)

    async def act() -> None:
        while not crowd.world.told.gone and client.machine.may_open:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.1):
                    await client.open(ECHO, encode_frame(bytes(MAX_REQUEST_BYTES)))

    await never_read(crowd, monkeypatch, act)


async def test_pushes_that_are_not_read_are_dropped(crowd: Crowd, monkeypatch: pytest.MonkeyPatch) -> None:
    await crowd.deaf()
    pushed = Pushed(crowd.world, at=-1)

    async def act() -> None:
        dropped = 0
        while not crowd.world.told.gone:
            dropped += not pushed.push(0, 10_000)
            await asyncio.sleep(0)
        assert dropped

    await never_read(crowd, monkeypatch, act)


@ON_UVLOOP
async def test_crowd_that_reads_nothing_does_not_keep_others_waiting(crowd: Crowd) -> None:
    world = crowd.world
    world.later.times = 3 * KIB
    world.later.go.set()
    before = memory_bytes()
    for _ in range(CROWD):
        client = await crowd.deaf()
        await client.open(LATER, encode_frame(bytes(KIB)))  # of 3 MiB each
        await client.open(LATER, encode_frame(bytes(KIB)))

    for _ in range(10):
        await crowd.honest_are_served()

    assert world.host.unread_bytes <= 2 * HostLimits().max_send_bytes
    assert memory_bytes() - before < 300 * MIB  # with the crowd, which is a part of this process


@ON_UVLOOP
async def test_crowd_that_sends_tiny_frames_does_not_keep_others_waiting(crowd: Crowd) -> None:
    for _ in range(30):  # 50 ms of work each
        client = await crowd.attacker()
        stream = await client.open(ECHO, encode_frame(b"x"))
        await client.stop_reading()
        await client.wire.write(
            sealed(client, mplex_frame(stream >> 1, Flag.MESSAGE_INITIATOR, b"x") * MAX_FRAMES_AT_ONCE)
        )

    for _ in range(10):
        await crowd.honest_are_served()


@ON_UVLOOP
async def test_crowd_whose_requests_are_never_whole_takes_a_bounded_memory(crowd: Crowd) -> None:
    world = crowd.world
    part = encode_frame(bytes(MAX_REQUEST_BYTES))[:-1]
    for _ in range(CROWD):
        client = await crowd.attacker()
        for _ in range(10):
            await client.open(ECHO, part)
        assert world.host.unread_bytes <= 2 * HostLimits().max_send_bytes + MIB

    await crowd.honest_are_served()
    assert set(world.endings()) == {"not_reading"}
