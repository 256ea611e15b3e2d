"""mailserver.net.listener, on a free port of the loopback interface."""

import asyncio
import contextlib
import logging
import random
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace

import pytest

from mailserver.codec.keys import NodeId
from mailserver.errors import DisconnectReason
from mailserver.limits.admission import Admission, AdmissionLimits, AdmissionRefusal
from mailserver.net import guard
from mailserver.net import listener as listener_module
from mailserver.net.connection import Connection
from mailserver.net.inbound import Event
from mailserver.net.listener import Listener
from mailserver.rlpx import p2p
from mailserver.rlpx import session as session_module
from mailserver.rlpx.capabilities import Capability
from mailserver.waku.packets import StatusOptions
from tests.pairs import private_key
from tests.raw_peer import Hangup, RawPeer, at_end, close_stream, open_stream
from tests.waiting import DEADLINE_S, turns, until

pytestmark = pytest.mark.integration

KEY = private_key("server")
STATUS = StatusOptions(pow_requirement=0.0, light_node=False, confirmations=True)
MAX_PEERS = 3
NO_LIMITS = AdmissionLimits(0, 0, 0.0, 0.0, 0)


class Watched(Admission):
    """Notes what it is told of the connections that it has admitted, by what and in which order."""

    def __init__(self, limits: AdmissionLimits) -> None:
        super().__init__(limits)
        self.told: list[str] = []
        self.served_s: list[float] = []

    def handshake_failed(self, address: str, now: float) -> None:
        self.told.append(f"{address} failed")
        super().handshake_failed(address, now)

    def handshake_succeeded(self, address: str) -> None:
        self.told.append(f"{address} succeeded")
        super().handshake_succeeded(address)

    def connection_ended(self, address: str, seconds: float) -> None:
        self.served_s.append(seconds)
        super().connection_ended(address, seconds)

    def release(self, address: str) -> None:
        self.told.append(f"{address} left")
        super().release(address)


class Host:
    """A listener and its connections; `bug` makes the serving of the next one fail.

    Who is not among `unwanted` is refused above MAX_PEERS, as the daemon does it.
    """

    def __init__(self, limits: AdmissionLimits = NO_LIMITS) -> None:
        self.admission = Watched(limits)
        self.status = STATUS
        self.asked_for_status = 0
        self.unwanted: dict[NodeId, DisconnectReason] = {}
        self.listener = Listener(
            KEY,
            "server/1",
            status=self._announced,
            refuse=self._refuse,
            admission=self.admission,
            serve=self._serve,
        )
        self.address = ("127.0.0.1", 0)
        self.connections: list[Connection] = []
        self.raws: list[RawPeer] = []
        self.bug = False

    async def start(self) -> None:
        self.address = ("127.0.0.1", await self.listener.start("127.0.0.1", 0))

    def _announced(self) -> StatusOptions:
        self.asked_for_status += 1
        return self.status

    def _refuse(self, node_id: NodeId) -> DisconnectReason | None:
        if node_id in self.unwanted:
            return self.unwanted[node_id]
        is_full = sum(connection.is_open for connection in self.connections) >= MAX_PEERS
        return DisconnectReason.TOO_MANY_PEERS if is_full else None

    async def _serve(self, connection: Connection) -> None:
        if self.bug:
            self.bug = False
            raise ZeroDivisionError
        self.connections.append(connection)
        await connection.run(_ignore)

    async def dial(self, name: str, *, remote_id: NodeId = KEY.public_key) -> RawPeer:
        """Connect and do the key exchange."""
        self.raws.append(await RawPeer.dial(self.address, remote_id, name=name))
        return self.raws[-1]

    async def dial_open(self, name: str) -> RawPeer:
        """The same with Hello and Status."""
        return await (await self.dial(name)).greet()

    async def close(self) -> None:
        self.listener.stop()
        for raw in self.raws:
            await raw.close()
        for connection in self.connections:
            connection.abort("the test is over")
        await asyncio.wait_for(self.listener.join(), DEADLINE_S)


async def _ignore(event: Event) -> None:
    """Whatever the peer says."""


@pytest.fixture
async def host() -> AsyncIterator[Host]:
    host = Host()
    await host.start()
    yield host
    await host.close()


