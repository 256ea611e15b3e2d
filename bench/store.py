"""A data directory with a history in it, filled through the store itself; kept and used again where one is named."""

import asyncio
import contextlib
import json
import os
import random
import shutil
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import uvloop

from bench.data import Distribution, Sizes, Topics, history
from mailserver.store.interface import Store
from mailserver.store.sqlite.schema import STORE_FILE
from mailserver.store.sqlite.store import open_store

DESCRIPTION_FILE = "bench.json"
_PUTS_AT_ONCE = 4


class StoreUnusable(Exception):
    """The directory holds something else than what was asked for."""


@dataclass(frozen=True, slots=True)
class StoreSpec:
    """What a store holds: envelopes created evenly over the last `days`, of so many topics; `sizes`: how long."""

    envelopes: int
    topics: int
    days: int
    distribution: str
    sizes: str = Sizes.ONE.value


@dataclass(frozen=True, slots=True)
class FilledStore:
    """A store of so many days, and when they end, Unix seconds. `fill_s`: how long it took to fill, None if it was
    there."""

    data_dir: Path
    days: int
    end: int
    fill_s: float | None

    def disk_bytes(self) -> int:
        """The size of the database with its write-ahead log."""
        return sum(path.stat().st_size for path in self.data_dir.glob(STORE_FILE + "*"))


def prepare_store(data_dir: Path, spec: StoreSpec) -> FilledStore:
    """Fill a store, or take the one that is there if it is the same.

    Raises:
        StoreUnusable: another one is there, or one that was not filled to the end.
    """
    description_file = data_dir / DESCRIPTION_FILE
    if (data_dir / STORE_FILE).exists():
        description = json.loads(description_file.read_text(encoding="utf-8")) if description_file.exists() else {}
        if description.get("spec") != asdict(spec):
            raise StoreUnusable(f"{data_dir} holds another store than {spec}, or an unfinished one")
        return FilledStore(data_dir, spec.days, int(description["end"]), None)
    data_dir.mkdir(parents=True, exist_ok=True)
    end = int(time.time())
    began = time.perf_counter()
    uvloop.run(fill(partial(open_store, data_dir / STORE_FILE), spec, end))
    fill_s = time.perf_counter() - began
    description_file.write_text(json.dumps({"spec": asdict(spec), "end": end}) + "\n", encoding="utf-8")
    return FilledStore(data_dir, spec.days, end, fill_s)


@contextlib.contextmanager
def copied(store: FilledStore) -> Iterator[Path]:
    """A data directory with a copy of the store, beside it on the same disk, for what changes it; gone at the end.

    It is on the disk before anything is measured: else the first commits of a daemon would wait for that.
    """
    with tempfile.TemporaryDirectory(prefix="bench-copy-", dir=store.data_dir.parent) as folder:
        for file in store.data_dir.glob(STORE_FILE + "*"):
            with Path(shutil.copy(file, folder)).open("rb") as copy:
                os.fsync(copy.fileno())
        yield Path(folder)


async def fill(opening: Callable[[], AbstractAsyncContextManager[Store]], spec: StoreSpec, end: int) -> None:
    """Fill a store, of whatever engine, with what was created up to `end`, Unix seconds."""
    topics = Topics(spec.topics, Distribution(spec.distribution))
    rows = history(
        spec.envelopes, topics, end=end, span_s=spec.days * 86_400, rng=random.Random(end), sizes=Sizes(spec.sizes)
    )
    async with opening() as store:
        pending: deque[asyncio.Task[None]] = deque()
        for batch in rows:
            pending.append(asyncio.create_task(store.put(batch)))
            if len(pending) >= _PUTS_AT_ONCE:
                await pending.popleft()
        await asyncio.gather(*pending)
