"""mailserver.gateway.rates."""

from ipaddress import ip_network

from mailserver.gateway.rates import BURST_S, STORE_WORK_PER_SECOND, Rates
from mailserver.limits.admission import EMPTY_ALLOWLIST, Allowlist
from mailserver.metrics.gateway import ClientProtocol

NOW = 1000.0
PHONE = "192.0.2.1"


def asks(rates: Rates, host: str, times: int, now: float = NOW, asked: ClientProtocol = ClientProtocol.STORE) -> int:
    """How many of so many requests are allowed."""
    return sum(rates.take(asked, host, now) for _ in range(times))


def test_address_may_ask_so_often_and_some_at_once() -> None:
    rates = Rates({ClientProtocol.STORE: 2.0}, EMPTY_ALLOWLIST)

    at_once = asks(rates, PHONE, 100)
    a_second_later = asks(rates, PHONE, 100, NOW + 1.0)

    assert at_once == 2 * BURST_S
    assert a_second_later == 2


def test_what_was_refused_is_not_counted() -> None:
    rates = Rates({ClientProtocol.STORE: 1.0}, EMPTY_ALLOWLIST)
    asks(rates, PHONE, 1000)

    assert asks(rates, PHONE, 5, NOW + 1.0) == 1


def test_even_the_lowest_rate_allows_one_request() -> None:
    rates = Rates({ClientProtocol.STORE: 0.01}, EMPTY_ALLOWLIST)

    assert asks(rates, PHONE, 3) == 1


def test_addresses_and_protocols_are_counted_apart() -> None:
    rates = Rates({ClientProtocol.STORE: 1.0, ClientProtocol.FILTER: 1.0}, EMPTY_ALLOWLIST)
    asks(rates, PHONE, 100)

    assert asks(rates, "192.0.2.2", 1) == 1
    assert asks(rates, PHONE, 1, asked=ClientProtocol.FILTER) == 1
    assert asks(rates, PHONE, 1) == 0


def test_addresses_of_one_line_with_ipv6_are_counted_together() -> None:
    rates = Rates({ClientProtocol.STORE: 0.1}, EMPTY_ALLOWLIST)

    assert asks(rates, "2001:db8::1", 1) == 1
    assert asks(rates, "2001:db8::2", 1) == 0
    assert asks(rates, "2001:db8:0:1::1", 1) == 1


def test_protocol_without_a_rate_has_no_limit() -> None:
    rates = Rates({ClientProtocol.STORE: 0.0}, EMPTY_ALLOWLIST)

    assert asks(rates, PHONE, 1000) == 1000
    assert asks(rates, PHONE, 1000, asked=ClientProtocol.LIGHTPUSH) == 1000


def test_allowed_addresses_have_no_limit() -> None:
    rates = Rates({ClientProtocol.STORE: 1.0}, Allowlist((ip_network("192.0.2.0/24"),)))

    assert asks(rates, PHONE, 1000) == 1000
    assert asks(rates, "198.51.100.1", 1000) == BURST_S


def test_address_owes_the_work_of_the_store_that_it_has_caused() -> None:
    rates = Rates({ClientProtocol.STORE: 1.0}, EMPTY_ALLOWLIST)
    burst = int(STORE_WORK_PER_SECOND * BURST_S)

    rates.charge(burst, PHONE, NOW)
    assert not rates.owes_work(PHONE, NOW)
    rates.charge(int(STORE_WORK_PER_SECOND), PHONE, NOW)
    assert rates.owes_work(PHONE, NOW + 0.9)
    assert not rates.owes_work("192.0.2.2", NOW)
    assert not rates.owes_work(PHONE, NOW + 1.0)


def test_work_is_not_limited_where_queries_are_not() -> None:
    for rates in (
        Rates({}, EMPTY_ALLOWLIST),
        Rates({ClientProtocol.STORE: 1.0}, Allowlist((ip_network("192.0.2.0/24"),))),
    ):
        rates.charge(10**12, PHONE, NOW)

        assert not rates.owes_work(PHONE, NOW)
