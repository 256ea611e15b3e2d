"""A daemon that is killed or stopped in the middle of its work: what was confirmed is there, and the stop is quick."""

import asyncio
import random
import signal
import socket
import time
from pathlib import Path

import pytest

from mailserver.codec.keys import Enode
from mailserver.errors import DisconnectReason
from mailserver.waku.envelope import encode_envelopes
from mailserver.waku.packets import PacketCode
from tests.integration.conversations import Flood, check_store, clear_request, everything, prepare
from tests.integration.daemons import Daemon, running_daemon
from tests.integration.peers import Peers
from tests.mailservers import make_envelope, make_large_envelopes
from tests.pairs import private_key
from tests.raw_peer import (
    open_stream,
)
from tests.waiting import until

pytestmark = pytest.mark.integration


async def test_nothing_that_was_confirmed_is_lost_by_kill_9(tmp_path: Path, peers: Peers) -> None:
    confirmed: list[bytes] = []

    for round_number in range(5):
        with running_daemon(tmp_path) as daemon:
            floods = [Flood(await peers.join(daemon, f"flood {round_number} {n}")) for n in range(2)]
            await until(lambda: all(flood.confirmed for flood in floods))  # noqa: B023
            at_once = random.uniform(0, 0.3)
            await asyncio.wait([asyncio.create_task(flood.end()) for flood in floods], timeout=at_once)
            daemon.process.send_signal(signal.SIGKILL)
            for flood in floods:
                await flood.end()
                confirmed += flood.confirmed
            assert daemon.wait() == -signal.SIGKILL
        assert check_store(tmp_path) >= len(confirmed)

    with running_daemon(tmp_path) as daemon:
        served = await everything(await peers.join(daemon))
    assert len(served) == len(set(served)) == check_store(tmp_path)
    assert set(confirmed) <= set(served)


async def test_flood_is_stopped_with_a_goodbye_and_nothing_confirmed_is_lost(tmp_path: Path, peers: Peers) -> None:
    confirmed: list[bytes] = []

    for round_number in range(3):
        with running_daemon(tmp_path) as daemon:
            flood = Flood(await peers.join(daemon, f"flood {round_number}"))
            idle = await peers.join(daemon, "idle")
            await until(lambda: len(flood.confirmed) > 500)  # noqa: B023

            stopping = asyncio.create_task(asyncio.to_thread(daemon.stop))
            await flood.end()
            reason = await idle.hear_hangup()
            await idle.close()

            assert await stopping == 0
            assert (flood.reason, reason) == (DisconnectReason.CLIENT_QUITTING, DisconnectReason.CLIENT_QUITTING)
            confirmed += flood.confirmed
        check_store(tmp_path)

    with running_daemon(tmp_path) as daemon:
        served = await everything(await peers.join(daemon))
    assert set(confirmed) <= set(served)


async def test_stop_takes_no_longer_for_a_peer_that_does_not_read(tmp_path: Path, peers: Peers) -> None:
    await prepare(tmp_path, make_large_envelopes(100, 100_000))
    with running_daemon(tmp_path) as daemon:
        stuck = await peers.join(daemon)
        stuck.say(PacketCode.P2P_REQUEST, clear_request())
        await stuck.hear_packet()

        assert await asyncio.to_thread(daemon.stop) == 0


async def test_stop_takes_no_longer_however_many_do_not_listen(tmp_path: Path, peers: Peers) -> None:
    await prepare(tmp_path, make_large_envelopes(100, 100_000))
    source = socket.create_server(("127.0.0.1", 0))
    silent = Enode(private_key("server").public_key, *source.getsockname())  # it accepts, and says nothing
    flags = ("--rpc", "127.0.0.1:0", "--metrics", "127.0.0.1:0", "--trusted-peers", str(silent))
    with source, running_daemon(tmp_path, *flags, "--static-peers", str(silent)) as daemon:
        stuck = [await peers.join(daemon, f"client {number}") for number in range(5)]
        for raw in stuck:
            raw.say(PacketCode.P2P_REQUEST, clear_request())
            await raw.hear_packet()
        lines = [daemon.wait_for_line(f"serving {what} port=") for what in ("JSON-RPC", "metrics")]
        ports = [int(line.partition("port=")[2].split()[0]) for line in lines]
        callers = [socket.create_connection(("127.0.0.1", port)) for port in ports]
        for caller in callers:
            caller.sendall(b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{")
        flood = await peers.join(daemon, "flood")
        for number in range(200):
            flood.say(PacketCode.MESSAGES, encode_envelopes([make_envelope(number, created=int(time.time())).raw]))

        assert await asyncio.to_thread(daemon.stop) == 0

        for caller in callers:
            caller.close()


async def test_stop_amid_strangers_is_quick(tmp_path: Path) -> None:
    for _ in range(3):
        with running_daemon(tmp_path) as daemon:
            arriving = asyncio.create_task(arrive_one_after_another(daemon))
            await asyncio.wait([arriving], timeout=random.uniform(0.05, 0.2))

            assert await asyncio.to_thread(daemon.stop) == 0

            arriving.cancel()
            await asyncio.gather(arriving, return_exceptions=True)


async def arrive_one_after_another(daemon: Daemon) -> None:
    """Connect again and again, as strangers who say nothing."""
    enode = daemon.enode
    writers = []
    try:
        for _ in range(3000):
            _, writer = await open_stream((enode.host, enode.port))
            writers.append(writer)
    except ConnectionError:
        pass
    finally:
        for writer in writers:
            writer.transport.abort()
