"""How an answer is cut into P2P Message packets."""

from collections.abc import Iterator, Sequence

from mailserver.waku.envelope import packet_bytes
from mailserver.waku.packets import MAX_PACKET_BYTES

TARGET_PACKET_BYTES = 64 * 1024
"""A packet is closed when it reaches this: the first one leaves early, a slow phone gets one through within the
write timeout, and 500 clients that do not read have us keep 32 MB."""


def cut(sizes: Sequence[int], *, one_per_packet: bool = False, target: int = TARGET_PACKET_BYTES) -> Iterator[range]:
    """Cut envelopes of these sizes, in bytes and in order, into packets; yield which belong to each.

    A packet holds at least one envelope, and more only as long as the whole stays within `target` and
    MAX_PACKET_BYTES. An envelope that is too long for any packet gets one to itself.
    """
    bound = min(target, MAX_PACKET_BYTES)
    start, body = 0, 0
    for index, size in enumerate(sizes):
        if index > start and (one_per_packet or packet_bytes(body + size) > bound):
            yield range(start, index)
            start, body = index, 0
        body += size
    if start < len(sizes):
        yield range(start, len(sizes))
