"""mailserver.daemon in this process: wiring, settings, start and stop. As a process: `tests/integration/`."""

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sqlite3
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import uvloop

from mailserver.codec import rlp
from mailserver.codec.keccak import keccak256
from mailserver.codec.keys import Enode
from mailserver.config import Config
from mailserver.daemon import run_daemon
from mailserver.datadir import read_enode
from mailserver.errors import DisconnectReason, Rejection, StartupError, StoreError
from mailserver.mail.completion import Completion, Failure, decode_completion
from mailserver.rlpx import p2p
from mailserver.services.peer import ServedPeer
from mailserver.store.envelopes import open_store
from mailserver.store.schema import STORE_FILE
from mailserver.waku.bloom import FULL_BLOOM
from mailserver.waku.envelope import encode_envelopes
from mailserver.waku.packets import EnvelopeErrorCode, MessageResponse, PacketCode, RateLimits, StatusOptions
from mailserver.waku.payload import key_from_password
from tests.data import load
from tests.mailservers import NEWS, deployed_fields, fill, make_envelope, make_large_envelopes, sealed_request
from tests.raw_peer import RawPeer, at_end, close_stream, open_stream
from tests.waiting import DEADLINE_S, turns, until

pytestmark = pytest.mark.integration

STOP_WITHIN_S = 5.0
CLEAR_ID = b"0123456789abcdef0123456789abcdef"


@dataclass
class Daemon:
    """A daemon that runs in this process."""

    task: asyncio.Task[None]
    enode: Enode
    data_dir: Path
    raws: list[RawPeer] = field(default_factory=list)

    async def dial(self, name: str = "client") -> RawPeer:
        """Connect and do the key exchange."""
        raw = await RawPeer.dial((self.enode.host, self.enode.port), self.enode.node_id, name=name)
        self.raws.append(raw)
        return raw

    async def stop(self, number: signal.Signals = signal.SIGTERM) -> float:
        """Send the signal that a service manager sends; return how long it took, in seconds."""
        started = time.monotonic()
        os.kill(os.getpid(), number)
        await asyncio.wait_for(self.task, DEADLINE_S)
        return time.monotonic() - started


@contextlib.asynccontextmanager
async def running(data_dir: Path, **settings: Any) -> AsyncIterator[Daemon]:
    """Run a daemon on a free port."""
    config = Config(data_dir=data_dir, **({"listen": "127.0.0.1:0"} | settings))
    (data_dir / "enode").unlink(missing_ok=True)
    task = asyncio.create_task(run_daemon(config))
    raws: list[RawPeer] = []
    try:
        await until(lambda: task.done() or (data_dir / "enode").exists())
        if task.done():
            await task
        yield Daemon(task, read_enode(data_dir), data_dir, raws)
    finally:
        for raw in raws:
            await raw.close()
        if not task.done():
            os.kill(os.getpid(), signal.SIGTERM)
            await asyncio.wait([task], timeout=DEADLINE_S)
            task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@pytest.fixture(autouse=True)
