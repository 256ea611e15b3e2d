import json
import math
import re
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from typing import Any

import pytest

from mailserver.archive.errors import ArchiveError
from mailserver.archive.fingerprint import Fingerprint
from mailserver.archive.layout import Layout, PartitionBy
from mailserver.archive.manifest import (
    DayRecord,
    FileRecord,
    IndexRecord,
    PeriodRecord,
    days_elsewhere,
    decode_record,
    decode_records,
    decode_settings,
    encode_record,
    encode_records,
    encode_settings,
    known_seq,
    visible,
)
from tests.spark_export.samples import DAY

DAY_RECORD = DayRecord(
    Fingerprint(3, 900, 2**64 - 1), -50, 2**32 - 1, {"b": 2**62, "a": 0}, 7, elsewhere={"a": (DAY - 9,), "b": ()}
)
FULL = PeriodRecord(
    "2024-10",
    "run-1",
    {DAY + 1: DayRecord(Fingerprint(), 0, 0, {}, 0), DAY: DAY_RECORD},
    (FileRecord("topic=0x9acb0442/part-0.parquet", 12_345, 3),),
    (("2024-10-04", "run-0"), ("2024-10-05", "")),
    snapshot=True,
    index=IndexRecord(1000, "0f" * 32),
    network_topic="/waku/2/rs/1/4",
)
EMPTY = PeriodRecord("2024-10-05", "", {}, ())
SETTINGS = encode_settings(Layout(PartitionBy.TOPIC_PREFIX, 2))

Decode = Callable[[str, str], Any]
DECODERS: list[tuple[Decode, str]] = [
    (decode_record, encode_record(FULL)),
    (decode_records, encode_records([FULL, EMPTY])),
    (decode_settings, SETTINGS),
]


def period(name: str, run: str, *replaces: tuple[str, str], **stores: int) -> PeriodRecord:
    return PeriodRecord(name, run, {DAY: DayRecord(Fingerprint(), 0, 0, stores, 0)}, (), replaces)


@pytest.mark.parametrize("record", [FULL, EMPTY])
def test_record_comes_back(record: PeriodRecord) -> None:
    assert decode_record(encode_record(record), "here") == record


def test_checksum_of_what_is_lost_is_known_again_once_nothing_is() -> None:
    """One that nobody knows would let the next loss pass for found by the number of its bytes."""
    lost = replace(DAY_RECORD, lost_rows=3, lost_bytes=900, lost_checksum=None)
    found = replace(lost, lost_rows=0, lost_bytes=0)

    read = [
        decode_record(encode_record(replace(FULL, days={DAY: day})), "here").days[DAY].lost_checksum
        for day in (lost, found, replace(lost, lost_rows=0), replace(lost, lost_bytes=0))
    ]

    assert read == [None, 0, None, None]


def test_checksum_of_a_loss_that_only_another_period_counts_is_kept() -> None:
    """A day in two periods: what came back into one is less than zero there, and may have been lost anew since."""
    day = replace(DAY_RECORD, lost_checksum=5)

    assert decode_record(encode_record(replace(FULL, days={DAY: day})), "here").days[DAY] == day


def test_record_of_earlier_versions_does_not_say_which_other_days_have_rows() -> None:
    text = json.loads(encode_record(FULL))
    for day in text["days"].values():
        del day["elsewhere"]

    earlier = decode_record(json.dumps(text), "here")

    assert days_elsewhere({"2024-10": FULL}, DAY, "a") == (DAY - 9,)
    assert days_elsewhere({"2024-10": FULL}, DAY, "b") == ()
    for store_id in ("a", "c"):
        assert days_elsewhere({"2024-10": earlier}, DAY, store_id) is None


def test_record_of_earlier_versions_has_no_index_and_no_network_topic() -> None:
    text = json.loads(encode_record(FULL))
    del text["index"], text["network_topic"]

    assert decode_record(json.dumps(text), "here") == replace(FULL, index=None, network_topic=None)


@pytest.mark.parametrize("network_topic", [1, ["/waku/2/rs/1/4"], {}, False])
def test_network_topic_that_is_none_is_damage(network_topic: object) -> None:
    text = json.loads(encode_record(FULL)) | {"network_topic": network_topic}

    with pytest.raises(ArchiveError, match="its network topic is"):
        decode_record(json.dumps(text), "here")


@pytest.mark.parametrize("index", [[1], [1, "00"], [1, "xy" * 32], [1, 2], [-1, "00" * 32], "ab", 7])
def test_index_that_is_none_is_damage(index: object) -> None:
    text = json.loads(encode_record(FULL)) | {"index": index}

    with pytest.raises(ArchiveError, match="damaged"):
        decode_record(json.dumps(text), "here")


def test_journal_comes_back() -> None:
    assert decode_records(encode_records([FULL, EMPTY]), "here") == [FULL, EMPTY]
    assert decode_records(encode_records([]), "here") == []


@pytest.mark.parametrize("layout", [Layout(PartitionBy.TOPIC, 0), Layout(PartitionBy.TOPIC_PREFIX, 4)])
def test_settings_come_back(layout: Layout) -> None:
    assert decode_settings(encode_settings(layout), "here") == layout


def test_record_is_ascii_and_of_one_order() -> None:
    other = replace(FULL, days=dict(sorted(FULL.days.items())))

    assert encode_record(other) == encode_record(FULL)
    assert encode_record(FULL).isascii()
    assert encode_record(FULL).endswith("\n")


