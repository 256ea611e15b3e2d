"""Magnet links, as they are announced in a community's special channel (61/STATUS "Message archive distribution").

A link is a CommunityMessageArchiveMagnetlink: clock (1, milliseconds of the Unix clock), magnet_uri (2). The
specification gives it three other names. It is the payload of an ApplicationMetadataMessage of type 43 that the
community has signed, see `application`. Only the community may announce: what others have signed is ignored.
"""

from dataclasses import dataclass
from typing import NamedTuple

from mailserver.codec.keys import PrivateKey
from mailserver.codec.protobuf import write_bytes
from mailserver.communities.application import open_application_message, sign_application_message
from mailserver.communities.channels import CommunityId, community_id
from mailserver.communities.metadata import number
from mailserver.errors import DecodeError
from mailserver.waku2 import fields
from mailserver.waku2.fields import MAX_U64

WAIT_S = 20.0
"""How long to wait for another link after the last one (61/STATUS "Downloading message archives")."""

MAX_WAIT_S = 300.0
"""How long the first of them waits at most. Without this, whoever posts old links again could hold it up for ever."""

MAX_URI_BYTES = 16 * 1024
MAX_LINK_MESSAGE_BYTES = 64 * 1024

COMMUNITY_ARCHIVE_MAGNETLINK = 43
"""The type of an ApplicationMetadataMessage that has a link."""


class ForeignLink(DecodeError):
    """A message in a special channel is none of the community's links: another has signed it, or nobody."""


class AnnouncedLink(NamedTuple):
    """A link. `clock`: Unix time in milliseconds at which it was announced: the greatest is the newest."""

    clock: int
    uri: str


def encode_link(link: AnnouncedLink, key: PrivateKey) -> bytes:
    """Sign a link, for the payload of an envelope.

    status-go takes only envelopes whose payload somebody has signed (7/WAKU-DATA), whoever it is.

    Args:
        key: the community's.
    """
    return sign_application_message(_encode(link), COMMUNITY_ARCHIVE_MAGNETLINK, key)


def next_clock(now_ms: int, last: int) -> int:
    """The clock of the next link: greater than that of the last one, even if our clock was set back in between."""
    return max(now_ms, last + 1)


def open_link(data: bytes, community: CommunityId) -> AnnouncedLink:
    """Read a link that this community has signed.

    Args:
        data: the opened payload of an envelope, see `encode_link`.
    Raises:
        ForeignLink: another has signed it, or it is something else than a link.
        DecodeError: it does not parse, or a bound is passed.
    """
    if len(data) > MAX_LINK_MESSAGE_BYTES:
        raise DecodeError("message in a special channel is too long", got=len(data), limit=MAX_LINK_MESSAGE_BYTES)
    message = open_application_message(data)
    if message.type != COMMUNITY_ARCHIVE_MAGNETLINK:
        raise ForeignLink("message in a special channel is no magnet link", got=message.type)
    if message.signer is None or community_id(message.signer) != community:
        raise ForeignLink("magnet link is not signed by the community")
    link = fields.read(message.payload, _LINK)
    return AnnouncedLink(link.number("clock") or 0, link.text("magnet_uri") or "")


def _encode(link: AnnouncedLink) -> bytes:
    return number(1, link.clock) + write_bytes(2, link.uri.encode())


@dataclass(frozen=True, slots=True)
class _Waiting:
    newest: AnnouncedLink
    since: float
    until: float


class NewestLink:
    """Finds the newest link of a community among those that arrive, in whatever order. Times are monotonic seconds.

    A link is taken WAIT_S after the last one has arrived. Links that are older than the one taken last begin no wait.
    """

    def __init__(self, taken: AnnouncedLink | None = None) -> None:
        """Begin.

        Args:
            taken: the last one that was taken, before a restart.
        """
        self.taken = taken
        self._waiting: _Waiting | None = None

    def receive(self, link: AnnouncedLink, now: float) -> bool:
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

    def handle_timer(self, now: float) -> AnnouncedLink | None:
        """The link to fetch now, if the wait for others is over.

        One that was taken before comes again when it has been announced again, with a later clock.
        """
        if self._waiting is None or now < self._waiting.until:
            return None
        self.taken, self._waiting = self._waiting.newest, None
        return self.taken


_LINK = {1: fields.number("clock", MAX_U64), 2: fields.data("magnet_uri", MAX_URI_BYTES)}
