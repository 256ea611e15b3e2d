"""The daemon as a process, and clients on loopback: deployed clients' bytes, crashes, floods, bad peers, leaks."""

import asyncio
import contextlib
import json
import os
import random
import signal
import socket
import sqlite3
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from mailserver.client.mail_client import connect
from mailserver.client.sealing import seal_envelope
from mailserver.codec import rlp, snappy
from mailserver.codec.keccak import keccak256
from mailserver.codec.keys import Enode
from mailserver.errors import DisconnectReason
from mailserver.handoff.archived import Archived
from mailserver.mail.completion import Completion, Failure, decode_completion
from mailserver.mail.request import MailRequest, RequestId, decode_request
from mailserver.net.listener import MAX_PENDING
from mailserver.rlpx import p2p
from mailserver.rlpx.capabilities import Capability
from mailserver.store.interface import NewEnvelope
from mailserver.store.sqlite.handoff import write_archived
from mailserver.store.sqlite.schema import STORE_FILE
from mailserver.store.sqlite.store import open_store
from mailserver.store.sqlite.time_record import time_file
from mailserver.waku.bloom import FULL_BLOOM, FULL_INTEREST
from mailserver.waku.envelope import Envelope, Topic, decode_envelopes, encode_envelope, encode_envelopes
from mailserver.waku.packets import MAX_PACKET_BYTES, MessageResponse, PacketCode, StatusOptions
from mailserver.waku.payload import open_symmetric
from tests.data import load
from tests.integration.daemons import Daemon, running_daemon
from tests.integration.peers import Peers
from tests.mailservers import NEWS, PASSWORD_KEY, SPORT, fill, in_order, make_envelope, make_large_envelopes, stored
from tests.pairs import private_key
from tests.properties import settings
from tests.raw_peer import (
    DEPLOYED_STATUS,
    WAKU,
    WAKU_OFFSET,
    Hangup,
    Packet,
    RawPeer,
    at_end,
    close_stream,
    open_stream,
)
from tests.waiting import DEADLINE_S, until

pytestmark = pytest.mark.integration

