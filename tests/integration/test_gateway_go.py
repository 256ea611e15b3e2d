"""The gateway and clients that do as go-waku does (`go_client.py`), with both muxers."""

import secrets
import time
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from mailserver.ids.envelopes import content_topic_of
from mailserver.ids.muid import DEFAULT_NETWORK_TOPIC
from mailserver.libp2p.identity import IdentityKey
from mailserver.waku.envelope import Topic
from mailserver.waku2.metadata import Metadata, decode_metadata
from mailserver.waku2.old_filter import FilterRequest
from mailserver.waku2.protocols import ProtocolId
from mailserver.waku2.store_query import StoreQueryRequest
from tests.integration.daemons import Daemon, running_daemon
from tests.integration.gateways import GatewayProcess, running_gateway
from tests.integration.go_client import GoClient, go_client
from tests.integration.light_clients import post, sealed
from tests.libp2p.names import MUXERS
from tests.waiting import until

pytestmark = [pytest.mark.integration, pytest.mark.parametrize("muxer", MUXERS)]


class World(NamedTuple):
    """A daemon and its gateway, which tests leave running; each test has topics of its own."""

    daemon: Daemon
    gateway: GatewayProcess


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    data_dir = tmp_path_factory.mktemp("world") / "data"
    with running_daemon(data_dir, "--feed-socket") as daemon, running_gateway(data_dir) as gateway:
        yield World(daemon, gateway)


@pytest.fixture
def topic() -> Topic:
    """A new topic."""
    return Topic(secrets.token_bytes(4))


async def post_texts(daemon: Daemon, topic: Topic, *texts: str) -> list[str]:
    """Post at once; return the hashes of the messages."""
    return await post(daemon.enode, *[await sealed(topic, text) for text in texts])


def pushed_hashes(go: GoClient) -> list[str]:
    assert {push.pubsub_topic for push in go.pushed} <= {DEFAULT_NETWORK_TOPIC}
    return [push.waku_message.hash(DEFAULT_NETWORK_TOPIC).hex() for push in go.pushed]


async def test_each_push_comes_on_a_stream_of_its_own_where_only_the_first_would_be_read(
    world: World, topic: Topic, muxer: str
) -> None:
    async with go_client(world.gateway.tcp, muxer) as go:
        assert await go.subscribe(content_topic_of(topic)) == 200
        expected = await post_texts(world.daemon, topic, *[f"flower {number}" for number in range(20)])
        await until(lambda: len(go.pushed) == 20)
        assert await go.ping() == 200
        assert await go.unsubscribe(content_topic_of(topic)) == 200
        assert await go.ping() == 404

    assert sorted(pushed_hashes(go)) == sorted(expected)


async def test_client_that_was_restarted_resets_a_push_and_gets_no_more_until_it_subscribes(
    world: World, topic: Topic, muxer: str
) -> None:
    key = IdentityKey(secrets.token_bytes(32))
    async with go_client(world.gateway.tcp, muxer, key) as before:
        assert await before.subscribe(content_topic_of(topic)) == 200
    async with go_client(world.gateway.tcp, muxer, key) as go:
        assert await go.ping() == 200  # it is remembered for a minute
        await post_texts(world.daemon, topic, "reset")
        await until(lambda: go.resets == 1)
        assert await go.ping() == 404
        assert await go.subscribe(content_topic_of(topic)) == 200
        expected = await post_texts(world.daemon, topic, "wanted again")
        await until(lambda: len(go.pushed) == 1)

    assert pushed_hashes(go) == expected
    assert go.resets == 1


async def test_old_filter_pushes_with_the_id_of_the_request_that_matched(
    world: World, topic: Topic, muxer: str
) -> None:
    other = Topic(bytes([topic[0] ^ 1]) + topic[1:])
    flowers, bees = content_topic_of(topic), content_topic_of(other)
    async with go_client(world.gateway.tcp, muxer) as go, go_client(world.gateway.tcp, muxer) as known:
        await go.request_old("flowers", FilterRequest(True, DEFAULT_NETWORK_TOPIC, (flowers,)))
        await go.request_old("bees", FilterRequest(True, DEFAULT_NETWORK_TOPIC, (bees,)))
        assert await go.ping() == 404  # of the newer filter; the older requests came before it
        assert await known.subscribe(flowers, bees) == 200
        for text, each in (("bee 1", other), ("flower 1", topic), ("bee 2", other)):
            await post_texts(world.daemon, each, text)
        await until(lambda: len(go.old_pushed) == 3)

        await go.request_old("any", FilterRequest(False, DEFAULT_NETWORK_TOPIC, (bees,)))
        assert await go.ping() == 404
        await post_texts(world.daemon, other, "bee 3")
        await post_texts(world.daemon, topic, "flower 2")
        await until(lambda: len(go.old_pushed) == 4 and len(known.pushed) == 5)

    came = [(rpc.request_id, [each.content_topic for each in rpc.push.messages]) for rpc in go.old_pushed if rpc.push]
    assert came == [("bees", [bees]), ("flowers", [flowers]), ("bees", [bees]), ("flowers", [flowers])]


@pytest.mark.parametrize("forward", [True, False])
async def test_cursors_lead_through_the_whole_history(world: World, topic: Topic, muxer: str, forward: bool) -> None:
    now = int(time.time())
    envelopes = [await sealed(topic, "flower", created=now - 10 + number) for number in range(7)]
    expected = await post(world.daemon.enode, *envelopes)
    pages: list[list[str]] = []
    cursor: bytes | None = None
    async with go_client(world.gateway.tcp, muxer) as go:
        while cursor is not None or not pages:
            answer = await go.query(
                StoreQueryRequest(
                    secrets.token_hex(16),
                    include_data=True,
                    pubsub_topic=DEFAULT_NETWORK_TOPIC,
                    content_topics=(content_topic_of(topic),),
                    pagination_cursor=cursor,
                    pagination_forward=forward,
                    pagination_limit=3,
                )
            )
            assert (answer.status_code, answer.status_desc) == (200, "OK")
            pages.append([entry.message_hash.hex() for entry in answer.messages])
            cursor = answer.pagination_cursor

    if forward:
        assert pages == [expected[:3], expected[3:6], expected[6:]]
    else:
        assert pages == [expected[4:], expected[1:4], expected[:1]]


async def test_metadata_names_cluster_and_shard(world: World, muxer: str) -> None:
    async with go_client(world.gateway.tcp, muxer) as go:
        answer = decode_metadata(await go.ask(ProtocolId.METADATA, Metadata(1, (4,)).encode()))

    assert answer == Metadata(1, (4,))