def signals_as_before() -> Iterator[None]:
    """Leave the signals of the test runner as they were."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


async def ask(raw: RawPeer, payload: bytes) -> tuple[int, Completion | Failure]:
    """Ask for history; return the number of packets and the completion."""
    raw.say(PacketCode.P2P_REQUEST, payload)
    packets, completion = await raw.hear_answer()
    return len(packets), decode_completion(completion)


def clear_request(topic: bytes = NEWS) -> bytes:
    return rlp.encode([CLEAR_ID, b"", b"", b"", b"", b"", [topic]])


def fresh(number: int = 0) -> bytes:
    """The payload of Messages with one envelope of this moment."""
    return encode_envelopes([make_envelope(number, created=int(time.time())).raw])


# Starting


async def test_enode_file_and_log_name_the_real_port(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "mailserver")

    async with running(tmp_path / "new" / "data") as daemon:
        raw = await (await daemon.dial()).greet()
        await raw.close()

    assert daemon.enode.port > 0
    assert f"listening enode={daemon.enode} store=" in caplog.text
    assert {record.levelname for record in caplog.records if record.name.startswith("mailserver")} == {"INFO"}


async def test_key_stays_the_same_from_start_to_start(tmp_path: Path) -> None:
    async with running(tmp_path) as first:
        pass
    async with running(tmp_path) as second:
        pass

    assert first.enode.node_id == second.enode.node_id


async def test_advertised_host_is_in_the_enode(tmp_path: Path) -> None:
    async with running(tmp_path, advertise="mail.example.org") as daemon:
        assert daemon.enode.host == "mail.example.org"


async def test_status_says_what_a_mailserver_says(tmp_path: Path) -> None:
    async with running(tmp_path, min_pow=0.25) as daemon:
        raw = await daemon.dial()
        raw.write(raw.hello())
        hello = p2p.Hello.decode((await raw.hear()).payload)
        raw.compressed = True
        _, payload = await raw.hear_packet()
        await raw.close()

    keys = [bytes(rlp.as_bytes(rlp.as_list(pair)[0])) for pair in rlp.decode_list(payload)]
    assert keys == [b"", b"\x01", b"\x02", b"\x03", b"\x04", b"\x06"]
    assert StatusOptions.decode(payload) == StatusOptions(
        pow_requirement=0.25,
        bloom=FULL_BLOOM,
        light_node=False,
        confirmations=True,
        packet_rate_limits=RateLimits(0, 0, 0),
        byte_rate_limits=RateLimits(0, 0, 0),
    )
    assert hello.client_id.startswith("waku-mailserver/v")


async def test_status_is_that_of_the_deployed_mailserver_but_that_it_says_it_confirms(tmp_path: Path) -> None:
    recorded = next(p for p in load("packets.json")["packets"] if p["code"] == 0 and p["direction"] == "from server")
    deployed = StatusOptions.decode(bytes.fromhex(recorded["payload"]))

    async with running(tmp_path) as daemon:
        raw = await daemon.dial()
        raw.write(raw.hello())
        await raw.hear()
        raw.compressed = True
        ours = StatusOptions.decode((await raw.hear_packet()).payload)
        await raw.close()

    assert ours.pow_requirement == deployed.pow_requirement
    assert ours.bloom == deployed.bloom
    assert ours.light_node == deployed.light_node
    assert ours.confirmations


async def test_port_that_is_taken_is_one_clear_line(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(StartupError, match=address) as error:
            async with running(tmp_path, listen=address):
                pass

    assert "\n" not in str(error.value)
    assert not (tmp_path / "enode").exists()


@pytest.mark.parametrize("listen", ["192.0.2.1:0", "a..b:0"])
async def test_address_that_is_not_ours_is_one_clear_line(tmp_path: Path, listen: str) -> None:
    with pytest.raises(StartupError, match="cannot listen") as error:
        async with running(tmp_path, listen=listen):
            pass

    assert "\n" not in str(error.value)


async def test_store_of_something_else_is_refused_and_left_alone(tmp_path: Path) -> None:
    connection = sqlite3.connect(tmp_path / STORE_FILE)
    connection.execute("CREATE TABLE mine (x)")
    connection.close()
    before = (tmp_path / STORE_FILE).read_bytes()

    with pytest.raises(StoreError):
        async with running(tmp_path):
            pass

    assert (tmp_path / STORE_FILE).read_bytes() == before


# Settings


async def test_settings_reach_the_services(tmp_path: Path) -> None:
    async with open_store(tmp_path / STORE_FILE) as store:
        await fill(store, [make_envelope(number) for number in range(3)])
    key = key_from_password("secret")

    async with running(
        tmp_path,
        password="secret",
        min_pow=1000.0,
        min_request_pow=0.0001,
        max_request_limit=2,
        allow_clear_requests=False,
        completion_format="list",
        max_peers=1,
    ) as daemon:
        raw = await (await daemon.dial()).greet()
        worked, lazy = (
            sealed_request(deployed_fields(), key=key),
            sealed_request(deployed_fields(), key=key, ttl=5_000_000),
        )

        assert await ask(raw, clear_request()) == (0, Failure(_id(CLEAR_ID), Rejection.CLEAR_REFUSED.value))
        assert (await ask(raw, sealed_request(deployed_fields()).raw))[1] == Failure(
            _id(sealed_request(deployed_fields()).hash()), Rejection.UNDECRYPTABLE.value
        )
        assert lazy.pow() < 0.0001 < worked.pow()
        assert (await ask(raw, lazy.raw))[1] == Failure(_id(lazy.hash()), Rejection.POW_TOO_LOW.value)
        raw.say(PacketCode.P2P_REQUEST, worked.raw)
        packets, completion = await raw.hear_answer()
        assert len(packets) == 1
        assert isinstance(rlp.decode(completion), list)
        page = decode_completion(completion)
        assert isinstance(page, Completion)
        assert page.cursor is not None

        raw.say(PacketCode.MESSAGES, fresh())
        response = MessageResponse.decode((await raw.hear_packet()).payload)
        assert response is not None
        assert [error.code for error in response.errors] == [EnvelopeErrorCode.INVALID]

        second = await daemon.dial("second")
        assert (await second.hear()).message_id == p2p.MessageId.DISCONNECT


def _id(data: bytes) -> Any:
    return data


async def test_clock_of_the_daemon_is_the_real_one(tmp_path: Path) -> None:
    async with running(tmp_path) as daemon:
        raw = await (await daemon.dial()).greet()
        payload = fresh()
        raw.say(PacketCode.MESSAGES, payload)
        confirmation = await raw.hear_packet()
        packets, completion = await ask(raw, clear_request())

    assert confirmation == (PacketCode.MESSAGE_RESPONSE, MessageResponse(keccak256(payload)).encode())
    assert (packets, type(completion)) == (1, Completion)


# Stopping


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
        with _write_lock(tmp_path):
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


@contextlib.contextmanager
def _write_lock(data_dir: Path) -> Iterator[None]:
    """Keep the store from writing, as another process could."""
    connection = sqlite3.connect(data_dir / STORE_FILE, isolation_level=None)
    try:
        connection.execute("BEGIN IMMEDIATE")
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


async def test_fault_of_ours_ends_one_connection_and_not_the_daemon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(tmp_path) as daemon:
        good = await (await daemon.dial("good")).greet()
        monkeypatch.setattr(ServedPeer, "run", _fail)

        unlucky = await open_stream((daemon.enode.host, daemon.enode.port))
        assert await at_end(unlucky[0])
        await close_stream(unlucky[1])

        assert isinstance((await ask(good, clear_request()))[1], Completion)
        await good.close()

    assert [record.levelname for record in caplog.records if record.levelno >= logging.ERROR] == ["ERROR"]


async def _fail(peer: object) -> None:
    raise ZeroDivisionError
