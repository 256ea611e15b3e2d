"""mailserver.limits.packet_rates: what slows and ends a peer, and what does not touch an honest one."""

import contextlib
import heapq
import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from ipaddress import ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mailserver.codec.keys import NodeId
from mailserver.errors import DisconnectReason, RemoteProtocolError
from mailserver.limits import packet_rates as rates
from mailserver.limits.admission import EMPTY_ALLOWLIST, Allowlist
from mailserver.limits.packet_rates import (
    FAIR_SHARE,
    RATE_BURST_S,
    PacketMeter,
    RateLimit,
    RateLimiter,
    RateLimitSettings,
)
from mailserver.waku.envelope import Topic
from mailserver.waku.packets import MAX_RECEIVED_PACKET_BYTES, NO_RATE_LIMITS, RateLimits

PHONES = "192.0.2.7"
ELSEWHERE = "198.51.100.1"
NEWS, SPORT = Topic(b"news"), Topic(b"spor")


def node_id(number: int) -> NodeId:
    return NodeId(number.to_bytes(64, "big"))


ALICE, BOB = node_id(1), node_id(2)


def rate_limiter(
    packets: RateLimits = NO_RATE_LIMITS,
    sizes: RateLimits = NO_RATE_LIMITS,
    *,
    tolerance_s: float = math.inf,
    allowed: Allowlist = EMPTY_ALLOWLIST,
) -> RateLimiter:
    return RateLimiter(RateLimitSettings(packets, sizes, tolerance_s, allowed))


def flood(meter: PacketMeter, seconds: float, now: float = 0.0, size: int = 100) -> float:
    """Send packet after packet, each as soon as it is read; return when the first one is read after the time."""
    until = now + seconds
    while now < until:
        now += meter.on_packets([size], now) + 0.0001
    return now


# Packets and bytes


def test_peer_is_slowed_beyond_its_burst_of_packets() -> None:
    meter = rate_limiter(RateLimits(peer=2)).meter(PHONES, ALICE)
    burst = int(2 * RATE_BURST_S)

    assert [meter.on_packets([100], 5.0) for _ in range(burst)] == [0.0] * burst
    assert meter.on_packets([100], 5.0) == 0.5
    assert meter.on_packets([100], 5.5) == 0.5
    assert meter.on_packets([100], 8.0) == 0.0


