"""Archives as the compaction writes them, by pyarrow and without Spark: the same files, records and second names.

Row groups are as small as a test wants them. What Spark itself writes is read in `tests/integration`.
"""

import os
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from hashlib import sha256
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from mailserver.archive.days import day_name
from mailserver.archive.fingerprint import Fingerprint
from mailserver.archive.index.id_sums import sums_of
from mailserver.archive.index.writer import FragmentWriter, IndexWriter, RowGroupColumns, footer_of
from mailserver.archive.layout import Layout, PartitionBy
from mailserver.archive.manifest import (
    DayRecord,
    FileRecord,
    IndexRecord,
    PeriodRecord,
    encode_record,
    encode_settings,
)
from mailserver.archive.paths import RECORDS, SETTINGS_FILE, directory_of, index_of, record_of, snapshot_of
from mailserver.ids.envelopes import envelope_muid
from mailserver.ids.muid import NoId
from mailserver.store.interface import NewEnvelope
from mailserver.units import SECONDS_PER_DAY
from mailserver.waku.envelope import Topic, decode_envelope, encode_envelope

TTL = 50
BY_PREFIX = Layout(PartitionBy.TOPIC_PREFIX, 1)
BY_TOPIC = Layout(PartitionBy.TOPIC, 0)


def envelope(number: int, *, created: int, topic: Topic, received: int | None = None, size: int = 40) -> NewEnvelope:
    """A true envelope; another number gives another. `size` is of its data."""
    sealed = encode_envelope(created + TTL, TTL, topic, number.to_bytes(8, "big").ljust(size, b"."), number)
    return NewEnvelope(created if received is None else received, created, topic, sealed.hash(), sealed.raw)


def write_period(
    archive: Path,
    envelopes: Iterable[NewEnvelope],
    *,
    period: str | None = None,
    run: str = "run-1",
    layout: Layout = BY_PREFIX,
    group_rows: int = 4,
    files_of: int = 10**9,
    replaces: Sequence[tuple[str, str]] = (),
    snapshot: bool = True,
    digests: bool = True,
    index: bool = True,
    network_topic: str | None = None,
) -> list[Path]:
    """Publish a period, the day of reception of its envelopes by default; return its files.

    Args:
        network_topic: to which its MUIDs belong, of which the index then has sums; None for one without MUIDs.
    """
    kept = {one.hash: one for one in envelopes}.values()
    days: dict[int, list[NewEnvelope]] = defaultdict(list)
    parts: dict[str, list[NewEnvelope]] = defaultdict(list)
    for one in kept:
        days[one.received // SECONDS_PER_DAY].append(one)
        parts[f"{layout.column}={layout.value('0x' + one.topic.hex())}"].append(one)
    period = day_name(min(days)) if period is None else period
    files, records, fragments = [], [], {}
    for name, part in sorted(parts.items()):
        ordered = sorted(part, key=lambda one: (one.topic, one.created, one.hash))
        for number, at in enumerate(range(0, len(ordered), files_of)):
            file = archive / directory_of(period) / name / f"part-{number:05}-{run}.c000.zstd.parquet"
            file.parent.mkdir(parents=True, exist_ok=True)
            some = ordered[at : at + files_of]
            fragments[f"{name}/{file.name}"] = _write(file, some, layout, group_rows, network_topic)
            files.append(file)
            digest = sha256(file.read_bytes()).hexdigest() if digests else ""
            records.append(FileRecord(f"{name}/{file.name}", file.stat().st_size, len(some), digest))
    record = PeriodRecord(
        period,
        run,
        {day: _day_record(of_day) for day, of_day in days.items()},
        tuple(records),
        tuple(replaces),
        snapshot=snapshot,
        index=_write_index(archive / index_of(period, run), fragments, kept, network_topic) if index else None,
        network_topic=network_topic,
    )
    if snapshot:
        for file in files:
            second = archive / snapshot_of(record) / file.parent.name / file.stem
            second.parent.mkdir(parents=True, exist_ok=True)
            second.hardlink_to(file)
    publish(archive, record, layout)
    return files


def publish(archive: Path, record: PeriodRecord, layout: Layout = BY_PREFIX) -> None:
    """Write a period's record, as a run does: whole."""
    (archive / RECORDS).mkdir(parents=True, exist_ok=True)
    (archive / SETTINGS_FILE).write_text(encode_settings(layout))
    new = archive / RECORDS / "new"
    new.write_text(encode_record(record))
    new.replace(archive / record_of(record.period))


def settle(archive: Path) -> None:
    """Let the records be older than what the file system's clock cannot tell apart."""
    os.utime(archive / RECORDS, (1, 1))


def _write_index(
    file: Path, fragments: Mapping[str, bytes], kept: Collection[NewEnvelope], network_topic: str | None
) -> IndexRecord:
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("wb") as opened:
        writer = IndexWriter(opened)
        for path, fragment in fragments.items():
            writer.add(path, fragment)
        if network_topic is None:
            return writer.finish()
        muids = pa.array([_muid(one, network_topic) for one in kept], pa.binary())
        return writer.finish((network_topic, sums_of(pa.array([one.created for one in kept], pa.int64()), muids)))


def _muid(one: NewEnvelope, network_topic: str) -> bytes | None:
    try:
        return envelope_muid(network_topic, decode_envelope(one.raw))
    except NoId:
        return None


def _write(
    file: Path, some: Sequence[NewEnvelope], layout: Layout, group_rows: int, network_topic: str | None
) -> bytes:
    opened = [decode_envelope(one.raw) for one in some]
    columns = {
        "topic": pa.array(["0x" + one.topic.hex() for one in some], pa.string()),
        "created": pa.array([one.created for one in some], pa.int64()),
        "received": pa.array([one.received for one in some], pa.int64()),
        "expiry": pa.array([one.expiry for one in opened], pa.int64()),
        "ttl": pa.array([one.ttl for one in opened], pa.int64()),
        "hash": pa.array(["0x" + one.hash.hex() for one in some], pa.string()),
        "pow": pa.array([one.pow() for one in opened], pa.float64()),
        "size": pa.array([len(one.raw) for one in some], pa.int32()),
        "raw": pa.array([one.raw for one in some], pa.binary()),
    }
    if network_topic is not None:
        columns["muid"] = pa.array([_muid(one, network_topic) for one in some], pa.binary())
    keys = pa.table([columns[name] for name in ("topic", "created", "hash", "size")], [*"tchs"])
    if layout.by is PartitionBy.TOPIC:
        del columns["topic"]
    table = pa.table(columns)
    fragment = FragmentWriter()
    written: list[pq.FileMetaData] = []
    with pq.ParquetWriter(
        file,
        table.schema,
        compression="zstd",
        compression_level=1,
        use_dictionary=False,
        write_page_checksum=True,
        store_schema=False,
        metadata_collector=written,
    ) as writer:
        for at in range(0, len(some), group_rows):
            writer.write_table(table.slice(at, group_rows))
            fragment.add(RowGroupColumns(*keys.slice(at, group_rows).columns))
    return fragment.finish(footer_of(written[0]))


def _day_record(some: Sequence[NewEnvelope]) -> DayRecord:
    created = [one.created for one in some]
    checksum = sum(int.from_bytes(one.hash[:8], "big") for one in some) % 2**64
    return DayRecord(
        Fingerprint(len(some), sum(len(one.raw) for one in some), checksum), min(created), max(created), {"store": 1}, 0
    )
