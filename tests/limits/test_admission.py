"""mailserver.limits.admission: each limit by itself, and all of them against a model that counts."""

from ipaddress import ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mailserver.codec.keys import NodeId
from mailserver.errors import LocalProtocolError
from mailserver.limits import admission as admission_module
from mailserver.limits.admission import (
    ADDRESS_BURST_S,
    BURST_S,
    EMPTY_ALLOWLIST,
    FAILURE_WINDOW_S,
    FORGIVEN_FAILURES,
    KNOWN_AFTER_S,
    MAX_ADDRESSES,
    REFUSAL_S,
    SUBNET_FACTOR,
    UNKNOWN_GROUPS,
    Admission,
    AdmissionLimits,
    AdmissionRefusal,
    Allowlist,
    groups_of,
    index_to_evict,
)

NO_LIMITS = AdmissionLimits(max_per_address=0, max_per_subnet=0, per_second=0, per_second_per_address=0, max_failures=0)
PHONES = "192.0.2.7"
NEIGHBOUR = "192.0.2.8"
ELSEWHERE = "198.51.100.1"
SOMEONE = NodeId(bytes(64))


def limits(
    *,
    max_per_address: int = 0,
    max_per_subnet: int = 0,
    per_second: float = 0,
    per_second_per_address: float = 0,
    max_failures: int = 0,
) -> AdmissionLimits:
    """Only these limits."""
    return AdmissionLimits(max_per_address, max_per_subnet, per_second, per_second_per_address, max_failures)


def fail(admission: Admission, address: str, now: float, times: int = 1) -> None:
    """So many handshakes fail at once; each must be admitted."""
    for _ in range(times):
        assert admission.admit(address, now) is None
        admission.handshake_failed(address, now)
        admission.release(address)


@pytest.mark.parametrize(
    ("address", "groups"),
    [
        ("192.0.2.7", (bytes([192, 0, 2, 7]), bytes([192, 0, 2]))),
        ("::ffff:192.0.2.7", (bytes([192, 0, 2, 7]), bytes([192, 0, 2]))),
        ("2001:db8:1:2:3:4:5:6", (bytes.fromhex("20010db800010002"), bytes.fromhex("20010db80001"))),
        ("::1", (bytes(8), bytes(6))),
        ("fe80::1%eth0", (bytes.fromhex("fe80000000000000"), bytes.fromhex("fe8000000000"))),
        ("?", UNKNOWN_GROUPS),
        ("", UNKNOWN_GROUPS),
        ("192.0.2.256", UNKNOWN_GROUPS),
    ],
)
def test_address_is_counted_by_itself_and_its_subnet(address: str, groups: tuple[bytes, bytes]) -> None:
    assert groups_of(address) == groups


def test_addresses_of_one_customer_are_one_address() -> None:
    assert groups_of("2001:db8:1:2::1") == groups_of("2001:db8:1:2:ffff::9")
    assert groups_of("2001:db8:1:2::1").address != groups_of("2001:db8:1:3::1").address
    assert groups_of("2001:db8:1:2::1").subnet == groups_of("2001:db8:1:3::1").subnet
    assert groups_of("2001:db8:1:2::1").subnet != groups_of("2001:db8:2:2::1").subnet


@pytest.mark.parametrize(
    ("address", "is_exempt"),
    [
        ("10.1.2.3", True),
        ("::ffff:10.1.2.3", True),
        ("11.1.2.3", False),
        ("2001:db8::5", True),
        ("2001:db9::5", False),
        ("?", False),
    ],
)
def test_addresses_of_a_network_are_allowed(address: str, *, is_exempt: bool) -> None:
    allowed = Allowlist(networks=(ip_network("10.0.0.0/8"), ip_network("2001:db8::/32")))

    assert allowed.has_address(address) is is_exempt
    assert not EMPTY_ALLOWLIST.has_address(address)


def test_named_peers_are_allowed() -> None:
    assert Allowlist(node_ids=frozenset({SOMEONE})).has_peer(SOMEONE)
    assert not EMPTY_ALLOWLIST.has_peer(SOMEONE)


