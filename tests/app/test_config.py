"""mailserver.app.config: where each setting comes from, what goes before what, and what is refused with its name."""

import math
from dataclasses import FrozenInstanceError, fields
from ipaddress import ip_network
from pathlib import Path
from typing import Any, get_origin

import pytest

from mailserver.app.config import (
    MAX_ARCHIVE_READS,
    MAX_DAYS,
    MAX_LIMIT,
    MAX_RATE,
    MAX_REQUEST_POW,
    MIN_RETENTION_BYTES,
    Config,
    config_file,
    load_config,
    parse_address,
    parse_value,
)
from mailserver.catchup.catchup import MAX_SOURCES
from mailserver.codec.keys import Enode
from mailserver.errors import ConfigError
from mailserver.waku.bloom import FULL_INTEREST, Interest
from mailserver.waku.envelope import Topic
from mailserver.waku.packets import MAX_TOPIC_INTEREST
from mailserver.waku.topics import topic_of
from tests.pairs import private_key

NOTHING: dict[str, str] = {}

SOURCES = ("defaults", "file", "environment", "flags")
"""From the weakest to the strongest."""

MAX_PEERS_OF = {"defaults": 500, "file": 11, "environment": 22, "flags": 33}

ENODES = tuple(
    str(Enode(private_key(name).public_key, host, 30303))
    for name, host in (("one", "192.0.2.1"), ("two", "mail.example.org"), ("three", "2001:db8::1"))
)
NODE_ID = private_key("four").public_key.hex()

# Of each setting: the text in the environment, the TOML, and the value that both mean; none is the default.
SETTINGS: dict[str, tuple[str, str, object]] = {
    "data_dir": ("/srv/waku", '"/srv/waku"', Path("/srv/waku")),
    "listen": ("127.0.0.1:0", '"127.0.0.1:0"', "127.0.0.1:0"),
    "advertise": ("mail.example.org", '"mail.example.org"', "mail.example.org"),
    "password": ("secret", '"secret"', "secret"),
    "min_pow": ("0.25", "0.25", 0.25),
    "archive_topics": ("news,0x01020304", '["news", "0x01020304"]', ("news", "0x01020304")),
    "light_node": ("true", "true", True),
    "static_peers": (f"{ENODES[0]},{ENODES[1]}", f'["{ENODES[0]}", "{ENODES[1]}"]', ENODES[:2]),
    "trusted_peers": (ENODES[2], f'["{ENODES[2]}"]', ENODES[2:]),
    "sync_days": ("1.5", "1.5", 1.5),
    "min_request_pow": ("1e-3", "1e-3", 0.001),
    "request_pow": ("0.25", "0.25", 0.25),
    "max_peers": ("7", "7", 7),
    "max_peers_per_address": ("8", "8", 8),
    "max_peers_per_subnet": ("9", "9", 9),
    "connections_per_second": ("2.5", "2.5", 2.5),
    "connections_per_second_per_address": ("0.5", "0.5", 0.5),
    "max_handshake_failures": ("3", "3", 3),
    "packet_rate_limits": ("1,2,3", "[1, 2, 3]", (1, 2, 3)),
    "byte_rate_limits": ("4 5 6", "[4, 5, 6]", (4, 5, 6)),
    "rate_limit_tolerance_s": ("inf", "inf", math.inf),
    "peer_request_limits": ("7,8,9", "[7, 8, 9]", (7, 8, 9)),
    "address_request_limits": ("10,11,12", "[10, 11, 12]", (10, 11, 12)),
    "allowed_addresses": (
        "192.0.2.0/24,2001:db8::/32,192.0.2.7",
        '["192.0.2.0/24", "2001:db8::/32", "192.0.2.7"]',
        ("192.0.2.0/24", "2001:db8::/32", "192.0.2.7"),
    ),
    "allowed_peers": (f"{ENODES[0]},{NODE_ID}", f'["{ENODES[0]}", "{NODE_ID}"]', (ENODES[0], NODE_ID)),
    "max_request_limit": ("50", "50", 50),
    "allow_clear_requests": ("false", "false", False),
    "completion_format": ("list", '"list"', "list"),
    "retention_days": ("7.5", "7.5", 7.5),
    "retention_envelopes": ("1000000", "1000000", 1_000_000),
    "retention_bytes": ("2000000", "2000000", 2_000_000),
    "archive": ("s3://bucket/archive", '"s3://bucket/archive"', "s3://bucket/archive"),
    "archive_max_age_hours": ("12.5", "12.5", 12.5),
    "archive_before_prune": ("false", "false", False),
    "answer_from_archive": ("false", "false", False),
    "archive_reads": ("3", "3", 3),
    "archive_cache_bytes": ("1000", "1000", 1000),
    "rpc": ("127.0.0.1:8545", '"127.0.0.1:8545"', "127.0.0.1:8545"),
    "rpc_token_file": ("/etc/waku/token", '"/etc/waku/token"', "/etc/waku/token"),
    "rpc_dialect": ("deployed", '"deployed"', "deployed"),
    "metrics": ("[::1]:9090", '"[::1]:9090"', "[::1]:9090"),
    "log_level": ("debug", '"debug"', "debug"),
    "log_format": ("json", '"json"', "json"),
}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "mailserver.toml"


