"""mailserver.gateway.peer, over sockets on the loopback interface."""

import asyncio
import gc
import weakref

import pytest

from mailserver.gateway import pace, push_streams
from mailserver.gateway import peer as peer_module
from mailserver.gateway.answers import MAX_WAITING_ANSWERS
from mailserver.gateway.limits import HostLimits
from mailserver.gateway.peer import MAX_UNREAD_BYTES, Peer
from mailserver.gateway.send_memory import MAX_CLIENT_BYTES
from mailserver.libp2p import connection as connection_module
from mailserver.libp2p.identify import IDENTIFY
from mailserver.libp2p.streams import StreamId
from mailserver.metrics.gateway import Ending
from mailserver.waku2.frames import encode_frame
from tests.gateway.clients import MPLEX, YAMUX, LightClient, TcpWire, connected
from tests.gateway.hosts import ECHO, LATER, MAX_REQUEST_BYTES, NO_LIMITS, SILENT, running_host
from tests.gateway.pushing import PUBSUB_TOPIC, Pushed
from tests.waiting import until

pytestmark = pytest.mark.integration

KINDS = pytest.mark.parametrize("kind", ["tcp", "websocket"])
BOTH_MUXERS = pytest.mark.parametrize("muxer", [MPLEX, YAMUX])
MIB = 1024 * 1024
ABORTS = "/test/aborts/1.0.0"


def numbers(client: LightClient) -> list[int]:
    """The pushed messages that the client has read."""
    return [int.from_bytes(push.waku_message.payload[:4]) for push in client.pushes]


async def still_served(client: LightClient) -> None:
    assert await client.ask(ECHO, b"still here") == b"still here"


@KINDS
@BOTH_MUXERS
async def test_client_is_answered(kind: str, muxer: str) -> None:
    async with running_host() as world, connected(world.port_of(kind), kind, muxer) as client:
        assert await client.ask(ECHO, b"hello") == b"hello"


async def test_data_on_a_stream_that_has_nothing_at_our_end_is_ignored() -> None:
    async with running_host() as world, connected(world.port) as client:
        stream = await client.open(IDENTIFY, b"hello")
        await client.heard(stream)
        await client.send(stream, b"hello again")

        await still_served(client)


# Pushes.


@KINDS
@BOTH_MUXERS
@pytest.mark.parametrize("is_go", [False, True])
async def test_pushes_arrive_once_each(kind: str, muxer: str, is_go: bool) -> None:
    async with running_host() as world, connected(world.port_of(kind), kind, muxer, is_go=is_go) as client:
        pushed = Pushed(world)

        assert all(pushed.push(number) for number in range(200))

        await until(lambda: len(client.pushes) >= 200)
        assert sorted(numbers(client)) == list(range(200))
        assert {push.pubsub_topic for push in client.pushes} == {PUBSUB_TOPIC}
        assert len(client.push_streams) == (200 if is_go else 1)
        await until(lambda: world.host.unread_bytes == 0)


async def test_what_was_unsubscribed_while_it_waited_is_not_pushed() -> None:
    async with running_host() as world, connected(world.port) as client:
        pushed = Pushed(world)
        for number in range(3):
            pushed.push(number)

        pushed.unwanted.add(1)

        await until(lambda: len(client.pushes) == 2)
        assert numbers(client) == [0, 2]


async def test_client_that_resets_a_push_has_forgotten_it() -> None:
    async with running_host() as world, connected(world.port) as client:
        pushed = Pushed(world)
        pushed.push(7)
        await until(lambda: len(client.pushes) == 1)

        client.machine.reset(next(iter(client.push_streams)))
        await client.flush()

        await until(lambda: pushed.forgotten == [7])
        await still_served(client)


@BOTH_MUXERS
async def test_pushes_to_a_client_that_does_not_read_are_dropped_until_it_reads(muxer: str) -> None:
    async with running_host() as world, connected(world.port, muxer=muxer) as client:
        pushed = Pushed(world)
        await client.stop_reading()
        sent = await pushed.fill()

        client.read_on()
        await until(lambda: len(client.pushes) == sent)

        assert pushed.push(sent)
        await until(lambda: len(client.pushes) == sent + 1)
        assert numbers(client) == list(range(sent + 1))


async def test_client_that_reads_nothing_for_long_is_disconnected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer_module, "BLOCKED_S", 0.1)
    async with running_host() as world, connected(world.port) as client:
        pushed = Pushed(world)
        await client.stop_reading()
        await pushed.fill()

        await until(lambda: len(world.told.gone) == 1)

        assert world.endings() == {"not_reading": 1}
        assert world.host.unread_bytes == 0


