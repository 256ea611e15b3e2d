"""mailserver.services.limits: what slows and ends a peer, and what does not touch an honest one."""

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from ipaddress import ip_network

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mailserver.codec.keccak import keccak256
from mailserver.codec.keys import NodeId
from mailserver.errors import DisconnectReason, LocalProtocolError, RemoteProtocolError
from mailserver.mail.request import Cursor
from mailserver.net.admission import NOBODY_ALLOWED, AdmissionLimits, Allowed
from mailserver.services import limits as limits_module
from mailserver.services.limits import (
    ADDRESS_REQUEST_LIMITS,
    BREAK_S,
    CURSORS_KEPT_S,
    ENVELOPE_BURST_MINUTES,
    LEAST_PAGE_COST,
    MAX_CURSORS,
    MAX_FOLLOWED,
    PEER_REQUEST_LIMITS,
    RATE_BURST_S,
    REQUEST_BURST_MINUTES,
    Meter,
    RateLimiter,
    RateLimitSettings,
    Requester,
    RequestLimiter,
    RequestLimits,
)
from mailserver.waku.envelope import EnvelopeHash, Topic
from mailserver.waku.packets import MAX_RECEIVED_PACKET_BYTES, NO_RATE_LIMITS, RateLimits

PHONES = "192.0.2.7"
ELSEWHERE = "198.51.100.1"
NEWS, SPORT = Topic(b"news"), Topic(b"spor")
NO_REQUEST_LIMITS = RequestLimits()


def node_id(number: int) -> NodeId:
    return NodeId(number.to_bytes(64, "big"))


ALICE, BOB = node_id(1), node_id(2)


def rate_limiter(
    packets: RateLimits = NO_RATE_LIMITS,
    sizes: RateLimits = NO_RATE_LIMITS,
    *,
    tolerance_s: float = math.inf,
    allowed: Allowed = NOBODY_ALLOWED,
) -> RateLimiter:
    return RateLimiter(RateLimitSettings(packets, sizes, tolerance_s, allowed))


def flood(meter: Meter, seconds: float, now: float = 0.0, size: int = 100) -> float:
    """Send packet after packet, each as soon as it is read; return when the first one is read after the time."""
    until = now + seconds
    while now < until:
        now += meter.on_packet(size, now) + 0.0001
    return now


# Packets and bytes


def test_peer_is_slowed_beyond_its_burst_of_packets() -> None:
    meter = rate_limiter(RateLimits(peer=2)).meter(PHONES, ALICE)
    burst = int(2 * RATE_BURST_S)

    assert [meter.on_packet(100, 5.0) for _ in range(burst)] == [0.0] * burst
    assert meter.on_packet(100, 5.0) == 0.5
    assert meter.on_packet(100, 5.5) == 0.5
    assert meter.on_packet(100, 8.0) == 0.0


