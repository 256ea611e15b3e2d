"""Disks of the database without any room: that of its tables, or that of its log.

Real ones, small file systems in memory, which takes root. Where a table cannot grow, a statement fails; where the log
cannot, PostgreSQL ends, and has to be started again when there is room. Either way nothing is confirmed that is not
stored, and daemons recover by themselves.
"""

import asyncio
import contextlib
from collections.abc import Iterator
from pathlib import Path

from mailserver.client.mail_client import MailClient, connect
from tests.faults.database.pair import Pair, Stage, paged
from tests.faults.disk import fill_up, small_disk
from tests.faults.disk_client import metrics_port, ready, until_ready
from tests.faults.kills.flood import CLIENT_ID
from tests.integration.daemons import Daemon
from tests.store.postgres.server import FORGETFUL, Server, give_to_server

PACKET = 100
MOST_PACKETS = 40
"""By then, what room there is in files that are there already is used up."""

CONFIRMED_WITHIN_S = 2.0
"""Of a packet that is not confirmed by then, it is taken that it never is."""

PATIENCE_S = 45.0

TABLES_DISK = "16m"
LOG_DISK = "80m"


async def _full_tables(pair: Pair, disk: Path) -> None:
    """The disk of the tables has no room; the log has."""
    ballast = disk / "ballast"
    url = _tablespace(pair, disk / "tables")
    with pair.running(0, url=url) as one, pair.running(1, url=url) as other:
        async with connect(one.enode, CLIENT_ID) as mail:
            pair.blame(await pair.post(mail, pair.envelopes(PACKET)))
            fill_up(ballast)
            await _until_refused(pair, mail)
            await _says(pair, one, "No space left on device")
            for each in (one, other):
                await _serves(pair, each)
        ballast.unlink()
        for each in (one, other):
            await pair.send_again(each)
        await pair.verify((one, other))
        if one.stop() or other.stop():
            pair.blame(["a daemon does not stop in order"])
    pair.check_sound()
    pair.rows(f"DROP SCHEMA {pair.schema} CASCADE")
    pair.rows(f"DROP TABLESPACE {pair.schema}")


def _tablespace(pair: Pair, folder: Path) -> str:
    """Where daemons find the store, so that its tables are in this folder."""
    folder.mkdir()
    give_to_server(folder)
    pair.rows(f"CREATE TABLESPACE {pair.schema} LOCATION '{folder}'")
    return f"{pair.server.url(pair.schema)}&default_tablespace={pair.schema}"


async def _full_log(pair: Pair, ballast: Path, tables: Path) -> None:
    """The disk of the log has no room; that of the tables has."""
    with pair.running(0, url=_tablespace(pair, tables)) as daemon:
        async with connect(daemon.enode, CLIENT_ID) as mail:
            pair.blame(await pair.post(mail, pair.envelopes(PACKET)))
            fill_up(ballast)
            await _until_refused(pair, mail)
        await _says(pair, daemon, "database")
        await asyncio.to_thread(ballast.unlink)
        await _started_again(pair, metrics_port(daemon))
        await pair.send_again(daemon)
        await pair.verify((daemon, daemon))
        if daemon.stop():
            pair.blame(["the daemon does not stop in order"])
    pair.check_sound()


async def _started_again(pair: Pair, port: int) -> None:
    """PostgreSQL recovers, or, if it has tried that before there was room, is started again."""
    async with asyncio.timeout(PATIENCE_S):
        while (await asyncio.to_thread(ready, port))[0] != 200:
            if not pair.server.is_running:
                pair.figures["started_again"] += 1
                await asyncio.to_thread(pair.server.start)
            await asyncio.sleep(0.05)


async def _until_refused(pair: Pair, mail: MailClient) -> None:
    """Post until there is no room: what is confirmed until then is owed."""
    for _ in range(MOST_PACKETS):
        before = pair.promises.packets
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CONFIRMED_WITHIN_S):
                await pair.post(mail, pair.envelopes(PACKET))
        if pair.promises.packets == before:
            pair.figures["refused"] += 1
            return
    pair.blame([f"{MOST_PACKETS} packets are confirmed on a full disk"])


async def _says(pair: Pair, daemon: Daemon, what: str) -> None:
    text = await until_ready(metrics_port(daemon), 503)
    if what not in text:
        pair.blame([f"/ready does not say {what!r}: {text}"])


async def _serves(pair: Pair, daemon: Daemon) -> None:
    """History is served; nothing that is confirmed is missing."""
    async with connect(daemon.enode, CLIENT_ID) as mail:
        served = [(each.hash(), each.raw) for each in await paged([mail])]
    pair.blame(pair.promises.broken_by(served))


def full(stage: Stage, rounds: int) -> None:
    """Fill up the one disk, and the other, in turn."""
    for number in range(rounds):
        mounted = stage.server.folder / f"disk-{number}"
        if number % 2:
            with small_disk(mounted, LOG_DISK) as disk, _server_on(disk) as server:
                pair = stage.pair(f"full disk of the log, round {number}", server=server)
                asyncio.run(_full_log(pair, disk / "ballast", stage.server.folder / f"tables-{number}"))
        else:
            with small_disk(mounted, TABLES_DISK) as disk:
                asyncio.run(_full_tables(stage.pair(f"full disk of the tables, round {number}"), disk))


@contextlib.contextmanager
def _server_on(disk: Path) -> Iterator[Server]:
    settings = {**FORGETFUL, "min_wal_size": "2MB", "max_wal_size": "8MB"}
    server = Server(settings, data=disk / "data", wal_segment_mb=1)
    try:
        server.start()
        yield server
    finally:
        server.remove()


KINDS = {"full disks": full}