def test_connections_of_an_address_are_limited_until_one_ends() -> None:
    admission = Admission(limits(max_per_address=2))

    assert [admission.admit(PHONES, 0.0) for _ in range(3)] == [None, None, AdmissionRefusal.ADDRESS_FULL]
    assert admission.admit(NEIGHBOUR, 0.0) is None

    admission.release(PHONES)
    assert [admission.admit(PHONES, 0.0) for _ in range(2)] == [None, AdmissionRefusal.ADDRESS_FULL]


def test_connections_of_a_subnet_are_limited_until_one_ends() -> None:
    admission = Admission(limits(max_per_subnet=2))

    assert [admission.admit(f"192.0.2.{host}", 0.0) for host in range(3)] == [None, None, AdmissionRefusal.SUBNET_FULL]
    assert admission.admit(ELSEWHERE, 0.0) is None

    admission.release("192.0.2.0")
    assert admission.admit(NEIGHBOUR, 0.0) is None


def test_connections_per_second_of_all_addresses_are_limited() -> None:
    admission = Admission(limits(per_second=2))
    burst = int(2 * BURST_S)
    addresses = [f"10.{number}.0.1" for number in range(burst + 3)]

    assert [admission.admit(address, 9.0) for address in addresses[:burst]] == [None] * burst
    assert admission.admit(addresses[burst], 9.0) is AdmissionRefusal.TOO_FAST
    assert [admission.admit(address, 9.5) for address in addresses[burst + 1 :]] == [None, AdmissionRefusal.TOO_FAST]


def test_connections_per_second_of_an_address_are_limited_and_take_nothing_from_others() -> None:
    admission = Admission(limits(per_second=4, per_second_per_address=1))
    burst = int(ADDRESS_BURST_S)
    assert [admission.admit(PHONES, 0.0) for _ in range(burst)] == [None] * burst

    refusals = {admission.admit(PHONES, 0.0) for _ in range(1000)}

    assert refusals == {AdmissionRefusal.ADDRESS_TOO_FAST}
    others = int(4 * BURST_S) - burst
    assert [admission.admit(f"10.0.{number}.1", 0.0) for number in range(others)] == [None] * others
    assert admission.admit(ELSEWHERE, 0.0) is AdmissionRefusal.TOO_FAST
    assert admission.admit(PHONES, 1.0) is None


def test_connections_per_second_of_a_subnet_are_limited_and_take_nothing_from_others() -> None:
    admission = Admission(limits(per_second=8, per_second_per_address=1))
    burst = int(SUBNET_FACTOR * ADDRESS_BURST_S)
    assert [admission.admit(f"192.0.2.{host}", 0.0) for host in range(burst)] == [None] * burst

    refusals = {admission.admit(f"192.0.2.{host}", 0.0) for host in range(burst, 256)}

    assert refusals == {AdmissionRefusal.SUBNET_TOO_FAST}
    others = int(8 * BURST_S) - burst
    assert [admission.admit(f"10.0.{number}.1", 0.0) for number in range(others)] == [None] * others
    second = [admission.admit(PHONES, 1.0), admission.admit(NEIGHBOUR, 1.0), admission.admit("192.0.2.200", 1.0)]
    assert second == [None, None, AdmissionRefusal.SUBNET_TOO_FAST]


def test_one_line_with_ipv6_does_not_lock_out_the_others() -> None:
    """Five minutes of a line with a /48 that connects from another /64 each time, as fast as it can."""
    admission = Admission(AdmissionLimits())

    for tick in range(3000):
        now = tick * 0.1
        for number in range(10):
            address = f"2001:db8:1:{(tick * 10 + number) % 65536:x}::1"
            if admission.admit(address, now) is None:
                admission.handshake_failed(address, now)
                admission.release(address)
        phone = f"10.{tick % 200}.{tick // 200}.1"
        assert admission.admit(phone, now) is None
        admission.release(phone)


