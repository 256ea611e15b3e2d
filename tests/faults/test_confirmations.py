"""Confirmed means on disk, shown from the system calls of the real daemon: never from what its code says."""

import asyncio
import contextlib
import random
import shutil
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from bench.data import envelope
from bench.wire import Wire, connect
from mailserver.codec.keccak import keccak256
from mailserver.codec.keys import Enode
from mailserver.errors import ConnectionLost
from mailserver.store.sqlite.schema import STORE_FILE
from mailserver.waku.envelope import Topic, encode_envelopes
from mailserver.waku.packets import PacketCode, decode_batch_acknowledged
from tests.faults.kills.wreck import rows_of
from tests.faults.tracing import (
    CARELESS,
    Call,
    Confirmed,
    killed_at,
    read_trace,
    stop_traced,
    traced_daemon,
    unsafe_confirmation,
    unsafe_entries,
    unsafe_renames,
)
from tests.integration.daemons import DEADLINE_S, running_daemon

pytestmark = pytest.mark.integration

TOPIC = Topic(b"\x01\x02\x03\x04")
MAX_SYNCS = 6
"""By then a daemon has written the first envelope."""

MARGIN_S = 0.002
"""Between the answer to one packet and the next one: what strace says of the time is of its own process."""


def packet(name: str, size: int) -> tuple[bytes, tuple[str, ...]]:
    """The payload of a Messages packet, and the text that is in each of its envelopes."""
    rng, marks = random.Random(name), tuple(f"<{name} {number:03}>" for number in range(size))
    return encode_envelopes([envelope(int(time.time()), TOPIC, rng, mark.encode()) for mark in marks]), marks


