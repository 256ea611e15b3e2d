"""What must hold of a data folder after a power cut, whatever the cut has left: asked of the real code."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from mailserver.catchup.ledger import open_ledger
from mailserver.data_dir.folder import ENODE_FILE, KEY_FILE, load_or_make_key, locked, read_enode
from mailserver.errors import MailserverError
from mailserver.monitoring.last_day import decode_file
from mailserver.monitoring.last_day_file import HISTORY_FILE
from mailserver.store.interface import Query, Store
from mailserver.store.sqlite.handoff import read_archived, read_compaction
from mailserver.store.sqlite.repair.check import check_store
from mailserver.store.sqlite.schema import STORE_FILE
from mailserver.store.sqlite.store import open_store
from mailserver.waku.bloom import FULL_INTEREST
from mailserver.waku.envelope import MAX_U32
from tests.store.samples import EVERY_BYTE

EVERYTHING = Query(0, MAX_U32, FULL_INTEREST)
NO_LIMIT = 1 << 30


class Broken(Exception):
    """A promise was not kept; says which."""


@dataclass(frozen=True, slots=True)
class Expected:
    """What was promised of a data folder. Envelopes are their bytes.

    Args:
        confirmed: must be there.
        others: may be there, too.
        prunable: may be gone, the first ones first; the others must be there.
        key: the text of the node key's file, None if none was shown to anybody.
        is_made: whether the store was there, so that `check` has something to look at.
    """

    confirmed: Iterable[bytes]
    others: Iterable[bytes] = ()
    prunable: Sequence[bytes] = ()
    key: str | None = None
    is_made: bool = False


async def check_data_dir(data_dir: Path, expected: Expected) -> set[bytes]:
    """Look whether the daemon would start, and what it would serve; return that.

    Raises:
        Broken: a promise was not kept.
    """
    path = data_dir / STORE_FILE
    try:
        if expected.is_made and not _lacks_index(path):
            _check_sound(path)  # as the cut has left it
        with locked(data_dir):
            load_or_make_key(data_dir)
            if expected.key is not None and (data_dir / KEY_FILE).read_text() != expected.key:
                raise Broken("the node key is another one")
            async with open_store(path) as store:
                open_ledger(data_dir)
                read_archived(path)
                read_compaction(path)
                there = await served(store)
                check_served(there, expected)
        _check_sound(path)
        if (data_dir / HISTORY_FILE).exists():
            decode_file((data_dir / HISTORY_FILE).read_bytes())
        if (data_dir / ENODE_FILE).exists():
            read_enode(data_dir)
        elif expected.key is not None:
            raise Broken("the enode file is gone")
        return set(there)
    except (MailserverError, ValueError) as error:
        raise Broken(f"{type(error).__name__}: {error}") from error


async def served(store: Store) -> list[bytes]:
    """Everything that a client could get."""
    page = await store.find(EVERYTHING, NO_LIMIT)
    return (await page.read(page.left, EVERY_BYTE)).split()


def check_served(served: Sequence[bytes], expected: Expected) -> None:
    """Compare what a client could get with what was promised.

    Raises:
        Broken: a promise was not kept.
    """
    there = set(served)
    if len(there) != len(served):
        raise Broken(f"{len(served) - len(there)} envelopes are served twice")
    confirmed = set(expected.confirmed)
    if missing := len(confirmed - there):
        raise Broken(f"{missing} of {len(confirmed)} confirmed envelopes are missing")
    if foreign := len(there - confirmed - set(expected.others) - set(expected.prunable)):
        raise Broken(f"{foreign} envelopes are served that nobody sent")
    kept = [raw in there for raw in expected.prunable]
    if kept != sorted(kept):
        raise Broken("something was pruned before what is older")


def _check_sound(path: Path) -> None:
    report = check_store(path, lambda *_: None)
    if not report.is_sound:
        raise Broken(f"the store is damaged: {json.dumps({kind.name: report.shown[kind] for kind in report.found})}")


def _lacks_index(path: Path) -> bool:
    """A log without its index: `check` says that it needs one."""
    log = path.with_name(f"{path.name}-wal")
    return log.exists() and log.stat().st_size > 0 and not path.with_name(f"{path.name}-shm").exists()