def test_connection_refused_for_the_shared_limit_uses_up_nothing_else() -> None:
    admission = Admission(limits(per_second=1, per_second_per_address=1))
    for number in range(int(BURST_S)):
        admission.admit(f"10.0.{number}.1", 0.0)

    assert {admission.admit(PHONES, 0.0) for _ in range(100)} == {AdmissionRefusal.TOO_FAST}

    burst = int(ADDRESS_BURST_S)
    assert [admission.admit(PHONES, second) for second in range(1, burst + 1)] == [None] * burst


def test_less_than_one_connection_in_a_burst_is_still_one() -> None:
    admission = Admission(limits(per_second_per_address=0.01))

    assert admission.admit(PHONES, 0.0) is None
    assert admission.admit(PHONES, 89.0) is AdmissionRefusal.ADDRESS_TOO_FAST
    assert admission.admit(PHONES, 100.0) is None


def test_address_whose_handshakes_fail_is_refused_for_a_while() -> None:
    admission = Admission(limits(max_failures=3))
    fail(admission, PHONES, 0.0, 2)
    fail(admission, PHONES, FAILURE_WINDOW_S)
    over = FAILURE_WINDOW_S + REFUSAL_S

    assert admission.admit(PHONES, over - 0.1) is AdmissionRefusal.FAILED_TOO_OFTEN
    assert admission.admit(NEIGHBOUR, FAILURE_WINDOW_S) is None
    fail(admission, PHONES, over, 2)
    assert admission.admit(PHONES, over) is None


def test_failures_of_more_than_a_minute_ago_do_not_count() -> None:
    admission = Admission(limits(max_failures=3))
    fail(admission, PHONES, 0.0, 2)
    fail(admission, PHONES, FAILURE_WINDOW_S + 0.1, 2)

    assert admission.admit(PHONES, FAILURE_WINDOW_S + 0.1) is None


def test_after_a_refusal_failures_are_counted_anew() -> None:
    admission = Admission(limits(max_failures=3))
    fail(admission, PHONES, 0.0, 3)

    fail(admission, PHONES, REFUSAL_S, 2)
    fail(admission, PHONES, REFUSAL_S + FAILURE_WINDOW_S)

    assert admission.admit(PHONES, REFUSAL_S + FAILURE_WINDOW_S) is AdmissionRefusal.FAILED_TOO_OFTEN


@pytest.mark.parametrize(
    ("before", "allowed"),
    [(NO_LIMITS, EMPTY_ALLOWLIST), (limits(max_failures=1), Allowlist(networks=(ip_network("192.0.2.0/24"),)))],
)
def test_failures_that_did_not_count_are_not_held_against_anybody_later(
    before: AdmissionLimits, allowed: Allowlist
) -> None:
    admission = Admission(before, allowed)
    fail(admission, PHONES, 0.0, 10)

    admission.change(limits(max_failures=1), EMPTY_ALLOWLIST)

    assert admission.admit(PHONES, 0.0) is None


def test_success_makes_up_for_failures() -> None:
    admission = Admission(limits(max_failures=FORGIVEN_FAILURES + 3))
    fail(admission, PHONES, 0.0, FORGIVEN_FAILURES + 2)

    admission.handshake_succeeded(PHONES)
    fail(admission, PHONES, 0.0, FORGIVEN_FAILURES)

    assert admission.admit(PHONES, 0.0) is None
    admission.handshake_failed(PHONES, 0.0)
    assert admission.admit(PHONES, 0.0) is AdmissionRefusal.FAILED_TOO_OFTEN


def test_successes_cannot_be_saved_up() -> None:
    admission = Admission(limits(max_failures=3))
    fail(admission, PHONES, 0.0)
    for _ in range(5):
        admission.handshake_succeeded(PHONES)

    fail(admission, PHONES, 0.0, 3)

    assert admission.admit(PHONES, 0.0) is AdmissionRefusal.FAILED_TOO_OFTEN


def test_success_ends_no_refusal() -> None:
    admission = Admission(limits(max_failures=1))
    fail(admission, PHONES, 0.0)

    admission.handshake_succeeded(PHONES)

    assert admission.admit(PHONES, 0.0) is AdmissionRefusal.FAILED_TOO_OFTEN


