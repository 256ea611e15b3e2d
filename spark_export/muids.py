"""Adds the MUID of each envelope to rows of the archive. It is made from the envelope's bytes and a network topic."""

from itertools import compress

import numpy as np
import pyarrow as pa

from mailserver.errors import DecodeError
from mailserver.ids.envelopes import envelope_muid, envelope_muids
from mailserver.ids.muid import Muid, NoId
from mailserver.waku.envelope import decode_envelope
from spark_export.parquet_file import ROWS
from spark_export.usual_form import HEAD_BYTES, TOPIC, Heads, read_heads, values_of

BATCH_ROWS = 4000
"""How many envelopes are read at once: 2 MB of usual ones."""


def with_muids(rows: pa.Table, network_topic: str) -> pa.Table:
    """Give each row the MUID of its envelope, whatever its column `muid` has; null if the envelope has none.

    Args:
        rows: ROWS.
    """
    muids: list[Muid | None] = []
    for batch in rows.select(["raw"]).to_batches(max_chunksize=BATCH_ROWS):
        muids += _muids(batch.column(0).to_pylist(), network_topic)
    return rows.set_column(ROWS.get_field_index("muid"), ROWS.field("muid"), pa.array(muids, pa.binary()))


def _muids(raws: list[bytes], network_topic: str) -> list[Muid | None]:
    heads, usual = read_heads(raws)
    if usual.all():
        return _of_usual(raws, heads, network_topic)
    of_usual = iter(_of_usual(list(compress(raws, usual)), heads.of(usual), network_topic))
    return [
        next(of_usual) if is_usual else _muid(raw, network_topic) for raw, is_usual in zip(raws, usual, strict=True)
    ]


def _of_usual(raws: list[bytes], heads: Heads, network_topic: str) -> list[Muid | None]:
    """The MUIDs of envelopes of the usual form."""
    data = [raw[HEAD_BYTES:end] for raw, end in zip(raws, heads.nonce_at.tolist(), strict=True)]
    metas: list[bytes | None] = [*heads.metas]
    for at in np.flatnonzero(heads.created < 1).tolist():
        metas[at] = None
    return envelope_muids(network_topic, values_of(heads.data[:, TOPIC]), metas, data)


def _muid(raw: bytes, network_topic: str) -> Muid | None:
    """The MUID of an envelope of any form. A file without a digest may have rows that are none."""
    try:
        return envelope_muid(network_topic, decode_envelope(raw))
    except (DecodeError, NoId):
        return None
