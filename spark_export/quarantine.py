"""Rows that are no longer envelopes, set aside as JSON lines: `_quarantine/date=2026-11-20/STORE_ID.jsonl`.

A line holds store, seq, received (Unix seconds), fault and raw (hex). A row is never dropped for being unreadable.
"""

import json
from collections import Counter
from collections.abc import Sequence

from mailserver.archive.days import day_name
from mailserver.archive.layout import PERIOD
from mailserver.archive.paths import QUARANTINE
from spark_export.source import Faulty
from spark_export.storage import Storage
from spark_export.store import Store


def quarantine(storage: Storage, stores: Sequence[Store], rows: Sequence[Faulty]) -> Counter[int]:
    """Add rows, each only once; return how many rows of each of their days are there now, those of earlier runs and of
    other stores included."""
    lines: dict[str, dict[int, str]] = {}
    for row in rows:
        store = stores[row.store].id
        name = f"{QUARANTINE}/{PERIOD}={day_name(row.day)}/{store}.jsonl"
        if name not in lines:
            lines[name] = {json.loads(line)["seq"]: line for line in (storage.read(name) or "").splitlines()}
        lines[name][row.seq] = json.dumps(
            {
                "store": store,
                "seq": row.seq,
                "received": row.received,
                "fault": row.fault,
                "raw": row.raw.hex(),
            }
        )
    for name, by_seq in lines.items():
        storage.write(name, "".join(f"{line}\n" for _, line in sorted(by_seq.items())))
    return Counter({day: _count(storage, day) for day in {row.day for row in rows}})


def _count(storage: Storage, day: int) -> int:
    folder = f"{QUARANTINE}/{PERIOD}={day_name(day)}"
    files = [name for name in storage.names(folder) if name.endswith(".jsonl")]
    return sum(len((storage.read(f"{folder}/{name}") or "").splitlines()) for name in files)
