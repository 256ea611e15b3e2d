"""Bombs: packets that take much more to open, or to decode, than to send. Each ends its connection."""

import asyncio
import contextlib
from collections.abc import Iterator, Mapping

from bench.addresses import address
from mailserver.codec import rlp, snappy
from mailserver.codec.ecies import seal
from mailserver.codec.rlp import MAX_ITEMS
from mailserver.rlpx.handshake import MAX_HANDSHAKE_PACKET_BYTES, SIZE_PREFIX_BYTES
from mailserver.rlpx.p2p import MAX_P2P_MESSAGE_BYTES
from mailserver.waku.packets import MAX_RECEIVED_PACKET_BYTES, PacketCode
from tests.faults.peers.attacker import Target
from tests.faults.peers.harness import Scenario
from tests.faults.peers.intruder import connected, gone, hang_up, join
from tests.faults.report import Figure
from tests.pairs import private_key
from tests.raw_peer import WAKU_OFFSET, Hangup, RawPeer

_MESSAGES = WAKU_OFFSET + PacketCode.MESSAGES


def _varint(value: int) -> bytes:
    """A length as Snappy announces it: seven bits a byte, the lowest first."""
    data = bytearray()
    while value >= 0x80:
        data.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*data, value])


SNAPPY_BOMBS = {
    "announces 16 MiB": snappy.compress(bytes(16 << 20)),
    "announces 16 MiB and has nothing": _varint(16 << 20),
    "announces 4 GiB": _varint((1 << 32) - 1) + b"\x00",
    "announces more than 4 GiB": _varint(1 << 40) + b"\x00",
    "inflates to more than it announces": _varint(10) + snappy.compress(bytes(MAX_RECEIVED_PACKET_BYTES))[3:],
    "inflates to less": _varint(MAX_RECEIVED_PACKET_BYTES) + b"\x00a",
    "copies from before its start": _varint(100) + b"\x00a" + b"\xfe\xff\xff",
}
"""Data fields of frames."""


def _nested(depth: int) -> bytes:
    """A list in a list in a list."""
    data = b"\xc0"
    for _ in range(depth):
        data = _list_header(len(data)) + data
    return data


def _list_header(length: int) -> bytes:
    if length <= 55:
        return bytes([0xC0 + length])
    size = rlp.encode_uint(length)
    return bytes([0xF7 + len(size)]) + size