@contextlib.asynccontextmanager
async def limited(limits: AdmissionLimits) -> AsyncIterator[Host]:
    """A host that admits by these limits."""
    host = Host(limits)
    await host.start()
    try:
        yield host
    finally:
        await host.close()


async def refusal(raw: RawPeer) -> DisconnectReason | None:
    """What the peer hears in place of Hello."""
    message_id, payload = await raw.hear()
    assert message_id == p2p.MessageId.DISCONNECT
    return p2p.decode_disconnect(payload)


async def test_port_0_is_any_free_port(host: Host) -> None:
    raw = await host.dial("client")

    hello = p2p.Hello.decode((await raw.hear()).payload)

    assert host.address[1] > 0
    assert hello.listen_port == host.address[1]
    assert hello.node_id == KEY.public_key


async def test_port_that_is_taken_is_an_error(host: Host) -> None:
    with pytest.raises(OSError, match="in use"):
        await Host().listener.start(*host.address)


async def test_listener_that_never_started_stops() -> None:
    Host().listener.stop()


async def test_each_peer_is_served(host: Host) -> None:
    for name in ("one", "two", "three"):
        await host.dial_open(name)

    await until(lambda: [connection.is_open for connection in host.connections] == [True] * 3)
    assert len({str(connection) for connection in host.connections}) == 3


async def test_peer_above_the_limit_hears_so_and_the_others_stay(host: Host) -> None:
    for number in range(MAX_PEERS):
        await host.dial_open(f"client {number}")

    reason = await refusal(await host.dial("one too many"))

    assert reason is DisconnectReason.TOO_MANY_PEERS
    assert sum(connection.is_open for connection in host.connections) == MAX_PEERS


async def test_place_of_a_peer_that_left_is_free_again(host: Host) -> None:
    for number in range(MAX_PEERS):
        await host.dial_open(f"client {number}")

    await host.raws[0].close()
    await until(lambda: not host.connections[0].is_open)

    await host.dial_open("the next")


async def test_peers_that_arrive_together_do_not_exceed_the_limit(host: Host) -> None:
    # All of them have done the key exchange before the first one says Hello.
    raws = [await host.dial(f"client {number}") for number in range(MAX_PEERS + 2)]

    opened = 0
    reasons = []
    for raw in raws:
        raw.write(raw.hello())
        message_id, payload = await raw.hear()
        if message_id == p2p.MessageId.DISCONNECT:
            reasons.append(p2p.decode_disconnect(payload))
            continue
        raw.compressed = True
        try:
            await raw.hear_packet()
            opened += 1
        except Hangup as hangup:
            reasons.append(hangup.reason)

    assert opened == MAX_PEERS
    assert reasons == [DisconnectReason.TOO_MANY_PEERS] * 2


async def test_strangers_in_their_handshake_take_no_place_of_a_peer(host: Host) -> None:
    streams = [await open_stream(host.address) for _ in range(MAX_PEERS + 2)]

    await host.dial_open("client")

    for _, writer in streams:
        await close_stream(writer)


async def test_connection_to_ourselves_is_refused(host: Host) -> None:
    raw = await host.dial("server")  # with the listener's own key

    assert await refusal(raw) is DisconnectReason.SELF_CONNECTION


async def test_half_open_handshakes_push_out_each_other_and_not_the_peers(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listener_module, "MAX_PENDING", 4)
    peer = await host.dial_open("first")

    streams = [await open_stream(host.address) for _ in range(12)]
    honest = await host.dial_open("honest")

    for reader, _ in streams[:8]:
        assert await at_end(reader)
    assert not streams[-1][0].at_eof()
    for raw in (peer, honest):
        raw.write(raw.frame(p2p.MessageId.PING, p2p.EMPTY_PAYLOAD))
        assert (await raw.hear()).message_id == p2p.MessageId.PONG
    for _, writer in streams:
        await close_stream(writer)


async def test_half_open_handshakes_end_by_themselves(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_module, "HANDSHAKE_TIMEOUT_S", 0.05)

    streams = [await open_stream(host.address) for _ in range(5)]

    for reader, writer in streams:
        assert await at_end(reader)
        await close_stream(writer)
    await until(lambda: len(host.connections) == 5 and all(connection.closed for connection in host.connections))


