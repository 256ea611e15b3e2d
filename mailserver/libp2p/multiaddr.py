"""Addresses of libp2p nodes: `/dns4/example.org/tcp/443/wss/p2p/16Uiu2..`, as text and as bytes.

An address is a row of parts; each is a protocol, most with a value. Spec: multiformats/multiaddr, and the codes of its
`protocols.csv`. Only the protocols that a Waku node is reached by are known; an address with another is refused.
"""

import ipaddress
import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from mailserver.codec import varint
from mailserver.errors import DecodeError
from mailserver.libp2p.peer_id import PeerId

MAX_PARTS = 8
MAX_MULTIADDR_BYTES = 512
MAX_TEXT_CHARACTERS = 1024
MAX_NAME_BYTES = 253
"""Of a DNS name."""

MAX_PORT = 65535

_NAME = re.compile(rf"[A-Za-z0-9._-]{{1,{MAX_NAME_BYTES}}}")  # others are written in these, by IDNA
_CODE_BYTES = 2
_LENGTH_BYTES = 2


class AddressProtocol(Enum):
    """The protocols of an address: name in text, code in bytes, and how many bytes its value has; None: it varies."""

    IP4 = "ip4", 4, 4
    TCP = "tcp", 6, 2
    IP6 = "ip6", 41, 16
    DNS = "dns", 53, None
    DNS4 = "dns4", 54, None
    DNS6 = "dns6", 55, None
    P2P = "p2p", 421, None
    TLS = "tls", 448, 0
    WS = "ws", 477, 0
    WSS = "wss", 478, 0

    def __init__(self, text: str, code: int, size: int | None) -> None:
        self.text = text
        self.code = code
        self.size = size


NAMES = frozenset({AddressProtocol.DNS, AddressProtocol.DNS4, AddressProtocol.DNS6})
_BY_TEXT = {part.text: part for part in AddressProtocol}
_BY_CODE = {part.code: part for part in AddressProtocol}


@dataclass(frozen=True, slots=True)
class Multiaddr:
    """An address: its parts in order, each with its value as text, "" where it has none."""

    parts: tuple[tuple[AddressProtocol, str], ...]

    def __str__(self) -> str:
        return "".join(f"/{part.text}/{value}" if part.size != 0 else f"/{part.text}" for part, value in self.parts)

    def value(self, *wanted: AddressProtocol) -> str | None:
        """The value of the first part that is one of these; None if there is none."""
        return next((value for part, value in self.parts if part in wanted), None)

    @classmethod
    def parse(cls, text: str) -> "Multiaddr":
        """Read the text.

        Raises:
            DecodeError: too long, a protocol that is not known, or a value that is none of its protocol.
        """
        if len(text) > MAX_TEXT_CHARACTERS:
            raise DecodeError("multiaddr is too long", got=len(text), limit=MAX_TEXT_CHARACTERS)
        empty, *words = text.split("/")
        if empty or not words:
            raise DecodeError("multiaddr does not begin with a slash", got=repr(text))
        left = iter(words)
        encoded = b"".join(_encode_part(part, value) for part, value in _words(left))
        return cls.decode(encoded)

    @classmethod
    def decode(cls, data: bytes) -> "Multiaddr":
        """Read the bytes.

        Raises:
            DecodeError: as in `parse`, truncated, or too many parts.
        """
        if len(data) > MAX_MULTIADDR_BYTES:
            raise DecodeError("multiaddr is too long", got=len(data), limit=MAX_MULTIADDR_BYTES)
        parts: list[tuple[AddressProtocol, str]] = []
        at = 0
        while at < len(data):
            if len(parts) == MAX_PARTS:
                raise DecodeError("multiaddr has too many parts", limit=MAX_PARTS)
            code, at = _number(data, at, _CODE_BYTES)
            part = _BY_CODE.get(code)
            if part is None:
                raise DecodeError("multiaddr has a protocol that is not known", got=code)
            size, at = (part.size, at) if part.size is not None else _number(data, at, _LENGTH_BYTES)
            raw = data[at : at + size]
            if len(raw) < size:
                raise DecodeError("multiaddr is truncated", got=len(raw), limit=size)
            parts.append((part, _decode_value(part, raw)))
            at += size
        if not parts:
            raise DecodeError("multiaddr is empty")
        return cls(tuple(parts))

    def encode(self) -> bytes:
        """The bytes."""
        return b"".join(_encode_part(part, value) for part, value in self.parts)


def _words(left: Iterator[str]) -> Iterator[tuple[AddressProtocol, str]]:
    for word in left:
        part = _BY_TEXT.get(word)
        if part is None:
            raise DecodeError("multiaddr has a protocol that is not known", got=repr(word))
        value = "" if part.size == 0 else next(left, None)
        if value is None:
            raise DecodeError("multiaddr is truncated", got=repr(word))
        yield part, value


def _number(data: bytes, at: int, most: int) -> tuple[int, int]:
    read = varint.decode(data, at, most)
    if read is None:
        raise DecodeError("multiaddr is truncated")
    return read


def _decode_value(part: AddressProtocol, raw: bytes) -> str:
    if part.size == 0:
        return ""
    if part is AddressProtocol.TCP:
        return str(int.from_bytes(raw, "big"))
    if part is AddressProtocol.IP4:
        return str(ipaddress.IPv4Address(raw))
    if part is AddressProtocol.IP6:
        return str(ipaddress.IPv6Address(raw))
    if part is AddressProtocol.P2P:
        return str(PeerId.decode(raw))
    return _checked_name(raw)


def _checked_name(raw: bytes) -> str:
    name = raw.decode("ascii", "replace")
    if _NAME.fullmatch(name) is None:
        raise DecodeError("not a DNS name", got=repr(name[:MAX_NAME_BYTES]), limit=MAX_NAME_BYTES)
    return name


def _encode_part(part: AddressProtocol, value: str) -> bytes:
    code = varint.encode(part.code)
    if part.size == 0:
        return code
    if part.size is not None:
        return code + _encode_fixed(part, value)
    raw = PeerId.parse(value).multihash if part is AddressProtocol.P2P else value.encode("ascii", "replace")
    return code + varint.encode(len(raw)) + raw


def _encode_fixed(part: AddressProtocol, value: str) -> bytes:
    if part is AddressProtocol.TCP:
        if not (value.isascii() and value.isdecimal() and len(value) <= 5 and int(value) <= MAX_PORT):
            raise DecodeError("not a port", got=repr(value), limit=MAX_PORT)
        return int(value).to_bytes(2, "big")
    try:
        if part is AddressProtocol.IP4:
            return ipaddress.IPv4Address(value).packed
        address = ipaddress.IPv6Address(value)
    except ValueError as error:
        raise DecodeError("not an IP address", got=repr(value)) from error
    if address.scope_id is not None:
        raise DecodeError("an address with a zone is of this machine only", got=repr(value))
    return address.packed