def test_success_without_a_failure_is_not_remembered() -> None:
    admission = Admission(limits(max_failures=1))

    admission.handshake_succeeded(PHONES)

    fail(admission, PHONES, 0.0)
    assert admission.admit(PHONES, 0.0) is AdmissionRefusal.FAILED_TOO_OFTEN


def test_one_broken_phone_does_not_lock_out_those_behind_the_same_address() -> None:
    """An hour: the broken one tries each second, and each minute ten others connect; nobody is refused."""
    admission = Admission(AdmissionLimits())

    for second in range(3600):
        fail(admission, PHONES, float(second))
        if second % 6 == 0:
            assert admission.admit(PHONES, float(second)) is None
            admission.handshake_succeeded(PHONES)
            admission.release(PHONES)


def test_all_phones_behind_one_address_come_back_soon_the_first_hundred_together() -> None:
    admission = Admission(AdmissionLimits())

    assert {admission.admit(PHONES, 0.0) for _ in range(100)} == {None}
    assert {admission.admit(PHONES, number / 10) for number in range(1, 101)} == {None}
    assert admission.admit(PHONES, 60.0) is AdmissionRefusal.ADDRESS_FULL


def test_all_phones_of_a_subnet_come_back_soon_the_first_two_hundred_together() -> None:
    admission = Admission(AdmissionLimits())

    assert {admission.admit(f"192.0.2.{number % 4}", 0.0) for number in range(200)} == {None}
    assert {admission.admit(f"192.0.2.{number % 4}", number / 20) for number in range(1, 101)} == {None}
    assert admission.admit(PHONES, 60.0) is AdmissionRefusal.SUBNET_FULL


def test_zero_is_no_limit() -> None:
    admission = Admission(NO_LIMITS)

    for _ in range(2000):
        assert admission.admit(PHONES, 0.0) is None
        admission.handshake_failed(PHONES, 0.0)


def test_allowed_addresses_are_never_refused_and_take_no_connections_per_second() -> None:
    strict = AdmissionLimits(1, 2, 1, 1, 1)
    admission = Admission(strict, Allowlist(networks=(ip_network(f"{PHONES}/32"),)))

    for _ in range(100):
        assert admission.admit(PHONES, 0.0) is None
        admission.handshake_failed(PHONES, 0.0)
    assert admission.admit(NEIGHBOUR, 0.0) is AdmissionRefusal.SUBNET_FULL
    assert [admission.admit(f"10.0.{number}.1", 0.0) for number in range(int(BURST_S))] == [None] * int(BURST_S)


def test_connections_are_counted_whether_allowed_or_not() -> None:
    admission = Admission(limits(max_per_address=2), Allowlist(networks=(ip_network(f"{PHONES}/32"),)))
    for _ in range(3):
        admission.admit(PHONES, 0.0)

    admission.change(limits(max_per_address=2), EMPTY_ALLOWLIST)

    assert admission.admit(PHONES, 0.0) is AdmissionRefusal.ADDRESS_FULL
    admission.release(PHONES)
    admission.release(PHONES)
    assert admission.admit(PHONES, 0.0) is None


def test_change_keeps_what_it_does_not_change() -> None:
    admission = Admission(limits(per_second=10, per_second_per_address=1, max_failures=1))
    fail(admission, NEIGHBOUR, 0.0)
    for _ in range(int(ADDRESS_BURST_S)):
        admission.admit(PHONES, 0.0)

    admission.change(limits(per_second=20, per_second_per_address=1, max_failures=1), EMPTY_ALLOWLIST)

    assert admission.admit(PHONES, 0.0) is AdmissionRefusal.ADDRESS_TOO_FAST
    assert admission.admit(NEIGHBOUR, 0.0) is AdmissionRefusal.FAILED_TOO_OFTEN


