"""The moment that time has certainly reached, kept beside the store file in `mailserver.db-time.json`."""

import asyncio
import json
from pathlib import Path

from mailserver.errors import StoreError
from mailserver.files import write_atomically
from mailserver.handoff.json_records import Record, count_of, read_record

_VERSION = 1


def time_file(store: Path) -> Path:
    """Where the record of a store is."""
    return store.with_name(f"{store.name}-time.json")


class SqliteTimeRecord:
    """A `store.interface.TimeRecord`: one JSON file, which outlives a restart."""

    def __init__(self, store: Path) -> None:
        self._path = time_file(store)

    async def read(self) -> int | None:
        """Read the moment, in Unix seconds; None if none was written yet.

        Raises:
            StoreError: the record cannot be read, is not whole, or is of a later version.
        """
        return await asyncio.to_thread(
            read_record, self._path, _decode, version=_VERSION, what="record of the time", error=StoreError
        )

    async def write(self, moment: int) -> None:
        """Write the record: complete, or as it was.

        Raises:
            StoreError: it cannot be written.
        """
        text = json.dumps({"version": _VERSION, "proven_at": moment}) + "\n"
        try:
            await asyncio.to_thread(write_atomically, self._path, text)
        except OSError as error:
            raise StoreError(str(error)) from error


def _decode(record: Record) -> int:
    return count_of("proven_at", record.get("proven_at"))
