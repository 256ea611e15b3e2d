"""The history's file in the data directory: it outlives a restart, and whatever is wrong with it stops nobody."""

import asyncio
import contextlib
import logging
from pathlib import Path

from mailserver.files import write_atomically
from mailserver.monitoring.last_day import LastDay, Minutes, decode_file, encode_file

HISTORY_FILE = "history.json"

SAVE_INTERVAL_S = 300.0
"""How much of the history may be lost with the machine. A file takes some 100 kB."""

MAX_FILE_BYTES = 4 * 1024 * 1024
"""A day takes a tenth of it, however long its numbers are. A larger file is none."""

log = logging.getLogger(__name__)


class LastDayFile:
    """Where a history is kept."""

    def __init__(self, folder: Path, history: LastDay) -> None:
        self._path = folder / HISTORY_FILE
        self._history = history
        self._failing = False

    def load(self) -> None:
        """Have the history go on where it was. A file that holds none is renamed, and it begins with nothing."""
        try:
            with self._path.open("rb") as file:
                data = file.read(MAX_FILE_BYTES + 1)
            if len(data) > MAX_FILE_BYTES:
                raise ValueError(f"more than {MAX_FILE_BYTES} bytes")
            self._history.resume(decode_file(data))
        except FileNotFoundError:
            pass
        except OSError as error:
            log.warning("history not read error=%r", str(error))
        except (ValueError, RecursionError) as error:
            aside = self._path.with_name(f"{self._path.name}.damaged")
            with contextlib.suppress(OSError):  # then the next save replaces it
                self._path.replace(aside)
            log.warning("history is damaged, a new one begins aside=%s cause=%r", aside, str(error))

    async def keep(self) -> None:
        """Save again and again, and at the end: when this is cancelled."""
        try:
            while True:
                await asyncio.sleep(SAVE_INTERVAL_S)
                await self.save()
        finally:
            await self.save()

    async def save(self) -> None:
        """Write what there is now; what cannot be written is said once, until it can."""
        minutes = self._history.minutes()
        if not len(minutes):
            return
        writing = asyncio.ensure_future(asyncio.to_thread(self._write, minutes))
        try:
            await asyncio.shield(writing)
        except asyncio.CancelledError:
            await asyncio.wait([writing])  # the last save must not meet it at the temporary file
            writing.exception()
            raise
        except OSError as error:
            if not self._failing:
                log.warning("history not saved error=%r", str(error))
            self._failing = True
        else:
            self._failing = False

    def _write(self, minutes: Minutes) -> None:
        write_atomically(self._path, encode_file(minutes))
