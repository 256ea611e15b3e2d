"""Clocks that are wrong, step, or stand still: on whole daemons, with honest clients whose own clock is right.

The daemon's wall clock is moved under it (`tests.moved_clock`); its monotonic one goes on, as it does on a machine
whose clock is set.
"""

import argparse
import asyncio
import contextlib
import json
import os
import random
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from pathlib import Path

from mailserver.archive.days import day_of
from mailserver.client.mail_client import MailClient, connect
from mailserver.mail.request import MailRequest, RequestId
from mailserver.store.interface import NewEnvelope
from mailserver.store.sqlite.repair.check import check_store
from mailserver.store.sqlite.schema import STORE_FILE
from mailserver.store.sqlite.store import open_store
from mailserver.store.sqlite.time_record import time_file
from mailserver.upkeep.proven_time import MIN_ENVELOPES
from mailserver.waku.acceptance import Acceptance, Requirements
from mailserver.waku.bloom import FULL_INTEREST
from mailserver.waku.envelope import MAX_U32, Envelope, encode_envelope, mine
from mailserver.waku.payload import key_from_password
from tests.faults.report import Report, Row
from tests.integration.daemons import Daemon, running_daemon
from tests.mailservers import NEWS
from tests.moved_clock import MovedClock

SUMMARY = "clocks that step, are wrong at the start, or were off for a year"

HOUR = 3600
DAY = 24 * HOUR
YEAR = 365 * DAY
# A leap second is told as a step back by one: Unix time has the second before it twice.
STEPS = (1, -1, 5, -5, HOUR, -HOUR, DAY, -DAY, YEAR, -YEAR)
QUICK_STEPS = (-1, HOUR, -DAY, YEAR)
QUICK = {"steps": QUICK_STEPS, "archive": False}

RETENTION_DAYS = 30
LIVE_TTL_S = 50
LONG_TTL_S = 2 * HOUR
BATCH = 30
MIN_POW = 0.000002

