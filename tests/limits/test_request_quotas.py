"""mailserver.limits.request_quotas: who is sent away, until when, and that deployed clients never are."""

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from ipaddress import ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mailserver.codec.keccak import keccak256
from mailserver.codec.keys import NodeId
from mailserver.errors import LocalProtocolError
from mailserver.limits import request_quotas as quotas
from mailserver.limits.admission import EMPTY_ALLOWLIST, AdmissionLimits, Allowlist
from mailserver.limits.request_quotas import (
    ADDRESS_REQUEST_LIMITS,
    CURSORS_KEPT_S,
    ENVELOPE_BURST_MINUTES,
    MAX_CURSORS,
    MAX_FOLLOWS,
    MIN_PAGE_COST,
    PEER_REQUEST_LIMITS,
    REQUEST_BURST_MINUTES,
    WORK_PER_ENVELOPE,
    Requester,
    RequestLimiter,
    RequestLimits,
)
from mailserver.mail.request import Cursor
from mailserver.waku.envelope import EnvelopeHash

PHONES = "192.0.2.7"
ELSEWHERE = "198.51.100.1"
NO_REQUEST_LIMITS = RequestLimits()


def node_id(number: int) -> NodeId:
    return NodeId(number.to_bytes(64, "big"))


ALICE, BOB = node_id(1), node_id(2)


def request_limiter(
    peer: RequestLimits = NO_REQUEST_LIMITS,
    address: RequestLimits = NO_REQUEST_LIMITS,
    allowed: Allowlist = EMPTY_ALLOWLIST,
) -> RequestLimiter:
    return RequestLimiter(peer, address, allowed)


def cursor_of(number: int) -> Cursor:
    return Cursor(1_700_000_000 - number, EnvelopeHash(keccak256(number.to_bytes(8, "big"))))


def deliver(requester: Requester, envelopes: int, cursor: Cursor | None, now: float) -> None:
    """An answer of so many envelopes, that ends with this cursor."""
    requester.bill(now).charge_envelopes(envelopes, now)
    if cursor is not None:
        requester.remember_cursor(cursor, now)


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


def test_addresses_of_one_customer_have_the_limits_of_one() -> None:
    limiter = request_limiter(address=RequestLimits(requests_per_minute=1, concurrent=1))
    one, other, neighbour = (
        limiter.requester(f"2001:db8:1:{net}::{host}", node_id(host)) for net, host in ((2, 1), (2, 2), (3, 3))
    )

    assert [one.begin(), other.begin(), neighbour.begin()] == [True, False, True]
    assert [admitted(requester, 0.0) for requester in (one, other, neighbour)] == [
        REQUEST_BURST_MINUTES,
        0,
        REQUEST_BURST_MINUTES,
    ]


def test_request_refused_for_its_address_does_not_count_for_its_peer() -> None:
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
    deliver(requester, 6000 * ENVELOPE_BURST_MINUTES + 999, None, 0.0)
    assert requester.admit(None, 0.0) == 10.0


@given(
    st.integers(1, 5000),
    st.integers(1, 5000),
    st.lists(st.tuples(st.booleans(), st.integers(0, 1000), st.booleans()), max_size=30),
)
def test_peer_that_comes_back_when_it_was_told_to_is_admitted(
    requests: int, envelopes: int, pages: list[tuple[bool, int, bool]]
) -> None:
    limits = RequestLimits(requests_per_minute=requests, envelopes_per_minute=envelopes)
    requester = request_limiter(limits, RequestLimits(requests, envelopes)).requester(PHONES, ALICE)
    deliver(requester, envelopes * ENVELOPE_BURST_MINUTES, cursor_of(0), 1000.0)
    now = 1000.0

    for follows, delivered, is_late in pages:
        wait = math.ceil(requester.admit(cursor_of(0) if follows else None, now))
        if wait:
            now += wait + (0.7 if is_late else 0.0)
            assert requester.admit(cursor_of(0) if follows else None, now) == 0.0
        deliver(requester, delivered, cursor_of(0), now)


def test_following_its_own_cursor_takes_no_request() -> None:
    requester = request_limiter(RequestLimits(requests_per_minute=1)).requester(PHONES, ALICE)
    admitted(requester, 0.0)

    for page in range(1000):
        deliver(requester, 1000, cursor_of(page), 0.0)
        assert requester.admit(cursor_of(page), 0.0) == 0.0
    assert requester.admit(None, 0.0) == 60.0


