"""mailserver.app.policy: which setting becomes which limit, and whom each leaves out."""

from dataclasses import replace
from ipaddress import ip_network
from typing import Any

import pytest

from mailserver.app import policy
from mailserver.app.config import Config
from mailserver.codec.keys import Enode
from mailserver.limits.admission import AdmissionLimits, Allowlist
from mailserver.limits.packet_rates import RateLimitSettings
from mailserver.limits.request_quotas import ADDRESS_REQUEST_LIMITS, PEER_REQUEST_LIMITS, RequestLimits
from mailserver.waku.packets import RateLimits
from tests.pairs import private_key

HERE = ("127.0.0.1", "127.8.9.10", "::1", "::ffff:127.0.0.1")
ELSEWHERE = ("192.0.2.7", "2001:db8::1", "10.0.0.1", "::ffff:192.0.2.7", "128.0.0.1", "::2", "0.0.0.0", "")

# Of each kind of limits, its settings with a value other than the default, and with the default.
KINDS: dict[str, dict[str, Any]] = {
    "admission": {
        "max_peers_per_address": 8,
        "max_peers_per_subnet": 9,
        "connections_per_second": 2.5,
        "connections_per_second_per_address": 0.5,
        "max_handshake_failures": 3,
    },
    "rates": {"packet_rate_limits": (1, 2, 3), "byte_rate_limits": (4, 5, 6)},
    "requests": {"peer_request_limits": (7, 8, 9), "address_request_limits": (10, 11, 12)},
}


def allowed_by(kind: str, config: Config) -> Allowlist:
    return {
        "admission": policy.admission(config)[1],
        "rates": policy.rate_limits(config).allowed,
        "requests": policy.request_limits(config).allowed,
    }[kind]


def test_each_setting_becomes_its_limit() -> None:
    config = Config(**KINDS["admission"], **KINDS["rates"], **KINDS["requests"], rate_limit_tolerance_s=7.5)

    limits, _ = policy.admission(config)
    rates = policy.rate_limits(config)
    requests = policy.request_limits(config)

    assert limits == AdmissionLimits(
        max_per_address=8, max_per_subnet=9, per_second=2.5, per_second_per_address=0.5, max_failures=3
    )
    assert (rates.packets, rates.bytes) == (RateLimits(ip=1, peer=2, topic=3), RateLimits(ip=4, peer=5, topic=6))
    assert rates.tolerance_s == 7.5
    assert requests.peer == RequestLimits(requests_per_minute=7, envelopes_per_minute=8, concurrent=9)
    assert requests.address == RequestLimits(requests_per_minute=10, envelopes_per_minute=11, concurrent=12)


def test_defaults_of_the_settings_are_those_of_the_limits() -> None:
    limits, _ = policy.admission(Config())
    rates = policy.rate_limits(Config())
    requests = policy.request_limits(Config())

    assert limits == AdmissionLimits()
    assert (rates.packets, rates.bytes, rates.tolerance_s) == (
        RateLimitSettings().packets,
        RateLimitSettings().bytes,
        RateLimitSettings().tolerance_s,
    )
    assert (requests.peer, requests.address) == (PEER_REQUEST_LIMITS, ADDRESS_REQUEST_LIMITS)


@pytest.mark.parametrize("kind", KINDS)
def test_defaults_leave_out_this_machine_and_nobody_else(kind: str) -> None:
    allowed = allowed_by(kind, Config())

    assert [address for address in (*HERE, *ELSEWHERE) if allowed.has_address(address)] == list(HERE)
    assert allowed.node_ids == frozenset()


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind, names in KINDS.items() for name in names])
def test_limits_of_which_one_was_set_hold_for_this_machine_too_and_other_kinds_do_not(kind: str, name: str) -> None:
    config = Config(**{name: KINDS[kind][name]})

    left_out = {other for other in KINDS if any(map(allowed_by(other, config).has_address, HERE))}

    assert left_out == KINDS.keys() - {kind}


@pytest.mark.parametrize("kind", KINDS)
def test_limits_that_are_set_to_what_they_are_by_default_are_defaults(kind: str) -> None:
    config = Config(**{name: getattr(Config(), name) for name in KINDS[kind]})

    assert allowed_by(kind, config).has_address("127.0.0.1")


def test_tolerance_alone_makes_no_limit_hold_for_this_machine() -> None:
    assert policy.rate_limits(Config(rate_limit_tolerance_s=0.0)).allowed.has_address("127.0.0.1")


