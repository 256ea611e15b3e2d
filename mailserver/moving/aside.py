"""The file in which rows are set aside that are not what was stored: a JSON object on each line, each row once.

A move that was killed goes on some rows before it ended, so what is in the file already is known by its store and
place.
"""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from mailserver.errors import StoreError
from mailserver.files import PRIVATE_FILE, open_descriptor, sync_folder
from mailserver.store.moving import ReadRow


class WrongRow(NamedTuple):
    """A row, and why it is no envelope that was stored."""

    row: ReadRow
    why: str


class SetAside:
    """The rows of one store in a file, which is made with the first of them."""

    def __init__(self, path: Path, store: str) -> None:
        """Add to a file.

        Args:
            store: the identity of the store that they are from.
        """
        self.path = path
        self._store = store
        self._known: set[int] | None = None

    def add(self, wrong: Sequence[WrongRow]) -> None:
        """Have rows in the file, on disk; those that it has are left as they are. It blocks.

        Raises:
            StoreError: the file cannot be read or written.
        """
        if not wrong:
            return
        try:
            self._add(wrong)
        except OSError as error:
            raise StoreError(f"cannot write {self.path}: {error.strerror or error}") from error

    def _add(self, wrong: Sequence[WrongRow]) -> None:
        is_new = not self.path.exists()
        with open_descriptor(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND) as descriptor:
            if is_new:
                os.fchmod(descriptor, PRIVATE_FILE)
            with os.fdopen(descriptor, "r+", encoding="utf-8", closefd=False) as file:
                text = file.read() if self._known is None else ""
                if self._known is None:
                    self._known = _known_in(text, self._store)
                if text and not text.endswith("\n"):  # a kill has cut the last line off
                    file.write("\n")
                for (place, columns, _), why in wrong:
                    if place not in self._known:
                        print(json.dumps(self._line(place, columns, why)), file=file)
                        self._known.add(place)
                file.flush()
            os.fsync(descriptor)
        if is_new:
            sync_folder(self.path.parent)

    def _line(self, place: int, columns: Sequence[object], why: str) -> dict[str, object]:
        row = [value.hex() if isinstance(value, bytes) else value for value in columns]
        return {"store": self._store, "place": place, "why": why, "row": row}


def _known_in(text: str, store: str) -> set[int]:
    """The rows of a store that are in the file."""
    known = set()
    for line in text.splitlines():
        try:
            found = json.loads(line)
        except ValueError:  # cut off by a kill; what it was of is written again
            continue
        if isinstance(found, dict) and found.get("store") == store and isinstance(found.get("place"), int):
            known.add(found["place"])
    return known
