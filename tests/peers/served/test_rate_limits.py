"""mailserver.peers.served_peer: the rate limits that we keep to, and those that peers have to keep to."""

import asyncio
import random
from pathlib import Path

import pytest

from mailserver.errors import DisconnectReason
from mailserver.limits.admission import Allowlist
from mailserver.limits.packet_rates import RateLimitSettings
from mailserver.waku.acceptance import Verdict
from mailserver.waku.envelope import Topic, decode_envelopes, encode_envelopes
from mailserver.waku.packets import (
    NO_RATE_LIMITS,
    EnvelopeErrorCode,
    MessageResponse,
    PacketCode,
    RateLimits,
    StatusOptions,
)
from tests.mailservers import (
    Mailserver,
    deployed_fields,
    fill,
    make_envelope,
    make_large_envelopes,
    running_mailserver,
    sealed_request,
)
from tests.pairs import private_key
from tests.peers.served.serving import EMPTY_LIST, NOTHING_WANTED, confirmation, hear_envelopes, messages
from tests.waiting import DEADLINE_S

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
    allowed = Allowlist(node_ids=frozenset({private_key("friend").public_key}))
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