def test_peer_is_slowed_beyond_its_burst_of_bytes() -> None:
    rate = 1024 * 1024
    meter = rate_limiter(sizes=RateLimits(peer=rate)).meter(PHONES, ALICE)
    assert meter.on_packet(int(rate * RATE_BURST_S), 0.0) == 0.0

    assert meter.on_packet(rate // 4, 0.0) == 0.25


def test_one_packet_of_any_size_is_never_too_many_bytes() -> None:
    meter = rate_limiter(sizes=RateLimits(ip=1, peer=1, topic=1), tolerance_s=0.0).meter(PHONES, ALICE)

    assert meter.on_packet(MAX_RECEIVED_PACKET_BYTES, 0.0) == 0.0


def test_longest_pause_counts() -> None:
    limiter = rate_limiter(RateLimits(ip=2, peer=1), RateLimits(ip=1000, peer=100_000))
    alice, bob = limiter.meter(PHONES, ALICE), limiter.meter(PHONES, BOB)
    for meter in [alice] * 10 + [bob] * 10:
        assert meter.on_packet(0, 0.0) == 0.0

    assert alice.on_packet(MAX_RECEIVED_PACKET_BYTES, 0.0) == 1.0  # packets of a peer; of the address it were 0.5
    assert alice.on_packet(5000, 0.0) == 5.0  # bytes of the address


def test_peers_of_one_address_share_its_limit_and_those_of_another_do_not() -> None:
    limiter = rate_limiter(RateLimits(ip=1))
    for number in range(int(RATE_BURST_S)):
        assert limiter.meter(PHONES, node_id(number)).on_packet(1, 0.0) == 0.0

    assert limiter.meter(f"::ffff:{PHONES}", ALICE).on_packet(1, 0.0) == 1.0
    assert limiter.meter(ELSEWHERE, ALICE).on_packet(1, 0.0) == 0.0


@pytest.mark.parametrize("address", [PHONES, ELSEWHERE])
def test_peer_that_reconnects_is_where_it_was(address: str) -> None:
    limiter = rate_limiter(RateLimits(peer=1))
    flood(limiter.meter(PHONES, ALICE), 20.0)

    assert limiter.meter(address, ALICE).on_packet(1, 20.0) > 0
    assert limiter.meter(PHONES, BOB).on_packet(1, 20.0) == 0


def test_without_limits_nobody_is_slowed() -> None:
    meter = rate_limiter(tolerance_s=0.0).meter(PHONES, ALICE)

    assert {meter.on_packet(MAX_RECEIVED_PACKET_BYTES, 0.0) for _ in range(10_000)} == {0.0}


@pytest.mark.parametrize(
    "allowed", [Allowed(networks=(ip_network("192.0.2.0/24"),)), Allowed(node_ids=frozenset({ALICE}))]
)
def test_who_is_allowed_is_never_slowed(allowed: Allowed) -> None:
    limiter = rate_limiter(RateLimits(1, 1, 1), RateLimits(1, 1, 1), tolerance_s=0.0, allowed=allowed)
    meter, other = limiter.meter(PHONES, ALICE), limiter.meter(ELSEWHERE, BOB)

    assert meter.is_allowed
    assert {meter.on_packet(10_000, 0.0) for _ in range(1000)} == {0.0}
    assert not other.is_allowed


@settings(deadline=None)
@given(
    steps=st.lists(st.tuples(st.integers(0, 64), st.integers(0, MAX_RECEIVED_PACKET_BYTES)), max_size=50),
    rate=st.sampled_from([2**14, 2**18, 2**22]),
)
def test_whatever_a_peer_sends_no_more_is_read_than_its_limit(steps: list[tuple[int, int]], rate: int) -> None:
    meter = rate_limiter(RateLimits(peer=4), RateLimits(peer=rate)).meter(PHONES, ALICE)
    burst = max(rate * RATE_BURST_S, MAX_RECEIVED_PACKET_BYTES)
    now, read_before = 0.0, 0

    for number, (ticks, size) in enumerate(steps):
        now += ticks / 64

        # What came before this packet is within the limits: with it, it is beyond them by one packet at most.
        assert read_before <= burst + rate * now + 1
        assert number <= 4 * RATE_BURST_S + 4 * now + 0.001
        now += meter.on_packet(size, now)
        read_before += size


# Tolerance


def test_without_tolerance_a_peer_beyond_its_limit_is_disconnected_at_once() -> None:
    meter = rate_limiter(RateLimits(peer=1), tolerance_s=0.0).meter(PHONES, ALICE)
    for _ in range(int(RATE_BURST_S)):
        meter.on_packet(1, 0.0)

    with pytest.raises(RemoteProtocolError) as caught:
        meter.on_packet(1, 0.0)

    assert caught.value.reason is DisconnectReason.SUBPROTOCOL_ERROR


@pytest.mark.parametrize("rate", [1, 10])  # pauses of 1 s, as long as a break, and shorter ones
def test_peer_that_floods_is_disconnected_after_the_tolerance(rate: int) -> None:
    meter = rate_limiter(RateLimits(peer=rate), tolerance_s=30.0).meter(PHONES, ALICE)

    now = flood(meter, 29.0)

    with pytest.raises(RemoteProtocolError):
        flood(meter, 3.0, now)


def test_with_endless_tolerance_it_is_only_slowed() -> None:
    meter = rate_limiter(RateLimits(peer=10)).meter(PHONES, ALICE)

    flood(meter, 86_400.0)


def test_packet_that_needs_no_pause_ends_the_time_at_the_limit() -> None:
    meter = rate_limiter(RateLimits(peer=10), tolerance_s=5.0).meter(PHONES, ALICE)
    now = 0.0

    for _ in range(10):
        now = flood(meter, 4.0, now)
        now += 0.9 * BREAK_S
        assert meter.on_packet(1, now) == 0.0


def test_peer_that_is_silent_now_and_then_is_not_disconnected_for_its_neighbours() -> None:
    """They use all of the address's limit, and connect anew whenever they are disconnected: it is slowed each time."""
    limiter = rate_limiter(RateLimits(ip=10), tolerance_s=10.0)
    quiet = limiter.meter(PHONES, BOB)
    flood(limiter.meter(PHONES, ALICE), 5.0)
    now = 5.0

    for _ in range(50):
        for _ in range(50):
            limiter.meter(PHONES, ALICE).on_packet(1, now)
        pause = quiet.on_packet(1, now)
        assert pause > 0
        now += pause + BREAK_S


# Settings that change


def test_other_limits_hold_for_connected_peers_at_once() -> None:
    limiter = rate_limiter()
    meter = limiter.meter(PHONES, ALICE)
    meter.on_packet(1, 0.0)

    limiter.change(RateLimitSettings(RateLimits(peer=1), NO_RATE_LIMITS, 0.0))
    with pytest.raises(RemoteProtocolError):
        flood(meter, 1.0)

    limiter.change(RateLimitSettings(NO_RATE_LIMITS, NO_RATE_LIMITS))
    assert meter.on_packet(1, 0.0) == 0.0


def test_who_becomes_allowed_is_free_at_once_and_back_when_not() -> None:
    limiter = rate_limiter(RateLimits(peer=1), RateLimits(peer=1))
    meter = limiter.meter(PHONES, ALICE)
    flood(meter, 15.0)
    strict = limiter.settings

    limiter.change(replace(strict, allowed=Allowed(node_ids=frozenset({ALICE}))))
    assert (meter.is_allowed, meter.on_packet(1, 15.0)) == (True, 0.0)

    limiter.change(strict)
    assert (meter.is_allowed, meter.on_packet(1, 15.0) > 0) == (False, True)


def test_debts_stay_where_the_limit_does() -> None:
    limiter = rate_limiter(RateLimits(peer=1), RateLimits(topic=1))
    meter = limiter.meter(PHONES, ALICE)
    flood(meter, 15.0)
    limiter.take_topic(NEWS, MAX_RECEIVED_PACKET_BYTES, 15.0)

    limiter.change(replace(limiter.settings, tolerance_s=20.0))
    assert meter.on_packet(1, 15.0) > 0
    assert not limiter.take_topic(NEWS, 1, 15.0)

    limiter.change(replace(limiter.settings, bytes=RateLimits(topic=2)))
    assert meter.on_packet(1, 15.0) > 0
    assert limiter.take_topic(NEWS, 1, 15.0)


# Topics


def test_envelopes_of_a_topic_are_limited() -> None:
    limiter = rate_limiter(RateLimits(topic=1))
    burst = int(RATE_BURST_S)

    assert [limiter.take_topic(NEWS, 100, 0.0) for _ in range(burst + 1)] == [True] * burst + [False]
    assert limiter.take_topic(SPORT, 100, 0.0)
    assert [limiter.take_topic(NEWS, 100, 1.0) for _ in range(2)] == [True, False]


def test_bytes_of_a_topic_are_limited() -> None:
    limiter = rate_limiter(sizes=RateLimits(topic=1000))
    assert limiter.take_topic(NEWS, MAX_RECEIVED_PACKET_BYTES - 100, 0.0)

    assert not limiter.take_topic(NEWS, 200, 0.0)
    assert limiter.take_topic(NEWS, 100, 0.0)
    assert limiter.take_topic(NEWS, 100, 0.1)


def test_refused_envelope_takes_nothing_of_either_limit() -> None:
    limiter = rate_limiter(RateLimits(topic=1), RateLimits(topic=1000))
    limiter.take_topic(NEWS, MAX_RECEIVED_PACKET_BYTES, 0.0)

    assert not any(limiter.take_topic(NEWS, 100_000, second) for second in range(1, 10))

    assert [limiter.take_topic(NEWS, 1, 9.0) for _ in range(11)] == [True] * 10 + [False]


def test_topics_without_a_limit_take_anything() -> None:
    limiter = rate_limiter(RateLimits(1, 1, 0), RateLimits(1, 1, 0))

    assert all(limiter.take_topic(NEWS, MAX_RECEIVED_PACKET_BYTES, 0.0) for _ in range(1000))


# Defaults


def test_defaults_do_not_slow_a_month_of_requests_as_fast_as_they_go() -> None:
    meter = RateLimiter(RateLimitSettings()).meter(PHONES, ALICE)

    assert {meter.on_packet(1500, request * 0.001) for request in range(4500)} == {0.0}


def test_defaults_do_not_slow_a_node_that_relays_much() -> None:
    """An hour of 500 envelopes a second of 1 kB, bundled each 300 ms, and two confirmations for each of our bundles."""
    meter = RateLimiter(RateLimitSettings()).meter(PHONES, ALICE)

    for bundle in range(12_000):
        now = bundle * 0.3
        assert [meter.on_packet(size, now) for size in (150_000, 100, 40)] == [0.0] * 3


def test_defaults_slow_and_end_a_flood() -> None:
    meter = RateLimiter(RateLimitSettings()).meter(PHONES, ALICE)

    with pytest.raises(RemoteProtocolError):
        flood(meter, 120.0, size=1000)


# History requests


def request_limiter(
    peer: RequestLimits = NO_REQUEST_LIMITS,
    address: RequestLimits = NO_REQUEST_LIMITS,
    allowed: Allowed = NOBODY_ALLOWED,
) -> RequestLimiter:
    return RequestLimiter(peer, address, allowed)


def cursor_of(number: int) -> Cursor:
    return Cursor(1_700_000_000 - number, EnvelopeHash(keccak256(number.to_bytes(8, "big"))))


def admitted(requester: Requester, now: float, cursor: Cursor | None = None, *, most: int = 100_000) -> int:
    """How many requests are admitted at once."""
    return next((count for count in range(most) if requester.admit(cursor, now)), most)


def test_requests_per_minute_have_a_burst_and_then_come_at_the_rate() -> None:
    requester = request_limiter(RequestLimits(requests_per_minute=60)).requester(PHONES, ALICE)

    assert admitted(requester, 0.0) == 60 * REQUEST_BURST_MINUTES
    assert [requester.admit(None, 0.0) for _ in range(3)] == [1.0] * 3  # nothing is taken from who is sent away
    assert admitted(requester, 0.5) == 0
    assert admitted(requester, 10.0) == 10


def test_requests_of_an_address_are_counted_together() -> None:
    limiter = request_limiter(address=RequestLimits(requests_per_minute=12))
    burst = 12 * REQUEST_BURST_MINUTES

    assert [limiter.requester(PHONES, node_id(number)).admit(None, 0.0) for number in range(burst)] == [0.0] * burst
    assert limiter.requester(PHONES, BOB).admit(None, 0.0) == 5.0
    assert limiter.requester(ELSEWHERE, BOB).admit(None, 0.0) == 0.0


def test_whom_its_address_keeps_out_pays_no_request_of_its_own() -> None:
    limiter = request_limiter(RequestLimits(requests_per_minute=1), RequestLimits(requests_per_minute=1))
    burst = REQUEST_BURST_MINUTES
    assert admitted(limiter.requester(PHONES, ALICE), 0.0) == burst

    assert admitted(limiter.requester(PHONES, BOB), 0.0) == 0

    assert admitted(limiter.requester(ELSEWHERE, BOB), 0.0) == burst


def test_longest_wait_counts() -> None:
    peer = RequestLimits(requests_per_minute=60, envelopes_per_minute=6000)
    requester = request_limiter(peer, RequestLimits(requests_per_minute=30)).requester(PHONES, ALICE)
    assert admitted(requester, 0.0) == 30 * REQUEST_BURST_MINUTES

    assert requester.admit(None, 0.0) == 2.0
    requester.delivered(6000 * ENVELOPE_BURST_MINUTES + 999, None, 0.0)
    assert requester.admit(None, 0.0) == 10.0


def test_following_its_own_cursor_takes_no_request() -> None:
    requester = request_limiter(RequestLimits(requests_per_minute=1)).requester(PHONES, ALICE)
    admitted(requester, 0.0)

    for page in range(1000):
        requester.delivered(1000, cursor_of(page), 0.0)
        assert requester.admit(cursor_of(page), 0.0) == 0.0
    assert requester.admit(None, 0.0) == 60.0


@pytest.mark.parametrize(
    ("address", "peer", "is_known"), [(PHONES, ALICE, True), (ELSEWHERE, ALICE, True), (PHONES, BOB, False)]
)
def test_cursor_is_known_of_who_was_given_it_wherever_it_connects(
    address: str, peer: NodeId, *, is_known: bool
) -> None:
    limiter = request_limiter(RequestLimits(requests_per_minute=1))
    limiter.requester(PHONES, ALICE).delivered(1000, cursor_of(1), 0.0)
    again = limiter.requester(address, peer)
    admitted(again, 0.0)

    assert (again.admit(cursor_of(1), 0.0) == 0.0) is is_known


def test_cursor_that_it_was_not_given_is_a_new_request() -> None:
    requester = request_limiter(RequestLimits(requests_per_minute=1)).requester(PHONES, ALICE)
    requester.delivered(1000, cursor_of(1), 0.0)

    assert admitted(requester, 0.0, cursor_of(2)) == REQUEST_BURST_MINUTES


def test_cursor_can_be_followed_again_but_not_for_ever() -> None:
    requester = request_limiter(RequestLimits(requests_per_minute=1)).requester(PHONES, ALICE)
    admitted(requester, 0.0)
    requester.delivered(1000, cursor_of(1), 0.0)

    assert admitted(requester, 0.0, cursor_of(1)) == MAX_FOLLOWED

    requester.delivered(1000, cursor_of(1), 0.0)
    assert admitted(requester, 0.0, cursor_of(1)) == MAX_FOLLOWED


def test_who_is_sent_away_with_a_cursor_can_still_follow_it() -> None:
    requester = request_limiter(RequestLimits(envelopes_per_minute=6000)).requester(PHONES, ALICE)
    requester.delivered(6000 * ENVELOPE_BURST_MINUTES, cursor_of(1), 0.0)

    assert [requester.admit(cursor_of(1), 0.0) for _ in range(10)] == [0.01] * 10

    assert admitted(requester, 1.0, cursor_of(1), most=MAX_FOLLOWED) == MAX_FOLLOWED


def test_only_the_last_cursors_are_remembered() -> None:
    requester = request_limiter(RequestLimits(requests_per_minute=1)).requester(PHONES, ALICE)
    for number in range(MAX_CURSORS + 1):
        requester.delivered(1000, cursor_of(number), 0.0)
    requester.delivered(1000, cursor_of(1), 0.0)
    requester.delivered(1000, cursor_of(MAX_CURSORS + 1), 0.0)
    admitted(requester, 0.0)

    known = [number for number in range(MAX_CURSORS + 2) if not requester.admit(cursor_of(number), 0.0)]
    assert known == [1, *range(3, MAX_CURSORS + 2)]


@pytest.mark.parametrize(("later", "is_known"), [(CURSORS_KEPT_S, True), (CURSORS_KEPT_S + 1, False)])
def test_cursors_of_who_has_given_up_are_forgotten(later: float, *, is_known: bool) -> None:
    limiter = request_limiter(address=RequestLimits(requests_per_minute=1))
    limiter.requester(PHONES, ALICE).delivered(1000, cursor_of(0), 0.0)
    limiter.requester(PHONES, ALICE).delivered(1000, cursor_of(1), 50.0)

    limiter.requester(PHONES, BOB).delivered(1000, cursor_of(2), 50.0 + later)

    admitted(limiter.requester(ELSEWHERE, ALICE), later)
    assert (limiter.requester(ELSEWHERE, ALICE).admit(cursor_of(1), later) == 0.0) is is_known


def test_peers_whose_cursors_are_remembered_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits_module, "MAX_CURSOR_PEERS", 2)
    limiter = request_limiter(RequestLimits(requests_per_minute=1))

    for number in range(3):
        limiter.requester(PHONES, node_id(number)).delivered(1000, cursor_of(number), 0.0)

    for number, known in enumerate([False, True, True]):
        requester = limiter.requester(PHONES, node_id(number))
        admitted(requester, 0.0)
        assert (requester.admit(cursor_of(number), 0.0) == 0.0) is known


