"""How envelopes are cut into packets."""

from collections.abc import Iterator, Sequence

from mailserver.waku.envelope import packet_bytes
from mailserver.waku.packets import MAX_PACKET_BYTES

TARGET_PACKET_BYTES = 64 * 1024
"""A packet is closed when it reaches this size. So the first packet leaves early, a slow phone receives one within the
write timeout, and 500 clients that read nothing cost 32 MB."""


def max_body_bytes(target: int) -> int:
    """The most bytes of envelopes that fit into a packet which stays within `target` and MAX_PACKET_BYTES.

    Args:
        target: at least 1 byte, the size of an empty packet.
    """
    bound = min(target, MAX_PACKET_BYTES)
    body = bound
    while packet_bytes(body) > bound:
        body -= 1
    return body


def cut(sizes: Sequence[int], target: int) -> Iterator[range]:
    """Cut envelopes of these sizes, in bytes and in order, into packets; yield which belong to each.

    A packet holds at least one envelope, and more only while the whole stays within `target` and MAX_PACKET_BYTES. An
    envelope that is too long for that gets a packet of its own. `target` is as in `max_body_bytes`.
    """
    bound = max_body_bytes(target)
    start, body = 0, 0
    for index, size in enumerate(sizes):
        if index > start and body + size > bound:
            yield range(start, index)
            start, body = index, 0
        body += size
    if start < len(sizes):
        yield range(start, len(sizes))
