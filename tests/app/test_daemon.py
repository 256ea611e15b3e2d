"""mailserver.app.daemon in this process: start, settings, static peers, faults. As a process: `tests/integration/`."""

import asyncio
import json
import logging
import re
import socket
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import pytest

from mailserver.app.control_call import STATUS, call_daemon
from mailserver.archive.paths import RECORDS
from mailserver.archive.reading import source
from mailserver.catchup.catchup import Catchup
from mailserver.codec import rlp
from mailserver.codec.keys import Enode
from mailserver.errors import DisconnectReason, Rejection, StartupError, StoreError
from mailserver.limits.packet_rates import DEFAULT_BYTE_LIMITS, DEFAULT_PACKET_LIMITS
from mailserver.live.relay import Relay
from mailserver.mail.completion import Completion, Failure, decode_completion
from mailserver.metrics.labels import Check
from mailserver.monitoring import watch
from mailserver.peers.served_peer import ServedPeer
from mailserver.rlpx import liveness as liveness_module
from mailserver.rlpx import p2p
from mailserver.store.sqlite.schema import STORE_FILE
from mailserver.store.sqlite.store import open_store
from mailserver.waku.bloom import FULL_BLOOM
from mailserver.waku.packets import EnvelopeErrorCode, MessageResponse, PacketCode, RateLimits, StatusOptions
from mailserver.waku.payload import key_from_password
from tests.app.daemons import (
    CLEAR_ID,
    STOP_WITHIN_S,
    accept,
    ask,
    clear_request,
    enode_of,
    fresh,
    hear_status,
    refusal,
    running,
)
from tests.archive.reading.parquet import envelope, write_period
from tests.data import load
from tests.foreign_stores import FOREIGN_STORES, contents
from tests.mailservers import NEWS, deployed_fields, fill, make_envelope, sealed_request
from tests.pairs import private_key
from tests.raw_peer import at_end, close_stream, open_stream
from tests.store.samples import START
from tests.waiting import DEADLINE_S, until

pytestmark = pytest.mark.integration


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


async def test_archive_is_looked_at_before_the_first_request(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    archive = tmp_path / "archive"
    write_period(archive, [envelope(1, created=START, topic=NEWS)])
    for record in (archive / RECORDS).iterdir():
        record.write_text("no record")

    async with running(tmp_path, archive=str(archive)):
        await until(lambda: "file of the archive is damaged error=" in caplog.text)


async def test_archive_that_cannot_be_read_is_told_by_ready_and_status_until_it_can(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO, "mailserver")
    monkeypatch.setattr(watch, "LOOK_INTERVAL_S", 0.05)
    archive = tmp_path / "archive"
    (file,) = write_period(archive, [envelope(1, created=START, topic=NEWS)], snapshot=False)

    async with running(tmp_path, archive=str(archive), metrics="127.0.0.1:0") as daemon:
        port = re.findall(r"serving metrics port=(\d+)", caplog.text)[-1]

        async def is_told(*texts: str) -> bool:
            """Whether `/ready`, by 200, and `status` say just this of the archive."""

            def ready() -> tuple[int, dict[str, Any]]:
                try:
                    answer = urllib.request.urlopen(f"http://127.0.0.1:{port}/ready")
                except urllib.error.HTTPError as refused:
                    answer = refused
                with answer:
                    return answer.status, json.load(answer)

            code, by_ready = await asyncio.to_thread(ready)
            by_status = await call_daemon(tmp_path, STATUS, {}, lambda _: None)
            said = [
                [each["text"] for each in one["problems"] if each["check"] == Check.ARCHIVE.value]
                for one in (by_ready, by_status)
            ]
            return (code, said) == (200, [[*texts], [*texts]])

        async def until_told(*texts: str) -> None:
            async with asyncio.timeout(DEADLINE_S):
                while not await is_told(*texts):  # noqa: ASYNC110 - it has to be asked
                    await asyncio.sleep(0.01)

        times = START.to_bytes(4, "big"), (START + 1).to_bytes(4, "big")
        request = rlp.encode([CLEAR_ID, *times, b"", b"", b"", [NEWS]])
        raw = await daemon.join()
        assert (await ask(raw, request))[0] == 1
        await until_told()
        file.rename(tmp_path / "elsewhere")
        _, failure = await ask(raw, request)
        assert isinstance(failure, Failure)
        await until_told(f"requests could not be answered from the archive: {file} is missing")

        (tmp_path / "elsewhere").rename(file)
        assert (await ask(raw, request))[0] == 1
        monkeypatch.setattr(source, "REMEMBERED_S", 0.0)
        await until_told()


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
        with pytest.raises(StartupError) as error:
            async with running(tmp_path, listen=address):
                pass

    assert str(error.value).startswith(f"cannot listen on {address}: ")
    assert "in use" in str(error.value)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "enode").exists()


@pytest.mark.parametrize("listen", ["192.0.2.1:0", "a..b:0", "no-such-host.invalid:0", f"{'a' * 64}:0"])
async def test_address_that_is_not_ours_is_one_clear_line(tmp_path: Path, listen: str) -> None:
    with pytest.raises(StartupError) as error:
        async with running(tmp_path, listen=listen):
            pass

    assert str(error.value).startswith(f"cannot listen on {listen}: ")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(("make", "message"), FOREIGN_STORES)
async def test_store_that_is_not_ours_is_refused_and_left_alone(
    tmp_path: Path, make: Callable[[Path], None], message: str
) -> None:
    (tmp_path / "nodekey").write_text("11" * 32 + "\n")
    (tmp_path / "nodekey").chmod(0o600)
    make(tmp_path / STORE_FILE)
    before = contents(tmp_path)

    with pytest.raises(StoreError) as refused:
        async with running(tmp_path):
            pass

    assert str(refused.value).startswith(message.format(tmp_path / STORE_FILE))
    assert "\n" not in str(refused.value)
    assert contents(tmp_path) == before


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
    monkeypatch.setattr(liveness_module, "SEEN_RECENTLY_S", 0.0)
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
