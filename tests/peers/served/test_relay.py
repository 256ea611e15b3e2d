"""mailserver.peers.served_peer: what one peer sends goes to the others, or to our filters."""

import asyncio
import contextlib
import logging
import random
import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest

from mailserver.errors import DisconnectReason
from mailserver.limits.intake_bounds import MAX_UNREAD_BYTES
from mailserver.live import relay as relay_module
from mailserver.peers import paced_sender as paced_sender_module
from mailserver.waku.envelope import Envelope, encode_envelope
from mailserver.waku.packets import PacketCode, StatusOptions
from tests.mailservers import NOW, STATUS, Mailserver, make_envelope, running_mailserver
from tests.pairs import private_key
from tests.peers.served.serving import EMPTY_LIST, confirmation, everything, hear_envelopes, heard_by, messages
from tests.raw_peer import Packet
from tests.waiting import DEADLINE_S, until

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


async def test_long_envelope_is_left_out_while_too_many_do_not_read_such(
    mailserver: Mailserver, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(paced_sender_module, "UNREAD_TIMEOUT_S", 0.1)
    unread = mailserver.services.bounds.unread
    assert unread.try_acquire(MAX_UNREAD_BYTES, is_first=False)
    sender, reader = await mailserver.dial(status=EMPTY_LIST), await mailserver.dial(status=STATUS.encode())
    long, short, other = make_envelope(1, data_bytes=100_000), make_envelope(2), make_envelope(3, data_bytes=100_000)
    caplog.set_level(logging.DEBUG, relay_module.__name__)

    for envelope in (long, short):
        sender.say(PacketCode.MESSAGES, messages(envelope))
        await sender.hear_packets(2)
    assert await hear_envelopes(reader, 1) == [short]
    assert [text for text in caplog.messages if "long envelope not relayed" in text]

    unread.release(MAX_UNREAD_BYTES)
    sender.say(PacketCode.MESSAGES, messages(other))
    assert await hear_envelopes(reader, 1) == [other]
    await until(lambda: unread.used_bytes == 0)


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

        assert [peer.late_envelopes for peer in mailserver.peers] == [2, 0]


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
