"""`python -m tests.faults.database.archiving URL FILE`: takes rows under the lock of the nightly compaction, keeps them
in FILE, and says so in the database; again and again, until it is killed. While the database is away, it tries again.
"""

import contextlib
import sys
import time
from pathlib import Path

from mailserver.codec.keccak import keccak256
from mailserver.errors import StoreError
from mailserver.handoff.archived import Archived, CompactionRunning
from mailserver.store.postgres.job import StoreDatabase
from mailserver.units import SECONDS_PER_DAY
from tests.faults.database.archivist import Archivist, Taken

AT_ONCE = 50
PAUSE_S = 0.02
"""Between two runs, so that the daemons get to delete something."""

_ROWS = "SELECT seq, received, raw FROM envelopes WHERE seq > $1 ORDER BY seq LIMIT $2"


def main(url: str, file: Path) -> None:
    """Take and hand over until killed; while the database is away, try again."""
    place = StoreDatabase(url)
    taken = Archivist(url, file).rows()
    whole = file.with_suffix(".new")  # without half a line of the one before
    whole.write_text("".join(f"{row.seq} {row.received} {row.hash.hex()}\n" for row in taken))
    whole.replace(file)
    known = {row.seq for row in taken}
    while True:
        with contextlib.suppress(StoreError, CompactionRunning):
            _run(place, file, known)
        time.sleep(PAUSE_S)


def _run(place: StoreDatabase, file: Path, known: set[int]) -> None:
    with place.compaction_lock():
        archived = place.read_archived()
        days = {} if archived is None else dict(archived.days)
        mark = max(days.values(), default=0)
        rows = [Taken(seq, received, keccak256(raw)) for seq, received, raw in place.select(_ROWS, mark, AT_ONCE)]
        with file.open("a") as lines:
            lines.writelines(f"{row.seq} {row.received} {row.hash.hex()}\n" for row in rows if row.seq not in known)
        known |= {row.seq for row in rows}
        for row in rows:
            day = row.received // SECONDS_PER_DAY
            days[day] = max(days.get(day, 0), row.seq)
        ((identity,),) = place.select("SELECT id FROM identity")
        place.write_archived(Archived(identity, "archive", int(time.time()), days))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
