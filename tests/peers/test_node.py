"""mailserver.peers.node: whole mailservers over socket pairs, and networks of them within this process."""

import asyncio
import contextlib
import logging
import random
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import Phase, given
from hypothesis import strategies as st

from mailserver.codec.keys import Enode
from mailserver.errors import ConnectionLost, DisconnectReason
from mailserver.live import relay as relay_module
from mailserver.live.intake import EnvelopeRefused
from mailserver.net import dialer as dialer_module
from mailserver.peers.completions import Asker
from mailserver.peers.connected import PeerNotConnected, PeerNotTrusted
from mailserver.waku.acceptance import GRACE_PERIOD_S, MAX_ENVELOPE_BYTES, MAX_FORMER, Verdict
from mailserver.waku.bloom import EMPTY_BLOOM, FULL_BLOOM, FULL_INTEREST, Interest, bloom_of
from mailserver.waku.envelope import Envelope, EnvelopeHash, Topic, decode_envelopes, encode_envelopes, mine
from mailserver.waku.packets import (
    DEFAULT_POW_REQUIREMENT,
    MessageResponse,
    PacketCode,
    RateLimits,
    StatusOptions,
)
from tests.mailservers import NEWS, NOW, SPORT, STATUS, Mailserver, make_envelope, running_mailserver, stored
from tests.pairs import digest, private_key
from tests.properties import settings
from tests.raw_peer import Hangup, Packet, RawPeer, open_stream, read_handshake_packet, stream_pair
from tests.waiting import DEADLINE_S, turns, until

STRANGER = private_key("stranger").public_key
NOWHERE = Enode(STRANGER, "127.0.0.1", 1)
ELSEWHERE = Enode(private_key("elsewhere").public_key, "127.0.0.1", 1)
ONLY_NEWS, ONLY_SPORT = Interest(topics=frozenset({NEWS})), Interest(topics=frozenset({SPORT}))
WANTS_ALL = StatusOptions(pow_requirement=0.0).encode()
WANTS_NOTHING = StatusOptions(pow_requirement=0.0, bloom=EMPTY_BLOOM).encode()


@pytest.fixture
async def mailserver(tmp_path: Path) -> AsyncIterator[Mailserver]:
    async with running_mailserver(tmp_path) as mailserver:
        yield mailserver


@pytest.fixture
async def pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[Mailserver, Mailserver]]:
    """Two mailservers that find each other, and do not wait for long before they dial again."""
    monkeypatch.setattr(dialer_module, "FIRST_BACKOFF_S", 0.02)
    async with contextlib.AsyncExitStack() as stack:
        left, right = [
            await stack.enter_async_context(running_mailserver(folder_of(tmp_path, name), key=private_key(name)))
            for name in ("left", "right")
        ]
        left.neighbours[right.key.public_key] = right
        right.neighbours[left.key.public_key] = left
        yield left, right


def folder_of(parent: Path, name: str) -> Path:
    folder = parent / name
    folder.mkdir()
    return folder


def messages(*envelopes: Envelope) -> bytes:
    return encode_envelopes([envelope.raw for envelope in envelopes])


async def post(raw: RawPeer, *envelopes: Envelope) -> list[EnvelopeHash]:
    """Send envelopes; return which of them are refused."""
    raw.say(PacketCode.MESSAGES, messages(*envelopes))
    response: MessageResponse | None = None
    while (packet := await raw.hear_packet()).code != PacketCode.BATCH_ACKNOWLEDGED:
        if packet.code == PacketCode.MESSAGE_RESPONSE:
            response = MessageResponse.decode(packet.payload)
    assert response is not None
    return [error.hash for error in response.errors]


# Settings


async def test_everything_is_announced_as_a_full_bloom_filter_and_some_topics_as_they_are(tmp_path: Path) -> None:
    async with running_mailserver(folder_of(tmp_path, "all"), min_pow=0.5, light_node=True) as everything:
        assert everything.node.status() == replace(STATUS, pow_requirement=0.5, light_node=True)
    async with running_mailserver(folder_of(tmp_path, "news"), interest=ONLY_NEWS) as news:
        assert news.node.status() == replace(STATUS, bloom=None, topic_interest=frozenset({NEWS}))


