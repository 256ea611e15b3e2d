"""One plain connection, to search and to read, which keeps what it runs and counts what that takes."""

import sqlite3
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from mailserver.store.engine.keys import FoundKeys
from mailserver.store.engine.search import KeySearch
from mailserver.store.interface import GoesOn, NewEnvelope, Query, always
from mailserver.store.sqlite.lookups import Lookups
from mailserver.store.sqlite.reader import RowReader


class Statements:
    """Runs statements on one plain connection, and keeps them: each with its rows, the steps of SQLite's machine that
    it took, and the work that it was said to be."""

    def __init__(self, path: Path) -> None:
        self.connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True, isolation_level=None)
        self.run_so_far: list[tuple[str, Sequence[Any]]] = []
        self.rows_so_far: list[Sequence[Any]] = []
        self.reader = RowReader(self)
        self.steps = self.work = 0
        self.connection.set_progress_handler(self.count_step, 1)

    async def find(self, query: Query, limit: int, goes_on: GoesOn = always) -> FoundKeys:
        return await KeySearch(Lookups(self), query, limit, goes_on).page()

    async def run(self, sql: str, parameters: Sequence[object], work: int, likely: int | None = None) -> Iterable[Any]:
        assert likely is None or likely <= work
        self.work += work
        self.run_so_far.append((sql, parameters))
        rows = self.connection.execute(sql, tuple(parameters)).fetchall()
        assert len(rows) == 1  # to fetch another takes Python's lock once more
        self.rows_so_far += rows
        return rows

    def correct(self, work: int) -> None:
        self.work += work

    def count_step(self) -> int:
        self.steps += 1
        return 0

    def plans(self) -> list[str]:
        """How SQLite carries out each statement that was run."""
        return [
            "; ".join(detail for *_, detail in self.connection.execute(f"EXPLAIN QUERY PLAN {sql}", tuple(parameters)))
            for sql, parameters in self.run_so_far
        ]


Made = Callable[[Sequence[NewEnvelope]], Statements]
"""Makes a store of these envelopes and opens it: the fixture `made`."""


def places(page: FoundKeys) -> list[tuple[int, bytes]]:
    return [(key.created, key.hash) for key in page.keys]


def stored_places(envelopes: Iterable[NewEnvelope]) -> list[tuple[int, bytes]]:
    return [(envelope.created, envelope.hash[:16]) for envelope in envelopes]
