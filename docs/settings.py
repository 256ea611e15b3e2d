"""Writes the settings into docs/operating/settings.md and .env.example, from those of the mailserver, of its gateway,
of communities and of the compaction (`spark_export.options`): `make docs`. A test compares the files with the code.
"""

import re
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import Field
from functools import partial
from pathlib import Path
from typing import Any

from mailserver.app.communities_config import COMMUNITIES
from mailserver.app.config_sources import MAILSERVER, ConfigSources, variable_of
from mailserver.app.gateway_config import GATEWAY
from mailserver.units import number_text
from spark_export.options import LAST_OPTIONS, SCHEDULE_OPTIONS

ROOT = Path(__file__).parents[1]

WIDTH = 120

SET_BY_COMPOSE = {
    "MAILSERVER_DATA_DIR",
    "MAILSERVER_LISTEN",
    "MAILSERVER_METRICS",
    "MAILSERVER_ARCHIVE",
    "MAILSERVER_FEED_SOCKET",
    "GATEWAY_ARCHIVE",
    "GATEWAY_DATA_DIR",
    "GATEWAY_LISTEN",
    "GATEWAY_WEBSOCKET",
    "GATEWAY_METRICS",
    "COMMUNITIES_DATA_DIR",
    "COMMUNITIES_METRICS",
    "COMMUNITIES_TORRENT_LISTEN",
    "SPARK_EXPORT_STORE",
    "SPARK_EXPORT_ARCHIVE",
    "SPARK_EXPORT_SCRATCH",
    "SPARK_EXPORT_COMMUNITIES",
}
"""Variables that docker-compose.yml sets itself, so that .env cannot set them."""

IN_COMPOSE = {
    "MAILSERVER_STORE": "The gateway and communities read it, too.",
    "MAILSERVER_ADVERTISE": "Set it: the default is good for this machine only.",
    "MAILSERVER_RPC": "No port of it is published.",
    "GATEWAY_NETWORK_TOPIC": "The same as MAILSERVER_NETWORK_TOPIC.",
    "GATEWAY_ADVERTISE": "Set it: the default is good for this machine only.",
    "GATEWAY_TRUSTED_PROXIES": "A proxy on this machine comes from Docker's own network: 172.16.0.0/12.",
    "COMMUNITIES_NETWORK_TOPIC": "The same as MAILSERVER_NETWORK_TOPIC.",
    "COMMUNITIES_RPC": "No port of it is published.",
    "COMMUNITIES_ADVERTISE": "Set it, or COMMUNITIES_TRACKERS, or nobody finds us.",
    "SPARK_EXPORT_DRIVER_MEMORY": "COMPACTION_MEMORY is for the JVM and Python together, twice as much.",
    "SPARK_EXPORT_MAX_RUN_HOURS": "The container counts as unhealthy then.",
    "SPARK_EXPORT_MAX_AGE_HOURS": "The container counts as unhealthy then.",
}
"""What .env.example says about a setting in the containers, after its help."""


def _default(value: Any) -> str:
    """Return a default as it is written in a settings file; "" for none."""
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    if isinstance(value, float):
        return number_text(value)
    return str(value)


def _row(setting: Field[Any]) -> str:
    mark = " ↻" if setting.metadata["reloadable"] else ""
    if isinstance(setting.default, bool):
        default = "on" if setting.default else "off"
    else:
        default = f"`{text}`" if (text := _default(setting.default)) else "-"
    return f"| `--{setting.name.replace('_', '-')}`{mark} | {default} | {setting.metadata['help']} |"


def settings_table(sources: ConfigSources[Any]) -> str:
    """Return a Markdown table of every setting of a program."""
    rows = "\n".join(map(_row, sources.settings))
    return f"| flag | default | meaning |\n| --- | --- | --- |\n{rows}\n"