def test_envelopes_are_limited_also_for_who_follows_a_cursor() -> None:
    requester = request_limiter(RequestLimits(envelopes_per_minute=6000)).requester(PHONES, ALICE)
    requester.delivered(6000 * ENVELOPE_BURST_MINUTES + 99, cursor_of(1), 0.0)

    for cursor in (None, cursor_of(1)):
        assert requester.admit(cursor, 0.0) == 1.0
        assert requester.admit(cursor, 1.0) == 0.0


def test_envelopes_of_an_address_are_counted_together() -> None:
    limiter = request_limiter(address=RequestLimits(envelopes_per_minute=6000))
    for number in range(ENVELOPE_BURST_MINUTES):
        limiter.requester(PHONES, node_id(number)).delivered(6000, None, 0.0)

    assert limiter.requester(PHONES, ALICE).admit(None, 0.0) == 0.01
    assert limiter.requester(ELSEWHERE, ALICE).admit(None, 0.0) == 0.0


@pytest.mark.parametrize("envelopes", [0, 1, LEAST_PAGE_COST])
def test_small_page_costs_what_it_takes_to_look_it_up(envelopes: int) -> None:
    requester = request_limiter(RequestLimits(envelopes_per_minute=LEAST_PAGE_COST)).requester(PHONES, ALICE)

    for page in range(ENVELOPE_BURST_MINUTES):
        assert requester.admit(None, 0.0) == 0.0
        requester.delivered(envelopes, cursor_of(page), 0.0)

    assert requester.admit(None, 0.0) > 0.0


