"""A gateway's `Host` on free ports of the loopback interface, with services that tests can hold up."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field

from mailserver.errors import DecodeError
from mailserver.gateway.handlers import requests_to
from mailserver.gateway.host import Host
from mailserver.gateway.identify import own_protocols
from mailserver.gateway.limits import HostLimits
from mailserver.gateway.peer import MakeHandler, Peer
from mailserver.libp2p.multiaddr import Multiaddr
from mailserver.limits.admission import Admission, AdmissionLimits
from mailserver.metrics.gateway import Ending, GatewayMetrics
from tests.libp2p.names import LISTENER, identity, noise_keys

NO_LIMITS = AdmissionLimits(0, 0, 0.0, 0.0, 0)

ECHO = "/test/echo/1.0.0"
LATER = "/test/later/1.0.0"
SILENT = "/test/silent/1.0.0"
MAX_REQUEST_BYTES = 150 * 1024
OUR_ADDRESS = Multiaddr.parse("/ip4/127.0.0.1/tcp/1")


class Echo:
    """Answers at once, with what was asked; what begins with `!` is no request."""

    max_request_bytes = MAX_REQUEST_BYTES

    def answer(self, peer: Peer, request: bytes) -> bytes:
        if request.startswith(b"!"):
            raise DecodeError("no request")
        return request


class Later:
    """Answers once `go` is set, with what was asked, many times over. `begun`: requests whose turn has come."""

    max_request_bytes = MAX_REQUEST_BYTES

    def __init__(self) -> None:
        self.go = asyncio.Event()
        self.begun: list[bytes] = []
        self.times = 1

    def answer(self, peer: Peer, request: bytes) -> bytes | Callable[[], Awaitable[bytes]]:
        if peer.is_busy:
            return b"busy"

        async def answer() -> bytes:
            self.begun.append(request)
            await self.go.wait()
            return request * self.times

        return answer


class Silent:
    """Never answers."""

    max_request_bytes = MAX_REQUEST_BYTES

    def __init__(self) -> None:
        self.asked: list[bytes] = []

    def answer(self, peer: Peer, request: bytes) -> None:
        self.asked.append(request)


class Faulty:
    """Fails, as our code should not: at once, or later, if asked to."""

    max_request_bytes = MAX_REQUEST_BYTES

    def answer(self, peer: Peer, request: bytes) -> Callable[[], Awaitable[bytes]]:
        if request == b"at once":
            raise KeyError(request)

        async def answer() -> bytes:
            raise KeyError(request)

        return answer


class Told:
    """Notes clients; `most`: how many there have been at once."""

    def __init__(self) -> None:
        self.present: list[Peer] = []
        self.gone: list[Peer] = []
        self.most = 0

    def on_client(self, peer: Peer) -> None:
        self.present.append(peer)
        self.most = max(self.most, len(self.present))

    def on_client_gone(self, peer: Peer) -> None:
        self.present.remove(peer)
        self.gone.append(peer)


class Watched(Admission):
    """Notes what it is told of the connections that it has admitted."""

    def __init__(self, limits: AdmissionLimits) -> None:
        super().__init__(limits)
        self.told: list[str] = []

    def handshake_failed(self, address: str, now: float) -> None:
        self.told.append(f"{address} failed")
        super().handshake_failed(address, now)

    def handshake_succeeded(self, address: str) -> None:
        self.told.append(f"{address} succeeded")
        super().handshake_succeeded(address)

    def connection_ended(self, address: str, seconds: float) -> None:
        self.told.append(f"{address} ended")
        super().connection_ended(address, seconds)

    def release(self, address: str) -> None:
        self.told.append(f"{address} left")
        super().release(address)


@dataclass
class World:
    """A host and what is around it."""

    limits: HostLimits
    metrics: GatewayMetrics = field(default_factory=GatewayMetrics)
    told: Told = field(default_factory=Told)
    later: Later = field(default_factory=Later)
    silent: Silent = field(default_factory=Silent)
    more: Mapping[str, MakeHandler] = field(default_factory=dict)
    port: int = 0
    websocket_port: int = 0

    def __post_init__(self) -> None:
        self.admission = Watched(self.limits.admission)
        protocols = {ECHO: requests_to(Echo()), LATER: requests_to(self.later), SILENT: requests_to(self.silent)}
        protocols |= self.more
        protocols |= own_protocols(identity(LISTENER), lambda: [OUR_ADDRESS], protocols)
        self.host = Host(noise_keys(LISTENER), protocols, self.admission, self.limits, self.metrics, self.told)

    def port_of(self, kind: str) -> int:
        return self.port if kind == "tcp" else self.websocket_port

    def endings(self) -> dict[str, int]:
        """How many connections we have ended, by reason."""
        return {each.value: count for each in Ending if (count := int(self.metrics.endings[each.value].value))}


@contextlib.asynccontextmanager
async def running_host(
    limits: HostLimits | None = None, more: Mapping[str, MakeHandler] | None = None
) -> AsyncIterator[World]:
    """A host that listens on both kinds of sockets, without limits of admission."""
    world = World(limits or HostLimits(admission=NO_LIMITS), more=more or {})
    world.port = await world.host.listen("127.0.0.1", 0)
    world.websocket_port = await world.host.listen_websocket("127.0.0.1", 0)
    try:
        yield world
    finally:
        await world.host.stop()