def test_peer_is_slowed_beyond_its_burst_of_bytes() -> None:
    rate = 1024 * 1024
    meter = rate_limiter(sizes=RateLimits(peer=rate)).meter(PHONES, ALICE)
    assert meter.on_packets([int(rate * RATE_BURST_S)], 0.0) == 0.0

    assert meter.on_packets([rate // 4], 0.0) == 0.25


def test_one_packet_of_any_size_is_never_too_many_bytes() -> None:
    meter = rate_limiter(sizes=RateLimits(ip=1, peer=1, topic=1), tolerance_s=0.0).meter(PHONES, ALICE)

    assert meter.on_packets([MAX_RECEIVED_PACKET_BYTES], 0.0) == 0.0


def test_longest_pause_counts() -> None:
    limiter = rate_limiter(RateLimits(ip=2, peer=1), RateLimits(ip=1000, peer=100_000))
    alice, bob = limiter.meter(PHONES, ALICE), limiter.meter(PHONES, BOB)
    for meter in [alice] * 10 + [bob] * 10:
        assert meter.on_packets([0], 0.0) == 0.0

    assert alice.on_packets([MAX_RECEIVED_PACKET_BYTES], 0.0) == 1.0  # packets of a peer; of the address it were 0.5
    assert alice.on_packets([5000], 0.0) == 5.0  # bytes of the address


def test_peers_of_one_address_share_its_limit_and_those_of_another_do_not() -> None:
    limiter = rate_limiter(RateLimits(ip=1))
    for number in range(int(RATE_BURST_S)):
        assert limiter.meter(PHONES, node_id(number)).on_packets([1], 0.0) == 0.0

    assert limiter.meter(f"::ffff:{PHONES}", ALICE).on_packets([1], 0.0) == 1.0
    assert limiter.meter(ELSEWHERE, ALICE).on_packets([1], 0.0) == 0.0


@pytest.mark.parametrize("address", [PHONES, ELSEWHERE])
def test_peer_that_reconnects_is_where_it_was(address: str) -> None:
    limiter = rate_limiter(RateLimits(peer=1))
    flood(limiter.meter(PHONES, ALICE), 20.0)

    assert limiter.meter(address, ALICE).on_packets([1], 20.0) > 0
    assert limiter.meter(PHONES, BOB).on_packets([1], 20.0) == 0


@pytest.mark.parametrize("limits", [RateLimits(ip=1), RateLimits(peer=1)])
@pytest.mark.parametrize("by_bytes", [False, True])
def test_peers_that_are_remembered_are_bounded(
    limits: RateLimits, monkeypatch: pytest.MonkeyPatch, *, by_bytes: bool
) -> None:
    monkeypatch.setattr(rates, "MAX_RATE_KEYS", 3)
    limiter = rate_limiter(sizes=limits) if by_bytes else rate_limiter(limits)
    meters = [limiter.meter(f"192.0.2.{number}", node_id(number)) for number in range(4)]
    for meter in meters:
        flood(meter, 20.0, size=MAX_RECEIVED_PACKET_BYTES)

    assert [meter.on_packets([MAX_RECEIVED_PACKET_BYTES], 20.0) > 0 for meter in reversed(meters)] == [True] * 3 + [
        False
    ]


def test_topics_that_are_remembered_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rates, "MAX_RATE_KEYS", 3)
    limiter = rate_limiter(RateLimits(topic=1))
    topics = [Topic(bytes([0, 0, 0, number])) for number in range(4)]
    for topic in topics:
        while limiter.take_topic(topic, 100, 0.0):
            pass

    assert [limiter.take_topic(topic, 100, 0.0) for topic in reversed(topics)] == [False] * 3 + [True]


def test_without_limits_no_peer_is_slowed() -> None:
    meter = rate_limiter(tolerance_s=0.0).meter(PHONES, ALICE)

    assert {meter.on_packets([MAX_RECEIVED_PACKET_BYTES], 0.0) for _ in range(10_000)} == {0.0}


@pytest.mark.parametrize(
    "allowed", [Allowlist(networks=(ip_network("192.0.2.0/24"),)), Allowlist(node_ids=frozenset({ALICE}))]
)
def test_exempt_peer_is_never_slowed(allowed: Allowlist) -> None:
    limiter = rate_limiter(RateLimits(1, 1, 1), RateLimits(1, 1, 1), tolerance_s=0.0, allowed=allowed)
    meter, other = limiter.meter(PHONES, ALICE), limiter.meter(ELSEWHERE, BOB)

    assert meter.is_exempt
    assert {meter.on_packets([10_000], 0.0) for _ in range(1000)} == {0.0}
    assert not other.is_exempt


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
        now += meter.on_packets([size], now)
        read_before += size


@pytest.mark.parametrize("limits", [(RateLimits(peer=2), NO_RATE_LIMITS), (NO_RATE_LIMITS, RateLimits(ip=700))])
@given(st.lists(st.lists(st.integers(0, 200_000), max_size=8), max_size=20))
def test_packets_that_come_together_count_as_much_as_one_by_one(
    limits: tuple[RateLimits, RateLimits], batches: list[list[int]]
) -> None:
    together, apart = rate_limiter(*limits), rate_limiter(*limits)
    meters = together.meter(PHONES, ALICE), apart.meter(PHONES, ALICE)

    for second, sizes in enumerate(batches):
        pause = meters[0].on_packets(sizes, second)
        pauses = [meters[1].on_packets([size], second) for size in sizes]

        assert together.exceeded == apart.exceeded
        if pauses:
            assert pause == pytest.approx(pauses[-1])


def test_peer_whose_packets_pass_the_limit_together_is_disconnected_at_once_without_tolerance() -> None:
    limiter = rate_limiter(RateLimits(peer=1), tolerance_s=0.0)
    meter = limiter.meter(PHONES, ALICE)
    assert meter.on_packets([1] * (int(RATE_BURST_S) - 1), 0.0) == 0.0

    with pytest.raises(RemoteProtocolError):
        meter.on_packets([1] * 3, 0.0)

    assert limiter.exceeded[RateLimit.PEER_PACKETS] == 2


def test_free_is_what_may_come_before_a_limit_is_passed() -> None:
    meter = rate_limiter(RateLimits(ip=2, peer=1), RateLimits(peer=MAX_RECEIVED_PACKET_BYTES)).meter(PHONES, ALICE)
    burst = int(RATE_BURST_S)

    assert meter.headroom(0.0) == (burst, MAX_RECEIVED_PACKET_BYTES * burst)
    meter.on_packets([100] * (burst + 3), 0.0)
    assert meter.headroom(0.0) == (-3, MAX_RECEIVED_PACKET_BYTES * burst - 100 * (burst + 3))
    assert meter.headroom(4.0)[0] == 1


def test_peer_without_limits_may_send_any_number() -> None:
    assert rate_limiter().meter(PHONES, ALICE).headroom(0.0) == (math.inf, math.inf)


# Tolerance


def test_without_tolerance_a_peer_beyond_its_limit_is_disconnected_at_once() -> None:
    meter = rate_limiter(RateLimits(peer=1), tolerance_s=0.0).meter(PHONES, ALICE)
    for _ in range(int(RATE_BURST_S)):
        meter.on_packets([1], 0.0)

    with pytest.raises(RemoteProtocolError) as caught:
        meter.on_packets([1], 0.0)

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
        now += 0.9
        assert meter.on_packets([1], now) == 0.0


@dataclass
class Neighbours:
    """Peers behind one address: some send as fast as they are read, one sends three packets each 0.3 s.

    The first ones connect anew, as somebody else, whenever they are disconnected.
    """

    limiter: RateLimiter
    flooders: int
    packet_bytes: int
    disconnected: int = 0

    def send(self, seconds: float) -> None:
        """Let time pass. RemoteProtocolError: the one that keeps to all limits by itself was disconnected."""
        quiet = self.limiter.meter(PHONES, ALICE)
        meters = [self.limiter.meter(PHONES, node_id(100 + number)) for number in range(self.flooders)]
        due = [(0.0, number) for number in range(self.flooders)] + [
            (0.3 * bundle, -1) for bundle in range(int(seconds / 0.3))
        ]
        heapq.heapify(due)
        quiet_at = 0.0
        while due:
            now, number = heapq.heappop(due)
            if number < 0:
                quiet_at = max(now, quiet_at)
                for size in (600, 100, 40):
                    quiet_at += quiet.on_packets([size], quiet_at)
            elif now < seconds:
                heapq.heappush(due, (now + 0.0005 + self.flood(meters, number, now), number))

    def flood(self, meters: list[PacketMeter], number: int, now: float) -> float:
        """One packet of a flooder; for how long it then cannot send."""
        try:
            return meters[number].on_packets([self.packet_bytes], now)
        except RemoteProtocolError:
            self.disconnected += 1
            meters[number] = self.limiter.meter(PHONES, node_id(1000 + self.disconnected))
            return 0.1


@pytest.mark.parametrize(("flooders", "packet_bytes"), [(5, 1000), (15, 100_000), (100, 1_000_000)])
def test_peer_that_takes_little_is_not_disconnected_for_its_neighbours(flooders: int, packet_bytes: int) -> None:
    limiter = RateLimiter(RateLimitSettings(tolerance_s=10.0))

    Neighbours(limiter, flooders, packet_bytes).send(50.0)


@pytest.mark.parametrize("limits", [RateLimits(ip=250), RateLimits(ip=250, peer=50)])
@pytest.mark.parametrize("flooders", [1, 5, int(1 / FAIR_SHARE) - 1])
def test_flooders_behind_one_address_are_disconnected(limits: RateLimits, flooders: int) -> None:
    neighbours = Neighbours(rate_limiter(limits, tolerance_s=10.0), flooders, 1000)

    neighbours.send(50.0)

    assert neighbours.disconnected >= flooders


def send_at_the_limit(shares: Iterable[float]) -> None:
    """Send, each second so many times the share for which a peer is to blame, while another uses up the address."""
    rate = 2**20
    limiter = rate_limiter(sizes=RateLimits(ip=rate), tolerance_s=8.0)
    meter, neighbour = limiter.meter(PHONES, ALICE), limiter.meter(PHONES, BOB)
    for second, share in enumerate(shares):
        with contextlib.suppress(RemoteProtocolError):
            neighbour.on_packets([2 * rate], second)
        meter.on_packets([int(share * FAIR_SHARE * rate)], second)


def test_peer_is_judged_by_what_it_takes_while_it_is_slowed() -> None:
    send_at_the_limit([0.7] * 200)

    with pytest.raises(RemoteProtocolError, match="our limit of 1048576 bytes a second"):
        send_at_the_limit([1.0] * 40)


def test_peer_that_was_not_to_blame_for_long_is_judged_by_what_it_takes_now() -> None:
    with pytest.raises(RemoteProtocolError):
        send_at_the_limit([0.5] * 200 + [3.0] * 20)


# Settings that change


def test_other_limits_hold_for_connected_peers_at_once() -> None:
    limiter = rate_limiter()
    meter = limiter.meter(PHONES, ALICE)
    meter.on_packets([1], 0.0)

    limiter.change(RateLimitSettings(RateLimits(peer=1), NO_RATE_LIMITS, 0.0))
    with pytest.raises(RemoteProtocolError):
        flood(meter, 1.0)

    limiter.change(RateLimitSettings(NO_RATE_LIMITS, NO_RATE_LIMITS))
    assert meter.on_packets([1], 0.0) == 0.0


def test_peer_becomes_exempt_at_once_and_is_limited_again_at_once() -> None:
    limiter = rate_limiter(RateLimits(peer=1), RateLimits(peer=1))
    meter = limiter.meter(PHONES, ALICE)
    flood(meter, 15.0)
    strict = limiter.settings

    limiter.change(replace(strict, allowed=Allowlist(node_ids=frozenset({ALICE}))))
    assert (meter.is_exempt, meter.on_packets([1], 15.0)) == (True, 0.0)

    limiter.change(strict)
    assert (meter.is_exempt, meter.on_packets([1], 15.0) > 0) == (False, True)


def test_debts_stay_where_the_limit_does() -> None:
    limiter = rate_limiter(RateLimits(peer=1), RateLimits(topic=1))
    meter = limiter.meter(PHONES, ALICE)
    flood(meter, 15.0)
    limiter.take_topic(NEWS, MAX_RECEIVED_PACKET_BYTES, 15.0)

    limiter.change(replace(limiter.settings, tolerance_s=20.0))
    assert meter.on_packets([1], 15.0) > 0
    assert not limiter.take_topic(NEWS, 1, 15.0)

    limiter.change(replace(limiter.settings, bytes=RateLimits(topic=2)))
    assert meter.on_packets([1], 15.0) > 0
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

    assert {meter.on_packets([1500], request * 0.001) for request in range(4500)} == {0.0}


def test_defaults_do_not_slow_a_node_that_relays_much() -> None:
    """An hour of 500 envelopes a second of 1 kB, bundled each 300 ms, and two confirmations for each of our bundles."""
    meter = RateLimiter(RateLimitSettings()).meter(PHONES, ALICE)

    for bundle in range(12_000):
        now = bundle * 0.3
        assert [meter.on_packets([size], now) for size in (150_000, 100, 40)] == [0.0] * 3


@pytest.mark.parametrize(("packets", "size"), [(50_000, 1000), (200, 1024 * 1024)])
def test_defaults_do_not_end_a_peer_that_sends_all_it_has_when_we_come_back(packets: int, size: int) -> None:
    """50,000 envelopes: one of 1 kB to a packet, or of 4 kB in as large packets as deployed nodes send."""
    meter, now = RateLimiter(RateLimitSettings()).meter(PHONES, ALICE), 0.0

    for _ in range(packets):
        now += meter.on_packets([size], now) + 0.0001

    assert now > 60.0


def test_defaults_slow_and_end_a_flood() -> None:
    meter = RateLimiter(RateLimitSettings()).meter(PHONES, ALICE)

    with pytest.raises(RemoteProtocolError):
        flood(meter, 150.0, size=1000)


def test_what_was_over_a_limit_is_counted_by_limit() -> None:
    limiter = rate_limiter(RateLimits(ip=2, peer=1, topic=1), RateLimits(peer=10**6))
    assert limiter.exceeded == dict.fromkeys(RateLimit, 0)

    for _ in range(int(RATE_BURST_S) + 3):
        limiter.meter(PHONES, ALICE).on_packets([1], 0.0)
        limiter.take_topic(Topic(b"news"), 1, 0.0)

    assert limiter.exceeded == dict.fromkeys(RateLimit, 0) | {RateLimit.PEER_PACKETS: 3, RateLimit.TOPIC: 3}
