"""mailserver.peers.connected: who is let in, and what all are told; over socket pairs, with a real store."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from mailserver.errors import DisconnectReason
from mailserver.limits.admission import groups_of, index_to_evict
from mailserver.net import connection as connection_module
from mailserver.peers import connected as connected_module
from mailserver.peers.connected import PeerInfo, PeerNotConnected, Peers
from mailserver.rlpx import liveness as liveness_module
from mailserver.rlpx import p2p
from mailserver.waku.bloom import FULL_BLOOM
from mailserver.waku.envelope import Topic
from mailserver.waku.packets import MAX_TOPIC_INTEREST, PacketCode, PeerSettings, StatusOptions
from tests.mailservers import NEWS, STATUS, Mailserver, running_mailserver
from tests.pairs import private_key
from tests.raw_peer import Packet, RawPeer, stream_pair
from tests.waiting import DEADLINE_S, until

STRANGER = private_key("stranger").public_key
ONLY_NEWS = replace(STATUS, bloom=None, topic_interest=frozenset({NEWS}))


@pytest.fixture
async def mailserver(tmp_path: Path) -> AsyncIterator[Mailserver]:
    async with running_mailserver(tmp_path) as mailserver:
        yield mailserver


async def reason_of(raw: RawPeer) -> DisconnectReason | None:
    """Say Hello; return why that was in vain."""
    raw.write(raw.hello())
    heard = await raw.hear()
    if heard.message_id == p2p.MessageId.HELLO:
        raw.compressed = True
        heard = await raw.hear()
    assert heard.message_id == p2p.MessageId.DISCONNECT
    return p2p.decode_disconnect(heard.payload)


def update_of(**options: object) -> Packet:
    """The Status Update that says this."""
    return Packet(PacketCode.STATUS_UPDATE, replace(StatusOptions(), **options).encode())  # type: ignore[arg-type]


# Who is there


def test_no_number_is_used_twice() -> None:
    peers = Peers(1)

    assert len({peers.next_number() for _ in range(100)}) == 100


async def test_peer_is_known_from_the_end_of_its_handshake_to_its_end(mailserver: Mailserver) -> None:
    node_id = private_key("phone").public_key
    peers = mailserver.connected

    raw = await mailserver.dial_silent(name="phone")
    before = peers.find(node_id)
    with pytest.raises(PeerNotConnected, match=node_id.hex()[:8]):
        peers.get(node_id)
    await raw.greet()

    assert before is None
    assert list(peers) == mailserver.peers
    assert peers.find(node_id) is peers.get(node_id) is mailserver.peers[0]
    assert peers.find(STRANGER) is None
    await raw.close()
    await until(lambda: not list(peers))
    assert peers.find(node_id) is None
    assert peers.infos() == []


async def test_peers_are_described(tmp_path: Path) -> None:
    trusted, static = private_key("trusted").public_key, private_key("static").public_key
    async with running_mailserver(tmp_path, trusted=[trusted]) as mailserver:
        mailserver.connected.static.add(static)
        for name in ("trusted", "static"):
            await mailserver.dial(name=name, status=StatusOptions(light_node=True).encode())
        await mailserver.dial_silent()  # still shakes hands
        await until(lambda: all(info.settings.light_node for info in mailserver.connected.infos()))

        infos = {info.node_id: info for info in mailserver.connected.infos()}

        assert infos.keys() == {trusted, static}
        assert infos[trusted] == PeerInfo(
            node_id=trusted,
            client_id="raw/1",
            local_address="?",  # a socket pair has no addresses
            remote_address="?",
            is_inbound=True,
            is_trusted=True,
            is_static=False,
            settings=PeerSettings(light_node=True),
        )
        assert (infos[static].is_trusted, infos[static].is_static) == (False, True)


async def test_peer_is_disconnected_whether_its_handshake_is_over_or_not(mailserver: Mailserver) -> None:
    open_one, silent_one, other = (
        await mailserver.dial(name="open"),
        await mailserver.dial_silent(name="silent"),
        await mailserver.dial(name="other"),
    )

    ended = [
        mailserver.connected.disconnect(private_key(name).public_key, "a test") for name in ("open", "silent", "none")
    ]

    assert ended == [True, True, False]
    assert await open_one.hear_hangup() is DisconnectReason.REQUESTED
    assert await silent_one.at_end()
    assert [peer.connection.node_id for peer in mailserver.connected if peer.connection.is_open] == [
        other.key.public_key
    ]


# Who is let in


async def test_second_connection_of_a_peer_is_refused_once_the_first_has_answered(
    mailserver: Mailserver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(liveness_module, "SEEN_RECENTLY_S", 0.0)  # it has opened a while ago
    first = await mailserver.dial(name="phone")
    second = await mailserver.dial_silent(name="phone")

    second.write(second.hello())
    assert (await first.hear()).message_id == p2p.MessageId.PING  # is anybody there?
    monkeypatch.undo()
    first.write(first.frame(p2p.MessageId.PONG, p2p.EMPTY_PAYLOAD))
    heard = await second.hear()
    first.say(PacketCode.MESSAGES, b"\xc0")

    assert (heard.message_id, p2p.decode_disconnect(heard.payload)) == (
        p2p.MessageId.DISCONNECT,
        DisconnectReason.ALREADY_CONNECTED,
    )
    assert (await first.hear_packet()).code == PacketCode.MESSAGE_RESPONSE


async def test_of_two_connections_that_shake_hands_at_once_the_first_to_finish_stays(mailserver: Mailserver) -> None:
    first, second = await mailserver.dial_silent(name="phone"), await mailserver.dial_silent(name="phone")

    await second.greet()

    assert await reason_of(first) is DisconnectReason.ALREADY_CONNECTED
    assert len(mailserver.connected.infos()) == 1


async def test_peer_whose_first_connection_is_dead_gets_in_within_seconds(
    mailserver: Mailserver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(liveness_module, "PROBE_TIMEOUT_S", 0.05)
    monkeypatch.setattr(liveness_module, "SEEN_RECENTLY_S", 0.0)
    monkeypatch.setattr(connection_module, "LINGER_S", 0.05)
    await mailserver.dial(name="phone")  # and is never heard of again

    second = await mailserver.dial(name="phone")

    closed = mailserver.connections[0].closed
    assert closed is not None
    assert closed.reason is DisconnectReason.PING_TIMEOUT
    assert mailserver.connected.get(second.key.public_key).connection is mailserver.connections[1]


async def test_peer_that_goes_away_while_it_waits_for_its_first_connection_is_let_go(
    mailserver: Mailserver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(liveness_module, "SEEN_RECENTLY_S", 0.0)
    first = await mailserver.dial(name="phone")
    second = await mailserver.dial_silent(name="phone")
    assert (await first.hear()).message_id == p2p.MessageId.PING

    await second.close()
    await asyncio.wait_for(mailserver.tasks[1], DEADLINE_S)

    assert not mailserver.connections[1].was_open
    assert mailserver.connected.find(first.key.public_key) is not None


async def test_we_do_not_connect_to_ourselves(mailserver: Mailserver) -> None:
    ourselves = await mailserver.dial_silent(name="mailserver")

    assert await reason_of(ourselves) is DisconnectReason.SELF_CONNECTION
    assert mailserver.connected.infos() == []


async def test_no_more_than_the_most_are_let_in_but_static_and_trusted_ones(tmp_path: Path) -> None:
    async with running_mailserver(tmp_path, max_peers=2, trusted=[private_key("trusted").public_key]) as mailserver:
        mailserver.connected.static.add(private_key("static").public_key)
        first, second = await mailserver.dial(name="first"), await mailserver.dial_silent(name="second")
        last = await mailserver.dial_silent(name="last")  # there is room yet
        await second.greet()

        assert await reason_of(last) is DisconnectReason.TOO_MANY_PEERS  # another has taken the last place meanwhile
        assert await reason_of(await mailserver.dial_silent(name="late")) is DisconnectReason.TOO_MANY_PEERS
        for name in ("trusted", "static"):
            await mailserver.dial(name=name)
        await first.close()
        await asyncio.wait_for(mailserver.tasks[0], DEADLINE_S)
        # They count all the same: three are there.
        assert await reason_of(await mailserver.dial_silent(name="late")) is DisconnectReason.TOO_MANY_PEERS
        mailserver.connected.max_peers = 4
        await mailserver.dial(name="late")


async def come_from(mailserver: Mailserver, host: str, name: str) -> RawPeer:
    """A peer of that address that has sent auth and is about to say Hello."""
    raw = await mailserver.dial_silent(name=name)
    mailserver.connections[-1]._pipe.host = host  # noqa: SLF001 - a socket pair has no address
    return raw


async def test_subnet_with_most_places_makes_room_for_another(tmp_path: Path) -> None:
    async with running_mailserver(tmp_path, max_peers=3) as mailserver:
        crowd = [await (await come_from(mailserver, f"192.0.2.{name}", name)).greet() for name in "123"]
        newcomer = await come_from(mailserver, "198.51.100.1", "newcomer")
        assert len(mailserver.connected.connected()) == 3

        await newcomer.greet()

        assert await crowd[2].hear_hangup() is DisconnectReason.TOO_MANY_PEERS  # the last to come
        second = await come_from(mailserver, "198.51.100.2", "second")
        assert await reason_of(second) is DisconnectReason.TOO_MANY_PEERS  # it would have as many then
        assert {peer.node_id for peer in mailserver.connected.infos()} == {
            raw.key.public_key for raw in (*crowd[:2], newcomer)
        }


async def test_no_peer_is_evicted_for_one_that_has_only_sent_auth(tmp_path: Path) -> None:
    async with running_mailserver(tmp_path, max_peers=3) as mailserver:
        for name in "123":
            await (await come_from(mailserver, f"192.0.2.{name}", name)).greet()

        for number in range(3):
            await come_from(mailserver, "198.51.100.1", f"recorded {number}")

        assert len(mailserver.connected.connected()) == 3


async def test_many_connections_that_claim_one_node_id_are_looked_at_by_subnet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_for: list[str] = []

    def noting(newcomer: str, present: Sequence[str]) -> int | None:
        looked_for.append(newcomer)
        return index_to_evict(newcomer, present)

    monkeypatch.setattr(connected_module, "index_to_evict", noting)
    async with running_mailserver(tmp_path, max_peers=3) as mailserver:
        for name in "123":
            await (await come_from(mailserver, f"192.0.2.{name}", name)).greet()
        for host in ("198.51.100.1", "198.51.100.2", "203.0.113.1") * 3:
            await come_from(mailserver, host, "recorded")
        gone = await come_from(mailserver, "198.18.0.1", "recorded")
        await gone.close()
        await until(lambda: mailserver.connections[-1].closed is not None)
        looked_for.clear()

        assert mailserver.connected.refuse(private_key("recorded").public_key) is None
        assert sorted(groups_of(host).subnet for host in looked_for) == [
            groups_of("198.51.100.1").subnet,
            groups_of("203.0.113.1").subnet,
        ]


async def test_static_and_trusted_peers_do_not_make_room(tmp_path: Path) -> None:
    trusted = private_key("trusted").public_key
    async with running_mailserver(tmp_path, max_peers=3, trusted=[trusted]) as mailserver:
        mailserver.connected.static.add(private_key("static").public_key)
        for name in ("other", "static", "trusted"):
            await (await come_from(mailserver, "192.0.2.1", name)).greet()

        refused = await come_from(mailserver, "198.51.100.1", "newcomer")

        assert await reason_of(refused) is DisconnectReason.TOO_MANY_PEERS
        assert len(mailserver.connected.connected()) == 3


# What all are told


async def test_all_peers_are_told_what_has_changed_and_only_that(mailserver: Mailserver) -> None:
    raws = [await mailserver.dial() for _ in range(3)]

    mailserver.connected.announce(STATUS)  # nothing
    mailserver.connected.announce(replace(STATUS, pow_requirement=0.5))
    mailserver.connected.announce(replace(ONLY_NEWS, pow_requirement=0.5))

    for raw in raws:
        assert await raw.hear_packet() == update_of(pow_requirement=0.5)
        assert await raw.hear_packet() == update_of(topic_interest=frozenset({NEWS}))
    mailserver.connected.announce(replace(STATUS, pow_requirement=0.5))
    for raw in raws:
        assert await raw.hear_packet() == update_of(bloom=FULL_BLOOM)


async def test_peer_that_still_shakes_hands_is_told_in_its_status(mailserver: Mailserver) -> None:
    raw = await mailserver.dial_silent()

    mailserver.connected.announce(ONLY_NEWS)

    raw.write(raw.hello())
    await raw.hear()
    raw.compressed = True
    assert await raw.hear_packet() == Packet(PacketCode.STATUS, ONLY_NEWS.encode())


async def test_peer_that_was_being_dialled_during_the_change_is_told_in_its_status(mailserver: Mailserver) -> None:
    # What is announced is decided before a dial, which takes seconds; only what is served hears of a change.
    ours, theirs = stream_pair()
    dialled = await mailserver.connection(ours, private_key("neighbour").public_key)

    mailserver.connected.announce(ONLY_NEWS)
    mailserver.start(dialled)

    raw = await RawPeer.accept(theirs, name="neighbour")
    mailserver.raw_peers.append(raw)
    raw.write(raw.hello())
    await raw.hear()
    raw.compressed = True
    assert await raw.hear_packet() == Packet(PacketCode.STATUS, ONLY_NEWS.encode())


async def test_what_all_are_told_is_encoded_once(mailserver: Mailserver, monkeypatch: pytest.MonkeyPatch) -> None:
    raws = [await mailserver.dial() for _ in range(5)]
    await until(lambda: len(mailserver.connected.infos()) == len(raws))
    encode = StatusOptions.encode
    encoded: list[StatusOptions] = []

    def encode_counted(options: StatusOptions) -> bytes:
        encoded.append(options)
        return encode(options)

    monkeypatch.setattr(StatusOptions, "encode", encode_counted)
    topics = frozenset(Topic(number.to_bytes(4, "big")) for number in range(MAX_TOPIC_INTEREST))
    mailserver.connected.announce(replace(STATUS, bloom=None, topic_interest=topics))

    assert encoded == [StatusOptions(topic_interest=topics)]
    for raw in raws:
        assert StatusOptions.decode((await raw.hear_packet()).payload) == encoded[0]
