"""mailserver.app.daemon in this process: wiring, settings, start and stop. As a process: `tests/integration/`."""

import asyncio
import contextlib
import json
import logging
import os
import signal
import socket
import sqlite3
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NoReturn

import pytest
import uvloop

from mailserver.app.config import Config
from mailserver.app.config_sources import load_config
from mailserver.app.daemon import catchup_settings, run_daemon
from mailserver.catchup.catchup import Catchup
from mailserver.codec import rlp
from mailserver.codec.keccak import keccak256
from mailserver.codec.keys import Enode
from mailserver.data_dir.folder import read_enode
from mailserver.errors import ConfigError, DisconnectReason, Rejection, StartupError, StoreError
from mailserver.limits.packet_rates import DEFAULT_BYTE_LIMITS, DEFAULT_PACKET_LIMITS
from mailserver.live.relay import Relay
from mailserver.mail.completion import Completion, Failure, decode_completion
from mailserver.mail.request import SealedRequest, decode_request
from mailserver.peers.served_peer import ServedPeer
from mailserver.rlpx import liveness as liveness_module
from mailserver.rlpx import p2p
from mailserver.store.sqlite.schema import STORE_FILE
from mailserver.store.sqlite.store import open_store
from mailserver.upkeep import pruning as pruning_module
from mailserver.waku.bloom import FULL_BLOOM
from mailserver.waku.envelope import encode_envelopes
from mailserver.waku.packets import EnvelopeErrorCode, MessageResponse, PacketCode, RateLimits, StatusOptions
from mailserver.waku.payload import key_from_password
from tests.data import load
from tests.mailservers import NEWS, deployed_fields, fill, make_envelope, make_large_envelopes, sealed_request
from tests.pairs import private_key
from tests.raw_peer import DEPLOYED_STATUS, Packet, RawPeer, at_end, close_stream, open_stream
from tests.waiting import DEADLINE_S, turns, until

pytestmark = pytest.mark.integration

STOP_WITHIN_S = 5.0
CLEAR_ID = b"0123456789abcdef0123456789abcdef"


@dataclass
class Daemon:
    """A daemon that runs in this process. `config` is what it reads when it is told to read its settings again."""

    config: Config
    task: asyncio.Task[None] = field(init=False)
    enode: Enode = field(init=False)
    raws: list[RawPeer] = field(default_factory=list)

    async def dial(self, name: str = "client") -> RawPeer:
        """Connect and do the key exchange."""
        raw = await RawPeer.dial((self.enode.host, self.enode.port), self.enode.node_id, name=name)
        self.raws.append(raw)
        return raw

    async def join(self, name: str = "client") -> RawPeer:
        """The same with Hello and Status."""
        return await (await self.dial(name)).greet()

    def read_settings(self) -> Config:
        """What the daemon calls at SIGHUP."""
        return self.config

    def reload(self, **changes: Any) -> None:
        """Change settings and send the signal that a service manager sends."""
        self.config = replace(self.config, **changes)
        os.kill(os.getpid(), signal.SIGHUP)

    async def stop(self, number: signal.Signals = signal.SIGTERM) -> float:
        """Send the signal that a service manager sends; return how long it took, in seconds."""
        started = time.monotonic()
        os.kill(os.getpid(), number)
        await asyncio.wait_for(self.task, DEADLINE_S)
        return time.monotonic() - started


@contextlib.asynccontextmanager
async def running(
    data_dir: Path, *, read_settings: Callable[[], Config] | None = None, **settings: Any
) -> AsyncIterator[Daemon]:
    """Run a daemon on a free port."""
    daemon = Daemon(Config(data_dir=data_dir, **({"listen": "127.0.0.1:0"} | settings)))
    (data_dir / "enode").unlink(missing_ok=True)
    task = asyncio.create_task(run_daemon(daemon.config, read_settings or daemon.read_settings))
    try:
        await until(lambda: task.done() or (data_dir / "enode").exists())
        if task.done():
            await task
        daemon.task, daemon.enode = task, read_enode(data_dir)
        yield daemon
    finally:
        for raw in daemon.raws:
            await raw.close()
        if not task.done():
            os.kill(os.getpid(), signal.SIGTERM)
            await asyncio.wait([task], timeout=DEADLINE_S)
            task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@pytest.fixture(autouse=True)
