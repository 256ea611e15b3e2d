from typing import Any

import pytest

from mailserver.codec import rlp
from mailserver.codec.keccak import keccak256
from mailserver.ids.envelopes import envelope_muid
from mailserver.ids.muid import DEFAULT_NETWORK_TOPIC as NETWORK
from mailserver.waku.envelope import decode_envelope
from spark_export.decode import StoredRows, decode_row, decode_rows
from spark_export.schema import DECODED
from tests.spark_export.samples import NEWS, NOON, SPORT, TTL, envelope, row_of

Row = dict[str, Any]

SMALL = envelope(7)
USUAL = envelope(7, size=300)
"""What has 256 bytes of data or more is decoded in columns."""


def stored(of: bytes, **changed: Any) -> Row:
    """A row of a store, as whoever put the envelope would have written it but for what is changed."""
    told = decode_envelope(of)
    row = {"created": told.created, "topic": bytes(told.topic), "key_hash": keccak256(of)[:16], "raw": of}
    return {"received": NOON, **row, **changed}


def one_by_one(rows: list[Row]) -> list[Row]:
    decoded = (decode_row(**row, network_topic=NETWORK) for row in rows)
    return [dict(zip(DECODED.fieldNames(), row, strict=True)) for row in decoded]


def at_once(rows: list[Row]) -> list[Row]:
    names = ("received", "created", "topic", "key_hash", "raw")
    columns = StoredRows(*([row[name] for row in rows] for name in names))
    found: list[Row] = decode_rows(columns, NETWORK).to_pylist()
    return found


def sealed(*, expiry: int = NOON + TTL, ttl: int = TTL, topic: bytes = NEWS, data: int = 300, nonce: int = 7) -> bytes:
    fields = [rlp.encode_uint(expiry), rlp.encode_uint(ttl), topic, b"\xab" * data, rlp.encode_uint(nonce)]
    return rlp.encode(fields)


@pytest.mark.parametrize("hit", [SMALL, USUAL])
def test_sound_row_is_decoded(hit: Any) -> None:
    expected = {"fault": None, **row_of(hit)}
    assert at_once([stored(hit.raw)]) == one_by_one([stored(hit.raw)]) == [expected]


FORMS: dict[str, dict[str, Any]] = {
    **{f"nonce {nonce:#x}": {"nonce": nonce} for at in range(8) for nonce in (1 << 8 * at, (1 << 8 * at + 7) - 1)},
    **{f"nonce {nonce:#x}": {"nonce": nonce} for at in range(1, 9) for nonce in ((1 << 8 * at) - 1, 1 << 8 * at - 1)},
    "no nonce": {"nonce": 0},
    **{f"data {size}": {"data": size} for size in (0, 1, 55, 56, 255, 256, 257, 1000, 65_500, 65_535, 65_536, 70_000)},
    **{f"ttl {ttl}": {"ttl": ttl} for ttl in (0, 1, 126, 127, 128, 255, 256, 2**32 - 1)},
    **{f"expiry {expiry:#x}": {"expiry": expiry} for expiry in (0, 1, 0x7F, 0x80, 0xFF_FFFF, 0x100_0000, 2**32 - 1)},
}


@pytest.mark.parametrize("form", FORMS)
def test_row_of_any_form_is_decoded_in_columns_as_by_itself(form: str) -> None:
    rows = [stored(sealed(**FORMS[form])), stored(sealed())]

    assert at_once(rows) == one_by_one(rows)
    assert [row["fault"] for row in at_once(rows)] == [None, None]


def test_row_without_an_id_has_no_muid_in_columns_and_by_itself() -> None:
    rows = [stored(sealed(expiry=TTL)), stored(sealed()), stored(sealed(expiry=TTL, data=60))]

    assert at_once(rows) == one_by_one(rows)
    muid = envelope_muid(NETWORK, decode_envelope(sealed()))
    assert [row["muid"] for row in at_once(rows)] == [None, muid, None]


def test_muids_are_left_out_where_nobody_asks_for_them() -> None:
    told = stored(USUAL.raw), stored(SMALL.raw)

    batch = decode_rows(StoredRows(*([row[name] for row in told] for name in StoredRows._fields)), None)

    assert batch.column("muid").to_pylist() == [None, None]
    assert [decode_row(**row, network_topic=None)[-1] for row in told] == [None, None]


def test_proof_of_work_is_the_same_to_the_last_bit() -> None:
    rows = [stored(sealed(ttl=1 + number % 127, data=256 + number % 50, nonce=number)) for number in range(3000)]

    assert [row["pow"] for row in at_once(rows)] == [decode_envelope(row["raw"]).pow() for row in rows]


def test_rows_stay_in_their_order_whatever_their_form() -> None:
    rows = [stored(sealed(data=200 + 10 * number)) for number in (9, 2, 7, 3, 1, 8)]
    rows[2]["created"] += 1

    assert at_once(rows) == one_by_one(rows)
    assert [row["raw"] for row in at_once(rows)] == [row["raw"] for row in rows]


DAMAGES: list[tuple[str, dict[str, Any], str]] = [
    (name, changed, fault)
    for name, raw in (("small", SMALL.raw), ("usual", USUAL.raw))
    for changed, fault in (
        ({"raw": b""}, "undecodable: "),
        ({"raw": b"garbage"}, "undecodable: "),
        ({"raw": b"\xc0"}, "undecodable: "),
        ({"raw": raw + b"\x00"}, "undecodable: "),
        ({"raw": raw[:-20] + bytes([raw[-20] ^ 1]) + raw[-19:]}, "its hash is different"),
        ({"raw": envelope(8).raw}, "its hash is different"),
        ({"raw": envelope(8, size=300).raw}, "its hash is different"),
        ({"key_hash": b""}, "its hash is different"),
        ({"key_hash": keccak256(raw)[:15]}, "its hash is different"),
        ({"key_hash": keccak256(raw)}, "its hash is different"),
        ({"topic": bytes(SPORT)}, "its topic or time is different"),
        ({"topic": "text"}, "its topic or time is different"),
        ({"topic": None}, "its topic or time is different"),
        ({"created": NOON + 1}, "its topic or time is different"),
    )
]


@pytest.mark.parametrize(("form", "changed", "fault"), DAMAGES)
def test_damaged_row_has_a_fault_and_its_bytes(form: str, changed: dict[str, Any], fault: str) -> None:
    raw = SMALL.raw if form == "small" else USUAL.raw
    rows = [stored(raw), stored(raw, **changed), stored(raw)]

    found = at_once(rows)

    assert found == one_by_one(rows)
    assert found[1]["fault"].startswith(fault)
    kept = {"fault": found[1]["fault"], "received": NOON, "raw": changed.get("raw", raw)}
    assert {name: value for name, value in found[1].items() if value is not None} == kept


@pytest.mark.parametrize("raw", [SMALL.raw, USUAL.raw])
def test_row_that_was_cut_short_has_a_fault(raw: bytes) -> None:
    rows = [stored(raw, raw=raw[:length]) for length in range(0, len(raw), 7)]

    assert at_once(rows) == one_by_one(rows)
    assert all(row["fault"].startswith("undecodable: ") for row in at_once(rows))


def test_every_byte_that_is_another_is_noticed() -> None:
    raw = USUAL.raw
    flipped = [raw[:at] + bytes([raw[at] ^ bit]) + raw[at + 1 :] for at in range(len(raw)) for bit in (1, 0x80)]
    rows = [stored(raw, raw=other) for other in flipped]

    assert at_once(rows) == one_by_one(rows)
    assert None not in [row["fault"] for row in at_once(rows)]
