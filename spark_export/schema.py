"""Columns of every dataset that the export handles, and which of them may be null.

Times are Unix seconds in 64-bit integers: a forged envelope may have been created before 1970, and may expire as late
as 2106. As seconds, the three times make up a hundredth of the archive instead of a twentieth.
"""

from pyspark.sql.types import (
    BinaryType,
    DoubleType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
)


def _required(name: str, kind: type) -> StructField:
    return StructField(name, kind(), nullable=False)


_OF_ENVELOPE = [
    _required("topic", StringType),  # 0x and 8 hex digits
    _required("created", LongType),  # the sender's claim, expiry - ttl, Unix seconds
    _required("received", LongType),  # the mailserver's clock, Unix seconds
    _required("expiry", LongType),  # Unix seconds
    _required("ttl", LongType),  # seconds
    _required("hash", StringType),  # 0x and 64 hex digits: Keccak-256 of raw
    _required("pow", DoubleType),  # proof of work (6/WAKU1)
    _required("size", IntegerType),  # bytes of raw
    _required("raw", BinaryType),  # the envelope's RLP, exactly as received
]

ARRIVAL = [
    StructField("store", StringType()),  # the id of the store that it came from
    StructField("seq", LongType()),  # its row there: they rise in the order of arrival
]
"""Where an envelope stands in the order of arrival; null if an earlier version archived it."""

_MUID = StructField("muid", BinaryType())  # 52 bytes (`mailserver.ids.envelopes`); null if the envelope has none

ENVELOPES = StructType([*_OF_ENVELOPE, *ARRIVAL, _MUID])
"""A row of the archive: one envelope. If there is a directory per topic, `topic` is a partition column instead. Files
of earlier versions lack the columns that may be null."""

_PLACE = [
    _required("store", IntegerType),  # which of the run's stores
    _required("seq", LongType),  # row in it
    _required("day", IntegerType),  # of reception
]

DECODED = StructType(
    [
        StructField("fault", StringType()),  # why the row is set aside; then all that raw would tell is null
        *(StructField(field.name, field.dataType, field.name not in ("received", "raw")) for field in _OF_ENVELOPE),
        _MUID,
    ]
)
"""What a row of a store is decoded into."""

KEYS = StructType(
    [
        *_PLACE,
        _required("received", LongType),
        _required("created", LongType),
        _required("hash", StringType),  # 0x and 32 hex digits: as much of the hash as the store holds
        _required("size", IntegerType),
    ]
)
"""A row of a store as its columns say, without a look into the envelope."""

KEY_HASH_CHARS = 34
"""How long `hash` is in KEYS; two envelopes that share so much of their hash take 2**64 attempts to make."""