def signals_as_before() -> Iterator[None]:
    """Leave the signals of the test runner as they were."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)}
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
    ours = [record for record in caplog.records if record.name.startswith("mailserver")]
    # How full the disk of this machine is, is told, too.
    assert {record.levelname for record in ours if "check=disk" not in record.getMessage()} == {"INFO"}


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
        packet_rate_limits=DEFAULT_PACKET_LIMITS,
        byte_rate_limits=DEFAULT_BYTE_LIMITS,
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


async def test_settings_of_what_is_announced_reach_the_status(tmp_path: Path) -> None:
    async with running(
        tmp_path, archive_topics=(f"0x{NEWS.hex()}",), packet_rate_limits=(1, 2, 3), byte_rate_limits=(4, 5, 6)
    ) as daemon:
        status = await hear_status(await daemon.dial())

    assert status.bloom is None
    assert status.topic_interest == frozenset({NEWS})
    assert (status.packet_rate_limits, status.byte_rate_limits) == (RateLimits(1, 2, 3), RateLimits(4, 5, 6))


async def hear_status(raw: RawPeer) -> StatusOptions:
    """Say Hello and Status; return the Status that comes."""
    raw.write(raw.hello())
    await raw.hear()
    raw.compressed = True
    raw.say(PacketCode.STATUS, DEPLOYED_STATUS)
    code, payload = await raw.hear_packet()
    assert code == PacketCode.STATUS
    return StatusOptions.decode(payload)


async def test_light_node_says_so_and_parts_from_light_nodes(tmp_path: Path) -> None:
    async with running(tmp_path, light_node=True) as daemon:
        light = await (await daemon.dial("light")).greet(status=StatusOptions(light_node=True).encode())
        assert await light.hear_hangup() is DisconnectReason.USELESS_PEER

        assert (await hear_status(await daemon.dial("full"))).light_node


async def test_limits_that_were_set_hold_for_this_machine(tmp_path: Path) -> None:
    async with running(
        tmp_path,
        max_peers_per_address=2,
        packet_rate_limits=(0, 1, 0),
        rate_limit_tolerance_s=0.0,
        peer_request_limits=(1, 0, 0),
    ) as daemon:
        asking, flooding = await daemon.join("asking"), await daemon.join("flooding")
        refused = await open_stream((daemon.enode.host, daemon.enode.port))
        assert await at_end(refused[0])
        await close_stream(refused[1])

        completions = [(await ask(asking, clear_request()))[1] for _ in range(6)]
        for _ in range(20):
            flooding.say(PacketCode.BATCH_ACKNOWLEDGED, rlp.encode(bytes(32)))

        assert [type(completion) for completion in completions] == [*[Completion] * 5, Failure]
        failure = completions[-1]
        assert isinstance(failure, Failure)
        assert failure.message.startswith(f"{Rejection.RATE_LIMITED.value}: come back in ")
        assert await flooding.hear_hangup() is DisconnectReason.SUBPROTOCOL_ERROR


async def test_addresses_and_peers_that_are_allowed_are_not_limited(tmp_path: Path) -> None:
    limits: dict[str, Any] = {"packet_rate_limits": (0, 1, 0), "rate_limit_tolerance_s": 0.0}
    by_address: dict[str, Any] = {"allowed_addresses": ("127.0.0.0/8",)}
    by_id: dict[str, Any] = {"allowed_peers": (private_key("client").public_key.hex(),)}
    for number, allowed in enumerate((by_address, by_id)):
        async with running(tmp_path / str(number), **limits, **allowed) as daemon:
            raw = await daemon.join()
            for _ in range(20):
                raw.say(PacketCode.BATCH_ACKNOWLEDGED, rlp.encode(bytes(32)))

            assert isinstance((await ask(raw, clear_request()))[1], Completion)


async def test_second_connection_of_a_peer_is_refused_or_takes_the_place_of_the_first_if_nobody_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(liveness_module, "SEEN_S", 0.0)
    async with running(tmp_path) as daemon:
        alive, dead = await daemon.join("alive"), await daemon.join("dead")
        monkeypatch.setattr(liveness_module, "PROBE_TIMEOUT_S", 1.0)

        again = await daemon.dial("dead")
        back = asyncio.create_task(again.greet())  # it waits until the first is given up
        second = await daemon.dial("alive")
        monkeypatch.undo()
        assert isinstance((await ask(alive, clear_request()))[1], Completion)  # that is answer enough
        assert await refusal(second) is DisconnectReason.ALREADY_CONNECTED
        assert (await dead.hear()).message_id == p2p.MessageId.PING
        assert (await dead.hear()).message_id == p2p.MessageId.DISCONNECT

        assert isinstance((await ask(await back, clear_request()))[1], Completion)
        assert isinstance((await ask(alive, clear_request()))[1], Completion)


async def refusal(raw: RawPeer) -> DisconnectReason | None:
    """What the peer hears in place of Hello."""
    message_id, payload = await raw.hear()
    assert message_id == p2p.MessageId.DISCONNECT
    return p2p.decode_disconnect(payload)


async def test_trusted_and_static_peers_find_room_where_others_do_not(tmp_path: Path) -> None:
    def enode(name: str) -> str:
        return str(Enode(private_key(name).public_key, "127.0.0.1", 1))

    async with running(
        tmp_path, max_peers=1, trusted_peers=(enode("trusted"),), static_peers=(enode("static"),)
    ) as daemon:
        await daemon.join("first")

        assert await refusal(await daemon.dial("stranger")) is DisconnectReason.TOO_MANY_PEERS
        await daemon.join("trusted")
        await daemon.join("static")


# Static peers


@pytest.fixture
def neighbour() -> Iterator[socket.socket]:
    """Where a static peer listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        yield server