SESSIONS = load("sessions.json")["sessions"]
PACKETS = load("packets.json")["packets"]
CLEAR_ID = b"0123456789abcdef0123456789abcdef"
EMPTY_LIST = b"\xc0"


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A daemon for tests that leave it running; whatever they did, it has had nothing to complain of."""
    with running_daemon(tmp_path_factory.mktemp("shared"), "--log-level", "debug") as daemon:
        yield daemon
    assert [line for line in daemon.told if " ERROR " in line or " WARNING " in line] == []


def clear_request(
    *, limit: int = 0, cursor: bytes = b"", topics: tuple[bytes, ...] = (), one_id: bytes = CLEAR_ID
) -> bytes:
    """A request in the clear, for everything there is or these topics."""
    bloom = b"" if topics else FULL_BLOOM
    return rlp.encode([one_id, b"", b"\xff" * 4, rlp.encode_uint(limit), cursor, bloom, list(topics)])


async def ask(raw: RawPeer, payload: bytes) -> tuple[list[Envelope], Completion | Failure]:
    """Send a request and wait for the answer."""
    raw.say(PacketCode.P2P_REQUEST, payload)
    packets, completion = await raw.hear_answer()
    assert all(len(packet) <= MAX_PACKET_BYTES for packet in packets)
    return [envelope for packet in packets for envelope in decode_envelopes(packet)], decode_completion(completion)


async def everything(raw: RawPeer) -> list[bytes]:
    """All that the daemon serves, following cursors."""
    found: list[bytes] = []
    cursor = b""
    while True:
        envelopes, outcome = await ask(raw, clear_request(cursor=cursor))
        assert isinstance(outcome, Completion)
        found += [envelope.raw for envelope in envelopes]
        if outcome.cursor is None:
            return found
        cursor = outcome.cursor.encode()


def fresh(count: int, data_bytes: int = 300) -> list[Envelope]:
    """Envelopes of this moment that are all different, with the proof of work of a ttl of 50."""
    now = int(time.time())
    return [
        encode_envelope(now + 50, 50, NEWS, random.randbytes(data_bytes), random.getrandbits(60)) for _ in range(count)
    ]


def messages(envelopes: list[Envelope]) -> bytes:
    return encode_envelopes([envelope.raw for envelope in envelopes])


async def serves(peers: Peers, daemon: Daemon, raw: RawPeer | None = None) -> bool:
    """Whether a peer, a new one if none is given, is confirmed and answered."""
    raw = raw or await peers.join(daemon, "who looks")
    payload = messages(fresh(1))
    raw.say(PacketCode.MESSAGES, payload)
    heard = await raw.hear_confirmation()
    envelopes, _ = await ask(raw, clear_request(limit=1))
    return heard == confirmation(payload) and len(envelopes) == 1


def confirmation(payload: bytes) -> list[Packet]:
    batch_hash = keccak256(payload)
    return [
        Packet(PacketCode.MESSAGE_RESPONSE, MessageResponse(batch_hash).encode()),
        Packet(PacketCode.BATCH_ACKNOWLEDGED, b"\xa0" + batch_hash),
    ]


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


async def prepare(folder: Path, envelopes: list[Envelope]) -> None:
    """Make a store with these envelopes."""
    async with open_store(folder / STORE_FILE) as store:
        await fill(store, envelopes)


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


# Crashes


class Flood:
    """A peer that posts as fast as it can, and takes down what is confirmed."""

    def __init__(self, raw: RawPeer) -> None:
        self._raw = raw
        self._sent: dict[bytes, list[Envelope]] = {}
        self.confirmed: list[bytes] = []
        self.reason: DisconnectReason | None = None
        self._tasks = [asyncio.create_task(self._send()), asyncio.create_task(self._hear())]

    async def _send(self) -> None:
        with contextlib.suppress(ConnectionError):
            while True:
                envelopes = fresh(random.choice([1, 10, 100]))
                payload = messages(envelopes)
                self._sent[keccak256(payload)] = envelopes
                self._raw.say(PacketCode.MESSAGES, payload)
                await self._raw.writer.drain()
                await asyncio.sleep(0)

    async def _hear(self) -> None:
        try:
            while True:
                code, payload = await self._raw.hear_packet()
                if code == PacketCode.BATCH_ACKNOWLEDGED:
                    self.confirmed += [envelope.raw for envelope in self._sent.pop(payload[1:])]
        except Hangup as hangup:
            self.reason = hangup.reason

    async def end(self) -> None:
        """Wait until the daemon has hung up."""
        sending, hearing = self._tasks
        await asyncio.wait_for(hearing, DEADLINE_S)
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)


def check_store(folder: Path) -> int:
    """Check the file by SQLite's own means; return how many envelopes there are."""
    with contextlib.closing(sqlite3.connect(folder / STORE_FILE)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        ((count, different),) = connection.execute("SELECT count(*), count(DISTINCT raw) FROM envelopes").fetchall()
        ((counted,),) = connection.execute("SELECT sum(envelopes) FROM days").fetchall()
    assert count == different == counted
    return int(count)


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


# Bad peers


async def test_more_strangers_than_may_be_pending_do_not_keep_an_honest_peer_out(shared: Daemon, peers: Peers) -> None:
    enode = shared.enode
    writers = []
    for number in range(MAX_PENDING + 100):
        _, writer = await open_stream((enode.host, enode.port))
        writer.write(b"\x01" * (number % 3))
        writers.append(writer)

    assert await serves(peers, shared)

    for writer in writers:
        await close_stream(writer)


async def test_half_open_handshake_ends_after_five_seconds(shared: Daemon) -> None:
    enode = shared.enode
    started = time.monotonic()
    reader, writer = await open_stream((enode.host, enode.port))
    writer.write(b"\x01\x90")

    assert await at_end(reader)

    assert 4.5 < time.monotonic() - started < 8.0
    await close_stream(writer)


def garbled(raw: RawPeer) -> bytes:
    frame = bytearray(raw.packet(PacketCode.MESSAGES, EMPTY_LIST))
    frame[random.randrange(len(frame))] ^= 1 << random.randrange(8)
    return bytes(frame)


AFTER_STATUS: dict[str, tuple[Callable[[RawPeer], bytes], DisconnectReason | None]] = {
    "a frame with a flipped bit": (garbled, DisconnectReason.PROTOCOL_BREACH),
    "random bytes": (lambda _: os.urandom(3000), DisconnectReason.PROTOCOL_BREACH),
    "the header of an oversize frame": (
        lambda raw: raw.frame_of(bytes(4_000_000))[:32],
        DisconnectReason.PROTOCOL_BREACH,
    ),
    "a Snappy bomb": (
        lambda raw: raw.frame_of(b"\x11" + b"\xff\xff\xff\xff\x0f" + bytes(10)),
        DisconnectReason.PROTOCOL_BREACH,
    ),
    "2 MiB of Messages": (
        lambda raw: raw.frame_of(b"\x11" + snappy.compress(bytes(2 << 20))),
        DisconnectReason.PROTOCOL_BREACH,
    ),
    "an RLP bomb as Messages": (lambda raw: raw.packet(1, b"\xc1" * 100_000), DisconnectReason.SUBPROTOCOL_ERROR),
    "an RLP bomb as Status Update": (lambda raw: raw.packet(22, b"\xc1" * 99_999), DisconnectReason.SUBPROTOCOL_ERROR),
    "a truncated envelope": (
        lambda raw: raw.packet(1, messages([make_envelope(1)])[:-1]),
        DisconnectReason.SUBPROTOCOL_ERROR,
    ),
    "Hello again": (lambda raw: raw.hello(), DisconnectReason.PROTOCOL_BREACH),
    "a message id of nobody": (lambda raw: raw.frame(0xF0, b""), DisconnectReason.PROTOCOL_BREACH),
    "Goodbye": (lambda raw: raw.frame(p2p.MessageId.DISCONNECT, b"\x08"), None),
}


@pytest.mark.parametrize("fault", AFTER_STATUS)
async def test_peer_at_fault_hears_why_and_nobody_else_notices(shared: Daemon, peers: Peers, fault: str) -> None:
    say, reason = AFTER_STATUS[fault]
    good, bad = await peers.join(shared, "good"), await peers.join(shared, "bad")

    bad.write(say(bad))

    assert await bad.hear_hangup() is reason
    assert await serves(peers, shared, good)


async def test_fault_in_one_write_with_everything_before_it_is_the_peers_alone(shared: Daemon, peers: Peers) -> None:
    good = await peers.join(shared, "good")
    for say, reason in AFTER_STATUS.values():
        bad = await peers.dial(shared, "bad")
        hello = bad.hello()
        bad.compressed = True
        status = bad.packet(PacketCode.STATUS, DEPLOYED_STATUS)

        bad.write(hello, status, say(bad))

        bad.compressed = False
        assert (await bad.hear()).message_id == p2p.MessageId.HELLO
        bad.compressed = True
        assert await bad.hear_hangup() is reason
    assert await serves(peers, shared, good)


async def test_peer_without_waku_1_hears_that_it_is_useless(shared: Daemon, peers: Peers) -> None:
    raw = await peers.dial(shared)

    raw.write(raw.hello(capabilities=[Capability("waku", 0)]))
    await raw.hear()
    raw.compressed = True

    assert await raw.hear_hangup() is DisconnectReason.USELESS_PEER


async def test_peer_above_the_limit_hears_so(tmp_path: Path, peers: Peers) -> None:
    with running_daemon(tmp_path, "--max-peers", "2") as daemon:
        for number in range(2):
            await peers.join(daemon, f"client {number}")

        raw = await peers.dial(daemon, "one too many")

        assert await raw.hear_hangup() is DisconnectReason.TOO_MANY_PEERS


async def test_who_never_sends_status_keeps_no_place(tmp_path: Path, peers: Peers) -> None:
    with running_daemon(tmp_path, "--max-peers", "1") as daemon:
        silent = await peers.dial(daemon, "silent")
        await silent.greet(status=None)
        refused = await peers.dial(daemon, "refused")
        assert await refused.hear_hangup() is DisconnectReason.TOO_MANY_PEERS

        assert await silent.hear_hangup() is DisconnectReason.PING_TIMEOUT

        await (await peers.dial(daemon, "client")).greet()


async def test_own_enode_among_the_peers_is_said_once_and_left_out(tmp_path: Path, peers: Peers) -> None:
    with running_daemon(tmp_path) as daemon:
        own, other = str(daemon.enode), f"enode://{private_key('other').public_key.hex()}@127.0.0.1:1"
        daemon.stop()
    settings_file = tmp_path / "settings.toml"
    settings_file.write_text(f'static_peers = ["{own}"]\n')
    flags = ("--trusted-peers", f"{own},{other}", "--sync-days", "1", "--config", str(settings_file))
    with running_daemon(tmp_path, *flags, "--log-level", "debug") as daemon:
        settings_file.write_text(f'static_peers = ["{own}", "{other}"]\n')
        daemon.process.send_signal(signal.SIGHUP)

        daemon.wait_for_line("static peer not reached")
        daemon.wait_for_line("catch-up waits")

        assert daemon.log.count("own enode is named among the peers") == 1
        assert own.removeprefix("enode://")[:8] + "@" not in daemon.log


async def test_static_peer_with_another_node_id_than_its_enode_says_is_told(tmp_path: Path) -> None:
    with running_daemon(tmp_path / "other") as other:
        wrong = f"enode://{private_key('wrong').public_key.hex()}@{other.enode.host}:{other.enode.port}"
        with running_daemon(tmp_path / "ours", "--static-peers", wrong) as daemon:
            line = daemon.wait_for_line("static peer not reached")

            assert "another node id is there than the enode says" in line


async def test_whoever_has_our_own_key_hears_so(tmp_path: Path, peers: Peers) -> None:
    key_file = tmp_path / "nodekey"
    key_file.write_text(f"{private_key('ourselves').secret.hex()}\n")
    key_file.chmod(0o600)
    with running_daemon(tmp_path) as daemon:
        raw = await peers.dial(daemon, "ourselves")

        assert await raw.hear_hangup() is DisconnectReason.SELF_CONNECTION


CONVERSATION_BYTES = st.binary(min_size=1, max_size=600)


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(garbage=st.binary(min_size=1, max_size=2000))
async def test_whatever_a_stranger_sends_disturbs_nobody(shared: Daemon, peers: Peers, garbage: bytes) -> None:
    enode = shared.enode
    _, writer = await open_stream((enode.host, enode.port))

    writer.write(garbage)
    await writer.drain()

    await close_stream(writer)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    packets=st.lists(
        st.tuples(st.sampled_from([*PacketCode, 2, 99, 127]) | st.integers(0, 127), CONVERSATION_BYTES), max_size=6
    ),
    greets=st.booleans(),
)
async def test_whatever_a_peer_says_ends_at_most_its_own_connection(
    shared: Daemon, peers: Peers, packets: list[tuple[int, bytes]], greets: bool
) -> None:
    raw = await peers.dial(shared, "whatever")
    if greets:
        await raw.greet()
    else:
        raw.write(raw.hello())
        await raw.hear()
        raw.compressed = True

    raw.write(*(raw.packet(code, payload) for code, payload in packets))
    raw.write(raw.packet(PacketCode.P2P_REQUEST, clear_request(limit=1)))

    assert await end_of(raw) in ("answered", "SUBPROTOCOL_ERROR")
    await raw.close()