def test_handshake_timeout_is_that_of_deployed_clients() -> None:
    assert session_module.HANDSHAKE_TIMEOUT_S == 5.0
    assert listener_module.MAX_PENDING >= 100


async def test_goodbye_is_readable_by_a_peer_that_goes_on_sending(host: Host) -> None:
    for number in range(5):
        raw = await host.dial_open(f"client {number}")
        flooding = asyncio.create_task(flood(raw))
        hearing = asyncio.create_task(raw.hear_hangup())
        await turns(50)

        host.connections[-1].disconnect(DisconnectReason.CLIENT_QUITTING, "we are done")

        assert await hearing is DisconnectReason.CLIENT_QUITTING
        flooding.cancel()
        await asyncio.gather(flooding, return_exceptions=True)
        await raw.close()


async def flood(raw: RawPeer) -> None:
    """Send packets without end that mean nothing."""
    while True:
        raw.say(99, random.randbytes(50_000))
        await raw.writer.drain()


async def test_nobody_gets_in_after_stop_and_the_peers_stay(host: Host) -> None:
    peer = await host.dial_open("first")

    host.listener.stop()
    await turns()

    with pytest.raises(OSError, match=r"refused|Connect call failed"):
        await open_stream(host.address)
    peer.write(peer.frame(p2p.MessageId.PING, p2p.EMPTY_PAYLOAD))
    assert (await peer.hear()).message_id == p2p.MessageId.PONG


async def test_join_waits_for_the_last_connection(host: Host) -> None:
    peer = await host.dial_open("first")
    host.listener.stop()
    joining = asyncio.create_task(host.listener.join())
    await turns()
    waited = not joining.done()

    await peer.close()

    await asyncio.wait_for(joining, DEADLINE_S)
    assert waited


async def test_fault_of_ours_ends_one_connection_and_is_logged(host: Host, caplog: pytest.LogCaptureFixture) -> None:
    peer = await host.dial_open("first")
    host.bug = True

    with pytest.raises(Hangup):
        await host.dial("unlucky")

    peer.write(peer.frame(p2p.MessageId.PING, p2p.EMPTY_PAYLOAD))
    assert (await peer.hear()).message_id == p2p.MessageId.PONG
    errors = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert [(record.name, record.exc_info is not None) for record in errors] == [(guard.__name__, True)]


async def test_connection_reset_before_anyone_looked_at_it_is_forgotten(host: Host) -> None:
    for _ in range(20):
        stream = socket.create_connection(host.address)
        stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")
        stream.close()

    await host.dial_open("client")
    await until(lambda: sum(connection.closed is None for connection in host.connections) == 1)
    await left(host, len(host.connections) - 1)
    assert all(told.endswith(" left") for told in host.admission.told)


async def test_each_peer_is_told_what_holds_when_it_connects(host: Host) -> None:
    statuses = []
    for min_pow in (0.25, 0.5):
        host.status = replace(STATUS, pow_requirement=min_pow)
        raw = await host.dial(f"client {min_pow}")
        raw.write(raw.hello())
        await raw.hear()
        raw.compressed = True
        statuses.append(StatusOptions.decode((await raw.hear_packet()).payload))

    assert [status.pow_requirement for status in statuses] == [0.25, 0.5]


async def test_reason_of_a_refusal_is_the_one_that_was_given(host: Host) -> None:
    reasons = [DisconnectReason.ALREADY_CONNECTED, DisconnectReason.USELESS_PEER]
    for reason in reasons:
        host.unwanted[private_key(reason.name).public_key] = reason

    assert [await refusal(await host.dial(reason.name)) for reason in reasons] == reasons
    await host.dial_open("wanted")


# Admission by address


async def left(host: Host, count: int) -> None:
    """Wait until so many connections have been let go of."""
    await until(lambda: sum(told.endswith(" left") for told in host.admission.told) >= count)


async def closed_unread(host: Host, said: bytes = b"") -> None:
    """Connect and say something; wait until that is hung up on."""
    reader, writer = await open_stream(host.address)
    writer.write(said)
    assert await at_end(reader)
    await close_stream(writer)


