"""Peers that the operator has named may send their whole pool in one packet, as Go nodes do: with a daemon."""

import asyncio
import contextlib
import random
import socket
import sqlite3
import time
from pathlib import Path

import pytest

from mailserver.codec import snappy
from mailserver.codec.keccak import keccak256
from mailserver.codec.keys import Enode
from mailserver.errors import DisconnectReason
from mailserver.rlpx.framing import HEADER_BYTES
from mailserver.store.sqlite.schema import STORE_FILE
from mailserver.waku.envelope import MAX_ENVELOPES_PER_LONG_PACKET, encode_envelope, encode_envelopes
from mailserver.waku.packets import MAX_LONG_PACKET_BYTES, MAX_RECEIVED_PACKET_BYTES, PacketCode
from tests.integration.daemons import Daemon, running_daemon
from tests.integration.peers import Peers
from tests.mailservers import NEWS
from tests.pairs import private_key
from tests.raw_peer import WAKU_OFFSET, RawPeer
from tests.waiting import DEADLINE_S, until

pytestmark = pytest.mark.integration

POOL = 9_000
MEMORY_MIB = 150
"""What one long packet may add to a daemon's memory: frame and message, and its envelopes on their way to the disk."""

ANY_POW = ("--min-pow", "0", "--sync-days", "0")


def named(*names: str) -> str:
    """Enodes of peers that nobody reaches: they come by themselves."""
    return ",".join(f"enode://{private_key(name).public_key.hex()}@127.0.0.1:1" for name in names)


def pool(count: int = POOL, *, first: int = 0, data_bytes: int = 600) -> bytes:
    """A packet of so many envelopes that compression makes no shorter."""
    now, rng = int(time.time()), random.Random(first)
    raws = [
        encode_envelope(now + 50, 50, NEWS, rng.randbytes(data_bytes), number).raw
        for number in range(first, first + count)
    ]
    return encode_envelopes(raws)


def stored(daemon: Daemon) -> int:
    """How many envelopes are in the store."""
    with contextlib.closing(sqlite3.connect(daemon.data_dir / STORE_FILE)) as store:
        ((count,),) = store.execute("SELECT count(*) FROM envelopes")
    return int(count)


async def hear_confirmed(raw: RawPeer, payload: bytes) -> None:
    """Wait until a packet is confirmed, by the hash of its payload, with nothing refused."""
    response, acknowledged = await raw.hear_confirmation()
    assert response.payload[-1:] == b"\xc0"
    assert acknowledged.payload == b"\xa0" + keccak256(payload)


def peak_mib(daemon: Daemon) -> float:
    """How much memory the daemon has taken at most."""
    status = Path(f"/proc/{daemon.process.pid}/status").read_text()
    (line,) = [line for line in status.splitlines() if line.startswith("VmHWM")]
    return int(line.split()[1]) / 1024


async def test_whole_pool_of_a_static_peer_is_stored_and_that_of_a_stranger_refused(
    tmp_path: Path, peers: Peers
) -> None:
    payload = pool()
    assert len(payload) > 3 * MAX_RECEIVED_PACKET_BYTES
    with running_daemon(tmp_path, "--static-peers", named("static"), *ANY_POW) as daemon:
        stranger = await peers.join(daemon, "stranger")
        stranger.write(stranger.packet(PacketCode.MESSAGES, payload)[:HEADER_BYTES])
        assert await stranger.hear_hangup() is DisconnectReason.PROTOCOL_BREACH

        static = await peers.join(daemon, "static")
        static.say(PacketCode.MESSAGES, payload)

        await hear_confirmed(static, payload)
        assert stored(daemon) == POOL
        one_more = pool(1, first=POOL)
        static.say(PacketCode.MESSAGES, one_more)  # it is served on
        await hear_confirmed(static, one_more)
        assert stored(daemon) == POOL + 1


async def test_pool_of_a_peer_that_we_have_dialled_is_stored(tmp_path: Path) -> None:
    payload = pool(3_000)
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        enode = Enode(private_key("server").public_key, *server.getsockname())
        with running_daemon(tmp_path, "--static-peers", str(enode), *ANY_POW) as daemon:
            end, _ = await asyncio.wait_for(asyncio.get_running_loop().sock_accept(server), DEADLINE_S)
            raw = await (await RawPeer.accept(end)).greet()

            raw.say(PacketCode.MESSAGES, payload)

            await hear_confirmed(raw, payload)
            assert stored(daemon) == 3_000
            await raw.close()


