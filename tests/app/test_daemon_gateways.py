"""mailserver.app.daemon in this process, with the feed socket, and a gateway's client."""

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from mailserver.feed_socket.client import FeedClient, FeedGap
from mailserver.feed_socket.frames import FEED_FILE, PostRefusal, Terms
from mailserver.ids.muid import DEFAULT_NETWORK_TOPIC
from mailserver.waku.acceptance import MAX_ENVELOPE_BYTES
from mailserver.waku.envelope import decode_envelopes
from mailserver.waku.packets import PacketCode
from tests.app.daemons import STOP_WITHIN_S, fresh, running
from tests.mailservers import NEWS, SPORT, make_envelope
from tests.waiting import DEADLINE_S, until

pytestmark = pytest.mark.integration


@contextlib.asynccontextmanager
async def gateway(data_dir: Path) -> AsyncIterator[FeedClient]:
    """A client that has been told where to begin."""
    client = FeedClient(data_dir)
    task = asyncio.create_task(client.run())
    try:
        assert await asyncio.wait_for(client.next(), DEADLINE_S) == FeedGap(None)
        yield client
    finally:
        task.cancel()
        await asyncio.wait([task])


async def hear_raws(client: FeedClient) -> list[bytes]:
    batch = await asyncio.wait_for(client.next(), DEADLINE_S)
    assert not isinstance(batch, FeedGap)
    return [envelope.raw for envelope in batch]


async def test_what_peers_send_comes_to_the_gateway_and_what_it_posts_to_peers(tmp_path: Path) -> None:
    async with running(tmp_path, feed_socket=True) as daemon, gateway(tmp_path) as client:
        peer, payload = await daemon.join(), fresh(1)
        peer.say(PacketCode.MESSAGES, payload)
        assert await hear_raws(client) == [envelope.raw for envelope in decode_envelopes(payload)]

        posted = make_envelope(2, created=int(time.time()))
        assert await client.post(posted.raw) is None

        assert await hear_raws(client) == [posted.raw]
        code, relayed = await peer.hear_packet()
        while code != PacketCode.MESSAGES:
            code, relayed = await peer.hear_packet()
        assert decode_envelopes(relayed) == [posted]


async def test_gateway_knows_what_the_settings_demand_and_what_a_reload_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mailserver.feed_socket.server.TERMS_INTERVAL_S", 0.01)
    topics = (f"0x{NEWS.hex()}",)
    async with running(tmp_path, feed_socket=True, archive_topics=topics) as daemon, gateway(tmp_path) as client:
        assert client.terms == Terms(DEFAULT_NETWORK_TOPIC, 0.000002, MAX_ENVELOPE_BYTES, frozenset({NEWS}))
        unwanted = make_envelope(1, created=int(time.time()), topic=SPORT)
        assert await client.post(unwanted.raw) is PostRefusal.UNWANTED_TOPIC

        daemon.reload(archive_topics=(), min_pow=0.25)

        await until(lambda: client.terms == Terms(DEFAULT_NETWORK_TOPIC, 0.25, MAX_ENVELOPE_BYTES, None))


async def test_light_node_relays_what_its_gateways_post(tmp_path: Path) -> None:
    async with running(tmp_path, feed_socket=True, light_node=True) as daemon, gateway(tmp_path) as client:
        peer = await daemon.join()
        posted = make_envelope(2, created=int(time.time()))

        assert await client.post(posted.raw) is None

        code, relayed = await peer.hear_packet()
        assert (code, decode_envelopes(relayed)) == (PacketCode.MESSAGES, [posted])


async def test_without_the_setting_there_is_no_socket(tmp_path: Path) -> None:
    async with running(tmp_path):
        assert not (tmp_path / FEED_FILE).exists()


async def test_gateways_do_not_hold_the_stop_up_and_are_connected_again_after_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "mailserver")
    async with running(tmp_path, feed_socket=True) as daemon, gateway(tmp_path) as client:
        assert await daemon.stop() < STOP_WITHIN_S
        await until(lambda: client.terms is None)

        async with running(tmp_path, feed_socket=True):
            assert await asyncio.wait_for(client.next(), DEADLINE_S) == FeedGap(None)
            assert await client.post(make_envelope(1, created=int(time.time())).raw) is None

    assert f"serving gateways socket={tmp_path / FEED_FILE}" in caplog.messages