async def test_refused_address_is_hung_up_on_before_a_byte_is_read(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "mailserver.net.listener")
    async with limited(replace(NO_LIMITS, max_per_address=1)) as host:
        first = await host.dial_open("first")

        for said in (b"", bytes(1), bytes(100_000)):
            await closed_unread(host, said)
        first.write(first.frame(p2p.MessageId.PING, p2p.EMPTY_PAYLOAD))

        assert (await first.hear()).message_id == p2p.MessageId.PONG
        assert len(host.connections) == 1  # of the others nothing was made
        assert host.asked_for_status == 1
        assert host.admission.told == []
        lines = [record.getMessage() for record in caplog.records]
        assert len(lines) == 3
        assert all(line.startswith("connection refused peer=127.0.0.1:") for line in lines)
        assert all(line.endswith(f"cause={AdmissionRefusal.ADDRESS_FULL.value!r}") for line in lines)


async def test_place_of_an_address_is_free_again_whatever_became_of_its_connection() -> None:
    async with limited(replace(NO_LIMITS, max_per_address=1)) as host:
        peer = await host.dial_open("one that leaves")
        await peer.close()
        await left(host, 1)
        _, writer = await open_stream(host.address)
        await close_stream(writer)
        await left(host, 2)
        host.bug = True
        await closed_unread(host)
        await left(host, 3)

        await host.dial_open("the next")

        assert host.admission.told == ["127.0.0.1 succeeded", *["127.0.0.1 left"] * 3]


@pytest.mark.asyncio(loop_factories=["uvloop"])  # asyncio's own loop fails here itself, up to Python 3.11
@pytest.mark.parametrize("moment", range(4))
async def test_connection_accepted_in_the_moment_of_the_stop_is_counted_and_let_go(moment: int) -> None:
    async with limited(replace(NO_LIMITS, max_per_address=20)) as host:
        with contextlib.ExitStack() as stack:
            for _ in range(10):
                stack.enter_context(socket.create_connection(host.address))
            await turns(moment)

            host.listener.stop()
            served = list(host.connections)
            await turns()
            for connection in host.connections:
                connection.abort("the test is over")
            await asyncio.wait_for(host.listener.join(), DEADLINE_S)

        assert host.connections == served  # of the others nobody heard who says goodbye
        assert set(host.admission.told) <= {"127.0.0.1 left"}
        assert host.admission.admit("127.0.0.1", 0.0) is None
        host.admission.release("127.0.0.1")
        assert all(host.admission.admit("127.0.0.1", 0.0) is None for _ in range(20))
        assert host.admission.admit("127.0.0.1", 0.0) is AdmissionRefusal.ADDRESS_FULL


# Whose fault it is that a handshake fails


async def say(host: Host, said: bytes) -> None:
    """Connect, say something, and wait for what comes of it."""
    reader, writer = await open_stream(host.address)
    writer.write(said)
    assert await at_end(reader)
    await close_stream(writer)


async def say_and_leave(host: Host, said: bytes) -> None:
    """Connect, say something and close, as a monitor does that has nothing to say."""
    _, writer = await open_stream(host.address)
    writer.write(said)
    await writer.drain()
    writer.close()
    await writer.wait_closed()


async def reset(host: Host) -> None:
    """Connect and break off, as a scanner of ports does."""
    stream = socket.create_connection(host.address)
    await until(lambda: len(host.connections) == 1)
    stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")
    stream.close()


async def say_goodbye_in_place_of_hello(host: Host, reason: DisconnectReason) -> None:
    raw = await host.dial("client")
    raw.write(raw.frame(p2p.MessageId.DISCONNECT, p2p.encode_disconnect(reason)))
    await until(lambda: bool(host.admission.told))


async def speak_another_capability(host: Host) -> None:
    raw = await host.dial("client")
    raw.write(raw.hello(capabilities=[Capability("waku", 0)]))
    await raw.hear()
    raw.compressed = True
    assert await raw.hear_hangup() is DisconnectReason.USELESS_PEER


async def leave_after_the_key_exchange(host: Host) -> None:
    raw = await host.dial("client")
    await raw.hear()
    await raw.close()


