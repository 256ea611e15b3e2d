"""Numbers without sign as libp2p writes them: seven bits a byte, the lowest first.

Spec: multiformats/unsigned-varint. There is one way to write a number: a longer one is refused.
"""

from mailserver.errors import DecodeError


def encode(value: int) -> bytes:
    """The bytes of a number."""
    digits = bytearray()
    while value > 0x7F:
        digits.append(value & 0x7F | 0x80)
        value >>= 7
    digits.append(value)
    return bytes(digits)


def decode(data: bytes | bytearray, at: int, most: int) -> tuple[int, int] | None:
    """Read a number at `at`; return it, and where it ends, or None if it has not come as a whole.

    Args:
        most: in how many bytes it may be written.
    Raises:
        DecodeError: it is longer, or not in its shortest form.
    """
    value = 0
    for place, byte in enumerate(data[at : at + most]):
        value |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            if byte == 0 and place:
                raise DecodeError("varint is not in its shortest form")
            return value, at + place + 1
    if len(data) - at >= most:
        raise DecodeError("varint is too long", limit=most)
    return None
