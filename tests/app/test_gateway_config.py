"""mailserver.app.gateway_config: each setting from each source, what is refused by name, and what settings mean."""

from dataclasses import fields
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import pytest

from mailserver.app.config_check import MAX_ARCHIVE_READS
from mailserver.app.gateway_config import GATEWAY, MAX_CLIENTS, MAX_TTL_S, GatewayConfig
from mailserver.errors import ConfigError
from mailserver.gateway.limits import HostLimits
from mailserver.libp2p.multiaddr import Multiaddr
from mailserver.limits.admission import AdmissionLimits

NOTHING: dict[str, str] = {}

# Of each setting: the text in the environment, the TOML, and the value that both mean; none is the default.
SETTINGS: dict[str, tuple[str, str, object]] = {
    "data_dir": ("/srv/waku", '"/srv/waku"', Path("/srv/waku")),
    "store": ("postgresql://mail@db/mail", '"postgresql://mail@db/mail"', "postgresql://mail@db/mail"),
    "network_topic": ("/waku/2/rs/16/32", '"/waku/2/rs/16/32"', "/waku/2/rs/16/32"),
    "archive": ("s3://bucket/archive", '"s3://bucket/archive"', "s3://bucket/archive"),
    "archive_reads": ("3", "3", 3),
    "archive_cache_bytes": ("0", "0", 0),
    "listen": ("127.0.0.1:0", '"127.0.0.1:0"', "127.0.0.1:0"),
    "websocket": ("[::1]:8001", '"[::1]:8001"', "[::1]:8001"),
    "advertise": (
        "/dns4/example.org/tcp/443/wss,/ip4/192.0.2.1/tcp/60000",
        '["/dns4/example.org/tcp/443/wss", "/ip4/192.0.2.1/tcp/60000"]',
        ("/dns4/example.org/tcp/443/wss", "/ip4/192.0.2.1/tcp/60000"),
    ),
    "max_clients": ("7", "7", 7),
    "max_clients_per_address": ("8", "8", 8),
    "max_clients_per_subnet": ("9", "9", 9),
    "connections_per_second": ("2.5", "2.5", 2.5),
    "connections_per_second_per_address": ("0.5", "0.5", 0.5),
    "max_handshake_failures": ("3", "3", 3),
    "trusted_proxies": ("127.0.0.1,192.0.2.0/24", '["127.0.0.1", "192.0.2.0/24"]', ("127.0.0.1", "192.0.2.0/24")),
    "allowed_addresses": ("192.0.2.7", '["192.0.2.7"]', ("192.0.2.7",)),
    "max_subscribers": ("50", "50", 50),
    "max_criteria": ("60", "60", 60),
    "filter_requests_per_second": ("1.5", "1.5", 1.5),
    "store_queries_per_second": ("3.5", "3.5", 3.5),
    "sent_messages_per_second": ("0.25", "0.25", 0.25),
    "ttl": ("50", "50", 50),
    "pow_share": ("0.5", "0.5", 0.5),
    "metrics": ("[::1]:9091", '"[::1]:9091"', "[::1]:9091"),
    "log_level": ("debug", '"debug"', "debug"),
    "log_format": ("json", '"json"', "json"),
}


def refusal(**settings: Any) -> str:
    with pytest.raises(ConfigError) as refused:
        GATEWAY.load(settings, NOTHING, None)
    text = str(refused.value)
    assert "\n" not in text
    return text


# Sources


def test_defaults_are_those_of_the_class_and_are_allowed() -> None:
    config = GATEWAY.load({}, NOTHING, None)

    assert config == GatewayConfig()
    assert config.host_limits == HostLimits()
    assert config.shard == (1, 4)
    assert config.announced == ()


def test_table_of_this_test_names_every_setting_and_each_says_what_it_is() -> None:
    assert SETTINGS.keys() == {setting.name for setting in fields(GatewayConfig)}
    assert all(setting.metadata["help"] for setting in fields(GatewayConfig))


@pytest.mark.parametrize("name", SETTINGS)
def test_setting_is_read_from_the_environment(name: str) -> None:
    text, _, value = SETTINGS[name]

    variable = "MAILSERVER_STORE" if name == "store" else f"GATEWAY_{name.upper()}"
    config = GATEWAY.load({}, {variable: text, "MAILSERVER_MAX_PEERS": "none of ours"}, None)

    assert getattr(config, name) == value != getattr(GatewayConfig(), name)
    assert type(getattr(config, name)) is type(getattr(GatewayConfig(), name))


@pytest.mark.parametrize("name", SETTINGS)
def test_setting_is_read_from_the_file(name: str, tmp_path: Path) -> None:
    _, toml, value = SETTINGS[name]
    (tmp_path / "gateway.toml").write_text(f"{name} = {toml}\n")

    config = GATEWAY.load({}, NOTHING, tmp_path / "gateway.toml")

    assert getattr(config, name) == value
    assert type(getattr(config, name)) is type(getattr(GatewayConfig(), name))