async def be_refused(host: Host, reason: DisconnectReason) -> None:
    host.unwanted[private_key("client").public_key] = reason
    raw = await host.dial("client")
    assert await refusal(raw) is reason
    await raw.close()


async def be_a_victim_of_ours(host: Host) -> None:
    host.bug = True
    await say(host, b"")


Approach = Callable[[Host], Awaitable[None]]

FAILURES: dict[str, Approach] = {
    "garbage": lambda host: say(host, bytes(500)),
    "HTTP": lambda host: say(host, b"GET / HTTP/1.1\r\n\r\n" * 40),
    "silence": lambda host: say(host, b""),
    "half an auth": lambda host: say(host, b"\x01\x50" + bytes(100)),
    "a byte and away": lambda host: say_and_leave(host, b"\x01"),
    "no capability in common": speak_another_capability,
    "no Hello": leave_after_the_key_exchange,
    "a goodbye for no good reason": lambda host: say_goodbye_in_place_of_hello(host, DisconnectReason.REQUESTED),
}
NO_FAILURES: dict[str, Approach] = {
    "connect and close": lambda host: say_and_leave(host, b""),
    "connect and break off": reset,
    "too many peers here": lambda host: be_refused(host, DisconnectReason.TOO_MANY_PEERS),
    "connected already": lambda host: be_refused(host, DisconnectReason.ALREADY_CONNECTED),
    "too many peers there": lambda host: say_goodbye_in_place_of_hello(host, DisconnectReason.TOO_MANY_PEERS),
    "a fault of ours": be_a_victim_of_ours,
}


@pytest.mark.parametrize("what", FAILURES)
async def test_peer_that_fails_at_the_handshake_is_counted_against_its_address(
    host: Host, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_module, "HANDSHAKE_TIMEOUT_S", 0.3)

    await FAILURES[what](host)
    await left(host, 1)

    assert host.admission.told == ["127.0.0.1 failed", "127.0.0.1 left"]


@pytest.mark.parametrize("what", NO_FAILURES)
async def test_what_is_not_the_peers_fault_is_not_counted_against_its_address(host: Host, what: str) -> None:
    await NO_FAILURES[what](host)
    await left(host, 1)

    assert host.admission.told == ["127.0.0.1 left"]


async def test_handshake_that_made_room_for_others_is_not_counted(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener_module, "MAX_PENDING", 1)

    streams = [await open_stream(host.address) for _ in range(4)]
    await left(host, 3)

    assert host.admission.told == ["127.0.0.1 left"] * 3
    for _, writer in streams:
        await close_stream(writer)


@pytest.mark.parametrize("last_words", [b"", bytes(500)], ids=["left", "broke a rule"])
async def test_handshake_is_a_success_whatever_the_peer_does_later(host: Host, last_words: bytes) -> None:
    raw = await host.dial_open("client")

    raw.write(last_words)
    raw.writer.write_eof()
    await left(host, 1)

    assert host.admission.told == ["127.0.0.1 succeeded", "127.0.0.1 left"]


async def test_how_long_a_peer_was_served_is_told_when_it_leaves(host: Host) -> None:
    began = asyncio.get_running_loop().time()
    raw = await host.dial_open("client")
    await close_stream((await open_stream(host.address))[1])  # says nothing
    await left(host, 1)
    assert host.admission.served_s == []

    await raw.close()
    await left(host, 2)

    [seconds] = host.admission.served_s
    assert 0 < seconds < asyncio.get_running_loop().time() - began


async def test_address_whose_handshakes_fail_too_often_is_refused_and_its_peers_stay(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG, "mailserver.net.listener")
    async with limited(replace(NO_LIMITS, max_failures=3)) as host:
        peer = await host.dial_open("first")
        for count in range(1, 4):
            await say(host, bytes(500))
            await left(host, count)
        made = len(host.connections)

        await closed_unread(host)
        peer.write(peer.frame(p2p.MessageId.PING, p2p.EMPTY_PAYLOAD))

        assert (await peer.hear()).message_id == p2p.MessageId.PONG
        assert made == len(host.connections) == 4
        assert AdmissionRefusal.FAILED_TOO_OFTEN.value in caplog.records[-1].getMessage()
