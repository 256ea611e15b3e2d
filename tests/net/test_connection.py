"""mailserver.net.connection, over socket pairs: with itself at the other end, or with a peer by hand."""

import asyncio
import contextlib
import functools
import itertools
import random
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace

import pytest

from mailserver.codec import rlp, snappy
from mailserver.codec.keys import NodeId
from mailserver.errors import ConnectionLost, DecodeError, DisconnectReason, RemoteProtocolError
from mailserver.limits.frame_bounds import FrameBounds
from mailserver.limits.frame_memory import ReceiveMemory
from mailserver.limits.turns import Turns
from mailserver.net import connection as connection_module
from mailserver.net import link as link_module
from mailserver.net import peer_timers
from mailserver.net.connection import Connection
from mailserver.net.inbound import Inbound
from mailserver.net.pipe import READ_HIGH_BYTES, WRITE_HIGH_BYTES, Pipe
from mailserver.net.sessions import random_entropy, random_key, session_config
from mailserver.rlpx import liveness as liveness_module
from mailserver.rlpx import p2p
from mailserver.rlpx import session as session_module
from mailserver.rlpx.capabilities import Capability
from mailserver.rlpx.events import BaseMessageReceived, Closed
from mailserver.rlpx.handshake import MAX_PADDING_BYTES, MIN_PADDING_BYTES
from mailserver.rlpx.session import HANDSHAKE_TIMEOUT_S
from mailserver.rlpx.session_config import Refuse
from mailserver.rlpx.shared_payload import SharedPayload
from mailserver.waku import peer as peer_module
from mailserver.waku.bloom import EMPTY_BLOOM, FULL_BLOOM, Interest
from mailserver.waku.envelope import Topic
from mailserver.waku.packets import (
    MAX_RECEIVED_PACKET_BYTES,
    MAX_TOPIC_INTEREST,
    PacketCode,
    PeerSettings,
    StatusOptions,
)
from mailserver.waku.peer import (
    STATUS_TIMEOUT_S,
    BatchAcknowledged,
    Event,
    P2PRequestCompleted,
    P2PRequestReceived,
    PacketIgnored,
    SettingsChanged,
    StatusReceived,
)
from tests.mailservers import NEWS
from tests.pairs import private_key
from tests.raw_peer import (
    DEPLOYED_STATUS,
    WAKU,
    WAKU_OFFSET,
    Heard,
    Packet,
    RawPeer,
    open_stream,
    stream_pair,
)
from tests.simulated_time import in_simulated_time, pass_time
from tests.waiting import DEADLINE_S, turns, until

KEY = private_key("server")
STATUS = StatusOptions(pow_requirement=0.25, bloom=EMPTY_BLOOM, light_node=False, confirmations=True)
LIGHT = StatusOptions(light_node=True)
EMPTY_STATUS = b"\xc0"
BIG = bytes(1024 * 1024)
UNKNOWN_CODE = 99

HEARD_BREACH = [DisconnectReason.PROTOCOL_BREACH]


Act = Callable[[Event], Awaitable[None]]
"""What is done about an event."""

Throttle = Callable[[int, float], float]
"""Told of a message's length and the time, says for how long to read nothing; it may raise RemoteProtocolError."""


class Running:
    """A connection that is being run, and what its handler was told."""

    def __init__(self, connection: Connection, act: Act | None = None, throttle: Throttle | None = None) -> None:
        self.connection = connection
        self.events: list[Event] = []
        self._act = act
        self._throttle = throttle
        self.task = asyncio.create_task(connection.pump(self._receive))

    async def _receive(self, inbound: Inbound) -> float:
        """Take one message."""
        message = inbound.take()
        size = message.size if isinstance(message, BaseMessageReceived) else len(message.payload)
        if not isinstance(message, BaseMessageReceived):
            event = inbound.decode(message)
            self.events.append(event)
            if self._act is not None:
                await self._act(event)
        return 0.0 if self._throttle is None else self._throttle(size, asyncio.get_running_loop().time())

    async def ended(self) -> Closed:
        """Wait until the connection has ended; return how."""
        await asyncio.wait_for(self.task, DEADLINE_S)
        assert self.connection.closed is not None
        return self.connection.closed

    async def seen(self, event: Event) -> bool:
        """Wait until the handler has been told this."""
        await until(lambda: event in self.events)
        return True


