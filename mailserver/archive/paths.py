"""Where an archive keeps what.

    date=2026-11-20/topic_prefix=9/part-...parquet    what every Parquet reader sees
    _archive.json, _records/                          what is in it (`mailserver.archive.manifest`)
    _staging/RUN/data/date=...                        what a run is writing; RUN/publish.json once it is verified, and
                                                      on S3 RUN/replaced.json, the records that it will replace
    _leases/                                          on S3, of the run that is at work (`spark_export.s3_lease`)
    _index/date=2026-11-20/run=RUN.index              where in its files a topic stands (`mailserver.archive.index`)
    _snapshots/date=.../run=.../topic_prefix=9/part-..   second names of the same files, for `read_archive`
    _quarantine/, _runs/                              rows set aside; a report of each run
    _damaged/, _incidents.json                        files set aside; what was found (`spark_export.incidents`)

A reader of directories sees a period's old files or its new ones; on S3, for a while, both. If it has listed the old
ones and not yet opened them, it is told that they are gone, except through `_snapshots`, where names stay for a day
after they were replaced.
"""

from mailserver.archive.layout import PERIOD
from mailserver.archive.manifest import PeriodRecord

SETTINGS_FILE = "_archive.json"
RECORDS = "_records"
STAGING = "_staging"
SNAPSHOTS = "_snapshots"
INDEXES = "_index"
QUARANTINE = "_quarantine"
DAMAGED = "_damaged"
RUNS = "_runs"
JOURNAL_FILE = "publish.json"
REPLACED_FILE = "replaced.json"

REPLACED = f"{STAGING}/replaced"
"""The directories of periods that were merged into others, until they are deleted: PERIOD/run=..., as in `_damaged`."""


def directory_of(period: str) -> str:
    """Where every reader finds a period."""
    return f"{PERIOD}={period}"


def record_of(period: str) -> str:
    """Where a period's record is."""
    return f"{RECORDS}/{period}.json"


def snapshot_of(record: PeriodRecord) -> str:
    """Where a period's files have their second names."""
    return f"{SNAPSHOTS}/{PERIOD}={record.period}/run={record.run}"


def index_of(period: str, run: str) -> str:
    """Where the index of a period is, as that run has written the period."""
    return f"{INDEXES}/{PERIOD}={period}/run={run}.index"


def staged_data(run: str) -> str:
    """Where a run writes the directories of its periods."""
    return f"{STAGING}/{run}/data"


def damaged_of(period: str, run: str) -> str:
    """Where files of a period are that were set aside, as that run had written it."""
    return f"{DAMAGED}/{directory_of(period)}/run={run}"
