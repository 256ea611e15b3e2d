"""Two daemons on one database: what is posted at one reaches the peers and applications of the other, once."""

import asyncio
import contextlib
import json
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from mailserver.ids.envelopes import message_of
from mailserver.waku.envelope import Envelope, encode_envelopes
from mailserver.waku.packets import PacketCode
from tests.faults.disk_client import metrics_port, until_ready
from tests.integration.daemons import Daemon, running_daemon
from tests.integration.gateways import METRICS, running_gateway
from tests.integration.peers import Peers
from tests.integration.test_postgres_gateway import NEWS_TOPIC, TOPIC, light_client, ready_port
from tests.integration.test_relay import WANTS_ALL, WANTS_NOTHING, Listening, live_envelope
from tests.raw_peer import RawPeer
from tests.store.postgres.line import line_to
from tests.store.postgres.server import Server, new_schema
from tests.waiting import DEADLINE_S, until

pytestmark = pytest.mark.integration

UNSETTLED = (sys.executable, "-m", "tests.integration.unsettled")
"""Its gateways push only what they were told to look for."""


async def post(sender: RawPeer, *envelopes: Envelope) -> None:
    """Send a packet; return once it is confirmed."""
    sender.say(PacketCode.MESSAGES, encode_envelopes([envelope.raw for envelope in envelopes]))
    while (await sender.hear_packet()).code != PacketCode.BATCH_ACKNOWLEDGED:
        pass


def metric(port: int, name: str) -> float:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    return float(next(line.split()[1] for line in lines if line.startswith(f"{name} ")))


def call(daemon: Daemon, method: str, *parameters: Any) -> Any:
    """Call a method of a daemon's JSON-RPC."""
    port = daemon.wait_for_line("serving JSON-RPC").partition("port=")[2].split()[0]
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": parameters}).encode()
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"http://127.0.0.1:{port}/", body, headers)
    with urllib.request.urlopen(request, timeout=10) as answer:
        return json.load(answer)["result"]


@pytest.mark.parametrize("linked", [False, True], ids=["strangers", "static peers"])
async def test_peers_of_each_get_once_what_is_posted_at_either(
    own_server: Server, tmp_path: Path, peers: Peers, *, linked: bool
) -> None:
    url = own_server.url(new_schema(own_server))
    flags = ("--store", url, "--metrics", "127.0.0.1:0", "--log-level", "debug")
    envelopes = [live_envelope(number) for number in range(60)]
    with running_daemon(tmp_path / "one", *flags) as one:
        known = ("--static-peers", str(one.enode)) if linked else ()
        with running_daemon(tmp_path / "other", *flags, *known) as other:
            if linked:
                other.wait_for_line(f"peer connected peer={one.enode.node_id.hex()[:8]}")
            listeners = [Listening(await peers.join(daemon, "listener", WANTS_ALL)) for daemon in (one, other)]
            senders = [await peers.join(daemon, "sender", WANTS_NOTHING) for daemon in (one, other)]

            await post(senders[0], *envelopes[:20])
            await post(senders[1], *envelopes[20:40])
            await asyncio.gather(*(post(sender, *envelopes[40:]) for sender in senders))
            lasts = live_envelope(100), live_envelope(101)
            for last, sender in zip(lasts, senders, strict=True):
                await post(sender, last)
                for listener in listeners:
                    await listener.hear_until(last)
            # What goes round would come within the bundle of these.
            closing = live_envelope(102)
            await post(senders[0], closing)
            for listener in listeners:
                await listener.hear_until(closing)

            sent = sorted(envelope.raw for envelope in [*envelopes, *lasts, closing])
            assert [sorted(listener.heard) for listener in listeners] == [sent, sent]
            assert own_server.sql("SELECT count(*) FROM envelopes", url.rpartition("=")[2]) == "63"
            if not linked:
                assert metric(metrics_port(one), "mailserver_others_envelopes_total") >= 21
                assert metric(metrics_port(other), "mailserver_others_envelopes_total") >= 22
            assert one.stop() == other.stop() == 0


