"""What attacks are made of: sockets from many addresses, handshakes recorded beforehand, peers that say any bytes.

All are cheap for the attacker: what can be prepared is, and the same bytes are used again and again.
"""

import asyncio
import contextlib
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable

from bench.addresses import address
from mailserver.codec.keys import Enode
from mailserver.errors import DecodeError
from mailserver.rlpx import p2p
from mailserver.rlpx.handshake import Initiator
from mailserver.waku.packets import PacketCode
from tests.faults.peers.attacker import Target
from tests.pairs import entropy, private_key
from tests.raw_peer import DEPLOYED_STATUS, Hangup, RawPeer

IP_BIND_ADDRESS_NO_PORT = 24
"""linux/in.h: the port is chosen at connect(), when both ends are known; else 28,000 connections use them up."""

CONNECT_TIMEOUT_S = 5.0
AT_ONCE = 50
"""So many connections does `crowd` make at a time."""


async def connected(enode: Enode, source: str, *, receive_bytes: int | None = None) -> socket.socket:
    """Connect a socket.

    Args:
        source: the address to come from.
        receive_bytes: the size of its receive buffer, and so of its window; None: as usual.
    Raises:
        OSError: nobody answers (TimeoutError: within CONNECT_TIMEOUT_S).
    """
    sock = socket.socket()
    try:
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, 1)
        if receive_bytes is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        sock.bind((source, 0))
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            await asyncio.get_running_loop().sock_connect(sock, (enode.host, enode.port))
    except BaseException:
        sock.close()
        raise
    return sock


def recorded_auth(enode: Enode, name: str = "intruder") -> bytes:
    """An auth packet as it was once sent: to make it takes a key, to send it again does not."""
    return Initiator(private_key(name), enode.node_id, entropy(name)).auth


async def join(target: Target, number: int, *, source: str | None = None, receive_bytes: int | None = None) -> RawPeer:
    """Be a peer whose handshake is over, up to Status.

    Raises:
        Hangup, OSError: the mailserver does not want us.
    """
    sock = await connected(target.enode, source or address(number), receive_bytes=receive_bytes)
    peer = await RawPeer.dial(sock, target.enode.node_id, name=f"intruder {target.seed} {number}")
    try:
        peer.write(peer.hello())
        first = await peer.hear()
        if first.message_id != p2p.MessageId.HELLO:
            raise Hangup(p2p.decode_disconnect(first.payload))
        peer.compressed = True
        peer.say(PacketCode.STATUS, DEPLOYED_STATUS)
        await peer.hear_packet()
    except DecodeError as error:  # a Disconnect that is not compressed
        peer.writer.transport.abort()
        raise Hangup(None) from error
    except BaseException:
        peer.writer.transport.abort()
        raise
    return peer


Make = Callable[[int], Awaitable[RawPeer]]


@contextlib.asynccontextmanager
async def crowd(make: Make, numbers: Iterable[int]) -> AsyncIterator[list[RawPeer]]:
    """Many peers; who is refused is left out. They go away at the end, without a word."""
    peers: list[RawPeer] = []
    gate = asyncio.Semaphore(AT_ONCE)

    async def one(number: int) -> None:
        async with gate:
            with contextlib.suppress(Hangup, OSError):
                peers.append(await make(number))

    try:
        await asyncio.gather(*map(one, numbers))
        yield peers
    finally:
        for peer in peers:
            peer.writer.transport.abort()


def hang_up(sock: socket.socket) -> None:
    """Close with a reset, so that neither end has anything left to do."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()


async def gone(peer: RawPeer) -> bool:
    """Wait until the mailserver has ended the connection; whether it has."""
    try:
        while True:
            await peer.hear_packet()
    except (Hangup, DecodeError):
        return True
    except TimeoutError:
        return False
    finally:
        peer.writer.transport.abort()