async def test_other_proof_of_work_holds_at_once_is_announced_and_the_former_is_tolerated(
    mailserver: Mailserver,
) -> None:
    raw = await mailserver.dial()
    first, second = make_envelope(1, ttl=600), make_envelope(2, ttl=600)

    mailserver.node.set_min_pow(1000.0)
    update = await raw.hear_packet()
    during_grace = await post(raw, first)
    mailserver.clock.now += GRACE_PERIOD_S
    after_grace = await post(raw, second)

    assert update == Packet(PacketCode.STATUS_UPDATE, StatusOptions(pow_requirement=1000.0).encode())
    assert during_grace == []
    assert after_grace == [second.hash()]


async def test_other_topics_hold_at_once_are_announced_and_the_former_are_tolerated(mailserver: Mailserver) -> None:
    raw = await mailserver.dial()
    first, second = make_envelope(1, ttl=600), make_envelope(2, ttl=600)

    mailserver.node.set_interest(ONLY_SPORT)
    update = await raw.hear_packet()
    during_grace = await post(raw, first)
    mailserver.clock.now += GRACE_PERIOD_S
    after_grace = await post(raw, second)
    mailserver.node.set_interest(FULL_INTEREST)

    assert update == Packet(PacketCode.STATUS_UPDATE, StatusOptions(topic_interest=frozenset({SPORT})).encode())
    assert during_grace == []
    assert after_grace == [second.hash()]
    assert await raw.hear_packet() == Packet(PacketCode.STATUS_UPDATE, StatusOptions(bloom=FULL_BLOOM).encode())
    assert await post(raw, second) == []


async def test_other_rate_limits_are_announced(mailserver: Mailserver) -> None:
    raw = await mailserver.dial()
    packets, sizes = RateLimits(1, 2, 3), RateLimits(4, 5, 6)

    mailserver.node.set_rate_limits(packets, sizes)

    update = StatusOptions(packet_rate_limits=packets, byte_rate_limits=sizes)
    assert await raw.hear_packet() == Packet(PacketCode.STATUS_UPDATE, update.encode())
    assert mailserver.status == replace(STATUS, packet_rate_limits=packets, byte_rate_limits=sizes)


async def test_longest_envelope_may_change_and_no_peer_is_told(mailserver: Mailserver) -> None:
    raw = await mailserver.dial()
    envelope = make_envelope(1)

    mailserver.node.set_max_envelope_bytes(len(envelope.raw) - 1)
    refused = await post(raw, envelope)  # the next that is heard is its confirmation
    mailserver.node.set_max_envelope_bytes(len(envelope.raw))

    assert refused == [envelope.hash()]
    assert await post(raw, envelope) == []
    assert mailserver.node.requirements.max_envelope_bytes == len(envelope.raw)


@pytest.mark.parametrize("limit", [-1, 0, MAX_ENVELOPE_BYTES + 1])
async def test_longest_envelope_must_fit_a_packet(mailserver: Mailserver, limit: int) -> None:
    for allowed in (1, MAX_ENVELOPE_BYTES):
        mailserver.node.set_max_envelope_bytes(allowed)

    with pytest.raises(ValueError, match=str(limit)):
        mailserver.node.set_max_envelope_bytes(limit)


# Envelopes of our own


async def test_own_envelope_is_stored_and_relayed(mailserver: Mailserver) -> None:
    raw = await mailserver.dial(status=WANTS_ALL)
    envelope = make_envelope(1)

    await mailserver.node.post(envelope)

    assert await raw.hear_packet() == Packet(PacketCode.MESSAGES, messages(envelope))
    assert await mailserver.store.last_reception(NOW) == NOW
    assert mailserver.node.live_usage() == (1, len(envelope.raw))


async def test_own_envelope_that_no_node_would_take_is_refused(mailserver: Mailserver) -> None:
    with pytest.raises(EnvelopeRefused) as refused:
        await mailserver.node.post(make_envelope(1, created=0))

    assert refused.value.verdict is Verdict.VERY_OLD
    assert mailserver.node.live_usage() == (0, 0)


async def test_envelope_is_sent_to_one_peer_outside_gossip(mailserver: Mailserver) -> None:
    raw, other = await mailserver.dial(status=WANTS_ALL), await mailserver.dial(status=WANTS_ALL)
    direct, live = make_envelope(1), make_envelope(2)

    await mailserver.node.send_direct(raw.key.public_key, direct)
    await mailserver.node.post(live)

    assert await raw.hear_packet() == Packet(PacketCode.P2P_MESSAGE, messages(direct))
    assert await other.hear_packet() == Packet(PacketCode.MESSAGES, messages(live))


