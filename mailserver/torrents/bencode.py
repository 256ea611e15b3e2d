"""Bencoding (BEP 3 "bencoding"), how torrents are written: strict, since a torrent is named by the hash of its bytes.

Every length, depth and count is checked before anything is built from it. No I/O.
"""

from typing import TypeAlias

from mailserver.errors import DecodeError

Value: TypeAlias = "int | bytes | list[Value] | dict[bytes, Value]"

MAX_DEPTH = 8
"""Deepest list or dictionary within another; an info dictionary of two files needs 4."""

MAX_VALUES = 256
"""Most values in one that is decoded; an info dictionary of two files needs 20."""

_MAX_DIGITS = 15
"""A size of a thousand terabytes has them all."""

_INT, _LIST, _DICT, _END, _ZERO, _COLON = b"ilde0:"


def encode(value: Value) -> bytes:
    """Encode a value, the keys of dictionaries in order."""
    match value:
        case int():
            return b"i%de" % value
        case bytes():
            return b"%d:%s" % (len(value), value)
        case list():
            return b"l" + b"".join(map(encode, value)) + b"e"
        case dict():
            return b"d" + b"".join(encode(key) + encode(value[key]) for key in sorted(value)) + b"e"


def decode(data: bytes) -> Value:
    """Decode exactly one value that fills `data`.

    Raises:
        DecodeError: not canonical, truncated, bytes left over, or beyond MAX_DEPTH or MAX_VALUES.
    """
    reader = _Reader(data)
    value = reader.value(0)
    if reader.at != len(data):
        raise DecodeError("bencoded value is followed by other bytes", got=len(data), limit=reader.at)
    return value


class _Reader:
    def __init__(self, data: bytes) -> None:
        self.at = 0
        self._data = data
        self._values = 0

    def value(self, depth: int) -> Value:
        self._values += 1
        if self._values > MAX_VALUES:
            raise DecodeError("too many bencoded values", limit=MAX_VALUES)
        if depth > MAX_DEPTH:
            raise DecodeError("bencoded values nest too deep", limit=MAX_DEPTH)
        match self._peek():
            case byte if byte == _INT:
                self.at += 1
                return self._number(_END, signed=True)
            case byte if byte == _LIST:
                self.at += 1
                items = []
                while self._peek() != _END:
                    items.append(self.value(depth + 1))
                self.at += 1
                return items
            case byte if byte == _DICT:
                return self._dictionary(depth)
            case _:
                return self._string()

    def _dictionary(self, depth: int) -> dict[bytes, Value]:
        self.at += 1
        items: dict[bytes, Value] = {}
        last: bytes | None = None
        while self._peek() != _END:
            key = self._string()
            if last is not None and key <= last:
                raise DecodeError("keys of a bencoded dictionary are not in order")
            items[key] = self.value(depth + 1)
            last = key
        self.at += 1
        return items

    def _string(self) -> bytes:
        length = self._number(_COLON, signed=False)
        if length > len(self._data) - self.at:
            raise DecodeError("bencoded string is cut off", got=len(self._data) - self.at, limit=length)
        start = self.at
        self.at += length
        return self._data[start : self.at]

    def _number(self, end: int, *, signed: bool) -> int:
        stop = self._data.find(end, self.at, self.at + _MAX_DIGITS + 2)
        if stop < 0:
            raise DecodeError("bencoded number has no end")
        text = self._data[self.at : stop]
        digits = text[1:] if signed and text[:1] == b"-" else text
        if not digits.isdigit() or len(digits) > _MAX_DIGITS or (digits[0] == _ZERO and text != b"0"):
            raise DecodeError("bencoded number is not canonical")
        self.at = stop + 1
        return int(text)

    def _peek(self) -> int:
        if self.at >= len(self._data):
            raise DecodeError("bencoded value is cut off", got=len(self._data))
        return self._data[self.at]
