"""Our node of libp2p: the addresses we listen on, who may connect, and all clients that are connected.

Spec: libp2p/specs, "connections", "identify". This node never dials.
"""

import asyncio
import logging
import secrets
from collections import Counter
from collections.abc import Callable, Mapping
from ipaddress import ip_address
from typing import Protocol

from mailserver.gateway.limits import HostLimits
from mailserver.gateway.peer import MakeHandler, Peer
from mailserver.gateway.send_memory import SendMemory
from mailserver.gateway.transport import Transport, WebSocketTransport
from mailserver.gateway.turns import GatewayTurns
from mailserver.libp2p.connection import Connection
from mailserver.libp2p.noise import NoiseKeys
from mailserver.limits.admission import Admission, index_to_evict
from mailserver.metrics.gateway import Ending, GatewayMetrics

log = logging.getLogger(__name__)

MAX_PENDING = 256
"""How many connections may be in their handshake. When one more comes, the oldest is dropped."""

BACKLOG = 512
"""How many connections the kernel may hold while the event loop is busy."""

SECRET_BYTES = 32
"""Of a key of X25519."""

STOP_TIMEOUT_S = 2.0
"""How long clients have to take what waits for them when we stop."""


class Clients(Protocol):
    """Whoever is told of clients."""

    def on_client(self, peer: Peer) -> None:
        """A client has connected: its peer id is known."""

    def on_client_gone(self, peer: Peer) -> None:
        """Its connection has ended."""