async def test_history_is_asked_of_trusted_peers_only(mailserver: Mailserver) -> None:
    raw, request = await mailserver.dial(), make_envelope(1)
    node_id = raw.key.public_key

    with pytest.raises(PeerNotTrusted, match=node_id.hex()[:8]):
        await mailserver.node.request_history(node_id, request, asker=Asker())
    mailserver.node.mark_trusted(node_id)
    await mailserver.node.request_history(node_id, request, asker=Asker())

    assert await raw.hear_packet() == Packet(PacketCode.P2P_REQUEST, request.raw)


async def test_nothing_is_sent_to_a_peer_that_is_not_there(mailserver: Mailserver) -> None:
    mailserver.node.mark_trusted(STRANGER)

    with pytest.raises(PeerNotConnected):
        await mailserver.node.send_direct(STRANGER, make_envelope(1))
    with pytest.raises(PeerNotConnected):
        await mailserver.node.request_history(STRANGER, make_envelope(1), asker=Asker())


async def test_request_that_cannot_be_sent_is_not_waited_for(mailserver: Mailserver) -> None:
    raw = await mailserver.dial()
    node_id = raw.key.public_key
    mailserver.node.mark_trusted(node_id)
    mailserver.connections[-1].disconnect(DisconnectReason.REQUESTED, "the test says so")

    with pytest.raises((ConnectionLost, PeerNotConnected)):
        await mailserver.node.request_history(node_id, make_envelope(1), asker=Asker())

    assert len(mailserver.node.completions) == 0


async def test_settings_that_name_other_trusted_peers_leave_alone_those_marked_otherwise(
    mailserver: Mailserver,
) -> None:
    first, second, third = (private_key(name).public_key for name in ("first", "second", "third"))
    node = mailserver.node
    node.follow_trusted([], [first, second])

    node.mark_trusted(STRANGER)
    node.mark_untrusted(second)
    node.follow_trusted([first, second], [second, third])

    assert mailserver.services.trusted is mailserver.connected.trusted
    assert mailserver.connected.trusted == {STRANGER, third}


# Peers


async def test_node_does_not_become_its_own_peer_and_says_so_once(
    pair: tuple[Mailserver, Mailserver], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "mailserver.peers.node")
    left, _ = pair
    ourselves = Enode(left.key.public_key, "192.0.2.1", 30303)

    left.node.add_peer(ourselves)
    left.node.mark_trusted(ourselves.node_id)
    left.node.add_peer(ourselves)

    assert not left.connected.is_named(ourselves.node_id)
    assert [record.getMessage() for record in caplog.records] == ["own enode is named among the peers, it is left out"]


async def test_peer_that_is_added_is_connected_and_stays_so_until_it_is_removed(
    pair: tuple[Mailserver, Mailserver],
) -> None:
    left, right = pair

    left.node.add_peer(right.node.enode)
    await until(lambda: len(left.node.peers()) == len(right.node.peers()) == 1)
    (info,) = left.node.peers()
    right.connections[0].abort("as if the line were cut")
    await until(lambda: len(left.peers) == 2 and len(left.node.peers()) == 1)
    removed = left.node.remove_peer(right.key.public_key)

    assert (info.node_id, info.is_static, info.is_inbound) == (right.key.public_key, True, False)
    assert removed
    await until(lambda: not list(left.connected) and not list(right.connected))
    assert left.connected.static == set()
    assert not left.node.remove_peer(right.key.public_key)
    await until(lambda: not any(task.get_name().startswith("static peer") for task in asyncio.all_tasks()))
    closed = right.connections[1].closed
    assert closed is not None
    assert closed.reason is DisconnectReason.REQUESTED


async def test_peer_that_is_removed_while_it_shakes_hands_is_disconnected(mailserver: Mailserver) -> None:
    ours, theirs = stream_pair()
    mailserver.start(await mailserver.connection(ours, STRANGER))
    reader, writer = await open_stream(theirs)
    await read_handshake_packet(reader)  # its auth, which nobody answers

    removed = mailserver.node.remove_peer(STRANGER)
    writer.transport.abort()

    assert removed
    closed = mailserver.connections[0].closed
    assert closed is not None
    assert closed.reason is DisconnectReason.REQUESTED
    await asyncio.wait_for(mailserver.tasks[0], DEADLINE_S)


