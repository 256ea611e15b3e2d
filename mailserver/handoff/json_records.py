"""Records: JSON files of ours that are read field by field, and either whole or not at all.

Standard library only: the compaction reads and writes them, too.
"""

import json
from collections.abc import Callable, Mapping
from datetime import date
from pathlib import Path
from reprlib import repr as shown
from typing import Any, TypeVar

from mailserver.errors import MailserverError

MAX_RECORD_BYTES = 1024 * 1024
"""A record has some kilobytes; a hundred if it lists the days of years. A larger file is not a record."""

_EPOCH = date(1970, 1, 1).toordinal()
_MAX_COUNT = 2**63 - 1

_T = TypeVar("_T")
_F = TypeVar("_F", str, int, dict[Any, Any])

Record = Mapping[str, object]


def read_record(
    path: Path,
    decode: Callable[[Record], _T],
    *,
    version: int,
    what: str,
    error: type[MailserverError],
) -> _T | None:
    """Read a record; None if there is none.

    Args:
        decode: turns the object into a value, or raises ValueError.
        version: the only version that is understood.
        what: what the file should be, in words.
        error: raised, with one line for the operator, if the file cannot be read or is something else.
    """
    try:
        with path.open("rb") as file:
            text = file.read(MAX_RECORD_BYTES + 1)
    except FileNotFoundError:
        return None
    except OSError as failure:
        raise error(f"cannot read {path}: {failure.strerror or failure}") from failure
    return decode_text(text, str(path), decode, version=version, what=what, error=error)


def decode_text(
    text: bytes,
    where: str,
    decode: Callable[[Record], _T],
    *,
    version: int,
    what: str,
    error: type[MailserverError],
) -> _T:
    """What a record says that was found at `where`; the other arguments are those of `read_record`."""
    try:
        if len(text) > MAX_RECORD_BYTES:
            raise ValueError(f"more than {MAX_RECORD_BYTES} bytes")
        record = json.loads(text.decode())
        if not isinstance(record, dict):
            raise ValueError("not an object")
        if record.get("version") != version:
            raise ValueError(f"version {shown(record.get('version'))}, this program knows {version}")
        return decode(record)
    except (ValueError, RecursionError) as failure:
        raise error(f"{where} is no {what}: {failure}") from failure


def field_of(record: Record, name: str, kind: type[_F]) -> _F:
    """A field of exactly this type.

    Raises:
        ValueError: it is missing, or of another type.
    """
    value = record.get(name)
    if type(value) is not kind:
        raise ValueError(f"{name} is {shown(value)}")
    return value


def count_of(name: str, value: object) -> int:
    """A count: a whole number from 0 that fits into 63 bits.

    Raises:
        ValueError: it is not.
    """
    if type(value) is not int or not 0 <= value <= _MAX_COUNT:
        raise ValueError(f"{name} is {shown(value)}")
    return value


def number_of(name: str, value: object) -> float:
    """A number that may have a fraction, such as a time in Unix seconds: 0 or more, and finite.

    Raises:
        ValueError: it is not; nor are NaN and Infinity, which Python accepts in JSON.
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= _MAX_COUNT:
        raise ValueError(f"{name} is {shown(value)}")
    return float(value)


def number_or_none(record: Record, name: str) -> float | None:
    """A field that is such a number; None if it is null or missing.

    Raises:
        ValueError: it is something else.
    """
    value = record.get(name)
    return None if value is None else number_of(name, value)


def day_text(day: int) -> str:
    """A day, Unix seconds / 86400, as YYYY-MM-DD."""
    return date.fromordinal(_EPOCH + day).isoformat()


def day_of(text: str) -> int:
    """The day that `day_text` wrote.

    Raises:
        ValueError: it has a different form.
    """
    if len(text) != len("YYYY-MM-DD") or (day := date.fromisoformat(text)).isoformat() != text:
        raise ValueError(f"{shown(text)} is not YYYY-MM-DD")
    return day.toordinal() - _EPOCH