def refusal(flags: dict[str, Any], environment: dict[str, str] = NOTHING, file: Path | None = None) -> str:
    """What `load_config` says about settings that it must not take; always one line."""
    with pytest.raises(ConfigError) as refused:
        load_config(flags, environment, file)
    text = str(refused.value)
    assert "\n" not in text
    return text


# Defaults


def test_defaults_are_what_deployed_clients_expect() -> None:
    config = load_config({}, NOTHING, None)

    assert config == Config()
    assert config.data_dir == Path("data")
    assert config.listen_address == ("0.0.0.0", 30303)
    assert config.password == "status-offline-inbox"
    assert config.min_pow == 0.000002
    assert config.max_request_limit == 1000
    assert config.completion_format == "bytes"
    assert config.allow_clear_requests


def test_default_is_to_keep_thirty_days_and_what_an_archive_has_not_taken() -> None:
    config = load_config({}, NOTHING, None)

    assert config.retention_days == 30
    assert config.retention_envelopes == config.retention_bytes == 0
    assert config.archive == ""
    assert config.archive_before_prune
    assert config.answer_from_archive


def test_default_is_to_take_all_topics_from_all_and_dial_nobody() -> None:
    config = load_config({}, NOTHING, None)

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


@pytest.mark.parametrize("name", SETTINGS)
def test_setting_is_read_from_the_environment(name: str) -> None:
    text, _, value = SETTINGS[name]

    config = load_config({}, {f"MAILSERVER_{name.upper()}": text}, None)

    assert getattr(config, name) == value
    assert type(getattr(config, name)) is type(getattr(Config(), name))


@pytest.mark.parametrize("name", SETTINGS)
def test_setting_is_read_from_the_file(name: str, file: Path) -> None:
    _, toml, value = SETTINGS[name]
    file.write_text(f"{name} = {toml}\n")

    config = load_config({}, NOTHING, file)

    assert getattr(config, name) == value
    assert type(getattr(config, name)) is type(getattr(Config(), name))


@pytest.mark.parametrize("name", SETTINGS)
def test_setting_is_taken_from_the_flags(name: str) -> None:
    value = SETTINGS[name][2]

    config = load_config({name: value}, NOTHING, None)

    assert getattr(config, name) == value


@pytest.mark.parametrize(
    ("weaker", "stronger"), [(weaker, stronger) for at, weaker in enumerate(SOURCES) for stronger in SOURCES[at + 1 :]]
)
def test_stronger_source_goes_before_the_weaker(weaker: str, stronger: str, file: Path) -> None:
    given = {weaker, stronger}
    file.write_text(f"max_peers = {MAX_PEERS_OF['file']}\n" if "file" in given else "")
    environment = {"MAILSERVER_MAX_PEERS": str(MAX_PEERS_OF["environment"])} if "environment" in given else NOTHING
    flags = {"max_peers": MAX_PEERS_OF["flags"] if "flags" in given else None}

    config = load_config(flags, environment, file)

    assert config.max_peers == MAX_PEERS_OF[stronger]


