"""The scenario of the nightly archive: whatever a power cut leaves, each envelope is in the store or in the archive."""

import asyncio
import random
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from mailserver.archive.errors import ArchiveError, ArchiveFault
from mailserver.archive.index.check import check_index
from mailserver.archive.manifest import PeriodRecord
from mailserver.archive.paths import directory_of, index_of, snapshot_of
from mailserver.store.sqlite.handoff import read_archived
from mailserver.store.sqlite.schema import STORE_FILE
from mailserver.units import SECONDS_PER_DAY
from spark_export.publishing import WritableArchive
from spark_export.storage import LocalStorage
from tests.faults.powercut.archiving import FIRST, LATE, TOLD
from tests.faults.powercut.checks import Broken, Expected, check_data_dir
from tests.faults.powercut.recorder import Recorder
from tests.faults.powercut.scenarios import Scenario, told
from tests.faults.powercut.workload import DATA, Recording
from tests.integration.daemons import PROGRAM
from tests.spark_export.samples import put, visible_files

NIGHTS = (PROGRAM[0], "-m", "tests.faults.powercut.archiving")
ARCHIVE = Path("archives", "main")
"""In the folder that is recorded; neither is there at first."""


async def archive(recorder: Recorder, choice: random.Random) -> Scenario:
    """Two nights and a merge; what is archived is pruned at once."""
    folder = recorder.folder / DATA
    await asyncio.to_thread(put, folder / STORE_FILE, FIRST)
    recording = Recording(recorder, choice)
    await asyncio.to_thread(recording.run, folder / STORE_FILE, recorder.folder / ARCHIVE, program=NIGHTS)
    entries = recorder.entries()
    late_at = told(entries, TOLD.encode())

    async def check(folder: Path, cut: int) -> None:
        rows = [*FIRST, *LATE]
        left = await check_data_dir(folder / DATA, Expected((), others=[row.raw for row in rows], is_made=True))
        archived = _archived(folder / ARCHIVE)
        promised = rows if late_at < cut else FIRST
        if lost := sum(row.raw not in left and row.raw not in archived for row in promised):
            raise Broken(f"{lost} of {len(promised)} envelopes are neither in the store nor in the archive")
        handover = read_archived(folder / DATA / STORE_FILE)
        for seq, row in enumerate(rows, 1):  # as they were put
            may_go = 0 if handover is None else handover.days.get(row.received // SECONDS_PER_DAY, 0)
            if seq <= may_go and row.raw not in archived:
                raise Broken("the record lets pruning delete what is not in the archive")

    return Scenario(recording, entries, (), check)


def _archived(root: Path) -> set[bytes]:
    """Every envelope in an archive, when the next run has tidied up; the archive is as its records say."""
    try:
        storage = LocalStorage(root)
        with storage.locked():
            whole = WritableArchive(storage)
            whole.layout()
            whole.repair()
            records = whole.records()
    except ArchiveError as error:
        raise Broken(f"ArchiveError: {error}") from error
    said = {str(Path(directory_of(record.period), file.path)) for record in records.values() for file in record.files}
    there = {str(file.relative_to(root)) for file in visible_files(root)}
    if there != said:
        raise Broken(f"directories and records differ: {sorted(there ^ said)[:5]}")
    found = [raw for record in records.values() for raw in _read(root, record)]
    if len(set(found)) != len(found):
        raise Broken("an envelope is in the archive twice")
    return set(found)


def _read(root: Path, record: PeriodRecord) -> list[bytes]:
    raws: list[bytes] = []
    folder = root / directory_of(record.period)
    if record.files:
        try:
            with (root / index_of(record.period, record.run)).open("rb") as index:
                check_index(index, record, lambda path: (folder / path).open("rb"))
        except (OSError, ArchiveFault) as error:
            raise Broken(f"the index of {record.period}: {error}") from error
    for file in record.files:
        path = folder / file.path
        if path.stat().st_size != file.bytes:
            raise Broken(f"{file.path} has {path.stat().st_size} bytes, not {file.bytes}")
        second = (root / snapshot_of(record) / file.path).with_suffix("")
        if record.snapshot and not second.exists():
            raise Broken(f"{file.path} has no second name")
        try:
            rows = pq.ParquetFile(path).read(columns=["raw"]).column("raw").to_pylist()
        except (pa.ArrowException, ValueError, OSError) as error:  # pyarrow raises any of them for one that is torn
            raise Broken(f"{file.path} cannot be read: {error}") from error
        if len(rows) != file.rows:
            raise Broken(f"{file.path} has {len(rows)} rows, not {file.rows}")
        raws += rows
    return raws