Broken = list[str]
Scenario = Callable[[Path, random.Random], Coroutine[None, None, Broken]]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Say what may be given."""
    parser.add_argument("--seed", type=int, default=6)
    parser.add_argument("--steps", type=int, nargs="+", default=STEPS, help="by how many seconds the clock steps")
    parser.add_argument("--no-archive", dest="archive", action="store_false", help="leave out what needs Spark")


def run(arguments: argparse.Namespace) -> Report:
    """Run every scenario in a folder of its own."""
    rng = random.Random(arguments.seed)
    scenarios: list[tuple[str, Scenario]] = [
        *((f"step by {seconds} s", _stepping(seconds)) for seconds in arguments.steps),
        ("start before 2026", start_before_this_program),
        ("off for a year", off_for_a_year),
        ("times at the bounds", times_at_the_bounds),
    ]
    if arguments.archive:
        scenarios.append(("days of the archive", days_of_the_archive))
    rows, broken = [], []
    for name, scenario in scenarios:
        began = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="clock-") as folder:
            found = asyncio.run(scenario(Path(folder), rng))
        rows.append(Row(name, {"broken": len(found), "seconds": round(time.monotonic() - began, 1)}))
        broken += [f"{name} (seed {arguments.seed}): {text}" for text in found]
    return Report("clock", tuple(rows), tuple(broken))


# Scenarios


async def step(folder: Path, rng: random.Random, seconds: int) -> Broken:
    """The clock steps while peers post and ask; a restart and a round of pruning under the stepped clock; and back."""
    clock, path, broken = MovedClock(folder), folder / STORE_FILE, Broken()
    history = _history(rng)
    await _put(path, history)
    kept = {one.raw for one in history}
    again = _live(rng, LONG_TTL_S)
    with _daemon(folder, clock) as daemon:
        async with _client(daemon) as client:
            kept |= await _post(client, again, clock, broken)
            clock.step(seconds)
            kept |= await _post(client, _live(rng, LIVE_TTL_S), clock, broken)
            await _compare(client, kept, "after the step", broken)
    async with _pruning_daemon(folder, clock, rng, len(kept)) as daemon, _client(daemon) as client:
        await _compare(client, kept, "after pruning by the stepped clock", broken)
        if abs(seconds) > DAY:
            daemon.wait_for_line("problem check=clock")
        clock.step(-seconds)
        kept |= await _post(client, _live(rng, LIVE_TTL_S), clock, broken)
        await _post(client, again, clock, broken)
        await _compare(client, kept, "after the step back", broken)
    async with _pruning_daemon(folder, clock, rng, len(kept)) as daemon, _client(daemon) as client:
        await _compare(client, kept, "after pruning by the right clock", broken)
    report = check_store(path, lambda *_: None)
    broken += [line for lines in report.shown.values() for line in lines]
    return broken


async def start_before_this_program(folder: Path, rng: random.Random) -> Broken:
    """A machine without a clock of its own: it says so, deletes nothing, and serves what it has."""
    clock, broken = MovedClock(folder), Broken()
    history = _history(rng)
    await _put(folder / STORE_FILE, history)
    clock.set(1_577_836_800)  # 2020
    async with _pruning_daemon(folder, clock, rng, len(history), "--metrics", "127.0.0.1:0") as daemon:
        daemon.wait_for_line("the clock is wrong: it shows 2020-01-01T")
        status, text = _get(daemon, "/ready")
        if status != 503 or "the clock is wrong" not in text:
            broken.append(f"/ready said {status}: {text}")
        async with _client(daemon) as client:
            await _compare(client, {one.raw for one in history}, "with a clock of 2020", broken)
    return broken


async def off_for_a_year(folder: Path, rng: random.Random) -> Broken:
    """A machine that was off for a year: what is too old stays until peers agree with the clock, and then goes."""
    clock, path, broken = MovedClock(folder), folder / STORE_FILE, Broken()
    history = [one._replace(received=one.received - YEAR) for one in _history(rng)]
    await _put(path, history)
    time_file(path).write_text(json.dumps({"version": 1, "proven_at": int(time.time()) - YEAR}))
    new: set[bytes] = set()

    surplus_ago = YEAR + 35 * DAY
    async with _pruning_daemon(folder, clock, rng, len(history), received_ago=surplus_ago) as daemon:
        daemon.wait_for_line("clock is ahead of the time that has passed")
        async with _client(daemon) as client:
            await _compare(client, {one.raw for one in history}, "before peers agree", broken)
            while len(new) < MIN_ENVELOPES:
                new |= await _post(client, _live(rng, LIVE_TTL_S), clock, broken)
    with _daemon(folder, clock) as daemon:
        daemon.wait_for_line(f"pruned envelopes={len(history)} ")
        async with _client(daemon) as client:
            await _compare(client, new, "after peers agreed", broken)
    return broken


async def times_at_the_bounds(folder: Path, rng: random.Random) -> Broken:
    """Expiry near 2**32, created below zero, ttl beyond expiry: taken or refused as the rules say, never a fault."""
    clock, now, broken = MovedClock(folder), int(time.time()), Broken()
    times = [  # expiry, ttl
        (MAX_U32, MAX_U32 - now),
        (MAX_U32 - 1, MAX_U32 - 1 - now),
        (MAX_U32, 0),
        (MAX_U32, MAX_U32),
        (now + 50, now + 51),
        (now + 50, MAX_U32),
        (now + 50, now + 50),
        (now + 50, 40),
        (0, 0),
        (0, 1),
        (1, MAX_U32),
    ]
    envelopes = [_mine(expiry, ttl, rng.randbytes(300), rng) for expiry, ttl in times]

    with _daemon(folder, clock) as daemon:
        async with _client(daemon) as client:
            kept = await _post(client, envelopes, clock, broken)
            if len(kept) != 5:
                broken.append(f"{len(kept)} of them were taken")
            await _compare(client, kept, "at the bounds", broken)
    async with _pruning_daemon(folder, clock, rng, len(kept)) as daemon, _client(daemon) as client:
        await _compare(client, kept, "after pruning", broken)
    return broken


async def days_of_the_archive(folder: Path, rng: random.Random) -> Broken:
    """Envelopes around midnight, a clock that steps over it and back, and a day that gets more when it is archived."""
    clock, archive, broken = MovedClock(folder), folder / "archive", Broken()
    midnight = (day_of(int(time.time())) + 2) * DAY
    expected = {day_of(midnight) - 1: 0, day_of(midnight): 0}

    async def post_at(daemon: Daemon, moment: int) -> None:
        clock.set(moment)
        async with _client(daemon) as client:
            taken = await _post(client, _live(rng, LIVE_TTL_S, int(clock.now())), clock, broken)
        expected[day_of(moment)] += len(taken)

    def compact() -> None:
        clock.set(midnight + DAY + HOUR)
        command = [sys.executable, "-m", "spark_export", "compact", "--store", str(folder / STORE_FILE)]
        command += ["--archive", str(archive), "--master", "local[2]", "--driver-memory", "1g"]
        environment = {**os.environ, **clock.standing()}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            broken.append(done.stderr.strip()[-500:])
            return
        found = {day_of(midnight) - 1: 0, day_of(midnight): 0}
        for day in found:
            name = f"{time.strftime('%Y-%m-%d', time.gmtime(day * DAY))}.json"
            record = json.loads((archive / "_records" / name).read_text())
            found[day] = sum(one["rows"] for one in record["days"].values())
        if found != expected:
            broken.append(f"the archive has {found}, and should have {expected}")

    with _daemon(folder, clock) as daemon:
        for moment in (midnight - 5, midnight + 5, midnight - 5, midnight + 60):  # over it, back by 10 s, and on
            await post_at(daemon, moment)
        compact()
        await post_at(daemon, midnight - 100)  # back by more than a day
        compact()
    return broken


# What they are made of


def _stepping(seconds: int) -> Scenario:
    return lambda folder, rng: step(folder, rng, seconds)


def _mine(expiry: int, ttl: int, data: bytes, rng: random.Random) -> Envelope:
    if ttl > DAY:  # the proof of work would take minutes: these daemons ask for none
        return encode_envelope(expiry, ttl, NEWS, data, rng.getrandbits(60))
    return mine(expiry, ttl, NEWS, data, target=MIN_POW, first_nonce=rng.getrandbits(60))


def _live(rng: random.Random, ttl: int, now: int | None = None) -> list[Envelope]:
    """What honest peers post now."""
    now = int(time.time()) if now is None else now
    return [_mine(now + ttl, ttl, rng.randbytes(300), rng) for _ in range(BATCH)]


def _history(rng: random.Random) -> list[NewEnvelope]:
    """Some received on each of the last days; all of it is to be kept."""
    now = int(time.time())
    return [_row(now - 60 - day * DAY - number, rng) for day in range(RETENTION_DAYS) for number in range(5)]


def _row(received: int, rng: random.Random) -> NewEnvelope:
    envelope = encode_envelope(received + LIVE_TTL_S, LIVE_TTL_S, NEWS, rng.randbytes(300), rng.getrandbits(60))
    return NewEnvelope(received, envelope.created, NEWS, envelope.hash(), envelope.raw)


async def _put(path: Path, rows: Sequence[NewEnvelope]) -> None:
    async with open_store(path) as store:
        await store.put(rows)


@contextlib.contextmanager
def _daemon(folder: Path, clock: MovedClock, *flags: str) -> Iterator[Daemon]:
    retention = ("--retention-days", str(RETENTION_DAYS), "--min-pow", "0")
    with running_daemon(folder, *retention, *flags, environment=clock.environment()) as daemon:
        yield daemon
        assert daemon.stop() == 0


@contextlib.asynccontextmanager
async def _pruning_daemon(
    folder: Path, clock: MovedClock, rng: random.Random, kept: int, *flags: str, received_ago: int = 35 * DAY
) -> AsyncIterator[Daemon]:
    """A daemon that has pruned once: one envelope more than may stay, and the oldest, tells that a round is over."""
    await _put(folder / STORE_FILE, [_row(int(time.time()) - received_ago, rng)])
    with _daemon(folder, clock, "--retention-envelopes", str(kept), *flags) as daemon:
        line = daemon.wait_for_line("pruned envelopes=")
        assert "pruned envelopes=1 " in line, line
        yield daemon


@contextlib.asynccontextmanager
async def _client(daemon: Daemon) -> AsyncIterator[MailClient]:
    async with connect(daemon.enode, "clock-test") as client:
        yield client


async def _post(client: MailClient, envelopes: Sequence[Envelope], clock: MovedClock, broken: Broken) -> set[bytes]:
    """Post; return what was taken. The answer must be what the rules say of the daemon's clock."""
    judge = Acceptance(Requirements(0.0))
    response = await client.post(envelopes)
    now = clock.now()
    verdicts = {envelope.raw: judge.judge(envelope, now) for envelope in envelopes}
    refused = {error.hash for error in response.errors}
    for envelope in envelopes:
        if (envelope.hash() in refused) != (verdicts[envelope.raw].code is not None):
            broken.append(f"expiry {envelope.expiry}, ttl {envelope.ttl} at {now:.0f}: {verdicts[envelope.raw].value}")
    return {raw for raw, verdict in verdicts.items() if verdict.value == "accepted"}


async def _compare(client: MailClient, kept: set[bytes], when: str, broken: Broken) -> None:
    """All that was kept is served, byte for byte, and nothing twice."""
    found: list[bytes] = []
    request = MailRequest(RequestId(bytes(32)), 0, MAX_U32 - 1, FULL_INTEREST, limit=100)
    key = key_from_password("status-offline-inbox")
    await client.request_all(request, key, lambda envelopes: found.extend(envelope.raw for envelope in envelopes))
    if len(found) != len(set(found)):
        broken.append(f"{when}: {len(found) - len(set(found))} are served twice")
    if set(found) != kept:
        broken.append(f"{when}: {len(kept - set(found))} are lost, {len(set(found) - kept)} should not be there")


def _get(daemon: Daemon, path: str) -> tuple[int, str]:
    port = daemon.wait_for_line("serving metrics port=").partition("port=")[2].split()[0]
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}") as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()