@pytest.mark.parametrize(
    ("address", "peer", "is_known"), [(PHONES, ALICE, True), (ELSEWHERE, ALICE, True), (PHONES, BOB, False)]
)
def test_cursor_is_remembered_for_its_peer_wherever_it_connects_from(
    address: str, peer: NodeId, *, is_known: bool
) -> None:
    limiter = request_limiter(RequestLimits(requests_per_minute=1))
    deliver(limiter.requester(PHONES, ALICE), 1000, cursor_of(1), 0.0)
    again = limiter.requester(address, peer)
    admitted(again, 0.0)

    assert (again.admit(cursor_of(1), 0.0) == 0.0) is is_known


def test_cursor_that_it_was_not_given_is_a_new_request() -> None:
    requester = request_limiter(RequestLimits(requests_per_minute=1)).requester(PHONES, ALICE)
    deliver(requester, 1000, cursor_of(1), 0.0)

    assert admitted(requester, 0.0, cursor_of(2)) == REQUEST_BURST_MINUTES


def test_cursor_can_be_followed_again_but_not_for_ever() -> None:
    requester = request_limiter(RequestLimits(requests_per_minute=1)).requester(PHONES, ALICE)
    admitted(requester, 0.0)
    deliver(requester, 1000, cursor_of(1), 0.0)

    assert admitted(requester, 0.0, cursor_of(1)) == MAX_FOLLOWS

    deliver(requester, 1000, cursor_of(1), 0.0)
    assert admitted(requester, 0.0, cursor_of(1)) == MAX_FOLLOWS


def test_peer_that_is_refused_can_still_follow_its_cursor() -> None:
    requester = request_limiter(RequestLimits(envelopes_per_minute=6000)).requester(PHONES, ALICE)
    deliver(requester, 6000 * ENVELOPE_BURST_MINUTES, cursor_of(1), 0.0)

    assert [requester.admit(cursor_of(1), 0.0) for _ in range(10)] == [0.01] * 10

    assert admitted(requester, 1.0, cursor_of(1), most=MAX_FOLLOWS) == MAX_FOLLOWS


def looked_at(requester: Requester, now: float, *, may_follow: bool) -> int:
    """How many requests are looked at before they are decoded, if none of them follows a cursor."""
    waits = (requester.wait(now, may_follow=may_follow) for _ in range(1000))
    return next((count for count, wait in enumerate(waits) if wait), 1000)


def test_nothing_is_looked_at_of_a_peer_that_has_used_up_its_requests() -> None:
    requester = request_limiter(RequestLimits(requests_per_minute=60)).requester(PHONES, ALICE)
    assert looked_at(requester, 0.0, may_follow=True) == 1000  # looking takes nothing
    admitted(requester, 0.0)

    assert requester.wait(0.0, may_follow=True) == requester.wait(0.0, may_follow=False) == 1.0
    assert requester.wait(1.0, may_follow=False) == 0.0


def test_some_requests_are_looked_at_that_may_follow_a_cursor() -> None:
    requester = request_limiter(RequestLimits(requests_per_minute=1)).requester(PHONES, ALICE)
    admitted(requester, 0.0)
    for number in range(MAX_CURSORS + 1):
        deliver(requester, 1, cursor_of(number), 0.0)
        if not number:
            assert looked_at(requester, 0.0, may_follow=False) == 0
            assert looked_at(requester, 0.0, may_follow=True) == MAX_FOLLOWS
    deliver(requester, 1, cursor_of(0), 0.0)

    assert looked_at(requester, 0.0, may_follow=True) == MAX_FOLLOWS * MAX_CURSORS


def test_nothing_is_looked_at_of_a_peer_that_has_had_too_many_envelopes() -> None:
    requester = request_limiter(RequestLimits(envelopes_per_minute=60)).requester(PHONES, ALICE)
    deliver(requester, 60 * ENVELOPE_BURST_MINUTES, cursor_of(1), 0.0)

    assert looked_at(requester, 0.0, may_follow=True) == 0
    assert looked_at(requester, 1.0, may_follow=True) == 1000