async def end_of(raw: RawPeer) -> str:
    """Wait until the request with CLEAR_ID is answered, or the connection has ended; return why in that case."""
    try:
        while True:
            code, payload = await raw.hear_packet()
            if code == PacketCode.P2P_REQUEST_COMPLETE and CLEAR_ID in payload:
                return "answered"
    except Hangup as hangup:
        return "nothing said" if hangup.reason is None else hangup.reason.name


async def test_every_truncation_of_a_conversation_is_taken_as_its_end(shared: Daemon, peers: Peers) -> None:
    for cut in random.sample(range(1500), 40):
        raw = await peers.dial(shared, "truncated")
        hello = raw.hello(capabilities=(Capability("waku", 0), WAKU))
        raw.compressed = True
        whole = (
            hello + raw.packet(PacketCode.STATUS, DEPLOYED_STATUS) + raw.packet(PacketCode.MESSAGES, messages(fresh(3)))
        )

        raw.write(whole[:cut])
        raw.writer.write_eof()

        assert await raw.at_end()
        await raw.close()
    assert await serves(peers, shared)


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
    flags = ("--retention-days", "0.01", "--archive", "s3://bucket/archive")

    with running_daemon(tmp_path, *flags) as daemon:
        daemon.wait_for_line("WARNING pruning waits for the archive envelopes=300")
        assert len(await everything(await peers.join(daemon))) == 300
        assert daemon.stop() == 0
    assert count_in(tmp_path) == 300

    with contextlib.closing(sqlite3.connect(tmp_path / STORE_FILE)) as connection:
        ((store_id,),) = connection.execute("SELECT id FROM identity").fetchall()
        days = dict(connection.execute("SELECT day, last_seq FROM reception_days").fetchall())
    write_archived(tmp_path / STORE_FILE, Archived(store_id, "s3://bucket/archive", AN_HOUR_AGO, days))
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