async def test_static_peers_of_the_settings_come_and_go_and_others_stay(pair: tuple[Mailserver, Mailserver]) -> None:
    left, right = pair

    left.node.add_peer(ELSEWHERE)
    left.node.follow_static([], [NOWHERE])
    left.node.follow_static([NOWHERE], [right.node.enode])
    await until(lambda: len(left.node.peers()) == 1)
    left.node.follow_static([right.node.enode], [])

    assert left.connected.static == {ELSEWHERE.node_id}
    assert len(left.node.peers()) == 1  # what is connected stays
    assert not left.node.peers()[0].is_static


@pytest.mark.parametrize("number", range(5))
async def test_nodes_that_dial_each_other_end_with_one_connection(
    pair: tuple[Mailserver, Mailserver], number: int
) -> None:
    left, right = pair

    def is_settled() -> bool:
        # Each has one connection, and has had the other's Status by it: it is the same one.
        served = [peer.connection for peer in (*left.connected, *right.connected)]
        return len(served) == 2 and all(
            connection.is_open and connection.settings.pow_requirement == 0.0 for connection in served
        )

    # Both at once, in lockstep: each may let in the connection that the other refuses. Jitter parts them.
    left.node.add_peer(right.node.enode)
    right.node.add_peer(left.node.enode)
    await until(is_settled)
    served = len(left.peers), len(right.peers)
    envelopes = [make_envelope(number) for number in range(2)]
    await left.node.post(envelopes[0])
    await right.node.post(envelopes[1])
    await until(lambda: left.node.live_usage()[0] == right.node.live_usage()[0] == 2)

    assert is_settled()
    assert (len(left.peers), len(right.peers)) == served


# Changes while running, against a model


@st.composite
def changes(draw: st.DrawFn) -> list[tuple[str, Any]]:
    """What happens: we change, the listening peer does, time passes, or an envelope comes."""
    kinds = {
        "our min_pow": st.sampled_from([0.0, 0.00003, 1.0]),
        "our interest": st.sampled_from([FULL_INTEREST, ONLY_NEWS, ONLY_SPORT, Interest(topics=frozenset())]),
        "its status": st.builds(
            StatusOptions,
            pow_requirement=st.none() | st.sampled_from([0.0, 0.00003, 1.0]),
            bloom=st.none() | st.sampled_from([b"", FULL_BLOOM, EMPTY_BLOOM, bloom_of([NEWS])]),
            topic_interest=st.none() | st.sampled_from([frozenset(), frozenset({NEWS}), frozenset({NEWS, SPORT})]),
        ),
        "seconds": st.sampled_from([1, 5, 10]),
        "envelope": st.sampled_from([NEWS, SPORT]),
    }
    names = draw(st.lists(st.sampled_from([*kinds, "envelope", "envelope"]), min_size=5, max_size=30))
    return [(name, draw(kinds[name])) for name in names]


@settings(max_examples=12)
@given(steps=changes())
async def test_any_changes_accept_relay_and_announce_what_a_plain_model_does(steps: list[tuple[str, Any]]) -> None:
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(relay_module, "BUNDLE_INTERVAL_S", 0.005)
        async with running_mailserver(Path(folder)) as mailserver:
            await change_against_model(mailserver, steps)