class Wires:
    """Makes connections and their peers, and ends at the end of the test what is still open."""

    def __init__(self) -> None:
        self._runnings: list[Running] = []
        self._raws: list[RawPeer] = []

    async def pipe(self) -> tuple[Pipe, socket.socket]:
        """A pipe and the other end of its socket."""
        ours, theirs = stream_pair()
        _, pipe = await asyncio.get_running_loop().create_connection(Pipe, sock=ours)
        return pipe, theirs

    def run(self, connection: Connection, act: Act | None = None, throttle: Throttle | None = None) -> Running:
        """Run a connection."""
        self._runnings.append(Running(connection, act, throttle))
        return self._runnings[-1]

    async def connect(
        self,
        *,
        act: Act | None = None,
        status: StatusOptions = STATUS,
        refuse: Refuse | None = None,
        is_named: Callable[[NodeId], bool] | None = None,
        throttle: Throttle | None = None,
        memory: ReceiveMemory | None = None,
        turns: Turns | None = None,
    ) -> tuple[Running, RawPeer]:
        """A connection that was dialled by a RawPeer; the key exchange is over."""
        pipe, theirs = await self.pipe()
        config = session_config(KEY, "server/1", refuse=refuse, is_named=is_named)
        bounds = FrameBounds(turns or Turns(), memory or ReceiveMemory())
        running = self.run(Connection(pipe, config, status, bounds=bounds), act, throttle)
        self._raws.append(await RawPeer.dial(theirs, KEY.public_key))
        return running, self._raws[-1]

    async def open(
        self,
        *,
        act: Act | None = None,
        status: StatusOptions = STATUS,
        throttle: Throttle | None = None,
        memory: ReceiveMemory | None = None,
        turns: Turns | None = None,
    ) -> tuple[Running, RawPeer]:
        """The same after Hello and Status."""
        running, raw = await self.connect(act=act, status=status, throttle=throttle, memory=memory, turns=turns)
        await raw.greet()
        return running, raw

    async def stranger(self) -> tuple[Running, asyncio.StreamReader, asyncio.StreamWriter]:
        """A connection, and the stream of who connected and has said nothing yet."""
        pipe, theirs = await self.pipe()
        running = self.run(Connection(pipe, session_config(KEY, "server/1"), STATUS))
        return running, *await open_stream(theirs)

    async def join(self, ours: StatusOptions = STATUS, theirs: StatusOptions = STATUS) -> tuple[Running, Running]:
        """A connection that dialled and one that was dialled, joined."""
        left, right = stream_pair()
        loop = asyncio.get_running_loop()
        _, left_pipe = await loop.create_connection(Pipe, sock=left)
        _, right_pipe = await loop.create_connection(Pipe, sock=right)
        config = session_config(private_key("dialler"), "dialler/1")
        dialling = Connection(left_pipe, config, ours, remote_id=KEY.public_key)
        return self.run(dialling), self.run(Connection(right_pipe, session_config(KEY, "dialled/1"), theirs))

    async def close(self) -> None:
        """End everything."""
        for raw in self._raws:
            await raw.close()
        for running in self._runnings:
            running.connection.abort("the test is over")
            running.task.cancel()  # its handler may be waiting for something that never comes
        await asyncio.gather(*(running.task for running in self._runnings), return_exceptions=True)


@pytest.fixture
async def wires() -> AsyncIterator[Wires]:
    wires = Wires()
    yield wires
    await wires.close()


def goodbye(raw: RawPeer) -> bytes:
    """A frame with Disconnect."""
    return raw.frame(p2p.MessageId.DISCONNECT, p2p.encode_disconnect(DisconnectReason.CLIENT_QUITTING))


def wait_at_requests(gate: asyncio.Event) -> Act:
    """A handler that waits at each history request until the gate is open."""

    async def act(event: Event) -> None:
        if isinstance(event, P2PRequestReceived):
            await gate.wait()

    return act


# The randomness of a handshake


def test_random_key_is_another_one_each_time() -> None:
    keys = {random_key().secret for _ in range(100)}

    assert len(keys) == 100


def test_entropy_is_fresh_each_time_and_of_the_lengths_that_the_handshake_wants() -> None:
    entropies = [random_entropy() for _ in range(300)]

    for parts in zip(*((e.ephemeral_key.secret, e.seal_key.secret, e.nonce, e.iv) for e in entropies), strict=True):
        assert len(set(parts)) == len(parts)
    assert {len(e.nonce) for e in entropies} == {32}
    assert {len(e.iv) for e in entropies} == {16}
    lengths = {len(e.padding) for e in entropies}
    assert min(lengths) >= MIN_PADDING_BYTES
    assert max(lengths) <= MAX_PADDING_BYTES
    assert len(lengths) > 50


# Opening


async def test_two_connections_learn_of_each_other(wires: Wires) -> None:
    dialling, dialled = await wires.join(ours=LIGHT)

    settings = await asyncio.wait_for(dialling.connection.ready(), DEADLINE_S)
    of_dialling = await asyncio.wait_for(dialled.connection.ready(), DEADLINE_S)

    assert settings == PeerSettings().updated(STATUS)
    assert settings == dialling.connection.settings
    assert of_dialling.light_node
    assert dialling.connection.client_id == "dialled/1"
    assert dialled.connection.client_id == "dialler/1"
    assert dialling.connection.is_open
    assert dialling.connection.closed is None
    assert dialled.events == [StatusReceived(of_dialling)]


async def test_status_is_the_first_packet_and_says_what_was_given(wires: Wires) -> None:
    _running, raw = await wires.connect()
    raw.write(raw.hello())
    hello = await raw.hear()
    raw.compressed = True

    first = await raw.hear_packet()

    assert p2p.Hello.decode(hello.payload).capabilities == (WAKU,)
    assert p2p.Hello.decode(hello.payload).client_id == "server/1"
    assert first == Packet(PacketCode.STATUS, STATUS.encode())


async def test_connection_is_named_by_node_id_and_address(wires: Wires) -> None:
    running, raw = await wires.connect()
    await raw.hear()

    assert str(running.connection) == f"{raw.key.public_key.hex()[:8]}@?"