def _example(variable: str, help_text: str, default: str) -> str:
    """Return a setting as .env.example has it: what it means, and a comment that would set its default."""
    words = f"{help_text[0].upper()}{help_text[1:]}. {IN_COMPOSE.get(variable, '')}"
    lines = textwrap.wrap(words, WIDTH, initial_indent="# ", subsequent_indent="# ", break_on_hyphens=False)
    return "\n".join([*lines, f"# {variable}={default}"])


def _settings_examples(sources: ConfigSources[Any]) -> Iterator[str]:
    for setting in sources.settings:
        variable = variable_of(setting, sources.prefix)
        if variable.startswith(sources.prefix) and variable not in SET_BY_COMPOSE:
            value = setting.default
            default = str(value).lower() if isinstance(value, bool) else _default(value)
            yield _example(variable, setting.metadata["help"], default)


def _compaction_examples() -> Iterator[str]:
    options = {option.variable: option for option in (*SCHEDULE_OPTIONS, *LAST_OPTIONS)}
    for variable, option in options.items():
        if variable not in SET_BY_COMPOSE:
            words = option.help
            if option.default is not None:  # the line below the words shows it
                words = re.sub(rf' \(default: "?{re.escape(option.default)}"?\)', "", words)
            if option.metavar.startswith("{"):
                words += f": {option.metavar.strip('{}').replace(',', ' or ')}"
            if option.repeat:
                words += "; several are words, quoted as in a shell"
            yield _example(variable, words, "false" if option.switch else option.default or "")


def settings_examples(sources: ConfigSources[Any]) -> str:
    """Return the part of .env.example with the settings of a program."""
    return "".join(f"\n{example}\n" for example in _settings_examples(sources))


def compaction_examples() -> str:
    """Return the part of .env.example with the settings of the compaction."""
    return "".join(f"\n{example}\n" for example in _compaction_examples())


WRITTEN: dict[Path, tuple[tuple[str, str, Callable[[], str]], ...]] = {
    ROOT / "docs" / "operating" / "settings.md": (
        ("<!-- settings: `make docs` -->\n", "<!-- end of settings -->\n", partial(settings_table, MAILSERVER)),
        (
            "<!-- settings of the gateway: `make docs` -->\n",
            "<!-- end of settings of the gateway -->\n",
            partial(settings_table, GATEWAY),
        ),
        (
            "<!-- settings of communities: `make docs` -->\n",
            "<!-- end of settings of communities -->\n",
            partial(settings_table, COMMUNITIES),
        ),
    ),
    ROOT / ".env.example": (
        (
            "# --- The mailserver (`make docs`)\n",
            "\n# --- A file of the mailserver's settings\n",
            partial(settings_examples, MAILSERVER),
        ),
        (
            "# --- The gateway (`make docs`)\n",
            "\n# --- A file of the gateway's settings\n",
            partial(settings_examples, GATEWAY),
        ),
        (
            "# --- Communities (`make docs`)\n",
            "\n# --- A file of the settings of communities\n",
            partial(settings_examples, COMMUNITIES),
        ),
        ("# --- The compaction (`make docs`)\n", "\n# --- The end of what `make docs` writes\n", compaction_examples),
    ),
}
"""What `make docs` writes, by file: the line before it, the line after it, and the function that makes it."""


def updated(path: Path) -> str:
    """Return the text that a file should have.

    Raises:
        ValueError: one of the two lines is missing, or is there more than once.
    """
    text = path.read_text(encoding="utf-8")
    for begin, end, write in WRITTEN[path]:
        pattern = re.escape(begin) + ".*?" + re.escape(end)
        written = begin + write() + end
        text, count = re.subn(pattern, lambda _, written=written: written, text, flags=re.DOTALL)  # type: ignore[misc]
        if count != 1:
            raise ValueError(f"{path.name}: {count} places for {begin.strip()}")
    return text


if __name__ == "__main__":
    for path in WRITTEN:
        path.write_text(updated(path), encoding="utf-8")