def test_only_the_last_cursors_are_remembered() -> None:
    requester = request_limiter(RequestLimits(requests_per_minute=1)).requester(PHONES, ALICE)
    for number in range(MAX_CURSORS + 1):
        deliver(requester, 1000, cursor_of(number), 0.0)
    deliver(requester, 1000, cursor_of(1), 0.0)
    deliver(requester, 1000, cursor_of(MAX_CURSORS + 1), 0.0)
    admitted(requester, 0.0)

    known = [number for number in range(MAX_CURSORS + 2) if not requester.admit(cursor_of(number), 0.0)]
    assert known == [1, *range(3, MAX_CURSORS + 2)]


@pytest.mark.parametrize(("later", "is_known"), [(CURSORS_KEPT_S, True), (CURSORS_KEPT_S + 1, False)])
def test_cursors_of_a_peer_that_has_stopped_are_forgotten(later: float, *, is_known: bool) -> None:
    limiter = request_limiter(address=RequestLimits(requests_per_minute=1))
    deliver(limiter.requester(PHONES, ALICE), 1000, cursor_of(0), 0.0)
    deliver(limiter.requester(PHONES, ALICE), 1000, cursor_of(1), 50.0)

    deliver(limiter.requester(PHONES, BOB), 1000, cursor_of(2), 50.0 + later)

    admitted(limiter.requester(ELSEWHERE, ALICE), later)
    assert (limiter.requester(ELSEWHERE, ALICE).admit(cursor_of(1), later) == 0.0) is is_known


def test_peers_whose_cursors_are_remembered_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quotas, "MAX_CURSOR_PEERS", 2)
    limiter = request_limiter(RequestLimits(requests_per_minute=1))

    for number in range(3):
        deliver(limiter.requester(PHONES, node_id(number)), 1000, cursor_of(number), 0.0)

    for number, known in enumerate([False, True, True]):
        requester = limiter.requester(PHONES, node_id(number))
        admitted(requester, 0.0)
        assert (requester.admit(cursor_of(number), 0.0) == 0.0) is known


@pytest.mark.parametrize("limits", [RequestLimits(requests_per_minute=1), RequestLimits(envelopes_per_minute=1)])
def test_peers_whose_requests_are_remembered_are_bounded(
    limits: RequestLimits, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quotas, "MAX_REQUEST_KEYS", 3)
    limiter = request_limiter(limits)
    requesters = [limiter.requester(PHONES, node_id(number)) for number in range(4)]
    for requester in requesters:
        while not requester.admit(None, 0.0):
            deliver(requester, 0, None, 0.0)

    assert [requester.admit(None, 0.0) > 0 for requester in reversed(requesters)] == [True] * 3 + [False]


def test_work_of_the_store_counts_where_it_is_more_than_its_envelopes_pay_for() -> None:
    limiter = request_limiter(RequestLimits(envelopes_per_minute=6000))  # 60,000 at once, 100 a second
    for peer, work, wait_s in ((ALICE, 1000, 0.01), (BOB, 1500, 5.01)):
        requester = limiter.requester(PHONES, peer)
        deliver(requester, 59_000, None, 0.0)
        bill = requester.bill(0.0)

        bill.charge_work(work * WORK_PER_ENVELOPE, 0.0)
        bill.charge_envelopes(1000, 0.0)

        assert requester.admit(None, 0.0) == pytest.approx(wait_s)


def test_what_an_answer_costs_is_taken_while_it_is_made_and_what_was_too_much_given_back() -> None:
    requester = request_limiter(RequestLimits(envelopes_per_minute=600)).requester(PHONES, ALICE)  # 6000 at once
    bill = requester.bill(0.0)

    bill.charge_work(6000 * WORK_PER_ENVELOPE, 0.0)
    assert requester.admit(None, 0.0) == pytest.approx(0.1)
    bill.charge_work(-1000 * WORK_PER_ENVELOPE, 0.0)
    assert requester.admit(None, 0.0) == 0.0
    bill.charge_envelopes(5000, 0.0)  # which that work has paid for
    assert requester.admit(None, 0.0) == 0.0
    bill.charge_envelopes(1000, 0.0)
    assert requester.admit(None, 0.0) == pytest.approx(0.1)


def test_answer_that_comes_to_nothing_has_cost_what_a_page_costs_at_least() -> None:
    requester = request_limiter(RequestLimits(envelopes_per_minute=MIN_PAGE_COST)).requester(PHONES, ALICE)

    for _ in range(ENVELOPE_BURST_MINUTES):
        assert requester.admit(None, 0.0) == 0.0
        requester.bill(0.0)

    assert requester.admit(None, 0.0) > 0.0