async def test_stranger_has_no_name_yet(wires: Wires) -> None:
    pipe, theirs = await wires.pipe()

    with theirs:
        assert str(Connection(pipe, session_config(KEY, "server/1"), STATUS)) == "?@?"

    pipe.abort()


async def test_dialling_a_node_id_that_is_no_key_is_an_error() -> None:
    with pytest.raises(DecodeError):
        Connection(Pipe(), session_config(KEY, "x"), STATUS, remote_id=NodeId(bytes(64)))


async def test_status_of_the_deployed_client_is_understood(wires: Wires) -> None:
    running, _raw = await wires.open()

    settings = await asyncio.wait_for(running.connection.ready(), DEADLINE_S)

    assert settings.pow_requirement == pytest.approx(0.000002)
    assert not settings.light_node
    assert not settings.confirmations


async def test_status_without_options_means_the_defaults(wires: Wires) -> None:
    running, raw = await wires.connect()

    await raw.greet(status=EMPTY_STATUS)

    assert await asyncio.wait_for(running.connection.ready(), DEADLINE_S) == PeerSettings()


async def test_peer_that_never_sends_status_is_disconnected(wires: Wires, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer_module, "STATUS_TIMEOUT_S", 0.2)
    running, raw = await wires.connect()
    await raw.greet(status=None)

    assert await raw.hear_hangup() is DisconnectReason.PING_TIMEOUT
    assert "no Status within" in (await running.ended()).cause


@in_simulated_time
async def test_neither_pings_nor_a_status_that_trickles_keep_a_peer() -> None:
    wires = Wires()
    pinging, trickling = await wires.connect(), await wires.connect()
    for _, raw in (pinging, trickling):
        await raw.greet(status=None)
    status = trickling[1].packet(PacketCode.STATUS, DEPLOYED_STATUS)

    for second in range(int(STATUS_TIMEOUT_S)):
        assert [running.connection.closed for running, _ in (pinging, trickling)] == [None, None], second
        pinging[1].write(*(pinging[1].frame(p2p.MessageId.PING, p2p.EMPTY_PAYLOAD) for _ in range(20)))
        trickling[1].write(status[second : second + 1])
        await pass_time(1.0)

    for running, _ in (pinging, trickling):
        assert (await running.ended()).cause == f"no Status within {STATUS_TIMEOUT_S:g} s"
    await wires.close()


@in_simulated_time
async def test_pings_that_are_slowed_give_no_more_time_for_status() -> None:
    wires = Wires()
    running, raw = await wires.connect(throttle=lambda size, now: 60.0)
    await raw.greet(status=None)
    raw.write(raw.frame(p2p.MessageId.PING, p2p.EMPTY_PAYLOAD))

    await pass_time(STATUS_TIMEOUT_S - 0.1)
    assert running.connection.is_open
    await pass_time(0.2)

    assert (await running.ended()).cause == f"no Status within {STATUS_TIMEOUT_S:g} s"
    await wires.close()


@in_simulated_time
async def test_time_in_which_we_have_no_memory_for_a_status_does_not_count() -> None:
    wires, memory = Wires(), ReceiveMemory(64 * 1024)
    held = memory.ask(64 * 1024, lambda: None)
    running, raw = await wires.connect(memory=memory)
    await raw.greet(status=None)
    await pass_time(STATUS_TIMEOUT_S - 0.5)
    topics = frozenset(Topic(number.to_bytes(4, "big")) for number in range(MAX_TOPIC_INTEREST))
    raw.say(PacketCode.STATUS, StatusOptions(topic_interest=topics).encode())
    await pass_time(STATUS_TIMEOUT_S)
    assert running.connection.is_open
    assert not running.events

    memory.give_back(held)
    await pass_time(0.1)

    assert [type(event) for event in running.events] == [StatusReceived]
    await pass_time(2 * STATUS_TIMEOUT_S)
    assert running.connection.is_open
    await wires.close()


@in_simulated_time
async def test_peer_that_waits_for_memory_in_vain_has_what_was_left_of_its_time() -> None:
    wires, memory = Wires(), ReceiveMemory(64 * 1024)
    held = memory.ask(64 * 1024, lambda: None)
    running, raw = await wires.connect(memory=memory)
    await raw.greet(status=None)
    await pass_time(STATUS_TIMEOUT_S - 1)
    raw.write(raw.packet(PacketCode.STATUS, random.Random(1).randbytes(40_000))[:1000])
    await pass_time(STATUS_TIMEOUT_S)

    memory.give_back(held)
    await pass_time(0.9)
    assert running.connection.is_open
    await pass_time(0.2)

    assert (await running.ended()).cause == f"no Status within {STATUS_TIMEOUT_S:g} s"
    await wires.close()


async def test_status_update_changes_what_holds_for_the_peer(wires: Wires) -> None:
    running, raw = await wires.open()
    before = running.connection.settings

    raw.say(PacketCode.STATUS_UPDATE, StatusOptions(topic_interest=frozenset({NEWS})).encode())
    raw.say(PacketCode.STATUS_UPDATE, EMPTY_STATUS)
    await until(lambda: len(running.events) == 3)

    after = before.updated(StatusOptions(topic_interest=frozenset({NEWS})))
    assert running.events[1:] == [SettingsChanged(after), SettingsChanged(after)]
    assert running.connection.settings.interest == Interest(topics=frozenset({NEWS}))


