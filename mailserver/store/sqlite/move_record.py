"""How far another store was moved into this one, kept beside the store file in `mailserver.db-move.json`."""

import asyncio
import json
from pathlib import Path

from mailserver.errors import StoreError
from mailserver.files import write_atomically
from mailserver.handoff.json_records import read_record
from mailserver.store.moving import Moved

_VERSION = 1


def move_file(store: Path) -> Path:
    """Where it is kept how far another store was moved into this one."""
    return store.with_name(f"{store.name}-move.json")


class SqliteMoveRecord:
    """A `store.moving.MoveRecord`: a JSON file beside the store."""

    def __init__(self, store: Path) -> None:
        self._path = move_file(store)

    async def read(self) -> Moved | None:
        """Read it; None if there is none."""
        return await asyncio.to_thread(
            read_record, self._path, Moved.from_record, version=_VERSION, what="record of a move", error=StoreError
        )

    async def write(self, moved: Moved) -> None:
        """Write it: complete, or as it was."""
        text = json.dumps({"version": _VERSION, **moved.as_record()}) + "\n"
        try:
            await asyncio.to_thread(write_atomically, self._path, text)
        except OSError as error:
            raise StoreError(f"cannot write {self._path}: {error.strerror or error}") from error
