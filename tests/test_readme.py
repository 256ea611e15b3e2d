"""README.md: its tables of settings name every field of Config, with its true default."""

import re
from dataclasses import fields
from pathlib import Path

from mailserver.config import Config, parse_value

README = Path(__file__).parents[1] / "README.md"

ROW = re.compile(r"\| (?P<flags>`--[^|]*) \| (?P<default>[^|]*) \| .* \|")
WORDS: dict[str, tuple[object, ...]] = {"on": (True,), "off": (False, ""), "none": ("", ()), "all": ((),)}
"""What a default is that stands there without quotes. Other words explain an empty one."""


def section(title: str) -> str:
    """The text below a heading, up to the next one."""
    _, _, rest = README.read_text(encoding="utf-8").partition(f"# {title}\n")
    return re.split(r"^#+ ", rest, maxsplit=1, flags=re.MULTILINE)[0]


def documented(text: str) -> dict[str, str]:
    """Names of the settings in a table, and their defaults as they stand there. A row may hold several, in order."""
    settings: dict[str, str] = {}
    for row in ROW.finditer(text):
        names = [flag.replace("-", "_") for flag in re.findall("--([a-z-]+)", row["flags"])]
        defaults = row["default"].split(", ") if len(names) > 1 else [row["default"]]
        settings.update(zip(names, defaults, strict=True))
    return settings


def test_every_setting_is_documented_with_its_default() -> None:
    settings = documented(section("Settings")) | documented(section("Limits"))

    assert settings.keys() == {field.name for field in fields(Config)}
    for field in fields(Config):
        text = settings[field.name]
        quoted = re.fullmatch("`([^`]*)`", text)
        if quoted:
            assert parse_value(field.name, quoted[1], field.type) == field.default, field.name
        else:
            assert field.default in WORDS.get(text, ("",)), field.name


def test_settings_that_can_change_while_the_daemon_runs_are_marked() -> None:
    marked = {
        name.replace("-", "_")
        for row in ROW.finditer(section("Settings"))
        if "↻" in row["flags"]
        for name in re.findall("--([a-z-]+)", row["flags"])
    }

    reloadable = {field.name for field in fields(Config) if field.metadata["reloadable"]}

    assert marked | documented(section("Limits")).keys() == reloadable
