"""What an archive says of itself: one small JSON file for the whole, and one for each period.

    _archive.json              what it is partitioned by; chosen once
    _records/2026-11-20.json   a period: its days, what was in the stores, its files

A period is a day, or a month that days were merged into. A period changes at the moment when its record is replaced,
which is one step.

Each of these files ends in a digest of all before it. A digit that a disk has changed would leave a record that looks
whole, and a request would not find what its period has. Earlier versions wrote no digest, and do not look at it.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, NamedTuple

from mailserver.archive.days import day_name, month_of, parse_day
from mailserver.archive.errors import ArchiveError, RecordDamaged
from mailserver.archive.fingerprint import MODULUS, Fingerprint
from mailserver.archive.layout import Layout, PartitionBy

ARCHIVE_VERSION = 1

SHA256_BYTES = 32

_DIGEST = ',\n "sha256": "'
"""What stands between a file's text and its digest."""

_FAULTS = (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError)
"""What reading a value of the wrong kind may raise: infinity is not an integer, and JSON may nest to any depth."""


@dataclass(frozen=True, slots=True)
class DayRecord:
    """What a period holds of one UTC day of reception.

    `created_min` and `created_max` are Unix seconds. `stores`: of each store that was read, by id, the `last_seq` of
    this day: all rows up to it are in the archive. `quarantined` rows were set aside.

    `lost_rows`, `lost_bytes`, `lost_checksum`: what was archived once and is in no file any more, as a `Fingerprint`
    has it; the checksum is None if nobody knows it, as of what an earlier version has lost. A day may lie in two
    periods, its month and one of rows that came late: then the sum of both counts. What came back into one of them is
    counted there as less than zero.
    `stores_before`: what `stores` said before files were found missing or damaged.
    `elsewhere`: of each store, the other days of reception in whose files its rows of this day are: they were left out
    here, as the archive had them already, or another store received them first. None of a store whose rows an earlier
    version has read: it did not write that down.
    """

    fingerprint: Fingerprint
    created_min: int
    created_max: int
    stores: Mapping[str, int]
    quarantined: int
    lost_rows: int = 0
    lost_bytes: int = 0
    lost_checksum: int | None = 0
    stores_before: Mapping[str, int] = field(default_factory=dict)
    elsewhere: Mapping[str, tuple[int, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class FileRecord:
    """A data file; `path` is relative to the period's directory.

    `sha256`: of all its bytes, in hex; "" if an earlier version wrote it, without a digest, and nobody has read it
    since.
    """

    path: str
    bytes: int
    rows: int
    sha256: str = ""


@dataclass(frozen=True, slots=True)
class SumsRecord:
    """Where in an index the head of its sums of ids is (`mailserver.archive.index.id_sums`), and how long it is.

    `sha256`: of the head, in hex; the head has the digests of the rest.
    """

    at: int
    bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class IndexRecord:
    """The index beside a period's files (`mailserver.archive.paths`): how long it is.

    `sha256`: of its directory, in hex; the directory has the digests of all else, but for the sums of ids. `sums`: None
    if it has none, as of earlier versions and of periods without MUIDs.
    """

    bytes: int
    sha256: str
    sums: SumsRecord | None = None


@dataclass(frozen=True, slots=True)
class PeriodRecord:
    """A period as some run has written it. `days` is by day, `replaces` names other periods and the runs that wrote
    them: their rows are in this one now. `snapshot`: its files have second names, see `mailserver.archive.paths`.
    `verified_at`: when every file was last read and found to be as recorded, in Unix seconds; 0 if that is not known.
    `index`: None if it has none, as of earlier versions. `network_topic`: to which its MUIDs belong; None if its rows
    have none, as of earlier versions.
    """

    period: str
    run: str
    days: Mapping[int, DayRecord]
    files: tuple[FileRecord, ...]
    replaces: tuple[tuple[str, str], ...] = ()
    snapshot: bool = False
    verified_at: int = 0
    index: IndexRecord | None = None
    network_topic: str | None = None

    @property
    def fingerprint(self) -> Fingerprint:
        """Of the whole period."""
        return Fingerprint.sum(day.fingerprint for day in self.days.values())

    def encode(self) -> dict[str, Any]:
        """As JSON has it."""
        return {
            "version": ARCHIVE_VERSION,
            "period": self.period,
            "run": self.run,
            "replaces": [list(pair) for pair in self.replaces],
            "snapshot": self.snapshot,
            "verified_at": self.verified_at,
            "days": {day_name(day): _encode_day(record) for day, record in sorted(self.days.items())},
            "files": [[file.path, file.bytes, file.rows, file.sha256] for file in self.files],
            "index": None if self.index is None else [self.index.bytes, self.index.sha256],
            "id_sums": _encode_sums(self.index),
            "network_topic": self.network_topic,
        }


def visible(records: Iterable[PeriodRecord]) -> list[PeriodRecord]:
    """The records that no other record has replaced, sorted by period."""
    found = list(records)
    replaced = {pair for record in found for pair in record.replaces}
    return sorted((r for r in found if (r.period, r.run) not in replaced), key=lambda record: record.period)


def known_seq(records: Mapping[str, PeriodRecord], day: int, store_id: str) -> int | None:
    """The `seq` up to which a store's rows of a day are in the archive; None if the store was not read for that day."""
    said = _said_of(records, day, store_id)
    return None if said is None else said.stores[store_id]


def days_elsewhere(records: Mapping[str, PeriodRecord], day: int, store_id: str) -> tuple[int, ...] | None:
    """The other days whose files have rows that a store received on a day; None if that is not known."""
    said = _said_of(records, day, store_id)
    return None if said is None else said.elsewhere.get(store_id)


def seq_before(records: Mapping[str, PeriodRecord], day: int, store_id: str) -> int | None:
    """The `seq` up to which a store's rows of a day were once in the archive, whether or not they still are."""
    said = [record.days[day] for record in records.values() if day in record.days]
    seqs = [stores[store_id] for one in said for stores in (one.stores, one.stores_before) if store_id in stores]
    return max(seqs, default=None)


def quarantined_rows(records: Mapping[str, PeriodRecord]) -> int:
    """How many rows have ever been set aside."""
    return sum(day.quarantined for record in records.values() for day in record.days.values())


def near_periods(records: Mapping[str, PeriodRecord], first: int | None, last: int | None) -> list[str]:
    """The periods that may hold what was created from `first` to `last`, Unix seconds; None if nothing was."""
    return [
        record.period
        for record in records.values()
        if record.files
        and first is not None
        and last is not None
        and any(day.created_min <= last and first <= day.created_max for day in record.days.values())
    ]


class Lost(NamedTuple):
    """Rows and bytes of envelopes that are lost, and their checksum, None if nobody knows it: see `Fingerprint`."""

    rows: int
    bytes: int
    checksum: int | None


def lost_of(records: Iterable[PeriodRecord]) -> dict[int, Lost]:
    """What is lost, by day of reception; days without a loss are left out."""
    lost: dict[int, Lost] = {}
    for record in records:
        for day, said in record.days.items():
            rows, size, checksum = lost.get(day, Lost(0, 0, 0))
            checksum = checksums_together(checksum, said.lost_checksum)
            lost[day] = Lost(rows + said.lost_rows, size + said.lost_bytes, checksum)
    return {day: one._replace(bytes=max(0, one.bytes)) for day, one in sorted(lost.items()) if one.rows > 0}


def checksums_together(one: int | None, other: int | None) -> int | None:
    """The checksum of what has these two, None if one is not known. What is taken away has the negative of its own."""
    return None if one is None or other is None else (one + other) % MODULUS


def _said_of(records: Mapping[str, PeriodRecord], day: int, store_id: str) -> DayRecord | None:
    """What was said when a store was last read for a day: a day's own record is later than its month's."""
    for period in (day_name(day), month_of(day)):
        record = records.get(period)
        if record is not None and day in record.days and store_id in record.days[day].stores:
            return record.days[day]
    return None


def encode_settings(layout: Layout) -> str:
    """The text of `_archive.json`."""
    return _dump({"version": ARCHIVE_VERSION, "partition_by": layout.by.value, "prefix_digits": layout.prefix_digits})


def decode_settings(text: str, where: str) -> Layout:
    """Read `_archive.json`.

    Raises:
        RecordDamaged: it is not whole.
        ArchiveError: a later version made it.
    """
    try:
        value = _loaded(text, where)
        return Layout(PartitionBy(value["partition_by"]), int(value["prefix_digits"]))
    except _FAULTS as error:
        raise RecordDamaged(f"{where} is damaged: {error!r}") from error


def encode_records(records: Iterable[PeriodRecord]) -> str:
    """The text of a journal: the records that a run is about to publish."""
    return _dump({"version": ARCHIVE_VERSION, "records": [record.encode() for record in records]})


def decode_records(text: str, where: str) -> list[PeriodRecord]:
    """Read a journal.

    Raises:
        RecordDamaged: it is not whole.
        ArchiveError: a later version made it.
    """
    try:
        value = _loaded(text, where)
        return [_decode_record(record) for record in value["records"]]
    except _FAULTS as error:
        raise RecordDamaged(f"{where} is damaged: {error!r}") from error


def encode_record(record: PeriodRecord) -> str:
    """The text of a period's record."""
    return _dump(record.encode())


def decode_record(text: str, where: str) -> PeriodRecord:
    """Read a period's record.

    Raises:
        RecordDamaged: it is not whole.
        ArchiveError: a later version made it.
    """
    try:
        return _decode_record(_loaded(text, where))
    except _FAULTS as error:
        raise RecordDamaged(f"{where} is damaged: {error!r}") from error


def _dump(value: Mapping[str, Any]) -> str:
    text = json.dumps(value, indent=1).removesuffix("\n}")
    return f"{text}{_ending(text)}"


def _ending(text: str) -> str:
    return f'{_DIGEST}{sha256(text.encode()).hexdigest()}"\n}}\n'


def _loaded(text: str, where: str) -> Any:
    """Read what `_dump` has written. What has no digest in its place is as earlier versions, or people, wrote it.

    Raises:
        ArchiveError: a later version made it.
        ValueError: it is not whole. Other `_FAULTS`: it is something else.
    """
    value = json.loads(text)
    if value["version"] != ARCHIVE_VERSION:
        raise ArchiveError(f"{where} has version {value['version']!r}, this program knows {ARCHIVE_VERSION}")
    before, digest, _ = text.rpartition(_DIGEST)
    if digest and text != before + _ending(before):
        raise ValueError("its digest does not match")
    return value


def _encode_day(day: DayRecord) -> dict[str, Any]:
    return {
        "rows": day.fingerprint.rows,
        "bytes": day.fingerprint.bytes,
        "checksum": f"{day.fingerprint.checksum:016x}",
        "created_min": day.created_min,
        "created_max": day.created_max,
        "stores": dict(sorted(day.stores.items())),
        "quarantined": day.quarantined,
        "lost": [day.lost_rows, day.lost_bytes],
        "lost_checksum": None if day.lost_checksum is None else f"{day.lost_checksum:016x}",
        "stores_before": dict(sorted(day.stores_before.items())),
        "elsewhere": {store: [day_name(one) for one in days] for store, days in sorted(day.elsewhere.items())},
    }


def _decode_day(value: Any) -> DayRecord:
    lost_rows, lost_bytes = value.get("lost", (0, 0))  # earlier versions knew of no loss
    return DayRecord(
        fingerprint=Fingerprint(int(value["rows"]), int(value["bytes"]), int(value["checksum"], 16)),
        created_min=int(value["created_min"]),
        created_max=int(value["created_max"]),
        stores={str(store): int(seq) for store, seq in value["stores"].items()},
        quarantined=int(value["quarantined"]),
        lost_rows=int(lost_rows),
        lost_bytes=int(lost_bytes),
        lost_checksum=_decode_lost_checksum(value.get("lost_checksum"), is_lost=bool(lost_rows or lost_bytes)),
        stores_before={str(store): int(seq) for store, seq in value.get("stores_before", {}).items()},
        elsewhere={str(store): tuple(map(parse_day, days)) for store, days in value.get("elsewhere", {}).items()},
    )


def _decode_lost_checksum(value: Any, *, is_lost: bool) -> int | None:
    """Nothing has a checksum that everybody knows, even if what was lost before, and came back, had none: else the next
    loss would be taken for found with any rows that are as many and as long."""
    if value is None:
        return None if is_lost else 0
    return int(value, 16)


def _decode_file(path: object, size: Any, rows: Any, sha256: object = "") -> FileRecord:
    return FileRecord(str(path), int(size), int(rows), str(sha256))


def _encode_sums(index: IndexRecord | None) -> list[Any] | None:
    sums = None if index is None else index.sums
    return None if sums is None else [sums.at, sums.bytes, sums.sha256]


def _decode_index(value: Any, sums: Any) -> IndexRecord | None:
    if value is None:
        return None
    size, sha256 = value
    if int(size) < 0 or len(bytes.fromhex(sha256)) != SHA256_BYTES:
        raise ValueError(f"its index is {value!r}")
    return IndexRecord(int(size), sha256, _decode_sums(sums))


def _decode_sums(value: Any) -> SumsRecord | None:
    if value is None:
        return None
    at, size, sha256 = value
    if min(int(at), int(size)) < 0 or len(bytes.fromhex(sha256)) != SHA256_BYTES:
        raise ValueError(f"its sums of ids are {value!r}")
    return SumsRecord(int(at), int(size), sha256)


def _decode_network_topic(value: Any) -> str | None:
    if value is not None and not isinstance(value, str):
        raise ValueError(f"its network topic is {value!r}")
    return value


def _decode_record(value: Any) -> PeriodRecord:
    return PeriodRecord(
        period=str(value["period"]),
        run=str(value["run"]),
        days={parse_day(day): _decode_day(record) for day, record in value["days"].items()},
        files=tuple(_decode_file(*file) for file in value["files"]),
        replaces=tuple((str(period), str(run)) for period, run in value["replaces"]),
        snapshot=bool(value["snapshot"]),
        verified_at=int(value.get("verified_at", 0)),
        index=_decode_index(value.get("index"), value.get("id_sums")),
        network_topic=_decode_network_topic(value.get("network_topic")),
    )
