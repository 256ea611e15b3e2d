"""mailserver.app.gateway in this process, beside a real store and feed socket. As a process: `tests/integration/`."""

import asyncio
import contextlib
import logging
import os
import re
import signal
import stat
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from mailserver.app.gateway import run_gateway
from mailserver.app.gateway_config import GatewayConfig
from mailserver.data_dir.folder import DataDirInUse
from mailserver.data_dir.gateway_files import ADDRESSES_FILE, GATEWAY_KEY_FILE
from mailserver.errors import StartupError, StoreError
from mailserver.gateway.index.schema import INDEX_FILE
from mailserver.ids.envelopes import NS, content_topic_of
from mailserver.ids.muid import DEFAULT_NETWORK_TOPIC
from mailserver.ids.waku_message import WakuMessage
from mailserver.libp2p.multiaddr import AddressProtocol, Multiaddr
from mailserver.waku.acceptance import Requirements
from mailserver.waku.envelope import Envelope
from mailserver.waku2.metadata import Metadata, decode_metadata
from mailserver.waku2.protocols import ProtocolId
from mailserver.waku2.store_query import StoreQueryRequest
from tests.feed_socket.worlds import World, running_world
from tests.gateway.clients import LightClient, connected
from tests.mailservers import NEWS, make_envelope
from tests.pairs import digest
from tests.waiting import DEADLINE_S, until

pytestmark = pytest.mark.integration

TOPIC = DEFAULT_NETWORK_TOPIC
NEWS_TOPIC = content_topic_of(NEWS)
AWAY = "the mailserver is not connected: nothing is pushed, and nothing can be sent"
ALL = StoreQueryRequest("all", include_data=True, pagination_forward=True, pagination_limit=100)


@dataclass
class Gateway:
    """A gateway that runs in this process. `address`: where it listens over TCP."""

    task: asyncio.Task[None]
    address: Multiaddr
    monitor_port: int

    def client(self, name: str = "client") -> contextlib.AbstractAsyncContextManager[LightClient]:
        return connected(int(self.address.value(AddressProtocol.TCP) or 0), seed=digest(name))

    async def get(self, path: str) -> tuple[int, Any]:
        """Ask for metrics or health."""
        url = f"http://127.0.0.1:{self.monitor_port}{path}"
        async with aiohttp.ClientSession() as session, session.get(url) as answer:
            is_json = answer.content_type == "application/json"
            return answer.status, await (answer.json() if is_json else answer.text())

    async def problems(self) -> list[str]:
        """What /ready says, whose code agrees with it."""
        code, said = await self.get("/ready")
        assert (code, said["status"]) == ((503, "not ready") if said["problems"] else (200, "ready"))
        return list(said["problems"])

    async def until_ready(self) -> None:
        await self.until_problems([])

    async def until_problems(self, expected: list[str]) -> None:
        async with asyncio.timeout(DEADLINE_S):
            while await self.problems() != expected:
                pass

    async def stop(self, number: signal.Signals = signal.SIGTERM) -> None:
        """Send the signal that a service manager sends, and wait."""
        os.kill(os.getpid(), number)
        await asyncio.wait_for(self.task, DEADLINE_S)


@contextlib.asynccontextmanager
async def running(data_dir: Path, caplog: pytest.LogCaptureFixture, **settings: Any) -> AsyncIterator[Gateway]:
    """Run a gateway on free ports."""
    caplog.set_level(logging.INFO, "mailserver")
    defaults = {"listen": "127.0.0.1:0", "websocket": "", "metrics": "127.0.0.1:0"}
    config = GatewayConfig(data_dir=data_dir, **(defaults | settings))
    (data_dir / ADDRESSES_FILE).unlink(missing_ok=True)
    task = asyncio.create_task(run_gateway(config))
    try:
        await until(lambda: task.done() or (data_dir / ADDRESSES_FILE).exists())
        if task.done():
            await task
        first = (data_dir / ADDRESSES_FILE).read_text().split()[0]
        *_, port = re.findall(r"serving metrics port=(\d+)", caplog.text) or ["0"]
        yield Gateway(task, Multiaddr.parse(first), int(port))
    finally:
        if not task.done():
            os.kill(os.getpid(), signal.SIGTERM)
            await asyncio.wait([task], timeout=DEADLINE_S)
        await asyncio.gather(task, return_exceptions=True)


@contextlib.asynccontextmanager
async def mailserver(data_dir: Path, *, network_topic: str = TOPIC, min_pow: float = 0.0) -> AsyncIterator[World]:
    """What the gateway sees of a mailserver."""
    requirements = Requirements(min_pow)
    async with running_world(
        data_dir, wall_clock=time.time, requirements=requirements, network_topic=network_topic
    ) as world:
        yield world


def fresh(number: int) -> Envelope:
    return make_envelope(number, created=int(time.time()))


