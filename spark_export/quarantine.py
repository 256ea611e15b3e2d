"""Rows that are no longer envelopes, set aside as JSON lines: `_quarantine/date=2026-11-20/STORE_ID.jsonl`, and
`STORE_ID.2.jsonl` and so on if a day has many of them.

A line holds store, seq, received (Unix seconds), fault and raw (hex). A row is never dropped for being unreadable, nor
is a line that a disk has damaged since: somebody may still make out what it was. A file that has one is kept beside,
byte for byte, as `STORE_ID.damaged-1.jsonl`, and its lines go on counting.
"""

import itertools
import json
import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from mailserver.archive.set_aside import rows_set_aside, set_aside_of
from spark_export.source import Faulty
from spark_export.storage import WritableFiles
from spark_export.store import StoreSnapshot

log = logging.getLogger(__name__)

FILE_BYTES = 16 * 1024 * 1024
"""A file gets no more lines than this, unless one alone is longer: it is written whole each time, and on S3 read whole
before. A damaged disk may make of a day as many rows as it had."""


class _Row(NamedTuple):
    """What tells rows of a store apart. The fault does not: another version may say it in other words."""

    seq: int
    received: int
    raw: str


def quarantine(storage: WritableFiles, stores: Sequence[StoreSnapshot], rows: Sequence[Faulty]) -> Counter[int]:
    """Add rows, each only once; return how many rows of each of their days are there now, those of earlier runs and of
    other stores included."""
    by_file: dict[tuple[str, str], list[Faulty]] = {}
    for row in rows:
        by_file.setdefault((set_aside_of(row.day), stores[row.store].id), []).append(row)
    for (folder, store), some in by_file.items():
        _add(storage, folder, store, some)
    return Counter({day: rows_set_aside(storage, day) for day in {row.day for row in rows}})


def _add(storage: WritableFiles, folder: str, store: str, rows: Iterable[Faulty]) -> None:
    """Add the rows that no file has yet. One file is in memory at a time."""
    missing = {
        _Row(row.seq, row.received, row.raw.hex()): json.dumps(
            {"store": store, "seq": row.seq, "received": row.received, "fault": row.fault, "raw": row.raw.hex()}
        )
        for row in rows
    }
    taken = [name for name in storage.names(folder) if name.startswith(f"{store}.") and name.endswith(".jsonl")]
    sound = []
    for each in list(taken):
        is_damaged = False
        for line in _lines(storage, f"{folder}/{each}"):
            row = _row_of(line)
            is_damaged |= row is None
            if row is not None:
                missing.pop(row, None)
        if each.startswith(f"{store}.damaged-"):
            continue
        if is_damaged:
            _keep_beside(storage, f"{folder}/{each}", f"{folder}/{store}.damaged")
            taken.remove(each)
        else:
            sound.append(each)
    if missing:
        _write(storage, folder, store, sound, taken, missing)


def _write(
    storage: WritableFiles,
    folder: str,
    store: str,
    sound: Iterable[str],
    taken: Sequence[str],
    missing: dict[_Row, str],
) -> None:
    """Write lines into a file that has room for them, then into new ones."""
    sizes = {name: storage.size(f"{folder}/{name}") or 0 for name in sound}
    name = next((name for name, size in sizes.items() if size < FILE_BYTES), None)
    free = (one for one in _names(store) if one not in taken)
    kept: list[tuple[_Row, str]] = []
    if name is not None:
        lines = list(_lines(storage, f"{folder}/{name}"))
        kept = [(row, line) for line in lines if (row := _row_of(line)) is not None]
    room = FILE_BYTES - sizes.get(name or "", 0)
    for row, line in sorted(missing.items()):
        if kept and room <= len(line):
            storage.write(f"{folder}/{name or next(free)}", _text(kept))
            name, kept, room = None, [], FILE_BYTES
        kept.append((row, line))
        room -= len(line) + 1
    storage.write(f"{folder}/{name or next(free)}", _text(kept))


def _names(store: str) -> Iterator[str]:
    """The names that files of a store may have, in this order."""
    yield f"{store}.jsonl"
    for number in itertools.count(2):
        yield f"{store}.{number}.jsonl"


def _text(lines: Iterable[tuple[_Row, str]]) -> str:
    return "".join(f"{line}\n" for _, line in sorted(lines))


def _keep_beside(storage: WritableFiles, name: str, beside: str) -> None:
    number = 1
    while storage.size(free := f"{beside}-{number}.jsonl") is not None:
        number += 1
    storage.put(name, free)
    log.warning("file set aside file=%s to=%s", name, free)


def _lines(storage: WritableFiles, name: str) -> Iterator[str]:
    """The lines of a file that are not empty. A damaged one may have any character in it, and ends at the newline all
    the same."""
    begun: list[bytes] = []
    for chunk in storage.chunks(name):
        begun_here, *others = chunk.split(b"\n")
        begun.append(begun_here)
        for other in others:
            if line := b"".join(begun):
                yield line.decode(errors="replace")
            begun = [other]
    if line := b"".join(begun):
        yield line.decode(errors="replace")


def _row_of(line: str) -> _Row | None:
    """Which row a line holds; None if it is damaged."""
    try:
        said: Any = json.loads(line)
        row = _Row(said["seq"], said["received"], said["raw"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    is_whole = type(row.seq) is int and type(row.received) is int and type(row.raw) is str
    return row if is_whole and line.isascii() else None
