"""Peers of daemons: dialled by a test, gone at its end."""

import asyncio
import socket

from tests.integration.daemons import Daemon
from tests.raw_peer import DEPLOYED_STATUS, RawPeer


class Peers:
    """Dials daemons; at the end of the test, whoever is still connected goes away."""

    def __init__(self) -> None:
        self._raws: list[RawPeer] = []

    async def dial(self, daemon: Daemon, name: str = "client", *, source: str = "") -> RawPeer:
        """Connect and do the key exchange.

        Args:
            source: our address, of loopback; "": any.
        """
        enode = daemon.enode
        target: tuple[str, int] | socket.socket = (enode.host, enode.port)
        if source:
            target = await connected_from(source, (enode.host, enode.port))
        self._raws.append(await RawPeer.dial(target, enode.node_id, name=name))
        return self._raws[-1]

    async def join(
        self, daemon: Daemon, name: str = "client", status: bytes = DEPLOYED_STATUS, *, source: str = ""
    ) -> RawPeer:
        """The same with Hello and Status."""
        return await (await self.dial(daemon, name, source=source)).greet(status=status)

    async def close(self) -> None:
        """Whoever is still there goes away without a word."""
        for raw in self._raws:
            await raw.close()


async def connected_from(source: str, address: tuple[str, int]) -> socket.socket:
    """A socket that is connected to an address from one of ours."""
    end = socket.socket()
    try:
        end.setblocking(False)
        end.bind((source, 0))
        await asyncio.get_running_loop().sock_connect(end, address)
    except BaseException:
        end.close()
        raise
    return end
