"""Peers of daemons: dialled by a test, gone at its end."""

from tests.integration.daemons import Daemon
from tests.raw_peer import DEPLOYED_STATUS, RawPeer


class Peers:
    """Dials daemons; at the end of the test, whoever is still connected goes away."""

    def __init__(self) -> None:
        self._raws: list[RawPeer] = []

    async def dial(self, daemon: Daemon, name: str = "client") -> RawPeer:
        """Connect and do the key exchange."""
        enode = daemon.enode
        self._raws.append(await RawPeer.dial((enode.host, enode.port), enode.node_id, name=name))
        return self._raws[-1]

    async def join(self, daemon: Daemon, name: str = "client", status: bytes = DEPLOYED_STATUS) -> RawPeer:
        """The same with Hello and Status."""
        return await (await self.dial(daemon, name)).greet(status=status)

    async def close(self) -> None:
        """Whoever is still there goes away without a word."""
        for raw in self._raws:
            await raw.close()