def test_sources_complete_each_other(file: Path) -> None:
    file.write_text('max_peers = 11\npassword = "of the file"\nmin_pow = 1\n')
    environment = {"MAILSERVER_PASSWORD": "of the environment", "MAILSERVER_MIN_POW": "2"}

    config = load_config({"min_pow": 3.0}, environment, file)

    assert (config.max_peers, config.password, config.min_pow) == (11, "of the environment", 3.0)


def test_flag_that_says_no_goes_before_a_file_that_says_yes(file: Path) -> None:
    file.write_text("allow_clear_requests = true\n")

    config = load_config({"allow_clear_requests": False}, NOTHING, file)

    assert config.allow_clear_requests is False


def test_whole_number_in_the_file_is_a_proof_of_work_too(file: Path) -> None:
    file.write_text("min_pow = 1\n")

    config = load_config({}, NOTHING, file)

    assert config.min_pow == 1.0
    assert type(config.min_pow) is float


@pytest.mark.parametrize(
    ("text", "value"),
    [(text, True) for text in ("1", "true", "True", "yes", "ON")]
    + [(text, False) for text in ("0", "false", "FALSE", "no", "off")],
)
def test_boolean_has_several_spellings(text: str, value: bool) -> None:
    assert parse_value("MAILSERVER_ALLOW_CLEAR_REQUESTS", text, bool) is value


LISTS = [name for name in SETTINGS if get_origin(next(s for s in fields(Config) if s.name == name).type) is tuple]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", ()),
        (" , ", ()),
        ("one", ("one",)),
        ("one,two", ("one", "two")),
        ("one, two", ("one", "two")),
        ("one two", ("one", "two")),
        ("one\ntwo\n", ("one", "two")),
        (",one,,two,", ("one", "two")),
        ("one,one", ("one", "one")),
    ],
)
def test_list_is_separated_by_commas_or_space(text: str, value: tuple[str, ...]) -> None:
    assert parse_value("MAILSERVER_ARCHIVE_TOPICS", text, tuple[str, ...]) == value


def test_name_with_a_comma_or_space_can_stand_in_the_file(file: Path) -> None:
    file.write_text('archive_topics = ["two words", "a,b", ""]\n')

    config = load_config({}, NOTHING, file)

    assert config.interest == Interest(topics=frozenset({topic_of("two words"), topic_of("a,b"), topic_of("")}))


@pytest.mark.parametrize("name", ["archive_topics", "static_peers", "trusted_peers", "allowed_addresses"])
def test_empty_list_goes_before_a_weaker_source(name: str, file: Path) -> None:
    file.write_text(f"{name} = {SETTINGS[name][1]}\n")

    assert getattr(load_config({}, {f"MAILSERVER_{name.upper()}": ""}, file), name) == ()


def test_other_variables_of_the_environment_are_nobodys_business() -> None:
    environment = {"PATH": "/bin", "mailserver_max_peers": "x", "MAILSERVERS": "x", "MAILSERVER_CONFIG": "other.toml"}

    assert load_config({}, environment, None) == Config()


def test_flag_goes_before_the_variable_that_names_the_file() -> None:
    environment = {"MAILSERVER_CONFIG": "environment.toml"}

    assert config_file("flag.toml", environment) == Path("flag.toml")
    assert config_file(None, environment) == Path("environment.toml")
    assert config_file(None, NOTHING) is None


# What is refused


def test_unknown_key_of_the_file_is_named(file: Path) -> None:
    file.write_text("max_peers = 5\nmax_pears = 5\n")

    assert refusal({}, file=file) == f"{file}: unknown key 'max_pears'"


def test_table_in_the_file_is_an_unknown_key(file: Path) -> None:
    file.write_text("[mailserver]\nmax_peers = 5\n")

    assert "'mailserver'" in refusal({}, file=file)


