"""The messages of negentropy v1: how they are read and written, with a bound for all that is in them.

    message = 0x61, ranges
    range   = upper bound, mode, payload        the lower bound is the upper one of the range before
    bound   = timestamp, length, id prefix      timestamp: 0 is infinity, else 1 + what it is above the one before
    mode    = 0 Skip, 1 Fingerprint(16), 2 IdList: count, ids(32 each)

Numbers are base 128, the most significant digit first, as few digits as possible. What follows the last range is
skipped. Inside, a bound is the timestamp (8 bytes, big-endian) and the prefix, and an item's key is its timestamp and
its id: so bounds and keys compare as bytes.
Spec: github.com/hoytech/negentropy, docs/negentropy-protocol-v1.md.
"""

from collections.abc import Iterable, Iterator
from enum import IntEnum
from typing import NamedTuple

from mailserver.errors import DecodeError

VERSION = 0x61
VERSIONS = range(0x60, 0x70)
"""What the first byte of a message may be: protocol version 1 is 0x61."""

ID_BYTES = 32
FINGERPRINT_BYTES = 16
TIMESTAMP_BYTES = 8
KEY_BYTES = TIMESTAMP_BYTES + ID_BYTES

MAX_VARINT_BYTES = 10
"""As many digits as a number of 64 bits takes."""

MAX_MESSAGE_BYTES = 1_000_000
"""The longest message that is read or written: it fits into a packet of 1 MiB."""

MIN_FRAME_BYTES = 4096
"""The least that a side may limit its messages to, as in the reference. One range that differs takes up to 1,100."""

FRAME_RESERVE_BYTES = 200
"""What is kept free of a frame, as in the reference: for a range that is skipped, a cut list, and the rest."""

INFINITY = bytes([0xFF]) * TIMESTAMP_BYTES
"""The bound above all items: no item has this timestamp."""

MAX_TIMESTAMP = (1 << 64) - 2

_ZERO = bytes(TIMESTAMP_BYTES)


class Mode(IntEnum):
    """What a side says of a range."""

    SKIP = 0
    FINGERPRINT = 1
    ID_LIST = 2


class Range(NamedTuple):
    """What a side says of its items below `upper` that no range before has.

    `payload` is empty for Skip, 16 bytes for Fingerprint, all ids joined for IdList.
    """

    upper: bytes
    mode: Mode
    payload: bytes = b""


class OtherVersion(DecodeError):
    """The other side speaks another version of the protocol."""


def check_version(message: bytes) -> None:
    """Look at the first byte of a message, and at its length.

    Raises:
        OtherVersion: another version than ours; `.got` is its byte.
        DecodeError: no version at all, or the message is longer than MAX_MESSAGE_BYTES.
    """
    if len(message) > MAX_MESSAGE_BYTES:
        raise DecodeError("reconciliation message is too long", got=len(message), limit=MAX_MESSAGE_BYTES)
    version = message[0] if message else None
    if version not in VERSIONS:
        raise DecodeError("reconciliation message has no version", got=version)
    if version != VERSION:
        raise OtherVersion("reconciliation has another version", got=version, limit=VERSION)


def read_ranges(message: bytes) -> Iterator[Range]:
    """Read the ranges behind the version, one by one. The smallest have 3 bytes: to read all of them takes up to 0.8 s.

    Raises:
        DecodeError: a number is cut off, too long or not in its shortest form; bounds do not rise; a prefix is longer
            than an id; the mode is unknown; a list is longer than the message.
    """
    at, end = 1, len(message)
    timestamp, lower = 0, _ZERO
    while at < end:
        offset, at = read_varint(message, at)
        length, at = read_varint(message, at)
        if length > (0 if offset == 0 else ID_BYTES):
            raise DecodeError("prefix of a bound is too long", got=length)
        if offset == 0:
            upper = INFINITY
        else:
            timestamp += offset - 1
            if timestamp > MAX_TIMESTAMP:
                raise DecodeError("timestamp of a bound is too large", got=timestamp, limit=MAX_TIMESTAMP)
            prefix, at = _take(message, at, length, "prefix of a bound")
            upper = timestamp.to_bytes(TIMESTAMP_BYTES, "big") + prefix
        # The reference adds an empty range up to infinity where its last list has filled the frame.
        if upper <= lower and upper != INFINITY:
            raise DecodeError("bounds do not rise")
        mode, at = read_varint(message, at)
        payload = b""
        if mode == Mode.FINGERPRINT:
            payload, at = _take(message, at, FINGERPRINT_BYTES, "fingerprint")
        elif mode == Mode.ID_LIST:
            count, at = read_varint(message, at)
            payload, at = _take(message, at, count * ID_BYTES, "list of ids")
        elif mode != Mode.SKIP:
            raise DecodeError("mode of a range is unknown", got=mode)
        yield Range(upper, Mode(mode), payload)
        lower = upper


