"""mailserver.peers.served_peer: whole connections, from their first byte to their end."""

import asyncio
import random
import weakref
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mailserver.codec.keys import PrivateKey
from mailserver.errors import DisconnectReason
from mailserver.mail.completion import Completion
from mailserver.mail.request import decode_request
from mailserver.metrics.labels import Direction
from mailserver.metrics.registry import count_of
from mailserver.net import connection as connection_module
from mailserver.rlpx import p2p
from mailserver.waku.packets import MessageResponse, PacketCode, StatusOptions
from tests.data import load
from tests.mailservers import (
    NEWS,
    NOW,
    Mailserver,
    deployed_fields,
    fill,
    make_envelope,
    make_envelopes,
    make_large_envelopes,
    running_mailserver,
    sealed_request,
)
from tests.memory import no_search_for_cycles
from tests.pairs import entropy
from tests.peers.served.serving import (
    EMPTY_LIST,
    UNKNOWN_CODE,
    ask,
    confirmation,
    everything,
    hear_answer,
    heard_by,
    messages,
    write_lock,
)
from tests.raw_peer import Packet, Replay, stream_pair
from tests.waiting import DEADLINE_S, turns, until

SESSIONS: dict[str, Any] = {session["name"]: session for session in load("sessions.json")["sessions"]}


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


async def test_abort_ends_a_connection_that_does_not_read(mailserver: Mailserver) -> None:
    await fill(mailserver.store, make_large_envelopes(20, 100_000))
    raw = await mailserver.dial()
    raw.say(PacketCode.P2P_REQUEST, sealed_request(deployed_fields()).raw)
    await raw.hear_packet()

    mailserver.peers[0].abort()

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


async def test_peer_that_has_left_is_gone_without_a_search_for_cycles(mailserver: Mailserver) -> None:
    with no_search_for_cycles():
        raw = await mailserver.dial()
        await until(lambda: bool(mailserver.peers))
        gone: list[weakref.ref[object]] = [weakref.ref(mailserver.peers[0]), weakref.ref(mailserver.connections[0])]
        await raw.close()
        await until(mailserver.tasks[0].done)
        for kept in (mailserver.peers, mailserver.connections, mailserver.tasks):
            kept.clear()

        await until(lambda: not any(reference() for reference in gone))


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
