"""Archives as the compaction leaves them, without Spark: records, and files of the right size."""

import json
from pathlib import Path

from mailserver.handoff.json_records import day_text


def make_archive(
    archive: Path,
    store_id: str,
    day: int,
    *,
    seq: int,
    period: str | None = None,
    run: str = "run-1",
    replaces: tuple[tuple[str, str], ...] = (),
) -> Path:
    """Have an archive hold a store's rows of a day up to `seq`, in one file of 5 bytes, which is returned.

    Args:
        period: the day by default, or a month.
    """
    period = day_text(day) if period is None else period
    file = archive / f"date={period}" / "topic_prefix=9" / f"part-{run}.parquet"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(b"PAR1.")
    record = {
        "version": 1,
        "period": period,
        "run": run,
        "replaces": [list(pair) for pair in replaces],
        "days": {day_text(day): {"stores": {store_id: seq}}},
        "files": [[f"topic_prefix=9/{file.name}", 5, 3, ""]],
    }
    (archive / "_records").mkdir(exist_ok=True)
    (archive / "_records" / f"{period}.json").write_text(json.dumps(record))
    return file