def _take(data: bytes, at: int, length: int, what: str) -> tuple[bytes, int]:
    stop = at + length
    if stop > len(data):
        raise DecodeError(f"{what} is truncated", got=len(data) - at, limit=length)
    return data[at:stop], stop


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    """Read a number of at most 64 bits at an offset; return it, and where it ends.

    Raises:
        DecodeError: cut off, larger, or not in its shortest form.
    """
    value = 0
    for stop, byte in enumerate(data[at : at + MAX_VARINT_BYTES], at + 1):
        if byte == 0x80 and stop == at + 1:
            raise DecodeError("number is not in its shortest form")
        value = value << 7 | byte & 0x7F
        if byte < 0x80:
            if value >> 64:
                break
            return value, stop
    if at + MAX_VARINT_BYTES > len(data):
        raise DecodeError("number is truncated")
    raise DecodeError("number has more than 64 bits")


def write_varint(value: int) -> bytes:
    """A number from 0 up, base 128, the most significant digit first."""
    digits = [value & 0x7F]
    while value := value >> 7:
        digits.append(value & 0x7F | 0x80)
    return bytes(reversed(digits))


def bound_between(before: bytes, key: bytes) -> bytes:
    """The shortest bound above one key that is not above the next.

    Args:
        before, key: KEY_BYTES each; `before` is the lower one.
    """
    if before[:TIMESTAMP_BYTES] != key[:TIMESTAMP_BYTES]:
        return key[:TIMESTAMP_BYTES]
    shared = TIMESTAMP_BYTES
    while before[shared] == key[shared]:
        shared += 1
    return key[: shared + 1]


def split_ids(joined: bytes) -> list[bytes]:
    """The ids of a list."""
    return [joined[at : at + ID_BYTES] for at in range(0, len(joined), ID_BYTES)]


class FrameWriter:
    """Writes a message of limited length. Ranges that are skipped one after the other become one, at the end none."""

    def __init__(self, frame_bytes: int) -> None:
        """Begin a message of at most `frame_bytes`."""
        self._most = frame_bytes - FRAME_RESERVE_BYTES
        self._written = bytearray([VERSION])
        self._timestamp = 0  # of the last bound written
        self._skipped: bytes | None = None

    @property
    def room(self) -> int:
        """How many bytes are left before the reserve; below 0 if that is touched."""
        return self._most - len(self._written)

    def skip(self, upper: bytes) -> None:
        """Skip to a bound."""
        self._skipped = upper

    def add(self, ranges: Iterable[Range]) -> bool:
        """Write all of these ranges and return True; or none of them, if they do not fit."""
        length, timestamp, skipped = len(self._written), self._timestamp, self._skipped
        self.put(ranges)
        if self.room >= 0:
            return True
        del self._written[length:]
        self._timestamp, self._skipped = timestamp, skipped
        return False

    def put(self, ranges: Iterable[Range]) -> None:
        """Write ranges, also into the reserve."""
        if self._skipped is not None:
            self._write(Range(self._skipped, Mode.SKIP))
            self._skipped = None
        for each in ranges:
            self._write(each)

    def message(self) -> bytes:
        """What was written."""
        return bytes(self._written)

    def _write(self, each: Range) -> None:
        written = self._written
        if each.upper == INFINITY:
            written += b"\0\0"
        else:
            timestamp = int.from_bytes(each.upper[:TIMESTAMP_BYTES], "big")
            prefix = each.upper[TIMESTAMP_BYTES:]
            written += write_varint(timestamp - self._timestamp + 1)
            written.append(len(prefix))
            written += prefix
            self._timestamp = timestamp
        written.append(each.mode)
        if each.mode is Mode.ID_LIST:
            written += write_varint(len(each.payload) // ID_BYTES)
        written += each.payload
