"""Makes the MUIDs of envelopes, from their bytes and a network topic: of many at once, if they have the usual form."""

from collections.abc import Sequence
from itertools import compress

import numpy as np
import pyarrow as pa

from mailserver.errors import DecodeError
from mailserver.ids.envelopes import content_topic_of, envelope_muid
from mailserver.ids.muid import Muid, NoId, muids_after
from mailserver.waku.envelope import TOPIC_BYTES, Envelope, Topic, decode_envelope
from spark_export.parquet_file import ROWS
from spark_export.usual_form import TOPIC, Bytes, Heads, hex_digits, read_heads, values_of

BATCH_ROWS = 4000
"""How many envelopes are read at once: 2 MB of usual ones."""

_NO_TOPIC = Topic(bytes(TOPIC_BYTES))


def with_muids(rows: pa.Table, network_topic: str) -> pa.Table:
    """Give each row the MUID of its envelope, whatever its column `muid` has; null if the envelope has none.

    Args:
        rows: ROWS.
    """
    muids: list[Muid | None] = []
    for batch in rows.select(["raw"]).to_batches(max_chunksize=BATCH_ROWS):
        muids += _muids(batch.column(0), network_topic)
    return rows.set_column(ROWS.get_field_index("muid"), ROWS.field("muid"), pa.array(muids, pa.binary()))


def muids_of_usual(heads: Heads, data: Sequence[bytes], network_topic: str) -> list[Muid | None]:
    """The MUIDs of envelopes of the usual form; None for those that have none.

    Args:
        data: of each, `Heads.data_of`.
    """
    metas = heads.metas
    befores = np.hstack([_topics_before(heads.data[:, TOPIC], network_topic), metas])
    muids: list[Muid | None] = [*muids_after(values_of(befores), values_of(metas), data)]
    for at in np.flatnonzero(heads.created < 1).tolist():
        muids[at] = None
    return muids


def muid_of(envelope: Envelope, network_topic: str) -> Muid | None:
    """The MUID of an envelope of any form; None if it has none."""
    try:
        return envelope_muid(network_topic, envelope)
    except NoId:
        return None


def _muids(column: pa.Array, network_topic: str) -> list[Muid | None]:
    heads, usual = read_heads(column)
    raws = column.to_pylist()
    heads = heads.of(usual)
    of_usual = iter(muids_of_usual(heads, heads.data_of([*compress(raws, usual)]), network_topic))
    return [
        next(of_usual) if is_usual else _muid(raw, network_topic) for raw, is_usual in zip(raws, usual, strict=True)
    ]


def _topics_before(topics: Bytes, network_topic: str) -> Bytes:
    """network topic || content topic, which stands before the rest where a MUID is computed."""
    start, _, end = (network_topic + content_topic_of(_NO_TOPIC)).encode().rpartition(_NO_TOPIC.hex().encode())
    fixed = (np.broadcast_to(np.frombuffer(text, np.uint8), (len(topics), len(text))) for text in (start, end))
    return np.hstack([next(fixed), hex_digits(topics), next(fixed)])


def _muid(raw: bytes, network_topic: str) -> Muid | None:
    """The MUID of what may be an envelope. A file without a digest may have rows that are none."""
    try:
        return muid_of(decode_envelope(raw), network_topic)
    except DecodeError:
        return None
