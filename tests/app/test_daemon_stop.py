"""mailserver.app.daemon: how it stops, whoever is connected."""

import asyncio
import contextlib
import signal
import socket
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import uvloop

from mailserver.errors import DisconnectReason
from mailserver.rlpx import p2p
from mailserver.store.sqlite.schema import STORE_FILE
from mailserver.store.sqlite.store import open_store
from mailserver.waku.packets import PacketCode
from tests.app.daemons import STOP_WITHIN_S, clear_request, fresh, running
from tests.mailservers import fill, make_large_envelopes
from tests.raw_peer import at_end, close_stream, open_stream
from tests.waiting import turns, until

pytestmark = pytest.mark.integration


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_signal_says_goodbye_to_every_peer_and_ends_the_daemon(tmp_path: Path, number: signal.Signals) -> None:
    async with running(tmp_path) as daemon:
        raws = [await (await daemon.dial(f"client {n}")).greet() for n in range(3)]

        stopping = asyncio.create_task(daemon.stop(number))
        reasons = [await raw.hear_hangup() for raw in raws]
        for raw in raws:
            await raw.close()

        assert reasons == [DisconnectReason.CLIENT_QUITTING] * 3
        assert await stopping < STOP_WITHIN_S


async def test_stop_without_peers_is_quick(tmp_path: Path) -> None:
    async with running(tmp_path) as daemon:
        assert await daemon.stop() < 1.0


async def test_strangers_and_peers_that_do_not_leave_do_not_hold_the_stop_up(tmp_path: Path) -> None:
    async with running(tmp_path) as daemon:
        streams = [await open_stream((daemon.enode.host, daemon.enode.port)) for _ in range(3)]
        raws = [await (await daemon.dial(f"client {n}")).greet() for n in range(2)]
        await until(lambda: len(asyncio.all_tasks()) > 5)

        assert await daemon.stop() < STOP_WITHIN_S

        for reader, writer in streams:
            assert await at_end(reader)
            await close_stream(writer)
        for raw in raws:
            assert await raw.hear_hangup() is DisconnectReason.CLIENT_QUITTING
            await raw.close()


async def test_peer_that_reads_nothing_does_not_hold_the_stop_up(tmp_path: Path) -> None:
    async with open_store(tmp_path / STORE_FILE) as store:
        await fill(store, make_large_envelopes(100, 100_000))

    async with running(tmp_path) as daemon:
        stuck = await (await daemon.dial("stuck")).greet()
        other = await (await daemon.dial("other")).greet()
        stuck.say(PacketCode.P2P_REQUEST, clear_request())
        await stuck.hear_packet()

        stopping = asyncio.create_task(daemon.stop())
        reason = await other.hear_hangup()
        await other.close()

        assert await stopping < STOP_WITHIN_S
        assert reason is DisconnectReason.CLIENT_QUITTING


async def test_what_was_received_is_confirmed_before_the_goodbye(tmp_path: Path) -> None:
    async with running(tmp_path) as daemon:
        raw = await (await daemon.dial()).greet()
        payload = fresh()
        async with _write_lock(tmp_path):
            raw.say(PacketCode.MESSAGES, payload)
            raw.write(raw.frame(p2p.MessageId.PING, p2p.EMPTY_PAYLOAD))
            await raw.hear()
            stopping = asyncio.create_task(daemon.stop())
            await turns(20)

        heard = await raw.hear_packets(2)
        assert [packet.code for packet in heard] == [PacketCode.MESSAGE_RESPONSE, PacketCode.BATCH_ACKNOWLEDGED]
        assert await raw.hear_hangup() is DisconnectReason.CLIENT_QUITTING
        await raw.close()
        assert await stopping < STOP_WITHIN_S


@contextlib.asynccontextmanager
async def _write_lock(data_dir: Path) -> AsyncIterator[None]:
    """Keep the store from writing, as another process could."""
    connection = sqlite3.connect(data_dir / STORE_FILE, isolation_level=None, check_same_thread=False)
    try:
        await asyncio.to_thread(connection.execute, "BEGIN IMMEDIATE")  # it waits for a commit under way
        yield
    finally:
        connection.close()


@pytest.mark.parametrize("moment", range(4))
def test_strangers_that_arrive_at_the_moment_of_the_stop_do_not_hold_it_up(tmp_path: Path, moment: int) -> None:
    # On the loop that runs in production: asyncio's own, up to Python 3.11, fails itself on a connection that it has
    # accepted and not yet set up when the server closes.
    uvloop.run(_stop_among_strangers(tmp_path, moment), debug=True)


async def _stop_among_strangers(tmp_path: Path, moment: int) -> None:
    async with running(tmp_path) as daemon:
        with contextlib.ExitStack() as stack:
            for _ in range(10):
                stack.enter_context(socket.create_connection((daemon.enode.host, daemon.enode.port)))
            await turns(moment)

            assert await daemon.stop() < STOP_WITHIN_S


async def test_daemon_leaves_no_tasks_behind(tmp_path: Path) -> None:
    before = asyncio.all_tasks()

    async with running(tmp_path) as daemon:
        raw = await (await daemon.dial()).greet()
        idle = len(asyncio.all_tasks())
        await raw.close()
        await until(lambda: len(asyncio.all_tasks()) < idle)

    await until(lambda: asyncio.all_tasks() == before)
