"""Reads the fields of many envelopes at once, in columns, if they have the usual form. Nearly all have it.

    [0xf9 length, 0x84 expiry, ttl, 0x84 topic, 0xb9 size data, 0x80 + n nonce]

`mailserver.waku.envelope` reads envelopes of this form in one step, too, and those of any other form.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from mailserver.archive.errors import ArchiveError
from mailserver.ids.envelopes import META_BYTES, NS
from mailserver.waku.envelope import NONCE_BYTES

HEAD_BYTES = 17
"""All that comes before the data."""

LENGTH = slice(1, 3)
"""Where the length of what follows it is."""

TOPIC = slice(10, 14)
"""Where the topic is."""

_EXPIRY, _TTL, _SIZE = slice(4, 8), 8, slice(15, 17)
_PREFIXES = ((0, 0xF9), (3, 0x84), (9, 0x84), (14, 0xB9))

_META = np.dtype([("created", ">u8"), ("ttl", ">u4"), ("nonce", "u1", NONCE_BYTES)])

MAX_BYTES = 2**31 - 1
"""A column of Arrow's type `binary` can have no more bytes."""

Bytes = np.ndarray[Any, np.dtype[np.uint8]]
Numbers = np.ndarray[Any, np.dtype[np.int64]]
Mask = np.ndarray[Any, np.dtype[np.bool_]]


@dataclass(frozen=True, slots=True)
class Heads:
    """Where the fields of envelopes are, a row each.

    `data`: the first HEAD_BYTES of each. `nonce_at`: the offset of its nonce's header, where the data ends. `nonces`:
    NONCE_BYTES of each, big-endian. `lengths`: of the whole envelope. Of another form than the usual one, they mean
    nothing.
    """

    data: Bytes
    nonce_at: Numbers
    nonces: Bytes
    lengths: Numbers

    def of(self, rows: Mask) -> "Heads":
        """Some of them."""
        return Heads(self.data[rows], self.nonce_at[rows], self.nonces[rows], self.lengths[rows])

    @property
    def expiry(self) -> Numbers:
        """Unix seconds."""
        return _numbers(self.data[:, _EXPIRY])

    @property
    def ttl(self) -> Numbers:
        """Seconds."""
        return self.data[:, _TTL].astype(np.int64)

    @property
    def created(self) -> Numbers:
        """Unix seconds: expiry - ttl."""
        return self.expiry - self.ttl

    @property
    def metas(self) -> Bytes:
        """What `mailserver.ids.envelopes.meta_of` makes of each. It means nothing if `created` is below 1."""
        fields = np.empty(len(self.lengths), _META)
        fields["created"], fields["ttl"], fields["nonce"] = self.created * NS, self.ttl, self.nonces
        return fields.view(np.uint8).reshape(len(fields), META_BYTES)

    def data_of(self, raws: Sequence[bytes]) -> list[bytes]:
        """The data of each, out of the whole envelopes."""
        return [raw[HEAD_BYTES:end] for raw, end in zip(raws, self.nonce_at.tolist(), strict=True)]


def column_of(raws: Sequence[bytes]) -> pa.Array:
    """A column of envelopes, whose bytes are copied once.

    Raises:
        ArchiveError: they have more than MAX_BYTES.
    """
    offsets = np.zeros(len(raws) + 1, np.int64)
    np.fromiter(map(len, raws), np.int64, len(raws)).cumsum(out=offsets[1:])
    if offsets[-1] > MAX_BYTES:
        raise ArchiveError(f"{len(raws)} rows have {offsets[-1]} bytes of envelopes, a column can have {MAX_BYTES}")
    buffers = [None, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(b"".join(raws))]
    return pa.Array.from_buffers(pa.binary(), len(raws), buffers)


def offsets_of(raws: pa.Array) -> Numbers:
    """Where each envelope of a column begins in the bytes of all, and where the last one ends."""
    return np.frombuffer(raws.buffers()[1], np.int32, len(raws) + 1, 4 * raws.offset).astype(np.int64)


def read_heads(raws: pa.Array) -> tuple[Heads, Mask]:
    """Read the heads of envelopes, and tell which of them have the usual form.

    Args:
        raws: binary, without nulls. They may be any other bytes, too.
    """
    joined = np.frombuffer(raws.buffers()[2] or b"\0", np.uint8)
    offsets = offsets_of(raws)
    starts, ends = offsets[:-1], offsets[1:]
    lengths = ends - starts
    data = _windows(joined, starts, HEAD_BYTES)
    nonce_at = HEAD_BYTES + _numbers(data[:, _SIZE])
    tails = _windows(joined, starts + nonce_at, 2)  # the nonce's header and its first byte
    nonce_bytes = lengths - nonce_at - 1
    nonces = _windows(joined, ends - NONCE_BYTES, NONCE_BYTES)
    nonces[np.arange(NONCE_BYTES, 0, -1) > nonce_bytes[:, np.newaxis]] = 0
    usual: Mask = (nonce_bytes > 0) & (nonce_bytes <= NONCE_BYTES) & (_numbers(data[:, LENGTH]) == lengths - 3)
    for at, prefix in _PREFIXES:
        usual &= data[:, at] == prefix
    for at in (_EXPIRY.start, _TTL, _SIZE.start):  # else it is not in its shortest form
        usual &= data[:, at] > 0
    usual &= data[:, _TTL] < 0x80
    usual &= (tails[:, 0] == 0x80 + nonce_bytes) & (tails[:, 1] > np.where(nonce_bytes == 1, 0x7F, 0))
    return Heads(data, nonce_at, nonces, lengths), usual


def values_of(data: Bytes) -> list[bytes]:
    """The bytes of each row."""
    count, width = data.shape
    values: list[bytes] = np.ascontiguousarray(data).view(f"V{width}").reshape(count).tolist()
    return values


def hex_digits(data: Bytes) -> Bytes:
    """Each row's bytes as text, without 0x."""
    return np.frombuffer(data.tobytes().hex().encode(), np.uint8).reshape(len(data), 2 * data.shape[1])


def _windows(data: Bytes, starts: Numbers, width: int) -> Bytes:
    """`width` bytes from each start on.

    Those of an envelope that is too short reach beyond it. Its length shows that it does not have the usual form.
    """
    return np.take(data, starts[:, np.newaxis] + np.arange(width), mode="clip")


def _numbers(data: Bytes) -> Numbers:
    """The bytes of each row as a big-endian integer."""
    numbers = np.zeros(len(data), np.int64)
    for column in data.T:
        numbers = numbers << 8 | column
    return numbers
