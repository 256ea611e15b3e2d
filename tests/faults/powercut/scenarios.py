"""The scenarios: each has a mailserver do something while it is recorded, and knows what a power cut must leave."""

import asyncio
import random
import signal
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from mailserver.catchup.catchup import Catchup
from mailserver.catchup.ledger import open_ledger
from mailserver.catchup.settings import CatchupSettings
from mailserver.data_dir.folder import KEY_FILE
from mailserver.store.interface import NewEnvelope
from mailserver.store.sqlite.schema import STORE_FILE
from mailserver.store.sqlite.store import open_store
from mailserver.waku.acceptance import Acceptance, Requirements
from mailserver.waku.bloom import FULL_INTEREST
from mailserver.waku.envelope import Envelope
from tests.faults.powercut.checks import Broken, Expected, check_data_dir, served
from tests.faults.powercut.recorder import Entry, Kind, Recorder
from tests.faults.powercut.workload import DATA, Promise, Recording, promises
from tests.integration.daemons import running_daemon
from tests.mailservers import PASSWORD_KEY, make_envelope, stored
from tests.store.samples import make_version_1, plain, raws, rows
from tests.waiting import until

DAY_S = 86_400
FETCHED_WITHIN_S = 60.0
PACKETS = {1: 20, 10: 6, 100: 1}
"""What is posted in a go: packets of so many envelopes, so many of them."""

