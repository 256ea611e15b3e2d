"""Snappy block format (no framing), with the announced length checked before anything is inflated.

Data that is short, or sealed, does not get smaller: its block is one literal, with all bytes as they are. Such blocks
are made and read here, and only others by the library. The library releases Python's lock however short a block is; if
the thread that writes the store takes it, the event loop waits for it three times per packet.
"""

import cramjam

from mailserver.errors import DecodeError

_MAX_SHORT_BYTES = 60
"""The longest literal whose length is in its tag. For longer ones, compression may pay."""

_LITERAL = 0  # the lower two bits of a tag; the upper six are the length less one, or the number of its bytes
_ONE_BYTE, _TWO_BYTES = 60 << 2 | _LITERAL, 61 << 2 | _LITERAL


def announced_bytes(data: bytes | memoryview) -> int:
    """The length of a block when inflated, as it announces it. Its first 5 bytes are enough.

    Raises:
        DecodeError: no length.
    """
    try:
        return int(cramjam.snappy.decompress_raw_len(data))
    except cramjam.DecompressionError as error:
        raise DecodeError("Snappy length is unreadable") from error


def compress(data: bytes) -> bytes:
    """Compress one block."""
    size = len(data)
    if 0 < size <= _MAX_SHORT_BYTES:
        return bytes((size, size - 1 << 2 | _LITERAL)) + data
    return bytes(cramjam.snappy.compress_raw(data))


def decompress(data: bytes, *, max_bytes: int) -> bytes:
    """Inflate one block that announces at most `max_bytes`.

    Raises:
        DecodeError: no length, more announced than `max_bytes`, or a damaged block.
    Spec: EIP-706 "Avoiding DOS attacks": the length is read before memory is taken for it.
    """
    literal = _only_literal(data)
    if literal is not None and len(literal) <= max_bytes:
        return literal
    announced = announced_bytes(data)
    if announced > max_bytes:
        raise DecodeError("Snappy announces too much", got=announced, limit=max_bytes)
    try:
        return bytes(cramjam.snappy.decompress_raw(data))
    except cramjam.DecompressionError as error:
        raise DecodeError("Snappy block is damaged") from error


def decompress_long(data: memoryview) -> bytearray:
    """Inflate one block whose announced length was found acceptable. It is for a thread: it holds no lock meanwhile.

    Raises:
        DecodeError: no length, or a damaged block.
    """
    inflated = bytearray(announced_bytes(data))  # allocated once: nothing is copied
    try:
        size = cramjam.snappy.decompress_raw_into(data, inflated)
    except cramjam.DecompressionError as error:
        raise DecodeError("Snappy block is damaged") from error
    if size != len(inflated):
        raise DecodeError("Snappy block is damaged", got=size, limit=len(inflated))
    return inflated


def _only_literal(data: bytes) -> bytes | None:
    """The content of a block that is one literal of less than 16 KiB; None for any other block, or a damaged one."""
    if len(data) < 3:
        return None
    size, at = data[0], 1
    if size & 0x80:
        if data[1] & 0x80:
            return None
        size, at = size & 0x7F | data[1] << 7, 2
    tag = data[at]
    if size <= _MAX_SHORT_BYTES:
        return data[at + 1 :] if tag == size - 1 << 2 and len(data) == at + 1 + size else None
    if tag == _TWO_BYTES and len(data) == at + 3 + size and data[at + 1] | data[at + 2] << 8 == size - 1:
        return data[at + 3 :]
    if tag == _ONE_BYTE and len(data) == at + 2 + size and data[at + 1] == size - 1:
        return data[at + 2 :]
    return None


def max_compressed_bytes(plain_bytes: int) -> int:
    """The longest block that `plain_bytes` can compress to (Snappy's MaxCompressedLength)."""
    return 32 + plain_bytes + plain_bytes // 6
