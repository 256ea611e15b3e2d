"""How much of what an archive has lost comes back, with rows that are new to it.

What is lost is known as a number of rows, their bytes, and the checksum of their hashes, not row by row. So all of it
is there again if new rows have the same. Some of it is, if rows come back of which their numbers say that the archive
had them: those of a store up to the `seq` that it had been read to. A store that was restored has another identity, and
one that was put back to an earlier moment gives numbers anew: theirs say nothing. In doubt, it stays lost.
"""

from collections.abc import Mapping
from dataclasses import replace

from pyspark.sql import Column, DataFrame

from mailserver.archive.fingerprint import Fingerprint
from mailserver.archive.manifest import DayRecord, Lost, checksums_together
from spark_export.aggregates import aggregates, fingerprint_of


def found_by_day(
    rows: DataFrame, size: Column, was_archived: Column, lost: Mapping[int, Lost]
) -> dict[int, Fingerprint]:
    """How much of what is lost is in new rows, by day of reception.

    Args:
        rows: what is new, with the columns day, store and hash.
        size: the bytes of an envelope.
        was_archived: whether a row's number says that the archive had it.
    """
    parts: dict[int, list[tuple[str | int | None, bool, Fingerprint]]] = {}
    wanted = rows.where(rows["day"].isin(*lost)).groupBy("day", "store", was_archived.alias("was_archived"))
    for row in wanted.agg(*aggregates(size)).collect():
        parts.setdefault(row["day"], []).append((row["store"], bool(row["was_archived"]), fingerprint_of(row)))
    return {day: _found(lost[day], of_day) for day, of_day in parts.items()}


def _found(lost: Lost, parts: list[tuple[str | int | None, bool, Fingerprint]]) -> Fingerprint:
    """How much of what is lost of a day is in its new rows.

    Args:
        parts: of what is new, the store, whether its numbers say that it was archived, and what it is.
    """
    known = Fingerprint.sum(part for _, was_archived, part in parts if was_archived)
    of_stores = [
        Fingerprint.sum(part for name, _, part in parts if name == store) for store in {name for name, _, _ in parts}
    ]
    for candidate in (known, Fingerprint.sum(part for _, _, part in parts), *of_stores):
        if (candidate.rows, candidate.bytes) == lost[:2] and lost.checksum in (None, candidate.checksum):
            return candidate
    if known.rows < lost.rows and known.bytes < lost.bytes:
        return known
    if lost.checksum is None:  # there are more of them than are lost: where a number is a guess, some came later
        return replace(known, rows=min(known.rows, lost.rows), bytes=min(known.bytes, lost.bytes))
    return Fingerprint()


def without_found(said: DayRecord, found: Fingerprint) -> DayRecord:
    """What a day's record says once some of what it has lost was found again."""
    return replace(
        said,
        lost_rows=said.lost_rows - found.rows,
        lost_bytes=said.lost_bytes - found.bytes,
        lost_checksum=checksums_together(said.lost_checksum, -found.checksum),
    )
