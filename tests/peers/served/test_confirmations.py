"""mailserver.peers.live_packets: envelopes are confirmed when they are on disk, and only then."""

import asyncio
import logging
import sqlite3
from collections.abc import Hashable, Sequence
from pathlib import Path

import pytest

from mailserver.errors import DisconnectReason
from mailserver.limits.loop_scheduler import FRAMES_AT_ONCE
from mailserver.mail.completion import Completion
from mailserver.peers import live_packets as live_module
from mailserver.rlpx import p2p
from mailserver.store.interface import NewEnvelope
from mailserver.waku.acceptance import Verdict
from mailserver.waku.packets import EnvelopeError, EnvelopeErrorCode, MessageResponse, PacketCode, StatusOptions
from tests.data import load
from tests.mailservers import (
    NOW,
    Mailserver,
    deployed_fields,
    make_envelope,
    make_envelopes,
    running_mailserver,
    sealed_request,
)
from tests.peers.served.serving import (
    EMPTY_LIST,
    NOTHING_WANTED,
    UNKNOWN_CODE,
    ask,
    confirmation,
    everything,
    messages,
    write_lock,
)
from tests.raw_peer import Hangup
from tests.waiting import DEADLINE_S, until


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

    async def counted(envelopes: Sequence[NewEnvelope], source: Hashable = None, *, is_live: bool = False) -> None:
        stored.append(len(envelopes))
        await put(envelopes, source, is_live=is_live)

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
