"""Magnet links, as they are announced in a community's special channel (61/STATUS "Message archive distribution").

A link is a CommunityMessageArchiveMagnetlink: clock (1, milliseconds of the Unix clock), magnet_uri (2). It is the
payload of an ApplicationMetadataMessage: signature (1, 65 bytes), payload (2), type (3), where the signature is that of
the community over Keccak-256 of the payload, V being 0 or 1. The specification gives the payload three other names.

status-go puts the whole into field 102, `public_message`, of a ProtocolMessage (5/SECURE-TRANSPORT), as it does with
all public messages. Both forms are read. Only the community may announce: what others have signed is ignored.
"""

from dataclasses import dataclass
from typing import NamedTuple

from mailserver.codec.keccak import keccak256
from mailserver.codec.keys import SIGNATURE_BYTES, PrivateKey, recover
from mailserver.codec.protobuf import write_bytes
from mailserver.communities.channels import CommunityId, community_id
from mailserver.communities.metadata import number
from mailserver.errors import DecodeError
from mailserver.waku2 import fields
from mailserver.waku2.fields import MAX_U32, MAX_U64

WAIT_S = 20.0
"""How long to wait for another link after the last one (61/STATUS "Downloading message archives")."""

MAX_WAIT_S = 300.0
"""How long the first of them waits at most. Without this, whoever posts old links again could hold it up for ever."""

MAX_URI_BYTES = 16 * 1024
MAX_PAYLOAD_BYTES = 64 * 1024

COMMUNITY_ARCHIVE_MAGNETLINK = 43
"""The type of an ApplicationMetadataMessage that has a link."""


class ForeignLink(DecodeError):
    """A message in a special channel is none of the community's links: another has signed it, or nobody."""


class MagnetLink(NamedTuple):
    """A link. `clock`: Unix time in milliseconds at which it was announced: the greatest is the newest."""

    clock: int
    uri: str


def encode_link(link: MagnetLink, key: PrivateKey, *, wrapped: bool = False) -> bytes:
    """Sign a link, for the payload of an envelope.

    status-go takes only envelopes whose payload somebody has signed (7/WAKU-DATA), whoever it is.

    Args:
        key: the community's.
        wrapped: in a ProtocolMessage, as status-go does it.
    """
    payload = number(1, link.clock) + write_bytes(2, link.uri.encode())
    signature = key.sign(keccak256(payload))
    message = write_bytes(1, signature) + write_bytes(2, payload) + number(3, COMMUNITY_ARCHIVE_MAGNETLINK)
    return write_bytes(_PUBLIC_MESSAGE, message) if wrapped else message


def open_link(data: bytes, community: CommunityId) -> MagnetLink:
    """Read a link that this community has signed.

    Args:
        data: the opened payload of an envelope, see `encode_link`.
    Raises:
        ForeignLink: another has signed it, or it is something else than a link.
        DecodeError: it does not parse, or a bound is passed.
    """
    if len(data) > MAX_PAYLOAD_BYTES:
        raise DecodeError("message in a special channel is too long", got=len(data), limit=MAX_PAYLOAD_BYTES)
    wrapped = fields.read(data, _PROTOCOL_MESSAGE).data("public_message")
    message = fields.read(data if wrapped is None else wrapped, _APPLICATION_METADATA_MESSAGE)
    payload, signature = message.data("payload") or b"", message.data("signature") or b""
    if message.number("type") != COMMUNITY_ARCHIVE_MAGNETLINK:
        raise ForeignLink("message in a special channel is no magnet link", got=message.number("type"))
    if len(signature) != SIGNATURE_BYTES:
        raise ForeignLink("magnet link is not signed", got=len(signature), limit=SIGNATURE_BYTES)
    try:
        signer = recover(signature, keccak256(payload))
    except DecodeError as error:
        raise ForeignLink("signature of a magnet link fits no key") from error
    if community_id(signer) != community:
        raise ForeignLink("magnet link is not signed by the community", got=community_id(signer).hex())
    link = fields.read(payload, _LINK)
    return MagnetLink(link.number("clock") or 0, link.text("magnet_uri") or "")


@dataclass(frozen=True, slots=True)
class _Waiting:
    newest: MagnetLink
    since: float
    until: float


class NewestLink:
    """Finds the newest link of a community among those that arrive, in whatever order. Times are monotonic seconds.

    A link is taken WAIT_S after the last one has arrived. Links that are older than the one taken last begin no wait.
    """

    def __init__(self, taken: MagnetLink | None = None) -> None:
        """Begin.

        Args:
            taken: the last one that was taken, before a restart.
        """
        self.taken = taken
        self._waiting: _Waiting | None = None

    def receive(self, link: MagnetLink, now: float) -> bool:
        """Take a link that `open_link` has checked; whether it is the newest so far."""
        waiting = self._waiting
        known = waiting.newest if waiting is not None else self.taken
        newer = known is None or link > known
        if waiting is not None:
            until = min(now + WAIT_S, waiting.since + MAX_WAIT_S)
            self._waiting = _Waiting(link if newer else waiting.newest, waiting.since, until)
        elif newer:
            self._waiting = _Waiting(link, now, now + WAIT_S)
        return newer

    def next_timer(self) -> float | None:
        """When to call `handle_timer`; None while nothing is waited for."""
        return None if self._waiting is None else self._waiting.until

    def handle_timer(self, now: float) -> MagnetLink | None:
        """The link to fetch now, if the wait for others is over.

        One that was taken before comes again when it has been announced again, with a later clock.
        """
        if self._waiting is None or now < self._waiting.until:
            return None
        self.taken, self._waiting = self._waiting.newest, None
        return self.taken


_PUBLIC_MESSAGE = 102
_PROTOCOL_MESSAGE = {_PUBLIC_MESSAGE: fields.data("public_message", MAX_PAYLOAD_BYTES)}
_APPLICATION_METADATA_MESSAGE = {
    1: fields.data("signature", SIGNATURE_BYTES),
    2: fields.data("payload", MAX_PAYLOAD_BYTES),
    3: fields.number("type", MAX_U32),
}
_LINK = {1: fields.number("clock", MAX_U64), 2: fields.data("magnet_uri", MAX_URI_BYTES)}
