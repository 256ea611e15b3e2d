"""The Waku Message UID: a checksum of a message, followed by the metadata that its application has chosen.

    muid     = checksum(32) || meta(1..32)
    checksum = SHA-256(network topic || content topic || meta || payload)

Two messages with the same four parts are the same message: no time is part of it. Nothing stands between the parts. So
a byte that moves from the end of meta to the beginning of the payload leaves the checksum as it is; the metadata behind
it tells the two apart.
Spec: codex-pm, ADR 0001 "Waku Message UID (v2)".
"""

from collections.abc import Iterable
from enum import Enum
from hashlib import sha256
from typing import NewType, cast

from mailserver.errors import DecodeError, MailserverError

Muid = NewType("Muid", bytes)
"""33 to 64 bytes, never padded."""

CHECKSUM_BYTES = 32

MAX_METADATA_BYTES = 32
"""The longest meta that a MUID has room for. 14/WAKU2-MESSAGE allows twice as much."""

MAX_MUID_BYTES = CHECKSUM_BYTES + MAX_METADATA_BYTES

DEFAULT_NETWORK_TOPIC = "/waku/2/rs/1/4"
"""The shard of the public network on which the content topics of v1 envelopes lie."""


MAX_NETWORK_TOPIC_BYTES = 255
"""In UTF-8. Deployed ones have less than 40."""


class NoId(MailserverError):
    """A message has no id of this kind. `str()` says why."""


class Difference(Enum):
    """What of a message is not as its MUID says."""

    META = "meta"
    CONTENT = "network topic, content topic or payload"


def muid(network_topic: str, content_topic: str, meta: bytes, payload: bytes) -> Muid:
    """Compute the MUID of a message.

    Raises:
        NoId: the message has no meta, or more than MAX_METADATA_BYTES of it.
    """
    if not meta:
        raise NoId("a message without meta has no MUID")
    if len(meta) > MAX_METADATA_BYTES:
        raise NoId(f"a message with {len(meta)} bytes of meta has no MUID: it may have {MAX_METADATA_BYTES}")
    return muid_after((network_topic + content_topic).encode(), meta, payload)


def muid_after(topics: bytes, meta: bytes, payload: bytes) -> Muid:
    """Compute the MUID of a message whose topics are joined already, and whose meta is of a length that is allowed.

    Args:
        topics: network topic || content topic.
    """
    return Muid(sha256(topics + meta + payload).digest() + meta)


def muids_after(befores: Iterable[bytes], metas: Iterable[bytes], payloads: Iterable[bytes]) -> list[Muid]:
    """Compute the MUIDs of many messages as `muid_after` does of each.

    Args:
        befores: network topic || content topic || meta.
    """
    parts = zip(befores, metas, payloads, strict=True)
    return cast("list[Muid]", [sha256(before + payload).digest() + meta for before, meta, payload in parts])


def is_muid_length(size: int) -> bool:
    """Whether a MUID may have so many bytes: 33 to 64."""
    return CHECKSUM_BYTES < size <= MAX_MUID_BYTES


def check_muid(data: bytes) -> Muid:
    """Return bytes that may be a MUID.

    Raises:
        DecodeError: not 33 to 64 bytes.
    """
    if not is_muid_length(len(data)):
        raise DecodeError("MUID is not 33 to 64 bytes", got=len(data), limit=MAX_MUID_BYTES)
    return Muid(data)


def checksum_of(name: Muid) -> bytes:
    """The first part of a MUID: 32 bytes."""
    return name[:CHECKSUM_BYTES]


def metadata_of(name: Muid) -> bytes:
    """The second part of a MUID: the meta of its message, 1 to 32 bytes."""
    return name[CHECKSUM_BYTES:]


def differences(
    name: Muid, network_topic: str, content_topic: str, meta: bytes, payload: bytes
) -> frozenset[Difference]:
    """What of a message is not as a MUID says: nothing, if it is that message's.

    If META alone differs, the checksum holds once the message has the meta that the MUID ends with. CONTENT: even then
    it does not; of what is in the checksum only, nothing says which part was changed.
    """
    named = metadata_of(name)
    found = set()
    if meta != named:
        found.add(Difference.META)
    if checksum_of(muid_after((network_topic + content_topic).encode(), named, payload)) != checksum_of(name):
        found.add(Difference.CONTENT)
    return frozenset(found)


def sync_id(name: Muid) -> bytes:
    """The 32 bytes that stand for a MUID where ids have one length: SHA-256 of it."""
    return sha256(name).digest()
