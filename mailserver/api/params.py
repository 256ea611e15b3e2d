"""Checks what callers send before it is used: JSON in; bytes, keys, topics and numbers out.

A check takes one JSON value and returns what it stands for, or raises Invalid. `Fields` adds the name of the value.

What JSON-RPC leaves open is decided so: null means absent. So do "" and "0x" where a value may be absent, because
deployed clients write every field. An unknown name is an error: if a misspelt `targetpeer` were ignored, a message
meant for one peer would go to everybody.
"""

import binascii
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TypeAlias, TypeVar

from mailserver.api.errors import ErrorCode, RpcError
from mailserver.codec.keys import PRIVATE_KEY_BYTES, PUBLIC_KEY_BYTES, Enode, NodeId, PrivateKey, check_public_key
from mailserver.errors import DecodeError, MailserverError
from mailserver.units import number_text
from mailserver.waku.envelope import TOPIC_BYTES, Topic

Json: TypeAlias = "str | int | float | bool | Sequence[Json] | Mapping[str, Json] | None"
"""A JSON value. Parsed arrays are lists, parsed objects are dicts."""

T = TypeVar("T")
Check = Callable[[Json], T]

MAX_ID_CHARS = 128
"""Longest id of a key, a filter or a subscription. Ours have 64 digits."""

MAX_ENODE_CHARS = 512
"""Longest enode URL: 128 digits, a host name of 253 characters, and a query, which is ignored."""

MAX_FLOAT = sys.float_info.max
"""The upper bound of numbers that have no other: infinity is not allowed."""

_SHOWN_CHARS = 64
_ABSENT: tuple[Json, ...] = (None, "", "0x")
_UNCOMPRESSED = b"\x04"
_HEX_PREFIXES = ("0x", "0X")


class Invalid(MailserverError):
    """A value is wrong. `at` is the place within it, such as `[3]`."""

    def __init__(self, problem: str, at: str = "") -> None:
        super().__init__(problem, at)
        self.problem = problem
        self.at = at

    def __str__(self) -> str:
        return f"{self.at}: {self.problem}" if self.at else self.problem


class Fields:
    """The parameters of a call, or the members of an object, by name."""

    def __init__(self, values: Mapping[str, Json], names: Collection[str], where: str = "") -> None:
        """Take values, which may only have these names.

        Args:
            where: prefix of names in error messages.
        Raises:
            RpcError: a value has another name.
        """
        for name in values:
            if name not in names:
                raise _invalid(f"{where}{shown(name)}", "unknown")
        self._values = values
        self._where = where

    def required(self, name: str, check: Check[T]) -> T:
        """The value of this name.

        Raises:
            RpcError: it is missing, null or wrong. The message names it.
        """
        value = self._values.get(name)
        if value is None:
            raise _invalid(self._where + name, "missing")
        return self._checked(name, value, check)

    def optional(self, name: str, check: Check[T], default: T) -> T:
        """The value of this name, or the default.

        Raises:
            RpcError: it is wrong.
        """
        value = self._values.get(name)
        return default if value in _ABSENT else self._checked(name, value, check)

    def maybe(self, name: str, check: Check[T]) -> T | None:
        """The value of this name, or None.

        Raises:
            RpcError: it is wrong.
        """
        value = self._values.get(name)
        return None if value in _ABSENT else self._checked(name, value, check)

    def object(self, name: str, names: Collection[str]) -> "Fields":
        """The members of the object of this name.

        Raises:
            RpcError: it is missing, not an object, or has members of other names.
        """
        return Fields(self.required(name, _object), names, f"{self._where}{name}.")

    def wrong(self, name: str, problem: str) -> RpcError:
        """The error for a value that does not fit the others."""
        return _invalid(self._where + name, problem)

    def _checked(self, name: str, value: Json, check: Check[T]) -> T:
        try:
            return check(value)
        except Invalid as error:
            raise _invalid(f"{self._where}{name}{error.at}", error.problem) from error


def shown(text: str) -> str:
    """What a caller has sent, quoted and shortened, to be sent back."""
    return repr(text) if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]!r}.."


def encode_hex(data: bytes) -> str:
    """Bytes as 9/WAKU-RPC writes them: 0x and two hex digits each."""
    return f"0x{data.hex()}"


def encode_public_key(node_id: NodeId) -> str:
    """A public key as 9/WAKU-RPC writes it: 65 bytes, the first of which is the 0x04 of an uncompressed point."""
    return encode_hex(_UNCOMPRESSED + node_id)


