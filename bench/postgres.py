"""How a store in PostgreSQL compares with one in a file: the same questions, the same ingest, and a day that goes.

PostgreSQL is one of the machine's own packages, started for this as the tests start it, with what it confirms on disk.
It is reached by a Unix socket, and shares the machine with the mailservers and this process.
"""

import argparse
import asyncio
import contextlib
import random
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import uvloop

from bench.daemon import Daemon, cpu_s
from bench.data import Sizes, Topics
from bench.history import QUESTIONS, measure_history
from bench.history_results import History
from bench.ingest import measure_ingest_of
from bench.postgres_results import BothIngest, BothIngestRun, DayRetention, PostgresComparison, StoreSide
from bench.store import FilledStore, StoreSpec, fill
from bench.targets import limits_of, prepared_store, progress
from mailserver.store.interface import Store
from mailserver.store.postgres.inspection import inspect
from mailserver.store.postgres.store import open_store as open_postgres
from mailserver.store.retention import TimeRetention
from mailserver.store.sqlite.schema import STORE_FILE
from mailserver.store.sqlite.store import open_store as open_file
from mailserver.units import SECONDS_PER_DAY
from mailserver.waku.payload import key_from_password
from tests.store.postgres.server import Server, new_schema, running_server

PER_PACKET = 100
CONNECTIONS = 4
"""Of all mailservers together."""

DAYS_DELETED = 3

SETTINGS = {"shared_buffers": "512MB", "max_wal_size": "4GB"}
"""What an operator would set on a machine of 8 GB; all else is as PostgreSQL comes."""


@dataclass(frozen=True, slots=True)
class _Postmaster:
    """A server's processes: its main one, and those that this has made."""

    pid: int

    def pids(self) -> list[int]:
        """Their ids."""
        children = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text(encoding="ascii").split()
        return [self.pid, *map(int, children)]

    def cpu_s(self) -> float:
        """Seconds of CPU of those that are there. One of a connection lives as long as that."""
        return sum(cpu_s(pid) for pid in self.pids())

    def memory_bytes(self) -> int:
        """What they take together, PSS: shared memory counts once."""
        total = 0
        for pid in self.pids():
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii").splitlines()
            total += 1024 * next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
        return total


def measure_postgres(arguments: argparse.Namespace, topics: Topics) -> PostgresComparison:
    """Measure both.

    Raises:
        DaemonFailed, IngestFailed, HistoryFailed: as elsewhere.
    """
    with running_server(SETTINGS) as server:
        ingests = tuple(_measure_ingests(arguments, server, topics))
        sides: list[StoreSide] = []
        retentions: list[DayRetention] = []
        for envelopes in arguments.envelopes[:1]:
            with prepared_store(arguments, envelopes) as store:
                for name, opening, flags in _stores(arguments, server, store, envelopes):
                    sides.append(_ask(arguments, server, topics, store, envelopes, name, opening, flags))
                # At the end, and of a copy of the file: what is deleted could not be asked for again.
                retentions = [*_measure_retentions(arguments, server, store, envelopes)]
        version = asyncio.run(inspect(server.url())).version
    return PostgresComparison(version, tuple(sides), ingests, tuple(retentions))


Opening = Callable[[], AbstractAsyncContextManager[Store]]


def _spec(arguments: argparse.Namespace, store: FilledStore, envelopes: int) -> StoreSpec:
    return StoreSpec(envelopes, arguments.topics, store.days, arguments.distribution, arguments.sizes)


def _stores(
    arguments: argparse.Namespace, server: Server, store: FilledStore, envelopes: int
) -> Iterator[tuple[str, Opening, tuple[str, ...]]]:
    """Both stores with the same envelopes: a name, what opens it, and what a daemon on it is told."""
    yield "a file", partial(open_file, store.data_dir / STORE_FILE), ()
    yield ("PostgreSQL", *_filled(arguments, server, store, envelopes))


def _filled(
    arguments: argparse.Namespace, server: Server, store: FilledStore, envelopes: int
) -> tuple[Opening, tuple[str, ...]]:
    url = server.url(new_schema(server))
    progress(f"postgres: filling a database with {envelopes:,} envelopes")
    opening = partial(open_postgres, url)
    uvloop.run(fill(opening, _spec(arguments, store, envelopes), store.end))
    server.sql("CHECKPOINT")
    return opening, ("--store", url)