def test_period_has_the_fingerprint_of_its_days() -> None:
    days = {day: DayRecord(Fingerprint(1, 10, 2**63), 0, 0, {}, 0) for day in (1, 2, 3)}

    assert PeriodRecord("2024-10", "", days, ()).fingerprint == Fingerprint(3, 30, 2**63)


@pytest.mark.parametrize(("decode", "text"), DECODERS)
def test_later_version_is_refused_by_its_number(decode: Decode, text: str) -> None:
    later = json.dumps({**json.loads(text), "version": 2, "days": None, "records": None})

    with pytest.raises(ArchiveError, match=r"^/a/file has version 2, this program knows 1$"):
        decode(later, "/a/file")


@pytest.mark.parametrize(("decode", "text"), DECODERS)
def test_every_truncation_is_damage(decode: Decode, text: str) -> None:
    whole = text.rstrip("\n")
    for length in range(len(whole)):
        with pytest.raises(ArchiveError, match=r"^/a/file is damaged: ") as caught:
            decode(whole[:length], "/a/file")
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("decode", "text"), DECODERS)
def test_no_flipped_bit_changes_what_is_said(decode: Decode, text: str) -> None:
    said = decode(text, "/a/file")
    refused = 0
    for at, bit in product(range(len(text)), (1, 2, 4, 8, 64)):
        flipped = text[:at] + chr(ord(text[at]) ^ bit) + text[at + 1 :]
        try:
            assert decode(flipped, "/a/file") == said, flipped
        except ArchiveError:
            refused += 1
    assert refused > 5 * len(text) * 9 // 10


@pytest.mark.parametrize(("decode", "text"), DECODERS)
def test_what_an_earlier_version_wrote_has_no_digest_and_is_read(decode: Decode, text: str) -> None:
    earlier = re.sub(r',\n "sha256": "[0-9a-f]{64}"\n}\n$', "\n}\n", text)

    assert (
        earlier
        == json.dumps({key: value for key, value in json.loads(text).items() if key != "sha256"}, indent=1) + "\n"
    )
    assert decode(earlier, "/a/file") == decode(text, "/a/file")


@pytest.mark.parametrize(("decode", "text"), DECODERS)
@pytest.mark.parametrize("value", [None, [], {}, "text", -1.5, math.inf, [[1]], {"x": 1}, "\ud800"])
def test_any_other_value_in_any_place_is_read_or_damage(decode: Decode, text: str, value: object) -> None:
    for damaged in _variants(json.loads(text), value):
        try:
            decode(json.dumps(damaged), "/a/file")
        except ArchiveError as error:
            assert str(error).startswith("/a/file ")  # noqa: PT017 - what is read all the same is as good


def _variants(value: Any, other: object) -> list[Any]:
    """The value with each part of it replaced, or left out."""
    found: list[Any] = [other]
    if isinstance(value, dict):
        for key, part in value.items():
            rest = {name: there for name, there in value.items() if name != key}
            found += [rest, {**rest, "other": part}, *({**value, key: variant} for variant in _variants(part, other))]
    elif isinstance(value, list):
        for at, part in enumerate(value):
            found.append(value[:at] + value[at + 1 :])
            found += [[*value[:at], variant, *value[at + 1 :]] for variant in _variants(part, other)]
    return found


@pytest.mark.parametrize(("decode", "text"), DECODERS)
def test_deep_nesting_is_damage(decode: Decode, text: str) -> None:
    with pytest.raises(ArchiveError, match=r"^/a/file is damaged: "):
        decode('{"version": 1, "days": ' + "[" * 100_000, "/a/file")


@pytest.mark.parametrize(("decode", "text"), DECODERS)
def test_any_version_makes_one_line(decode: Decode, text: str) -> None:
    with pytest.raises(ArchiveError) as caught:
        decode(json.dumps({**json.loads(text), "version": "two\nlines"}), "/a/file")

    assert "\n" not in str(caught.value)


def test_replaced_periods_are_not_visible() -> None:
    old, other = period("2024-10-04", "run-1"), period("2024-10-05", "run-1")
    month = period("2024-10", "run-2", ("2024-10-04", "run-1"))

    assert visible([other, old, month]) == [month, other]


def test_day_that_came_after_its_month_was_merged_is_visible() -> None:
    month = period("2024-10", "run-2", ("2024-10-04", "run-1"))
    late = period("2024-10-04", "run-3")

    assert visible([late, month]) == [month, late]


def test_month_that_was_merged_again_hides_the_late_day_alone() -> None:
    late = period("2024-10-04", "run-3")
    again = period("2024-10", "run-4", ("2024-10-04", "run-3"))

    assert visible([late, again]) == [again]


def test_seq_is_known_by_the_day_or_its_month() -> None:
    month, late = period("2024-10", "run-2", a=5, b=6), period("2024-10-04", "run-3", a=9)

    assert known_seq({"2024-10": month}, DAY, "a") == 5
    assert known_seq({"2024-10": month, "2024-10-04": late}, DAY, "a") == 9
    assert known_seq({"2024-10": month, "2024-10-04": late}, DAY, "b") == 6


def test_seq_of_another_store_day_or_month_is_not_known() -> None:
    month = period("2024-10", "run-2", a=5)

    assert known_seq({"2024-10": month}, DAY, "c") is None
    assert known_seq({"2024-10": month}, DAY + 1, "a") is None
    assert known_seq({"2024-10": month}, DAY + 60, "a") is None
    assert known_seq({}, DAY, "a") is None
