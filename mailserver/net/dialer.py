"""Outbound connections: one dial, and peers that we stay connected to."""

import asyncio
import contextlib
import logging
import random
import socket
from collections.abc import Awaitable, Callable, Iterable
from typing import NamedTuple

from mailserver.codec.keys import Enode, NodeId
from mailserver.errors import ConnectionLost, DecodeError, DisconnectReason
from mailserver.limits.frame_bounds import FrameBounds
from mailserver.net.connection import Connection
from mailserver.net.guard import Serve, run_guarded
from mailserver.net.pipe import Pipe
from mailserver.rlpx.session_config import SessionConfig
from mailserver.waku.packets import StatusOptions

log = logging.getLogger(__name__)

DIAL_TIMEOUT_S = 10.0
"""How long a node may take to accept: the first SYN and its repetitions after 1, 3 and 7 s."""

FIRST_BACKOFF_S = 1.0
MAX_BACKOFF_S = 60.0
"""How long to wait before a static peer is dialled again: doubled after each attempt, up to the maximum; jittered. So
the end of a broken network is noticed within 90 s, however long it was; deployed nodes dial every 35 s."""

JITTER = 0.5
"""A wait is longer or shorter by up to this share, so that nodes that lost each other do not meet in lockstep."""

STABLE_S = 30.0
"""A connection that lasted as long was a success: the next wait is the first one again. Deployed nodes refuse a second
connection from one address for as long."""


_NO_PROBLEM = frozenset({DisconnectReason.ALREADY_CONNECTED, DisconnectReason.CLIENT_QUITTING})
"""Ends of a handshake that an operator need not hear of: both have dialled at once, or one of them is stopping."""


async def dial(
    enode: Enode, config: SessionConfig, status: StatusOptions, *, bounds: FrameBounds | None = None
) -> Connection:
    """Connect to a node; the handshake begins when the connection is run.

    Args:
        bounds: that all connections share; None for some of its own.
    Raises:
        ConnectionLost: nobody answers there within DIAL_TIMEOUT_S.
        DecodeError: the node id is no point of the curve.
    """
    try:
        async with asyncio.timeout(DIAL_TIMEOUT_S):
            pipe = await _connect(enode.host, enode.port)
    except TimeoutError as error:
        raise ConnectionLost(None, f"no answer from {enode.host}:{enode.port}") from error
    except OSError as error:
        raise ConnectionLost(None, f"cannot connect to {enode.host}:{enode.port}: {error.strerror or error}") from error
    except UnicodeError as error:  # a label of the name is empty, or longer than 63 characters
        raise ConnectionLost(None, f"cannot connect to {enode.host}:{enode.port}: not a host name") from error
    try:
        return Connection(pipe, config, status, remote_id=enode.node_id, bounds=bounds)
    except DecodeError:
        pipe.abort()
        raise


async def _connect(host: str, port: int) -> Pipe:
    """Connect to the first address of a host that accepts; the last one's error if none does.

    The name is looked up here: when uvloop's `create_connection` is cancelled while it does that, the failure of the
    lookup comes later, and as "Future exception was never retrieved".
    """
    loop = asyncio.get_running_loop()
    *others, last = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    for _, _, _, _, (address, *_) in others:
        with contextlib.suppress(OSError):
            _, pipe = await loop.create_connection(Pipe, str(address), port)
            return pipe
    _, pipe = await loop.create_connection(Pipe, str(last[4][0]), port)
    return pipe


class Backoff:
    """How long to wait between attempts to be connected to one peer, by how long they last."""

    def __init__(self) -> None:
        self._next_s = FIRST_BACKOFF_S

    def after(self, lasted_s: float) -> float:
        """Return the seconds to wait after an attempt that lasted so long, its connection included."""
        if lasted_s >= STABLE_S:
            self._next_s = FIRST_BACKOFF_S
        wait_s = self._next_s
        self._next_s = min(2 * wait_s, MAX_BACKOFF_S)
        return wait_s