Check = Callable[[Path, int], Awaitable[None]]
"""Looks at what a cut has left in a folder, after so many entries. Raises Broken."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """What was recorded, and what holds of it. `entries` is all of the log."""

    recording: Recording
    entries: Sequence[Entry]
    promises: Sequence[Promise]
    check: Check

    def log_restarts(self) -> int:
        """How often SQLite wrote a WAL from its beginning: each time, all of it was in the database file before."""
        logs = {entry.a for entry in self.entries if entry.kind is Kind.CREATE and entry.path.endswith("-wal")}
        return sum(entry.kind is Kind.WRITE and entry.a in logs and entry.b == 0 for entry in self.entries)


class Story:
    """A recording that is over: what was promised when."""

    def __init__(
        self, recording: Recording, before: Sequence[Envelope] = (), prunable: Sequence[Envelope] = ()
    ) -> None:
        """`before` was in the store; of it, `prunable` may be deleted, the first ones first."""
        self.recording = recording
        self.entries = recording.recorder.entries()
        self.promises = promises(self.entries, recording.confirmations)
        self._before = raws(before)
        self._prunable = raws(prunable)
        self._sent = raws(recording.sent)
        self._key = (recording.data_dir / KEY_FILE).read_text()
        self._key_shown_at = told(self.entries, b"listening")

    def confirmed(self, data_dir: Path, cut: int) -> list[bytes]:
        """What this store had promised before a cut."""
        return [
            envelope.raw
            for promise in self.promises
            if promise.data_dir == data_dir and promise.since < cut
            for envelope in promise.envelopes
        ]

    def expected(self, cut: int) -> Expected:
        """What a cut after so many entries must leave of the data folder."""
        confirmed = self.confirmed(self.recording.data_dir, cut)
        return Expected(
            confirmed=[*confirmed, *self._before],
            others=self._sent,
            prunable=self._prunable,
            key=self._key if self._key_shown_at < cut else None,
            is_made=bool(confirmed),
        )

    async def check(self, folder: Path, cut: int) -> None:
        """The data folder is as promised."""
        await check_data_dir(folder / DATA, self.expected(cut))

    def scenario(self, check: Check | None = None) -> Scenario:
        """All of it; `check` in place of the usual one."""
        return Scenario(self.recording, self.entries, self.promises, check or self.check)


def told(entries: Sequence[Entry], text: bytes) -> int:
    """When a process first wrote this to its standard output or error."""
    return next(at for at, entry in enumerate(entries) if entry.kind is Kind.OUT and text in entry.data)


async def first_start(recorder: Recorder, choice: random.Random) -> Scenario:
    """Nothing is there; the mailserver is started, used, stopped, and started again."""
    recording = Recording(recorder, choice)
    for _ in range(2):
        with recording.daemon() as daemon:
            await recording.post(daemon, PACKETS)
            assert daemon.stop() == 0
    return Story(recording).scenario()


async def ingest(recorder: Recorder, choice: random.Random) -> Scenario:
    """A flood; now and then a reader keeps the log from being started anew; killed, and started again."""
    before = await _fill(recorder, choice, 200)
    recording = Recording(recorder, choice)
    for number in range(2):
        with recording.daemon() as daemon:
            await recording.post(daemon, PACKETS)
            with plain(recording.data_dir / STORE_FILE) as reader:
                reader.execute("BEGIN")
                reader.execute("SELECT count(*) FROM days").fetchall()
                await recording.post(daemon, PACKETS)
            await recording.post(daemon, PACKETS)
            daemon.stop(signal.SIGTERM if number else signal.SIGKILL)
    return Story(recording, before).scenario()


async def pruning(recorder: Recorder, choice: random.Random) -> Scenario:
    """Old envelopes are deleted, and pages given back, while others come."""
    now = int(time.time())
    old = [now - 40 * DAY_S + number for number in range(1200)]
    prunable = await _fill(recorder, choice, len(old), received=old)
    recording = Recording(recorder, choice)
    with recording.daemon("--retention-days", "30") as daemon:
        await recording.post(daemon, PACKETS)
        await asyncio.to_thread(daemon.wait_for_line, "pruned")
        await recording.post(daemon, PACKETS)
        assert daemon.stop() == 0
    return Story(recording, prunable=prunable).scenario()


async def migration(recorder: Recorder, choice: random.Random) -> Scenario:
    """A store of version 1 is migrated at the start, and used."""
    envelopes = [_envelope(choice, int(time.time()) - number) for number in range(400)]
    folder = recorder.folder / DATA
    folder.mkdir()
    make_version_1(folder / STORE_FILE, [_row(envelope, envelope.created) for envelope in envelopes])
    recording = Recording(recorder, choice)
    with recording.daemon() as daemon:
        daemon.wait_for_line("store migrated from=1")
        await recording.post(daemon, PACKETS)
        assert daemon.stop() == 0
    return Story(recording, envelopes).scenario()


async def backup(recorder: Recorder, choice: random.Random) -> Scenario:
    """A backup is made in a new folder while others write, and a mailserver is started on it."""
    before = await _fill(recorder, choice, 300)
    recording = Recording(recorder, choice)
    target = Path("backups", "of today")
    with recording.daemon() as daemon:
        await recording.post(daemon, PACKETS)
        await asyncio.gather(
            asyncio.to_thread(recording.run, "backup", "--data-dir", recording.data_dir, recording.folder / target),
            recording.post(daemon, PACKETS),
        )
        assert daemon.stop() == 0
    with recording.daemon(data_dir=recording.folder / target) as daemon:
        await recording.post(daemon, PACKETS)
        assert daemon.stop() == 0
    story = Story(recording, before)
    began = next(at for at, entry in enumerate(story.entries) if entry.path.startswith("backups"))
    ended = told(story.entries, b"of today: ")

    async def check(folder: Path, cut: int) -> None:
        await story.check(folder, cut)
        if (folder / target).exists():  # whole then
            both = [
                *story.confirmed(recording.data_dir, min(cut, began)),
                *story.confirmed(recording.folder / target, cut),
            ]
            key = (recording.data_dir / KEY_FILE).read_text()
            await check_data_dir(
                folder / target, Expected([*both, *raws(before)], others=raws(recording.sent), is_made=True, key=None)
            )
            if (folder / target / KEY_FILE).read_text() != key:
                raise Broken("the backup has another node key")
        elif cut > ended:
            raise Broken("the backup is gone")

    return story.scenario(check)


async def catch_up(recorder: Recorder, choice: random.Random) -> Scenario:
    """What was missed is fetched from another mailserver: it is stored, or still known to be missing."""
    now = int(time.time())
    missed = [_envelope(choice, now - 1200 - 10 * number) for number in range(900)]
    elsewhere = recorder.log.with_name("source")
    elsewhere.mkdir()
    async with open_store(elsewhere / STORE_FILE) as store:
        await store.put([_row(envelope, envelope.created) for envelope in missed])
    recording = Recording(recorder, choice)
    path = recording.data_dir / STORE_FILE
    with running_daemon(elsewhere) as source:
        with recording.daemon("--trusted-peers", str(source.enode), "--sync-days", "1") as daemon:
            await recording.post(daemon, PACKETS)
            total = "SELECT coalesce(sum(envelopes), 0) FROM days WHERE day >= 0"
            known = len(set(recording.sent) | set(missed))
            await until(lambda: rows(path, total) == [(known,)], FETCHED_WITHIN_S)
            await asyncio.to_thread(daemon.wait_for_line, "caught up")
            assert daemon.stop() == 0
        settings = CatchupSettings((source.enode,), PASSWORD_KEY, "power", Acceptance(Requirements(0.0, FULL_INTEREST)))
    recording.sent += missed
    story = Story(recording)

    async def check(folder: Path, cut: int) -> None:
        await story.check(folder, cut)
        data_dir = folder / DATA
        async with open_store(data_dir / STORE_FILE) as store:
            there = set(await served(store))
            await Catchup(store, data_dir, settings).add_missed(1)
        pending = open_ledger(data_dir).account(settings.sources[0].node_id).pending
        for envelope in missed:
            place = (envelope.created, envelope.hash())
            if envelope.raw not in there and not any(
                part.lower <= envelope.created <= part.upper and (part.cursor is None or place < tuple(part.cursor))
                for part in pending
            ):
                raise Broken(f"an envelope created {envelope.created} is neither stored nor asked for: {pending}")

    return story.scenario(check)


STORE_SCENARIOS: dict[str, Callable[[Recorder, random.Random], Awaitable[Scenario]]] = {
    "first_start": first_start,
    "ingest": ingest,
    "pruning": pruning,
    "migration": migration,
    "backup": backup,
    "catch_up": catch_up,
}


async def _fill(
    recorder: Recorder, choice: random.Random, count: int, received: Sequence[int] | None = None
) -> list[Envelope]:
    """Make a store before anything is recorded; return its envelopes by reception."""
    now = int(time.time())
    times = received or [now - 1000 + number for number in range(count)]
    envelopes = [_envelope(choice, second) for second in times]
    (recorder.folder / DATA).mkdir()
    async with open_store(recorder.folder / DATA / STORE_FILE) as store:
        await store.put([_row(envelope, second) for envelope, second in zip(envelopes, times, strict=True)])
    return envelopes


def _envelope(choice: random.Random, created: int) -> Envelope:
    return make_envelope(choice.randrange(1 << 30), created=created, data_bytes=choice.choice((100, 600, 1500)))


def _row(envelope: Envelope, received: int) -> NewEnvelope:
    return stored(envelope, received=received)