async def change_against_model(mailserver: Mailserver, steps: list[tuple[str, Any]]) -> None:
    node, clock = mailserver.node, mailserver.clock
    sender, listener = await mailserver.dial(status=WANTS_NOTHING), await mailserver.dial(status=b"\xc0")
    at_our_side = mailserver.connections[1]
    heard: list[Envelope] = []
    told: dict[str, Any] = {"pow_requirement": 0.0, "wants": FULL_BLOOM}

    async def listen() -> None:
        while (packet := await listener.hear_packet()).code != PacketCode.P2P_MESSAGE:
            if packet.code == PacketCode.MESSAGES:
                heard.extend(decode_envelopes(packet.payload))
                continue
            assert packet.code == PacketCode.STATUS_UPDATE
            update = StatusOptions.decode(packet.payload)
            if update.pow_requirement is not None:
                told["pow_requirement"] = update.pow_requirement
            if update.bloom is not None or update.topic_interest is not None:
                assert update.bloom is None or update.topic_interest is None
                told["wants"] = update.topic_interest if update.bloom is None else update.bloom

    listening = asyncio.create_task(listen())
    min_pow, interest = 0.0, FULL_INTEREST
    former: list[tuple[float, float, Interest]] = []  # until when, what
    its_pow, its_topics, its_bloom = DEFAULT_POW_REQUIREMENT, None, FULL_BLOOM
    accepted: list[Envelope] = []
    relayed: list[Envelope] = []
    posted: list[Envelope] = []
    for number, (kind, value) in enumerate(steps):
        if kind.startswith("our"):
            if value not in (min_pow, interest):
                former.append((clock.now + 10.0, min_pow, interest))
            if kind == "our min_pow":
                min_pow = value
                node.set_min_pow(value)
            else:
                interest = value
                node.set_interest(value)
        elif kind == "its status":
            before = at_our_side.settings
            its_pow = its_pow if value.pow_requirement is None else value.pow_requirement
            if value.topic_interest is not None:
                its_topics = value.topic_interest
            elif value.bloom is not None:
                its_topics, its_bloom = None, value.bloom or FULL_BLOOM
            listener.say(PacketCode.STATUS_UPDATE, value.encode())
            await until(lambda before=before: at_our_side.settings is not before)  # type: ignore[misc]
        elif kind == "seconds":
            clock.now += value
        else:
            envelope = make_envelope(number, topic=value, ttl=600)
            posted.append(envelope)
            valid = [(min_pow, interest)] + [entry[1:] for entry in former[-MAX_FORMER:] if clock.now < entry[0]]
            is_accepted = envelope.pow() >= min(pow_ for pow_, _ in valid) and any(
                wants.wants(value) for _, wants in valid
            )
            assert await post(sender, envelope) == ([] if is_accepted else [envelope.hash()])
            if is_accepted:
                accepted.append(envelope)
                has_bloom = Interest(bloom=its_bloom).wants(value)
                if envelope.pow() >= its_pow and (has_bloom if its_topics is None else value in its_topics):
                    relayed.append(envelope)
                await until(lambda: node.live_usage()[0] == len(accepted))
                await turns(10)  # who has waited for the bundle goes through it by what it wants now
    await node.send_direct(listener.key.public_key, make_envelope(len(steps)))  # comes behind everything else
    await listening

    wants = FULL_BLOOM if interest.topics is None else interest.topics
    assert told == {"pow_requirement": min_pow, "wants": wants}
    assert heard == relayed
    missing = await mailserver.store.missing([stored(envelope) for envelope in posted])
    assert {new.hash for new in missing} == {envelope.hash() for envelope in posted if envelope not in accepted}


# Networks


class Listener:
    """A peer of one of the mailservers that counts what it hears."""

    def __init__(self, raw: RawPeer, topics: frozenset[Topic]) -> None:
        self.topics = topics
        self.heard: Counter[bytes] = Counter()
        self._raw = raw
        self.listening = asyncio.create_task(self._listen())

    async def _listen(self) -> None:
        with contextlib.suppress(Hangup):
            while True:
                code, payload = await self._raw.hear_packet()
                if code == PacketCode.MESSAGES:
                    self.heard.update(envelope.raw for envelope in decode_envelopes(payload))


class Member:
    """One mailserver of a network, what of it is published, and who listens to it."""

    def __init__(self, server: Mailserver, listeners: list[Listener], *, is_light: bool) -> None:
        self.server = server
        self.listeners = listeners
        self.is_light = is_light
        self.neighbours: list[Member] = []
        self.accepted: Counter[bytes] = Counter()
        self._feed = server.node.feed.reader()

    def has(self, envelopes: list[Envelope]) -> bool:
        """Whether it and whoever listens to it have all of these that they want."""
        self.accepted.update(live.envelope.raw for live in self._feed.read_nowait())
        return all(envelope.raw in self.accepted for envelope in envelopes) and all(
            envelope.raw in listener.heard
            for listener in self.listeners
            for envelope in self.relayed(envelopes)
            if envelope.topic in listener.topics
        )

    def relayed(self, envelopes: list[Envelope]) -> list[Envelope]:
        """What of these it relays: a light node what it was given by us, of which this test has none."""
        return [] if self.is_light else envelopes

    def wants(self, envelope: Envelope) -> bool:
        """Whether it takes an envelope."""
        requirements = self.server.node.requirements
        return requirements.interest.wants(envelope.topic) and envelope.pow() >= requirements.min_pow


def reached_from(members: list[Member], envelope: Envelope) -> list[Member]:
    """Who must get an envelope that these are given: whoever wants it and has a way to it by such as relay it."""
    reached: list[Member] = []
    waiting = list(members)
    while waiting:
        member = waiting.pop()
        if member not in reached and member.wants(envelope):
            reached.append(member)
            waiting += [] if member.is_light else member.neighbours
    return reached