def test_unknown_variable_is_named() -> None:
    assert refusal({}, {"MAILSERVER_MAX_PEARS": "5"}) == "unknown environment variable MAILSERVER_MAX_PEARS"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("min_pow", "much"),
        ("min_pow", ""),
        ("min_request_pow", "0,1"),
        ("request_pow", "much"),
        ("max_peers", "1.5"),
        ("max_peers", "many"),
        ("max_request_limit", ""),
        ("allow_clear_requests", "perhaps"),
        ("allow_clear_requests", ""),
        ("light_node", "2"),
        ("sync_days", "month"),
        ("connections_per_second", "1/s"),
        ("rate_limit_tolerance_s", "ever"),
    ],
)
def test_text_of_the_wrong_kind_is_refused_with_the_name_of_its_variable(name: str, text: str) -> None:
    variable = f"MAILSERVER_{name.upper()}"

    said = refusal({}, {variable: text})

    assert said.startswith(f"{variable}: {text!r} is ")


@pytest.mark.parametrize(
    ("name", "text", "part"),
    [
        ("packet_rate_limits", "1,2,three", "three"),
        ("byte_rate_limits", "1.5 2 3", "1.5"),
        ("peer_request_limits", "1,-,3", "-"),
        ("address_request_limits", "1e3,2,3", "1e3"),
    ],
)
def test_part_of_a_list_of_the_wrong_kind_is_named(name: str, text: str, part: str) -> None:
    variable = f"MAILSERVER_{name.upper()}"

    assert refusal({}, {variable: text}) == f"{variable}: {part!r} is not a whole number"


@pytest.mark.parametrize("name", LISTS)
@pytest.mark.parametrize("toml", ["5", "true", '"text"', "{}", "1.5"])
def test_list_in_the_file_is_a_list(name: str, toml: str, file: Path) -> None:
    file.write_text(f"{name} = {toml}\n")

    said = refusal({}, file=file)

    assert said.startswith(f"{file}: {name}: ")
    assert said.endswith(" is not a list")


@pytest.mark.parametrize("name", LISTS)
def test_lists_in_a_list_are_refused(name: str, file: Path) -> None:
    file.write_text(f"{name} = [[]]\n")

    assert refusal({}, file=file).startswith(f"{file}: {name}: [] is not ")


@pytest.mark.parametrize(
    ("name", "toml"),
    [
        ("packet_rate_limits", "[1, 2, 3.0]"),
        ("byte_rate_limits", "[1, 2, true]"),
        ("peer_request_limits", '[1, 2, "3"]'),
        ("archive_topics", '["news", 5]'),
        ("static_peers", "[true]"),
        ("light_node", "0"),
        ("rpc", "8545"),
        ("rpc_token_file", "[]"),
        ("data_dir", "5"),
        ("listen", "30303"),
        ("password", "[]"),
        ("min_pow", '"0.1"'),
        ("min_pow", "true"),
        ("max_peers", "1.0"),
        ("max_peers", "true"),
        ("max_peers", '"5"'),
        ("allow_clear_requests", "1"),
        ("completion_format", "{}"),
        ("retention_days", '"30"'),
        ("retention_envelopes", "1.5"),
        ("archive", "true"),
        ("log_level", "2026-11-21"),
    ],
)
def test_value_of_the_wrong_kind_is_refused_with_file_and_key(name: str, toml: str, file: Path) -> None:
    file.write_text(f"{name} = {toml}\n")

    said = refusal({}, file=file)

    assert said.startswith(f"{file}: {name}: ")


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
        ("max_peers", 0),
        ("max_peers", -1),
        ("max_request_limit", 0),
        ("max_request_limit", MAX_LIMIT + 1),
        ("archive_reads", 0),
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
        ("archive_reads", 1),
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
    assert getattr(load_config({name: value}, NOTHING, None), name) == value


LIMITS = ["packet_rate_limits", "byte_rate_limits", "peer_request_limits", "address_request_limits"]


@pytest.mark.parametrize("name", LIMITS)
@pytest.mark.parametrize(
    "limits", [(), (1,), (1, 2), (1, 2, 3, 4), (-1, 0, 0), (0, -1, 0), (0, 0, -1), (0, 0, MAX_RATE + 1)]
)
def test_limits_are_three_numbers_that_peers_can_read(name: str, limits: tuple[int, ...]) -> None:
    assert refusal({name: limits}) == (
        f"{name}: {', '.join(map(str, limits)) or 'nothing'} is not three numbers from 0 to {MAX_RATE}"
    )


