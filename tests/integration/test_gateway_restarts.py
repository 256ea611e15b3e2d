"""What a client of js-waku sees of a gateway, or a daemon, that goes away and comes back; and its pings."""

import asyncio
import secrets
import signal
import time
from pathlib import Path

import pytest

from mailserver.client.mail_client import connect
from mailserver.waku.envelope import Topic
from mailserver.waku2.lightpush_rules import MAX_TIMESTAMP_OFFSET_S
from tests.integration.daemons import DEADLINE_S, running_daemon
from tests.integration.gateways import METRICS, GatewayProcess, running_gateway
from tests.integration.light_clients import envelopes_of, light_client, post, sealed, sent_hash

pytestmark = pytest.mark.integration

AHEAD_MS = (MAX_TIMESTAMP_OFFSET_S - 5) * 1000
"""How far ahead of our clock the timestamp of a message is that is sent again: it is taken for so much longer. On a
busy machine, a gateway takes its time to start, and js-waku to find it."""


@pytest.fixture
def topic() -> Topic:
    """A new topic."""
    return Topic(secrets.token_bytes(4))


async def wait_for_metric(gateway: GatewayProcess, name: str, least: float) -> None:
    """Wait until a metric is at least this."""
    async with asyncio.timeout(DEADLINE_S):
        while await asyncio.to_thread(gateway.metric, name) < least:
            pass


async def test_pings_of_a_subscriber_are_answered(data_dir: Path, topic: Topic) -> None:
    with running_daemon(data_dir, "--feed-socket"), running_gateway(data_dir, *METRICS) as gateway:
        async with light_client("--keep-alive-ms", "100") as js:
            await js.dial(gateway.websocket)
            await js.subscribe(topic)

            await wait_for_metric(gateway, 'gateway_requests_total{code="200",protocol="filter"}', 5)

        assert gateway.metric('gateway_requests_total{code="404",protocol="filter"}') == 0


async def test_sdk_does_not_take_a_gateway_back_by_itself(data_dir: Path, topic: Topic) -> None:
    with running_daemon(data_dir, "--feed-socket") as daemon:
        async with light_client() as js, light_client() as other:
            with running_gateway(data_dir) as killed:
                await js.dial(killed.websocket)
                await js.subscribe(topic)
                first = await post(daemon.enode, await sealed(topic, "first"))
                await js.wait_for_pushes(1)
                killed.stop(signal.SIGKILL)
            await js.wait_until_disconnected()
            with running_gateway(data_dir, like=killed) as gateway:
                await other.dial(gateway.websocket)
                await other.subscribe(topic)
                second = await post(daemon.enode, await sealed(topic, "second"))
                assert await other.wait_for_pushes(1) == second
                was_connected, pushed_alone = await js.is_connected(), len(js.pushed)

                await js.dial(gateway.websocket)
                assert sorted(await js.history(topic)) == sorted(first + second)

    assert (was_connected, pushed_alone) == (False, 1)


async def test_client_that_follows_gets_each_message_once_though_the_gateway_was_killed(
    data_dir: Path, topic: Topic
) -> None:
    with running_daemon(data_dir, "--feed-socket") as daemon:
        expected = await post(daemon.enode, await sealed(topic, "before"))
        async with light_client() as js:
            with running_gateway(data_dir) as killed:
                await js.follow(killed.websocket, topic)
                await js.wait_until_told("connected")
                expected += await post(daemon.enode, await sealed(topic, "live"))
                await js.wait_for_pushes(2)
                killed.stop(signal.SIGKILL)
            await js.wait_until_told("lost")
            expected += await post(daemon.enode, *[await sealed(topic, f"meanwhile {number}") for number in range(3)])
            with running_gateway(data_dir, like=killed):
                await js.wait_until_told("connected", 2)
                expected += await post(daemon.enode, await sealed(topic, "afterwards"))
                pushed = await js.wait_for_pushes(6)
                history = await js.history(topic)

    assert sorted(pushed) == sorted(history) == sorted(expected)


async def test_subscription_outlives_a_restart_of_the_daemon(data_dir: Path, topic: Topic) -> None:
    with running_daemon(data_dir, "--feed-socket") as daemon, running_gateway(data_dir, *METRICS) as gateway:
        async with light_client() as js:
            await js.dial(gateway.websocket)
            await js.subscribe(topic)
            expected = await post(daemon.enode, await sealed(topic, "before"))
            await js.wait_for_pushes(1)
            daemon.stop(signal.SIGKILL)
            gateway.wait_for_line("feed lost")
            assert await js.history(topic) == expected  # it is served without the daemon
            refused = await js.ask("send", topic=f"/waku/1/0x{topic.hex()}/rfc26", payload="00")

            with running_daemon(data_dir, "--feed-socket") as restarted:
                # What is posted before the gateway is connected again comes from the store.
                expected += await post(restarted.enode, await sealed(topic, "afterwards"))
                pushed = await js.wait_for_pushes(2)
                await wait_for_metric(gateway, "gateway_connected", 1)
                await js.send(topic, b"from js")
                await js.wait_for_pushes(3)
                history = await js.history(topic)

    assert (refused["successes"], len(refused["failures"])) == (0, 1)
    assert pushed == expected
    assert sorted(history) == sorted(message["hash"] for message in js.pushed)


async def test_message_that_is_sent_again_after_a_restart_reaches_v1_once(data_dir: Path, topic: Topic) -> None:
    with running_daemon(data_dir, "--feed-socket") as daemon:
        async with light_client() as js, connect(daemon.enode, "test/1") as v1:
            with running_gateway(data_dir) as killed:
                await js.dial(killed.websocket)
                ahead = time.time_ns() // 1_000_000 + AHEAD_MS
                await js.send(topic, b"once", timestamp=ahead)
                killed.stop(signal.SIGKILL)
            await js.wait_until_disconnected()
            with running_gateway(data_dir, like=killed) as gateway:
                await js.dial(gateway.websocket)
                await js.send(topic, b"once", timestamp=ahead, legacy=True)
                envelopes = await envelopes_of(v1, topic)
                history = await js.history(topic)

    assert [envelope.data for envelope in envelopes] == [b"once"]
    assert history == [sent_hash(topic, b"once", ahead)]
