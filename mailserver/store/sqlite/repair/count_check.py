"""Whether the counts of a store are right: what it says of its days and topics is what counting gives."""

import sqlite3
from collections.abc import Callable, Iterator

from mailserver.store.sqlite.repair.report import CheckReport, DamageKind, Show
from mailserver.units import SECONDS_PER_DAY
from mailserver.waku.envelope import MAX_U32

_MAX_DAY = MAX_U32 // SECONDS_PER_DAY

_SIZES = """
    SELECT created / 86400, received / 86400, length(CAST(raw AS BLOB)), seq FROM envelopes NOT INDEXED ORDER BY seq
"""
_TOPICS_OF_ROWS = """
    SELECT DISTINCT created / 86400, topic FROM envelopes INDEXED BY envelopes_by_topic ORDER BY 1, 2
"""


class CountCheck:
    """Compares the tables of days, topics and row numbers with the envelopes, all at one moment."""

    def __init__(self, execute: Callable[..., sqlite3.Cursor], report: CheckReport, show: Show) -> None:
        self._execute = execute
        self._report = report
        self._show = show

    def run(self) -> None:
        """Add each count that is wrong to the report.

        Raises:
            sqlite3.Error: the store cannot be read to the end.
        """
        self._show("counts", 0, None)
        self._execute("BEGIN")
        try:
            days, reception_days = self._count()
            self._compare("days", self._days("SELECT day, envelopes, bytes FROM days"), days)
            stored = self._days("SELECT day, envelopes, bytes, first_seq, last_seq FROM reception_days")
            self._compare_reception(stored, reception_days)
            self._topics()
            self._identity()
        finally:
            self._execute("ROLLBACK")

    def _count(self) -> tuple[dict[int, list[int]], dict[int, list[int]]]:
        """What `days` and `reception_days` should say."""
        days: dict[int, list[int]] = {}
        reception_days: dict[int, list[int]] = {}
        for day, reception_day, size, seq in self._execute(_SIZES):
            _add(days, day, size, seq)
            _add(reception_days, reception_day, size, seq)
        return days, reception_days

    def _days(self, sql: str) -> dict[int, list[int]]:
        return {day: numbers for day, *numbers in self._execute(sql)}

    def _compare(self, table: str, stored: dict[int, list[int]], counted: dict[int, list[int]]) -> None:
        for day in sorted(stored.keys() | counted.keys()):
            said, found = stored.get(day, [0, 0])[:2], counted.get(day, [0, 0])[:2]
            if said != found:
                counts = f"{said[0]} envelopes of {said[1]} bytes, there are {found[0]} of {found[1]}"
                self._report.add(DamageKind.COUNTS, f"{table}, day {day}: it says {counts}")

    def _compare_reception(self, stored: dict[int, list[int]], counted: dict[int, list[int]]) -> None:
        self._compare("reception_days", stored, counted)
        for day in sorted(stored.keys() & counted.keys()):
            first, last = stored[day][2:]
            if first != counted[day][2] or last < counted[day][3]:  # the last one may have been deleted
                rows = f"rows {first} to {last}, there are {counted[day][2]} to {counted[day][3]}"
                self._report.add(DamageKind.COUNTS, f"reception_days, day {day}: it says {rows}")

    def _topics(self) -> None:
        """`day_topics` has what the index by topic has. Both are sorted, so neither is held in memory."""
        self._show("topics", 0, None)
        there, said = self._execute(_TOPICS_OF_ROWS), self._execute("SELECT day, topic FROM day_topics ORDER BY 1, 2")
        for place, is_there in _differences(iter(there), iter(said)):
            what = "is not in day_topics" if is_there else "is in day_topics, but has no envelope"
            topic = place[1].hex() if isinstance(place[1], bytes) else repr(place[1])
            self._report.add(DamageKind.COUNTS, f"topic 0x{topic} of day {place[0]} {what}")

    def _identity(self) -> None:
        """The store has one identity, or, if it is a backup, none. No row number will be used again."""
        identities = [identity for (identity,) in self._execute("SELECT id FROM identity LIMIT 2")]
        if len(identities) > 1 or not all(isinstance(identity, str) and identity for identity in identities):
            self._report.add(DamageKind.SCHEMA, f"the store has not one identity, but {identities!r}")
        ((last,),) = self._execute("SELECT coalesce(max(seq), 0) FROM envelopes")
        ((said,),) = self._execute("SELECT coalesce(max(seq), 0) FROM sqlite_sequence WHERE name = 'envelopes'")
        if said < last:
            self._report.add(DamageKind.COUNTS, f"sqlite_sequence says {said}, but there is row {last}")


def _add(days: dict[int, list[int]], day: object, size: int, seq: int) -> None:
    """Count a row of a day; rows come by `seq`. An impossible day is left out, which bounds their number."""
    if not isinstance(day, int) or not -_MAX_DAY <= day <= _MAX_DAY:
        return
    counted = days.get(day)
    if counted is None:
        counted = days[day] = [0, 0, seq, seq]
    counted[0] += 1
    counted[1] += size
    counted[3] = seq


def _differences(
    ours: Iterator[tuple[int, object]], theirs: Iterator[tuple[int, object]]
) -> Iterator[tuple[tuple[int, object], bool]]:
    """What only one of two ascending sequences has, and whether it is the first one that has it."""
    left, right = next(ours, None), next(theirs, None)
    while left is not None or right is not None:
        if left == right:
            left, right = next(ours, None), next(theirs, None)
        elif right is None or (left is not None and _key(left) < _key(right)):
            assert left is not None
            yield left, True
            left = next(ours, None)
        else:
            yield right, False
            right = next(theirs, None)


def _key(place: tuple[int, object]) -> tuple[int, bytes]:
    return place[0], place[1] if isinstance(place[1], bytes) else b""
