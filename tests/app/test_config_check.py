"""mailserver.app.config_check: which values of the settings are refused, by name, and which are just allowed."""

import math
from pathlib import Path

import pytest

from mailserver.app.config_check import (
    MAX_ARCHIVE_READS,
    MAX_DAYS,
    MAX_LIMIT,
    MAX_RATE,
    MAX_REQUEST_POW,
    MAX_WORKERS,
    MIN_RETENTION_BYTES,
)
from mailserver.app.config_sources import MAILSERVER
from mailserver.catchup.ledger import MAX_SOURCES
from mailserver.codec.keys import Enode
from mailserver.waku.packets import MAX_TOPIC_INTEREST
from tests.app.settings import ENODES, NODE_ID, NOTHING, SETTINGS, refusal
from tests.pairs import private_key


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("listen", "nowhere"),
        ("min_pow", -0.1),
        ("min_pow", float("nan")),
        ("min_pow", float("inf")),
        ("min_request_pow", -1.5),
        ("min_request_pow", float("nan")),
        ("request_pow", -0.5),
        ("request_pow", MAX_REQUEST_POW + 0.5),
        ("request_pow", float("nan")),
        ("network_topic", ""),
        ("network_topic", "n" * 256),
        ("max_peers", 0),
        ("max_peers", -1),
        ("workers", 0),
        ("workers", MAX_WORKERS + 1),
        ("max_request_limit", 0),
        ("max_request_limit", MAX_LIMIT + 1),
        ("archive_reads", -1),
        ("archive_reads", MAX_ARCHIVE_READS + 1),
        ("archive_cache_bytes", -1),
        ("retention_days", -0.5),
        ("retention_days", float("nan")),
        ("retention_days", float("inf")),
        ("retention_days", MAX_DAYS + 1),
        ("retention_envelopes", -1),
        ("retention_bytes", -1),
        ("retention_bytes", 500),
        ("retention_bytes", MIN_RETENTION_BYTES - 1),
        ("completion_format", "BYTES"),
        ("rpc_dialect", "geth"),
        ("rpc", "8545"),
        ("metrics", "localhost"),
        ("metrics", "::1:9090"),
        ("sync_days", -1.5),
        ("sync_days", float("inf")),
        ("sync_days", MAX_DAYS + 1),
        ("max_peers_per_address", -1),
        ("max_peers_per_subnet", -1),
        ("connections_per_second", -0.5),
        ("connections_per_second", float("nan")),
        ("connections_per_second_per_address", -0.5),
        ("connections_per_second_per_address", float("inf")),
        ("max_handshake_failures", -1),
        ("rate_limit_tolerance_s", -0.1),
        ("rate_limit_tolerance_s", float("nan")),
        ("log_level", "loud"),
        ("log_format", "yaml"),
    ],
)
def test_value_out_of_range_is_refused_with_its_key(name: str, value: object) -> None:
    said = refusal({name: value})

    assert said.startswith(f"{name}: ")
    assert str(value) in said


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("min_pow", 0.0),
        ("min_request_pow", 0.0),
        ("request_pow", MAX_REQUEST_POW),
        ("max_peers", 1),
        ("max_request_limit", 1),
        ("max_request_limit", MAX_LIMIT),
        ("archive_reads", 0),
        ("archive_reads", MAX_ARCHIVE_READS),
        ("archive_cache_bytes", 0),
        ("retention_days", 0.0),
        ("retention_days", 0.001),
        ("retention_days", MAX_DAYS),
        ("retention_envelopes", 0),
        ("retention_bytes", 0),
        ("retention_bytes", MIN_RETENTION_BYTES),
        ("completion_format", "list"),
        ("rpc_dialect", "deployed"),
        ("rpc", ""),
        ("rpc", "[::1]:0"),
        ("metrics", ""),
        ("metrics", ":9090"),
        ("sync_days", 0.0),
        ("sync_days", MAX_DAYS),
        ("max_peers_per_address", 0),
        ("max_peers_per_subnet", 0),
        ("connections_per_second", 0.0),
        ("connections_per_second_per_address", 0.0),
        ("connections_per_second_per_address", 0.001),
        ("max_handshake_failures", 0),
        ("rate_limit_tolerance_s", 0.0),
        ("rate_limit_tolerance_s", math.inf),
        ("log_level", "error"),
    ],
)
def test_value_at_the_bound_is_taken(name: str, value: object) -> None:
    assert getattr(MAILSERVER.load({name: value}, NOTHING, None), name) == value


LIMITS = ["packet_rate_limits", "byte_rate_limits", "peer_request_limits", "address_request_limits"]


@pytest.mark.parametrize("name", LIMITS)
@pytest.mark.parametrize(
    "limits", [(), (1,), (1, 2), (1, 2, 3, 4), (-1, 0, 0), (0, -1, 0), (0, 0, -1), (0, 0, MAX_RATE + 1)]
)
def test_limits_are_three_numbers_that_peers_can_read(name: str, limits: tuple[int, ...]) -> None:
    assert refusal({name: limits}) == (
        f"{name}: {', '.join(map(str, limits)) or 'nothing'} is not three numbers between 0 and {MAX_RATE}"
    )