async def test_client_that_opens_no_window_is_disconnected_and_costs_nothing_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(peer_module, "BLOCKED_S", 0.3)
    monkeypatch.setattr(push_streams, "PROBE_S", 0.01)
    async with running_host() as world, connected(world.port, muxer=YAMUX) as client:
        pushed = Pushed(world)
        monkeypatch.setattr(client.machine, "consumed", lambda stream, count: None)
        timers = 0
        handle_timer = connection_module.Connection.handle_timer

        def counted(machine: connection_module.Connection, now: float) -> None:
            nonlocal timers
            timers += 1
            handle_timer(machine, now)

        monkeypatch.setattr(connection_module.Connection, "handle_timer", counted)
        number = 0
        while pushed.push(number, 10_000):
            number += 1
            await asyncio.sleep(0.001)

        await until(lambda: len(world.told.gone) == 1)

        assert world.endings() == {"not_reading": 1}
        assert timers < 10


async def test_client_that_reads_slowly_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer_module, "BLOCKED_S", 0.1)
    async with running_host() as world, connected(world.port) as client:
        assert isinstance(client.wire, TcpWire)
        world.later.times = 16 * 1024
        world.later.go.set()
        await client.stop_reading()
        await client.open(LATER, encode_frame(bytes(1024)))
        loop = asyncio.get_running_loop()
        began, read = loop.time(), 0
        while read < 16 * MIB:
            piece = await client.wire.read()
            assert piece
            read += len(piece)
            next_at = began + 0.5 * read / (16 * MIB)
            await asyncio.sleep(max(0.0, next_at - loop.time()))

        assert loop.time() - began >= 0.5
        assert world.endings() == {}


# What a client holds.


async def test_second_answer_waits_until_the_first_is_read() -> None:
    async with running_host() as world, connected(world.port) as client:
        world.later.times = 16 * 1024
        world.later.go.set()
        await client.stop_reading()
        first = await client.open(LATER, encode_frame(b"1" * 1024))
        second = await client.open(LATER, encode_frame(b"2"))
        await until(lambda: world.host.unread_bytes > MAX_CLIENT_BYTES)
        begun = world.later.begun[:]

        client.read_on()
        await client.heard(first)
        await client.heard(second)

        assert begun == [b"1" * 1024]
        assert client.streams[second].data == encode_frame(b"2" * 16 * 1024)


async def test_client_that_does_not_read_is_not_read_from() -> None:
    async with running_host() as world, connected(world.port) as client:
        world.later.times = 16 * 1024
        world.later.go.set()
        await client.stop_reading()
        await client.open(LATER, encode_frame(b"1" * 1024))
        await until(lambda: world.host.unread_bytes > MAX_UNREAD_BYTES)
        received = world.told.present[0].transport.received_bytes

        await client.open(SILENT, encode_frame(b"unsubscribe"))
        async with connected(world.port) as other:
            await still_served(other)
        assert world.told.present[0].transport.received_bytes == received

        client.read_on()
        await until(lambda: world.silent.asked == [b"unsubscribe"])


async def test_no_more_than_so_many_requests_wait() -> None:
    async with running_host() as world, connected(world.port) as client:
        streams = [await client.open(LATER, encode_frame(b"0"))]
        await until(lambda: world.later.begun == [b"0"])
        more = range(1, MAX_WAITING_ANSWERS + 2)
        streams += [await client.open(LATER, encode_frame(b"%d" % number)) for number in more]

        busy = await client.heard(streams[-1])
        world.later.go.set()
        heard = [await client.heard(stream) for stream in streams]

        assert busy.data == encode_frame(b"busy")
        assert [bytes(each.data) for each in heard[:-1]] == [encode_frame(b"%d" % n) for n in range(len(streams) - 1)]


async def test_requests_that_wait_count_as_memory_until_they_are_answered() -> None:
    async with running_host() as world, connected(world.port) as client:
        request = bytes(MAX_REQUEST_BYTES)
        streams = [await client.open(LATER, encode_frame(request)) for _ in range(9)]

        busy = await client.heard(streams[-1])  # the eighth is beyond MAX_WAITING_BYTES
        held = world.host.unread_bytes
        world.later.go.set()
        for stream in streams:
            await client.heard(stream)

        assert busy.data == encode_frame(b"busy")
        assert held >= 7 * MAX_REQUEST_BYTES
        await until(lambda: world.host.unread_bytes == 0)


async def test_when_memory_runs_out_whoever_holds_most_is_disconnected() -> None:
    async with running_host(HostLimits(admission=NO_LIMITS, max_send_bytes=4 * MIB)) as world:
        world.later.times = 7 * 1024
        world.later.go.set()
        async with connected(world.port) as hog, connected(world.port) as other:
            await hog.stop_reading()
            await hog.open(LATER, encode_frame(bytes(1024)))
            await until(lambda: world.host.unread_bytes > 5 * MIB)

            answer = await other.ask(LATER, b"x" * 1024)

            assert answer == b"x" * 7 * MIB
            assert world.endings() == {"not_reading": 1}
            assert [peer.is_gone for peer in world.told.gone] == [True]


