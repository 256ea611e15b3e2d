"""Magnet links (BEP 9 "magnet URI format"), made and read. No I/O.

Of a link from the network we take the info hash, trackers and addresses of peers, within bounds. Web seeds and whatever
else a link may name are left alone: nobody shall make us fetch addresses of theirs.
Spec: 61/STATUS "Creating magnet links".
"""

import contextlib
import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeVar
from urllib.parse import parse_qsl, quote, urlsplit

from mailserver.torrents.errors import LinkRefused

MAX_LINK_CHARACTERS = 4096
MAX_TRACKERS = 8
MAX_PEERS = 8
MAX_FIELDS = 64

_BTIH = "urn:btih:"
_HASH_CHARACTERS = 40
_PORT_DIGITS = 5
"""Of a port at most: a number of any length would be read, and libtorrent takes none that needs more than 16 bits."""

_TRACKER_SCHEMES = {"udp", "http", "https"}

T = TypeVar("T", str, "Address")

Address = tuple[str, int]
"""An IP address, and a port."""


@dataclass(frozen=True, slots=True)
class MagnetLink:
    """What a link says.

    Args:
        info_hash: 20 bytes.
        name: of the torrent's folder; empty if the link has none.
        trackers: URLs, the first ones that can be used, MAX_TRACKERS at most.
        peers: who has it, MAX_PEERS at most (`x.pe`).
    """

    info_hash: bytes
    name: str = ""
    trackers: tuple[str, ...] = ()
    peers: tuple[Address, ...] = ()

    def encode(self) -> str:
        """The link as text."""
        fields = [("xt", f"{_BTIH}{self.info_hash.hex()}")]
        if self.name:
            fields.append(("dn", quote(self.name, safe="")))
        fields += [("tr", quote(tracker, safe="")) for tracker in self.trackers]
        fields += [("x.pe", quote(encode_address(peer), safe="")) for peer in self.peers]
        return "magnet:?" + "&".join(f"{key}={value}" for key, value in fields)

    @classmethod
    def decode(cls, link: str) -> "MagnetLink":
        """Read a link; what it says beyond our bounds, and what we do not use, is left out.

        Raises:
            LinkRefused: it is too long, no magnet link, or names no torrent of version 1.
        """
        if len(link) > MAX_LINK_CHARACTERS:
            raise LinkRefused("is too long")
        scheme, _, query = link.partition(":?")
        if scheme.lower() != "magnet":
            raise LinkRefused("does not begin as one")
        try:
            fields = parse_qsl(query, max_num_fields=MAX_FIELDS)
        except ValueError as error:
            raise LinkRefused("has too many fields") from error
        hashes = {value[len(_BTIH) :].lower() for key, value in fields if key == "xt" and value.startswith(_BTIH)}
        if len(hashes) != 1:
            raise LinkRefused("names no torrent, or several")
        return cls(
            _info_hash(hashes.pop()),
            next((value for key, value in fields if key == "dn"), ""),
            tuple(_first(MAX_TRACKERS, (value for key, value in fields if key == "tr" and is_tracker(value)))),
            tuple(_first(MAX_PEERS, (peer for key, value in fields if key == "x.pe" and (peer := _peer(value))))),
        )


def is_tracker(url: str) -> bool:
    """Whether a tracker can be asked at this URL."""
    try:
        parts = urlsplit(url)
        return parts.scheme in _TRACKER_SCHEMES and bool(parts.hostname) and parts.port != 0 and url.isprintable()
    except ValueError:  # a port beyond 65535, or brackets that are not closed
        return False


def encode_address(address: Address) -> str:
    """`host:port`, with brackets around IPv6."""
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def decode_address(text: str) -> Address:
    """Read an IP address with a port.

    Raises:
        ValueError: it is none; a name is none, because it could be looked up as anything.
    """
    host, colon, port = text.rpartition(":")
    if not (colon and port.isascii() and port.isdigit() and len(port) <= _PORT_DIGITS and 0 < int(port) < 1 << 16):
        raise ValueError(f"no address with a port: {text}")
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    address = ipaddress.ip_address(bare)
    if (address.version == 6) != (bare != host):
        raise ValueError(f"no address with a port: {text}")
    return str(address), int(port)


def _info_hash(digits: str) -> bytes:
    if len(digits) == _HASH_CHARACTERS:
        with contextlib.suppress(ValueError):
            info_hash = bytes.fromhex(digits)
            if info_hash.hex() == digits:  # it may have skipped blanks
                if not any(info_hash):  # to libtorrent, this means that there is none
                    raise LinkRefused("names no torrent: its info hash is zero")
                return info_hash
    raise LinkRefused("has an info hash that is not 40 hexadecimal digits")


def _peer(text: str) -> Address | None:
    try:
        return decode_address(text)
    except ValueError:
        return None


def _first(count: int, values: Iterable[T]) -> list[T]:
    return list(dict.fromkeys(values))[:count]
