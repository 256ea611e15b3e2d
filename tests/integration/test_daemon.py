"""The daemon as a process, and clients on loopback: deployed clients' bytes, history, retention, leaks."""

import asyncio
import contextlib
import json
import os
import signal
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from mailserver.client.mail_client import connect
from mailserver.client.sealing import seal_envelope
from mailserver.codec import rlp
from mailserver.handoff.archived import Archived
from mailserver.mail.request import MailRequest, RequestId, decode_request
from mailserver.store.interface import NewEnvelope
from mailserver.store.sqlite.handoff import write_archived
from mailserver.store.sqlite.schema import STORE_FILE
from mailserver.store.sqlite.store import open_store
from mailserver.store.sqlite.time_record import time_file
from mailserver.waku.bloom import FULL_BLOOM, FULL_INTEREST
from mailserver.waku.envelope import Envelope, Topic, decode_envelopes
from mailserver.waku.packets import PacketCode, StatusOptions
from mailserver.waku.payload import open_symmetric
from tests.data import load
from tests.integration.conversations import (
    CLEAR_ID,
    EMPTY_LIST,
    Flood,
    ask,
    check_store,
    clear_request,
    everything,
    prepare,
    serves,
)
from tests.integration.daemons import Daemon, running_daemon
from tests.integration.peers import Peers
from tests.mailservers import NEWS, PASSWORD_KEY, SPORT, in_order, make_envelope, make_large_envelopes, stored
from tests.raw_peer import (
    DEPLOYED_STATUS,
    WAKU_OFFSET,
    close_stream,
    open_stream,
)
from tests.waiting import until

pytestmark = pytest.mark.integration

SESSIONS = load("sessions.json")["sessions"]
PACKETS = load("packets.json")["packets"]


# Deployed clients' requests, byte for byte

RECORDED_REQUESTS = {
    f"{session['name']} {number}": (session, bytes.fromhex(message["payload"]))
    for session in SESSIONS
    for number, message in enumerate(session["messages"])
    if message["from"] == "initiator" and message["message_id"] == WAKU_OFFSET + PacketCode.P2P_REQUEST
} | {
    f"packets {packet['group']}": (None, bytes.fromhex(packet["payload"]))
    for packet in PACKETS
    if packet["code"] == PacketCode.P2P_REQUEST
}
RECORDED_KEY = SESSIONS[0]["recipient_private_key"]
RECORDED_FROM = 1_795_234_958
"""The earliest second that each of the recorded requests asks for."""

HISTORY = [make_envelope(n, created=RECORDED_FROM + 500 - n, topic=(NEWS, SPORT)[n % 2]) for n in range(6)] + [
    make_envelope(n, created=RECORDED_FROM + 400 - n, topic=topic)
    for n, topic in enumerate(
        [Topic(b"\x01\x02\x03\x04"), Topic(b"\x0a\x0b\x0c\x0d"), Topic(b"\x01\x02\x03\x04")], start=6
    )
]
"""Envelopes on the topics that the recorded requests ask for, newest first."""


