"""Reads the arguments of commands: text -> values, or a usage error that says what is wrong."""

import argparse
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TypeVar

from mailserver.codec.keys import PUBLIC_KEY_BYTES, NodeId, check_public_key
from mailserver.errors import DecodeError
from mailserver.ids.muid import Muid, check_muid
from mailserver.mail.request import Cursor
from mailserver.units import number_text
from mailserver.waku.envelope import MAX_U32, Topic
from mailserver.waku.topics import parse_topic

_T = TypeVar("_T")
_N = TypeVar("_N", int, float)

MAX_POW = 1000.0
"""Highest proof of work that may be asked for. More would take longer than anybody waits."""

MAX_QUOTED_CHARS = 80
"""How much of what is not hex is shown."""

_KINDS: dict[type, str] = {int: "a whole number", float: "a number"}


def checked(parse: Callable[[str], _T]) -> Callable[[str], _T]:
    """Turn the errors of a parser into usage errors."""

    def convert(text: str) -> _T:
        try:
            return parse(text)
        except (DecodeError, ValueError) as error:
            raise argparse.ArgumentTypeError(str(error)) from error

    return convert


def read_text(text: str) -> str:
    """Text that the shell gave as UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not UTF-8") from error
    return text


def read_topic(text: str) -> tuple[str, Topic]:
    """A topic, and the text that named it."""
    return text, parse_topic(read_text(text))


def read_public_key(text: str) -> NodeId:
    """A public key in hex, with or without 0x: 64 bytes, or the 65 of an uncompressed point, which begin with 04."""
    try:
        data = bytes.fromhex(text.removeprefix("0x"))
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not hex") from error
    if len(data) == PUBLIC_KEY_BYTES + 1 and data.startswith(b"\x04"):
        data = data[1:]
    return check_public_key(data)


def read_cursor(text: str) -> Cursor:
    """A cursor in hex, as `request` prints it."""
    try:
        return Cursor.decode(bytes.fromhex(text))
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not hex") from error


def read_bytes(max_bytes: int) -> Callable[[str], bytes]:
    """Make a reader of hex digits, with or without 0x, of so many bytes at most."""

    def read(text: str) -> bytes:
        try:
            data = bytes.fromhex(text.removeprefix("0x"))
        except ValueError as error:
            raise argparse.ArgumentTypeError(f"{text!r} is not hex") from error
        if len(data) > max_bytes:
            raise argparse.ArgumentTypeError(f"{text!r} has {len(data)} bytes, more than {max_bytes}")
        return data

    return read


def read_muid(text: str) -> Muid:
    """A MUID in hex, with or without 0x.

    Raises:
        DecodeError: it is none.
    """
    try:
        return check_muid(bytes.fromhex(text.removeprefix("0x")))
    except ValueError as error:
        raise DecodeError("MUID is not hex", got=text[:MAX_QUOTED_CHARS]) from error


def read_time(text: str) -> int:
    """Read Unix seconds, or ISO 8601 (UTC unless it says otherwise)."""
    if text.isdecimal():
        seconds = int(text)
    else:
        try:
            moment = datetime.fromisoformat(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(f"{text!r} is neither Unix seconds nor ISO 8601") from error
        seconds = int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp())
    if not 0 <= seconds <= MAX_U32:
        raise argparse.ArgumentTypeError(f"{text!r} is not a time between 1970 and 2106")
    return seconds


def _number(text: str, kind: type[_N], least: float, most: float) -> _N:
    try:
        value = kind(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not {_KINDS[kind]}") from error
    if not least <= value <= most:
        raise argparse.ArgumentTypeError(f"{text!r} is not between {number_text(least)} and {number_text(most)}")
    return value


def read_limit(text: str) -> int:
    """Maximum number of envelopes in an answer."""
    return _number(text, int, 0, MAX_U32)


def read_ttl(text: str) -> int:
    """Time to live, in seconds."""
    return _number(text, int, 1, MAX_U32)


def read_pow(text: str) -> float:
    """Proof of work to reach."""
    return _number(text, float, 0, MAX_POW)
