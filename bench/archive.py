"""How fast a mailserver answers from its archive, with nothing of that in its store, and what that does to others.

`python -m bench.archive STORE ARCHIVE --end N` is the process that compacts the store first.
"""

import argparse
import asyncio
import contextlib
import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import uvloop

from bench.compaction import LATER_S, MASTER
from bench.daemon import Daemon, usage
from bench.data import SPREAD_S, Topics
from bench.history import DAY_S, PAGE_LIMIT, QUESTIONS, Asker, Question, measure_history
from bench.history_results import History, HistoryRun
from bench.ingest import measure_ingest
from bench.results import ArchiveHistory, CompactionFailed
from bench.store import FilledStore
from bench.wire import connect
from mailserver.mail.request import MailRequest, RequestId
from mailserver.store.sqlite.schema import STORE_FILE
from mailserver.waku.bloom import Interest
from mailserver.waku.payload import key_from_password
from spark_export.compact import compact
from spark_export.config import CompactConfig
from spark_export.session import spark_session

ASKED = QUESTIONS[:4]
"""One topic of a day and of 30 days, 100 topics of 7 days, a bloom filter of 3 topics of 30 days."""

WARM_UP = Question("100 topics, 30 days", 30 * DAY_S, QUESTIONS[2].interest)
"""Asked once of a daemon whose warm answers are timed: it has every footer, or index, by then."""

READERS = 8
READING = QUESTIONS[2]
"""What so many clients ask of the archive, again and again, while others ask for what is in the store."""

HOT_ENVELOPES = 20_000
PER_PACKET = 100


@dataclass(frozen=True, slots=True)
class FilledArchive:
    """An archive of a whole store, and when its history ends, Unix seconds."""

    folder: Path
    envelopes: int
    days: int
    end: int

    def file_bytes(self) -> int:
        """What it takes on disk. A file with two names counts once."""
        files = (path.stat() for path in self.folder.rglob("*") if path.is_file())
        return sum({stat.st_ino: stat.st_size for stat in files}.values())


def prepare_archive(store: FilledStore, envelopes: int) -> FilledArchive:
    """Archive all of a store beside it, or take the archive that is there.

    Raises:
        CompactionFailed: the compaction has ended otherwise than it should.
    """
    folder = store.data_dir.with_name(f"{store.data_dir.name}-archive")
    done = folder.with_name(f"{folder.name}.json")  # written last
    archive = FilledArchive(folder, envelopes, store.days, store.end)
    description = json.dumps({"envelopes": envelopes, "end": store.end})
    if done.exists() and done.read_text(encoding="utf-8") == description:
        return archive
    command = [sys.executable, "-m", "bench.archive", str(store.data_dir / STORE_FILE), str(folder)]
    ended = subprocess.run([*command, "--end", str(store.end)], capture_output=True, text=True, check=False)
    if ended.returncode:
        raise CompactionFailed(f"the compaction ended with {ended.returncode}: {ended.stderr.strip()[-500:]}")
    done.write_text(description, encoding="utf-8")
    return archive


def measure_archive(
    archive: FilledArchive, topics: Topics, *, password: str, runs: int, hot_answers: int
) -> ArchiveHistory:
    """Ask daemons whose store is empty.

    Args:
        runs: how often each question is asked, of a daemon that has just started, and of one that is warm.
        hot_answers: for what is in the store, alone and beside readers of the archive.
    """
    key, rng = key_from_password(password), random.Random(archive.days)

    def ask(daemon: Daemon, question: Question) -> HistoryRun:
        asking = measure_history(daemon.enode, daemon.pid, question, key=key, topics=topics, end=archive.end, rng=rng)
        return uvloop.run(asking)

    with _daemon(password, ()) as daemon:
        alone_s = uvloop.run(_ask_hot(daemon, archive, topics, key, hot_answers, readers=0))
        without_bytes = usage(daemon.pid).peak_bytes
    cold = []
    for question in ASKED:
        cold_runs = []
        for _ in range(runs):
            with _daemon(password, _flags(archive)) as daemon:
                cold_runs.append(ask(daemon, question))
        cold.append(History(question.name, question.clients, tuple(cold_runs)))
    with _daemon(password, _flags(archive)) as daemon:
        ask(daemon, WARM_UP)
        warm = [History(each.name, each.clients, tuple(ask(daemon, each) for _ in range(runs))) for each in ASKED]
        beside_s = uvloop.run(_ask_hot(daemon, archive, topics, key, hot_answers, readers=READERS))
        peak_bytes = usage(daemon.pid).peak_bytes
    return ArchiveHistory(
        archive.envelopes,
        archive.days,
        archive.file_bytes(),
        tuple(warm),
        tuple(cold),
        READERS,
        alone_s,
        beside_s,
        peak_bytes,
        without_bytes,
    )


def _flags(archive: FilledArchive) -> tuple[str, ...]:
    return ("--archive", str(archive.folder))


@contextlib.contextmanager
def _daemon(password: str, flags: Sequence[str]) -> Iterator[Daemon]:
    """A daemon with an empty store: of what was before it began, the archive is asked."""
    with (
        tempfile.TemporaryDirectory(prefix="bench-archive-") as folder,
        Daemon(Path(folder), password, flags) as daemon,
    ):
        yield daemon


async def _ask_hot(
    daemon: Daemon, archive: FilledArchive, topics: Topics, key: bytes, answers: int, *, readers: int
) -> tuple[float, ...]:
    """Fill the store a little, and time answers for one topic of that, beside so many readers of the archive."""
    rng = random.Random(readers)
    await asyncio.sleep(SPREAD_S + 1)  # what is created from now on is later than the store
    since = int(time.time()) - SPREAD_S
    await measure_ingest(
        daemon.enode, None, envelopes=HOT_ENVELOPES, connections=1, per_packet=PER_PACKET, topics=topics, seed=readers
    )
    times_s = []
    async with connect(daemon.enode) as (wire, settings), asyncio.TaskGroup() as group:
        reading = [group.create_task(_read_on(daemon, archive, topics, key, reader)) for reader in range(readers)]
        asker = Asker(wire, key, settings.pow_requirement)
        for _ in range(answers):
            interest = Interest(topics=topics.choose_distinct(1, rng))
            began = time.perf_counter()
            answer = await asker.ask(
                MailRequest(RequestId(bytes(32)), since, int(time.time()) + 1, interest, limit=PAGE_LIMIT)
            )
            times_s.append(answer.done_at - began)
        for task in reading:
            task.cancel()
    return tuple(times_s)


async def _read_on(daemon: Daemon, archive: FilledArchive, topics: Topics, key: bytes, reader: int) -> None:
    """Ask the archive until this is cancelled."""
    rng = random.Random(f"reader {reader}")
    async with connect(daemon.enode) as (wire, settings):
        asker = Asker(wire, key, settings.pow_requirement)
        while True:
            since = archive.end - READING.span_s
            interest = READING.interest(topics, rng)
            await asker.ask(MailRequest(RequestId(bytes(32)), since, archive.end, interest, limit=PAGE_LIMIT))


def main() -> None:
    """Compact a store, as if all of its days were over."""
    parser = argparse.ArgumentParser()
    parser.add_argument("store", type=Path)
    parser.add_argument("archive", type=Path)
    parser.add_argument("--end", type=int, required=True)
    arguments = parser.parse_args()
    with spark_session(MASTER, {}, progress=False) as spark:
        config = CompactConfig((arguments.store,), str(arguments.archive))
        compact(spark, config, now=float(arguments.end + LATER_S), run="bench")


if __name__ == "__main__":
    main()