def enode_of(server: socket.socket, name: str = "neighbour") -> str:
    return str(Enode(private_key(name).public_key, *server.getsockname()))


async def accept(server: socket.socket, name: str = "neighbour") -> RawPeer:
    """Be the static peer: take a call and exchange Hello and Status."""
    end, _ = await asyncio.wait_for(asyncio.get_running_loop().sock_accept(server), DEADLINE_S)
    return await (await RawPeer.accept(end, name=name)).greet()


async def test_static_peer_is_dialled_served_and_told_goodbye(tmp_path: Path, neighbour: socket.socket) -> None:
    async with running(tmp_path, static_peers=(enode_of(neighbour),)) as daemon:
        raw = await accept(neighbour)
        assert isinstance((await ask(raw, clear_request()))[1], Completion)

        stopping = asyncio.create_task(daemon.stop())
        assert await raw.hear_hangup() is DisconnectReason.CLIENT_QUITTING
        await raw.close()

        assert await stopping < STOP_WITHIN_S


async def test_static_peer_that_does_not_answer_does_not_hold_the_stop_up(
    tmp_path: Path, neighbour: socket.socket
) -> None:
    async with running(tmp_path, static_peers=(enode_of(neighbour),)) as daemon:
        end, _ = await asyncio.wait_for(asyncio.get_running_loop().sock_accept(neighbour), DEADLINE_S)

        with end:
            assert await daemon.stop() < STOP_WITHIN_S


async def test_static_peer_that_is_not_there_does_not_hold_the_stop_up(
    tmp_path: Path, neighbour: socket.socket
) -> None:
    enode = enode_of(neighbour)
    neighbour.close()

    async with running(tmp_path, static_peers=(enode,)) as daemon:
        await daemon.join()

        assert await daemon.stop() < STOP_WITHIN_S


# Settings that change while it runs


RELOADED = "settings reloaded changed="


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> Callable[[str], list[str]]:
    """Finds lines of the log from INFO on, as level and message."""
    caplog.set_level(logging.INFO, "mailserver")
    return lambda text: [
        f"{record.levelname} {record.getMessage()}" for record in caplog.records if text in record.getMessage()
    ]


Log = Callable[[str], list[str]]


async def test_changed_proof_of_work_is_announced_to_all_and_said_to_who_comes(tmp_path: Path, log: Log) -> None:
    async with running(tmp_path, min_pow=0.25) as daemon:
        raws = [await daemon.join(f"client {number}") for number in range(2)]

        daemon.reload(min_pow=0.5)
        heard = [await raw.hear_packet() for raw in raws]
        status = await hear_status(await daemon.dial("later"))

    assert heard == [Packet(PacketCode.STATUS_UPDATE, StatusOptions(pow_requirement=0.5).encode())] * 2
    assert status.pow_requirement == 0.5
    assert log(RELOADED) == [f"INFO {RELOADED}min_pow"]