def test_requests_under_way_are_limited_by_peer_over_all_its_connections() -> None:
    limiter = request_limiter(RequestLimits(concurrent=2))
    first, second, other = (limiter.requester(PHONES, peer) for peer in (ALICE, ALICE, BOB))

    assert [first.enter(), second.enter(), first.enter(), second.enter()] == [True, True, False, False]
    assert other.enter()
    second.leave()
    assert [first.enter(), first.enter()] == [True, False]


def test_requests_under_way_are_limited_by_address() -> None:
    limiter = request_limiter(RequestLimits(concurrent=2), RequestLimits(concurrent=3))
    alice, bob = limiter.requester(PHONES, ALICE), limiter.requester(PHONES, BOB)

    assert [alice.enter(), alice.enter(), bob.enter(), bob.enter()] == [True, True, True, False]
    alice.leave()
    assert [bob.enter(), bob.enter()] == [True, False]


def test_leaving_what_was_never_entered_is_our_fault() -> None:
    requester = request_limiter(RequestLimits(concurrent=1)).requester(PHONES, ALICE)
    requester.enter()
    requester.leave()

    with pytest.raises(LocalProtocolError):
        requester.leave()


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 1), st.booleans()), max_size=80))
def test_any_sequence_of_requests_is_counted_as_by_hand(steps: list[tuple[int, int, bool]]) -> None:
    limiter = request_limiter(RequestLimits(concurrent=3), RequestLimits(concurrent=5))
    under_way: list[tuple[int, int]] = []

    for peer, host, begins in steps:
        requester = limiter.requester(f"10.0.0.{host}", node_id(peer))
        if begins:
            of_peer = sum(other == peer for other, _ in under_way)
            of_address = sum(other == host for _, other in under_way)
            has_place = of_peer < 3 and of_address < 5
            assert requester.enter() is has_place
            if has_place:
                under_way.append((peer, host))
        elif (peer, host) in under_way:
            requester.leave()
            under_way.remove((peer, host))