@pytest.fixture(scope="module", params=["bytes", "list"])
def archive(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[tuple[Daemon, str]]:
    """A daemon with HISTORY, with the node key that the recorded client knew, and a form of completion."""
    folder = tmp_path_factory.mktemp("archive")
    asyncio.run(prepare(folder, HISTORY))
    key_file = folder / "nodekey"
    key_file.write_text(f"{RECORDED_KEY}\n")
    key_file.chmod(0o600)
    with running_daemon(folder, "--completion-format", request.param) as daemon:
        yield daemon, request.param


@pytest.mark.parametrize("name", RECORDED_REQUESTS)
async def test_recorded_request_of_the_deployed_client_is_answered(
    archive: tuple[Daemon, str], peers: Peers, name: str
) -> None:
    daemon, form = archive
    session, payload = RECORDED_REQUESTS[name]
    status = DEPLOYED_STATUS
    if session is not None:
        said = [message for message in session["messages"] if message["from"] == "initiator"]
        status = bytes.fromhex(said[1]["payload"])
    raw = await peers.join(daemon, status=status)

    raw.say(PacketCode.P2P_REQUEST, payload)
    packets, completion = await raw.hear_answer()

    found = [envelope for packet in packets for envelope in decode_envelopes(packet)]
    expected = EXPECTED[name if session is None else session["name"]]
    assert [envelope.raw for envelope in found] == [envelope.raw for envelope in expected]
    request_id = decode_request(payload).request_id
    last_hash = expected[-1].hash() if expected else bytes(32)
    more = name in ("packets plain", "packets env")  # their limits are 1 and 2, and there is more
    cursor = expected[-1].created.to_bytes(4, "big") + last_hash if more else b""
    assert rlp.decode(completion) == (
        request_id + last_hash + cursor if form == "bytes" else [request_id, last_hash, cursor]
    )


EXPECTED = {
    "handshake": [],
    "light": [],
    "v0": [],
    "req-env": HISTORY[:6],
    "req-plain": HISTORY[:6:2],
    "req-bloom": HISTORY,
    "req-real": HISTORY[:6:2],
    "req-asym": HISTORY[:6:2],
    "packets plain": HISTORY[6:7],
    "packets env": HISTORY[6:8],
}


async def test_failure_has_the_form_that_the_deployed_client_reads(archive: tuple[Daemon, str], peers: Peers) -> None:
    daemon, _ = archive
    recorded = next(p for p in PACKETS if p["group"] == "err")
    raw = await peers.join(daemon)

    raw.say(PacketCode.P2P_REQUEST, rlp.encode([CLEAR_ID, b"\x02", b"\x01", b"", b"", FULL_BLOOM, []]))
    _, completion = await raw.hear_answer()

    ours, theirs = rlp.decode(completion), rlp.decode(bytes.fromhex(recorded["payload"]))
    assert isinstance(ours, bytes)
    assert isinstance(theirs, bytes)
    assert ours[:38] == b"ERROR=" + CLEAR_ID
    assert theirs[:6] == b"ERROR="


# Our own client


async def test_what_is_posted_is_found_again_after_a_restart(tmp_path: Path) -> None:
    posted: list[Envelope] = []
    for round_number in range(2):
        with running_daemon(tmp_path) as daemon:
            async with connect(daemon.enode, "client/1") as client:
                envelope = await seal_envelope(
                    b"hello %d" % round_number,
                    PASSWORD_KEY,
                    NEWS,
                    ttl=50,
                    min_pow=client.settings.pow_requirement,
                    now=int(time.time()),
                )
                response = await client.post([envelope])
                posted.append(envelope)
                found: list[Envelope] = []
                request = MailRequest(RequestId(bytes(32)), 0, 0, FULL_INTEREST)
                completion = await client.request_all(request, PASSWORD_KEY, found.extend)
            assert daemon.stop() == 0

        assert response.errors == ()
        assert found == in_order(posted)
        assert completion.last_envelope_hash == found[-1].hash()
    assert [open_symmetric(envelope.data, PASSWORD_KEY).payload for envelope in posted] == [b"hello 0", b"hello 1"]


async def test_light_node_is_served_like_any_other(shared: Daemon, peers: Peers) -> None:
    light = await peers.join(shared, status=StatusOptions(light_node=True, bloom=bytes(64)).encode())
    empty = await peers.join(shared, "empty", status=EMPTY_LIST)

    assert await serves(peers, shared, light)
    assert await serves(peers, shared, empty)


# Memory, sockets


def memory_bytes(daemon: Daemon) -> int:
    """How much memory the process has."""
    status = Path(f"/proc/{daemon.process.pid}/status").read_text()
    (line,) = [line for line in status.splitlines() if line.startswith("VmRSS:")]
    return int(line.split()[1]) * 1024


def open_files(daemon: Daemon) -> int:
    return sum(1 for _ in Path(f"/proc/{daemon.process.pid}/fd").iterdir())


async def test_clients_that_ask_for_much_and_read_nothing_cost_little_memory(tmp_path: Path, peers: Peers) -> None:
    await prepare(tmp_path, make_large_envelopes(600, 100_000))
    with running_daemon(tmp_path) as daemon:
        reader = await peers.join(daemon, "reader")
        assert len((await ask(reader, clear_request()))[0]) == 600
        before = memory_bytes(daemon)

        for number in range(20):
            stuck = await peers.join(daemon, f"stuck {number}")
            stuck.write(*(stuck.packet(PacketCode.P2P_REQUEST, clear_request()) for _ in range(10)))
        for _ in range(2):
            assert len((await ask(reader, clear_request()))[0]) == 600
        grown = memory_bytes(daemon) - before

    assert grown < 60_000_000


async def test_peers_that_have_left_leave_nothing_open(shared: Daemon, peers: Peers) -> None:
    looking = await peers.join(shared, "who looks")
    assert await serves(peers, shared, looking)
    before = open_files(shared)

    for number in range(60):
        match number % 3:
            case 0:
                raw = await peers.join(shared, f"client {number}")
                assert await serves(peers, shared, raw)
                await raw.close()
            case 1:
                raw = await peers.dial(shared, f"client {number}")
                raw.write(raw.hello(), os.urandom(100))
                await raw.at_end()
                await raw.close()
            case 2:
                enode = shared.enode
                _, writer = await open_stream((enode.host, enode.port))
                writer.write(os.urandom(number))
                await close_stream(writer)

    await until(lambda: open_files(shared) <= before)
    assert await serves(peers, shared, looking)


# History


async def test_all_of_a_large_history_is_served_exactly_once_while_more_arrives(tmp_path: Path, peers: Peers) -> None:
    old = [make_envelope(number, created=RECORDED_FROM - number // 3) for number in range(3000)]
    await prepare(tmp_path, old)
    with running_daemon(tmp_path, "--max-request-limit", "700") as daemon:
        flood = Flood(await peers.join(daemon, "flood"))
        await until(lambda: bool(flood.confirmed))
        reader = await peers.join(daemon, "reader")

        served = await everything(reader)

        daemon.process.send_signal(signal.SIGKILL)
        await flood.end()
    assert served[-3000:] == [envelope.raw for envelope in in_order(old)]
    assert len(served) == len(set(served))


async def test_nothing_is_lost_where_an_operator_has_looked_into_the_store(tmp_path: Path, peers: Peers) -> None:
    with running_daemon(tmp_path) as daemon:
        raw = await peers.join(daemon)
        for _ in range(3):
            assert await serves(peers, daemon, raw)
            count_in(tmp_path)  # by a connection that could write: it is not the last one, and leaves the log alone
        daemon.process.send_signal(signal.SIGKILL)
        daemon.wait()

    with running_daemon(tmp_path) as daemon:
        assert len(await everything(await peers.join(daemon))) == 3
        assert daemon.stop() == 0


# Retention

AN_HOUR_AGO = int(time.time()) - 3600


def received_an_hour_ago(count: int) -> list[NewEnvelope]:
    return [
        stored(make_envelope(number, created=AN_HOUR_AGO - number), AN_HOUR_AGO - number) for number in range(count)
    ]


async def prepare_rows(folder: Path, envelopes: list[NewEnvelope]) -> None:
    async with open_store(folder / STORE_FILE) as store:
        await store.put(envelopes)


def count_in(folder: Path) -> int:
    with contextlib.closing(sqlite3.connect(folder / STORE_FILE)) as connection:
        ((count,),) = connection.execute("SELECT count(*) FROM envelopes").fetchall()
    return int(count)


async def test_too_many_envelopes_go_while_peers_are_served(tmp_path: Path, peers: Peers) -> None:
    envelopes = received_an_hour_ago(3000)
    await prepare_rows(tmp_path, envelopes)

    with running_daemon(tmp_path, "--retention-envelopes", "100") as daemon:
        raw = await peers.join(daemon)
        while not any("pruned envelopes=" in line for line in daemon.lines):
            assert await serves(peers, daemon, raw)
        line = daemon.wait_for_line("pruned envelopes=")
        served = await everything(raw)
        assert daemon.stop() == 0

    kept = [envelope.raw for envelope in envelopes[:100]]  # the last received
    posted = len(served) - len([raw for raw in served if raw in kept])
    assert posted > 0
    assert int(line.partition("pruned envelopes=")[2].split()[0]) >= 2900
    assert check_store(tmp_path) == len(served)


async def test_what_is_too_old_waits_for_the_archive(tmp_path: Path, peers: Peers) -> None:
    await prepare_rows(tmp_path, received_an_hour_ago(300))
    record = {"version": 1, "proven_at": int(time.time())}  # the hour has passed: our clock was not stepped
    time_file(tmp_path / STORE_FILE).write_text(json.dumps(record))
    flags = ("--retention-days", "0.01", "--archive", "hdfs://host/archive")

    with running_daemon(tmp_path, *flags) as daemon:
        daemon.wait_for_line("WARNING pruning waits for the archive envelopes=300")
        assert len(await everything(await peers.join(daemon))) == 300
        assert daemon.stop() == 0
    assert count_in(tmp_path) == 300

    with contextlib.closing(sqlite3.connect(tmp_path / STORE_FILE)) as connection:
        ((store_id,),) = connection.execute("SELECT id FROM identity").fetchall()
        days = dict(connection.execute("SELECT day, last_seq FROM reception_days").fetchall())
    write_archived(tmp_path / STORE_FILE, Archived(store_id, "hdfs://host/archive", AN_HOUR_AGO, days))
    with running_daemon(tmp_path, *flags) as daemon:
        daemon.wait_for_line("pruned envelopes=300")
        assert await serves(peers, daemon)
        assert daemon.stop() == 0

    assert check_store(tmp_path) == 1
    assert " ERROR " not in daemon.log


async def test_stopping_does_not_wait_for_pruning(tmp_path: Path) -> None:
    await prepare_rows(tmp_path, received_an_hour_ago(40_000))

    with running_daemon(tmp_path, "--retention-envelopes", "1") as daemon:
        await until(lambda: count_in(tmp_path) < 40_000)
        assert daemon.stop() == 0

    assert check_store(tmp_path) >= 1
