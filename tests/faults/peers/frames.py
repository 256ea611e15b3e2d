"""Attacks with frames: too large, too slow, never read, sent twice."""

import asyncio
import contextlib
import random
import time
from collections.abc import Iterator, Mapping

from bench.addresses import address
from bench.daemon import usage
from bench.history import DAY_S
from mailserver.client.sealing import REQUEST_TOPIC, REQUEST_TTL_S, seal_envelope
from mailserver.codec import snappy
from mailserver.mail.request import MailRequest, RequestId, encode_fields
from mailserver.net.sessions import random_key
from mailserver.rlpx.framing import HEADER_BYTES
from mailserver.waku.bloom import FULL_INTEREST
from mailserver.waku.packets import MAX_RECEIVED_PACKET_BYTES, PacketCode
from tests.faults.peers.attacker import Target
from tests.faults.peers.harness import Scenario
from tests.faults.peers.intruder import connected, crowd, gone, hang_up, join, recorded_auth
from tests.faults.report import Figure
from tests.raw_peer import WAKU_OFFSET, Hangup, RawPeer

LARGEST_FRAME_BYTES = snappy.max_compressed_bytes(MAX_RECEIVED_PACKET_BYTES)
"""What a message of the largest payload may be compressed to. A longer frame is refused by its header."""

ALL_PLACES = 480
"""Nearly as many as there are by default; the honest peers have three."""

MAX_SLOW_MB = 15.0
"""Most memory that peers take of whom a header, but no body has come."""

_TINY_WINDOW_BYTES = 2048
_REQUESTS_PER_S = 20


def _messages(size: int) -> bytes:
    """The body of a frame with Messages, of so many bytes that do not matter."""
    return bytes([WAKU_OFFSET + PacketCode.MESSAGES]) + bytes(size)


async def large_frames(target: Target) -> Mapping[str, Figure]:
    """Peers in nearly all places send the largest frame that is taken, but for its last byte."""
    before = usage(target.pid)
    async with crowd(lambda number: join(target, number), range(60 if target.is_quick else ALL_PLACES)) as peers:
        for peer in peers:
            peer.write(peer.frame_of(_messages(LARGEST_FRAME_BYTES))[:-1])
        await asyncio.sleep(target.seconds)
        grown = usage(target.pid).memory_bytes - before.memory_bytes
    return {"peers": len(peers), "sent_mb": len(peers) * LARGEST_FRAME_BYTES / 1e6, "grown_mb": grown / 1e6}


async def too_large_frames(target: Target) -> Mapping[str, Figure]:
    """Headers that say one byte too much, or 16 MiB: each ends its connection before anything else is read."""
    count, refused = 10 if target.is_quick else 200, 0
    bodies = _messages(LARGEST_FRAME_BYTES + 2), _messages(0xFF_FFFF - 1)  # the longest takes the attacker 0.3 s
    for number in range(count):
        with contextlib.suppress(OSError, Hangup):
            peer = await join(target, number)
            peer.write(peer.frame_of(bodies[number % 10 == 0])[: HEADER_BYTES + 1000])
            refused += await gone(peer)
    return {"sent": count, "refused": refused}


def _all_refused(figures: Mapping[str, Figure]) -> Iterator[str]:
    if figures["sent"] != figures["refused"]:
        yield f"{figures['refused']} of {figures['sent']} were refused"


async def slow_senders(target: Target) -> Mapping[str, Figure]:
    """Peers that send a byte a second: of a header, or of the largest body."""
    before = usage(target.pid)
    async with crowd(lambda number: join(target, number), range(100 if target.is_quick else ALL_PLACES)) as peers:
        joined = usage(target.pid)
        # Never sent as a whole: one encoder's bytes may be cut anywhere.
        frames = [peer.frame_of(_messages(200_000)) for peer in peers]
        for number, (peer, frame) in enumerate(zip(peers, frames, strict=True)):
            if number % 2:
                peer.write(frame[:HEADER_BYTES])
        began, sent = time.perf_counter(), 0
        while time.perf_counter() - began < target.seconds or sent < 2:
            for number, (peer, frame) in enumerate(zip(peers, frames, strict=True)):
                at = HEADER_BYTES * (number % 2) + sent
                peer.write(frame[at : at + 1])
            sent += 1
            await asyncio.sleep(1.0)
        grown = usage(target.pid).memory_bytes - joined.memory_bytes
        kept = usage(target.pid).open_files - before.open_files
    return {"peers": len(peers), "still_there": kept, "grown_mb": grown / 1e6}


def _nothing_taken_beforehand(figures: Mapping[str, Figure]) -> Iterator[str]:
    if float(figures["grown_mb"]) > MAX_SLOW_MB:
        yield f"frames that did not come took {figures['grown_mb']:.0f} MB"