@pytest.mark.parametrize(
    "allowed", [Allowed(networks=(ip_network("192.0.2.0/24"),)), Allowed(node_ids=frozenset({ALICE}))]
)
def test_requests_of_who_is_allowed_are_not_limited(allowed: Allowed) -> None:
    strict = RequestLimits(1, 1, 1)
    requester = request_limiter(strict, strict, allowed).requester(PHONES, ALICE)

    for _ in range(1000):
        assert requester.enter()
        assert requester.admit(None, 0.0) == 0.0
        requester.delivered(100_000, None, 0.0)
    for _ in range(1000):
        requester.leave()


def test_who_is_no_longer_allowed_has_used_nothing_and_leaves_what_it_entered() -> None:
    strict = RequestLimits(1, 1, 1)
    limiter = request_limiter(strict, strict, Allowed(node_ids=frozenset({ALICE})))
    requester = limiter.requester(PHONES, ALICE)
    assert [requester.enter(), requester.enter(), requester.admit(None, 0.0)] == [True, True, 0.0]
    requester.delivered(100_000, None, 0.0)

    limiter.change(strict, strict, NOBODY_ALLOWED)

    assert not requester.enter()
    assert admitted(requester, 0.0) == REQUEST_BURST_MINUTES
    requester.leave()
    requester.leave()
    assert requester.enter()