async def test_filter_of_one_gets_what_an_application_posts_at_the_other(own_server: Server, tmp_path: Path) -> None:
    flags = ("--store", own_server.url(new_schema(own_server)), "--rpc", "127.0.0.1:0")
    with running_daemon(tmp_path / "one", *flags) as one, running_daemon(tmp_path / "other", *flags) as other:
        keys = [call(daemon, "waku_generateSymKeyFromPassword", "news") for daemon in (one, other)]
        wanted = call(other, "waku_newMessageFilter", {"symKeyID": keys[1], "topics": ["0x9acb0442"]})
        message = {"symKeyID": keys[0], "ttl": 30, "topic": "0x9acb0442", "payload": "0xcafe", "powTarget": 0.002}

        assert call(one, "waku_post", {**message, "powTime": 5})

        async with asyncio.timeout(DEADLINE_S):
            messages: list[Any] = []
            while not messages:
                messages = await asyncio.to_thread(call, other, "waku_getFilterMessages", wanted)
        assert [found["payload"] for found in messages] == ["0xcafe"]


async def test_light_client_is_pushed_what_is_posted_at_the_other(
    own_server: Server, tmp_path: Path, peers: Peers
) -> None:
    store, posted = ("--store", own_server.url(new_schema(own_server))), live_envelope(1)
    with (
        running_daemon(tmp_path / "one", *store, "--feed-socket") as one,
        running_daemon(tmp_path / "other", *store) as other,
        running_gateway(tmp_path / "one", *store, *METRICS) as gateway,
    ):
        await until_ready(ready_port(gateway), 200)
        async with light_client(gateway) as light:
            await light.subscribe(TOPIC, NEWS_TOPIC)
            await post(await peers.join(other, "sender", WANTS_NOTHING), posted)
            await until(lambda: bool(light.pushes))
        assert gateway.stop() == one.stop() == other.stop() == 0

    assert [push.waku_message for push in light.pushes] == [message_of(posted)]


async def test_light_client_is_pushed_what_its_mailserver_could_not_hear_of(
    own_server: Server, tmp_path: Path, peers: Peers
) -> None:
    schema, unheard = new_schema(own_server), [live_envelope(number) for number in range(5)]
    direct = ("--store", own_server.url(schema))
    async with line_to(own_server) as line, contextlib.AsyncExitStack() as stack:

        async def start(name: str, *flags: str) -> Daemon:  # in a thread: the line is here
            running = running_daemon(tmp_path / name, *flags, "--metrics", "127.0.0.1:0")
            daemon = await asyncio.to_thread(running.__enter__)
            stack.push_async_callback(asyncio.to_thread, running.__exit__, None, None, None)
            return daemon

        one = await start("one", "--store", line.url(schema), "--feed-socket")
        other = await start("other", *direct)
        gateway = stack.enter_context(running_gateway(tmp_path / "one", *direct, *METRICS, program=UNSETTLED))
        await until_ready(ready_port(gateway), 200)
        async with light_client(gateway) as light:
            await light.subscribe(TOPIC, NEWS_TOPIC)
            await line.cut()
            await until_ready(metrics_port(one), 503)
            await post(await peers.join(other, "sender", WANTS_NOTHING), *unheard)
            pushed_before = len(light.pushes)
            await line.mend()
            await until(lambda: len(light.pushes) == len(unheard))

    assert pushed_before == 0
    assert [push.waku_message for push in light.pushes] == [*map(message_of, unheard)]


async def test_what_is_posted_after_the_database_was_away_is_relayed(
    own_server: Server, tmp_path: Path, peers: Peers
) -> None:
    flags = ("--store", own_server.url(new_schema(own_server)), "--metrics", "127.0.0.1:0")
    with running_daemon(tmp_path / "one", *flags) as one, running_daemon(tmp_path / "other", *flags) as other:
        listener = Listening(await peers.join(other, "listener", WANTS_ALL))
        sender = await peers.join(one, "sender", WANTS_NOTHING)
        before, after = live_envelope(1), live_envelope(2)
        await post(sender, before)
        await listener.hear_until(before)

        own_server.stop()
        for daemon in (one, other):
            await until_ready(metrics_port(daemon), 503)
        own_server.start()
        for daemon in (one, other):
            await until_ready(metrics_port(daemon), 200)
            daemon.wait_for_line("live envelopes of other mailservers may have been missed")
        await post(sender, after)
        await listener.hear_until(after)

        assert listener.heard == [before.raw, after.raw]
        assert one.stop() == other.stop() == 0