def message(number: int) -> WakuMessage:
    return WakuMessage(f"message {number}".encode(), NEWS_TOPIC, timestamp=int(time.time() * NS))


def is_working() -> bool:
    """Whether a message is being sent on."""
    return any(task.get_name() == "bridge" for task in asyncio.all_tasks())


async def hear(client: LightClient, count: int) -> list[bytes]:
    await until(lambda: len(client.pushes) >= count)
    return [push.waku_message.payload for push in client.pushes]


# Starting


async def test_addresses_are_printed_and_written_with_the_peer_id(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(tmp_path / "new", caplog, websocket="127.0.0.1:0") as gateway:
        lines = (tmp_path / "new" / ADDRESSES_FILE).read_text().splitlines()
        peer_id = gateway.address.value(AddressProtocol.P2P)

        assert [re.sub(r"tcp/\d+", "tcp/N", line) for line in lines] == [
            f"/ip4/127.0.0.1/tcp/N/p2p/{peer_id}",
            f"/ip4/127.0.0.1/tcp/N/ws/p2p/{peer_id}",
        ]
        assert all(f"listening address={line}" in caplog.text for line in lines)


async def test_key_stays_the_same_and_is_its_owners_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with running(tmp_path, caplog) as first:
        pass
    async with running(tmp_path, caplog) as second:
        pass

    assert first.address.value(AddressProtocol.P2P) == second.address.value(AddressProtocol.P2P)
    assert stat.S_IMODE((tmp_path / GATEWAY_KEY_FILE).stat().st_mode) == 0o600


@pytest.mark.parametrize(
    ("host", "shown"),
    [("0.0.0.0", "/ip4/127.0.0.1/tcp/"), ("[::1]", "/ip6/::1/tcp/"), ("localhost", "/dns/localhost/tcp/")],
)
async def test_address_that_is_shown_can_be_dialled(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, host: str, shown: str
) -> None:
    async with running(tmp_path, caplog, listen=f"{host}:0") as gateway:
        assert str(gateway.address).startswith(shown)


async def test_addresses_of_the_settings_are_shown_instead(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with running(tmp_path, caplog, advertise=("/dns4/example.org/tcp/443/wss",)) as gateway:
        assert str(gateway.address).startswith("/dns4/example.org/tcp/443/wss/p2p/")


async def test_second_gateway_on_the_folder_is_refused_and_the_first_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(tmp_path, caplog) as gateway:
        with pytest.raises(DataDirInUse, match="another gateway"):
            await run_gateway(GatewayConfig(data_dir=tmp_path, listen="127.0.0.1:0", websocket=""))
        async with gateway.client() as client:
            assert (await client.query(ALL)).status_code == 503
        gateway.task.cancel()  # the second one took its signals


async def test_port_that_is_taken_and_a_file_that_is_no_index_end_the_start(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(tmp_path / "first", caplog) as gateway:
        port = gateway.address.value(AddressProtocol.TCP)
        with pytest.raises(StartupError, match="cannot listen on"):
            await run_gateway(GatewayConfig(data_dir=tmp_path / "second", listen=f"127.0.0.1:{port}", websocket=""))
        gateway.task.cancel()
    (tmp_path / "second" / INDEX_FILE).write_bytes(b"no database" * 1000)
    for ending in ("-wal", "-shm"):
        (tmp_path / "second" / f"{INDEX_FILE}{ending}").unlink(missing_ok=True)
    with pytest.raises(StoreError, match="cannot use the index"):
        await run_gateway(GatewayConfig(data_dir=tmp_path / "second", listen="127.0.0.1:0", websocket=""))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_signal_ends_it_with_its_clients(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, number: signal.Signals
) -> None:
    async with mailserver(tmp_path), running(tmp_path, caplog) as gateway, gateway.client() as client:
        await client.subscribe(TOPIC, NEWS_TOPIC)
        await gateway.stop(number)
        await client.until_closed()

    assert caplog.messages.index("stopping") < caplog.messages.index("stopped")
    assert {record.levelname for record in caplog.records if "gateway" in record.name} == {"INFO"}


async def test_signal_ends_it_while_work_is_done_for_a_message(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with (
        mailserver(tmp_path, min_pow=5000.0),
        running(tmp_path, caplog, pow_share=1.0) as gateway,
        gateway.client() as client,
    ):
        await gateway.until_ready()
        sending = asyncio.create_task(client.lightpush(TOPIC, message(1)))
        await until(is_working)
        await gateway.stop()
        assert not is_working()
        await client.until_closed()
        with contextlib.suppress(AssertionError):
            await sending


# Beside the mailserver


async def test_gateway_starts_without_a_store_and_serves_once_there_is_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(tmp_path, caplog) as gateway, gateway.client() as client:
        assert (await client.query(ALL)).status_code == 503
        assert (await client.lightpush(TOPIC, message(1))).status_code == 503
        assert (await client.subscribe(TOPIC, NEWS_TOPIC)).status_code == 200
        away, no_store = await gateway.problems()
        assert away == AWAY
        assert no_store.startswith("history cannot be read: ")

        async with mailserver(tmp_path) as world:
            await world.intake.take_own(fresh(1))
            await gateway.until_ready()
            await world.intake.take_own(fresh(2))
            assert await hear(client, 2) == [fresh(1).data, fresh(2).data]
            assert len((await client.query(ALL)).messages) == 2


async def test_history_is_served_while_the_mailserver_is_away(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with mailserver(tmp_path) as world:
        await world.intake.take_own(fresh(1))
    async with running(tmp_path, caplog) as gateway, gateway.client() as client:
        assert len((await client.query(ALL)).messages) == 1
        assert (await client.lightpush(TOPIC, message(1))).status_code == 503
        assert await gateway.problems() == [AWAY]


async def test_restarts_of_the_mailserver_lose_and_double_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    sent: list[Envelope] = []
    pushed: list[bytes] = []
    async with running(tmp_path, caplog) as gateway, gateway.client() as client:
        await client.subscribe(TOPIC, NEWS_TOPIC)
        for round_ in range(3):
            async with mailserver(tmp_path) as world:
                for number in range(20 * round_, 20 * round_ + 20):  # some before the gateway is back
                    sent.append(fresh(number))
                    await world.intake.take_own(sent[-1])
                await gateway.until_ready()
                sent.append(fresh(1000 + round_))
                await world.intake.take_own(sent[-1])
                pushed = await hear(client, len(sent))
        _, metrics = await gateway.get("/metrics")

    assert sorted(pushed) == sorted(each.data for each in sent)  # what was missed may come late
    assert f"gateway_pushes_total {len(sent)}.0" in metrics


async def test_restart_of_the_gateway_pushes_nothing_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with mailserver(tmp_path) as world:
        async with running(tmp_path, caplog) as gateway, gateway.client() as client:
            await client.subscribe(TOPIC, NEWS_TOPIC)
            await world.intake.take_own(fresh(1))
            await hear(client, 1)
        async with running(tmp_path, caplog) as gateway, gateway.client() as client:
            await client.subscribe(TOPIC, NEWS_TOPIC)
            await gateway.until_ready()
            await world.intake.take_own(fresh(2))
            assert await hear(client, 1) == [fresh(2).data]


async def test_message_that_was_sent_is_known_after_a_restart(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    sent = message(1)
    async with mailserver(tmp_path):
        for _ in range(2):
            async with running(tmp_path, caplog) as gateway, gateway.client() as client:
                await gateway.until_ready()
                assert (await client.lightpush(TOPIC, sent)).status_code == 200
                page = await client.query(ALL)
                assert [each.message for each in page.messages] == [sent]


async def test_mailserver_of_another_network_topic_is_told_and_nothing_is_sent(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with (
        mailserver(tmp_path, network_topic="/waku/2/rs/16/32"),
        running(tmp_path, caplog) as gateway,
        gateway.client() as client,
    ):
        await gateway.until_problems(["the mailserver has another network topic: /waku/2/rs/16/32"])

        assert (await client.lightpush(TOPIC, message(1))).status_code == 503


# What is told


async def test_clients_are_told_cluster_and_shard(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with running(tmp_path, caplog, network_topic="/waku/2/rs/16/32") as gateway, gateway.client() as client:
        answer = await client.ask(ProtocolId.METADATA, Metadata(16, ()).encode())

    assert answer is not None
    assert decode_metadata(answer) == Metadata(16, (32,))


async def test_health_is_told_whatever_the_problems_are(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with running(tmp_path, caplog) as gateway:
        code, said = await gateway.get("/health")

    assert (code, said["status"]) == (200, "alive")
    assert AWAY in said["problems"]


async def test_metrics_say_what_clients_have(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with mailserver(tmp_path), running(tmp_path, caplog) as gateway, gateway.client() as client:
        await gateway.until_ready()
        await client.subscribe(TOPIC, NEWS_TOPIC, "/a/1/b/proto")
        _, metrics = await gateway.get("/metrics")

    for line in (
        'gateway_clients{transport="tcp"} 1.0',
        "gateway_subscribers 1.0",
        "gateway_criteria 2.0",
        "gateway_connected 1.0",
        "gateway_unindexed_envelopes 0.0",
        'gateway_requests_total{code="200",protocol="filter"} 1.0',
    ):
        assert line in metrics.splitlines()
    assert NEWS_TOPIC not in metrics
    assert str(client.own_id) not in metrics


async def test_without_a_port_for_metrics_there_are_none(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with running(tmp_path, caplog, metrics="") as gateway, gateway.client():
        assert "serving metrics" not in caplog.text