CLOSING = Topic(b"last")
"""Everybody wants it."""


@settings(max_examples=5, phases=[Phase.generate])  # a smaller seed is no simpler network
@given(seed=st.integers(0, 1 << 32))
async def test_envelopes_reach_everyone_that_wants_them_exactly_once_in_any_network(seed: int) -> None:
    rng = random.Random(seed)
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(relay_module, "BUNDLE_INTERVAL_S", 0.005)
        async with contextlib.AsyncExitStack() as stack:
            members = [await member_at_random(rng, stack, Path(folder), number) for number in range(rng.randint(2, 5))]
            for at, member in enumerate(members[1:], 1):
                # A way to one of the former, and some more: lines, stars, rings and what is between them.
                for other in {rng.randrange(at), *rng.sample(range(at), rng.randint(0, at))}:
                    if not (member.is_light and members[other].is_light):
                        await member.server.join(members[other].server)
                        member.neighbours.append(members[other])
                        members[other].neighbours.append(member)
            await relay_at_random(rng, members)


async def member_at_random(rng: random.Random, stack: contextlib.AsyncExitStack, folder: Path, number: int) -> Member:
    """A mailserver that wants some topics, or all, with a few who listen to it."""
    topics = rng.choice([None, None, {NEWS, CLOSING}, {NEWS, SPORT, CLOSING}])
    is_light = rng.random() < 0.15
    server = await stack.enter_async_context(
        running_mailserver(
            folder_of(folder, str(number)),
            key=private_key(f"member {number}"),
            interest=FULL_INTEREST if topics is None else Interest(topics=frozenset(topics)),
            min_pow=rng.choice([0.0, 0.0, 0.0002]),
            light_node=is_light,
        )
    )
    listeners = []
    for _ in range(rng.randint(1, 2)):
        wanted = frozenset(rng.sample([NEWS, SPORT], rng.randint(0, 2))) | {CLOSING}
        raw = await server.dial(status=StatusOptions(0.0, light_node=False, topic_interest=wanted).encode())
        listeners.append(Listener(raw, wanted))
    return Member(server, listeners, is_light=is_light)


async def relay_at_random(rng: random.Random, members: list[Member]) -> None:
    """Give envelopes to some members, several at a time, now and then one to two of them; compare with the model."""
    expected: dict[Member, list[Envelope]] = {member: [] for member in members}
    senders = {member: await member.server.dial(status=WANTS_NOTHING, name="sender") for member in members}

    def all_have() -> bool:
        return all(member.has(envelopes) for member, envelopes in expected.items())

    async def give(member: Member, *envelopes: Envelope) -> None:
        refused = await post(senders[member], *envelopes)
        assert refused == [envelope.hash() for envelope in envelopes if not member.wants(envelope)]

    for number in range(rng.randint(1, 4)):
        envelopes = [
            make_envelope(100 * number + at, topic=rng.choice([NEWS, SPORT])) for at in range(rng.randint(1, 5))
        ]
        given = rng.sample(members, rng.randint(1, min(2, len(members))))
        for envelope in envelopes:
            for member in reached_from(given, envelope):
                expected[member].append(envelope)
        await asyncio.gather(*(give(member, *envelopes) for member in given))
    await until(all_have)
    for member, envelopes in expected.items():  # what is sent again is confirmed, once it is on disk, and goes nowhere
        await give(member, *envelopes)
    # What goes round once more would come within the bundles of these, or before them.
    for number, member in enumerate(members):
        closing = mined_envelope(10_000 + number)
        for reached in reached_from([member], closing):
            expected[reached].append(closing)
        await asyncio.gather(*(give(reached, closing) for reached in reached_from([member], closing)))
        await until(all_have)

    for member in members:
        assert member.accepted == Counter(envelope.raw for envelope in expected[member])
        for listener in member.listeners:
            relayed = member.relayed(expected[member])
            assert listener.heard == Counter(envelope.raw for envelope in relayed if envelope.topic in listener.topics)
        assert await member.server.store.missing([stored(envelope) for envelope in expected[member]]) == []


def mined_envelope(number: int) -> Envelope:
    """An envelope with enough work for everybody."""
    return mine(NOW + 50, 50, CLOSING, digest(f"closing {number}"), target=0.0002)
