"""Networks of real daemons: who gets which live envelope, and how often; and a peer that floods one of them."""

import asyncio
import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from mailserver.errors import DisconnectReason
from mailserver.live.relay import BUNDLE_INTERVAL_S
from mailserver.waku.acceptance import Verdict
from mailserver.waku.bloom import EMPTY_BLOOM, bloom_of
from mailserver.waku.envelope import Envelope, Topic, decode_envelopes, encode_envelope, encode_envelopes
from mailserver.waku.packets import MessageResponse, PacketCode, StatusOptions
from tests.integration.daemons import Daemon, running_daemon
from tests.integration.peers import Peers
from tests.mailservers import NEWS, SPORT
from tests.pairs import digest
from tests.raw_peer import Hangup, RawPeer
from tests.waiting import DEADLINE_S

pytestmark = pytest.mark.integration

LINE = ((0, 1), (1, 2), (2, 3))
RING = (*LINE, (0, 3))
STAR = ((0, 1), (0, 2), (0, 3))
"""Which of four daemons are connected; the later one dials."""

WANTS_ALL = StatusOptions(pow_requirement=0.0, light_node=False, confirmations=False).encode()
WANTS_NOTHING = StatusOptions(pow_requirement=0.0, bloom=EMPTY_BLOOM, light_node=True).encode()


def live_envelope(number: int, topic: Topic = NEWS, ttl: int = 60) -> Envelope:
    """An envelope of this moment; its proof of work is enough for a daemon's default."""
    return encode_envelope(int(time.time()) + ttl, ttl, topic, digest(f"live {number}") * 8, number)


@contextlib.contextmanager
def network(folder: Path, edges: tuple[tuple[int, int], ...]) -> Iterator[list[Daemon]]:
    """Four daemons, once all their connections stand."""
    with contextlib.ExitStack() as stack:
        daemons: list[Daemon] = []
        for number in range(4):
            neighbours = [daemons[dialled] for dialled, dialling in edges if dialling == number]
            peers = ",".join(str(daemon.enode) for daemon in neighbours)
            flags = ("--log-level", "debug", "--static-peers", peers)
            daemons.append(stack.enter_context(running_daemon(folder / str(number), *flags)))
            for daemon in neighbours:
                daemons[number].wait_for_line(f"peer connected peer={daemon.enode.node_id.hex()[:8]}")
                daemon.wait_for_line(f"peer connected peer={daemons[number].enode.node_id.hex()[:8]}")
        yield daemons


class Listening:
    """A peer that takes what is relayed to it."""

    def __init__(self, raw: RawPeer) -> None:
        self._raw = raw
        self.heard: list[bytes] = []

    async def hear_until(self, last: Envelope) -> None:
        """Collect envelopes until this one has come."""
        async with asyncio.timeout(DEADLINE_S):
            while not self.heard or last.raw not in self.heard:
                code, payload = await self._raw.hear_packet()
                if code == PacketCode.MESSAGES:
                    self.heard += [envelope.raw for envelope in decode_envelopes(payload)]


@pytest.mark.parametrize("edges", [LINE, RING, STAR], ids=["line", "ring", "star"])
async def test_every_envelope_reaches_everyone_who_wants_it_exactly_once(
    tmp_path: Path, peers: Peers, edges: tuple[tuple[int, int], ...]
) -> None:
    news = [live_envelope(number) for number in range(20)]
    sport = [live_envelope(number, SPORT) for number in range(100, 120)]
    last_news, last_sport = live_envelope(1000), live_envelope(1001, SPORT)
    wants_sport = StatusOptions(pow_requirement=0.0, topic_interest=frozenset({SPORT})).encode()
    wants_news = StatusOptions(pow_requirement=0.0, bloom=bloom_of([NEWS])).encode()
    with network(tmp_path, edges) as daemons:
        listeners = []
        for number, daemon in enumerate(daemons):
            for kind, status in (("all", WANTS_ALL), ("sport", wants_sport), ("news", wants_news)):
                listeners.append((kind, Listening(await peers.join(daemon, f"{kind} {number}", status))))
        senders = [await peers.join(daemon, f"sender {number}", WANTS_NOTHING) for number, daemon in enumerate(daemons)]

        for number, sender in enumerate(senders):  # each daemon gets a part of them first
            sender.say(
                PacketCode.MESSAGES,
                encode_envelopes([envelope.raw for envelope in [*news[number::4], *sport[number::4]]]),
            )
        for sender in senders:
            while (await sender.hear_packet()).code != PacketCode.BATCH_ACKNOWLEDGED:
                pass
        senders[0].say(PacketCode.MESSAGES, encode_envelopes([last_news.raw, last_sport.raw]))
        for kind, listener in listeners:
            await listener.hear_until(last_news if kind == "news" else last_sport)
        # What goes round would come within the bundles of these: they make a whole round after all the others.
        closing = live_envelope(2000), live_envelope(2001, SPORT)
        senders[3].say(PacketCode.MESSAGES, encode_envelopes([envelope.raw for envelope in closing]))
        for kind, listener in listeners:
            await listener.hear_until(closing[0] if kind == "news" else closing[1])
            await listener.hear_until(closing[0] if kind != "sport" else closing[1])

        sent = {
            "news": [*news, last_news, closing[0]],
            "sport": [*sport, last_sport, closing[1]],
            "all": [*news, *sport, last_news, last_sport, *closing],
        }
        for kind, listener in listeners:
            assert sorted(listener.heard) == sorted(envelope.raw for envelope in sent[kind])


