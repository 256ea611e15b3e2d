"""The fields of packets: each has a name, a wire type and a bound, and is refused by its name.

As in the decoders that are deployed, unknown fields are skipped, among them those of a known number and another wire
type. If a field that is not repeated comes twice, the last one counts; of a message, what comes later is added to what
came before, as nearly all have it (js-waku's takes the last). Of a number of 32 bits that has more, the low ones are
taken; a bool is true if it is any number but 0. Strings are UTF-8. What proto3 calls a default may be absent or
written: both read the same.
Spec: protobuf.dev "Encoding", "Last One Wins"; "Updating A Message Type".
"""

import contextlib
from collections.abc import Mapping, Sized
from itertools import islice
from typing import NamedTuple

from mailserver.codec.protobuf import WireType, read_fields, read_packed, write_bytes
from mailserver.errors import DecodeError
from mailserver.ids.muid import MAX_NETWORK_TOPIC_BYTES
from mailserver.ids.waku_message import MAX_CONTENT_TOPIC_BYTES, MAX_MESSAGE_BYTES

MAX_REQUEST_ID_BYTES = 256
"""In UTF-8. Deployed ones have 36 (a UUID) to 64 (32 bytes in hex)."""

MAX_STATUS_TEXT_BYTES = 4096
"""Of a text for people that another node sends. Ours have less than 200."""

MAX_READ_TOPICS = 1000
"""How many content topics are read of a packet. A service takes fewer, and can say so: it has the request's id."""

MAX_OTHER_FIELDS = 64
"""How many fields a packet may have beyond as many as its rules allow: unknown ones, and those that come twice. No
encoder writes any that is not known here. A megabyte of fields of 2 bytes would take half a second to read."""

MAX_ID_FIELDS = 32
"""Among how many fields the request id of a packet is sought that is not read. Encoders write it first."""

MAX_U32 = 2**32 - 1
MAX_U64 = 2**64 - 1


class Rule(NamedTuple):
    """What a field may be. A `most_often` above 1 makes it a repeated one; `packable`: its numbers may be packed."""

    name: str
    wire_type: WireType
    most: int
    """The largest number, or the greatest length in bytes."""

    most_often: int = 1
    packable: bool = False
    bits: int = MAX_U64
    """Which bits are taken of a number."""

    is_message: bool = False
    """Whether what comes later is added to what came before: the greatest length is that of both."""


def number(name: str, most: int) -> Rule:
    """A number that is refused if it is larger."""
    return Rule(name, WireType.VARINT, most)


def uint32(name: str) -> Rule:
    """A uint32 or an enum."""
    return Rule(name, WireType.VARINT, MAX_U32, bits=MAX_U32)


def uint32s(name: str, most_often: int) -> Rule:
    """A repeated uint32, packed or not."""
    return Rule(name, WireType.VARINT, MAX_U32, most_often, packable=True, bits=MAX_U32)


def boolean(name: str) -> Rule:
    """A bool."""
    return Rule(name, WireType.VARINT, MAX_U64)


def data(name: str, max_bytes: int, most_often: int = 1) -> Rule:
    """Bytes or a string, or a repeated message."""
    return Rule(name, WireType.LENGTH_DELIMITED, max_bytes, most_often)


def message(name: str, max_bytes: int) -> Rule:
    """A message that is not repeated."""
    return Rule(name, WireType.LENGTH_DELIMITED, max_bytes, is_message=True)


REQUEST_ID = data("request_id", MAX_REQUEST_ID_BYTES)
PUBSUB_TOPIC = data("pubsub_topic", MAX_NETWORK_TOPIC_BYTES)
CONTENT_TOPICS = data("content_topics", MAX_CONTENT_TOPIC_BYTES, MAX_READ_TOPICS)
STATUS_CODE = uint32("status_code")
STATUS_DESC = data("status_desc", MAX_STATUS_TEXT_BYTES)
MESSAGE = message("message", MAX_MESSAGE_BYTES)


