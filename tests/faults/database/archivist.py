"""The part of the nightly compaction, as a process that may be killed (`archiving`), and what it has archived.

Each line of its file is `SEQ RECEIVED HASH` of a row that it has taken; what of it is handed over, and so may be
deleted, the record in the database says.
"""

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

from mailserver.store.postgres.job import StoreDatabase
from mailserver.units import SECONDS_PER_DAY
from tests.waiting import wait_until


class Taken(NamedTuple):
    """A row that was taken."""

    seq: int
    received: int
    hash: bytes


class Archivist:
    """The process, and what it has taken."""

    def __init__(self, url: str, file: Path) -> None:
        self._url = url
        self._file = file
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Have it run."""
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.database.archiving", self._url, str(self._file)],
            stdin=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )

    def kill(self) -> None:
        """Kill it, if it runs."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()

    def until_all_is_taken(self) -> None:
        """Wait until it has handed over the last row of the store. How many are left, chance decides: it must go on."""
        place = StoreDatabase(self._url)
        ((last,),) = place.select("SELECT max(seq) FROM envelopes")

        def mark() -> int:
            archived = place.read_archived()
            return 0 if archived is None else max(archived.days.values(), default=0)

        before = mark()
        while before < last:
            wait_until(partial(_is_above, mark, before))
            before = mark()

    def rows(self) -> list[Taken]:
        """What it has taken. A line that it was killed in the middle of is of nothing that was handed over."""
        with contextlib.suppress(FileNotFoundError):
            *lines, _ = self._file.read_text().split("\n")
            return [
                Taken(int(seq), int(received), bytes.fromhex(each)) for seq, received, each in map(str.split, lines)
            ]
        return []

    def taken(self) -> list[bytes]:
        """The hashes of what it has handed over, which is what an archive has."""
        archived = StoreDatabase(self._url).read_archived()
        days = {} if archived is None else archived.days
        return [row.hash for row in self.rows() if row.seq <= days.get(row.received // SECONDS_PER_DAY, 0)]

    def handed_over(self) -> set[bytes]:
        """The same, each once."""
        return set(self.taken())


def _is_above(mark: Callable[[], int], before: int) -> bool:
    return mark() > before
