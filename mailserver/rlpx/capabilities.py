"""Which capabilities two nodes share, and at which message id each begins. Pure functions.

Spec: rlpx.md "Message ID-based Multiplexing".
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

RESERVED_MESSAGE_IDS = 0x10
"""Message ids below this belong to the "p2p" capability."""


class Capability(NamedTuple):
    """A name and a version, as offered in Hello."""

    name: str
    version: int


@dataclass(frozen=True, slots=True)
class SharedCapability:
    """A capability that both sides support. Its message ids are `offset` to `offset + length - 1`."""

    capability: Capability
    offset: int
    length: int


def share(ours: Mapping[Capability, int], theirs: Iterable[Capability]) -> tuple[SharedCapability, ...]:
    """Choose the highest common version of each name, and give out message ids in the order of the names.

    Args:
        ours: what we support; the values are how many message ids each takes.
        theirs: what the peer offers.
    """
    common = set(ours) & set(theirs)
    highest = dict(sorted(common))  # of several versions of a name, the last one stays: the highest
    shared = []
    offset = RESERVED_MESSAGE_IDS
    for name, version in sorted(highest.items()):
        capability = Capability(name, version)
        shared.append(SharedCapability(capability, offset, ours[capability]))
        offset += ours[capability]
    return tuple(shared)


def locate(shared: Iterable[SharedCapability], message_id: int) -> tuple[Capability, int] | None:
    """Return the capability that a message id belongs to, and the packet code within it; None if it belongs to none."""
    for entry in shared:
        if entry.offset <= message_id < entry.offset + entry.length:
            return entry.capability, message_id - entry.offset
    return None