def flag(value: Json) -> bool:
    """True or false."""
    if isinstance(value, bool):
        return value
    raise Invalid("not true or false")


def whole(least: int, most: int) -> Check[int]:
    """An integer within bounds. 5.0 is refused: it is more likely a slip than a count."""

    def check(value: Json) -> int:
        if not isinstance(value, int) or isinstance(value, bool):
            raise Invalid("not a whole number")
        if not least <= value <= most:
            raise Invalid(f"not between {least} and {most}")
        return value

    return check


def number(least: float, most: float) -> Check[float]:
    """A number within finite bounds."""

    def check(value: Json) -> float:
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise Invalid("not a number")
        if not least <= value <= most:  # exact even for integers that no float can hold
            raise Invalid(f"not between {number_text(least)} and {number_text(most)}")
        return float(value)

    return check


def text(most_chars: int) -> Check[str]:
    """A string that can be encoded as UTF-8. JSON can escape half of a surrogate pair, and Python keeps that."""

    def check(value: Json) -> str:
        if not isinstance(value, str):
            raise Invalid("not a string")
        if len(value) > most_chars:
            raise Invalid(f"longer than {most_chars} characters")
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise Invalid("contains half of a surrogate pair") from error
        return value

    return check


def hex_bytes(least: int, most: int, *, bare: bool = False) -> Check[bytes]:
    """Bytes, as hex digits after 0x. If there may be none, "" means none, as deployed clients write it.

    Args:
        bare: whether 0x may be missing.
    """
    length = f"{least}" if least == most else f"{least} to {most}"
    problem = "not bytes in hex digits" + ("" if bare else " after 0x")

    def check(value: Json) -> bytes:
        if value == "" and least == 0:
            return b""
        if not isinstance(value, str) or not (bare or value.startswith(_HEX_PREFIXES)):
            raise Invalid(problem)
        try:
            data = binascii.unhexlify(value[2:] if value.startswith(_HEX_PREFIXES) else value)
        except ValueError:
            # The cause is left out because it may quote the value.
            raise Invalid(problem) from None
        if not least <= len(data) <= most:
            raise Invalid(f"{len(data)} bytes, not {length}")
        return data

    return check


def list_of(check: Check[T], most: int) -> Check[list[T]]:
    """An array of at most `most` values."""

    def check_all(value: Json) -> list[T]:
        if not isinstance(value, list):
            raise Invalid("not an array")
        if len(value) > most:
            raise Invalid(f"{len(value)} values, but at most {most} are allowed")
        checked = []
        for index, item in enumerate(value):
            try:
                checked.append(check(item))
            except Invalid as error:
                raise Invalid(error.problem, f"[{index}]{error.at}") from error
        return checked

    return check_all


def enode(value: Json) -> Enode:
    """An enode URL."""
    try:
        return Enode.parse(text(MAX_ENODE_CHARS)(value))
    except DecodeError as error:
        raise Invalid(str(error)) from error


def public_key(value: Json) -> NodeId:
    """A public key: 65 bytes, of which the first is 0x04."""
    data = hex_bytes(1 + PUBLIC_KEY_BYTES, 1 + PUBLIC_KEY_BYTES)(value)
    if not data.startswith(_UNCOMPRESSED):
        raise Invalid("not an uncompressed public key, 0x04 and 64 bytes")
    try:
        return check_public_key(data[1:])
    except DecodeError as error:
        raise Invalid(str(error)) from error


def private_key(value: Json) -> PrivateKey:
    """A private key, 32 bytes."""
    try:
        return PrivateKey(hex_bytes(PRIVATE_KEY_BYTES, PRIVATE_KEY_BYTES)(value))
    except DecodeError as error:
        raise Invalid(str(error)) from error


def topic(value: Json) -> Topic:
    """A topic, 4 bytes."""
    return Topic(hex_bytes(TOPIC_BYTES, TOPIC_BYTES)(value))


identifier = text(MAX_ID_CHARS)
"""The id of a key, a filter or a subscription. Whether it exists is not checked here."""

topic_prefix = hex_bytes(1, TOPIC_BYTES)
"""A topic, or its first bytes."""


def _object(value: Json) -> dict[str, Json]:
    if not isinstance(value, dict):
        raise Invalid("not an object")
    return value


def _invalid(name: str, problem: str) -> RpcError:
    return RpcError(ErrorCode.INVALID_PARAMS, f"{name}: {problem}")
