"""A real gateway beside real daemons whose store is in a real PostgreSQL, which is killed and comes back."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from mailserver.client.mail_client import connect
from mailserver.ids.envelopes import NS, content_topic_of, message_of, topic_of
from mailserver.ids.muid import DEFAULT_NETWORK_TOPIC
from mailserver.ids.waku_message import WakuMessage
from mailserver.libp2p.multiaddr import AddressProtocol, Multiaddr
from mailserver.waku2.store_query import StoreQueryRequest
from tests.faults.disk_client import Client, connected, until_ready
from tests.gateway.clients import LightClient
from tests.gateway.clients import connected as light_connected
from tests.integration.daemons import running_daemon
from tests.integration.gateways import METRICS, GatewayProcess, running_gateway
from tests.integration.light_clients import envelopes_of
from tests.mailservers import NEWS
from tests.store.postgres.server import Server, new_schema
from tests.waiting import until

pytestmark = pytest.mark.integration

TOPIC = DEFAULT_NETWORK_TOPIC
NEWS_TOPIC = content_topic_of(NEWS)
ALL = StoreQueryRequest("all", include_data=True, content_topics=(NEWS_TOPIC,), pubsub_topic=TOPIC)
SOON_S = 15.0
"""Within this, an answer says that the database is away. js-waku waits for 10 s; the rest is for a busy machine."""


def ready_port(gateway: GatewayProcess) -> int:
    return int(gateway.wait_for_line("serving metrics").rpartition("port=")[2])


@contextlib.asynccontextmanager
async def light_client(gateway: GatewayProcess) -> AsyncIterator[LightClient]:
    async with light_connected(int(Multiaddr.parse(gateway.tcp).value(AddressProtocol.TCP) or 0)) as client:
        yield client


def message(text: str) -> WakuMessage:
    return WakuMessage(text.encode(), NEWS_TOPIC, timestamp=time.time_ns() // NS * NS)


async def test_messages_go_both_ways_and_history_is_that_of_all_mailservers(own_server: Server, tmp_path: Path) -> None:
    url, client = own_server.url(new_schema(own_server)), Client(seed=1)
    of_other, live = client.envelopes(5, age_s=5), client.envelopes(5)
    with (
        running_daemon(tmp_path / "one", "--store", url, "--feed-socket") as daemon,
        running_daemon(tmp_path / "other", "--store", url) as other,
    ):
        async with connected(other) as mail:
            assert await client.post(mail, of_other)
        with running_gateway(tmp_path / "one", "--store", url, *METRICS) as gateway:
            await until_ready(ready_port(gateway), 200)
            async with light_client(gateway) as light, connect(daemon.enode, "test/1") as v1:
                await light.subscribe(TOPIC, NEWS_TOPIC)
                assert await client.post(v1, live)
                await until(lambda: len(light.pushes) == len(live))
                sent = message("from a light client")
                answer = await light.lightpush(TOPIC, sent)
                at_v1 = await envelopes_of(v1, topic_of(NEWS_TOPIC))
                page = await light.query(replace(ALL, pagination_limit=100))
            assert gateway.stop() == 0
        assert daemon.stop() == other.stop() == 0

    assert answer.status_code == 200
    assert [push.waku_message for push in light.pushes[: len(live)]] == [message_of(each) for each in live]
    assert sorted(each.data for each in at_v1) == sorted([sent.payload, *(each.data for each in (*of_other, *live))])
    found = [each.message for each in page.messages]
    assert len(found) == 11
    assert all(message_of(each) in found for each in (*of_other, *live))
    assert sent in found


async def test_database_that_is_killed_is_told_in_time_and_all_goes_on_once_it_is_back(
    own_server: Server, tmp_path: Path
) -> None:
    url, client = own_server.url(new_schema(own_server)), Client(seed=2)
    with (
        running_daemon(tmp_path, "--store", url, "--feed-socket") as daemon,
        running_gateway(tmp_path, "--store", url, *METRICS) as gateway,
    ):
        port = ready_port(gateway)
        await until_ready(port, 200)
        async with connected(daemon) as mail:
            assert await client.post(mail, client.envelopes(5))
        async with light_client(gateway) as light:
            before = await light.query(ALL)
            await asyncio.to_thread(own_server.kill)
            async with asyncio.timeout(SOON_S):
                away = await light.query(ALL)
                unsent = await light.lightpush(TOPIC, message("nowhere"))
            text = await until_ready(port, 503)

            await asyncio.to_thread(own_server.start)
            await until_ready(port, 200)
            await light.subscribe(TOPIC, NEWS_TOPIC)
            after = await light.query(ALL)
            async with asyncio.timeout(SOON_S):
                while (await light.lightpush(TOPIC, message("at last"))).status_code != 200:
                    pass
            await until(lambda: bool(light.pushes))
            at_last = await light.query(ALL)
        told = [line for line in gateway.lines if "are not indexed" in line]

        assert gateway.stop() == daemon.stop() == 0

    assert (len(before.messages), after.messages) == (5, before.messages)
    assert (away.status_code, unsent.status_code) == (503, 503)
    assert "history cannot be read: cannot read the store: the database cannot be reached" in text
    assert len(told) == 1
    assert "postgres" not in away.status_desc.lower()
    assert "at last" in {each.message.payload.decode(errors="replace") for each in at_last.messages if each.message}