async def test_changed_topics_and_limits_are_announced_and_in_force(tmp_path: Path) -> None:
    async with running(tmp_path) as daemon:
        raw = await daemon.join()

        daemon.reload(archive_topics=(f"0x{NEWS.hex()}",))
        topics = StatusOptions.decode((await raw.hear_packet()).payload)
        daemon.reload(archive_topics=())
        bloom = StatusOptions.decode((await raw.hear_packet()).payload)
        daemon.reload(packet_rate_limits=(0, 1, 0), byte_rate_limits=(0, 0, 0), rate_limit_tolerance_s=0.0)
        limits = StatusOptions.decode((await raw.hear_packet()).payload)
        for _ in range(20):
            raw.say(PacketCode.BATCH_ACKNOWLEDGED, rlp.encode(bytes(32)))
        reason = await raw.hear_hangup()

    assert topics == StatusOptions(topic_interest=frozenset({NEWS}))
    assert bloom == StatusOptions(bloom=FULL_BLOOM)
    assert limits == StatusOptions(packet_rate_limits=RateLimits(0, 1, 0), byte_rate_limits=RateLimits(0, 0, 0))
    assert reason is DisconnectReason.SUBPROTOCOL_ERROR


async def test_changed_room_holds_for_who_comes_and_nobody_has_to_go(tmp_path: Path, log: Log) -> None:
    async with running(tmp_path, max_peers=2) as daemon:
        raws = [await daemon.join(f"client {number}") for number in range(2)]

        daemon.reload(max_peers=1)
        await until(lambda: bool(log(RELOADED)))
        refused = await refusal(await daemon.dial("third"))
        daemon.reload(max_peers=3)
        await until(lambda: len(log(RELOADED)) == 2)
        await daemon.join("fourth")
        daemon.reload(max_peers_per_address=3)
        await until(lambda: len(log(RELOADED)) == 3)
        stream = await open_stream((daemon.enode.host, daemon.enode.port))

        assert refused is DisconnectReason.TOO_MANY_PEERS
        assert await at_end(stream[0])
        await close_stream(stream[1])
        for raw in raws:
            assert isinstance((await ask(raw, clear_request()))[1], Completion)


async def test_limits_of_requests_change_for_who_is_connected(tmp_path: Path, log: Log) -> None:
    async with running(tmp_path) as daemon:
        raw = await daemon.join()

        daemon.reload(peer_request_limits=(1, 0, 0))
        await until(lambda: bool(log(RELOADED)))
        completions = [(await ask(raw, clear_request()))[1] for _ in range(6)]

    assert [type(completion) for completion in completions] == [*[Completion] * 5, Failure]


async def test_static_and_trusted_peers_change(tmp_path: Path, neighbour: socket.socket, log: Log) -> None:
    trusted = str(Enode(private_key("trusted").public_key, "127.0.0.1", 1))
    async with running(tmp_path, max_peers=1) as daemon:
        daemon.reload(static_peers=(enode_of(neighbour),), trusted_peers=(trusted,))
        raw = await accept(neighbour)
        first = await daemon.join("trusted")
        assert await refusal(await daemon.dial("stranger")) is DisconnectReason.TOO_MANY_PEERS

        daemon.reload(static_peers=(), trusted_peers=())
        await until(lambda: len(log(RELOADED)) == 2)
        assert isinstance((await ask(raw, clear_request()))[1], Completion)  # nobody has to go
        await first.close()
        assert await refusal(await daemon.dial("trusted")) is DisconnectReason.TOO_MANY_PEERS
        await raw.close()

    assert log(RELOADED) == [f"INFO {RELOADED}static_peers,trusted_peers"] * 2


