"""The store of a data directory: opened if there is one, and made if there never was one. The engine is chosen here.

`store.json` says whether there was one, and which. A store that has gone is not silently replaced by an empty one: its
disk may not be mounted, or somebody has deleted it.
"""

import contextlib
import json
import logging
from collections.abc import AsyncIterator
from pathlib import Path

from mailserver.data_dir.folder import ENODE_FILE
from mailserver.errors import StartupError
from mailserver.files import write_atomically
from mailserver.handoff.json_records import field_of, read_record
from mailserver.store.message_ids import StoreWithIds
from mailserver.store.sqlite.damage import how_it_is_gone
from mailserver.store.sqlite.schema import STORE_FILE
from mailserver.store.sqlite.store import open_store

log = logging.getLogger(__name__)

RECORD_FILE = "store.json"

_VERSION = 1


@contextlib.asynccontextmanager
async def open_own_store(data_dir: Path, network_topic: str, *, reindex: bool = False) -> AsyncIterator[StoreWithIds]:
    """Open the store of a data directory whose lock we hold.

    Args:
        network_topic: to which the message ids of envelopes belong.
        reindex: whether it may be another than before. Then all ids are made anew, while the store is in use.
    Raises:
        OtherNetworkTopic: it is another than before, and may not be.
        StartupError: there was a store, and it is gone.
        StoreError: it cannot be opened.
    """
    _check_it_is_left(data_dir)
    async with open_store(data_dir / STORE_FILE, network_topic, reindex=reindex) as store:
        _note(data_dir, await store.identity())
        yield store


def _check_it_is_left(data_dir: Path) -> None:
    """Check that the store is not gone. An empty file may be left by a first start that was killed; later it is a loss.

    Raises:
        StartupError: there was a store, and it is empty or not there.
    """
    store = data_dir / STORE_FILE
    gone = how_it_is_gone(store)
    if not gone:
        return
    # Earlier versions did not write the record, but always the enode.
    signs = [str(data_dir / name) for name in (RECORD_FILE, ENODE_FILE) if (data_dir / name).exists()]
    if signs:
        raise StartupError(
            f"{store} is {gone}, but there was a store before: mount its disk or restore a backup; "
            f"to begin with an empty one, delete {' and '.join(signs)}"
        )


def _note(data_dir: Path, identity: str) -> None:
    """Record that there is a store, and which; log if it is a different one than before."""
    path = data_dir / RECORD_FILE
    try:
        before = read_record(
            path,
            lambda record: field_of(record, "identity", str),
            version=_VERSION,
            what="record of the store",
            error=StartupError,
        )
    except StartupError as error:
        before = None
        log.warning("record of the store started anew cause=%r", str(error))
    if before == identity:  # then nothing is written, which a full disk may not take
        return
    if before is not None:
        log.warning("store is not the same as before was=%s is=%s", before, identity)
    try:
        write_atomically(path, json.dumps({"version": _VERSION, "identity": identity}) + "\n")
    except OSError as error:
        log.error("record of the store not written error=%r", error.strerror or str(error))
