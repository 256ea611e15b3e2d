"""The whole way between clients of Waku v1 and js-waku, through a daemon and a gateway in processes of their own."""

import asyncio
import secrets
import time
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from mailserver.client.mail_client import connect
from mailserver.ids.envelopes import content_topic_of
from mailserver.ids.muid import DEFAULT_NETWORK_TOPIC
from mailserver.waku.bloom import Interest
from mailserver.waku.envelope import Topic
from tests.integration.daemons import DEADLINE_S, Daemon, running_daemon
from tests.integration.gateways import METRICS, GatewayProcess, running_gateway
from tests.integration.light_clients import (
    LightClient,
    envelopes_of,
    hash_of,
    hashes_of,
    light_client,
    post,
    sealed,
    sent_hash,
)

pytestmark = pytest.mark.integration

TRANSPORTS = pytest.mark.parametrize("transport", ["websocket", "tcp"])


class World(NamedTuple):
    """A daemon and its gateway, which tests leave running; each test has topics of its own."""

    daemon: Daemon
    gateway: GatewayProcess

    def flags(self, transport: str) -> tuple[str, ...]:
        """What has a client dial over this transport."""
        return ("--tcp",) if transport == "tcp" else ()

    async def dial(self, js: LightClient, transport: str) -> None:
        """Connect a client over this transport, with the muxer that comes with it."""
        if transport == "tcp":
            assert await js.dial(self.gateway.tcp) == ["/yamux/1.0.0"]
        else:
            assert await js.dial(self.gateway.websocket) == ["/mplex/6.7.0"]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    data_dir = tmp_path_factory.mktemp("world") / "data"
    with running_daemon(data_dir, "--feed-socket") as daemon, running_gateway(data_dir, *METRICS) as gateway:
        yield World(daemon, gateway)


@pytest.fixture
def topic() -> Topic:
    """A new topic."""
    return Topic(secrets.token_bytes(4))


@TRANSPORTS
async def test_v1_and_js_get_each_others_messages_live_and_in_history_and_none_twice(
    world: World, topic: Topic, transport: str
) -> None:
    async with (
        connect(world.daemon.enode, "test/1") as v1,
        light_client(*world.flags(transport)) as js,
    ):
        await world.dial(js, transport)
        with v1.subscribe(Interest(topics=frozenset({topic}))) as live:
            await js.subscribe(topic)
            posted = await sealed(topic, "from v1")
            assert (await v1.post([posted])).errors == ()
            await js.wait_for_pushes(1)
            now = time.time_ns() // 1_000_000
            await js.send(topic, b"by lightpush 3", timestamp=now)
            await js.send(topic, b"by lightpush 2", timestamp=now + 1, legacy=True)
            await js.send(topic, b"by lightpush 2", timestamp=now + 1)  # the same message, once more
            came = [await asyncio.wait_for(anext(aiter(live)), DEADLINE_S) for _ in range(2)]
            pushed = await js.wait_for_pushes(3)
            past = await envelopes_of(v1, topic)
        history = [message for page in await js.query(topic) for message in page]

    sent = [sent_hash(topic, b"by lightpush 3", now), sent_hash(topic, b"by lightpush 2", now + 1)]
    assert pushed == [hash_of(posted), *sent]
    assert [envelope.data for envelope in came] == [b"by lightpush 3", b"by lightpush 2"]
    assert sorted(envelope.hash() for envelope in past) == sorted(each.hash() for each in (posted, *came))
    assert hashes_of(history) == pushed
    assert [bytes.fromhex(message["payload"]) for message in history] == [posted.data, *(each.data for each in came)]
    assert [message["version"] for message in history] == [1, 0, 0]
    assert {message["pubsubTopic"] for message in [*history, *js.pushed]} == {DEFAULT_NETWORK_TOPIC}
    assert history == [{name: value for name, value in each.items() if name != "event"} for each in js.pushed]


@TRANSPORTS
async def test_pages_in_both_directions_make_up_the_whole_history_once(
    world: World, topic: Topic, transport: str
) -> None:
    now = int(time.time())
    envelopes = [await sealed(topic, f"flower {number}", created=now - 50 + number) for number in range(45)]
    expected = await post(world.daemon.enode, *envelopes)

    async with light_client(*world.flags(transport)) as js:
        await world.dial(js, transport)
        forward = await js.query(topic, limit=10)
        backward = await js.query(topic, forward=False, limit=10)
        in_range = await js.query(topic, start=(now - 40) * 1000, end=(now - 30) * 1000)
        after_cursor = await js.query(topic, cursor=expected[19])
        before_cursor = await js.query(topic, cursor=expected[19], forward=False, limit=15)

    assert [len(page) for page in forward] == [10, 10, 10, 10, 5]
    assert [each for page in forward for each in hashes_of(page)] == expected
    assert [hashes_of(page) for page in backward] == [
        expected[35:],
        expected[25:35],
        expected[15:25],
        expected[5:15],
        expected[:5],
    ]
    assert [hashes_of(page) for page in in_range] == [expected[10:20]]
    assert [each for page in after_cursor for each in hashes_of(page)] == expected[20:]
    assert [hashes_of(page) for page in before_cursor] == [expected[4:19], expected[:4]]


@TRANSPORTS
async def test_messages_are_found_by_their_hashes(world: World, topic: Topic, transport: str) -> None:
    expected = await post(world.daemon.enode, *[await sealed(topic, f"flower {number}") for number in range(3)])
    asked = [expected[0], expected[2], "00" * 32]

    async with light_client(*world.flags(transport)) as js:
        await world.dial(js, transport)
        topics = [content_topic_of(topic)]
        found = await js.ask("queryHashes", topics=topics, hashes=asked)

    assert sorted(hash_ for page in found for hash_ in hashes_of(page)) == sorted([expected[0], expected[2]])


async def test_nothing_is_pushed_after_unsubscribing(world: World, topic: Topic) -> None:
    other = Topic(bytes([topic[0] ^ 1]) + topic[1:])
    async with light_client() as js:
        await js.dial(world.gateway.websocket)
        await js.subscribe(topic, other)
        await post(world.daemon.enode, await sealed(topic, "both"))
        await js.wait_for_pushes(1)
        pushes = world.gateway.metric("gateway_pushes_total")

        await js.unsubscribe(topic)
        await post(world.daemon.enode, await sealed(topic, "nobody wants it"))
        wanted = await post(world.daemon.enode, await sealed(other, "still wanted"))

        assert (await js.wait_for_pushes(2))[1:] == wanted
        assert world.gateway.metric("gateway_pushes_total") == pushes + 1  # js would not show the other


async def test_what_cannot_be_bridged_is_refused(world: World) -> None:
    async with light_client() as js:
        await js.dial(world.gateway.websocket)
        answers = [
            await js.ask("send", topic="/app/1/chat/proto", payload="00", legacy=legacy) for legacy in (False, True)
        ]

    assert [answer["successes"] for answer in answers] == [0, 0]
    assert [len(answer["failures"]) for answer in answers] == [1, 1]