async def test_setting_that_needs_a_restart_is_named_and_the_others_are_in_force(tmp_path: Path, log: Log) -> None:
    async with open_store(tmp_path / STORE_FILE) as store:
        await fill(store, [make_envelope(number) for number in range(3)])

    async with running(tmp_path, min_pow=0.25, max_request_limit=2) as daemon:
        raw = await daemon.join()
        daemon.reload(max_request_limit=3, light_node=True, min_pow=0.5)
        update = await raw.hear_packet()
        _, page = await ask(raw, clear_request())

    assert update.payload == StatusOptions(pow_requirement=0.5).encode()
    assert isinstance(page, Completion)
    assert page.cursor is not None  # two of three, as before
    assert log("needs a restart") == [
        "WARNING setting needs a restart name=light_node",
        "WARNING setting needs a restart name=max_request_limit",
    ]


async def test_changed_retention_is_in_force(tmp_path: Path, log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pruning_module, "FIRST_ROUND_S", 0.01)
    monkeypatch.setattr(pruning_module, "ROUND_INTERVAL_S", 0.01)
    async with running(tmp_path, retention_days=0.0) as daemon:
        raw = await daemon.join()
        raw.say(
            PacketCode.MESSAGES, encode_envelopes([make_envelope(n, created=int(time.time())).raw for n in range(5)])
        )
        await raw.hear_packet()

        daemon.reload(retention_envelopes=2, archive_before_prune=False)
        await until(lambda: bool(log("pruned")))
        _, completion = await ask(raw, clear_request())

    assert log("pruned")[0].startswith("INFO pruned envelopes=3 ")
    assert log(RELOADED) == [f"INFO {RELOADED}retention_envelopes,archive_before_prune"]
    assert isinstance(completion, Completion)


async def test_settings_that_are_the_same_change_nothing(tmp_path: Path, log: Log) -> None:
    async with running(tmp_path) as daemon:
        raw = await daemon.join()

        daemon.reload()
        await until(lambda: bool(log(RELOADED)))
        raw.say(PacketCode.P2P_REQUEST, clear_request())

        assert (await raw.hear_packet()).code == PacketCode.P2P_REQUEST_COMPLETE  # nothing else before it
    assert log(RELOADED) == [f"INFO {RELOADED}-"]


async def call(port: int, method: str, *params: object) -> Any:
    """Make a call by JSON-RPC, by hand."""
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).encode()
    reader, writer = await open_stream(("127.0.0.1", port))
    head = f"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
    writer.write(f"{head}Connection: close\r\n\r\n".encode() + body)
    async with asyncio.timeout(DEADLINE_S):
        answer = await reader.read()
    await close_stream(writer)
    return json.loads(answer.partition(b"\r\n\r\n")[2])["result"]


async def test_history_requests_of_ours_have_the_work_of_the_setting(tmp_path: Path, log: Log) -> None:
    """Those that are made by JSON-RPC, and those of catching up."""
    mailserver = str(Enode(private_key("client").public_key, "127.0.0.1", 1))
    async with running(tmp_path, rpc="127.0.0.1:0", request_pow=0.02) as daemon:
        raw = await daemon.join("client")
        port = int(log("serving JSON-RPC")[0].partition("port=")[2].split()[0])

        await call(port, "waku_markTrustedPeer", mailserver)
        key_id = await call(port, "waku_addSymKey", f"0x{bytes(range(32)).hex()}")
        fields = {"mailServerPeer": mailserver, "topics": [f"0x{NEWS.hex()}"], "symKeyID": key_id}
        await call(port, "wakuext_requestMessages", fields)

        request = decode_request((await raw.hear_packet()).payload)
        assert isinstance(request, SealedRequest)
        assert request.envelope.pow() >= 0.02
    assert catchup_settings(Config(request_pow=0.02)).request_pow == 0.02


async def test_what_json_rpc_has_changed_stays_unless_the_settings_change_it(tmp_path: Path, log: Log) -> None:
    async with running(tmp_path, min_pow=0.25, rpc="127.0.0.1:0") as daemon:
        raw = await daemon.join()
        port = int(log("serving JSON-RPC")[0].partition("port=")[2].split()[0])

        assert await call(port, "waku_setMinPoW", 2.0) is True
        heard = [StatusOptions.decode((await raw.hear_packet()).payload)]
        daemon.reload(max_peers=7)
        await until(lambda: bool(log(RELOADED)))
        daemon.reload(min_pow=0.5)
        heard.append(StatusOptions.decode((await raw.hear_packet()).payload))

    assert [options.pow_requirement for options in heard] == [2.0, 0.5]


