"""mailserver.app.config_sources: where each setting comes from, what goes before what, and what cannot be read."""

from dataclasses import fields
from pathlib import Path
from typing import get_origin

import pytest

from mailserver.app.config import Config
from mailserver.app.config_sources import MAILSERVER, parse_value
from mailserver.waku.bloom import Interest
from mailserver.waku.topics import topic_of
from tests.app.settings import NOTHING, SETTINGS, refusal


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "mailserver.toml"


SOURCES = ("defaults", "file", "environment", "flags")
"""From the weakest to the strongest."""

MAX_PEERS_OF = {"defaults": 500, "file": 11, "environment": 22, "flags": 33}


@pytest.mark.parametrize("name", SETTINGS)
def test_setting_is_read_from_the_environment(name: str) -> None:
    text, _, value = SETTINGS[name]

    config = MAILSERVER.load({}, {f"MAILSERVER_{name.upper()}": text}, None)

    assert getattr(config, name) == value
    assert type(getattr(config, name)) is type(getattr(Config(), name))


@pytest.mark.parametrize("name", SETTINGS)
def test_setting_is_read_from_the_file(name: str, file: Path) -> None:
    _, toml, value = SETTINGS[name]
    file.write_text(f"{name} = {toml}\n")

    config = MAILSERVER.load({}, NOTHING, file)

    assert getattr(config, name) == value
    assert type(getattr(config, name)) is type(getattr(Config(), name))


@pytest.mark.parametrize("name", SETTINGS)
def test_setting_is_taken_from_the_flags(name: str) -> None:
    value = SETTINGS[name][2]

    config = MAILSERVER.load({name: value}, NOTHING, None)

    assert getattr(config, name) == value


@pytest.mark.parametrize(
    ("weaker", "stronger"), [(weaker, stronger) for at, weaker in enumerate(SOURCES) for stronger in SOURCES[at + 1 :]]
)
def test_stronger_source_goes_before_the_weaker(weaker: str, stronger: str, file: Path) -> None:
    given = {weaker, stronger}
    file.write_text(f"max_peers = {MAX_PEERS_OF['file']}\n" if "file" in given else "")
    environment = {"MAILSERVER_MAX_PEERS": str(MAX_PEERS_OF["environment"])} if "environment" in given else NOTHING
    flags = {"max_peers": MAX_PEERS_OF["flags"] if "flags" in given else None}

    config = MAILSERVER.load(flags, environment, file)

    assert config.max_peers == MAX_PEERS_OF[stronger]


def test_sources_complete_each_other(file: Path) -> None:
    file.write_text('max_peers = 11\npassword = "of the file"\nmin_pow = 1\n')
    environment = {"MAILSERVER_PASSWORD": "of the environment", "MAILSERVER_MIN_POW": "2"}

    config = MAILSERVER.load({"min_pow": 3.0}, environment, file)

    assert (config.max_peers, config.password, config.min_pow) == (11, "of the environment", 3.0)


def test_flag_that_says_no_goes_before_a_file_that_says_yes(file: Path) -> None:
    file.write_text("allow_clear_requests = true\n")

    config = MAILSERVER.load({"allow_clear_requests": False}, NOTHING, file)

    assert config.allow_clear_requests is False


def test_whole_number_in_the_file_is_a_proof_of_work_too(file: Path) -> None:
    file.write_text("min_pow = 1\n")

    config = MAILSERVER.load({}, NOTHING, file)

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

    config = MAILSERVER.load({}, NOTHING, file)

    assert config.interest == Interest(topics=frozenset({topic_of("two words"), topic_of("a,b"), topic_of("")}))


@pytest.mark.parametrize("name", ["archive_topics", "static_peers", "trusted_peers", "allowed_addresses"])
def test_empty_list_goes_before_a_weaker_source(name: str, file: Path) -> None:
    file.write_text(f"{name} = {SETTINGS[name][1]}\n")

    assert getattr(MAILSERVER.load({}, {f"MAILSERVER_{name.upper()}": ""}, file), name) == ()


def test_other_variables_of_the_environment_are_nobodys_business() -> None:
    environment = {"PATH": "/bin", "mailserver_max_peers": "x", "MAILSERVERS": "x", "MAILSERVER_CONFIG": "other.toml"}

    assert MAILSERVER.load({}, environment, None) == Config()


def test_flag_goes_before_the_variable_that_names_the_file() -> None:
    environment = {"MAILSERVER_CONFIG": "environment.toml"}

    assert MAILSERVER.file("flag.toml", environment) == Path("flag.toml")
    assert MAILSERVER.file(None, environment) == Path("environment.toml")
    assert MAILSERVER.file(None, NOTHING) is None


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


def test_file_that_is_not_there_is_named(file: Path) -> None:
    assert refusal({}, file=file) == f"cannot read {file}: No such file or directory"


def test_folder_is_no_file(tmp_path: Path) -> None:
    assert str(tmp_path) in refusal({}, file=tmp_path)


@pytest.mark.parametrize("content", [b"max_peers", b"max_peers = ", b'password = "\xff"', b"\x00", b"a = 1\na = 2"])
def test_file_that_is_not_toml_is_named(content: bytes, file: Path) -> None:
    file.write_bytes(content)

    assert refusal({}, file=file).startswith(f"{file} is not valid TOML: ")


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