class Fields:
    """What has been read of a packet, by name."""

    def __init__(self) -> None:
        self._numbers: dict[str, list[int]] = {}
        self._data: dict[str, list[bytes]] = {}

    def add_number(self, rule: Rule, value: int) -> None:
        """Add a number.

        Raises:
            DecodeError: it is too large, or one too many.
        """
        value &= rule.bits
        if value > rule.most:
            raise DecodeError(f"{rule.name} is too large", got=value, limit=rule.most)
        found = self._numbers.get(rule.name)
        if found is None or rule.most_often == 1:
            self._numbers[rule.name] = [value]
        else:
            _check_room(found, rule)
            found.append(value)

    def add_data(self, rule: Rule, value: bytes) -> None:
        """Add bytes.

        Raises:
            DecodeError: it is too long, or one too many.
        """
        if len(value) > rule.most:
            raise DecodeError(f"{rule.name} is too long", got=len(value), limit=rule.most)
        found = self._data.get(rule.name)
        if found is None:
            self._data[rule.name] = [value]
        elif rule.is_message:
            found.append(value)
            length = sum(map(len, found))
            if length > rule.most:
                raise DecodeError(f"{rule.name} is too long", got=length, limit=rule.most)
        elif rule.most_often == 1:
            self._data[rule.name] = [value]
        else:
            _check_room(found, rule)
            found.append(value)

    def number(self, name: str) -> int | None:
        """A number, or None if it is absent."""
        found = self._numbers.get(name)
        return found[-1] if found else None

    def numbers(self, name: str) -> tuple[int, ...]:
        """All numbers of a repeated field."""
        return tuple(self._numbers.get(name, ()))

    def flag(self, name: str) -> bool:
        """A bool; absent is false."""
        return bool(self.number(name))

    def data(self, name: str) -> bytes | None:
        """Bytes, or None if they are absent."""
        found = self._data.get(name)
        return found[-1] if found else None

    def message(self, name: str) -> bytes | None:
        """The encoded message, or None if it is absent. One behind the other, its parts are the form of what they add
        up to."""
        found = self._data.get(name)
        return b"".join(found) if found else None

    def all_data(self, name: str) -> tuple[bytes, ...]:
        """All bytes of a repeated field."""
        return tuple(self._data.get(name, ()))

    def text(self, name: str) -> str | None:
        """A string, or None if it is absent.

        Raises:
            DecodeError: it is not UTF-8.
        """
        found = self.data(name)
        return None if found is None else _text(name, found)

    def texts(self, name: str) -> tuple[str, ...]:
        """All strings of a repeated field.

        Raises:
            DecodeError: one is not UTF-8.
        """
        return tuple(_text(name, each) for each in self.all_data(name))


def read(packet: bytes, rules: Mapping[int, Rule], max_others: int = MAX_OTHER_FIELDS) -> Fields:
    """Read the fields of a packet that have these numbers.

    Args:
        max_others: see MAX_OTHER_FIELDS. What may come often in another packet has fewer.
    Raises:
        DecodeError: not protobuf, or a field is too large, too long, or comes too often; or there are too many in all.
    """
    fields = Fields()
    count, most = 0, max_others
    for field_number, wire_type, value in read_fields(packet):
        count += 1
        if count > most:  # few packets come so far: for the others, this sum would take longer than a field
            most = max_others + sum(rule.most_often for rule in rules.values())
            if count > most:
                raise DecodeError("packet has too many fields", limit=most)
        rule = rules.get(field_number)
        if rule is None:
            continue
        if wire_type is not rule.wire_type:
            if rule.packable and isinstance(value, bytes) and wire_type is WireType.LENGTH_DELIMITED:
                for each in read_packed(value):
                    fields.add_number(rule, each)
        elif isinstance(value, int):
            fields.add_number(rule, value)
        else:
            fields.add_data(rule, value)
    return fields


def request_id_of(packet: bytes) -> str:
    """The request id of a packet that need not be whole or lawful, to answer it; "" if it cannot be read.

    It takes no longer for a long packet, since packets that nobody has paid for are answered, too.
    """
    found = b""
    with contextlib.suppress(DecodeError):
        for field_number, _, value in islice(read_fields(packet), MAX_ID_FIELDS):
            if field_number == 1 and isinstance(value, bytes):
                found = value
    with contextlib.suppress(UnicodeDecodeError):
        return found.decode() if len(found) <= MAX_REQUEST_ID_BYTES else ""
    return ""


def write_text(field_number: int, text: str) -> bytes:
    """A string, written even if it is empty."""
    return write_bytes(field_number, text.encode())


def _check_room(found: Sized, rule: Rule) -> None:
    if len(found) >= rule.most_often:
        raise DecodeError(f"{rule.name} come too often", limit=rule.most_often)


def _text(name: str, value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError as error:
        raise DecodeError(f"{name} is not UTF-8") from error
