"""Connections over socket pairs, for tests: with one of ours at the other end, or with a peer by hand."""

import asyncio
import socket
from collections.abc import Awaitable, Callable

import pytest

from mailserver.codec.keys import NodeId
from mailserver.errors import DisconnectReason
from mailserver.limits.frame_bounds import FrameBounds
from mailserver.limits.frame_memory import ReceiveMemory
from mailserver.limits.loop_scheduler import LoopScheduler
from mailserver.net.connection import Connection
from mailserver.net.inbound import Event, Inbound
from mailserver.net.pipe import Pipe
from mailserver.net.sessions import session_config
from mailserver.rlpx import liveness as liveness_module
from mailserver.rlpx import p2p
from mailserver.rlpx import session as session_module
from mailserver.rlpx.events import BaseMessageReceived, SessionClosed
from mailserver.rlpx.session_config import Refuse
from mailserver.waku.bloom import EMPTY_BLOOM
from mailserver.waku.packets import StatusOptions
from mailserver.waku.peer import P2PRequestReceived
from tests.pairs import private_key
from tests.raw_peer import RawPeer, open_stream, stream_pair
from tests.waiting import DEADLINE_S, until

KEY = private_key("server")
STATUS = StatusOptions(pow_requirement=0.25, bloom=EMPTY_BLOOM, light_node=False, confirmations=True)
LIGHT = StatusOptions(light_node=True)
EMPTY_STATUS = b"\xc0"
BIG = bytes(1024 * 1024)
UNKNOWN_CODE = 99


Act = Callable[[Event], Awaitable[None]]
"""What is done about an event."""

Throttle = Callable[[int, float], float]
"""Takes a message's length and the time; returns for how long to read nothing. It may raise RemoteProtocolError."""


class Running:
    """A connection that is running, and the events that its handler got."""

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

    async def ended(self) -> SessionClosed:
        """Wait until the connection has ended; return how."""
        await asyncio.wait_for(self.task, DEADLINE_S)
        assert self.connection.closed is not None
        return self.connection.closed

    async def seen(self, event: Event) -> bool:
        """Wait until the handler has been told this."""
        await until(lambda: event in self.events)
        return True


class Wires:
    """Makes connections and their peers, and closes those that are still open at the end of the test."""

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
        opening: LoopScheduler | None = None,
    ) -> tuple[Running, RawPeer]:
        """A connection that was dialled by a RawPeer; the key exchange is over."""
        pipe, theirs = await self.pipe()
        config = session_config(KEY, "server/1", refuse=refuse, is_named=is_named)
        bounds = FrameBounds(opening or LoopScheduler(), memory or ReceiveMemory())
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
        opening: LoopScheduler | None = None,
    ) -> tuple[Running, RawPeer]:
        """The same after Hello and Status."""
        running, raw = await self.connect(act=act, status=status, throttle=throttle, memory=memory, opening=opening)
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


def goodbye(raw: RawPeer) -> bytes:
    """A frame with Disconnect."""
    return raw.frame(p2p.MessageId.DISCONNECT, p2p.encode_disconnect(DisconnectReason.CLIENT_QUITTING))


def wait_at_requests(gate: asyncio.Event) -> Act:
    """A handler that waits at each history request until the gate is open."""

    async def act(event: Event) -> None:
        if isinstance(event, P2PRequestReceived):
            await gate.wait()

    return act


async def reason_for(
    wires: Wires, status: StatusOptions, *said: Callable[[RawPeer], bytes]
) -> tuple[DisconnectReason | None, SessionClosed]:
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


def hurry(monkeypatch: pytest.MonkeyPatch, *, ping_s: float, idle_s: float) -> None:
    """Make pings and silence count sooner. The timer of the handshake is the first to go off, so that one, too."""
    monkeypatch.setattr(session_module, "HANDSHAKE_TIMEOUT_S", 0.4)
    monkeypatch.setattr(liveness_module, "PING_INTERVAL_S", ping_s)
    monkeypatch.setattr(liveness_module, "IDLE_TIMEOUT_S", idle_s)