@pytest.mark.parametrize("name", LIMITS)
@pytest.mark.parametrize("limits", [(0, 0, 0), (MAX_RATE, MAX_RATE, MAX_RATE), (0, 1, MAX_RATE)])
def test_limits_at_the_bound_are_taken(name: str, limits: tuple[int, ...]) -> None:
    assert getattr(load_config({name: limits}, NOTHING, None), name) == limits


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

    topics = load_config({"archive_topics": most}, NOTHING, None).interest.topics

    assert topics is not None
    assert len(topics) == MAX_TOPIC_INTEREST
    assert refusal({"archive_topics": (*most, "news")}) == "archive_topics: 10001 topics are more than 10000"


def test_trusted_peers_are_as_many_as_history_is_fetched_from() -> None:
    enodes = tuple(
        str(Enode(private_key(f"mailserver {number}").public_key, "192.0.2.1", 1)) for number in range(MAX_SOURCES + 1)
    )

    assert len(load_config({"trusted_peers": enodes[:-1]}, NOTHING, None).trusted_enodes) == MAX_SOURCES
    assert refusal({"trusted_peers": enodes}) == "trusted_peers: 17 mailservers are more than 16"


def test_file_that_is_not_there_is_named(file: Path) -> None:
    assert refusal({}, file=file) == f"cannot read {file}: No such file or directory"


def test_folder_is_no_file(tmp_path: Path) -> None:
    assert str(tmp_path) in refusal({}, file=tmp_path)


@pytest.mark.parametrize("content", [b"max_peers", b"max_peers = ", b'password = "\xff"', b"\x00", b"a = 1\na = 2"])
def test_file_that_is_not_toml_is_named(content: bytes, file: Path) -> None:
    file.write_bytes(content)

    assert refusal({}, file=file).startswith(f"{file} is not TOML: ")


@pytest.mark.parametrize("toml", ["min_pow = 1" + "0" * 400, "min_pow = 1" + "0" * 5000])
def test_number_beyond_all_bounds_is_refused(toml: str, file: Path) -> None:
    file.write_text(toml)

    refusal({}, file=file)


@pytest.mark.parametrize("variable", ["MAILSERVER_PASSWORD", "MAILSERVER_ADVERTISE"])
def test_text_that_is_not_utf_8_is_refused(variable: str) -> None:
    assert refusal({}, {variable: "\udcff"}) == f"{variable}: '\\udcff' is not UTF-8"


@pytest.mark.parametrize("value", ["1.5", "many", ""])
def test_count_is_a_whole_number(value: str, file: Path) -> None:
    file.write_text(f"max_peers = '{value}'\n")

    assert refusal({}, {"MAILSERVER_MAX_PEERS": value}).endswith(f"{value!r} is not a whole number")
    assert refusal({}, file=file).endswith(f"{value!r} is not a whole number")


def test_path_that_cannot_be_is_refused() -> None:
    assert refusal({"data_dir": Path("a\0b")}) == "data_dir: 'a\\x00b' is not a path"
    assert refusal({"rpc_token_file": "a\0b"}) == "rpc_token_file: 'a\\x00b' is not a path"


@pytest.mark.parametrize("host", ["two words", "a/b", "[::1]", "h\u00f6st", "a\0b", "fe80::1%eth0"])
def test_host_that_no_enode_can_name_is_refused(host: str) -> None:
    assert refusal({"advertise": host}).startswith(f"advertise: {host!r} is neither ")


def test_listen_host_that_no_enode_can_name_needs_another_to_advertise() -> None:
    assert refusal({"listen": "[fe80::1%eth0]:0"}).startswith("listen: 'fe80::1%eth0' is neither ")

    config = load_config({"listen": "[fe80::1%eth0]:0", "advertise": "mail.example.org"}, NOTHING, None)
    assert config.advertised_host == "mail.example.org"


# What lists mean


def test_lists_are_read_as_what_they_name() -> None:
    config = load_config(
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
    config = load_config({"allowed_addresses": (text,)}, NOTHING, None)

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
