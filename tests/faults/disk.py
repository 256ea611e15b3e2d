"""A disk that is full, or fails: what was confirmed is there, reads go on, and all goes on by itself.

Errors are made at the C library's calls (`faulty_io`), at random but by a seed; room is short on a real, small file
system (`tmpfs`), which takes root. After the errors, the power fails: what then counts is what the disk has.
"""

import argparse
import asyncio
import contextlib
import errno
import random
import re
import shutil
import sqlite3
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

from mailserver.client.mail_client import MailClient
from mailserver.store.sqlite.repair.check import check_store
from mailserver.store.sqlite.schema import APPLICATION_ID, MIGRATIONS, STORE_FILE
from tests.faults.disk_client import REFUSED_WITHIN_S, WATCHFUL, Client, connected, metrics_port, serves, until_ready
from tests.faults.faulty_io import WRITING, Calls, FaultyIO, error_text, faulty_io
from tests.faults.report import Figure, Report, Row
from tests.integration.daemons import Daemon, run_command, running_daemon
from tests.mailservers import make_envelopes, stored
from tests.store.samples import plain

SUMMARY = "a disk that is full, or fails, and stores that are damaged"
QUICK: Mapping[str, object] = {"rounds": 6, "commands": 4}

ERRORS = (errno.ENOSPC, errno.EIO, errno.EDQUOT, errno.EROFS)
CALLS = (Calls.WRITE, Calls.SYNC, Calls.TRUNCATE, Calls.OPEN, Calls.WRITE | Calls.SYNC, WRITING)
FILES = ("-wal", f"{STORE_FILE}", "")
PACKETS, ENVELOPES, ENVELOPE_BYTES = 12, 20, 3000
"""What is posted in a round: nearly a megabyte, so that the log is written back every ten rounds or so."""

KEPT = 200
"""So many envelopes stay where more are deleted."""

MAX_MEMORY_MB = 300
MAX_LINES_PER_ROUND = 4
"""Of one failure: a line for each cause."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Take the size of the runs."""
    parser.add_argument("--seed", type=int, default=6, help="of all that is random")
    parser.add_argument("--rounds", type=int, default=120, help="rounds of errors beside a running mailserver")
    parser.add_argument("--commands", type=int, default=40, help="failures of a start, a migration and a backup, each")