def test_other_limits_of_requests_hold_at_once_and_keep_what_they_do_not_change() -> None:
    limiter = request_limiter(RequestLimits(requests_per_minute=1), RequestLimits(requests_per_minute=100))
    requester = limiter.requester(PHONES, ALICE)
    requester.enter()
    admitted(requester, 0.0)

    limiter.change(RequestLimits(requests_per_minute=1), RequestLimits(concurrent=1), NOBODY_ALLOWED)
    assert requester.admit(None, 0.0) == 60.0
    assert not requester.enter()

    limiter.change(RequestLimits(requests_per_minute=2), NO_REQUEST_LIMITS, NOBODY_ALLOWED)
    assert admitted(requester, 0.0) == 2 * REQUEST_BURST_MINUTES
    assert requester.enter()


def test_limits_of_requests_that_are_put_in_force_again_change_nothing() -> None:
    limits = RequestLimits(requests_per_minute=1)
    limiter = request_limiter()
    limiter.change(limits, limits, NOBODY_ALLOWED)
    admitted(limiter.requester(PHONES, ALICE), 0.0)

    limiter.change(limits, limits, NOBODY_ALLOWED)

    assert limiter.requester(PHONES, BOB).admit(None, 0.0) == 60.0
    assert limiter.requester(ELSEWHERE, ALICE).admit(None, 0.0) == 60.0