async def test_connection_tells_who_is_there_and_who_dialled(wires: Wires) -> None:
    dialling, dialled = await wires.join()
    before = dialled.connection.node_id, dialled.connection.was_open, dialled.connection.received_bytes
    for running in (dialling, dialled):
        await asyncio.wait_for(running.connection.ready(), DEADLINE_S)

    assert (dialling.connection.is_inbound, dialled.connection.is_inbound) == (False, True)
    assert dialling.connection.node_id == KEY.public_key
    assert dialled.connection.node_id == private_key("dialler").public_key
    assert dialling.connection.was_open
    assert dialled.connection.was_open
    assert before == (None, False, 0)
    assert dialled.connection.received_bytes > 300  # auth alone
    assert (dialled.connection.host, dialled.connection.remote_address, dialled.connection.local_address) == (
        "",
        "?",
        "?",
    )  # as of any socket pair


async def test_connection_was_open_also_when_it_no_longer_is(wires: Wires) -> None:
    running, raw = await wires.open()

    await raw.close()
    await running.ended()

    assert not running.connection.is_open
    assert running.connection.was_open


async def test_connection_that_never_opened_was_not_open(wires: Wires) -> None:
    running, raw = await wires.connect()
    await raw.hear()

    await raw.close()
    await running.ended()

    assert not running.connection.was_open


# Announcing


async def hear_status(raw: RawPeer) -> StatusOptions:
    """Say Hello and hear Hello and Status."""
    raw.write(raw.hello())
    await raw.hear()
    raw.compressed = True
    code, payload = await raw.hear_packet()
    assert code == PacketCode.STATUS
    return StatusOptions.decode(payload)


async def test_what_changes_before_the_handshake_is_over_is_said_by_status_itself(wires: Wires) -> None:
    running, raw = await wires.connect()
    changed = replace(STATUS, pow_requirement=0.5)

    running.connection.announce(changed)
    status = await hear_status(raw)
    running.connection.send(PacketCode.P2P_REQUEST_COMPLETE, b"next")

    assert status == changed
    assert await raw.hear_packet() == Packet(PacketCode.P2P_REQUEST_COMPLETE, b"next")


async def test_what_changes_later_is_said_by_an_update_with_nothing_else_in_it(wires: Wires) -> None:
    running, raw = await wires.open()

    running.connection.announce(replace(STATUS, pow_requirement=0.5))
    running.connection.announce(replace(STATUS, pow_requirement=0.5, bloom=FULL_BLOOM))
    heard = await raw.hear_packets(2)

    assert [code for code, _ in heard] == [PacketCode.STATUS_UPDATE] * 2
    assert [StatusOptions.decode(payload) for _, payload in heard] == [
        StatusOptions(pow_requirement=0.5),
        StatusOptions(bloom=FULL_BLOOM),
    ]


async def test_update_after_a_change_before_the_handshake_says_what_is_new_since(wires: Wires) -> None:
    running, raw = await wires.connect()
    running.connection.announce(replace(STATUS, pow_requirement=0.5))
    await hear_status(raw)

    running.connection.announce(STATUS)

    code, payload = await raw.hear_packet()
    assert (code, StatusOptions.decode(payload)) == (PacketCode.STATUS_UPDATE, StatusOptions(pow_requirement=0.25))


async def test_nothing_is_said_where_nothing_has_changed(wires: Wires) -> None:
    running, raw = await wires.open()

    running.connection.announce(replace(STATUS))
    running.connection.send(PacketCode.P2P_REQUEST_COMPLETE, b"next")

    assert await raw.hear_packet() == Packet(PacketCode.P2P_REQUEST_COMPLETE, b"next")


async def test_topics_in_place_of_a_bloom_and_back_are_said_each_time(wires: Wires) -> None:
    ours = replace(STATUS, topic_interest=frozenset({NEWS}), bloom=None)
    running, raw = await wires.open(status=ours)

    for status in (STATUS, ours):
        running.connection.announce(status)

    assert [StatusOptions.decode(payload) for _, payload in await raw.hear_packets(2)] == [
        StatusOptions(bloom=EMPTY_BLOOM),
        StatusOptions(topic_interest=frozenset({NEWS})),
    ]


async def test_peer_that_is_gone_is_told_nothing(wires: Wires) -> None:
    running, _raw = await wires.open()
    running.connection.abort("gone")

    running.connection.announce(replace(STATUS, pow_requirement=0.5))

    assert (await running.ended()).cause == "gone"


async def test_two_of_our_nodes_follow_what_the_other_announces(wires: Wires) -> None:
    dialling, dialled = await wires.join()
    for running in (dialling, dialled):
        await asyncio.wait_for(running.connection.ready(), DEADLINE_S)
    changed = replace(STATUS, pow_requirement=0.5, bloom=None, topic_interest=frozenset({NEWS}))

    dialling.connection.announce(changed)
    await until(lambda: len(dialled.events) == 2)

    assert dialled.events[1] == SettingsChanged(PeerSettings().updated(changed))
    assert dialled.connection.settings == PeerSettings().updated(changed)