def jittered(wait_s: float) -> float:
    """Return a time around this one, another each time."""
    return wait_s * random.uniform(1 - JITTER, 1 + JITTER)  # noqa: S311 - no secret


class _Kept(NamedTuple):
    """A peer that we stay connected to; `unwanted` is set when that is over."""

    enode: Enode
    unwanted: asyncio.Event


class StaticPeers:
    """Keeps us connected to some peers, as long as they are wanted."""

    def __init__(
        self, dial_peer: Callable[[Enode], Awaitable[Connection]], serve: Serve, is_connected: Callable[[NodeId], bool]
    ) -> None:
        """Take what is done.

        Args:
            dial_peer: connects, or raises ConnectionLost.
            serve: serves a connection until it ends.
            is_connected: whether there is a connection to a peer, whoever dialled.
        """
        self._dial = dial_peer
        self._serve = serve
        self._is_connected = is_connected
        self._kept: dict[NodeId, _Kept] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._dialling: set[asyncio.Task[None]] = set()
        self._stopping = False

    def add(self, enode: Enode) -> None:
        """Connect to a peer, and again whenever the connection ends. One that has moved is dialled where it is now."""
        known = self._kept.get(enode.node_id)
        if self._stopping or (known is not None and known.enode == enode):
            return
        self.remove(enode.node_id)
        kept = self._kept[enode.node_id] = _Kept(enode, asyncio.Event())
        task = asyncio.get_running_loop().create_task(self._keep(kept), name=f"static peer {enode.host}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def remove(self, node_id: NodeId) -> None:
        """Dial a peer no more. A connection that is there goes on until somebody ends it."""
        kept = self._kept.pop(node_id, None)
        if kept is not None:
            kept.unwanted.set()

    def follow(self, enodes: Iterable[Enode]) -> None:
        """Keep to these peers and no others."""
        wanted = {enode.node_id: enode for enode in enodes}
        for node_id in self._kept.keys() - wanted.keys():
            self.remove(node_id)
        for enode in wanted.values():
            self.add(enode)

    def stop(self) -> None:
        """Dial nobody any more; connections that are being served go on."""
        self._stopping = True
        self.follow(())

    async def join(self) -> None:
        """After `stop`: give up what is still being dialled, and wait until every connection has ended."""
        for task in self._dialling:
            task.cancel()
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def _keep(self, kept: _Kept) -> None:
        loop = asyncio.get_running_loop()
        backoff = Backoff()
        problem: str | None = None
        while not kept.unwanted.is_set():
            if self._is_connected(kept.enode.node_id):  # it has dialled us: when that is over, it is dialled soon
                backoff = Backoff()
                wait_s = STABLE_S
            else:
                started = loop.time()
                problem = await self._serve_once(kept, problem)
                wait_s = backoff.after(loop.time() - started)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(jittered(wait_s)):
                    await kept.unwanted.wait()

    async def _serve_once(self, kept: _Kept, problem: str | None) -> str | None:
        """Serve a connection; return why there is none. `problem` is what the last attempt returned."""
        task = asyncio.current_task()
        assert task is not None
        self._dialling.add(task)
        try:
            connection = await self._dial(kept.enode)
        except ConnectionLost as error:
            return _say_problem(kept.enode, str(error), problem)
        finally:
            self._dialling.discard(task)
        if kept.unwanted.is_set():
            connection.abort("no longer wanted")
        await run_guarded(self._serve, connection)
        closed = connection.closed
        if closed is None or connection.was_open or closed.reason in _NO_PROBLEM or kept.unwanted.is_set():
            return None
        return _say_problem(kept.enode, closed.cause, problem)


def _say_problem(enode: Enode, cause: str, before: str | None) -> str:
    """Say why there is no connection to whom the operator names, but not with every attempt; return it."""
    peer = f"{enode.node_id.hex()[:8]}@{enode.host}:{enode.port}"
    if cause != before:
        log.info("static peer not reached, it is dialled again peer=%s cause=%r", peer, cause)
    else:
        log.debug("static peer not reached again peer=%s cause=%r", peer, cause)
    return cause
