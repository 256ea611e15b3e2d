"""Writes what README.md says of the settings, from `mailserver.config.Config`: `make docs`. A test compares."""

import re
from collections.abc import Callable
from dataclasses import Field, fields
from pathlib import Path
from typing import Any

from mailserver.config import Config
from mailserver.units import number_text

ROOT = Path(__file__).parents[1]


def _default(setting: Field[Any]) -> str:
    value = setting.default
    if isinstance(value, bool):
        return "on" if value else "off"
    if value in ("", ()):
        return "-"
    if isinstance(value, tuple):
        value = ",".join(map(str, value))
    if isinstance(value, float):
        value = number_text(value)
    return f"`{value}`"


def _row(setting: Field[Any]) -> str:
    mark = " ↻" if setting.metadata["reloadable"] else ""
    return f"| `--{setting.name.replace('_', '-')}`{mark} | {_default(setting)} | {setting.metadata['help']} |"


def settings_table() -> str:
    """Every setting, as a table of Markdown."""
    rows = "\n".join(map(_row, fields(Config)))
    return f"| flag | default | meaning |\n| --- | --- | --- |\n{rows}\n"


WRITTEN: dict[Path, tuple[tuple[str, str, Callable[[], str]], ...]] = {
    ROOT / "README.md": (("<!-- settings: `make docs` -->\n", "<!-- end of settings -->\n", settings_table),),
}
"""What is written, by file: between two lines, what."""


def updated(path: Path) -> str:
    """The text of a file as it should be.

    Raises:
        ValueError: one of the lines is not there, or more than once.
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