# Deployed clients


@dataclass
class Phone:
    """A deployed client that catches up: 3 requests at once, every page; `answers` is the envelopes of each request.

    Whenever one is not served at once, it is an error.
    """

    limiter: RequestLimiter
    peer: NodeId
    answers: deque[int]
    address: str = PHONES
    under_way: list[tuple[int, Cursor | None]] = field(default_factory=list)
    pages: int = 0

    def ask(self, now: float) -> None:
        """Send what it has to ask now: next pages first, then next requests. It reconnects all the time."""
        while self.answers and len(self.under_way) < 3:
            self.under_way.append((self.answers.popleft(), None))
        requester = self.limiter.requester(self.address, self.peer)
        for _, cursor in self.under_way:
            assert requester.enter()
            assert requester.admit(cursor, now) == 0.0

    def receive(self, now: float) -> None:
        """All that it has asked is answered, up to 1,000 envelopes each."""
        requester = self.limiter.requester(self.address, self.peer)
        answered, self.under_way = self.under_way, []
        for envelopes, _ in answered:
            self.pages += 1
            page = min(envelopes, 1000)
            cursor = Cursor(self.pages, EnvelopeHash(self.peer[-32:])) if envelopes > page else None
            requester.delivered(page, cursor, now)
            requester.leave()
            if cursor is not None:
                self.under_way.append((envelopes - page, cursor))


def month() -> deque[int]:
    """What 30 windows of 24 h hold of 1,000 topics, 10 at a time: 1.9 million envelopes, most of them of few topics."""
    return deque(5400 if batch % 10 == 0 else 90 for _ in range(30) for batch in range(100))


def catch_up(phones: Iterable[Phone], answer_s: float) -> float:
    """Let all of them catch up, each answer taking so long; return how long that took."""
    now, busy = 0.0, list(phones)
    while busy:
        for phone in busy:
            phone.ask(now)
        now += answer_s
        for phone in busy:
            phone.receive(now)
        busy = [phone for phone in busy if phone.answers or phone.under_way]
    return now


@pytest.mark.parametrize("answer_s", [0.001, 0.05, 2.0])
def test_client_that_catches_up_on_a_month_is_never_sent_away(answer_s: float) -> None:
    phone = Phone(RequestLimiter(), ALICE, month())

    catch_up([phone], answer_s)

    assert phone.pages == 30 * (10 * 6 + 90)


def test_ten_of_them_behind_one_address_are_not_either() -> None:
    limiter = RequestLimiter()

    catch_up([Phone(limiter, node_id(number), month()) for number in range(10)], 0.01)


def test_as_many_phones_as_an_address_may_have_catch_up_on_a_day_together() -> None:
    limiter = RequestLimiter()
    phones = range(AdmissionLimits().max_per_address)

    catch_up([Phone(limiter, node_id(number), deque([1500] * 30)) for number in phones], 0.01)


def test_who_makes_up_node_ids_has_the_limits_of_its_address() -> None:
    limiter = RequestLimiter()
    per_peer = PEER_REQUEST_LIMITS.requests_per_minute * REQUEST_BURST_MINUTES

    served = sum(admitted(limiter.requester(PHONES, node_id(number)), 0.0, most=per_peer) for number in range(100))

    assert served == ADDRESS_REQUEST_LIMITS.requests_per_minute * REQUEST_BURST_MINUTES