def test_rate_of_an_address_that_changes_is_that_of_its_subnet_too() -> None:
    admission = Admission(limits(per_second_per_address=1))

    admission.change(limits(per_second_per_address=0.1), EMPTY_ALLOWLIST)

    admitted = [admission.admit(f"192.0.2.{host}", 0.0) is None for host in range(100)]
    assert sum(admitted) == SUBNET_FACTOR * 0.1 * ADDRESS_BURST_S


def test_change_keeps_the_shared_rate() -> None:
    admission = Admission(limits(per_second=1))
    for _ in range(int(BURST_S)):
        admission.admit(PHONES, 0.0)

    admission.change(limits(per_second=1, max_per_address=100), EMPTY_ALLOWLIST)

    assert admission.admit(PHONES, 0.0) is AdmissionRefusal.TOO_FAST


@pytest.mark.parametrize(
    "strict",
    [
        limits(max_per_address=1),
        limits(max_per_subnet=1),
        limits(per_second=0.01),
        limits(per_second_per_address=0.01),
        limits(max_failures=1),
    ],
)
def test_each_limit_can_be_put_in_force_and_lifted(strict: AdmissionLimits) -> None:
    admission = Admission(NO_LIMITS)

    admission.change(strict, EMPTY_ALLOWLIST)
    admission.admit(PHONES, 0.0)
    admission.handshake_failed(PHONES, 0.0)
    assert admission.admit(PHONES, 0.0) is not None

    admission.change(NO_LIMITS, EMPTY_ALLOWLIST)
    assert admission.admit(PHONES, 0.0) is None


def test_release_without_a_connection_is_our_fault() -> None:
    admission = Admission(AdmissionLimits())
    admission.admit(PHONES, 0.0)

    with pytest.raises(LocalProtocolError):
        admission.release(ELSEWHERE)


def test_addresses_that_are_remembered_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission_module, "MAX_ADDRESSES", 3)
    admission = Admission(limits(max_failures=1))

    for host in range(4):
        fail(admission, f"192.0.2.{host}", 0.0)

    refusals = [admission.admit(f"192.0.2.{host}", 0.0) for host in range(4)]
    assert refusals == [None] + [AdmissionRefusal.FAILED_TOO_OFTEN] * 3


def test_addresses_whose_connections_are_remembered_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission_module, "MAX_ADDRESSES", 3)
    admission = Admission(limits(per_second_per_address=0.1))
    for number in range(4):
        assert admission.admit(f"10.0.{number}.1", 0.0) is None

    refusals = [admission.admit(f"10.0.{number}.1", 0.0) for number in reversed(range(4))]

    assert refusals == [AdmissionRefusal.ADDRESS_TOO_FAST] * 3 + [None]


def test_subnets_whose_connections_are_remembered_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission_module, "MAX_ADDRESSES", 3)
    admission = Admission(limits(per_second_per_address=0.1))
    for number in range(4):
        for host in range(SUBNET_FACTOR):
            assert admission.admit(f"10.0.{number}.{host}", 0.0) is None

    refusals = [admission.admit(f"10.0.{number}.99", 0.0) for number in reversed(range(4))]

    assert refusals == [AdmissionRefusal.SUBNET_TOO_FAST] * 3 + [None]


