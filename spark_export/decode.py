"""Makes rows of the archive from rows of a store: decodes, hashes anew, and compares with what the store says.

Nearly all envelopes have the usual form (`mailserver.waku.envelope`). These are decoded in columns, all rows of a
statement at once: only hashing, twice, is done row by row. Any other row, and any that differs from its columns, goes
to `decode_row`, which says what is wrong with it.
"""

from collections.abc import Sequence
from itertools import compress
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema

from mailserver.codec.keccak import keccak256
from mailserver.errors import DecodeError
from mailserver.store.sqlite.row_check import decode_and_compare
from mailserver.store.sqlite.schema import HASH_PREFIX_BYTES
from spark_export.schema import DECODED

_SCHEMA = to_arrow_schema(DECODED)

# [0xf9 length, 0x84 expiry, ttl, 0x84 topic, 0xb9 size data, 0x80 + n nonce]
_HEAD_BYTES = 17
_LENGTH, _EXPIRY, _TTL, _TOPIC, _SIZE = slice(1, 3), slice(4, 8), 8, slice(10, 14), slice(15, 17)
_PREFIXES = ((0, 0xF9), (3, 0x84), (9, 0x84), (14, 0xB9))
_NONCE_BYTES = 8
_HASH_BYTES = 32
_EXACT_BITS = 53  # of an integer in a float64

_HEX = np.frombuffer("".join(f"{byte:02x}" for byte in range(256)).encode(), np.uint8).reshape(256, 2)

Bytes = np.ndarray[Any, np.dtype[np.uint8]]
Numbers = np.ndarray[Any, np.dtype[np.int64]]
Mask = np.ndarray[Any, np.dtype[np.bool_]]


class StoredRow(NamedTuple):
    """A row of a store, or many in columns. In a damaged row, topic and hash may be of any type."""

    received: Any
    created: Any
    topic: Any
    key_hash: Any
    raw: Any


def decode_rows(rows: Sequence[Sequence[Any]]) -> pa.RecordBatch:
    """Decode one or more rows, each with the fields of StoredRow, as `decode_row` does. Their order stays the same."""
    usual, batch = _decode_usual(StoredRow(*zip(*rows, strict=True)))
    if len(usual) == len(rows):
        return batch
    others = np.setdiff1d(np.arange(len(rows)), usual)
    columns = zip(*(decode_row(*rows[at]) for at in others), strict=True)
    arrays = [pa.array(column, kind) for column, kind in zip(columns, _SCHEMA.types, strict=True)]
    both = pa.concat_batches([batch, pa.RecordBatch.from_arrays(arrays, schema=_SCHEMA)])
    return both.take(np.argsort(np.concatenate([usual, others])))


def decode_row(received: int, created: int, topic: bytes, key_hash: bytes, raw: bytes) -> tuple[object, ...]:
    """Decode a row of a store into the columns of DECODED.

    A row that does not decode, or differs from its other columns (because a bit flipped on the disk, say), gets a
    fault.
    """
    try:
        envelope, full_hash = decode_and_compare(created, topic, key_hash, raw)
    except DecodeError as error:
        return (str(error), None, None, received, None, None, None, None, None, raw)
    return (
        None,
        "0x" + topic.hex(),
        created,
        received,
        envelope.expiry,
        envelope.ttl,
        "0x" + full_hash.hex(),
        envelope.pow(),
        len(raw),
        raw,
    )


def hex_strings(data: Bytes) -> pa.Array:
    """Each row's bytes as text: 0x and hex digits."""
    count, width = data.shape
    text = np.empty((count, 2 + 2 * width), np.uint8)
    text[:, 0], text[:, 1] = b"0x"
    text[:, 2:] = _HEX[data].reshape(count, 2 * width)
    offsets = np.arange(count + 1, dtype=np.int32) * np.int32(text.shape[1])
    return pa.Array.from_buffers(pa.string(), count, [None, pa.py_buffer(offsets), pa.py_buffer(text)])


