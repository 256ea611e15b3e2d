"""Makes rows of the archive from rows of a store: decodes, hashes anew, and compares with what the store says.

Envelopes of the usual form are decoded in columns, all rows of a statement at once (`spark_export.usual_form`): only
hashing is done row by row: the envelope, its proof of work, and its MUID. Any other row, and any that differs from its
columns, goes to `decode_row`, which says what is wrong with it.
"""

from collections.abc import Sequence
from itertools import compress
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema

from mailserver.codec.keccak import keccak256
from mailserver.errors import DecodeError
from mailserver.store.engine.row_check import decode_and_compare
from mailserver.store.sqlite.schema import HASH_PREFIX_BYTES
from spark_export.muids import muid_of, muids_of_usual
from spark_export.parquet_file import ROWS
from spark_export.schema import DECODED
from spark_export.usual_form import (
    LENGTH,
    TOPIC,
    Bytes,
    Heads,
    Mask,
    Numbers,
    column_of,
    hex_digits,
    read_heads,
    values_of,
)

_SCHEMA = to_arrow_schema(DECODED)

_HASH_BYTES = 32
_EXACT_BITS = 53  # of an integer in a float64


class StoredRows(NamedTuple):
    """Rows of a store, in columns. In a damaged row, topic and hash may be of any type."""

    received: Sequence[int]
    created: Sequence[int]
    topic: Sequence[Any]
    key_hash: Sequence[Any]
    raw: Sequence[bytes]


def decode_rows(rows: StoredRows, network_topic: str | None) -> pa.RecordBatch:
    """Decode one or more rows as `decode_row` does. Their order stays the same."""
    usual, batch = _decode_usual(rows, network_topic)
    count = len(rows.raw)
    if len(usual) == count:
        return batch
    others = np.setdiff1d(np.arange(count), usual)
    decoded = (
        decode_row(rows.received[at], rows.created[at], rows.topic[at], rows.key_hash[at], rows.raw[at], network_topic)
        for at in others.tolist()
    )
    columns = zip(*decoded, strict=True)
    arrays = [pa.array(column, kind) for column, kind in zip(columns, _SCHEMA.types, strict=True)]
    both = pa.concat_batches([batch, pa.RecordBatch.from_arrays(arrays, schema=_SCHEMA)])
    return both.take(np.argsort(np.concatenate([usual, others])))


def decode_row(
    received: int, created: int, topic: bytes, key_hash: bytes, raw: bytes, network_topic: str | None
) -> tuple[object, ...]:
    """Decode a row of a store into the columns of DECODED.

    A row that does not decode, or differs from its other columns (because a bit flipped on the disk, say), gets a
    fault.

    Args:
        network_topic: to which its MUID belongs; None: it gets none.
    """
    try:
        envelope, full_hash = decode_and_compare(created, topic, key_hash, raw)
    except DecodeError as error:
        return (str(error), None, None, received, None, None, None, None, None, raw, None)
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
        None if network_topic is None else muid_of(envelope, network_topic),
    )


def sound_rows(decoded: pa.RecordBatch, stores: pa.Array, seqs: pa.Array) -> pa.RecordBatch:
    """The rows without a fault, as rows of the archive.

    Args:
        decoded: DECODED.
        stores, seqs: ARRIVAL of each of these rows.
    """
    columns = {name: decoded.column(name) for name in decoded.schema.names}
    columns |= {"store": stores, "seq": seqs}
    rows = pa.RecordBatch.from_arrays([columns[name] for name in ROWS.names], schema=ROWS)
    is_sound = decoded.column("fault").is_null()
    return rows if is_sound.true_count == len(rows) else rows.filter(is_sound)


def hex_strings(data: Bytes) -> pa.Array:
    """Each row's bytes as text: 0x and hex digits."""
    count, width = data.shape
    text = np.empty((count, 2 + 2 * width), np.uint8)
    text[:, 0], text[:, 1] = b"0x"
    text[:, 2:] = hex_digits(data)
    offsets = np.arange(count + 1, dtype=np.int32) * np.int32(text.shape[1])
    return pa.Array.from_buffers(pa.string(), count, [None, pa.py_buffer(offsets), pa.py_buffer(text)])


def _decode_usual(rows: StoredRows, network_topic: str | None) -> tuple[Numbers, pa.RecordBatch]:
    """Decode the rows that have the usual form and match their columns; also return which those are."""
    raws = column_of(rows.raw)
    heads, usual = read_heads(raws)
    usual &= heads.created == np.array(rows.created, np.int64)
    if not usual.all():
        heads, raws = heads.of(usual), raws.filter(pa.array(usual))
        rows = StoredRows(*(list(compress(column, usual)) for column in rows))
    data = heads.data_of(rows.raw)
    full = list(map(keccak256, rows.raw))
    zero_bits, certain = _zero_bits(_pow_digests(heads, data))
    muids = [None] * len(data) if network_topic is None else muids_of_usual(heads, data, network_topic)
    batch = pa.RecordBatch.from_arrays(
        [
            pa.nulls(len(data), pa.string()),
            hex_strings(heads.data[:, TOPIC]),
            heads.created,
            np.array(rows.received, np.int64),
            heads.expiry,
            heads.ttl,
            hex_strings(np.frombuffer(b"".join(full), np.uint8).reshape(-1, _HASH_BYTES)),
            np.ldexp(1.0, zero_bits) / heads.nonce_at / heads.ttl,  # as `mailserver.waku.envelope.pow_of`
            heads.lengths.astype(np.int32),
            raws,
            pa.array(muids, pa.binary()),
        ],
        schema=_SCHEMA,
    )
    good = certain & _same(rows.topic, values_of(heads.data[:, TOPIC]))
    good &= _same(rows.key_hash, [digest[:HASH_PREFIX_BYTES] for digest in full])
    return np.flatnonzero(usual)[good], batch if good.all() else batch.filter(pa.array(good))


def _same(given: Sequence[Any], should: list[bytes]) -> Mask:
    """Which values are the same."""
    if [*given] == should:
        return np.ones(len(given), np.bool_)
    return np.array([one == other for one, other in zip(given, should, strict=True)], np.bool_)


def _pow_digests(heads: Heads, data: list[bytes]) -> Bytes:
    """The hashes from which the proof of work is computed (6/WAKU1), of envelopes of the usual form."""
    befores = heads.data.copy()
    befores[:, LENGTH] = (heads.nonce_at - LENGTH.stop).astype(">u2")[:, np.newaxis].view(np.uint8)  # without the nonce
    digests = map(keccak256, map(b"".join, zip(values_of(befores), data, values_of(heads.nonces), strict=True)))
    return np.frombuffer(b"".join(digests), np.uint8).reshape(-1, _HASH_BYTES)


def _zero_bits(digests: Bytes) -> tuple[Numbers, Mask]:
    """How many leading bits of each digest are zero, and which of these numbers are certain."""
    lead = np.ascontiguousarray(digests[:, :8]).view(">u8")[:, 0] >> np.uint64(64 - _EXACT_BITS)
    return _EXACT_BITS - np.frexp(lead.astype(np.float64))[1].astype(np.int64), lead > 0