class CountingModel:
    """The rules in the plainest words: what was admitted is written down, and counted again at each question."""

    TICK_S = 1 / 32  # dyadic, so that both count exactly

    def __init__(self, given: AdmissionLimits) -> None:
        self.limits = given
        self.open: list[str] = []
        self.everybody = given.per_second * BURST_S
        self.own: dict[str, float] = {}
        self.subnets: dict[str, float] = {}
        self.failures: dict[str, list[float]] = {}
        self.refused_until: dict[str, float] = {}

    def pass_time(self, seconds: float) -> None:
        burst = self.limits.per_second * BURST_S
        self.everybody = min(burst, self.everybody + self.limits.per_second * seconds)
        own_burst = self.limits.per_second_per_address * ADDRESS_BURST_S
        for address in self.own:
            self.own[address] = min(own_burst, self.own[address] + self.limits.per_second_per_address * seconds)
        for subnet, left in self.subnets.items():
            gained = SUBNET_FACTOR * self.limits.per_second_per_address * seconds
            self.subnets[subnet] = min(SUBNET_FACTOR * own_burst, left + gained)

    def admit(self, address: str, now: float) -> AdmissionRefusal | None:
        refusal = self.refusal(address, now)
        if refusal is None:
            self.open.append(address)
            self.everybody -= 1
            self.own[address] -= 1
            self.subnets[address.rpartition(".")[0]] -= 1
        return refusal

    def refusal(self, address: str, now: float) -> AdmissionRefusal | None:
        subnet = address.rpartition(".")[0]
        own = self.own.setdefault(address, self.limits.per_second_per_address * ADDRESS_BURST_S)
        of_subnet = self.subnets.setdefault(
            subnet, SUBNET_FACTOR * self.limits.per_second_per_address * ADDRESS_BURST_S
        )
        if now < self.refused_until.get(address, 0.0):
            return AdmissionRefusal.FAILED_TOO_OFTEN
        if self.open.count(address) >= self.limits.max_per_address:
            return AdmissionRefusal.ADDRESS_FULL
        if sum(other.rpartition(".")[0] == subnet for other in self.open) >= self.limits.max_per_subnet:
            return AdmissionRefusal.SUBNET_FULL
        if own < 1:
            return AdmissionRefusal.ADDRESS_TOO_FAST
        if of_subnet < 1:
            return AdmissionRefusal.SUBNET_TOO_FAST
        return AdmissionRefusal.TOO_FAST if self.everybody < 1 else None

    def handshake_failed(self, address: str, now: float) -> None:
        failures = self.failures.setdefault(address, [])
        if failures and now - failures[0] > FAILURE_WINDOW_S:
            failures.clear()
        failures.append(now)
        if len(failures) >= self.limits.max_failures:
            self.refused_until[address] = now + REFUSAL_S
            failures.clear()


ADDRESSES = st.sampled_from([f"10.0.{subnet}.{host}" for subnet in range(2) for host in range(3)])
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["admit", "admit", "admit", "end", "fail"]),
        ADDRESSES,
        st.one_of(st.integers(0, 40), st.integers(0, 2400)),
    ),
    max_size=80,
)


@given(STEPS)
def test_any_sequence_of_connections_is_judged_as_by_one_who_counts(steps: list[tuple[str, str, int]]) -> None:
    given_limits = AdmissionLimits(3, 5, 1.0, 0.5, 4)
    admission, model, now = Admission(given_limits), CountingModel(given_limits), 0.0

    for what, address, ticks in steps:
        seconds = ticks * model.TICK_S
        now += seconds
        model.pass_time(seconds)
        if what == "admit":
            assert admission.admit(address, now) is model.admit(address, now)
        elif address in model.open:
            if what == "fail":
                admission.handshake_failed(address, now)
                model.handshake_failed(address, now)
            admission.release(address)
            model.open.remove(address)


def test_refusals_are_counted_by_reason() -> None:
    admission = Admission(limits(max_per_address=2))

    for _ in range(5):
        admission.admit(PHONES, 0.0)

    assert admission.refused == dict.fromkeys(AdmissionRefusal, 0) | {AdmissionRefusal.ADDRESS_FULL: 3}


# Known addresses


def use_up(admission: Admission, now: float) -> None:
    """Strangers from many addresses come, each once, until none is admitted any more."""
    for number in range(1 << 24):
        if admission.admit(f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}", now) is not None:
            return


def test_known_address_is_admitted_though_strangers_have_used_up_all() -> None:
    admission = Admission(limits(per_second=100))
    admission.connection_ended(PHONES, KNOWN_AFTER_S)

    use_up(admission, 0)

    assert admission.admit(ELSEWHERE, 0) is AdmissionRefusal.TOO_FAST
    assert admission.admit(PHONES, 0) is None


