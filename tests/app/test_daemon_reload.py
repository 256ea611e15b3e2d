"""mailserver.app.wiring: settings that change while the daemon runs."""

import asyncio
import json
import logging
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mailserver.app.config import Config
from mailserver.app.config_sources import MAILSERVER
from mailserver.app.wiring import catchup_settings
from mailserver.codec import rlp
from mailserver.codec.keccak import keccak256
from mailserver.codec.keys import Enode
from mailserver.errors import ConfigError, DisconnectReason
from mailserver.mail.completion import Completion, Failure
from mailserver.mail.request import SealedRequest, decode_request
from mailserver.store.sqlite.schema import STORE_FILE
from mailserver.store.sqlite.store import open_store
from mailserver.upkeep import pruning as pruning_module
from mailserver.waku.bloom import FULL_BLOOM
from mailserver.waku.envelope import encode_envelopes
from mailserver.waku.packets import MessageResponse, PacketCode, RateLimits, StatusOptions
from tests.app.daemons import accept, ask, clear_request, enode_of, fresh, hear_status, refusal, running
from tests.mailservers import NEWS, fill, make_envelope
from tests.pairs import private_key
from tests.raw_peer import Packet, at_end, close_stream, open_stream
from tests.waiting import DEADLINE_S, until

pytestmark = pytest.mark.integration


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
    async with running(tmp_path, read_settings=lambda: MAILSERVER.load(flags, {}, file), min_pow=0.25) as daemon:
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