async def test_second_named_peer_waits_for_the_long_packet_of_the_first(tmp_path: Path, peers: Peers) -> None:
    payloads = pool(3_000), pool(3_000, first=3_000)
    with running_daemon(tmp_path, "--trusted-peers", named("first", "second"), *ANY_POW) as daemon:
        first, second = await peers.join(daemon, "first"), await peers.join(daemon, "second")
        frame = first.packet(PacketCode.MESSAGES, payloads[0])
        first.write(frame[:-1])
        await first.writer.drain()
        await until(lambda: first.writer.transport.get_write_buffer_size() == 0)

        second.say(PacketCode.MESSAGES, payloads[1])
        stranger = await peers.join(daemon, "stranger")
        others = pool(10, first=10_000)
        stranger.say(PacketCode.MESSAGES, others)
        await hear_confirmed(stranger, others)  # it waits for nobody
        assert stored(daemon) == 10

        first.write(frame[-1:])
        await hear_confirmed(first, payloads[0])
        await hear_confirmed(second, payloads[1])

        assert stored(daemon) == 6_010


async def test_memory_is_bounded_whatever_named_peers_send(tmp_path: Path, peers: Peers) -> None:
    names = [f"bomber {number}" for number in range(8)]
    bomb = snappy.compress(bytes(MAX_LONG_PACKET_BYTES))
    largest = pool(24_000, data_bytes=650)
    with running_daemon(tmp_path, "--trusted-peers", named("client", *names), *ANY_POW) as daemon:
        bombers = [await peers.join(daemon, name) for name in names]
        await peers.join(daemon, "stranger")
        before = peak_mib(daemon)

        for raw in bombers:
            raw.write(raw.frame_of(bytes([WAKU_OFFSET + PacketCode.MESSAGES]) + bomb))
        for raw in bombers:
            assert await raw.hear_hangup() is DisconnectReason.SUBPROTOCOL_ERROR
        client = await peers.join(daemon, "client")
        client.say(PacketCode.MESSAGES, largest)
        await hear_confirmed(client, largest)

        assert stored(daemon) == 24_000
        assert peak_mib(daemon) - before < MEMORY_MIB


@pytest.mark.parametrize("kind", ["bytes", "envelopes"])
async def test_packet_that_is_too_long_even_for_a_named_peer_is_told_once(
    tmp_path: Path, peers: Peers, kind: str
) -> None:
    too_long = {
        "bytes": snappy.compress(bytes(MAX_LONG_PACKET_BYTES + 1)),
        "envelopes": snappy.compress(pool(MAX_ENVELOPES_PER_LONG_PACKET + 1, data_bytes=16)),
    }[kind]
    with running_daemon(tmp_path, "--static-peers", named("static"), *ANY_POW) as daemon:
        for _ in range(2):
            static = await peers.join(daemon, "static")
            static.write(static.frame_of(bytes([WAKU_OFFSET + PacketCode.MESSAGES]) + too_long))
            await static.hear_hangup()

        daemon.wait_for_line("packet of a named peer is too long")
        assert "fetched=no" in daemon.log
        assert daemon.log.count("packet of a named peer is too long") == 1


async def test_static_peer_that_is_too_long_is_asked_for_what_it_has(tmp_path: Path, peers: Peers) -> None:
    too_long = snappy.compress(bytes(MAX_LONG_PACKET_BYTES + 1))
    with running_daemon(tmp_path, "--static-peers", named("static"), *ANY_POW, "--sync-days", "1") as daemon:
        static = await peers.join(daemon, "static")
        static.write(static.frame_of(bytes([WAKU_OFFSET + PacketCode.MESSAGES]) + too_long))
        await static.hear_hangup()

        assert "fetched=yes" in daemon.wait_for_line("packet of a named peer is too long")
        daemon.wait_for_line("catch-up waits")  # it was dialled, and is not there
