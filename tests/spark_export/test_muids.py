"""spark_export.muids: the same MUIDs as of each envelope by itself, of any form."""

import pyarrow as pa
import pytest

from mailserver.ids.envelopes import envelope_muid
from mailserver.ids.muid import DEFAULT_NETWORK_TOPIC
from mailserver.waku.envelope import Envelope, encode_envelope
from spark_export import muids
from spark_export.muids import with_muids
from spark_export.parquet_file import ROWS
from tests.spark_export.samples import CHAT, NEWS, NOON

OTHER = "/waku/2/rs/1/5"
NO_ID = encode_envelope(100, 100, NEWS, b"\xab" * 300, 2**63)
"""It claims to have been created as 1970 began."""


def sealed(*, ttl: int = 50, topic: bytes = NEWS, data: int = 300, nonce: int = 2**63) -> Envelope:
    return encode_envelope(NOON + ttl, ttl, topic, b"\xab" * data, nonce)


def rows_with(*raws: bytes) -> pa.Table:
    """ROWS of which only `raw` matters; each has a MUID that is not its own."""
    empty = {field.name: pa.nulls(len(raws), field.type) for field in ROWS}
    columns = empty | {"raw": pa.array(raws, pa.binary()), "muid": pa.array([b"another's"] * len(raws), pa.binary())}
    return pa.table([columns[name] for name in ROWS.names], schema=ROWS)


def found(*raws: bytes, network_topic: str = DEFAULT_NETWORK_TOPIC) -> list[bytes | None]:
    muids_found: list[bytes | None] = with_muids(rows_with(*raws), network_topic).column("muid").to_pylist()
    return muids_found


FORMS = [
    *(sealed(nonce=nonce) for at in range(8) for nonce in (1 << 8 * at, (1 << 8 * at + 8) - 1)),
    sealed(nonce=0),
    *(sealed(data=size) for size in (0, 55, 56, 255, 256, 65_535, 65_536)),
    *(sealed(ttl=ttl) for ttl in (0, 1, 127, 128, 2**20)),
    sealed(topic=CHAT),
]


@pytest.mark.parametrize("batch", [1, 3, 1000])
@pytest.mark.parametrize("network_topic", [DEFAULT_NETWORK_TOPIC, OTHER])
def test_envelopes_of_any_form_have_the_muids_that_each_has_by_itself(
    network_topic: str, batch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(muids, "BATCH_ROWS", batch)

    given = [envelope_muid(network_topic, each) for each in FORMS]
    assert found(*(each.raw for each in FORMS), network_topic=network_topic) == given


def test_what_has_no_id_has_null() -> None:
    usual = sealed()
    mine = envelope_muid(DEFAULT_NETWORK_TOPIC, usual)

    assert found(usual.raw, NO_ID.raw, b"no envelope", usual.raw) == [mine, None, None, mine]
    assert found(NO_ID.raw) == [None]


def test_all_but_the_muid_stays_as_it_is() -> None:
    rows = rows_with(sealed().raw, sealed(topic=CHAT).raw)

    named = with_muids(rows, DEFAULT_NETWORK_TOPIC)

    assert named.schema == ROWS
    assert named.drop_columns("muid").equals(rows.drop_columns("muid"))
    assert with_muids(rows.slice(0, 0), DEFAULT_NETWORK_TOPIC).equals(rows.slice(0, 0))