def test_envelopes_are_limited_also_for_requests_that_follow_a_cursor() -> None:
    requester = request_limiter(RequestLimits(envelopes_per_minute=6000)).requester(PHONES, ALICE)
    deliver(requester, 6000 * ENVELOPE_BURST_MINUTES + 99, cursor_of(1), 0.0)

    for cursor in (None, cursor_of(1)):
        assert requester.admit(cursor, 0.0) == 1.0
        assert requester.admit(cursor, 1.0) == 0.0


def test_envelopes_of_an_address_are_counted_together() -> None:
    limiter = request_limiter(address=RequestLimits(envelopes_per_minute=6000))
    for number in range(ENVELOPE_BURST_MINUTES):
        deliver(limiter.requester(PHONES, node_id(number)), 6000, None, 0.0)

    assert limiter.requester(PHONES, ALICE).admit(None, 0.0) == 0.01
    assert limiter.requester(ELSEWHERE, ALICE).admit(None, 0.0) == 0.0


@pytest.mark.parametrize("envelopes", [0, 1, MIN_PAGE_COST])
def test_small_page_costs_what_it_takes_to_look_it_up(envelopes: int) -> None:
    requester = request_limiter(RequestLimits(envelopes_per_minute=MIN_PAGE_COST)).requester(PHONES, ALICE)

    for page in range(ENVELOPE_BURST_MINUTES):
        assert requester.admit(None, 0.0) == 0.0
        deliver(requester, envelopes, cursor_of(page), 0.0)

    assert requester.admit(None, 0.0) > 0.0


def test_requests_under_way_are_limited_by_peer_over_all_its_connections() -> None:
    limiter = request_limiter(RequestLimits(concurrent=2))
    first, second, other = (limiter.requester(PHONES, peer) for peer in (ALICE, ALICE, BOB))

    assert [first.begin(), second.begin(), first.begin(), second.begin()] == [True, True, False, False]
    assert other.begin()
    second.end()
    assert [first.begin(), first.begin()] == [True, False]


def test_requests_under_way_are_limited_by_address() -> None:
    limiter = request_limiter(RequestLimits(concurrent=2), RequestLimits(concurrent=3))
    alice, bob = limiter.requester(PHONES, ALICE), limiter.requester(PHONES, BOB)

    assert [alice.begin(), alice.begin(), bob.begin(), bob.begin()] == [True, True, True, False]
    alice.end()
    assert [bob.begin(), bob.begin()] == [True, False]


def test_leaving_what_was_never_entered_is_our_fault() -> None:
    requester = request_limiter(RequestLimits(concurrent=1)).requester(PHONES, ALICE)
    requester.begin()
    requester.end()

    with pytest.raises(LocalProtocolError):
        requester.end()


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 1), st.booleans()), max_size=80))
def test_any_sequence_of_requests_is_counted_as_by_hand(steps: list[tuple[int, int, bool]]) -> None:
    limiter = request_limiter(RequestLimits(concurrent=3), RequestLimits(concurrent=5))
    under_way: list[tuple[int, int]] = []

    for peer, host, begins in steps:
        requester = limiter.requester(f"10.0.0.{host}", node_id(peer))
        if begins:
            of_peer = sum(other == peer for other, _ in under_way)
            of_address = sum(other == host for _, other in under_way)
            has_room = of_peer < 3 and of_address < 5
            assert requester.begin() is has_room
            if has_room:
                under_way.append((peer, host))
        elif (peer, host) in under_way:
            requester.end()
            under_way.remove((peer, host))


@pytest.mark.parametrize(
    "allowed", [Allowlist(networks=(ip_network("192.0.2.0/24"),)), Allowlist(node_ids=frozenset({ALICE}))]
)
def test_requests_of_exempt_peers_are_not_limited(allowed: Allowlist) -> None:
    strict = RequestLimits(1, 1, 1)
    requester = request_limiter(strict, strict, allowed).requester(PHONES, ALICE)

    for _ in range(1000):
        assert requester.begin()
        assert requester.admit(None, 0.0) == 0.0
        deliver(requester, 100_000, None, 0.0)
    for _ in range(1000):
        requester.end()


