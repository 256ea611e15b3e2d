"""mailserver.peers.served_peer: whole connections over socket pairs, a real store, and a clock of the test's."""

import asyncio
import contextlib
import gc
import logging
import random
import sqlite3
import weakref
from collections.abc import AsyncIterator, Hashable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from mailserver.codec.keccak import keccak256
from mailserver.codec.keys import PrivateKey
from mailserver.errors import DisconnectReason, Rejection
from mailserver.history.delivery import MAX_REQUEST_BYTES, DeliverySettings
from mailserver.limits.admission import Allowed
from mailserver.limits.intake_bounds import IntakeBounds, Load
from mailserver.limits.packet_rates import RateLimitSettings
from mailserver.limits.request_quotas import RequestLimits
from mailserver.limits.turns import FRAMES_AT_ONCE
from mailserver.mail.completion import Completion, CompletionFormat, Failure, decode_completion
from mailserver.mail.request import RequestId, decode_request
from mailserver.metrics.labels import Direction
from mailserver.metrics.registry import count_of
from mailserver.net import connection as connection_module
from mailserver.net import link as link_module
from mailserver.peers import live_packets as live_module
from mailserver.peers.live_packets import MAX_UNCONFIRMED_ENVELOPES
from mailserver.peers.request_queue import CONCURRENCY_RETRY_S, MAX_WAITING_REQUESTS
from mailserver.rlpx import liveness as liveness_module
from mailserver.rlpx import p2p
from mailserver.rlpx import session as session_module
from mailserver.store.interface import NewEnvelope
from mailserver.store.sqlite.writer import MAX_GROUP_ROWS
from mailserver.waku.acceptance import Verdict
from mailserver.waku.bloom import EMPTY_BLOOM
from mailserver.waku.envelope import Envelope, Topic, decode_envelopes, encode_envelope, encode_envelopes
from mailserver.waku.packets import (
    NO_RATE_LIMITS,
    EnvelopeError,
    EnvelopeErrorCode,
    MessageResponse,
    PacketCode,
    RateLimits,
    StatusOptions,
)
from tests.data import load
from tests.mailservers import (
    NEWS,
    NOW,
    PASSWORD_KEY,
    SPORT,
    STATUS,
    Mailserver,
    deployed_fields,
    fill,
    make_envelope,
    make_envelopes,
    make_large_envelopes,
    running_mailserver,
    sealed_request,
)
from tests.pairs import entropy, private_key
from tests.raw_peer import Hangup, Packet, RawPeer, Replay, stream_pair
from tests.waiting import DEADLINE_S, turns, until

SESSIONS: dict[str, Any] = {session["name"]: session for session in load("sessions.json")["sessions"]}
EMPTY_LIST = b"\xc0"
UNKNOWN_CODE = 99
NOTHING_WANTED = StatusOptions(bloom=EMPTY_BLOOM).encode()


@pytest.fixture
async def mailserver(tmp_path: Path) -> AsyncIterator[Mailserver]:
    async with running_mailserver(tmp_path) as mailserver:
        yield mailserver


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """No peer, whatever it does, puts an error into the log."""
    yield
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


def messages(*envelopes: Envelope) -> bytes:
    """The payload of Messages."""
    return encode_envelopes([envelope.raw for envelope in envelopes])


def confirmation(payload: bytes, *errors: EnvelopeError) -> list[Packet]:
    """What answers a Messages packet: 12, then 11 in the form of deployed nodes."""
    batch_hash = keccak256(payload)
    return [
        Packet(PacketCode.MESSAGE_RESPONSE, MessageResponse(batch_hash, errors).encode()),
        Packet(PacketCode.BATCH_ACKNOWLEDGED, b"\xa0" + batch_hash),
    ]


async def ask(raw: RawPeer, payload: bytes) -> tuple[list[Envelope], Completion | Failure]:
    """Send a request and wait for the answer."""
    raw.say(PacketCode.P2P_REQUEST, payload)
    return await hear_answer(raw)


async def hear_answer(raw: RawPeer) -> tuple[list[Envelope], Completion | Failure]:
    """Wait for the answer to one request."""
    packets, completion = await raw.hear_answer()
    return [envelope for packet in packets for envelope in decode_envelopes(packet)], decode_completion(completion)


async def hear_envelopes(raw: RawPeer, count: int) -> list[Envelope]:
    """Wait for so many live envelopes, in whatever packets, passing over everything else."""
    heard: list[Envelope] = []
    while len(heard) < count:
        packet = await raw.hear_packet()
        if packet.code == PacketCode.MESSAGES:
            heard += decode_envelopes(packet.payload)
    return heard


async def everything(mailserver: Mailserver) -> list[bytes]:
    """All that is stored, as a client of its own is told."""
    raw = await mailserver.dial()
    found: list[Envelope] = []
    cursor = None
    while cursor is not None or not found:
        fields = deployed_fields(upper=0xFFFFFFFF, topics=[], bloom=b"\xff" * 64, cursor=cursor)
        envelopes, outcome = await ask(raw, sealed_request(fields).raw)
        assert isinstance(outcome, Completion)
        found += envelopes
        cursor = outcome.cursor
        if cursor is None:
            break
    return [envelope.raw for envelope in found]


@contextlib.contextmanager
def write_lock(mailserver: Mailserver) -> Iterator[None]:
    """Keep the store from writing, as another process could; reading goes on."""
    connection = sqlite3.connect(mailserver.path, isolation_level=None)
    try:
        connection.execute("BEGIN IMMEDIATE")
        yield
    finally:
        connection.close()


async def heard_by(raw: RawPeer) -> None:
    """Wait until the mailserver has taken in all that the peer has said."""
    raw.write(raw.frame(p2p.MessageId.PING, p2p.EMPTY_PAYLOAD))
    assert (await raw.hear()).message_id == p2p.MessageId.PONG


# Sessions of the deployed Go client, replayed byte for byte