class Client:
    """Posts one packet after another on one connection."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._acknowledged: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        wire.on_packet = self._on_packet
        wire.on_lost = self._on_lost

    async def post(self, payload: bytes, marks: tuple[str, ...]) -> Confirmed:
        """Send a packet and wait for its confirmation."""
        self._acknowledged = asyncio.get_running_loop().create_future()
        port = self._wire.transport.get_extra_info("sockname")[1]
        await asyncio.sleep(MARGIN_S)
        sent_at = time.time()
        self._wire.send(PacketCode.MESSAGES, payload)
        self._wire.flush()
        async with asyncio.timeout(DEADLINE_S):
            assert await self._acknowledged == keccak256(payload)
        return Confirmed(port, marks, sent_at, time.time())

    def _on_packet(self, code: int, payload: bytes) -> None:
        if code == PacketCode.BATCH_ACKNOWLEDGED and not self._acknowledged.done():
            self._acknowledged.set_result(decode_batch_acknowledged(payload))

    def _on_lost(self, error: ConnectionLost) -> None:
        if not self._acknowledged.done():
            self._acknowledged.set_exception(error)


async def post_all(enode: Enode, name: str, sizes: Sequence[int]) -> list[Confirmed]:
    """Post packets of these sizes over one connection, one after another."""
    async with connect(enode) as (wire, _):
        client = Client(wire)
        return [await client.post(*packet(f"{name} {number}", size)) for number, size in enumerate(sizes)]


async def post_at_once(enode: Enode, connections: int, sizes: Sequence[int]) -> list[Confirmed]:
    """Post over several connections at once."""
    posted = await asyncio.gather(*(post_all(enode, f"peer {number}", sizes) for number in range(connections)))
    return [confirmed for each in posted for confirmed in each]


def found_unsafe(calls: Sequence[Call], data_dir: Path, confirmed: Sequence[Confirmed]) -> list[str]:
    log = data_dir / f"{STORE_FILE}-wal"
    return [why for each in confirmed if (why := unsafe_confirmation(calls, log, each)) is not None]


def test_each_packet_is_confirmed_only_after_its_envelopes_were_synced(tmp_path: Path) -> None:
    with traced_daemon(tmp_path / "data", tmp_path / "trace") as daemon:
        confirmed = asyncio.run(post_all(daemon.enode, "alone", (1, 10, 100, 1, 1)))
        confirmed += asyncio.run(post_at_once(daemon.enode, 6, (1, 10, 1, 30, 1, 1)))

    assert len(confirmed) == 5 + 36
    assert found_unsafe(read_trace(tmp_path / "trace"), tmp_path / "data", confirmed) == []


def test_daemon_that_does_not_sync_is_found_out(tmp_path: Path) -> None:
    with traced_daemon(tmp_path / "data", tmp_path / "trace", program=CARELESS) as daemon:
        confirmed = asyncio.run(post_all(daemon.enode, "alone", (1, 10)))

    found = found_unsafe(read_trace(tmp_path / "trace"), tmp_path / "data", confirmed)
    assert found == [
        "<alone 0 000> was confirmed before it was synced",
        "<alone 1 000> was confirmed before it was synced",
    ]


def test_names_of_new_files_and_folders_are_on_disk_before_anything_is_confirmed(tmp_path: Path) -> None:
    data_dir = tmp_path / "new" / "data"

    with traced_daemon(data_dir, tmp_path / "trace") as daemon:
        (confirmed,) = asyncio.run(post_all(daemon.enode, "first", (1,)))

    calls = read_trace(tmp_path / "trace")
    before = next(call.began for call in calls if call.is_send and call.time > confirmed.sent_at)
    unsafe = unsafe_entries(calls, data_dir, before)
    # Not worth a sync: a lock says nothing when nobody holds it, and the index of the log is made from the log.
    assert {Path(path).name for path in unsafe} <= {"lock", f"{STORE_FILE}-shm"}
    assert [
        path for path in unsafe if path.startswith(str(data_dir / STORE_FILE)) and path.endswith(("db", "wal"))
    ] == []


def test_small_files_are_synced_before_they_take_their_place_and_their_folder_after(tmp_path: Path) -> None:
    data_dir = tmp_path / "data"

    with traced_daemon(data_dir, tmp_path / "trace"):
        pass

    calls = read_trace(tmp_path / "trace")
    renamed = {Path(call.paths[1]).name for call in calls if call.name == "rename" and str(data_dir) in call.paths[1]}
    assert renamed >= {"nodekey", "enode", "sync.json"}
    assert unsafe_renames(calls, data_dir) == []


def test_what_was_written_and_not_synced_before_a_kill_is_synced_before_it_is_confirmed(tmp_path: Path) -> None:
    payload, marks = packet("again", 1)
    data_dir = kill_before_sync(tmp_path, payload, marks[0])

    with traced_daemon(data_dir, tmp_path / "trace") as daemon:
        confirmed = asyncio.run(post_again(daemon.enode, payload, marks))

    calls = read_trace(tmp_path / "trace")
    log = str(data_dir / f"{STORE_FILE}-wal")
    sent = next(call.began for call in calls if call.is_send and call.time > confirmed.sent_at)
    assert any(call.is_sync and call.on == log and call.ended < sent for call in calls)


def kill_before_sync(folder: Path, payload: bytes, mark: str) -> Path:
    """A data directory whose daemon was killed when an envelope was in the log, and not synced: at one of its syncs."""
    with running_daemon(folder / "made") as daemon:
        daemon.stop()
    for number in range(3, MAX_SYNCS + 1):  # before them, those of the log's header and of the folder
        data_dir = folder / f"killed-{number}"
        shutil.copytree(folder / "made", data_dir, ignore=shutil.ignore_patterns("control"))
        with running_daemon(data_dir, program=killed_at("fdatasync", number)) as daemon:
            # Some syncs are of other moments, such as a record's: it may be killed before it takes the connection.
            with contextlib.suppress(ConnectionLost, ConnectionError):
                asyncio.run(post_again(daemon.enode, payload, ()))
            stop_traced(daemon)
        if any(mark.encode() in row.raw for row in rows_of(data_dir / STORE_FILE)):
            return data_dir
    raise AssertionError(f"it was not written before the daemon's sync {MAX_SYNCS}")


async def post_again(enode: Enode, payload: bytes, marks: tuple[str, ...]) -> Confirmed:
    async with connect(enode) as (wire, _):
        return await Client(wire).post(payload, marks)
