"""Saving what is left of a data directory with a damaged store into a new one, which appears only when it is whole."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from mailserver.data_dir.backup import BackupError, check_destination, new_folder
from mailserver.data_dir.folder import kept_unused
from mailserver.data_dir.small_files import FileTooLong, read_what_is_left, write_small_files
from mailserver.errors import StartupError, StoreError
from mailserver.files import sync_folder
from mailserver.gateway.index.copying import copy_originals
from mailserver.gateway.index.schema import INDEX_FILE
from mailserver.store.sqlite.repair.report import Show
from mailserver.store.sqlite.repair.salvage import SalvageReport, salvage
from mailserver.store.sqlite.schema import STORE_FILE

ASIDE_FILE = "set-aside.jsonl"
"""What does not fit into the new store: one JSON object a line, with the bytes that are left, and the reason."""


async def salvage_data_dir(data_dir: Path, destination: Path, show: Show) -> SalvageReport:
    """Make a new data directory of what is left of another; the latter is only read.

    Raises:
        BackupError: `destination` is there already, or cannot be written.
        StartupError: a mailserver uses the data directory.
        StoreError: there is no store, it is foreign, or nothing is left of it.
    """
    check_destination(destination)
    try:
        with _unused(data_dir), new_folder(destination) as folder:
            write_small_files(folder, read_what_is_left(data_dir))
            found = await salvage(data_dir / STORE_FILE, folder / STORE_FILE, folder / ASIDE_FILE, show)
            with contextlib.suppress(StoreError):  # its index may be as damaged as the store, which is worth more
                copy_originals(data_dir / INDEX_FILE, folder / INDEX_FILE)
            sync_folder(folder)
            folder.rename(destination)
        sync_folder(destination.parent)
    except FileTooLong as error:
        raise BackupError(str(error)) from error
    except OSError as error:
        raise BackupError(f"cannot save {data_dir} to {destination}: {error.strerror or error}") from error
    return found


@contextlib.contextmanager
def _unused(data_dir: Path) -> Iterator[None]:
    """Keep a mailserver from starting on a data directory, which has a store; nothing is written there."""
    store = data_dir / STORE_FILE
    if not store.exists():
        raise StoreError(f"cannot open the store {store}: there is none")
    with kept_unused(data_dir) as holder:
        if holder is not None:
            raise StartupError(f"the mailserver (pid {holder}) uses {data_dir}: stop it first")
        yield