@pytest.mark.parametrize("kind", KINDS)
def test_who_is_allowed_by_name_is_left_out_of_every_limit(kind: str) -> None:
    named, known = private_key("named").public_key, private_key("known").public_key
    config = Config(
        **KINDS[kind],
        allowed_addresses=("192.0.2.0/24", "2001:db8::/32"),
        allowed_peers=(str(Enode(named, "198.51.100.1", 1)), known.hex()),
    )

    allowed = allowed_by(kind, config)

    assert allowed.networks == (ip_network("192.0.2.0/24"), ip_network("2001:db8::/32"))
    assert allowed.has_address("192.0.2.7")
    assert allowed.has_address("2001:db8::1")
    assert not allowed.has_address("198.51.100.1")  # where a peer is said to be does not count
    assert not allowed.has_address("127.0.0.1")
    assert allowed.node_ids == {named, known}


@pytest.mark.parametrize("kind", KINDS)
def test_network_of_mapped_addresses_matches_peers_however_their_address_is_written(kind: str) -> None:
    allowed = allowed_by(kind, Config(allowed_addresses=("::ffff:192.0.2.0/120",)))

    assert allowed.has_address("192.0.2.7")
    assert allowed.has_address("::ffff:192.0.2.7")
    assert not allowed.has_address("192.0.3.7")


@pytest.mark.parametrize("kind", ["rates", "requests"])
@pytest.mark.parametrize("name", ["static_peers", "trusted_peers"])
def test_peers_that_the_operator_relies_on_are_left_out_wherever_they_are(name: str, kind: str) -> None:
    peer = private_key("named").public_key

    relied_on: dict[str, Any] = {name: (str(Enode(peer, "198.51.100.1", 1)),)}

    allowed = allowed_by(kind, Config(**relied_on))

    assert allowed.node_ids == {peer}
    assert not allowed.has_address("198.51.100.1")


@pytest.mark.parametrize("name", ["static_peers", "trusted_peers"])
@pytest.mark.parametrize("host", ["198.51.100.1", "2001:db8::1"])
def test_peers_that_the_operator_relies_on_are_admitted_from_the_address_of_their_enode(name: str, host: str) -> None:
    relied_on: dict[str, Any] = {name: (str(Enode(private_key("named").public_key, host, 1)),)}

    _, allowed = policy.admission(Config(**KINDS["admission"], **relied_on))

    assert allowed.has_address(host)
    assert not allowed.has_address("198.51.100.2")
    assert not allowed.has_address("2001:db8::2")


def test_host_name_of_a_peer_admits_no_address() -> None:
    _, allowed = policy.admission(
        Config(**KINDS["admission"], static_peers=(str(Enode(private_key("named").public_key, "node.example", 1)),))
    )

    assert allowed.networks == ()


@pytest.mark.parametrize("kind", KINDS)
def test_this_machine_stays_left_out_beside_those_who_are_allowed_by_name(kind: str) -> None:
    allowed = allowed_by(kind, Config(allowed_addresses=("192.0.2.7",)))

    assert allowed.has_address("127.0.0.1")
    assert allowed.has_address("192.0.2.7")
    assert not allowed.has_address("192.0.2.8")


def test_own_enode_is_left_out_of_the_peers_of_a_fleet() -> None:
    own, other = (Enode(private_key(name).public_key, "192.0.2.1", 30303) for name in ("own", "other"))
    config = Config(static_peers=(str(own), str(other)), trusted_peers=(str(other), str(own)), max_peers=7)

    without = policy.without_ourselves(config, own.node_id)

    assert without == Config(static_peers=(str(other),), trusted_peers=(str(other),), max_peers=7)
    assert policy.without_ourselves(without, own.node_id) == without


def test_totals_are_divided_among_workers_and_limits_of_an_address_are_not() -> None:
    config = Config(workers=4, max_peers=10, packet_rate_limits=(100, 50, 30), byte_rate_limits=(1000, 500, 0))

    limits, _ = policy.admission(config)
    rates = policy.rate_limits(config)

    assert policy.max_peers(config) == 3
    assert limits == replace(AdmissionLimits(), per_second=25.0)
    assert (rates.packets, rates.bytes) == (RateLimits(100, 50, 8), RateLimits(1000, 500, 0))


def test_divided_defaults_leave_out_this_machine() -> None:
    assert all(allowed_by(kind, Config(workers=4)).has_address("127.0.0.1") for kind in KINDS)


def test_first_worker_has_what_there_is_one_of_and_each_has_its_own_metrics() -> None:
    config = Config(workers=3, rpc="127.0.0.1:8545", feed_socket=True, metrics="[::1]:9305")

    assert policy.of_worker(config, 0) == config
    assert policy.of_worker(config, 2) == replace(config, rpc="", feed_socket=False, metrics="[::1]:9307")
    assert policy.of_worker(replace(config, metrics="127.0.0.1:0"), 2).metrics == "127.0.0.1:0"