async def test_peer_that_becomes_a_light_node_is_of_no_use_to_another(wires: Wires) -> None:
    heard, closed = await reason_for(
        wires,
        LIGHT,
        hello,
        packet(PacketCode.STATUS, EMPTY_STATUS),
        packet(PacketCode.STATUS_UPDATE, LIGHT.encode()),
        packet(PacketCode.P2P_REQUEST, b"in the same breath"),
    )

    assert heard is closed.reason is DisconnectReason.USELESS_PEER


async def test_shared_payload_reaches_each_peer_as_it_is(wires: Wires) -> None:
    payload = SharedPayload(bytes(1000))
    peers = [await wires.open() for _ in range(2)]

    for running, _ in peers:
        running.connection.send(PacketCode.P2P_REQUEST_COMPLETE, payload)

    for _, raw in peers:
        assert await raw.hear_packet() == Packet(PacketCode.P2P_REQUEST_COMPLETE, bytes(1000))


# Events


async def test_packets_reach_the_handler_in_order_however_they_are_cut(wires: Wires) -> None:
    running, raw = await wires.open()
    codes = [bytes([code]) * 32 for code in range(5)]
    frames = b"".join(raw.packet(PacketCode.P2P_REQUEST, code) for code in codes)

    for at in range(0, len(frames), 7):
        raw.write(frames[at : at + 7])
        await asyncio.sleep(0)
    await until(lambda: len(running.events) == 6)

    assert running.events[1:] == [P2PRequestReceived(code) for code in codes]


async def test_next_packet_is_not_handled_before_the_handler_is_done_with_the_last(wires: Wires) -> None:
    gate = asyncio.Event()
    running, raw = await wires.open(act=wait_at_requests(gate))

    raw.write(raw.packet(PacketCode.P2P_REQUEST, b"1"), raw.packet(PacketCode.P2P_REQUEST, b"2"))
    await running.seen(P2PRequestReceived(b"1"))
    alone = P2PRequestReceived(b"2") not in running.events
    gate.set()

    assert alone
    assert await running.seen(P2PRequestReceived(b"2"))


async def test_second_status_and_unknown_packets_are_let_pass(wires: Wires) -> None:
    running, raw = await wires.open()

    raw.say(PacketCode.STATUS, EMPTY_STATUS)
    raw.say(UNKNOWN_CODE, b"whatever")
    raw.say(PacketCode.BATCH_ACKNOWLEDGED, rlp.encode(bytes(32)))

    assert await running.seen(BatchAcknowledged(bytes(32)))
    assert running.events[1:] == [PacketIgnored(0), PacketIgnored(UNKNOWN_CODE), BatchAcknowledged(bytes(32))]


async def test_what_the_peer_said_in_one_breath_with_its_goodbye_is_still_handled(wires: Wires) -> None:
    running, raw = await wires.open()

    raw.write(raw.packet(PacketCode.P2P_REQUEST, b"1"), raw.packet(PacketCode.P2P_REQUEST, b"2"), goodbye(raw))

    closed = await running.ended()
    assert (closed.reason, closed.by_peer) == (DisconnectReason.CLIENT_QUITTING, True)
    assert running.events[1:] == [P2PRequestReceived(b"1"), P2PRequestReceived(b"2")]


async def test_answer_to_what_came_with_a_goodbye_finds_nobody(wires: Wires) -> None:
    refused: list[ConnectionLost] = []

    async def answer(event: Event) -> None:
        if isinstance(event, P2PRequestReceived):
            for act in (lambda: running.connection.send(PacketCode.P2P_REQUEST_COMPLETE, b"answer"), None):
                try:
                    if act is not None:
                        act()
                    else:
                        await running.connection.drain()
                except ConnectionLost as error:
                    refused.append(error)

    running, raw = await wires.open(act=answer)

    raw.write(raw.packet(PacketCode.P2P_REQUEST, b"1"), goodbye(raw))
    await running.ended()

    assert len(refused) == 2
    assert all(str(error) for error in refused)


async def test_error_in_the_handler_comes_out_of_run_and_closes_the_socket(wires: Wires) -> None:
    class Bug(Exception):
        pass

    async def fail(event: Event) -> None:
        raise Bug

    running, raw = await wires.connect(act=fail)
    raw.write(raw.hello())
    await raw.hear()
    raw.compressed = True

    raw.say(PacketCode.STATUS, EMPTY_STATUS)

    with pytest.raises(Bug):
        await asyncio.wait_for(running.task, DEADLINE_S)
    assert await raw.at_end()


# The peer's faults


async def reason_for(
    wires: Wires, status: StatusOptions, *said: Callable[[RawPeer], bytes]
) -> tuple[DisconnectReason | None, Closed]:
    """What a peer hears that says these things after the key exchange, all in one write; and how we saw it."""
    running, raw = await wires.connect(status=status)
    frames = []
    for say in said:
        frames.append(say(raw))
        raw.compressed = True
    raw.write(*frames)
    raw.compressed = False
    assert (await raw.hear()).message_id == p2p.MessageId.HELLO
    raw.compressed = True
    reason = await raw.hear_hangup()
    await raw.close()
    closed = await running.ended()
    return reason, closed


def hello(raw: RawPeer) -> bytes:
    return raw.hello()


def packet(code: int, payload: bytes) -> Callable[[RawPeer], bytes]:
    return lambda raw: raw.packet(code, payload)


def frame_of(body: bytes) -> Callable[[RawPeer], bytes]:
    return lambda raw: raw.frame_of(body)


