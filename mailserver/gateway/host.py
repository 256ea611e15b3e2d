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
from mailserver.libp2p.connection import Connection
from mailserver.libp2p.noise import NoiseKeys
from mailserver.limits.admission import Admission
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
        self._memory = SendMemory()
        self._pending: dict[Peer, None] = {}  # in their handshake, oldest first
        self._clients: dict[Peer, None] = {}
        self._admitted: set[Peer] = set()
        self._servers: list[asyncio.Server] = []
        self._is_stopping = False
        self._empty = asyncio.Event()

    async def listen(self, host: str, port: int) -> int:
        """Accept clients over TCP; return the port. If `port` is 0, the system chooses one.

        Raises:
            OSError: we cannot listen on the address.
        """
        return await self._listen(lambda: Transport(self._accept), host, port)

    async def listen_websocket(self, host: str, port: int) -> int:
        """The same over WebSocket."""
        return await self._listen(lambda: WebSocketTransport(self._accept, self._forwarded), host, port)

    async def stop(self) -> None:
        """Stop listening, say goodbye to every client, and wait until all are gone."""
        self._is_stopping = True
        for server in self._servers:
            server.close()
        peers = [*self._pending, *self._clients]
        for peer in peers:
            peer.close()
        if peers:
            self._empty.clear()
            try:
                async with asyncio.timeout(STOP_TIMEOUT_S):
                    await self._empty.wait()
            except TimeoutError:
                for peer in [*self._pending, *self._clients]:
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
        """Admit a client by its address, before anything is computed for it."""
        if self._is_stopping:
            return Ending.QUITTING
        refusal = self._admission.admit(peer.host, asyncio.get_running_loop().time())
        if refusal is not None:
            return Ending.NOT_ADMITTED
        self._admitted.add(peer)
        return None

    def on_secured(self, peer: Peer) -> Ending | None:
        """Take a client whose handshake is over, if there is a place."""
        self._pending.pop(peer, None)
        self._admission.handshake_succeeded(peer.host)
        if len(self._clients) >= self._limits.max_clients:
            return Ending.TOO_MANY_CLIENTS
        self._clients[peer] = None
        self._told.on_client(peer)
        return None

    def on_gone(self, peer: Peer) -> None:
        """Forget a client."""
        was_client = peer in self._clients
        self._clients.pop(peer, None)
        self._pending.pop(peer, None)
        if peer in self._admitted:
            self._admitted.remove(peer)
            if peer.peer_id is None and peer.ending is Ending.LIBP2P_FAULT:
                self._admission.handshake_failed(peer.host, asyncio.get_running_loop().time())
            self._admission.release(peer.host)
        if peer.ending is not None:
            self._metrics.endings[peer.ending.value].inc()
        log.debug("client gone peer=%s ending=%s fault=%r", peer.transport.address, peer.ending, str(peer.fault))
        if was_client:
            self._told.on_client_gone(peer)
        if not self._clients and not self._pending:
            self._empty.set()

    # What the sockets call.

    async def _listen(self, make: Callable[[], Transport], host: str, port: int) -> int:
        server = await asyncio.get_running_loop().create_server(make, host, port, backlog=BACKLOG)
        self._servers.append(server)
        return int(server.sockets[0].getsockname()[1])

    def _accept(self, transport: Transport) -> Peer:
        if len(self._pending) >= MAX_PENDING:
            oldest = next(iter(self._pending))
            del self._pending[oldest]
            oldest.abort(Ending.TOO_MANY_HANDSHAKES)
        machine = Connection(
            self._keys,
            self._protocols,
            _ephemeral_secret,
            asyncio.get_running_loop().time(),
            is_dialer=False,
        )
        peer = Peer(transport, machine, self._protocols, self, self._memory)
        self._pending[peer] = None
        return peer

    def _forwarded(self, host: str, forwarded: str) -> str:
        """The client's address: the last one that a proxy of ours has written, if the socket is such a proxy's."""
        for address in [*reversed(forwarded.replace(" ", "").split(",")), ""]:
            if not address or not self._is_proxy(host):
                break
            host = address
        return host

    def _is_proxy(self, host: str) -> bool:
        try:
            address = ip_address(host)
        except ValueError:
            return False
        return any(address in network for network in self._limits.trusted_proxies)


def _ephemeral_secret() -> bytes:
    return secrets.token_bytes(SECRET_BYTES)