async def slow_readers(target: Target) -> Mapping[str, Figure]:
    """Peers with a tiny window ask for a page of history and for all that is relayed, and read nothing of it."""
    end = target.history_end
    request = MailRequest(RequestId(bytes(32)), end - DAY_S // 2, end, FULL_INTEREST, limit=1000)
    sealed = await seal_envelope(
        encode_fields(request),
        bytes.fromhex(target.request_key),
        REQUEST_TOPIC,
        ttl=REQUEST_TTL_S,
        min_pow=0.0,
        now=int(time.time()),
        signing_key=random_key(),
    )
    count = 20 if target.is_quick else ALL_PLACES
    before = usage(target.pid)

    async def make(number: int) -> RawPeer:
        peer = await join(target, number, receive_bytes=_TINY_WINDOW_BYTES)
        peer.writer.transport.pause_reading()  # type: ignore[attr-defined] # a stream's transport reads
        return peer

    async with crowd(make, range(count)) as peers:
        most = 0
        for peer in peers:  # not all at once: that is another attack
            peer.say(PacketCode.P2P_REQUEST, sealed.raw)
            peer.write(*(peer.frame(2, b"\xc0") for _ in range(10)))  # Pongs, too, want to be read
            most = max(most, usage(target.pid).memory_bytes)
            await asyncio.sleep(1 / _REQUESTS_PER_S)
        await asyncio.sleep(target.seconds)
        most = max(most, usage(target.pid).memory_bytes)
    return {"peers": len(peers), "grown_mb": (most - before.memory_bytes) / 1e6}


async def pings(target: Target) -> Mapping[str, Figure]:
    """Peers in nearly all places send pings, the shortest frames there are, as fast as they are read."""
    count = 60 if target.is_quick else ALL_PLACES
    async with crowd(lambda number: join(target, number), range(count)) as peers:
        floods = [b"".join(peer.frame(2, b"\xc0") for _ in range(_PINGS_EACH)) for peer in peers]
        for peer, flood in zip(peers, floods, strict=True):
            peer.write(flood)
        await asyncio.sleep(target.seconds)
        stayed = sum(not peer.reader.at_eof() for peer in peers)
    return {"peers": len(peers), "pings": len(peers) * _PINGS_EACH, "stayed": stayed}


_PINGS_EACH = 500
"""What each may send within a second, and ten times as much at once."""


async def replayed_handshakes(target: Target) -> Mapping[str, Figure]:
    """A recorded handshake and what followed it, sent again: by who saw it, and has no key."""
    recorded = await _record(target)
    count, sessions = 20 if target.is_quick else 500, 0
    for number in range(count):
        with contextlib.suppress(OSError):
            sock = await connected(target.enode, address(number))
            loop = asyncio.get_running_loop()
            sock.setblocking(False)
            await loop.sock_sendall(sock, recorded)
            heard = b""
            with contextlib.suppress(TimeoutError, OSError):
                async with asyncio.timeout(5.0):
                    while data := await loop.sock_recv(sock, 4096):
                        heard += data
            # An ack and a Hello to the key of whoever was recorded, then a Disconnect, as the frames do not fit.
            sessions += len(heard) > _MOST_HEARD_BYTES
            hang_up(sock)
    return {"sent": count, "refused": count - sessions}


_MOST_HEARD_BYTES = 1024
"""An ack, Hello, and Disconnect; a Status would follow, or a Pong."""


async def _record(target: Target) -> bytes:
    """What a peer says from auth to its first ping, as somebody on the way sees it."""
    said: list[bytes] = [recorded_auth(target.enode, "client")]
    sock = await connected(target.enode, address(1))
    peer = await RawPeer.dial(sock, target.enode.node_id, name="client")
    write = peer.writer.write

    def record(data: bytes) -> None:
        said.append(bytes(data))
        write(data)

    peer.writer.write = record  # type: ignore[method-assign, assignment]
    await peer.greet()
    peer.write(*(peer.frame(2, b"\xc0") for _ in range(20)))
    peer.writer.transport.abort()
    return b"".join(said)


async def replayed_frames(target: Target) -> Mapping[str, Figure]:
    """Frames of a session sent twice within it: each ends the session."""
    count, refused = 20 if target.is_quick else 300, 0
    for number in range(count):
        with contextlib.suppress(OSError, Hangup):
            peer = await join(target, number)
            ping = peer.frame(2, b"\xc0")
            peer.write(ping, ping)
            refused += await gone(peer)
    return {"sent": count, "refused": refused}


async def garbage_frames(target: Target) -> Mapping[str, Figure]:
    """Random bytes where a frame should come, right after the handshake."""
    rng = random.Random(target.seed)
    count, refused = 20 if target.is_quick else 300, 0
    for number in range(count):
        with contextlib.suppress(OSError, Hangup):
            peer = await join(target, number)
            peer.write(rng.randbytes(rng.randrange(HEADER_BYTES, 4096)))
            refused += await gone(peer)
    return {"sent": count, "refused": refused}


SCENARIOS = (
    Scenario("large frames", large_frames),
    Scenario("too large frames", too_large_frames, check=_all_refused),
    Scenario("slow senders", slow_senders, check=_nothing_taken_beforehand),
    Scenario("slow readers", slow_readers),
    Scenario("pings", pings),
    Scenario("replayed handshakes", replayed_handshakes, check=_all_refused),
    Scenario("replayed frames", replayed_frames, check=_all_refused),
    Scenario("garbage frames", garbage_frames, check=_all_refused),
)
