"""Outbound connections: dialling one peer, and keeping connections to static peers."""

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
"""How long a node may take to accept: enough for the first SYN and the repetitions after 1, 3 and 7 s."""

FIRST_BACKOFF_S = 1.0
MAX_BACKOFF_S = 60.0
"""How long to wait before a static peer is dialled again. The wait doubles after each attempt, up to the maximum, and
is jittered. So when a network is back, we dial within 90 s. Deployed nodes dial every 35 s."""

JITTER = 0.5
"""A wait is longer or shorter by up to this fraction, so that two nodes do not keep dialling each other at once."""

STABLE_S = 30.0
"""After a connection that lasted this long, the wait starts from FIRST_BACKOFF_S again. Deployed nodes refuse a second
connection from one address for the same time."""


_ORDINARY_ENDS = frozenset({DisconnectReason.ALREADY_CONNECTED, DisconnectReason.CLIENT_QUITTING})
"""Ends of a handshake that are not logged for the operator: both nodes have dialled at once, or one is stopping."""


async def dial(
    enode: Enode, config: SessionConfig, status: StatusOptions, *, bounds: FrameBounds | None = None
) -> Connection:
    """Connect to a node. The handshake begins when the connection is run.

    Args:
        bounds: shared by all connections; None: the connection has its own.
    Raises:
        ConnectionLost: nobody accepts there within DIAL_TIMEOUT_S.
        DecodeError: the node id is not a point on the curve.
    """
    try:
        async with asyncio.timeout(DIAL_TIMEOUT_S):
            pipe = await _connect(enode.host, enode.port)
    except TimeoutError as error:
        raise ConnectionLost(None, f"no answer from {enode.host}:{enode.port}") from error
    except OSError as error:
        raise ConnectionLost(None, f"cannot connect to {enode.host}:{enode.port}: {error.strerror or error}") from error
    except UnicodeError as error:  # a label of the name is empty, or has more than 63 characters
        raise ConnectionLost(None, f"cannot connect to {enode.host}:{enode.port}: not a host name") from error
    try:
        return Connection(pipe, config, status, remote_id=enode.node_id, bounds=bounds)
    except DecodeError:
        pipe.abort()
        raise


async def _connect(host: str, port: int) -> Pipe:
    """Connect to the first address of a host that accepts; if none does, raise the error of the last one.

    The name is looked up here. If `create_connection` did that, and were cancelled meanwhile, uvloop would log a failed
    lookup as "Future exception was never retrieved".
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
    """How long to wait between attempts to connect to one peer."""

    def __init__(self) -> None:
        self._next_s = FIRST_BACKOFF_S

    def after(self, lasted_s: float) -> float:
        """Return the seconds to wait after an attempt. `lasted_s`: how long it took, its connection included."""
        if lasted_s >= STABLE_S:
            self._next_s = FIRST_BACKOFF_S
        wait_s = self._next_s
        self._next_s = min(2 * wait_s, MAX_BACKOFF_S)
        return wait_s


def jittered(wait_s: float) -> float:
    """Return a random time around this one."""
    return wait_s * random.uniform(1 - JITTER, 1 + JITTER)  # noqa: S311 - no secret


class _StaticPeer(NamedTuple):
    """A peer that we keep a connection to. `unwanted` is set when we need it no longer."""

    enode: Enode
    unwanted: asyncio.Event


class StaticPeers:
    """Keeps a connection to each of some peers, as long as they are wanted."""

    def __init__(
        self, dial_peer: Callable[[Enode], Awaitable[Connection]], serve: Serve, is_connected: Callable[[NodeId], bool]
    ) -> None:
        """Start with no peers.

        Args:
            dial_peer: connects, or raises ConnectionLost.
            serve: serves a connection until it ends.
            is_connected: whether there is a connection to a peer, whichever side dialled.
        """
        self._dial = dial_peer
        self._serve = serve
        self._is_connected = is_connected
        self._peers: dict[NodeId, _StaticPeer] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._dialling: set[asyncio.Task[None]] = set()
        self._stopping = False

    def add(self, enode: Enode) -> None:
        """Connect to a peer, and again whenever the connection ends. A known peer may come with a new address."""
        known = self._peers.get(enode.node_id)
        if self._stopping or (known is not None and known.enode == enode):
            return
        self.remove(enode.node_id)
        peer = self._peers[enode.node_id] = _StaticPeer(enode, asyncio.Event())
        task = asyncio.get_running_loop().create_task(self._keep(peer), name=f"static peer {enode.host}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def remove(self, node_id: NodeId) -> None:
        """Stop dialling a peer. An existing connection goes on until somebody ends it."""
        peer = self._peers.pop(node_id, None)
        if peer is not None:
            peer.unwanted.set()

    def follow(self, enodes: Iterable[Enode]) -> None:
        """Stay connected to these peers and no others."""
        wanted = {enode.node_id: enode for enode in enodes}
        for node_id in self._peers.keys() - wanted.keys():
            self.remove(node_id)
        for enode in wanted.values():
            self.add(enode)

    def stop(self) -> None:
        """Stop dialling. Connections that are being served go on."""
        self._stopping = True
        self.follow(())

    async def join(self) -> None:
        """After `stop`: cancel the dials that are in progress, and wait until every connection has ended."""
        for task in self._dialling:
            task.cancel()
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def _keep(self, peer: _StaticPeer) -> None:
        loop = asyncio.get_running_loop()
        backoff = Backoff()
        problem: str | None = None
        while not peer.unwanted.is_set():
            if self._is_connected(peer.enode.node_id):  # it has dialled us: look again soon
                backoff = Backoff()
                wait_s = STABLE_S
            else:
                started = loop.time()
                problem = await self._serve_once(peer, problem)
                wait_s = backoff.after(loop.time() - started)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(jittered(wait_s)):
                    await peer.unwanted.wait()

    async def _serve_once(self, peer: _StaticPeer, problem: str | None) -> str | None:
        """Dial the peer and serve the connection.

        Args:
            problem: what the last attempt returned.
        Returns:
            Why there was no connection; None if there was one, or if the failure is not worth a log line.
        """
        task = asyncio.current_task()
        assert task is not None
        self._dialling.add(task)
        try:
            connection = await self._dial(peer.enode)
        except ConnectionLost as error:
            return _log_problem(peer.enode, str(error), problem)
        finally:
            self._dialling.discard(task)
        if peer.unwanted.is_set():
            connection.abort("no longer wanted")
        await run_guarded(self._serve, connection)
        closed = connection.closed
        if closed is None or connection.was_open or closed.reason in _ORDINARY_ENDS or peer.unwanted.is_set():
            return None
        return _log_problem(peer.enode, closed.cause, problem)


def _log_problem(enode: Enode, cause: str, previous: str | None) -> str:
    """Log why there is no connection, at info level only if the cause has changed; return the cause."""
    peer = f"{enode.node_id.hex()[:8]}@{enode.host}:{enode.port}"
    if cause != previous:
        log.info("static peer not reached, it is dialled again peer=%s cause=%r", peer, cause)
    else:
        log.debug("static peer not reached again peer=%s cause=%r", peer, cause)
    return cause