def test_peer_that_is_no_longer_exempt_has_used_nothing_and_ends_what_it_began() -> None:
    strict = RequestLimits(1, 1, 1)
    limiter = request_limiter(strict, strict, Allowlist(node_ids=frozenset({ALICE})))
    requester = limiter.requester(PHONES, ALICE)
    assert [requester.begin(), requester.begin(), requester.admit(None, 0.0)] == [True, True, 0.0]
    deliver(requester, 100_000, None, 0.0)

    limiter.change(strict, strict, EMPTY_ALLOWLIST)

    assert not requester.begin()
    assert admitted(requester, 0.0) == REQUEST_BURST_MINUTES
    requester.end()
    requester.end()
    assert requester.begin()


def test_other_limits_of_requests_hold_at_once_and_keep_what_they_do_not_change() -> None:
    limiter = request_limiter(RequestLimits(requests_per_minute=1), RequestLimits(requests_per_minute=100))
    requester = limiter.requester(PHONES, ALICE)
    requester.begin()
    admitted(requester, 0.0)

    limiter.change(RequestLimits(requests_per_minute=1), RequestLimits(concurrent=1), EMPTY_ALLOWLIST)
    assert requester.admit(None, 0.0) == 60.0
    assert not requester.begin()

    limiter.change(RequestLimits(requests_per_minute=2), NO_REQUEST_LIMITS, EMPTY_ALLOWLIST)
    assert admitted(requester, 0.0) == 2 * REQUEST_BURST_MINUTES
    assert requester.begin()


def test_limits_of_requests_that_are_put_in_force_again_change_nothing() -> None:
    limits = RequestLimits(requests_per_minute=1)
    limiter = request_limiter()
    limiter.change(limits, limits, EMPTY_ALLOWLIST)
    admitted(limiter.requester(PHONES, ALICE), 0.0)

    limiter.change(limits, limits, EMPTY_ALLOWLIST)

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
    has_new_ids: bool = False
    under_way: list[tuple[int, Cursor | None]] = field(default_factory=list)
    pages: int = 0

    def ask(self, now: float) -> None:
        """Send what it has to ask now: next pages first, then next requests. It reconnects all the time."""
        while self.answers and len(self.under_way) < 3:
            self.under_way.append((self.answers.popleft(), None))
        if self.has_new_ids:
            self.peer = NodeId(keccak256(self.peer) * 2)
        requester = self.limiter.requester(PHONES, self.peer)
        for _, cursor in self.under_way:
            assert requester.begin()
            assert requester.admit(cursor, now) == 0.0

    def receive(self, now: float) -> None:
        """All that it has asked is answered, up to 1,000 envelopes each."""
        requester = self.limiter.requester(PHONES, self.peer)
        answered, self.under_way = self.under_way, []
        for envelopes, _ in answered:
            self.pages += 1
            page = min(envelopes, 1000)
            cursor = Cursor(self.pages, EnvelopeHash(self.peer[-32:])) if envelopes > page else None
            deliver(requester, page, cursor, now)
            requester.end()
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


def test_client_with_a_new_node_id_at_each_connection_is_not_either() -> None:
    """No cursor is its own then: each page is a new request."""
    phone = Phone(RequestLimiter(), ALICE, month(), has_new_ids=True)

    catch_up([phone], 0.01)

    assert phone.pages == 30 * (10 * 6 + 90)


def test_thousands_of_phones_behind_one_address_catch_up_on_a_day_one_after_another() -> None:
    limiter = RequestLimiter()

    for number in range(3000):
        catch_up([Phone(limiter, node_id(number), deque([200, 1000] * 5))], 0.0)


def test_as_many_phones_as_an_address_may_have_catch_up_on_a_day_together() -> None:
    limiter = RequestLimiter()
    phones = range(AdmissionLimits().max_per_address)

    catch_up([Phone(limiter, node_id(number), deque([1500] * 30)) for number in phones], 0.01)


def test_attacker_with_many_node_ids_has_the_limits_of_its_address() -> None:
    limiter = RequestLimiter()
    per_peer = PEER_REQUEST_LIMITS.requests_per_minute * REQUEST_BURST_MINUTES

    served = sum(admitted(limiter.requester(PHONES, node_id(number)), 0.0, most=per_peer) for number in range(100))

    assert served == ADDRESS_REQUEST_LIMITS.requests_per_minute * REQUEST_BURST_MINUTES