def rlp_bombs(size: int) -> dict[str, bytes]:
    """Payloads of at most so many bytes."""
    body = size - 9
    return {
        "nested as deep as there is room": b"\xc1" * (size - 1) + b"\xc0",
        "lists within lists": _nested(min(size // 5, 5000)),
        "as many empty lists as there is room": _list_header(body) + b"\xc0" * body,
        "as many empty strings as there is room": _list_header(body) + b"\x80" * body,
        "as many items as are walked through": _list_header(min(body, MAX_ITEMS)) + b"\xc0" * min(body, MAX_ITEMS),
        "a string that says 2^64 bytes": b"\xbf" + b"\xff" * 8,
        "a list that says 2^64 bytes": b"\xff" + b"\xff" * 8,
        "a list that says 1 byte more than there is": _list_header(101) + b"\x80" * 100,
        "a length of zeros": b"\xff" + bytes(8),
    }


async def snappy_bombs(target: Target) -> Mapping[str, Figure]:
    """Each Snappy bomb, with each packet code and as a Ping."""
    ids = [2, 3, *(WAKU_OFFSET + code for code in PacketCode), WAKU_OFFSET + 127]
    return await _send_all(target, [bytes([message_id]) + bomb for message_id in ids for bomb in SNAPPY_BOMBS.values()])


async def rlp_bombs_in_packets(target: Target) -> Mapping[str, Figure]:
    """Each RLP bomb, with each packet code that is decoded; compressed they are short."""
    bombs = [snappy.compress(bomb) for bomb in rlp_bombs(MAX_RECEIVED_PACKET_BYTES).values()]
    return await _send_all(target, [bytes([WAKU_OFFSET + code]) + bomb for code in DECODED for bomb in bombs])


DECODED = (
    PacketCode.STATUS_UPDATE,
    PacketCode.MESSAGES,
    PacketCode.MESSAGE_RESPONSE,
    PacketCode.BATCH_ACKNOWLEDGED,
    PacketCode.P2P_MESSAGE,
)


async def _send_all(target: Target, bodies: list[bytes]) -> Mapping[str, Figure]:
    """Each by a peer of its own, which must be disconnected for it."""
    if target.is_quick:
        bodies = bodies[:: max(1, len(bodies) // 25)]
    sent = refused = 0
    async with asyncio.timeout(None):
        began = asyncio.get_running_loop().time()
        while not sent or asyncio.get_running_loop().time() - began < target.seconds:
            for number, body in enumerate(bodies):
                with contextlib.suppress(OSError, Hangup):
                    peer = await join(target, number)
                    peer.write(peer.frame_of(body))
                    sent += 1
                    refused += await gone(peer)
            if target.is_quick:
                break
    return {"sent": sent, "refused": refused}


async def handshake_bombs(target: Target) -> Mapping[str, Figure]:
    """RLP bombs in auth, sealed as they should be, and in Hello and Disconnect."""
    sent = refused = 0
    bombs = [
        *rlp_bombs(MAX_HANDSHAKE_PACKET_BYTES - SIZE_PREFIX_BYTES - 113).values(),
        bytes(MAX_HANDSHAKE_PACKET_BYTES - SIZE_PREFIX_BYTES - 113),
    ]
    for number, bomb in enumerate(bombs):
        size = (len(bomb) + 113).to_bytes(SIZE_PREFIX_BYTES, "big")
        key, iv = private_key(f"bomb {number}"), bytes(16)
        auth = size + seal(target.enode.node_id, bomb, ephemeral_key=key, iv=iv, authdata=size)
        sock = await connected(target.enode, address(number))
        loop = asyncio.get_running_loop()
        await loop.sock_sendall(sock, auth)
        sent += 1
        with contextlib.suppress(OSError):
            async with asyncio.timeout(5.0):
                refused += await loop.sock_recv(sock, 1) == b""
        hang_up(sock)
    for number, bomb in enumerate(rlp_bombs(MAX_P2P_MESSAGE_BYTES).values()):
        for message_id in (0x80, 1):  # Hello, Disconnect
            sock = await connected(target.enode, address(number))
            peer = await RawPeer.dial(sock, target.enode.node_id, name=f"bomb {number}")
            peer.write(peer.frame_of(bytes([message_id]) + bomb))
            sent += 1
            refused += await _gone_before_hello(peer)
    return {"sent": sent, "refused": refused}


async def _gone_before_hello(peer: RawPeer) -> bool:
    """Wait until the connection has ended, whatever is said before."""
    try:
        while True:
            await peer.hear()
    except Hangup:
        return True
    except TimeoutError:
        return False
    finally:
        peer.writer.transport.abort()


async def bomb_storm(target: Target) -> Mapping[str, Figure]:
    """The RLP bomb that takes longest, as fast as peers from many addresses are let in."""
    items = min(MAX_RECEIVED_PACKET_BYTES - 9, MAX_ITEMS)
    body = bytes([_MESSAGES]) + snappy.compress(_list_header(items) + b"\xc0" * items)
    sent = 0
    began = asyncio.get_running_loop().time()

    async def one(first: int) -> None:
        nonlocal sent
        number = first
        while asyncio.get_running_loop().time() - began < target.seconds:
            with contextlib.suppress(OSError, Hangup):
                peer = await join(target, number % 5000)
                peer.write(peer.frame_of(body))
                sent += 1
                await gone(peer)
            number += 20

    await asyncio.gather(*(one(number) for number in range(20)))
    return {"sent": sent, "per_second": sent / (asyncio.get_running_loop().time() - began)}


def _all_refused(figures: Mapping[str, Figure]) -> Iterator[str]:
    if figures["sent"] != figures["refused"]:
        yield f"{figures['refused']} of {figures['sent']} ended their connection"


SCENARIOS = (
    Scenario("Snappy bombs", snappy_bombs, check=_all_refused),
    Scenario("RLP bombs", rlp_bombs_in_packets, check=_all_refused),
    Scenario("bombs in handshakes", handshake_bombs, check=_all_refused),
    Scenario("bomb storm", bomb_storm),
)