def garbled(raw: RawPeer) -> bytes:
    frame = bytearray(raw.packet(UNKNOWN_CODE, b"garbled"))
    frame[-1] ^= 1
    return bytes(frame)


def garbled_header(raw: RawPeer) -> bytes:
    frame = bytearray(raw.packet(UNKNOWN_CODE, b"garbled"))
    frame[20] ^= 1
    return bytes(frame)


def oversize_header(raw: RawPeer) -> bytes:
    """The header alone of a frame above every limit: it is refused before any of the rest has come."""
    return raw.frame_of(bytes(3 * 1024 * 1024))[:32]


def snappy_bomb(size: int) -> bytes:
    """A message that announces `size` bytes."""
    varint = bytearray()
    while size >= 0x80:
        varint.append(size & 0x7F | 0x80)
        size >>= 7
    return bytes([WAKU_OFFSET + UNKNOWN_CODE]) + bytes([*varint, size])


FAULTS: dict[str, tuple[Callable[[RawPeer], bytes], DisconnectReason]] = {
    "packet before Status": (packet(PacketCode.P2P_REQUEST, b""), DisconnectReason.SUBPROTOCOL_ERROR),
    "unknown packet before Status": (packet(UNKNOWN_CODE, b""), DisconnectReason.SUBPROTOCOL_ERROR),
    "Status that is no list": (packet(PacketCode.STATUS, b"\x80"), DisconnectReason.SUBPROTOCOL_ERROR),
    "Status that is empty": (packet(PacketCode.STATUS, b""), DisconnectReason.SUBPROTOCOL_ERROR),
    "Status with a bad PoW": (
        packet(PacketCode.STATUS, rlp.encode([[b"", b"\x7f\xf0" + bytes(6)]])),
        DisconnectReason.SUBPROTOCOL_ERROR,
    ),
    "Status as an RLP bomb": (packet(PacketCode.STATUS, b"\xc1" * 100_000), DisconnectReason.SUBPROTOCOL_ERROR),
    "second Hello": (hello, DisconnectReason.PROTOCOL_BREACH),
    "message id of nobody": (lambda raw: raw.frame(WAKU_OFFSET + 128, b""), DisconnectReason.PROTOCOL_BREACH),
    "message id of two bytes": (frame_of(b"\x82\x01\x00"), DisconnectReason.PROTOCOL_BREACH),
    "empty frame": (frame_of(b""), DisconnectReason.PROTOCOL_BREACH),
    "body with a wrong MAC": (garbled, DisconnectReason.PROTOCOL_BREACH),
    "header with a wrong MAC": (garbled_header, DisconnectReason.PROTOCOL_BREACH),
    "bytes that are no frame": (lambda _: bytes(100), DisconnectReason.PROTOCOL_BREACH),
    "header of an oversize frame": (oversize_header, DisconnectReason.PROTOCOL_BREACH),
    "Snappy bomb of 16 MiB": (frame_of(snappy_bomb((16 << 20) + 1)), DisconnectReason.PROTOCOL_BREACH),
    "Snappy bomb of 4 GiB": (frame_of(snappy_bomb((1 << 32) - 1)), DisconnectReason.PROTOCOL_BREACH),
    "Snappy above our own limit": (
        frame_of(bytes([WAKU_OFFSET + UNKNOWN_CODE]) + snappy.compress(bytes(MAX_RECEIVED_PACKET_BYTES + 1))),
        DisconnectReason.PROTOCOL_BREACH,
    ),
    "no Snappy at all": (frame_of(bytes([WAKU_OFFSET])), DisconnectReason.PROTOCOL_BREACH),
    "long ping": (lambda raw: raw.frame(p2p.MessageId.PING, bytes(4096)), DisconnectReason.PROTOCOL_BREACH),
}


@pytest.mark.parametrize("fault", FAULTS)
async def test_fault_right_after_hello_is_told_to_the_peer_by_its_reason(wires: Wires, fault: str) -> None:
    say, reason = FAULTS[fault]

    heard, closed = await reason_for(wires, STATUS, hello, say)

    assert heard is reason
    assert (closed.reason, closed.by_peer) == (reason, False)


MALFORMED_PACKETS = {
    "Messages that is a string": (PacketCode.MESSAGES, b"\x83abc"),
    "Messages with a truncated envelope": (PacketCode.MESSAGES, b"\xc3\xc5\x01\x01"),
    "Messages as an RLP bomb": (PacketCode.MESSAGES, b"\xf9\xff\xff" + b"\xc0" * 65535),
    "Messages followed by a byte": (PacketCode.MESSAGES, b"\xc0\x00"),
    "P2P Message that is a string": (PacketCode.P2P_MESSAGE, b"\x80"),
    "Message Response that is a string": (PacketCode.MESSAGE_RESPONSE, b"\x80"),
    "Batch Ack of 31 bytes": (PacketCode.BATCH_ACKNOWLEDGED, rlp.encode(bytes(31))),
    "Status Update with a bloom of 63 bytes": (PacketCode.STATUS_UPDATE, rlp.encode([[b"\x01", bytes(63)]])),
}


