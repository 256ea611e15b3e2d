"""The file that keeps the last 24 hours over a restart. No fault of this file stops the daemon."""

import asyncio
import contextlib
import logging
from pathlib import Path

from mailserver.files import write_atomically
from mailserver.monitoring.last_day import LastDay, Minutes, decode_file, encode_file

HISTORY_FILE = "history.json"

SAVE_INTERVAL_S = 300.0
"""How often the file is saved: this much may be lost if the machine fails. A file has some 100 kB."""

MAX_FILE_BYTES = 4 * 1024 * 1024
"""Largest file that is read. A day takes at most a tenth of it, however long its numbers are."""

log = logging.getLogger(__name__)


def history_file(worker: int) -> str:
    """The name of the file of one of several workers; the first has that of a mailserver which is alone."""
    return f"history-{worker}.json" if worker else HISTORY_FILE


class LastDayFile:
    """Loads and saves the last 24 hours."""

    def __init__(self, folder: Path, last_day: LastDay, name: str = HISTORY_FILE) -> None:
        self._path = folder / name
        self._last_day = last_day
        self._failing = False

    def load(self) -> None:
        """Continue from the file. If the file is damaged, rename it and begin with nothing."""
        try:
            with self._path.open("rb") as file:
                data = file.read(MAX_FILE_BYTES + 1)
            if len(data) > MAX_FILE_BYTES:
                raise ValueError(f"more than {MAX_FILE_BYTES} bytes")
            self._last_day.resume(decode_file(data))
        except FileNotFoundError:
            pass
        except OSError as error:
            log.warning("figures of the last day not read error=%r", str(error))
        except (ValueError, RecursionError) as error:
            aside = self._path.with_name(f"{self._path.name}.damaged")
            with contextlib.suppress(OSError):  # if this fails, the next save replaces the file
                self._path.replace(aside)
            log.warning("figures of the last day are damaged, they begin anew aside=%s cause=%r", aside, str(error))

    async def keep(self) -> None:
        """Save every SAVE_INTERVAL_S, and when this is cancelled."""
        try:
            while True:
                await asyncio.sleep(SAVE_INTERVAL_S)
                await self.save()
        finally:
            await self.save()

    async def save(self) -> None:
        """Write the file. A failure is logged once, until a write succeeds."""
        minutes = self._last_day.minutes()
        if not len(minutes):
            return
        writing = asyncio.ensure_future(asyncio.to_thread(self._write, minutes))
        try:
            await asyncio.shield(writing)
        except asyncio.CancelledError:
            await asyncio.wait([writing])  # or else the last save would use the same temporary file
            writing.exception()
            raise
        except OSError as error:
            if not self._failing:
                log.warning("figures of the last day not saved error=%r", str(error))
            self._failing = True
        else:
            self._failing = False
        finally:
            del writing  # its error refers to this frame by its traceback: they would keep each other in memory

    def _write(self, minutes: Minutes) -> None:
        write_atomically(self._path, encode_file(minutes))