# Rates.


async def test_client_that_sends_too_fast_is_read_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pace, "BYTES_PER_SECOND", 1e6)
    monkeypatch.setattr(pace, "BYTES_BURST", 10_000)
    async with running_host() as world, connected(world.port) as client:
        began = asyncio.get_running_loop().time()
        for _ in range(3):
            assert await client.ask(ECHO, bytes(100_000)) == bytes(100_000)

        assert asyncio.get_running_loop().time() - began > 0.2


async def test_client_that_opens_streams_too_fast_is_disconnected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer_module, "STREAMS_BURST", 5.0)
    monkeypatch.setattr(peer_module, "STREAMS_PER_SECOND", 0.1)
    async with running_host() as world, connected(world.port) as client:
        for _ in range(5):  # the first one was that of the handshake
            await client.open(ECHO)

        await client.until_closed()
        assert world.endings() == {"too_many_streams": 1}


# Ends.


class Aborts:
    """Has its own client aborted as soon as anything comes."""

    def __init__(self, peer: Peer, stream: StreamId) -> None:
        self.peer = peer
        self.closed = 0

    def on_data(self, data: bytes) -> None:
        self.peer.abort(Ending.NOT_READING)

    def on_closed(self) -> None:
        self.closed += 1


@KINDS
async def test_client_may_be_aborted_amidst_its_own_events(kind: str) -> None:
    handlers: list[Aborts] = []

    def make(peer: Peer, stream: StreamId) -> Aborts:
        handlers.append(Aborts(peer, stream))
        return handlers[-1]

    async with running_host(more={ABORTS: make}) as world, connected(world.port_of(kind), kind) as client:
        now = asyncio.get_running_loop().time()
        for protocol in (ABORTS, SILENT):
            stream = client.machine.open_stream(protocol, now)
            client.machine.send(stream, encode_frame(b"hello"))
            client.machine.close_write(stream)
        await client.flush()
        await client.until_closed()

        assert [each.closed for each in handlers] == [0]
        assert world.silent.asked == []
        assert world.endings() == {"not_reading": 1}
        handlers[0].peer.abort(Ending.QUITTING)  # once more does nothing
        handlers[0].peer.close()
        assert handlers[0].peer.ending is Ending.NOT_READING


@KINDS
async def test_nothing_is_pushed_to_a_client_that_is_going(kind: str) -> None:
    async with running_host() as world, connected(world.port_of(kind), kind) as client:
        pushed = Pushed(world)
        assert pushed.push(1)

        world.told.present[0].close()

        assert not pushed.push(2)
        await client.until_closed()
        assert numbers(client) == [1]


async def test_client_that_breaks_a_rule_is_told_and_its_fault_is_kept() -> None:
    async with running_host() as world, connected(world.port, muxer=YAMUX) as client:
        peer = world.told.present[0]
        await client.wire.write(b"\0\0")

        await client.until_closed()

        assert peer.ending is Ending.LIBP2P_FAULT
        assert str(peer.fault)


@KINDS
async def test_when_a_client_is_gone_nothing_waits_for_it_any_more(kind: str) -> None:
    async with running_host() as world:
        async with connected(world.port_of(kind), kind) as client:
            pushed = Pushed(world)
            await client.stop_reading()
            await pushed.fill()
            peer = weakref.ref(world.told.present[0])
        await until(lambda: len(world.told.gone) == 1)
        world.told.gone.clear()
        del pushed

        gc.collect()

        assert peer() is None


async def test_when_a_client_that_is_not_read_from_is_gone_nothing_waits_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pace, "BYTES_PER_SECOND", 100)
    monkeypatch.setattr(pace, "BYTES_BURST", 20_000)
    async with running_host() as world, connected(world.port) as client:
        assert await client.ask(ECHO, bytes(30_000)) == bytes(30_000)  # minutes beyond its burst
        transport = weakref.ref(world.told.present[0].transport)
        world.told.present[0].abort(Ending.QUITTING)
        await client.until_closed()
        await until(lambda: len(world.told.gone) == 1)
        world.told.gone.clear()

        gc.collect()

        assert transport() is None


async def test_half_closed_connection_is_over() -> None:
    async with running_host() as world, connected(world.port) as client:
        assert isinstance(client.wire, TcpWire)
        client.wire.writer.write_eof()

        await client.until_closed()

        await until(lambda: len(world.told.gone) == 1)
        assert world.endings() == {}