def test_unknown_variable_is_refused() -> None:
    with pytest.raises(ConfigError, match="unknown environment variable GATEWAY_MAX_PEERS"):
        GATEWAY.load({}, {"GATEWAY_MAX_PEERS": "1", "GATEWAY_CONFIG": "gateway.toml"}, None)


def test_store_is_the_mailservers_and_has_no_variable_of_its_own() -> None:
    with pytest.raises(ConfigError, match="unknown environment variable GATEWAY_STORE"):
        GATEWAY.load({}, {"GATEWAY_STORE": "postgresql:///mail"}, None)


# What is refused


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("network_topic", ""),
        ("network_topic", "/waku/2/default-waku/proto"),
        ("network_topic", "/waku/2/rs/16/"),
        ("network_topic", "/waku/2/rs/16/32/"),
        ("network_topic", "/waku/2/rs/16/\u0663"),
        ("listen", "60000"),
        ("websocket", "localhost"),
        ("metrics", "::1:9091"),
        ("max_clients", 0),
        ("max_clients", MAX_CLIENTS + 1),
        ("max_clients_per_address", -1),
        ("max_clients_per_subnet", -1),
        ("connections_per_second", -0.5),
        ("connections_per_second", float("nan")),
        ("connections_per_second_per_address", float("inf")),
        ("max_handshake_failures", -1),
        ("max_subscribers", 0),
        ("max_subscribers", MAX_CLIENTS + 1),
        ("max_criteria", 0),
        ("max_criteria", MAX_CLIENTS + 1),
        ("filter_requests_per_second", -1.5),
        ("store_queries_per_second", float("nan")),
        ("sent_messages_per_second", float("inf")),
        ("archive_reads", -1),
        ("archive_reads", MAX_ARCHIVE_READS + 1),
        ("ttl", 0),
        ("ttl", MAX_TTL_S + 1),
        ("pow_share", -0.5),
        ("pow_share", float("nan")),
        ("pow_share", 1.5),
        ("log_level", "loud"),
        ("log_format", "yaml"),
    ],
)
def test_value_out_of_range_is_refused_with_its_key(name: str, value: object) -> None:
    said = refusal(**{name: value})

    assert said.startswith(f"{name}: ")
    assert str(value) in said or not str(value).isascii()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("advertise", ("example.org:443",)),
        ("advertise", ("/dns4/example.org/tcp/443/wss", "/udp/1")),
        ("trusted_proxies", ("proxy",)),
        ("allowed_addresses", ("192.0.2.1/24",)),
        ("data_dir", Path("a\0b")),
    ],
)
def test_text_that_means_nothing_is_refused_with_its_key(name: str, value: object) -> None:
    assert refusal(**{name: value}).startswith(f"{name}: ")


def test_gateway_that_listens_nowhere_is_refused() -> None:
    assert refusal(listen="", websocket="") == "listen: one of --listen and --websocket is needed"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("listen", ""),
        ("websocket", ""),
        ("metrics", ""),
        ("max_clients", 1),
        ("max_clients", MAX_CLIENTS),
        ("max_clients_per_address", 0),
        ("max_clients_per_subnet", 0),
        ("connections_per_second", 0.0),
        ("connections_per_second_per_address", 0.0),
        ("max_handshake_failures", 0),
        ("max_subscribers", MAX_CLIENTS),
        ("max_criteria", MAX_CLIENTS),
        ("filter_requests_per_second", 0.0),
        ("store_queries_per_second", 0.0),
        ("sent_messages_per_second", 0.0),
        ("ttl", 1),
        ("ttl", MAX_TTL_S),
        ("pow_share", 0.0),
        ("pow_share", 1.0),
        ("network_topic", "/waku/2/rs/65535/1023"),
    ],
)
def test_value_at_the_edge_is_allowed(name: str, value: object) -> None:
    assert getattr(GATEWAY.load({name: value}, NOTHING, None), name) == value


# What settings mean


def test_limits_of_connections_are_those_of_the_settings() -> None:
    settings = {name: value for name, (_, _, value) in SETTINGS.items()}

    assert GATEWAY.load(settings, NOTHING, None).host_limits == HostLimits(
        max_clients=7,
        admission=AdmissionLimits(8, 9, 2.5, 0.5, 3),
        trusted_proxies=(ip_network("127.0.0.1/32"), ip_network("192.0.2.0/24")),
    )


def test_lists_are_read_as_what_they_name() -> None:
    config = GatewayConfig(advertise=("/dns4/example.org/tcp/443/wss",), allowed_addresses=("192.0.2.7",))

    assert config.announced == (Multiaddr.parse("/dns4/example.org/tcp/443/wss"),)
    assert config.allowed_networks == (ip_network("192.0.2.7/32"),)


@pytest.mark.parametrize(
    ("topic", "shard"),
    [("/waku/2/rs/16/32", (16, 32)), ("/waku/2/rs/1/0", (1, 0)), ("/waku/2/default-waku/proto", None)],
)
def test_network_topic_tells_cluster_and_shard(topic: str, shard: tuple[int, int] | None) -> None:
    assert GatewayConfig(network_topic=topic).shard == shard