async def test_mailserver_of_some_topics_announces_takes_and_relays_only_these(tmp_path: Path, peers: Peers) -> None:
    wanted, unwanted = live_envelope(1), live_envelope(2, SPORT)
    with running_daemon(tmp_path, "--archive-topics", f"0x{NEWS.hex()},status") as daemon:
        raw = await peers.dial(daemon)
        raw.write(raw.hello())
        await raw.hear()
        raw.compressed = True
        raw.say(PacketCode.STATUS, WANTS_NOTHING)
        status = StatusOptions.decode((await raw.hear_packet()).payload)
        raw.say(PacketCode.MESSAGES, encode_envelopes([wanted.raw, unwanted.raw]))
        response = MessageResponse.decode((await raw.hear_packet()).payload)

        assert status.bloom is None
        assert status.topic_interest == frozenset({NEWS, Topic(bytes.fromhex("cd423760"))})
        assert response is not None
        assert [(error.hash, error.description) for error in response.errors] == [
            (unwanted.hash(), Verdict.UNWANTED_TOPIC.value)
        ]


async def test_light_node_keeps_but_does_not_relay_and_parts_from_light_nodes(tmp_path: Path, peers: Peers) -> None:
    posted = live_envelope(1)
    with running_daemon(tmp_path, "--light-node") as daemon:
        listener = Listening(await peers.join(daemon, "listener", WANTS_ALL))
        full = await peers.join(daemon, "full", StatusOptions(pow_requirement=0.0, light_node=False).encode())
        light = await peers.join(daemon, "light", StatusOptions(pow_requirement=0.0, light_node=True).encode())
        with pytest.raises(Hangup) as hangup:
            await light.hear_packet()
        full.say(PacketCode.MESSAGES, encode_envelopes([posted.raw]))
        code, _ = await full.hear_packet()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(3 * BUNDLE_INTERVAL_S):
                await listener.hear_until(posted)

        assert hangup.value.reason is DisconnectReason.USELESS_PEER
        assert code == PacketCode.MESSAGE_RESPONSE
        assert listener.heard == []


async def test_flooding_peer_is_slowed_and_others_are_served_meanwhile(tmp_path: Path, peers: Peers) -> None:
    packets_per_s = 50
    flags = ("--packet-rate-limits", f"0,{packets_per_s},0", "--rate-limit-tolerance-s", "inf")
    with running_daemon(tmp_path, *flags) as daemon:
        flooder = await peers.join(daemon, "flooder", WANTS_NOTHING)
        honest = await peers.join(daemon, "honest", WANTS_NOTHING)
        burst = packets_per_s * 10
        count = burst + packets_per_s * 2
        began = time.monotonic()
        confirmed_at: list[float] = []

        async def flood() -> None:
            for number in range(count):
                flooder.say(PacketCode.MESSAGES, encode_envelopes([live_envelope(number).raw]))
                if number % 100 == 99:
                    await flooder.writer.drain()
            while len(confirmed_at) < count:
                if (await flooder.hear_packet()).code == PacketCode.BATCH_ACKNOWLEDGED:
                    confirmed_at.append(time.monotonic() - began)

        flooding = asyncio.create_task(flood())
        posted_meanwhile = 0
        while not flooding.done():
            honest.say(PacketCode.MESSAGES, encode_envelopes([live_envelope(10_000 + posted_meanwhile, SPORT).raw]))
            while (await honest.hear_packet()).code != PacketCode.BATCH_ACKNOWLEDGED:
                pass
            posted_meanwhile += 1
        await flooding

        assert confirmed_at[-1] >= (count - burst) / packets_per_s - 1.1  # the Status and the first burst are free
        assert posted_meanwhile >= 10  # one after the other: whoever waited for the flood would have posted one or two
