"""mailserver.config: where each setting comes from, what goes before what, and what is refused with its name."""

from dataclasses import FrozenInstanceError, fields
from pathlib import Path
from typing import Any

import pytest

from mailserver.config import (
    MAX_LIMIT,
    MIN_RETENTION_BYTES,
    Config,
    config_file,
    load_config,
    parse_address,
    parse_value,
)
from mailserver.errors import ConfigError

NOTHING: dict[str, str] = {}

SOURCES = ("defaults", "file", "environment", "flags")
"""From the weakest to the strongest."""

MAX_PEERS_OF = {"defaults": 500, "file": 11, "environment": 22, "flags": 33}

# Of each setting: the text in the environment, the TOML, and the value that both mean; none is the default.
SETTINGS: dict[str, tuple[str, str, object]] = {
    "data_dir": ("/srv/waku", '"/srv/waku"', Path("/srv/waku")),
    "listen": ("127.0.0.1:0", '"127.0.0.1:0"', "127.0.0.1:0"),
    "advertise": ("mail.example.org", '"mail.example.org"', "mail.example.org"),
    "password": ("secret", '"secret"', "secret"),
    "min_pow": ("0.25", "0.25", 0.25),
    "min_request_pow": ("1e-3", "1e-3", 0.001),
    "max_peers": ("7", "7", 7),
    "max_request_limit": ("50", "50", 50),
    "allow_clear_requests": ("false", "false", False),
    "completion_format": ("list", '"list"', "list"),
    "retention_days": ("7.5", "7.5", 7.5),
    "retention_envelopes": ("1000000", "1000000", 1_000_000),
    "retention_bytes": ("2000000", "2000000", 2_000_000),
    "archive": ("s3://bucket/archive", '"s3://bucket/archive"', "s3://bucket/archive"),
    "archive_before_prune": ("false", "false", False),
    "log_level": ("debug", '"debug"', "debug"),
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
        ("max_peers", "1.5"),
        ("max_peers", "many"),
        ("max_request_limit", ""),
        ("allow_clear_requests", "perhaps"),
        ("allow_clear_requests", ""),
    ],
)
def test_text_of_the_wrong_kind_is_refused_with_the_name_of_its_variable(name: str, text: str) -> None:
    variable = f"MAILSERVER_{name.upper()}"

    said = refusal({}, {variable: text})

    assert said.startswith(f"{variable}: {text!r} is ")


@pytest.mark.parametrize(
    ("name", "toml"),
    [
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
        ("min_request_pow", -1.0),
        ("min_request_pow", float("nan")),
        ("max_peers", 0),
        ("max_peers", -1),
        ("max_request_limit", 0),
        ("max_request_limit", MAX_LIMIT + 1),
        ("retention_days", -0.5),
        ("retention_days", float("nan")),
        ("retention_days", float("inf")),
        ("retention_envelopes", -1),
        ("retention_bytes", -1),
        ("retention_bytes", 500),
        ("retention_bytes", MIN_RETENTION_BYTES - 1),
        ("completion_format", "BYTES"),
        ("log_level", "loud"),
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
        ("max_peers", 1),
        ("max_request_limit", 1),
        ("max_request_limit", MAX_LIMIT),
        ("retention_days", 0.0),
        ("retention_days", 0.001),
        ("retention_envelopes", 0),
        ("retention_bytes", 0),
        ("retention_bytes", MIN_RETENTION_BYTES),
        ("completion_format", "list"),
        ("log_level", "error"),
    ],
)
def test_value_at_the_bound_is_taken(name: str, value: object) -> None:
    assert getattr(load_config({name: value}, NOTHING, None), name) == value


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


@pytest.mark.parametrize("host", ["two words", "a/b", "[::1]", "h\u00f6st", "a\0b", "fe80::1%eth0"])
def test_host_that_no_enode_can_name_is_refused(host: str) -> None:
    assert refusal({"advertise": host}).startswith(f"advertise: {host!r} is neither ")


def test_listen_host_that_no_enode_can_name_needs_another_to_advertise() -> None:
    assert refusal({"listen": "[fe80::1%eth0]:0"}).startswith("listen: 'fe80::1%eth0' is neither ")

    config = load_config({"listen": "[fe80::1%eth0]:0", "advertise": "mail.example.org"}, NOTHING, None)
    assert config.advertised_host == "mail.example.org"


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
    assert parse_address(text) == address
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
    ],
)
def test_address_of_another_form_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="is not HOST:PORT"):
        parse_address(text)


@pytest.mark.parametrize("text", ["::1:30303", "[::1:30303", "::1]:30303"])
def test_ipv6_address_without_its_brackets_is_refused_with_advice(text: str) -> None:
    with pytest.raises(ConfigError, match=r"write IPv6 as \[HOST\]:PORT"):
        parse_address(text)


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