class Host:
    """Listens, and keeps the clients."""

    def __init__(
        self,
        keys: NoiseKeys,
        protocols: Mapping[str, MakeHandler],
        admission: Admission,
        limits: HostLimits,
        metrics: GatewayMetrics,
        clients: Clients,
    ) -> None:
        """Describe our side; `listen` and `listen_websocket` accept clients.

        Args:
            protocols: what serves the streams of each protocol that clients may use.
            clients: told of every client that comes and goes.
        """
        self._keys = keys
        self._protocols = protocols
        self._admission = admission
        self._limits = limits
        self._metrics = metrics
        self._told = clients
        self._turns = GatewayTurns()
        self._memory = SendMemory(limits.max_send_bytes)
        self._pending: dict[Peer, None] = {}  # in their handshake, oldest first
        self._clients: dict[Peer, float] = {}  # and since when, the longest connected first
        self._admitted: set[Peer] = set()
        self._sockets: set[Peer] = set()  # also those that are closing
        self._servers: list[asyncio.Server] = []
        self._is_stopping = False
        self._empty = asyncio.Event()

    async def listen(self, host: str, port: int) -> int:
        """Accept clients over TCP; return the port. If `port` is 0, the system chooses one.

        Raises:
            OSError: we cannot listen on the address.
        """
        return await self._listen(lambda: Transport(self._accept, self._turns), host, port)

    async def listen_websocket(self, host: str, port: int) -> int:
        """The same over WebSocket."""
        return await self._listen(lambda: WebSocketTransport(self._accept, self._turns, self._forwarded), host, port)

    async def stop(self) -> None:
        """Stop listening, say goodbye to every client, and wait until all are gone."""
        self._is_stopping = True
        for server in self._servers:
            server.close()
        if not self._sockets:
            return
        self._empty.clear()
        for peer in self._sockets:
            peer.close()
        try:
            async with asyncio.timeout(STOP_TIMEOUT_S):
                await self._empty.wait()
        except TimeoutError:
            for peer in self._sockets:
                peer.abort(Ending.QUITTING)
            await self._empty.wait()

    def __len__(self) -> int:
        """How many clients are connected."""
        return len(self._clients)

    @property
    def handshakes(self) -> int:
        """How many connections are in their handshake."""
        return len(self._pending)

    @property
    def unread_bytes(self) -> int:
        """How much clients have not read yet of what was sent to them."""
        return self._memory.used_bytes

    def by_transport(self) -> Counter[str]:
        """How many clients there are of each kind of socket."""
        return Counter(peer.transport.kind for peer in self._clients)

    # What peers call.

    def on_open(self, peer: Peer) -> Ending | None:
        """Admit a client whose proxy has told its address; others were admitted when they came."""
        if peer not in self._admitted:
            if self._admission.admit(peer.host, asyncio.get_running_loop().time()) is not None:
                return Ending.NOT_ADMITTED
            self._admitted.add(peer)
        return None

    def on_secured(self, peer: Peer) -> Ending | None:
        """Take a client whose handshake is over, if there is a place, or one of a subnet with more than its share."""
        self._pending.pop(peer, None)
        self._admission.handshake_succeeded(peer.host)
        if len(self._clients) >= self._limits.max_clients:
            present = list(self._clients)
            index = index_to_evict(peer.host, [client.host for client in present])
            if index is None:
                return Ending.TOO_MANY_CLIENTS
            present[index].abort(Ending.TOO_MANY_CLIENTS)
            self._leave(present[index])
        self._clients[peer] = asyncio.get_running_loop().time()
        self._told.on_client(peer)
        return None

    def on_failed(self, error: Exception) -> None:
        """Tell of a fault of ours."""
        self._metrics.internal_errors.inc()
        log.error("internal error in a request", exc_info=error)

    def on_gone(self, peer: Peer) -> None:
        """Forget a client."""
        self._sockets.remove(peer)
        self._pending.pop(peer, None)
        self._leave(peer)
        if peer in self._admitted:
            self._admitted.remove(peer)
            if peer.peer_id is None and _is_its_fault(peer):
                self._admission.handshake_failed(peer.host, asyncio.get_running_loop().time())
            self._admission.release(peer.host)
        if peer.ending is not None:
            self._metrics.endings[peer.ending.value].inc()
        log.debug("client gone peer=%s ending=%s fault=%r", peer.transport.address, peer.ending, str(peer.fault))
        if not self._sockets:
            self._empty.set()

    def _leave(self, peer: Peer) -> None:
        """Give a client's place back."""
        since = self._clients.pop(peer, None)
        if since is not None:
            self._admission.connection_ended(peer.host, asyncio.get_running_loop().time() - since)
            self._told.on_client_gone(peer)

    # What the sockets call.

    async def _listen(self, make: Callable[[], Transport], host: str, port: int) -> int:
        server = await asyncio.get_running_loop().create_server(make, host, port, backlog=BACKLOG)
        self._servers.append(server)
        return int(server.sockets[0].getsockname()[1])

    def _accept(self, transport: Transport) -> Peer | None:
        """Take a socket, unless its address is refused: that is decided before anything is computed for it."""
        now = asyncio.get_running_loop().time()
        if self._is_stopping:  # it was accepted just before
            return None
        has_proxy = transport.kind == "websocket" and self._is_proxy(transport.host)
        if not has_proxy and self._admission.admit(transport.host, now) is not None:
            self._metrics.endings[Ending.NOT_ADMITTED.value].inc()
            return None
        if len(self._pending) >= MAX_PENDING:
            oldest = next(iter(self._pending))
            del self._pending[oldest]
            oldest.abort(Ending.TOO_MANY_HANDSHAKES)
        machine = Connection(self._keys, self._protocols, _ephemeral_secret, now, is_dialer=False)
        peer = Peer(transport, machine, self._protocols, self, self._memory)
        self._sockets.add(peer)
        self._pending[peer] = None
        if not has_proxy:
            self._admitted.add(peer)
        return peer

    def _forwarded(self, host: str, forwarded: str) -> str | None:
        """The client's address: the last one that a proxy of ours has written, if the socket is such a proxy's.

        None: what it has written is no address.
        """
        for text in reversed(forwarded.split(",") if forwarded else []):
            if not self._is_proxy(host):
                break
            host = text.strip()
            if not _is_address(host):
                return None
        return host

    def _is_proxy(self, host: str) -> bool:
        proxies = self._limits.trusted_proxies
        return bool(proxies) and _is_address(host) and any(ip_address(host) in network for network in proxies)


def _is_its_fault(peer: Peer) -> bool:
    """Whether a client is to blame that its handshake has failed. A probe that connects and goes is not."""
    return peer.ending is Ending.LIBP2P_FAULT or (peer.ending is None and peer.transport.received_bytes > 0)


def _is_address(text: str) -> bool:
    try:
        ip_address(text)
    except ValueError:
        return False
    return True


def _ephemeral_secret() -> bytes:
    return secrets.token_bytes(SECRET_BYTES)
