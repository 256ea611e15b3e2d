"""Whether the index of message ids is right: it has the ids of the rows that it says it has, and their sums."""

import sqlite3
from collections.abc import Callable, Iterator
from itertools import groupby

from mailserver.store.engine.id_sums import ID_BYTES, SPANS, SumOfIds, sum_of_ids
from mailserver.store.sqlite.id_index import next_items
from mailserver.store.sqlite.repair.report import CheckReport, DamageKind, Show

_INDEX = "SELECT network_topic, until_seq FROM id_index"
_LAST_EVER = "SELECT coalesce(max(seq), 0) FROM sqlite_sequence WHERE name = 'envelopes'"
_SEQ_OF = "SELECT seq FROM ids WHERE created = ? AND id = ?"
_IDS = "SELECT CAST(created AS INTEGER), CAST(id AS BLOB), seq FROM ids ORDER BY 1, 2"
_SUMS = "SELECT bucket, count, sum FROM id_sums WHERE span = ? ORDER BY bucket"


class IdCheck:
    """Compares the tables of ids with the envelopes, all at one moment."""

    def __init__(self, execute: Callable[..., sqlite3.Cursor], report: CheckReport, show: Show) -> None:
        self._execute = execute
        self._report = report
        self._show = show

    def run(self) -> None:
        """Add what is wrong to the report.

        Raises:
            sqlite3.Error: the store cannot be read to the end.
        """
        self._show("message ids", 0, None)
        self._execute("BEGIN")
        try:
            index = self._execute(_INDEX).fetchall()
            if len(index) != 1 or not isinstance(index[0][0], str) or not isinstance(index[0][1], int):
                self._add(f"id_index has not one row, but {index!r}")
                return
            ((network_topic, until_seq),) = index
            ((last_ever,),) = self._execute(_LAST_EVER)
            if until_seq > last_ever:
                self._add(f"rows up to {until_seq} are said to be indexed, but there were {last_ever}")
            if network_topic:  # else the ids of another network topic are being removed
                self._ids(network_topic, until_seq)
                for span in SPANS:
                    self._sums(span)
        finally:
            self._execute("ROLLBACK")

    def _ids(self, network_topic: str, until_seq: int) -> None:
        """Each indexed row has its id, and there are no more ids than these."""
        found = seq = 0
        while seq < until_seq:
            self._show("message ids", seq, until_seq)
            items, seq = next_items(self._execute, network_topic, seq, until_seq)
            for created, item, row in items:
                if self._execute(_SEQ_OF, (created, item)).fetchone() == (row,):
                    found += 1
                else:
                    self._add(f"the id of row {row} is missing")
        ((there,),) = self._execute("SELECT count(*) FROM ids")
        if there != found:
            self._add(f"{there - found} ids are of no row that is there")

    def _sums(self, span: int) -> None:
        """`id_sums` has what the ids add up to."""
        self._show("sums of message ids", 0, None)
        stored = {bucket: rest for bucket, *rest in self._execute(_SUMS, (span,))}
        for bucket, total in self._counted(span):
            if stored.pop(bucket, None) != [total.ids, total.total.to_bytes(ID_BYTES, "little")]:
                self._add(f"the sum of bucket {bucket} of {span} s is wrong")
        for bucket in stored:
            self._add(f"the sum of bucket {bucket} of {span} s is of no ids")

    def _counted(self, span: int) -> Iterator[tuple[int, SumOfIds]]:
        for bucket, rows in groupby(self._execute(_IDS), lambda row: row[0] // span):
            yield bucket, sum_of_ids(row[1] for row in rows)

    def _add(self, what: str) -> None:
        self._report.add(DamageKind.IDS, what)