@pytest.mark.parametrize("name", LIMITS)
@pytest.mark.parametrize("limits", [(0, 0, 0), (MAX_RATE, MAX_RATE, MAX_RATE), (0, 1, MAX_RATE)])
def test_limits_at_the_bound_are_taken(name: str, limits: tuple[int, ...]) -> None:
    assert getattr(MAILSERVER.load({name: limits}, NOTHING, None), name) == limits


def test_rates_fit_the_four_bytes_that_peers_read() -> None:
    assert MAX_RATE == 2**32 - 1


BAD_ENODES = ["", "enode", f"enode://{'00' * 64}@192.0.2.1:1", ENODES[0].replace(":30303", ":0"), NODE_ID]


@pytest.mark.parametrize(
    ("name", "bad"),
    [
        *(("static_peers", bad) for bad in BAD_ENODES),
        *(("trusted_peers", bad) for bad in BAD_ENODES),
        *(("allowed_peers", bad) for bad in [*BAD_ENODES[:4], NODE_ID[:-2], "0x" + NODE_ID, "xy" * 64, "00" * 64]),
        *(
            ("allowed_addresses", bad)
            for bad in ["", "localhost", "192.0.2.0/33", "192.0.2.7/24", "192.0.2", "2001:db8::1/32"]
        ),
        ("archive_topics", "0x0102"),
        ("archive_topics", "0xnews"),
    ],
)
def test_bad_entry_of_a_list_is_named(name: str, bad: str) -> None:
    good = SETTINGS[name][2]
    assert isinstance(good, tuple)

    assert refusal({name: (*good, bad)}).startswith(f"{name}: {bad!r}: ")


def test_topics_are_as_many_as_a_status_holds() -> None:
    most = tuple(f"0x{number:08x}" for number in range(MAX_TOPIC_INTEREST))

    topics = MAILSERVER.load({"archive_topics": most}, NOTHING, None).interest.topics

    assert topics is not None
    assert len(topics) == MAX_TOPIC_INTEREST
    assert (
        refusal({"archive_topics": (*most, "news")}) == "archive_topics: 10001 topics are more than the 10000 allowed"
    )


def test_trusted_peers_are_as_many_as_history_is_fetched_from() -> None:
    enodes = tuple(
        str(Enode(private_key(f"mailserver {number}").public_key, "192.0.2.1", 1)) for number in range(MAX_SOURCES + 1)
    )

    assert len(MAILSERVER.load({"trusted_peers": enodes[:-1]}, NOTHING, None).trusted_enodes) == MAX_SOURCES
    assert refusal({"trusted_peers": enodes}) == "trusted_peers: 17 mailservers are more than the 16 allowed"


def test_path_that_cannot_be_is_refused() -> None:
    assert refusal({"data_dir": Path("a\0b")}) == "data_dir: 'a\\x00b' is not a path"
    assert refusal({"rpc_token_file": "a\0b"}) == "rpc_token_file: 'a\\x00b' is not a path"


@pytest.mark.parametrize("host", ["two words", "a/b", "[::1]", "h\u00f6st", "a\0b", "fe80::1%eth0"])
def test_host_that_no_enode_can_name_is_refused(host: str) -> None:
    assert refusal({"advertise": host}).startswith(f"advertise: {host!r} is neither ")


def test_listen_host_that_no_enode_can_name_needs_another_to_advertise() -> None:
    assert refusal({"listen": "[fe80::1%eth0]:0"}).startswith("listen: 'fe80::1%eth0' is neither ")

    config = MAILSERVER.load({"listen": "[fe80::1%eth0]:0", "advertise": "mail.example.org"}, NOTHING, None)
    assert config.advertised_host == "mail.example.org"


@pytest.mark.parametrize("url", ["mailserver.db", "sqlite:///mail", "http://db/mail", "postgresql://db/a\0b"])
def test_store_is_a_url_of_postgresql_which_the_refusal_does_not_show(url: str) -> None:
    assert refusal({"store": url}) == "store: it is not a URL that begins with postgresql://"


def test_store_with_a_password_that_is_not_encoded_is_refused() -> None:
    said = refusal({"store": "postgresql://mail:pass@word@db/mail"})

    assert said.startswith("store: the URL of the database cannot be read")
    assert "word" not in said.replace("password", "")


def test_each_worker_needs_a_port_for_its_metrics() -> None:
    assert "go beyond 65535" in refusal({"workers": 3, "metrics": "127.0.0.1:65534"})
    assert MAILSERVER.load({"workers": 2, "metrics": "127.0.0.1:65534"}, NOTHING, None).workers == 2


def test_workers_are_refused_where_the_kernel_cannot_share_a_port(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.platform", "darwin")

    assert "on Linux only" in refusal({"workers": 2})
    assert MAILSERVER.load({"workers": 1}, NOTHING, None).workers == 1
