"""Rows that are no longer envelopes, set aside as JSON lines: `_quarantine/date=2026-11-20/STORE_ID.jsonl`.

A line holds store, seq, received (Unix seconds), fault and raw (hex). A row is never dropped for being unreadable, nor
is a line that a disk has damaged since: somebody may still make out what it was. A file that has one is kept beside,
byte for byte, as `STORE_ID.damaged-1.jsonl`, and its lines go on counting.
"""

import json
import logging
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from mailserver.archive.set_aside import rows_set_aside, set_aside_of
from spark_export.source import Faulty
from spark_export.storage import Storage
from spark_export.store import Store

log = logging.getLogger(__name__)


class _Row(NamedTuple):
    """What tells rows of a store apart. The fault does not: another version may say it in other words."""

    seq: int
    received: int
    raw: str


def quarantine(storage: Storage, stores: Sequence[Store], rows: Sequence[Faulty]) -> Counter[int]:
    """Add rows, each only once; return how many rows of each of their days are there now, those of earlier runs and of
    other stores included."""
    by_file: dict[tuple[str, str], list[Faulty]] = {}
    for row in rows:
        by_file.setdefault((set_aside_of(row.day), stores[row.store].id), []).append(row)
    for (folder, store), some in by_file.items():
        _add(storage, folder, store, some)
    return Counter({day: rows_set_aside(storage, day) for day in {row.day for row in rows}})


def _add(storage: Storage, folder: str, store: str, rows: Iterable[Faulty]) -> None:
    name = f"{folder}/{store}.jsonl"
    lines = {
        _Row(row.seq, row.received, row.raw.hex()): json.dumps(
            {"store": store, "seq": row.seq, "received": row.received, "fault": row.fault, "raw": row.raw.hex()}
        )
        for row in rows
    }
    kept: dict[_Row, str] = {}
    elsewhere: set[_Row | None] = set()
    for each in storage.names(folder):
        if each.startswith(f"{store}.") and each.endswith(".jsonl"):
            there = [(_row_of(line), line) for line in _split(storage.read(f"{folder}/{each}") or "")]
            sound = {row: line for row, line in there if row is not None}
            if f"{folder}/{each}" != name:
                elsewhere.update(sound)
            elif len(sound) < len(there):
                elsewhere.update(sound)
                _keep_beside(storage, name, f"{folder}/{store}.damaged")
            else:
                kept = sound
    kept |= {row: line for row, line in lines.items() if row not in elsewhere}
    if kept:
        storage.write(name, "".join(f"{line}\n" for _, line in sorted(kept.items())))


def _keep_beside(storage: Storage, name: str, beside: str) -> None:
    number = 1
    while storage.size(free := f"{beside}-{number}.jsonl") is not None:
        number += 1
    storage.put(name, free)
    log.warning("file set aside file=%s to=%s", name, free)


def _split(text: str) -> list[str]:
    """The lines that are not empty. A damaged one may have any character in it, and ends at the newline all the
    same."""
    return [line for line in text.split("\n") if line]


def _row_of(line: str) -> _Row | None:
    """Which row a line holds; None if it is damaged."""
    try:
        said: Any = json.loads(line)
        row = _Row(said["seq"], said["received"], said["raw"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    is_whole = type(row.seq) is int and type(row.received) is int and type(row.raw) is str
    return row if is_whole and line.isascii() else None
