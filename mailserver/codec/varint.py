"""Numbers without sign, seven bits a byte, the lowest first: protobuf's, and those of multiformats/unsigned-varint."""

from mailserver.errors import DecodeError

_MORE = 0x80
"""The bit of a byte that says that another one follows."""

_NINE_BYTES = 1 << 56
"""From here on a number takes nine bytes, as times in nanoseconds do, up to seven bits more."""

_ONE_BYTE = tuple(bytes((value,)) for value in range(_MORE))
"""Most numbers are short. Without this, and the two bytes below, encoding a message takes twice as long."""


def encode(value: int) -> bytes:
    """The bytes of a number, as few as it takes."""
    if value < _MORE:
        return _ONE_BYTE[value]
    if value < _MORE << 7:
        return bytes((value & 0x7F | _MORE, value >> 7))
    if _NINE_BYTES <= value < _NINE_BYTES << 7:
        return _nine_bytes(value)
    digits = bytearray()
    while value >= _MORE:
        digits.append(value & 0x7F | _MORE)
        value >>= 7
    digits.append(value)
    return bytes(digits)


def _nine_bytes(value: int) -> bytes:
    """The same in half the time: the lower 56 bits are spread over 64 by halves."""
    last, low = value >> 56, value & 0xFF_FFFF_FFFF_FFFF
    low = low & 0xFFF_FFFF | low >> 28 << 32
    low = low & 0x3FFF_0000_3FFF | (low & 0xFFF_C000_0FFF_C000) << 2
    low = low & 0x7F_007F_007F_007F | (low & 0x3F80_3F80_3F80_3F80) << 1
    return (last << 64 | low | 0x8080_8080_8080_8080).to_bytes(9, "little")


def decode(data: bytes | bytearray, at: int, most: int) -> tuple[int, int] | None:
    """Read a number at `at` that is in its shortest form, as unsigned-varint demands; protobuf does not.

    Args:
        most: in how many bytes it may be written.

    Returns:
        The number, and where it ends; None if more of it is still to come.

    Raises:
        DecodeError: it is longer, or not in its shortest form.
    """
    value = 0
    for place, byte in enumerate(data[at : at + most]):
        value |= (byte & 0x7F) << 7 * place
        if byte < _MORE:
            if byte == 0 and place:
                raise DecodeError("varint is not in its shortest form")
            return value, at + place + 1
    if len(data) - at >= most:
        raise DecodeError("varint is too long", limit=most)
    return None
