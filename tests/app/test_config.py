"""mailserver.app.config: the defaults, and what the texts of settings mean."""

from dataclasses import FrozenInstanceError, fields
from ipaddress import ip_network
from pathlib import Path

import pytest

from mailserver.app.config import Config, parse_address
from mailserver.app.config_sources import MAILSERVER
from mailserver.codec.keys import Enode
from mailserver.errors import ConfigError
from mailserver.waku.bloom import FULL_INTEREST, Interest
from mailserver.waku.envelope import Topic
from mailserver.waku.topics import topic_of
from tests.app.settings import ENODES, NOTHING, SETTINGS
from tests.pairs import private_key

# Defaults


def test_defaults_are_what_deployed_clients_expect() -> None:
    config = MAILSERVER.load({}, NOTHING, None)

    assert config == Config()
    assert config.data_dir == Path("data")
    assert config.listen_address == ("0.0.0.0", 30303)
    assert config.password == "status-offline-inbox"
    assert config.min_pow == 0.000002
    assert config.max_request_limit == 1000
    assert config.completion_format == "bytes"
    assert config.allow_clear_requests


def test_default_is_to_keep_thirty_days_and_what_an_archive_has_not_taken() -> None:
    config = MAILSERVER.load({}, NOTHING, None)

    assert config.retention_days == 30
    assert config.retention_envelopes == config.retention_bytes == 0
    assert config.archive == ""
    assert config.archive_before_prune
    assert config.answer_from_archive


def test_default_is_to_take_all_topics_from_all_and_dial_nobody() -> None:
    config = MAILSERVER.load({}, NOTHING, None)

    assert config.interest == FULL_INTEREST
    assert not config.light_node
    assert config.static_enodes == config.trusted_enodes == ()
    assert config.allowed_networks == ()
    assert config.allowed_node_ids == frozenset()
    assert config.rpc == config.metrics == ""


def test_settings_that_can_change_while_the_daemon_runs_are_these() -> None:
    assert {setting.name for setting in fields(Config) if setting.metadata["reloadable"]} == {
        "min_pow",
        "archive_topics",
        "static_peers",
        "trusted_peers",
        "max_peers",
        "max_peers_per_address",
        "max_peers_per_subnet",
        "connections_per_second",
        "connections_per_second_per_address",
        "max_handshake_failures",
        "packet_rate_limits",
        "byte_rate_limits",
        "rate_limit_tolerance_s",
        "peer_request_limits",
        "address_request_limits",
        "allowed_addresses",
        "allowed_peers",
        "retention_days",
        "retention_envelopes",
        "retention_bytes",
        "archive_max_age_hours",
        "archive_before_prune",
        "log_level",
        "log_format",
    }


def test_setting_is_default_or_not() -> None:
    config = Config(min_pow=0.5, archive_topics=("news",))

    assert config.is_default("max_peers", "packet_rate_limits", "static_peers")
    assert not config.is_default("min_pow")
    assert not config.is_default("max_peers", "archive_topics")
    assert Config(max_peers=500, packet_rate_limits=Config().packet_rate_limits).is_default(
        "max_peers", "packet_rate_limits"
    )


def test_every_setting_says_what_it_is() -> None:
    assert all(setting.metadata["help"] for setting in fields(Config))


def test_config_cannot_be_changed() -> None:
    with pytest.raises(FrozenInstanceError):
        Config().max_peers = 1  # type: ignore[misc]


# Sources


def test_table_of_this_test_names_every_setting() -> None:
    assert SETTINGS.keys() == {setting.name for setting in fields(Config)}


# What lists mean


def test_lists_are_read_as_what_they_name() -> None:
    config = MAILSERVER.load(
        {name: SETTINGS[name][2] for name in ("archive_topics", "static_peers", "trusted_peers", "allowed_peers")}
        | {"allowed_addresses": ("192.0.2.0/24", "2001:db8::/32", "192.0.2.7", "2001:db8::1")},
        NOTHING,
        None,
    )

    assert config.interest == Interest(topics=frozenset({topic_of("news"), Topic(bytes([1, 2, 3, 4]))}))
    assert config.static_enodes == tuple(map(Enode.parse, ENODES[:2]))
    assert config.trusted_enodes == (Enode.parse(ENODES[2]),)
    assert config.allowed_networks == tuple(
        map(ip_network, ("192.0.2.0/24", "2001:db8::/32", "192.0.2.7/32", "2001:db8::1/128"))
    )
    assert config.allowed_node_ids == {private_key("one").public_key, private_key("four").public_key}


@pytest.mark.parametrize(
    ("text", "network"),
    [
        ("::ffff:192.0.2.0/120", "192.0.2.0/24"),
        ("::ffff:192.0.2.7", "192.0.2.7/32"),
        ("::ffff:c000:207/128", "192.0.2.7/32"),
        ("::ffff:0:0/96", "0.0.0.0/0"),
        ("::fffe:0:0/95", "::fffe:0:0/95"),
        ("::/0", "::/0"),
        ("::fffe:192.0.2.7", "::fffe:c000:207/128"),
    ],
)
def test_network_of_ipv4_mapped_into_ipv6_is_the_one_that_it_means(text: str, network: str) -> None:
    config = MAILSERVER.load({"allowed_addresses": (text,)}, NOTHING, None)

    assert config.allowed_networks == (ip_network(network),)


# Addresses


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("0.0.0.0:30303", ("0.0.0.0", 30303)),
        ("127.0.0.1:0", ("127.0.0.1", 0)),
        ("mail.example.org:65535", ("mail.example.org", 65535)),
        ("[::1]:30303", ("::1", 30303)),
        (":30303", ("", 30303)),
    ],
)
def test_address_is_host_and_port(text: str, address: tuple[str, int]) -> None:
    assert parse_address("rpc", text) == address
    assert Config(listen=text).listen_address == address


@pytest.mark.parametrize(
    "text",
    [
        "",
        ":",
        "30303",
        "localhost",
        "localhost:",
        "localhost:http",
        "localhost:-1",
        "localhost:65536",
        "localhost:1.5",
        "localhost:\u0663",
        "localhost:" + "9" * 5000,
        "local\0host:1",
    ],
)
def test_address_of_another_form_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"^rpc: .* is not HOST:PORT"):
        parse_address("rpc", text)


@pytest.mark.parametrize("text", ["::1:30303", "[::1:30303", "::1]:30303"])
def test_ipv6_address_without_its_brackets_is_refused_with_advice(text: str) -> None:
    with pytest.raises(ConfigError, match=r"^rpc: .*write IPv6 as \[HOST\]:PORT"):
        parse_address("rpc", text)


@pytest.mark.parametrize(
    ("listen", "advertise", "host"),
    [
        ("0.0.0.0:1", "", "127.0.0.1"),
        ("[::]:1", "", "::1"),
        (":1", "", "127.0.0.1"),
        ("192.0.2.1:1", "", "192.0.2.1"),
        ("mail.example.org:1", "", "mail.example.org"),
        ("0.0.0.0:1", "mail.example.org", "mail.example.org"),
        ("192.0.2.1:1", "mail.example.org", "mail.example.org"),
    ],
)
def test_enode_names_a_host_that_can_be_dialled(listen: str, advertise: str, host: str) -> None:
    assert Config(listen=listen, advertise=advertise).advertised_host == host