def _decode_usual(rows: StoredRow) -> tuple[Numbers, pa.RecordBatch]:
    """Decode the rows that have the usual form and match their columns; also return which those are."""
    lengths = np.fromiter(map(len, rows.raw), np.int64)
    joined = b"".join(rows.raw)
    starts = lengths.cumsum() - lengths
    heads = _windows(joined, starts, _HEAD_BYTES)
    nonce_at = _HEAD_BYTES + _numbers(heads[:, _SIZE])
    tails = _windows(joined, starts + nonce_at, 2)
    usual = _usual(heads, tails, lengths, nonce_at) & (_created(heads) == np.array(rows.created, np.int64))

    heads, nonce_at, lengths = heads[usual], nonce_at[usual], lengths[usual]
    topics, key_hashes, raws = (list(compress(column, usual)) for column in (rows.topic, rows.key_hash, rows.raw))
    full = [keccak256(raw) for raw in raws]
    zero_bits, certain = _zero_bits(_pow_digests(raws, nonce_at.tolist()))
    batch = pa.RecordBatch.from_arrays(
        [
            pa.nulls(len(raws), pa.string()),
            hex_strings(heads[:, _TOPIC]),
            _created(heads),
            np.array(rows.received, np.int64)[usual],
            _numbers(heads[:, _EXPIRY]),
            heads[:, _TTL].astype(np.int64),
            hex_strings(np.frombuffer(b"".join(full), np.uint8).reshape(-1, _HASH_BYTES)),
            np.ldexp(1.0, zero_bits) / nonce_at / heads[:, _TTL],  # as `mailserver.waku.envelope.pow_of`
            lengths.astype(np.int32),
            pa.array(raws, pa.binary()),
        ],
        schema=_SCHEMA,
    )
    told = zip(topics, key_hashes, raws, full, strict=True)
    same = [raw[_TOPIC] == topic and digest[:HASH_PREFIX_BYTES] == key for topic, key, raw, digest in told]
    good = certain & np.array(same, np.bool_)
    return np.flatnonzero(usual)[good], batch if good.all() else batch.filter(pa.array(good))


def _usual(heads: Bytes, tails: Bytes, lengths: Numbers, nonce_at: Numbers) -> Mask:
    """Which rows have the usual form; `tails`: the nonce's header and its first byte."""
    nonce_bytes = lengths - nonce_at - 1
    usual: Mask = (nonce_bytes > 0) & (nonce_bytes <= _NONCE_BYTES) & (_numbers(heads[:, _LENGTH]) == lengths - 3)
    for at, prefix in _PREFIXES:
        usual &= heads[:, at] == prefix
    for at in (_EXPIRY.start, _TTL, _SIZE.start):  # else it is not in its shortest form
        usual &= heads[:, at] > 0
    usual &= heads[:, _TTL] < 0x80
    usual &= (tails[:, 0] == 0x80 + nonce_bytes) & (tails[:, 1] > np.where(nonce_bytes == 1, 0x7F, 0))
    return usual


def _created(heads: Bytes) -> Numbers:
    return _numbers(heads[:, _EXPIRY]) - heads[:, _TTL]


def _pow_digests(raws: list[bytes], nonces_at: list[int]) -> Bytes:
    """The hashes from which the proof of work is computed (6/WAKU1), of envelopes of the usual form."""
    prefixes = {at: b"\xf9" + (at - 3).to_bytes(2, "big") for at in set(nonces_at)}
    digests = [
        keccak256(prefixes[at] + raw[3:at] + raw[at + 1 :].rjust(_NONCE_BYTES, b"\0"))
        for raw, at in zip(raws, nonces_at, strict=True)
    ]
    return np.frombuffer(b"".join(digests), np.uint8).reshape(-1, _HASH_BYTES)


def _zero_bits(digests: Bytes) -> tuple[Numbers, Mask]:
    """How many leading bits of each digest are zero, and which of these numbers are certain."""
    lead = np.ascontiguousarray(digests[:, :8]).view(">u8")[:, 0] >> np.uint64(64 - _EXACT_BITS)
    return _EXACT_BITS - np.frexp(lead.astype(np.float64))[1].astype(np.int64), lead > 0


def _windows(data: bytes, starts: Numbers, width: int) -> Bytes:
    """`width` bytes from each start on; zeros after the end."""
    padded = np.frombuffer(data + bytes(width), np.uint8)
    return padded[np.minimum(starts, len(data))[:, np.newaxis] + np.arange(width)]


def _numbers(data: Bytes) -> Numbers:
    """The bytes of each row as a big-endian integer."""
    numbers = np.zeros(len(data), np.int64)
    for column in data.T:
        numbers = numbers << 8 | column
    return numbers