@pytest.mark.parametrize("name", SESSIONS)
async def test_recorded_session_of_the_deployed_client_is_served(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded = SESSIONS[name]
    key = PrivateKey(bytes.fromhex(recorded["recipient_private_key"]))
    drawn = replace(
        entropy("recorded recipient"),
        ephemeral_key=PrivateKey(bytes.fromhex(recorded["recipient_ephemeral_private_key"])),
        nonce=bytes.fromhex(recorded["recipient_nonce"]),
    )
    monkeypatch.setattr(connection_module, "random_entropy", lambda: drawn)
    said = [message for message in recorded["messages"] if message["from"] == "initiator"]
    news = [make_envelope(number, created=NOW - 60 - number) for number in range(3)]

    async with running_mailserver(tmp_path, key=key, min_pow=0.000002) as mailserver:
        await fill(mailserver.store, news)
        ours, theirs = stream_pair()
        await mailserver.take(ours)
        replay = await Replay.start(theirs, recorded)
        mailserver.raw_peers.append(replay)

        assert len(replay.frames) == len(said)
        for message, frame in zip(said, replay.frames, strict=True):
            payload = bytes.fromhex(message["payload"])
            replay.write(frame)
            match message["message_id"]:
                case p2p.MessageId.HELLO:
                    assert (await replay.hear()).message_id == p2p.MessageId.HELLO
                    replay.compressed = True
                    assert await replay.hear_packet() == Packet(PacketCode.STATUS, mailserver.status.encode())
                case 0x11:
                    assert await replay.hear_packets(2) == confirmation(payload)
                case 0x8E:
                    envelopes, outcome = await hear_answer(replay)
                    request_id = decode_request(payload).request_id
                    asked_for_nothing = payload.endswith(b"\xff" * 64 + b"\xc0") or name in ("handshake", "light", "v0")
                    assert envelopes == ([] if asked_for_nothing else news)
                    assert outcome == Completion(request_id, envelopes[-1].hash() if envelopes else bytes(32))  # type: ignore[arg-type]
                case p2p.MessageId.DISCONNECT:
                    assert await replay.at_end()

        closed = mailserver.connections[0].closed
        assert closed is not None
        assert closed.by_peer


# Confirmations


@pytest.mark.parametrize(
    "status",
    [
        EMPTY_LIST,
        StatusOptions(confirmations=False).encode(),
        StatusOptions(confirmations=True).encode(),
        StatusOptions(light_node=True).encode(),
    ],
)
async def test_messages_are_confirmed_whatever_the_peers_own_option_says(mailserver: Mailserver, status: bytes) -> None:
    raw = await mailserver.dial(status=status)
    payload = messages(*make_envelopes(3))

    raw.say(PacketCode.MESSAGES, payload)

    assert await raw.hear_packets(2) == confirmation(payload)


async def test_recorded_confirmations_have_the_form_of_ours() -> None:
    recorded = [p for p in load("packets.json")["packets"] if p["group"] == "confirmations"]
    batch_hash = bytes.fromhex(recorded[1]["payload"])[1:]

    assert MessageResponse(batch_hash).encode().hex() == recorded[0]["payload"]
    assert [packet["code"] for packet in recorded] == [PacketCode.MESSAGE_RESPONSE, PacketCode.BATCH_ACKNOWLEDGED]


async def test_each_packet_has_a_confirmation_of_its_own(mailserver: Mailserver) -> None:
    raw = await mailserver.dial()
    payloads = [messages(*make_envelopes(2, first=2 * number)) for number in range(20)]

    raw.write(*(raw.packet(PacketCode.MESSAGES, payload) for payload in payloads))
    heard = await raw.hear_packets(40)

    pairs = [heard[at : at + 2] for at in range(0, 40, 2)]
    assert sorted(pairs) == sorted(confirmation(payload) for payload in payloads)


async def test_packets_that_come_together_are_stored_together(
    mailserver: Mailserver, monkeypatch: pytest.MonkeyPatch
) -> None:
    put, stored = mailserver.store.put, []

    async def counted(envelopes: Sequence[NewEnvelope], source: Hashable = None) -> None:
        stored.append(len(envelopes))
        await put(envelopes, source)

    monkeypatch.setattr(mailserver.store, "put", counted)
    raw = await mailserver.dial()
    payloads = [messages(*make_envelopes(2, first=2 * number)) for number in range(FRAMES_AT_ONCE)]

    raw.write(*(raw.packet(PacketCode.MESSAGES, payload) for payload in payloads))
    heard = await raw.hear_packets(2 * len(payloads))

    assert heard == [packet for payload in payloads for packet in confirmation(payload)]
    assert sum(stored) == 2 * len(payloads)
    assert len(stored) < len(payloads) / 2


@pytest.mark.parametrize("other", [PacketCode.STATUS_UPDATE, PacketCode.P2P_REQUEST, UNKNOWN_CODE])
async def test_packets_around_one_of_another_kind_are_all_taken(mailserver: Mailserver, other: int) -> None:
    raw = await mailserver.dial(status=NOTHING_WANTED)
    payloads = [messages(make_envelope(number)) for number in range(4)]
    packets = [(PacketCode.MESSAGES, payload) for payload in payloads]

    raw.write(*(raw.packet(*packet) for packet in (*packets[:2], (other, EMPTY_LIST), *packets[2:])))
    heard = await raw.hear_packets(8 + (other == PacketCode.P2P_REQUEST))

    confirmations = [packet for packet in heard if packet.code != PacketCode.P2P_REQUEST_COMPLETE]
    assert confirmations == [packet for payload in payloads for packet in confirmation(payload)]


async def test_packets_before_one_that_does_not_decode_are_stored_and_confirmed(mailserver: Mailserver) -> None:
    raw = await mailserver.dial()
    payloads = [messages(make_envelope(number)) for number in range(4)]
    undecodable = b"\x01"

    raw.write(*(raw.packet(PacketCode.MESSAGES, each) for each in (*payloads[:2], undecodable, *payloads[2:])))
    heard = await raw.hear_packets(4)
    with pytest.raises(Hangup) as hangup:
        await raw.hear_packet()

    assert heard == [packet for payload in payloads[:2] for packet in confirmation(payload)]
    assert hangup.value.reason is DisconnectReason.SUBPROTOCOL_ERROR
    assert len(await everything(mailserver)) == 2
    assert mailserver.services.bounds.envelopes.used_bytes == 0


async def test_peer_that_broke_a_rule_goes_soon_also_while_nothing_can_be_stored(
    mailserver: Mailserver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_module, "LAST_CONFIRMATIONS_S", 0.1)
    raw = await mailserver.dial()

    with write_lock(mailserver):
        raw.write(raw.packet(PacketCode.MESSAGES, messages(make_envelope(1))), raw.packet(PacketCode.MESSAGES, b"\x01"))
        assert await raw.hear_hangup() is DisconnectReason.SUBPROTOCOL_ERROR

    await until(lambda: mailserver.store.queued[0] == 0)
    assert len(await everything(mailserver)) == 1


async def test_empty_packet_and_duplicates_are_confirmed_like_any_other(mailserver: Mailserver) -> None:
    raw = await mailserver.dial()
    envelope = make_envelope(1)
    twice = messages(envelope, envelope)

    for payload in (EMPTY_LIST, twice, twice):
        raw.say(PacketCode.MESSAGES, payload)
        assert await raw.hear_packets(2) == confirmation(payload)

    assert await everything(mailserver) == [envelope.raw]


async def test_errors_of_single_envelopes_ride_in_the_confirmation(mailserver: Mailserver) -> None:
    raw = await mailserver.dial()
    good, late = make_envelope(1), make_envelope(2, created=NOW - 60, ttl=50)
    future, old = make_envelope(3, created=NOW + 11), make_envelope(4, created=NOW - 100, ttl=50)
    payload = messages(future, good, late, old)

    raw.say(PacketCode.MESSAGES, payload)

    assert await raw.hear_packets(2) == confirmation(
        payload,
        EnvelopeError(future.hash(), EnvelopeErrorCode.TIME_SYNC, Verdict.FROM_THE_FUTURE.value),
        EnvelopeError(old.hash(), EnvelopeErrorCode.TIME_SYNC, Verdict.VERY_OLD.value),
    )
    assert await everything(mailserver) == [good.raw]


async def test_envelope_with_too_little_work_is_refused_and_its_sender_stays(tmp_path: Path) -> None:
    async with running_mailserver(tmp_path, min_pow=1000.0) as mailserver:
        raw = await mailserver.dial()
        envelope = make_envelope(1)
        payload = messages(envelope)

        raw.say(PacketCode.MESSAGES, payload)

        error = EnvelopeError(envelope.hash(), EnvelopeErrorCode.INVALID, Verdict.LOW_POW.value)
        assert await raw.hear_packets(2) == confirmation(payload, error)
        raw.say(PacketCode.MESSAGES, EMPTY_LIST)
        assert await raw.hear_packets(2) == confirmation(EMPTY_LIST)


async def test_packet_that_does_not_decode_is_not_confirmed(mailserver: Mailserver) -> None:
    raw = await mailserver.dial()

    raw.say(PacketCode.MESSAGES, messages(make_envelope(1))[:-1])

    with pytest.raises(Hangup) as hangup:
        await raw.hear_packet()
    assert hangup.value.reason is DisconnectReason.SUBPROTOCOL_ERROR
    assert await everything(mailserver) == []


async def test_confirmation_comes_only_after_the_envelopes_are_on_disk(mailserver: Mailserver) -> None:
    raw, reader = await mailserver.dial(), await mailserver.dial()
    payload = messages(*make_envelopes(2))

    with write_lock(mailserver):
        raw.say(PacketCode.MESSAGES, payload)
        confirmed = asyncio.create_task(raw.hear_packets(2))
        # What cannot be written yet is confirmed to nobody; reading goes on, also for the sender.
        for _ in range(3):
            assert (await ask(reader, sealed_request(deployed_fields()).raw))[0] == []
        early = confirmed.done()

    assert not early
    assert await confirmed == confirmation(payload)
    assert len((await ask(reader, sealed_request(deployed_fields()).raw))[0]) == 2


async def test_sender_may_ask_for_history_while_its_packets_wait_for_the_disk(mailserver: Mailserver) -> None:
    raw = await mailserver.dial()

    with write_lock(mailserver):
        raw.say(PacketCode.MESSAGES, messages(make_envelope(1)))
        envelopes, outcome = await ask(raw, sealed_request(deployed_fields()).raw)

    assert envelopes == []
    assert isinstance(outcome, Completion)


async def test_what_was_not_stored_is_not_confirmed_and_the_peer_stays(
    mailserver: Mailserver, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    raw = await mailserver.dial()
    payload = messages(make_envelope(1))
    lock = sqlite3.connect(mailserver.path, isolation_level=None)
    lock.execute("CREATE TRIGGER full BEFORE INSERT ON envelopes BEGIN SELECT raise(ABORT, 'disk is full'); END")

    raw.say(PacketCode.MESSAGES, payload)
    await until(lambda: any("disk is full" in record.getMessage() for record in caplog.records))
    raw.say(PacketCode.MESSAGES, EMPTY_LIST)
    next_heard = await raw.hear_packets(2)
    lock.execute("DROP TRIGGER full")
    lock.close()
    raw.say(PacketCode.MESSAGES, payload)

    assert next_heard == confirmation(EMPTY_LIST)
    assert await raw.hear_packets(2) == confirmation(payload)
    assert [record.levelname for record in caplog.records if record.levelno >= logging.ERROR] == ["ERROR"]
    caplog.clear()


async def test_envelopes_of_a_sender_that_is_gone_are_stored_all_the_same(mailserver: Mailserver) -> None:
    raw = await mailserver.dial()
    envelopes = make_envelopes(3)

    with write_lock(mailserver):
        raw.say(PacketCode.MESSAGES, messages(*envelopes))
        raw.write(raw.frame(p2p.MessageId.DISCONNECT, p2p.encode_disconnect(DisconnectReason.CLIENT_QUITTING)))
        assert await raw.at_end()

    await asyncio.wait_for(mailserver.tasks[0], DEADLINE_S)
    assert await everything(mailserver) == [envelope.raw for envelope in envelopes]


async def test_envelopes_in_one_breath_with_a_goodbye_are_stored(mailserver: Mailserver) -> None:
    raw = await mailserver.dial()
    envelope = make_envelope(1)
    packet = raw.packet(PacketCode.MESSAGES, messages(envelope))

    raw.write(packet, raw.frame(p2p.MessageId.DISCONNECT, p2p.encode_disconnect(DisconnectReason.CLIENT_QUITTING)))

    await asyncio.wait_for(mailserver.tasks[0], DEADLINE_S)
    assert await everything(mailserver) == [envelope.raw]


# Backpressure of the disk


async def flood(raw: RawPeer, payloads: list[bytes]) -> None:
    """Send packets as fast as they are taken."""
    for payload in payloads:
        raw.say(PacketCode.MESSAGES, payload)
        await raw.writer.drain()


async def hear_confirmations(raw: RawPeer, count: int) -> set[bytes]:
    """Wait for so many confirmations; return what they are about."""
    return {payload[1:] for code, payload in await raw.hear_packets(2 * count) if code == PacketCode.BATCH_ACKNOWLEDGED}


async def test_flood_faster_than_the_disk_is_held_back_and_confirmed_in_the_end(
    mailserver: Mailserver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_module, "MAX_UNCONFIRMED_ENVELOPES", 100)
    monkeypatch.setattr(session_module, "HANDSHAKE_TIMEOUT_S", 1.5)
    monkeypatch.setattr(liveness_module, "IDLE_TIMEOUT_S", 2.0)
    monkeypatch.setattr(liveness_module, "PING_INTERVAL_S", 0.1)
    raw, other = await mailserver.dial(), await mailserver.dial()
    payloads = [messages(*make_large_envelopes(20, 2000)) for _ in range(100)]

    with write_lock(mailserver):
        flooding = asyncio.create_task(flood(raw, payloads))
        # Longer than a silent peer may take, and the flood stands still all the while.
        deadline = asyncio.get_running_loop().time() + 2.5
        while asyncio.get_running_loop().time() < deadline:
            await ask(other, sealed_request(deployed_fields()).raw)
        held_back = not flooding.done()

    assert held_back
    assert await hear_confirmations(raw, len(payloads)) == {keccak256(payload) for payload in payloads}
    await flooding
    assert len(await everything(mailserver)) == 2000


async def test_packets_of_one_peer_that_wait_for_the_disk_are_bounded_in_bytes(
    mailserver: Mailserver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_module, "MAX_UNCONFIRMED_BYTES", 400_000)
    raw = await mailserver.dial()
    payloads = [messages(envelope) for envelope in make_large_envelopes(40, 100_000)]
    taken: list[bytes] = []

    async def flood_and_count() -> None:
        for payload in payloads:
            await flood(raw, [payload])
            taken.append(payload)

    with write_lock(mailserver):
        flooding = asyncio.create_task(flood_and_count())
        while await grows(taken, within_s=0.4):
            pass
        held = len(taken)

    assert held <= 20
    assert await hear_confirmations(raw, len(payloads)) == {keccak256(payload) for payload in payloads}
    await flooding


async def test_envelope_of_one_peer_does_not_wait_for_all_that_another_has_sent_before(mailserver: Mailserver) -> None:
    flooder, honest = await mailserver.dial(), await mailserver.dial()
    payloads = [messages(*map(make_envelope, range(at, at + 100))) for at in range(0, 3000, 100)]
    lone = messages(make_envelope(10_000))

    with write_lock(mailserver):
        await flood(flooder, payloads)
        await until(lambda: mailserver.store.queued[0] == 3000)
        honest.say(PacketCode.MESSAGES, lone)
        await until(lambda: mailserver.store.queued[0] == 3001)
    assert await honest.hear_confirmation() == confirmation(lone)
    for _ in payloads:
        await flooder.hear_confirmation()

    with sqlite3.connect(mailserver.path) as connection:
        ((before,),) = connection.execute(
            "SELECT count(*) FROM envelopes WHERE seq < (SELECT seq FROM envelopes WHERE raw = ?)",
            (make_envelope(10_000).raw,),
        )
    connection.close()
    assert before <= 2 * MAX_GROUP_ROWS  # it is in the transaction after the one that had begun


async def test_packets_of_all_peers_that_wait_for_the_disk_are_bounded_and_a_short_one_still_gets_in(
    tmp_path: Path,
) -> None:
    payloads = [messages(*map(make_envelope, range(at, at + 100))) for at in range(0, 1000, 100)]
    size = max(Load.of(PacketCode.MESSAGES, payload).memory for payload in payloads)
    async with running_mailserver(tmp_path, bounds=IntakeBounds(max_envelope_bytes=3 * size)) as mailserver:
        flooders = [await mailserver.dial(status=NOTHING_WANTED) for _ in payloads]
        honest = await mailserver.dial(status=NOTHING_WANTED)
        lone = messages(make_envelope(10_000))

        with write_lock(mailserver):
            for flooder, payload in zip(flooders, payloads, strict=True):
                flooder.say(PacketCode.MESSAGES, payload)
            await until(lambda: mailserver.store.queued[0] == 300)
            honest.say(PacketCode.MESSAGES, lone)
            await until(lambda: mailserver.store.queued[0] == 301)
            assert mailserver.services.bounds.envelopes.used_bytes < 4 * size

        for raw, payload in zip([honest, *flooders], [lone, *payloads], strict=True):
            assert await raw.hear_confirmation() == confirmation(payload)
        await until(lambda: mailserver.services.bounds.envelopes.used_bytes == 0)
    assert mailserver.services.bounds.envelopes.used_bytes == 0


async def test_memory_of_packets_is_given_back_however_their_peer_ends(mailserver: Mailserver) -> None:
    undecodable = messages(make_envelope(1)) + b"\x00"
    memory = mailserver.services.bounds.envelopes

    broken, gone = await mailserver.dial(), await mailserver.dial()
    broken.say(PacketCode.MESSAGES, undecodable)
    assert await broken.hear_hangup() is DisconnectReason.SUBPROTOCOL_ERROR
    with write_lock(mailserver):
        gone.say(PacketCode.MESSAGES, messages(make_envelope(2)))
        await until(lambda: memory.used_bytes > 0)
        await gone.close()
    await asyncio.gather(*mailserver.tasks)

    assert memory.used_bytes == 0


async def test_tiny_envelopes_count_as_long_as_any_that_says_something(tmp_path: Path) -> None:
    limits = RateLimitSettings(NO_RATE_LIMITS, RateLimits(0, 200_000, 0), tolerance_s=0.0)
    async with running_mailserver(tmp_path, rates=limits) as mailserver:
        raw = await mailserver.dial(status=NOTHING_WANTED)
        payload = encode_envelopes([make_envelope(1, data_bytes=1).raw] * 5000)  # 25 kB long, taken for 1.3 MB
        for _ in range(40):
            raw.say(PacketCode.MESSAGES, payload)

        assert await raw.hear_hangup() is DisconnectReason.SUBPROTOCOL_ERROR


async def test_updates_count_for_what_it_takes_to_decode_them(tmp_path: Path) -> None:
    limits = RateLimitSettings(NO_RATE_LIMITS, RateLimits(0, 300_000, 0), tolerance_s=0.0)
    async with running_mailserver(tmp_path, rates=limits) as mailserver:
        raw = await mailserver.dial()
        update = StatusOptions(topic_interest=frozenset(Topic(random.randbytes(4)) for _ in range(10_000))).encode()
        for _ in range(40):  # 2 MB, where 3 MB may come at once
            raw.say(PacketCode.STATUS_UPDATE, update)

        assert await raw.hear_hangup() is DisconnectReason.SUBPROTOCOL_ERROR


async def test_peers_take_turns_at_what_takes_long_to_decode(mailserver: Mailserver) -> None:
    update = StatusOptions(topic_interest=frozenset(Topic(random.randbytes(4)) for _ in range(10_000))).encode()
    greedy = [await mailserver.dial() for _ in range(10)]
    honest = await mailserver.dial()
    decoded: list[int] = []
    changed = [peer.connection.settings for peer in mailserver.peers]

    def count() -> int:
        return sum(
            peer.connection.settings is not before for peer, before in zip(mailserver.peers, changed, strict=True)
        )

    for raw in greedy:
        raw.say(PacketCode.STATUS_UPDATE, update)
    honest.say(PacketCode.MESSAGES, messages(make_envelope(1)))
    while count() < len(greedy):
        await asyncio.sleep(0)
        decoded.append(count())

    assert max(after - before for before, after in pairwise([0, *decoded])) == 1  # one in each round of the loop
    assert await honest.hear_confirmation() == confirmation(messages(make_envelope(1)))


async def grows(taken: list[bytes], *, within_s: float) -> bool:
    """Wait until the list has become longer; False if it does not."""
    before = len(taken)
    with contextlib.suppress(TimeoutError):
        await until(lambda: len(taken) > before, within_s)
    return len(taken) > before


async def test_packet_with_more_envelopes_than_may_wait_is_confirmed(mailserver: Mailserver) -> None:
    raw = await mailserver.dial()
    payload = messages(*(make_envelope(number, data_bytes=20) for number in range(MAX_UNCONFIRMED_ENVELOPES + 10)))

    raw.say(PacketCode.MESSAGES, payload)
    raw.say(PacketCode.MESSAGES, EMPTY_LIST)

    heard = await raw.hear_packets(4)
    assert sorted(heard) == sorted(confirmation(payload) + confirmation(EMPTY_LIST))


# Requests


async def test_requests_of_one_peer_are_answered_in_order_one_after_another(mailserver: Mailserver) -> None:
    news, sport = make_envelopes(200, data_bytes=3000), make_envelopes(2, first=300, topic=SPORT)
    await fill(mailserver.store, news + sport)
    raw = await mailserver.dial()
    requests = [
        sealed_request(deployed_fields(topics=[topic]), number=n) for n, topic in enumerate([NEWS, SPORT, NEWS])
    ]

    raw.write(*(raw.packet(PacketCode.P2P_REQUEST, request.raw) for request in requests))
    answers = [await hear_answer(raw) for _ in requests]

    assert [envelopes for envelopes, _ in answers] == [news, sport, news]
    assert [bytes(outcome.request_id) for _, outcome in answers] == [bytes(request.hash()) for request in requests]


async def test_client_that_does_not_read_its_answer_delays_nobody_else(mailserver: Mailserver) -> None:
    await fill(mailserver.store, make_large_envelopes(20, 100_000))
    stuck = [await mailserver.dial() for _ in range(8)]
    for raw in stuck:
        raw.say(PacketCode.P2P_REQUEST, sealed_request(deployed_fields()).raw)

    reader = await mailserver.dial()
    envelopes, outcome = await ask(reader, sealed_request(deployed_fields()).raw)

    assert len(envelopes) == 20
    assert isinstance(outcome, Completion)
    for raw in stuck:
        assert len((await hear_answer(raw))[0]) == 20


@pytest.mark.parametrize("requests", [5, MAX_WAITING_REQUESTS + 5])
async def test_client_that_stops_reading_is_dropped_after_the_write_timeout(
    mailserver: Mailserver, requests: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link_module, "WRITE_TIMEOUT_S", 0.2)
    await fill(mailserver.store, make_large_envelopes(20, 100_000))
    raw, other = await mailserver.dial(), await mailserver.dial()

    raw.write(*(raw.packet(PacketCode.P2P_REQUEST, sealed_request(deployed_fields()).raw) for _ in range(requests)))
    await asyncio.wait_for(mailserver.tasks[0], DEADLINE_S)

    closed = mailserver.connections[0].closed
    assert closed is not None
    assert "read nothing" in closed.cause
    assert len((await ask(other, sealed_request(deployed_fields()).raw))[0]) == 20


async def test_requests_above_the_limit_are_refused_and_the_rest_answered(mailserver: Mailserver) -> None:
    await fill(mailserver.store, make_large_envelopes(10, 100_000))
    raw = await mailserver.dial()
    count = 2 * MAX_WAITING_REQUESTS
    requests = [sealed_request(deployed_fields(), number=number) for number in range(count)]

    raw.write(*(raw.packet(PacketCode.P2P_REQUEST, request.raw) for request in requests))
    outcomes: dict[bytes, Completion | Failure] = {}
    while len(outcomes) < count:
        _, outcome = await hear_answer(raw)
        assert outcome.request_id not in outcomes
        outcomes[outcome.request_id] = outcome

    answered = [request for request in requests if isinstance(outcomes[request.hash()], Completion)]
    failures = {outcome.message for outcome in outcomes.values() if isinstance(outcome, Failure)}
    assert answered == requests[: len(answered)]
    assert MAX_WAITING_REQUESTS <= len(answered) <= MAX_WAITING_REQUESTS + 1
    assert failures == {Rejection.TOO_MANY_WAITING.value + f": come back in {CONCURRENCY_RETRY_S} s"}
    assert isinstance((await ask(raw, sealed_request(deployed_fields()).raw))[1], Completion)


async def test_as_many_requests_as_a_deployed_client_sends_at_once_are_answered(mailserver: Mailserver) -> None:
    raw = await mailserver.dial()

    raw.write(*(raw.packet(PacketCode.P2P_REQUEST, sealed_request(deployed_fields()).raw) for _ in range(3)))

    for _ in range(3):
        assert isinstance((await hear_answer(raw))[1], Completion)


async def test_peer_that_has_left_is_gone_without_a_search_for_cycles(mailserver: Mailserver) -> None:
    gc.disable()
    try:
        raw = await mailserver.dial()
        await until(lambda: bool(mailserver.peers))
        gone: list[weakref.ref[object]] = [weakref.ref(mailserver.peers[0]), weakref.ref(mailserver.connections[0])]
        await raw.close()
        await until(mailserver.tasks[0].done)
        for kept in (mailserver.peers, mailserver.connections, mailserver.tasks):
            kept.clear()

        await until(lambda: not any(reference() for reference in gone))
    finally:
        gc.enable()


async def test_waiting_requests_of_all_peers_are_bounded_and_who_has_none_is_heard(tmp_path: Path) -> None:
    request = sealed_request(deployed_fields()).raw
    async with running_mailserver(tmp_path, bounds=IntakeBounds(max_request_bytes=3 * len(request))) as mailserver:
        await fill(mailserver.store, make_large_envelopes(100, 60_000))
        greedy = [await mailserver.dial(status=NOTHING_WANTED) for _ in range(2)]  # neither reads its answer
        for raw in greedy:
            for _ in range(6):
                raw.say(PacketCode.P2P_REQUEST, request)
        memory = mailserver.services.bounds.requests
        await until(lambda: any(peer.requests_waiting for peer in mailserver.peers))

        honest = await mailserver.dial()
        envelopes, completion = await ask(honest, request)
        assert isinstance(completion, Completion)
        assert len(envelopes) == 100
        assert sum(peer.requests_waiting for peer in mailserver.peers) <= 4  # of 12

        for raw in greedy:
            await raw.close()
        await until(lambda: memory.used_bytes == 0)


async def test_request_that_is_far_too_long_is_refused_unread(mailserver: Mailserver) -> None:
    raw = await mailserver.dial()
    payload = random.randbytes(MAX_REQUEST_BYTES + 1)

    envelopes, outcome = await ask(raw, payload)

    assert (envelopes, outcome) == ([], Failure(keccak256(payload), Rejection.MALFORMED.value))  # type: ignore[arg-type]


async def test_failed_requests_leave_the_connection_usable(mailserver: Mailserver) -> None:
    await fill(mailserver.store, make_envelopes(2))
    raw = await mailserver.dial()

    for payload in (b"", b"\xff", sealed_request(b"nonsense").raw, sealed_request(deployed_fields(topics=[])).raw):
        assert isinstance((await ask(raw, payload))[1], Failure)

    assert len((await ask(raw, sealed_request(deployed_fields()).raw))[0]) == 2


async def test_list_form_of_the_completion_is_sent_where_that_is_set(tmp_path: Path) -> None:
    key = PrivateKey(bytes(31) + b"\x01")
    settings = DeliverySettings(PASSWORD_KEY, key, completion_format=CompletionFormat.LIST)
    async with running_mailserver(tmp_path, settings=settings, key=key) as mailserver:
        raw = await mailserver.dial()

        raw.say(PacketCode.P2P_REQUEST, sealed_request(deployed_fields()).raw)
        _, completion = await raw.hear_answer()

        assert completion[:1] == b"\xf8"


async def test_client_that_leaves_in_the_middle_of_its_answer_is_forgotten(mailserver: Mailserver) -> None:
    await fill(mailserver.store, make_large_envelopes(20, 100_000))
    raw = await mailserver.dial()
    for _ in range(5):
        raw.say(PacketCode.P2P_REQUEST, sealed_request(deployed_fields()).raw)
    await raw.hear_packet()

    await raw.close()

    await asyncio.wait_for(mailserver.tasks[0], DEADLINE_S)


# Limits of requests


async def test_requests_under_way_are_bounded_and_one_more_is_told_to_come_back(tmp_path: Path) -> None:
    async with running_mailserver(tmp_path, requests=RequestLimits(concurrent=3)) as mailserver:
        await fill(mailserver.store, make_large_envelopes(20, 100_000))
        raw = await mailserver.dial()
        requests = [sealed_request(deployed_fields(), number=number) for number in range(5)]

        raw.write(*(raw.packet(PacketCode.P2P_REQUEST, request.raw) for request in requests))
        outcomes = {outcome.request_id: outcome for _, outcome in [await hear_answer(raw) for _ in requests]}

        message = Rejection.TOO_MANY_WAITING.value + f": come back in {CONCURRENCY_RETRY_S} s"
        kinds = [outcomes[RequestId(request.hash())] for request in requests]
        assert all(isinstance(outcome, Completion) for outcome in kinds[:3])
        assert [outcome.message for outcome in kinds[3:] if isinstance(outcome, Failure)] == [message] * 2
        for _ in range(5):  # who is done has room again
            assert isinstance((await ask(raw, sealed_request(deployed_fields(limit=1)).raw))[1], Completion)


async def test_requests_of_a_client_that_is_gone_are_under_way_no_longer(tmp_path: Path) -> None:
    async with running_mailserver(tmp_path, requests=RequestLimits(concurrent=3)) as mailserver:
        await fill(mailserver.store, make_large_envelopes(20, 100_000))
        for number in range(3):
            raw = await mailserver.dial(name="the same client")
            raw.write(*(raw.packet(PacketCode.P2P_REQUEST, sealed_request(deployed_fields()).raw) for _ in range(3)))
            await raw.hear_packet()
            await raw.close()
            await asyncio.wait_for(mailserver.tasks[number], DEADLINE_S)

        raw = await mailserver.dial(name="the same client")
        raw.write(*(raw.packet(PacketCode.P2P_REQUEST, sealed_request(deployed_fields()).raw) for _ in range(3)))

        assert all([isinstance((await hear_answer(raw))[1], Completion) for _ in range(3)])


async def test_limits_of_requests_hold_across_connections(tmp_path: Path) -> None:
    async with running_mailserver(tmp_path, requests=RequestLimits(requests_per_minute=1)) as mailserver:
        outcomes = []
        for number in range(6):
            raw = await mailserver.dial(name="the same client")
            outcomes.append((await ask(raw, sealed_request(deployed_fields()).raw))[1])
            await raw.close()
            await asyncio.wait_for(mailserver.tasks[number], DEADLINE_S)

        assert [type(outcome) for outcome in outcomes] == [Completion] * 5 + [Failure]
        another = await mailserver.dial()
        assert isinstance((await ask(another, sealed_request(deployed_fields()).raw))[1], Completion)


# Limits that the client has announced. Time is real: packets can be late, but never early.


@pytest.mark.parametrize(
    "limits",
    [StatusOptions(packet_rate_limits=RateLimits(peer=20)), StatusOptions(byte_rate_limits=RateLimits(ip=20_000))],
)
@pytest.mark.parametrize("is_update", [False, True])
async def test_history_is_sent_no_faster_than_the_client_takes_it(
    mailserver: Mailserver, limits: StatusOptions, is_update: bool
) -> None:
    envelopes = make_large_envelopes(29, 1000)
    await fill(mailserver.store, envelopes)
    raw = await mailserver.dial(status=EMPTY_LIST if is_update else limits.encode())
    if is_update:
        raw.say(PacketCode.STATUS_UPDATE, limits.encode())
    loop = asyncio.get_running_loop()
    started = loop.time()

    is_by_packet = limits.packet_rate_limits is not None
    raw.say(PacketCode.P2P_REQUEST, sealed_request(deployed_fields(batch=0 if is_by_packet else 1)).raw)
    packets, _ = await raw.hear_answer()

    assert [envelope for packet in packets for envelope in decode_envelopes(packet)] == envelopes
    owed = (30 - 20) / 20 if is_by_packet else (sum(map(len, packets)) - 20_000) / 20_000
    assert loop.time() - started >= owed
    assert owed > 0.4
    assert is_by_packet or max(map(len, packets)) <= 20_000


async def test_confirmations_do_not_wait_for_the_limits_that_the_peer_has_announced(mailserver: Mailserver) -> None:
    raw = await mailserver.dial(status=StatusOptions(packet_rate_limits=RateLimits(peer=1)).encode())
    payloads = [messages(make_envelope(number)) for number in range(20)]

    raw.write(*(raw.packet(PacketCode.MESSAGES, payload) for payload in payloads))
    async with asyncio.timeout(DEADLINE_S):  # at one a second it would take 40 s
        heard = await raw.hear_packets(40)

    assert sorted(heard) == sorted(packet for payload in payloads for packet in confirmation(payload))


# Our own limits


async def test_peer_that_goes_on_over_our_limit_is_disconnected(tmp_path: Path) -> None:
    rates = RateLimitSettings(RateLimits(peer=1), NO_RATE_LIMITS, tolerance_s=0)
    async with running_mailserver(tmp_path, rates=rates) as mailserver:
        raw = await mailserver.dial()

        for _ in range(30):
            raw.say(PacketCode.MESSAGES, EMPTY_LIST)

        assert await raw.hear_hangup() is DisconnectReason.SUBPROTOCOL_ERROR


async def test_peer_over_our_limit_is_slowed_and_others_are_not(tmp_path: Path) -> None:
    rates = RateLimitSettings(RateLimits(peer=10), NO_RATE_LIMITS)
    async with running_mailserver(tmp_path, rates=rates) as mailserver:
        fast, honest = await mailserver.dial(), await mailserver.dial()
        loop = asyncio.get_running_loop()
        started = loop.time()

        fast.write(*(fast.packet(PacketCode.MESSAGES, EMPTY_LIST) for _ in range(105)))
        confirmed = asyncio.create_task(fast.hear_packets(210))
        for number in range(20):
            honest.say(PacketCode.MESSAGES, messages(make_envelope(number)))
            assert len(await honest.hear_packets(2)) == 2
        at_once = loop.time() - started
        await confirmed

        assert loop.time() - started >= (105 - 100 - 2) / 10  # Status counts, and the last one is answered at once
        assert at_once < DEADLINE_S
        assert mailserver.connections[0].is_open


async def test_limits_of_topics_are_told_in_the_confirmation_and_not_applied_to_allowed_peers(tmp_path: Path) -> None:
    allowed = Allowed(node_ids=frozenset({private_key("friend").public_key}))
    rates = RateLimitSettings(RateLimits(topic=1), NO_RATE_LIMITS, allowed=allowed)
    everything_ = [make_envelope(number) for number in range(40)]
    async with running_mailserver(tmp_path, rates=rates) as mailserver:
        friend, stranger = await mailserver.dial(name="friend"), await mailserver.dial()
        payloads = messages(*everything_[:20]), messages(*everything_[20:])

        friend.say(PacketCode.MESSAGES, payloads[0])
        of_friend = MessageResponse.decode((await friend.hear_packets(2))[0].payload)
        await hear_envelopes(stranger, 20)
        stranger.say(PacketCode.MESSAGES, payloads[1])
        of_stranger = MessageResponse.decode((await stranger.hear_packets(2))[0].payload)

        assert of_friend is not None
        assert of_stranger is not None
        assert of_friend.errors == ()
        refused = {(error.code, error.description) for error in of_stranger.errors}
        assert refused == {(EnvelopeErrorCode.INVALID, Verdict.TOPIC_LIMIT.value)}
        assert 8 <= len(of_stranger.errors) <= 10  # ten at once, and one each second


# Relay; its rules are tested with `live.relay`


async def test_envelopes_are_relayed_to_everyone_else_and_stored(mailserver: Mailserver) -> None:
    sender, reader, light = [
        await mailserver.dial(status=status)
        for status in (EMPTY_LIST, STATUS.encode(), replace(STATUS, light_node=True).encode())
    ]
    envelopes = [make_envelope(number) for number in range(5)]
    payload = messages(*envelopes)

    sender.say(PacketCode.MESSAGES, payload)

    assert await reader.hear_packet() == await light.hear_packet() == Packet(PacketCode.MESSAGES, payload)
    assert await sender.hear_packets(2) == confirmation(payload)
    sender.say(PacketCode.MESSAGES, payload)
    assert await sender.hear_packets(2) == confirmation(payload)
    await heard_by(reader)
    assert sorted(await everything(mailserver)) == sorted(envelope.raw for envelope in envelopes)


async def test_nothing_is_relayed_before_the_peer_has_said_what_it_wants(mailserver: Mailserver) -> None:
    sender, silent = await mailserver.dial(), await mailserver.dial_silent()
    envelope = make_envelope(1)
    await silent.greet(status=None)
    sender.say(PacketCode.MESSAGES, messages(envelope))
    await sender.hear_packets(2)

    silent.say(PacketCode.STATUS, STATUS.encode())

    assert (await silent.hear_packet()).code == PacketCode.STATUS
    assert await hear_envelopes(silent, 1) == [envelope]


async def test_peer_that_does_not_read_holds_up_neither_others_nor_the_store(mailserver: Mailserver) -> None:
    stuck = [await mailserver.dial(status=STATUS.encode()) for _ in range(3)]
    sender, reader = await mailserver.dial(status=EMPTY_LIST), await mailserver.dial(status=STATUS.encode())
    envelopes = [make_envelope(number) for number in range(20)]
    large = [replace_data(envelope, random.randbytes(200_000)) for envelope in envelopes]

    hearing = asyncio.create_task(hear_envelopes(reader, len(large)))
    for envelope in large:
        payload = messages(envelope)
        sender.say(PacketCode.MESSAGES, payload)
        assert await sender.hear_packets(2) == confirmation(payload)

    assert sorted(envelope.raw for envelope in await hearing) == sorted(envelope.raw for envelope in large)
    for raw in stuck:  # and who reads again gets what still floats
        assert len(await hear_envelopes(raw, len(large))) == len(large)


def replace_data(envelope: Envelope, data: bytes) -> Envelope:
    return encode_envelope(envelope.expiry, envelope.ttl, envelope.topic, data, envelope.nonce)


async def test_relay_goes_on_when_the_store_does_not(mailserver: Mailserver, caplog: pytest.LogCaptureFixture) -> None:
    sender, reader = await mailserver.dial(), await mailserver.dial(status=STATUS.encode())
    envelope = make_envelope(1)
    with contextlib.closing(sqlite3.connect(mailserver.path, isolation_level=None)) as lock:
        lock.execute("CREATE TRIGGER full BEFORE INSERT ON envelopes BEGIN SELECT raise(ABORT, 'disk is full'); END")

        sender.say(PacketCode.MESSAGES, messages(envelope))

        assert await hear_envelopes(reader, 1) == [envelope]
        await until(lambda: any("disk is full" in record.getMessage() for record in caplog.records))
        lock.execute("DROP TRIGGER full")
    sender.say(PacketCode.MESSAGES, messages(envelope))
    assert await sender.hear_packets(2) == confirmation(messages(envelope))
    assert await everything(mailserver) == [envelope.raw]
    caplog.clear()


async def test_light_node_keeps_what_it_gets_and_does_not_relay_it(tmp_path: Path) -> None:
    async with running_mailserver(tmp_path, light_node=True) as mailserver:
        sender, reader = [await mailserver.dial(status=STATUS.encode()) for _ in range(2)]
        others, own = make_envelope(1), make_envelope(2)

        sender.say(PacketCode.MESSAGES, messages(others))
        await sender.hear_packets(2)
        await mailserver.node.post(own)

        assert await hear_envelopes(reader, 1) == await hear_envelopes(sender, 1) == [own]
        assert sorted(await everything(mailserver)) == sorted([others.raw, own.raw])


async def test_light_nodes_part(tmp_path: Path) -> None:
    async with running_mailserver(tmp_path, light_node=True) as mailserver:
        raw = await mailserver.dial_silent()
        await raw.greet(status=StatusOptions(light_node=True).encode())

        assert await raw.hear_hangup() is DisconnectReason.USELESS_PEER


# P2P Messages


async def test_what_a_trusted_peer_sends_too_late_is_counted(tmp_path: Path) -> None:
    """It was on its way for too long: the peer is to be asked for it (mailserver.catchup.outages)."""
    late, timely = make_envelope(1, created=NOW - 60, ttl=50), make_envelope(2)
    async with running_mailserver(tmp_path, trusted=[private_key("friend").public_key]) as mailserver:
        friend, stranger = await mailserver.dial(name="friend"), await mailserver.dial(name="stranger")
        for raw in (friend, stranger):
            raw.say(PacketCode.MESSAGES, messages(late, timely, late))
            await raw.hear_confirmation()

        assert [peer.late for peer in mailserver.peers] == [2, 0]


async def test_history_from_a_trusted_peer_goes_to_filters_and_nowhere_else(tmp_path: Path) -> None:
    trusted = private_key("friend").public_key
    old = make_envelope(1, created=NOW - 1_000_000)
    async with running_mailserver(tmp_path, trusted=[trusted]) as mailserver:
        feed = mailserver.services.feed.reader()
        friend = await mailserver.dial(name="friend")
        stranger = await mailserver.dial(status=STATUS.encode())

        stranger.say(PacketCode.P2P_MESSAGE, messages(make_envelope(2)))
        await heard_by(stranger)
        friend.say(PacketCode.P2P_MESSAGE, messages(old, old))
        published = await asyncio.wait_for(feed.read(), DEADLINE_S)
        await heard_by(friend)

        assert [(live.envelope, live.hash, live.is_p2p, live.is_own) for live in published] == [
            (old, old.hash(), True, False)
        ] * 2
        assert await everything(mailserver) == []
        assert mailserver.node.live_usage() == (0, 0)


async def test_what_is_relayed_is_counted_by_the_subnet_that_it_came_from(mailserver: Mailserver) -> None:
    feed = mailserver.services.feed.reader()
    subnets: list[bytes | None] = []

    for number, host in enumerate(["192.0.2.1", "192.0.2.99", "198.51.100.1"]):
        raw = await mailserver.dial()
        mailserver.connections[-1]._pipe.host = host  # noqa: SLF001 - a socket pair has no address
        raw.say(PacketCode.MESSAGES, messages(make_envelope(number)))
        await raw.hear_confirmation()
        subnets += [live.subnet for live in feed.read_nowait()]

    assert subnets == [b"\xc0\x00\x02", b"\xc0\x00\x02", b"\xc6\x33\x64"]


async def test_trust_may_come_and_go_while_a_peer_is_connected(mailserver: Mailserver) -> None:
    feed = mailserver.services.feed.reader()
    friend = await mailserver.dial(name="friend")
    envelopes = [make_envelope(number) for number in range(3)]

    for envelope, trusted in zip(envelopes, [False, True, False], strict=True):
        if trusted:
            mailserver.node.mark_trusted(friend.key.public_key)
        else:
            mailserver.node.mark_untrusted(friend.key.public_key)
        friend.say(PacketCode.P2P_MESSAGE, messages(envelope))
        await heard_by(friend)

    assert [live.envelope for live in feed.read_nowait()] == [envelopes[1]]


# Other packets


async def test_packets_that_a_mailserver_has_no_use_for_are_let_pass(mailserver: Mailserver) -> None:
    raw = await mailserver.dial()
    envelope = make_envelope(1)

    raw.say(PacketCode.P2P_MESSAGE, messages(envelope))
    raw.say(PacketCode.P2P_REQUEST_COMPLETE, b"\x80")
    raw.say(PacketCode.BATCH_ACKNOWLEDGED, b"\xa0" + bytes(32))
    raw.say(PacketCode.MESSAGE_RESPONSE, MessageResponse(bytes(32)).encode())
    raw.say(PacketCode.STATUS, EMPTY_LIST)
    raw.say(PacketCode.STATUS_UPDATE, EMPTY_LIST)
    raw.say(PacketCode.STATUS_UPDATE, StatusOptions(topic_interest=frozenset({NEWS})).encode())
    raw.say(UNKNOWN_CODE, b"whatever")
    raw.say(PacketCode.MESSAGES, EMPTY_LIST)

    assert await raw.hear_packets(2) == confirmation(EMPTY_LIST)
    # P2P Messages are taken from trusted peers only, and we have none.
    assert await everything(mailserver) == []


async def test_one_peers_fault_is_its_own(mailserver: Mailserver) -> None:
    good = await mailserver.dial()
    faults = [bytes(64), random.randbytes(5000), b"\xff" * 300]

    for fault in faults:
        bad = await mailserver.dial()
        bad.write(fault)
        assert await bad.hear_hangup() is DisconnectReason.PROTOCOL_BREACH
        await bad.close()

    payload = messages(*make_envelopes(2))
    good.say(PacketCode.MESSAGES, payload)
    assert await good.hear_packets(2) == confirmation(payload)
    assert len((await ask(good, sealed_request(deployed_fields()).raw))[0]) == 2


# Stopping


async def test_stop_confirms_what_was_received_and_says_that_we_quit(mailserver: Mailserver) -> None:
    raw = await mailserver.dial()
    payload = messages(*make_envelopes(2))

    with write_lock(mailserver):
        raw.say(PacketCode.MESSAGES, payload)
        await heard_by(raw)
        stopping = asyncio.create_task(mailserver.peers[0].stop())
        await turns()
        waits = not stopping.done()

    assert waits
    assert await raw.hear_packets(2) == confirmation(payload)
    assert await raw.hear_hangup() is DisconnectReason.CLIENT_QUITTING
    await raw.close()
    await asyncio.wait_for(stopping, DEADLINE_S)


async def test_nothing_is_taken_any_more_while_stopping(mailserver: Mailserver) -> None:
    raw = await mailserver.dial()
    payloads = [messages(make_envelope(number)) for number in range(2)]

    with write_lock(mailserver):
        raw.say(PacketCode.MESSAGES, payloads[0])
        await heard_by(raw)
        stopping = asyncio.create_task(mailserver.peers[0].stop())
        raw.say(PacketCode.MESSAGES, payloads[1])
        await heard_by(raw)

    assert await raw.hear_packets(2) == confirmation(payloads[0])
    assert await raw.hear_hangup() is DisconnectReason.CLIENT_QUITTING
    await raw.close()
    await stopping
    assert len(await everything(mailserver)) == 1


async def test_cut_ends_a_connection_that_does_not_read(mailserver: Mailserver) -> None:
    await fill(mailserver.store, make_large_envelopes(20, 100_000))
    raw = await mailserver.dial()
    raw.say(PacketCode.P2P_REQUEST, sealed_request(deployed_fields()).raw)
    await raw.hear_packet()

    mailserver.peers[0].cut()

    await asyncio.wait_for(mailserver.tasks[0], DEADLINE_S)


async def test_many_peers_come_and_go_and_leave_nothing_behind(mailserver: Mailserver) -> None:
    before = len(asyncio.all_tasks())

    for number in range(10):
        raw = await mailserver.dial(status=EMPTY_LIST)
        payload = messages(make_envelope(number))
        raw.say(PacketCode.MESSAGES, payload)
        assert await raw.hear_confirmation() == confirmation(payload)
        assert isinstance((await ask(raw, sealed_request(deployed_fields()).raw))[1], Completion)
        await raw.close()

    await until(lambda: len(asyncio.all_tasks()) <= before)


# Metrics


async def test_confirmation_and_end_of_a_connection_are_counted(mailserver: Mailserver) -> None:
    metrics = mailserver.services.metrics
    raw = await mailserver.dial()
    raw.say(PacketCode.MESSAGES, messages(make_envelope(1)))
    await raw.hear_confirmation()
    await until(lambda: metrics.registry.get_sample_value("mailserver_confirmation_delay_seconds_count") == 1)

    mailserver.connections[0].disconnect(DisconnectReason.TOO_MANY_PEERS, "one too many")
    await asyncio.wait(mailserver.tasks)

    assert count_of(metrics.disconnects[DisconnectReason.TOO_MANY_PEERS]) == 1


async def test_peer_counts_as_connected_once_its_status_has_come_however_soon_it_goes(mailserver: Mailserver) -> None:
    connections = mailserver.services.metrics.connections
    await mailserver.dial_silent()
    for _ in range(3):
        raw = await mailserver.dial()
        raw.say(PacketCode.STATUS, EMPTY_LIST)  # a second one says nothing
        raw.say(PacketCode.MESSAGES, payload := messages(make_envelope(1)))
        assert await raw.hear_confirmation() == confirmation(payload)
        await raw.close()

    assert {direction: count.value for direction, count in connections.items()} == {Direction.IN: 3, Direction.OUT: 0}


async def test_requests_that_wait_for_their_turn_are_told(mailserver: Mailserver) -> None:
    raw = await mailserver.dial()
    peer = mailserver.peers[0]
    assert peer.requests_waiting == 0

    for number in range(3):
        raw.say(PacketCode.P2P_REQUEST, sealed_request(deployed_fields(), number=number).raw)
    await until(lambda: peer.requests_waiting > 0)
    await until(lambda: peer.requests_waiting == 0)


async def test_requests_that_are_too_long_to_be_looked_at_do_not_fill_the_log(
    mailserver: Mailserver, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "mailserver.history.requests")
    raw = await mailserver.dial()

    for _ in range(3):
        raw.say(PacketCode.P2P_REQUEST, bytes(MAX_REQUEST_BYTES + 1))
    heard = await raw.hear_packets(3)

    assert [packet.code for packet in heard] == [PacketCode.P2P_REQUEST_COMPLETE] * 3
    assert [record.levelno for record in caplog.records] == [logging.DEBUG] * 3