def test_address_that_only_comes_and_goes_is_a_stranger() -> None:
    admission = Admission(limits(per_second=100))
    admission.connection_ended(PHONES, KNOWN_AFTER_S - 0.1)

    use_up(admission, 0)

    assert admission.admit(PHONES, 0) is AdmissionRefusal.TOO_FAST


def test_known_addresses_have_limits_too() -> None:
    admission = Admission(limits(per_second=100, per_second_per_address=1))
    admission.connection_ended(PHONES, KNOWN_AFTER_S)
    admission.connection_ended(ELSEWHERE, KNOWN_AFTER_S)

    admitted = sum(admission.admit(PHONES, 0) is None for _ in range(100))

    assert admitted == ADDRESS_BURST_S
    assert admission.admit(PHONES, 0) is AdmissionRefusal.ADDRESS_TOO_FAST
    assert admission.admit(ELSEWHERE, 0) is None


def test_known_addresses_together_take_no_more_than_strangers_do() -> None:
    admission = Admission(limits(per_second=10))
    addresses = [f"198.51.{number}.1" for number in range(100)]
    for address in addresses:
        admission.connection_ended(address, KNOWN_AFTER_S)

    assert sum(admission.admit(address, 0) is None for address in addresses) == 10 * BURST_S


def test_known_addresses_are_forgotten_the_longest_unused_first() -> None:
    admission = Admission(limits(per_second=1))
    admission.connection_ended(PHONES, KNOWN_AFTER_S)
    admission.connection_ended(ELSEWHERE, KNOWN_AFTER_S)
    for number in range(MAX_ADDRESSES - 1):
        admission.connection_ended(f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}", KNOWN_AFTER_S)

    for number in range(int(BURST_S)):
        assert admission.admit(f"203.0.113.{number}", 0) is None  # strangers

    assert admission.admit(PHONES, 0) is AdmissionRefusal.TOO_FAST
    assert admission.admit(ELSEWHERE, 0) is None


# Places


def test_last_to_come_of_the_subnet_with_most_places_makes_room() -> None:
    present = ["192.0.2.1", "198.51.100.1", "192.0.2.2", "198.51.100.2", "192.0.2.3", "203.0.113.1"]

    assert index_to_evict("203.0.113.7", present) == 4
    assert index_to_evict("10.0.0.1", present) == 4


@pytest.mark.parametrize("newcomer", ["192.0.2.9", "198.51.100.9"])
def test_no_peer_is_evicted_for_a_subnet_that_would_then_have_as_many(newcomer: str) -> None:
    present = ["192.0.2.1", "192.0.2.2", "192.0.2.3", "198.51.100.1", "198.51.100.2"]

    assert index_to_evict(newcomer, present) is None


@pytest.mark.parametrize("present", [[], ["192.0.2.1"], ["192.0.2.1", "198.51.100.1", "203.0.113.1"]])
def test_no_peer_is_evicted_where_each_subnet_has_one(present: list[str]) -> None:
    assert index_to_evict("10.0.0.1", present) is None


def test_subnets_of_ipv6_are_those_of_sites() -> None:
    present = ["2001:db8:0:1::1", "2001:db8:0:2::1", "192.0.2.1"]

    assert index_to_evict("198.51.100.1", present) == 1
    assert index_to_evict("2001:db8:0:3::1", present) is None


@given(st.lists(st.integers(0, 30), min_size=10, max_size=10), st.permutations(range(20)))
def test_subnets_that_keep_trying_get_their_share_and_then_no_peer_is_evicted(
    first: list[int], others: list[int]
) -> None:
    present = [f"10.0.{subnet}.1" for subnet in first]

    changes = 1
    rounds = 0
    while changes:
        changes, rounds = 0, rounds + 1
        for address in (f"10.0.{subnet}.1" for subnet in others):
            index = index_to_evict(address, present)
            if index is not None:
                del present[index]
                present.append(address)
                changes += 1

    assert rounds <= len(present) + 1
    places = {subnet: present.count(f"10.0.{subnet}.1") for subnet in {*first, *others}}
    assert max(places.values()) - min(places[subnet] for subnet in others) <= 1
