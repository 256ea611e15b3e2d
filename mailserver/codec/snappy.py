"""Snappy block format (no framing), with the announced length checked before anything is inflated."""

import cramjam

from mailserver.errors import DecodeError


def compress(data: bytes) -> bytes:
    """Compress one block."""
    return bytes(cramjam.snappy.compress_raw(data))


def decompress(data: bytes, *, max_bytes: int) -> bytes:
    """Inflate one block that announces at most `max_bytes`.

    Raises:
        DecodeError: no length, more announced than `max_bytes`, or a damaged block.
    Spec: EIP-706 "Avoiding DOS attacks": the length is read before memory is taken for it.
    """
    try:
        announced = cramjam.snappy.decompress_raw_len(data)
    except cramjam.DecompressionError as error:
        raise DecodeError("Snappy length is unreadable") from error
    if announced > max_bytes:
        raise DecodeError("Snappy announces too much", got=announced, limit=max_bytes)
    try:
        return bytes(cramjam.snappy.decompress_raw(data))
    except cramjam.DecompressionError as error:
        raise DecodeError("Snappy block is damaged") from error


def max_compressed_bytes(plain_bytes: int) -> int:
    """The longest block that `plain_bytes` can compress to (Snappy's MaxCompressedLength)."""
    return 32 + plain_bytes + plain_bytes // 6
