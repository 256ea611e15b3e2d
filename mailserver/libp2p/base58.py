"""base58btc: bytes as text without the letters that look like others.

Spec: multiformats/multibase, "base58btc"; each zero byte at the start is one "1". Both ways take time that grows with
the square of the length, so both are bounded.
"""

from mailserver.errors import DecodeError

MAX_TEXT_CHARACTERS = 128
"""Peer ids, the only thing that is written so, have 52 at most."""

_ALPHABET = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"
_VALUES = {letter: value for value, letter in enumerate(_ALPHABET)}


def encode(data: bytes) -> str:
    """The text of some bytes."""
    rest = int.from_bytes(data, "big")
    letters = []
    while rest:
        rest, value = divmod(rest, 58)
        letters.append(_ALPHABET[value])
    zeros = len(data) - len(data.lstrip(b"\0"))
    return _ALPHABET[0] * zeros + "".join(reversed(letters))


def decode(text: str) -> bytes:
    """The bytes of a text.

    Raises:
        DecodeError: longer than MAX_TEXT_CHARACTERS, or a letter that is none of base58btc's.
    """
    if len(text) > MAX_TEXT_CHARACTERS:
        raise DecodeError("base58 text is too long", got=len(text), limit=MAX_TEXT_CHARACTERS)
    number = 0
    for letter in text:
        value = _VALUES.get(letter)
        if value is None:
            raise DecodeError("letter is none of base58's", got=repr(letter))
        number = number * 58 + value
    zeros = len(text) - len(text.lstrip(_ALPHABET[0]))
    return bytes(zeros) + number.to_bytes((number.bit_length() + 7) // 8, "big")
