"""docker-compose.yml, .env.example and what is in docker/, as far as it can be judged without an engine."""

import re
from typing import Any

import pytest

from docs.settings import SET_BY_COMPOSE
from mailserver.app.communities_config import COMMUNITIES
from mailserver.app.config_sources import MAILSERVER, ConfigSources, parse_value, variable_of
from mailserver.app.gateway_config import GATEWAY
from spark_export.options import LAST_OPTIONS, SCHEDULE_OPTIONS
from tests.docker.stack import REPOSITORY

EXAMPLE = (REPOSITORY / ".env.example").read_text(encoding="utf-8")
COMPOSE = (REPOSITORY / "docker-compose.yml").read_text(encoding="utf-8")
DOCKERFILE = (REPOSITORY / "docker" / "Dockerfile").read_text(encoding="utf-8")

SETTINGS = dict(re.findall(r"^# ([A-Z][A-Z0-9_]+)=(.*)$", EXAMPLE, re.MULTILINE))
"""What the example documents, and the default that it shows."""

INTERPOLATED = dict(re.findall(r"\$\{([A-Z0-9_]+):-([^}]*)\}", COMPOSE))
"""Compose's own settings, and their defaults."""

FIXED = dict(re.findall(r"^ +((?:MAILSERVER|GATEWAY|COMMUNITIES|SPARK_EXPORT)_[A-Z_]+): (\S+)", COMPOSE, re.MULTILINE))
"""What the compose file itself sets, and .env cannot."""

READ_BY_COMPOSE = {"COMPOSE_PROFILES"}

PINNED = re.compile(r"[a-z/]+:v?\d+\.\d+(\.\d+)?(-[a-z-]+)?")
"""PostgreSQL has versions of two numbers."""


@pytest.mark.parametrize("sources", [MAILSERVER, GATEWAY, COMMUNITIES], ids=["mailserver", "gateway", "communities"])
def test_every_setting_of_a_program_is_in_the_example_with_its_default(sources: ConfigSources[Any]) -> None:
    variables = {variable_of(field, sources.prefix): field for field in sources.settings}
    own = {variable: field for variable, field in variables.items() if variable.startswith(sources.prefix)}
    settings = {variable: field for variable, field in own.items() if variable not in FIXED}

    shown = {name for name in SETTINGS if name.startswith(sources.prefix)}

    assert shown == settings.keys() | {sources.config_variable}
    for variable, field in settings.items():
        assert parse_value(variable, SETTINGS[variable], field.type) == field.default, variable


@pytest.mark.parametrize("sources", [MAILSERVER, GATEWAY, COMMUNITIES], ids=["mailserver", "gateway", "communities"])
def test_programs_take_what_compose_sets(sources: ConfigSources[Any]) -> None:
    given = {name: value.strip('"') for name, value in FIXED.items() if name.startswith(sources.prefix)}
    ports = {name: re.sub(r"\$\{[A-Z0-9_]+:-([^}]*)\}", r"\1", value) for name, value in given.items()}

    assert len(ports) > 1
    assert str(sources.load({}, ports, None).data_dir) == "/data"  # raises, if one is wrong


def test_every_setting_of_the_compaction_is_in_the_example_with_its_default() -> None:
    options = {option.variable: option for option in (*SCHEDULE_OPTIONS, *LAST_OPTIONS)}

    shown = {name for name in SETTINGS if name.startswith("SPARK_EXPORT_")}

    assert shown == options.keys() - FIXED.keys()
    for name in shown:
        option = options[name]
        assert SETTINGS[name] == ("false" if option.switch else option.default or ""), name
        assert not SETTINGS[name] or option.from_variable(SETTINGS[name]) in (option.default, False), name


def test_what_compose_sets_itself_is_left_out() -> None:
    assert FIXED.keys() == SET_BY_COMPOSE


def test_every_setting_of_compose_is_in_the_example_with_its_default() -> None:
    for name, default in INTERPOLATED.items():
        assert SETTINGS[name] == default, name


def test_the_example_has_nothing_that_is_not_a_setting() -> None:
    ours = {name for name in SETTINGS if name.startswith(("MAILSERVER_", "GATEWAY_", "COMMUNITIES_", "SPARK_EXPORT_"))}

    assert SETTINGS.keys() == ours | INTERPOLATED.keys() | READ_BY_COMPOSE
    assert not FIXED.keys() & SETTINGS.keys()
    assert all(name in EXAMPLE for name in FIXED)  # it says who sets them


def test_the_example_changes_nothing_when_it_is_copied() -> None:
    assert [line for line in EXAMPLE.splitlines() if line and not line.startswith("#")] == []


def test_every_image_of_others_is_pinned_to_a_version() -> None:
    foreign = [image for image in re.findall(r"image: (\S+)", COMPOSE) if "IMAGE_TAG" not in image]
    stages = re.findall(r"^FROM \S+ AS (\S+)$", DOCKERFILE, re.MULTILINE)
    bases = [
        image for image in re.findall(r"^FROM (\S+)", DOCKERFILE, re.MULTILINE) if image not in {*stages, "scratch"}
    ]

    assert len(foreign) == 3
    assert len(set(bases)) == 1
    for image in foreign + bases:
        assert PINNED.fullmatch(image), image


def test_programs_that_docs_run_in_a_container_are_in_its_image() -> None:
    pages = [REPOSITORY / "README.md", *(REPOSITORY / "docs").rglob("*.md")]
    runs = {run for page in pages for run in re.findall(r"--entrypoint (\S+) (\S+)", page.read_text(encoding="utf-8"))}
    image = DOCKERFILE.partition(" AS compaction-root")[2]
    programs = {"python", *re.findall(r"/usr/bin/(\w+)", image.partition("\nFROM ")[0])}
    shells = {"bash", "dash", "sh"}  # by one, what is not there can be run, too

    assert runs
    assert [run for run in runs if run[1] != "compaction" or run[0] not in programs - shells] == []