def run(arguments: argparse.Namespace) -> Report:
    """Go through all of it."""
    rows, broken = [], []
    with tempfile.TemporaryDirectory(prefix="faults-disk-") as scratch:
        for name, scenario in (
            ("errors", errors(Path(scratch) / "errors", arguments.seed, arguments.rounds)),
            ("pruning", pruning(Path(scratch) / "pruning", arguments.seed, arguments.rounds // 4)),
            ("full", full(Path(scratch) / "full", arguments.seed)),
            ("commands", commands(Path(scratch) / "commands", arguments.seed, arguments.commands)),
        ):
            figures, faults = asyncio.run(scenario)
            rows.append(Row(name, figures))
            broken += [f"{name}, seed {arguments.seed}: {fault}" for fault in faults]
    return Report("disk", tuple(rows), tuple(broken))


async def errors(folder: Path, seed: int, rounds: int) -> tuple[dict[str, Figure], list[str]]:
    """Errors of every kind beside a running mailserver; then the power fails."""
    data, shadow, draw = folder / "data", folder / "shadow", random.Random(seed)
    client, broken, refused, hits, memory = Client(seed), [], 0, 0, 0
    with running_daemon(data, program=WATCHFUL) as daemon:
        assert daemon.stop() == 0
    with (
        faulty_io(folder / "faults", data, shadow=shadow) as faults,
        _daemon(data, environment=faults.environment) as daemon,
    ):
        async with connected(daemon) as mail:
            assert await client.post(mail, client.envelopes(ENVELOPES))
            for number in range(rounds):
                what = _break(faults, draw)
                before = len(client.confirmed)
                packets = [client.envelopes(ENVELOPES, ENVELOPE_BYTES) for _ in range(PACKETS)]
                posted = await asyncio.gather(*(client.post(mail, one, REFUSED_WITHIN_S) for one in packets))
                refused += posted.count(False)
                faulted = client.faults_of(await serves(mail))
                hits += faults.mend()
                again = [await client.post(mail, one) for one in packets]
                if not all(again):
                    faulted.append("it does not store again")
                broken += [f"round {number}, {what}, after {before} envelopes: {fault}" for fault in faulted]
                memory = max(memory, _memory_mb(daemon))
            await until_ready(metrics_port(daemon), 200)
        lines = sum("store write failed" in line for line in daemon.lines)
        daemon.end()
    broken += [f"after the power cut: {fault}" for fault in await _restarted(shadow, client)]
    broken += [f"after a kill: {fault}" for fault in await _restarted(data, client)]
    if memory > MAX_MEMORY_MB:
        broken.append(f"{memory} MB of memory")
    if lines > MAX_LINES_PER_ROUND * rounds:
        broken.append(f"{lines} lines in the log")
    figures: dict[str, Figure] = {
        "rounds": rounds,
        "failed_calls": hits,
        "packets_not_confirmed": refused,
        "confirmed": len(client.confirmed),
        "log_lines": lines,
        "memory_mb": memory,
        "seed": str(seed),
    }
    return figures, broken


def _break(faults: FaultyIO, draw: random.Random) -> str:
    """Have something fail; return what, in words."""
    error, calls, name = draw.choice(ERRORS), draw.choice(CALLS), draw.choice(FILES)
    passes, failures = draw.choice([(0, -1), (0, 1), (draw.randrange(40), 1), (draw.randrange(40), -1)])
    faults.fail(error, calls, name, passes=passes, failures=failures)
    return f"{error_text(error)} of {calls!r} on {name!r}, {failures} after {passes}"


async def _restarted(data: Path, client: Client) -> list[str]:
    """What is wrong with what a new daemon serves, and with the file."""
    with running_daemon(data, program=WATCHFUL) as daemon:
        async with connected(daemon) as mail:
            broken = client.faults_of(await serves(mail))
        if daemon.stop() != 0:
            broken.append("it does not stop")
    report = check_store(data / STORE_FILE, lambda step, done, total: None)
    return broken + [f"{kind.name}: {text}" for kind, texts in report.shown.items() for text in texts[:1]]


async def pruning(folder: Path, seed: int, rounds: int) -> tuple[dict[str, Figure], list[str]]:
    """Errors while a mailserver deletes what is too much: it keeps what it should, and deletes the rest afterwards."""
    data, draw, client, broken, hits = folder / "data", random.Random(seed), Client(seed), [], 0
    flags = ("--retention-envelopes", str(KEPT))
    with (
        faulty_io(folder / "faults", data) as faults,
        running_daemon(data, *flags, environment=faults.environment, program=WATCHFUL) as daemon,
    ):
        async with connected(daemon) as mail:
            for number in range(rounds):
                what = _break(faults, draw)
                for _ in range(4):
                    await client.post(mail, client.envelopes(KEPT // 4), REFUSED_WITHIN_S)
                hits += faults.mend()
                client.confirmed.clear()  # of what was there before, nothing is promised now
                again = [await client.post(mail, client.envelopes(KEPT // 4)) for _ in range(3)]
                served = await _served_at_most(mail, KEPT)
                faulted = client.faults_of(served) + ([] if all(again) else ["it does not store again"])
                if served.total() > KEPT:
                    faulted.append(f"{served.total()} envelopes stay")
                broken += [f"round {number}, {what}: {fault}" for fault in faulted]
        daemon.end()
    return {"rounds": rounds, "failed_calls": hits, "seed": str(seed)}, broken + await _restarted(data, client)


async def _served_at_most(mail: MailClient, limit: int) -> Counter[bytes]:
    """What is served as soon as no more than that is left; or in the end."""
    served = await serves(mail)
    for _ in range(100):
        if served.total() <= limit:
            break
        await asyncio.sleep(0.2)
        served = await serves(mail)
    return served


async def full(folder: Path, seed: int) -> tuple[dict[str, Figure], list[str]]:
    """A file system without any room, beside a running mailserver, and at its start."""
    client, broken = Client(seed), []
    with small_disk(folder, "48m") as disk:
        ballast = disk / "ballast"
        with _daemon(disk / "data") as daemon:
            async with connected(daemon) as mail:
                assert await client.post(mail, client.envelopes(100))
                fill_up(ballast)
                broken += await _is_full(daemon, mail, client)
                ballast.unlink()
                broken += await _has_room(daemon, mail, client)
                fill_up(ballast)
            daemon.end()
        with _daemon(disk / "data") as daemon:
            async with connected(daemon) as mail:
                broken += [f"started full: {fault}" for fault in await _is_full(daemon, mail, client)]
                ballast.unlink()
                broken += [f"started full: {fault}" for fault in await _has_room(daemon, mail, client)]
            if daemon.stop() != 0:
                broken.append("it does not stop")
        report = check_store(disk / "data" / STORE_FILE, lambda step, done, total: None)
        if not report.is_sound:
            broken.append(f"damage: {report.shown}")
    return {"confirmed": len(client.confirmed), "sent": len(client.sent)}, broken


async def _is_full(daemon: Daemon, mail: MailClient, client: Client) -> list[str]:
    """What is wrong with a mailserver whose disk is full."""
    broken = []
    text = await until_ready(metrics_port(daemon), 503)
    if "disk is full" not in text:
        broken.append(f"/ready does not name it: {text}")
    for _ in range(5):  # what an older, larger log still has room for may be confirmed
        await client.post(mail, client.envelopes(100, ENVELOPE_BYTES), REFUSED_WITHIN_S)
    if await client.post(mail, client.envelopes(100, ENVELOPE_BYTES), REFUSED_WITHIN_S):
        broken.append("it confirms what there is no room for")
    broken += client.faults_of(await serves(mail))
    status = await asyncio.to_thread(run_command, "status", "--data-dir", daemon.data_dir)
    if status.returncode != 1 or "disk is full" not in status.stdout:
        broken.append(f"status does not name it: {status.stdout}")
    doctor = await asyncio.to_thread(run_command, "doctor", "--data-dir", daemon.data_dir)
    if doctor.returncode != 1 or not re.search(r" (B|KiB) free", doctor.stdout):
        broken.append(f"doctor does not name it: {doctor.stdout}")
    return broken


async def _has_room(daemon: Daemon, mail: MailClient, client: Client) -> list[str]:
    """What is wrong with a mailserver whose disk has room again."""
    await until_ready(metrics_port(daemon), 200)
    broken = [] if await client.post(mail, client.envelopes(50)) else ["it does not store again"]
    return broken + client.faults_of(await serves(mail))


async def commands(folder: Path, seed: int, count: int) -> tuple[dict[str, Figure], list[str]]:
    """Starts, migrations and backups that fail somewhere: one line, nothing lost, and the next one succeeds."""
    draw, broken, hits, failed = random.Random(seed), [], 0, 0
    old = folder / "old"
    _make_old(old)
    for number in range(count):
        for command in ("run", "backup"):
            data = folder / f"{command} {number}"
            shutil.copytree(old, data, ignore=shutil.ignore_patterns("control"))
            with faulty_io(folder / "faults", folder) as faults:
                name = STORE_FILE if command == "run" else "saved"
                faults.fail(draw.choice(ERRORS), draw.choice(CALLS), name, passes=draw.randrange(60))
                ended = await asyncio.to_thread(_try, command, data, faults.environment)
                hits += faults.mend()
            if ended is not None:
                failed += 1
                if not ended.startswith("waku-mailserver: ") or "\n" in ended:
                    broken.append(f"{command} {number} says {ended!r}")
            broken += [f"{command} {number}: {fault}" for fault in _after(command, data)]
            shutil.rmtree(data)
    return {"commands": 2 * count, "failed": failed, "failed_calls": hits, "seed": str(seed)}, broken


def _make_old(data: Path) -> None:
    """A data directory with a store of version 1 of the schema, that a start migrates."""
    with running_daemon(data) as daemon:
        assert daemon.stop() == 0
    (data / STORE_FILE).unlink()
    with plain(data / STORE_FILE, write=True) as connection:
        for statement in MIGRATIONS[0]:
            connection.execute(statement)
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute("PRAGMA user_version = 1")
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("BEGIN")
        for envelope in make_envelopes(300):
            row = stored(envelope)
            values = (row.received, row.created, row.topic, row.hash[:16], row.raw)
            connection.execute(
                "INSERT INTO envelopes (received, created, topic, hash, raw) VALUES (?, ?, ?, ?, ?)", values
            )
            connection.execute(
                "INSERT INTO days VALUES (?, 1, ?) ON CONFLICT DO UPDATE SET envelopes = envelopes + 1, "
                "bytes = bytes + excluded.bytes",
                (row.created // 86_400, len(row.raw)),
            )
            connection.execute("INSERT OR IGNORE INTO day_topics VALUES (?, ?)", (row.created // 86_400, row.topic))
        connection.execute("COMMIT")


def _try(command: str, data: Path, environment: Mapping[str, str]) -> str | None:
    """Run a command that may fail; return what it said then."""
    if command == "backup":
        done = run_command("backup", "--data-dir", data, data / "saved", environment=environment)
        return done.stderr.strip() if done.returncode else None
    with running_daemon(data, environment=environment, listening=False) as daemon:
        with contextlib.suppress(AssertionError):
            daemon.wait_for_line("listening")
            daemon.stop()
            return None
        assert daemon.wait() == 1, daemon.log
        return "\n".join(line for line in daemon.lines if line.startswith("waku-mailserver"))


def _after(command: str, data: Path) -> list[str]:
    """What is wrong after it, and with the same again."""
    if command == "backup":
        if (data / "saved").exists():
            return [] if _rows(data / "saved") == 300 else ["a backup that is not whole"]
        done = run_command("backup", "--data-dir", data, data / "saved")
        return [] if done.returncode == 0 and _rows(data / "saved") == 300 else [f"no backup after it: {done.stderr}"]
    with running_daemon(data) as daemon:
        daemon.stop()
    report = check_store(data / STORE_FILE, lambda step, done, total: None)
    return [] if report.is_sound and report.envelopes == 300 else [f"{report.envelopes} envelopes, {report.shown}"]


def _rows(data: Path) -> int:
    try:
        with plain(data / STORE_FILE) as connection:
            return int(connection.execute("SELECT count(*) FROM envelopes").fetchone()[0])
    except sqlite3.Error:
        return -1


@contextlib.contextmanager
def _daemon(data: Path, environment: Mapping[str, str] | None = None) -> Iterator[Daemon]:
    with running_daemon(data, "--metrics", "127.0.0.1:0", environment=environment, program=WATCHFUL) as daemon:
        yield daemon


def _memory_mb(daemon: Daemon) -> int:
    """The most memory that it had so far."""
    status = Path(f"/proc/{daemon.process.pid}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) // 1024


@contextlib.contextmanager
def small_disk(folder: Path, size: str) -> Iterator[Path]:
    """A file system of its own, that is soon full.

    Raises:
        CalledProcessError: there is no right to mount.
    """
    folder.mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", folder], check=True, timeout=60)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", folder], check=True, timeout=60)


def fill_up(ballast: Path) -> None:
    """Leave no room at all."""
    with contextlib.suppress(OSError), ballast.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))