@pytest.mark.parametrize("what", MALFORMED_PACKETS)
async def test_packet_that_does_not_decode_ends_the_connection_as_a_subprotocol_error(wires: Wires, what: str) -> None:
    heard, closed = await reason_for(
        wires, STATUS, hello, packet(PacketCode.STATUS, DEPLOYED_STATUS), packet(*MALFORMED_PACKETS[what])
    )

    assert heard is DisconnectReason.SUBPROTOCOL_ERROR
    assert not closed.by_peer


async def test_two_light_nodes_are_useless_to_each_other(wires: Wires) -> None:
    heard, _ = await reason_for(wires, LIGHT, hello, packet(PacketCode.STATUS, LIGHT.encode()))

    assert heard is DisconnectReason.USELESS_PEER


async def test_two_of_our_light_nodes_part_and_both_know_why(wires: Wires) -> None:
    dialling, dialled = await wires.join(ours=LIGHT, theirs=LIGHT)

    ends = [await dialling.ended(), await dialled.ended()]

    assert {end.reason for end in ends} == {DisconnectReason.USELESS_PEER}
    with pytest.raises(ConnectionLost):
        await asyncio.wait_for(dialling.connection.ready(), DEADLINE_S)


@pytest.mark.parametrize("capabilities", [(Capability("waku", 0),), (), (Capability("shh", 6), Capability("waku", 2))])
async def test_peer_without_waku_1_is_useless(wires: Wires, capabilities: tuple[Capability, ...]) -> None:
    heard, closed = await reason_for(wires, STATUS, lambda raw: raw.hello(capabilities=capabilities))

    assert heard is DisconnectReason.USELESS_PEER
    assert closed.reason is DisconnectReason.USELESS_PEER


async def test_peer_that_offers_waku_0_as_well_speaks_waku_1(wires: Wires) -> None:
    running, raw = await wires.connect()
    raw.write(raw.hello(capabilities=(Capability("waku", 0), WAKU)))
    await raw.hear()
    raw.compressed = True

    raw.say(PacketCode.STATUS, DEPLOYED_STATUS)

    await asyncio.wait_for(running.connection.ready(), DEADLINE_S)


async def test_hello_with_another_node_id_is_refused(wires: Wires) -> None:
    heard, _ = await reason_for(wires, STATUS, lambda raw: raw.hello(node_id=private_key("another").public_key))

    assert heard is DisconnectReason.UNEXPECTED_IDENTITY


async def test_other_messages_than_hello_are_refused_before_it(wires: Wires) -> None:
    _, raw = await wires.connect()
    await raw.hear()

    raw.write(raw.frame(p2p.MessageId.PING, p2p.EMPTY_PAYLOAD))

    assert await raw.hear_hangup() is DisconnectReason.PROTOCOL_BREACH


async def test_peer_that_is_not_wanted_hears_the_reason_in_place_of_hello(wires: Wires) -> None:
    running, raw = await wires.connect(refuse=lambda _: DisconnectReason.TOO_MANY_PEERS)

    heard = await raw.hear()

    assert heard == Heard(p2p.MessageId.DISCONNECT, p2p.encode_disconnect(DisconnectReason.TOO_MANY_PEERS))
    await raw.close()
    assert (await running.ended()).reason is DisconnectReason.TOO_MANY_PEERS


async def test_goodbye_in_one_write_with_hello_is_taken_as_one(wires: Wires) -> None:
    running, raw = await wires.connect()
    greeting = raw.hello()
    raw.compressed = True

    raw.write(greeting, goodbye(raw))

    closed = await running.ended()
    assert (closed.reason, closed.by_peer) == (DisconnectReason.CLIENT_QUITTING, True)
    assert running.events == []


@pytest.mark.parametrize(
    "garbage", [bytes(1), bytes(500), b"\xff" * 500, b"GET / HTTP/1.1\r\n\r\n" * 40, b"\x04" * 600]
)
async def test_bytes_that_are_no_handshake_end_the_connection_without_an_answer(
    wires: Wires, garbage: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_module, "HANDSHAKE_TIMEOUT_S", 0.05)
    running, reader, writer = await wires.stranger()

    writer.write(garbage)

    async with asyncio.timeout(DEADLINE_S):
        assert await reader.read() == b""
    writer.close()
    assert (await running.ended()).by_peer is False


# Ending


async def test_disconnect_tells_the_peer_why_and_lets_it_close_first(wires: Wires) -> None:
    running, raw = await wires.open()

    running.connection.disconnect(DisconnectReason.CLIENT_QUITTING, "we are done")
    reason = await raw.hear_hangup()
    await raw.close()

    assert reason is DisconnectReason.CLIENT_QUITTING
    assert await running.ended() == Closed(DisconnectReason.CLIENT_QUITTING, by_peer=False, cause="we are done")
    assert not running.connection.is_open


async def test_everything_sent_before_disconnect_is_heard_before_it(wires: Wires) -> None:
    running, raw = await wires.open()

    for number in range(3):
        running.connection.send(PacketCode.P2P_REQUEST_COMPLETE, bytes([number]))
    running.connection.disconnect(DisconnectReason.CLIENT_QUITTING, "we are done")

    heard = [await raw.hear_packet() for _ in range(3)]
    assert heard == [Packet(PacketCode.P2P_REQUEST_COMPLETE, bytes([number])) for number in range(3)]
    assert await raw.hear_hangup() is DisconnectReason.CLIENT_QUITTING
    await raw.close()
    await running.ended()