def _ask(
    arguments: argparse.Namespace,
    server: Server,
    topics: Topics,
    store: FilledStore,
    envelopes: int,
    name: str,
    opening: Opening,
    flags: tuple[str, ...],
) -> StoreSide:
    """Ask all questions of one store: once unmeasured, then --runs times, with the same topics as of the other."""
    key, rng = key_from_password(arguments.password), random.Random(arguments.topics)
    postmaster = _Postmaster(server.pid)
    questions = []
    with tempfile.TemporaryDirectory(prefix="bench-postgres-") as folder:
        data_dir = Path(folder) if flags else store.data_dir
        with Daemon(data_dir, arguments.password, (*limits_of(arguments), "--retention-days", "0", *flags)) as daemon:
            before = postmaster.cpu_s() if flags else 0.0
            for question in QUESTIONS:
                progress(f"postgres: {question.name}, {name}")
                asking = partial(measure_history, daemon.enode, daemon.pid, question)
                runs = [
                    uvloop.run(asking(key=key, topics=topics, end=store.end, rng=rng))
                    for _ in range(arguments.runs + 1)
                ]
                questions.append(History(question.name, question.clients, tuple(runs[1:])))
            used = postmaster.cpu_s() - before if flags else 0.0
            memory = postmaster.memory_bytes() if flags else 0
    disk_bytes = uvloop.run(_disk_bytes(opening))
    return StoreSide(name, envelopes, store.days, disk_bytes, tuple(questions), used, memory)


async def _disk_bytes(opening: Opening) -> int:
    async with opening() as store:
        return sum(await store.sizes_on_disk())


def _measure_ingests(arguments: argparse.Namespace, server: Server, topics: Topics) -> Iterator[BothIngest]:
    """One mailserver on a file, one on a database, and two on one database: each run on an empty store."""
    for name, mailservers, has_database in (
        ("one, a file", 1, False),
        ("one, PostgreSQL", 1, True),
        ("two, PostgreSQL", 2, True),
    ):
        runs = []
        for run in range(arguments.runs):
            progress(f"postgres: ingest in packets of {PER_PACKET}, {name}, run {run + 1}")
            runs.append(_measure_ingest(arguments, server, topics, mailservers, run, has_database=has_database))
        yield BothIngest(name, CONNECTIONS, PER_PACKET, arguments.ingest_envelopes, tuple(runs))


def _measure_ingest(
    arguments: argparse.Namespace, server: Server, topics: Topics, mailservers: int, run: int, *, has_database: bool
) -> BothIngestRun:
    flags = ("--store", server.url(new_schema(server))) if has_database else ()
    postmaster = _Postmaster(server.pid)
    with contextlib.ExitStack() as stack:
        daemons = []
        for _ in range(mailservers):
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-ingest-")))
            daemons.append(stack.enter_context(Daemon(folder, arguments.password, (*limits_of(arguments), *flags))))
        server_before = postmaster.cpu_s() if has_database else 0.0
        run_of_all = uvloop.run(
            measure_ingest_of(
                [daemon.enode for daemon in daemons],
                [daemon.pid for daemon in daemons],
                envelopes=arguments.ingest_envelopes,
                connections=CONNECTIONS,
                per_packet=PER_PACKET,
                topics=topics,
                seed=run,
                sizes=Sizes(arguments.sizes),
            )
        )
        server_cpu_s = postmaster.cpu_s() - server_before if has_database else 0.0
    return BothIngestRun(run_of_all.seconds, run_of_all.daemon_cpu_s or 0.0, server_cpu_s, run_of_all.peak_bytes or 0)


def _measure_retentions(
    arguments: argparse.Namespace, server: Server, store: FilledStore, envelopes: int
) -> Iterator[DayRetention]:
    """Delete the oldest whole days, one after the other, of stores that are filled for it."""
    spec = _spec(arguments, store, envelopes)
    days = range(1, min(DAYS_DELETED, store.days - 1) + 1)
    first = (store.end - store.days * SECONDS_PER_DAY) // SECONDS_PER_DAY
    moments = [(first + day + 1) * SECONDS_PER_DAY for day in days]
    with tempfile.TemporaryDirectory(prefix="bench-retention-") as folder:
        file, url = Path(folder, STORE_FILE), server.url(new_schema(server))
        for name, opening in (("a file", partial(open_file, file)), ("PostgreSQL", partial(open_postgres, url))):
            progress(f"postgres: retention, {name}")
            uvloop.run(fill(opening, spec, store.end))
            yield uvloop.run(_delete_days(name, opening, moments, envelopes // store.days))


async def _delete_days(name: str, opening: Opening, moments: Sequence[int], envelopes: int) -> DayRetention:
    seconds, longest = [], 0.0
    async with _with_first_day_gone(opening, moments) as store:
        for moment in moments:
            surplus = TimeRetention(0.0).surplus(await store.usage(), moment)
            began = time.perf_counter()
            while surplus is not None:
                batch_began = time.perf_counter()
                deleted = await store.prune(surplus)
                longest = max(longest, time.perf_counter() - batch_began)
                if not deleted.envelopes:
                    break
            seconds.append(time.perf_counter() - began)
    return DayRetention(name, envelopes, tuple(seconds), longest)


@contextlib.asynccontextmanager
async def _with_first_day_gone(opening: Opening, moments: Sequence[int]) -> AsyncIterator[Store]:
    """A store whose first day, of which there is only a part, is deleted."""
    async with opening() as store:
        surplus = TimeRetention(0.0).surplus(await store.usage(), min(moments, default=0) - SECONDS_PER_DAY)
        while surplus is not None and (await store.prune(surplus)).envelopes:
            pass
        yield store