async def test_peers_that_json_rpc_has_added_stay_when_the_settings_name_others(tmp_path: Path, log: Log) -> None:
    """SIGHUP touches only the peers that the settings name, or have named."""
    by_rpc, first, second = (
        str(Enode(private_key(name).public_key, "127.0.0.1", 1)) for name in ("client", "first", "second")
    )
    async with running(tmp_path, rpc="127.0.0.1:0", trusted_peers=(first,)) as daemon:
        await daemon.join("client")
        await daemon.join("first")
        await daemon.join("second")
        port = int(log("serving JSON-RPC")[0].partition("port=")[2].split()[0])

        async def marked() -> dict[str, tuple[bool, bool]]:
            """Who is trusted, and who is static."""
            peers = await call(port, "admin_peers")
            return {peer["enode"][8:16]: (peer["network"]["trusted"], peer["network"]["static"]) for peer in peers}

        for method in ("waku_markTrustedPeer", "admin_addPeer"):
            assert await call(port, method, by_rpc) is True
        before = await marked()
        daemon.reload(trusted_peers=(second,), static_peers=(second,))
        await until(lambda: bool(log(RELOADED)))
        after = await marked()

    names = [Enode.parse(url).node_id.hex()[:8] for url in (by_rpc, first, second)]
    assert before == dict(zip(names, [(True, True), (True, False), (False, False)], strict=True))
    assert after == dict(zip(names, [(True, True), (False, False), (True, True)], strict=True))


async def test_broken_file_leaves_everything_as_it_is_until_it_is_mended(tmp_path: Path, log: Log) -> None:
    file = tmp_path / "mailserver.toml"
    flags = {"data_dir": tmp_path, "listen": "127.0.0.1:0"}
    file.write_text("min_pow = 0.25\n")
    async with running(tmp_path, read_settings=lambda: load_config(flags, {}, file), min_pow=0.25) as daemon:
        raw = await daemon.join()
        for count, broken in enumerate(
            ("min_pow = ", "min_pow = -1", "min_pow = 0.5\nmax_pears = 1", "min_pow = 0.5\nmax_peers = 0"), start=1
        ):
            file.write_text(broken)
            daemon.reload()
            await until(lambda: len(log("settings not reloaded")) == count)  # noqa: B023 - it is over in this round
        status = await hear_status(await daemon.dial("later"))
        file.write_text("min_pow = 1\n")
        daemon.reload()
        update = await raw.hear_packet()

    assert status.pow_requirement == 0.25
    assert update.payload == StatusOptions(pow_requirement=1.0).encode()
    said = log("settings not reloaded")
    assert all(line.startswith("ERROR settings not reloaded error=") for line in said)
    assert f"{file}: unknown key 'max_pears'" in said[2]
    assert log(RELOADED) == [f"INFO {RELOADED}min_pow"]


async def test_file_that_is_gone_leaves_everything_as_it_is(tmp_path: Path, log: Log) -> None:
    def gone() -> Config:
        raise ConfigError("cannot read mailserver.toml: No such file or directory")

    async with running(tmp_path, read_settings=gone) as daemon:
        raw = await daemon.join()
        daemon.reload()
        await until(lambda: bool(log("settings not reloaded")))

        assert isinstance((await ask(raw, clear_request()))[1], Completion)


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


async def _fail(peer: object) -> NoReturn:
    raise ZeroDivisionError


@pytest.mark.parametrize("work", [Relay, Catchup])
async def test_fault_of_ours_in_what_nothing_goes_on_without_ends_the_daemon(
    tmp_path: Path, work: type, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    fails = asyncio.Event()

    async def fail(work: object) -> NoReturn:
        await fails.wait()
        raise ZeroDivisionError("of the test")

    monkeypatch.setattr(work, "run", fail)
    async with running(tmp_path) as daemon:
        raw = await daemon.join()

        fails.set()
        reason = await raw.hear_hangup()
        await raw.close()
        with pytest.raises(ZeroDivisionError, match="of the test"):
            await asyncio.wait_for(daemon.task, DEADLINE_S)

    assert reason is DisconnectReason.CLIENT_QUITTING
    [record] = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert (record.levelname, record.exc_info is not None) == ("CRITICAL", True)
    assert fail.__qualname__ in record.getMessage()  # the log says what it was that failed