async def test_peer_that_does_not_close_after_our_disconnect_is_cut(
    wires: Wires, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_module, "LINGER_S", 0.02)
    running, raw = await wires.open()

    running.connection.disconnect(DisconnectReason.CLIENT_QUITTING, "we are done")

    await running.ended()
    assert await raw.at_end()


async def test_abort_closes_at_once(wires: Wires) -> None:
    running, raw = await wires.open()

    running.connection.abort("no time")

    assert await running.ended() == Closed(DisconnectReason.TCP_ERROR, by_peer=False, cause="no time")
    assert await raw.hear_hangup() is None


async def test_abort_before_the_run_ends_the_run_at_once(wires: Wires) -> None:
    pipe, theirs = await wires.pipe()
    connection = Connection(pipe, session_config(KEY, "server/1"), STATUS)
    connection.abort("not wanted")

    running = Running(connection)

    assert (await running.ended()).cause == "not wanted"
    theirs.close()


async def test_peer_that_just_goes_away_ends_the_connection_without_a_reason(wires: Wires) -> None:
    running, raw = await wires.open()

    await raw.close()

    closed = await running.ended()
    assert (closed.reason, closed.by_peer) == (None, True)


@pytest.mark.parametrize("form", [b"\xc1\x08", b"\x08"], ids=["list", "bare integer"])
async def test_goodbye_of_the_peer_is_read_in_both_forms(wires: Wires, form: bytes) -> None:
    running, raw = await wires.open()

    raw.write(raw.frame(p2p.MessageId.DISCONNECT, form))

    closed = await running.ended()
    assert (closed.reason, closed.by_peer) == (DisconnectReason.CLIENT_QUITTING, True)


async def test_sending_and_waiting_after_the_end_is_told_how_it_ended(wires: Wires) -> None:
    running, _raw = await wires.open()
    running.connection.abort("gone")
    await running.ended()

    with pytest.raises(ConnectionLost, match="gone") as sending:
        running.connection.send(PacketCode.P2P_REQUEST_COMPLETE, b"")
    with pytest.raises(ConnectionLost, match="gone"):
        await running.connection.drain()
    with pytest.raises(ConnectionLost, match="gone"):
        await asyncio.wait_for(running.connection.ready(), DEADLINE_S)

    assert sending.value.reason is DisconnectReason.TCP_ERROR


async def test_cancelled_run_closes_the_socket_and_wakes_who_waits(wires: Wires) -> None:
    running, raw = await wires.connect()
    waiting = asyncio.create_task(running.connection.ready())
    await asyncio.sleep(0)

    running.task.cancel()

    with pytest.raises(asyncio.CancelledError):
        await running.task
    with pytest.raises(ConnectionLost):
        await asyncio.wait_for(waiting, DEADLINE_S)
    assert await raw.at_end()


async def test_every_truncation_of_a_conversation_ends_it_without_an_error(wires: Wires) -> None:
    heard: list[Closed] = []

    # Hello and Status as they lie in the stream, cut at a few places in each part and between them.
    for cut in itertools.chain(range(0, 40, 5), range(40, 400, 45)):
        running, raw = await wires.connect()
        greeting = raw.hello()
        raw.compressed = True
        raw.write((greeting + raw.packet(PacketCode.STATUS, DEPLOYED_STATUS) + raw.packet(UNKNOWN_CODE, BIG))[:cut])
        raw.writer.write_eof()
        heard.append(await running.ended())

    assert all((closed.reason, closed.by_peer) == (None, True) for closed in heard)


# Timeouts

ON_UVLOOP = pytest.mark.asyncio(loop_factories=["uvloop"])
"""Once is enough for what takes its time."""


def hurry(monkeypatch: pytest.MonkeyPatch, *, ping_s: float, idle_s: float) -> None:
    """Make pings and silence count sooner. The timer of the handshake is the first to go off, so that one, too."""
    monkeypatch.setattr(session_module, "HANDSHAKE_TIMEOUT_S", 0.4)
    monkeypatch.setattr(liveness_module, "PING_INTERVAL_S", ping_s)
    monkeypatch.setattr(liveness_module, "IDLE_TIMEOUT_S", idle_s)


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
    monkeypatch.setattr(session_module, "HANDSHAKE_TIMEOUT_S", 0.1)

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
    monkeypatch.setattr(liveness_module, "SEEN_S", 0.0)
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
    monkeypatch.setattr(liveness_module, "SEEN_S", 0.0)
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
    monkeypatch.setattr(liveness_module, "SEEN_S", 0.0)
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


# Throttling

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
    assert await running.ended() == Closed(DisconnectReason.SUBPROTOCOL_ERROR, by_peer=False, cause="too much")
    assert running.events[1:] == [P2PRequestReceived(b"1")]
    assert len(valve.sizes) == 2


async def test_connection_that_its_handler_has_ended_takes_no_pause(wires: Wires) -> None:
    async def cut(event: Event) -> None:
        if isinstance(event, P2PRequestReceived):
            running.connection.abort("seen enough")

    running, raw = await wires.open(act=cut, throttle=Valve(0.0, LONG_S))

    raw.say(PacketCode.P2P_REQUEST, b"")

    assert (await running.ended()).cause == "seen enough"


# Backpressure


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
