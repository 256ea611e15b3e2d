"""Power cuts of the database's machine: what PostgreSQL writes and syncs is recorded while two daemons store in it, and
replayed up to any moment, with what was not synced lost or torn. On what is left PostgreSQL is started, which recovers.

This is the method of `tests.faults.powercut`, whose recorder is loaded into all processes of the server, and into the
daemons: one log has the order of writes, of syncs, and of the moments at which confirmations were sent to peers. So it
shows that a confirmation is sent only after what it promises is on disk, through both programs. It does not show what a
disk does that confirms a sync and forgets; and it trusts the server to be configured to sync (`doctor` looks).

PostgreSQL asks more of a file system than SQLite does, and gets it from those of Linux: a new file that was synced has
its name, sectors of 512 bytes are written whole (pg_control), and lengthened files show nothing that was never written.
Without the first, files of tables are missing after a checkpoint: PostgreSQL 15 does not sync their folder.
"""

import asyncio
import contextlib
import random
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from mailserver.errors import MailserverError
from mailserver.store.postgres.store import open_store
from tests.faults.database.pair import Stage
from tests.faults.disk_client import metrics_port, until_ready
from tests.faults.powercut.checks import Broken, Expected, check_served, served
from tests.faults.powercut.cuts import cut_power, recorded_all
from tests.faults.powercut.recorder import Kind, Recorder, build
from tests.faults.powercut.replay import FileSystem
from tests.faults.powercut.scenarios import Scenario
from tests.faults.powercut.workload import SMALL, Recording, promises
from tests.store.postgres.looking import assert_sound
from tests.store.postgres.server import FORGETFUL, Server, give_to_server
from tests.store.samples import raws

LINUX = FileSystem(whole_sectors=True, names_with_files=True, no_garbage=True)

SMALL_LOG = {"min_wal_size": "2MB", "max_wal_size": "4MB", "checkpoint_completion_target": "0.1"}
"""So that the log comes round, and there are checkpoints, within seconds."""

POSIX_MEMORY = {"dynamic_shared_memory_type": "posix"}
"""Not files below the folder that is recorded."""

PACKETS = {1: 15, 10: 6, 100: 2}
DISKS = 2

SCHEMA = "mail"


async def record(
    folder: Path, choice: random.Random, *, packets: Mapping[int, int] = PACKETS, program: Sequence[str] = SMALL
) -> Scenario:
    """Record two daemons on a database, which is killed once, started again, and stopped.

    Args:
        folder: an empty one, of the server's user.
        packets: as of `Recording.post`, which each daemon is sent three times.
        program: what runs the daemons.
    """
    server = Server({**FORGETFUL, **SMALL_LOG, **POSIX_MEMORY}, data=folder / "disk", wal_segment_mb=1)
    try:
        server.start()
        server.sql(f"CREATE SCHEMA {SCHEMA}")
        server.stop()
        recorder = Recorder(build(folder), folder / "disk", folder / "log")
        for file in (recorder.log, recorder.log.with_name("log.lock")):
            file.touch()
            file.chmod(0o666)  # daemons write it, too
        recording = Recording(recorder, choice, LINUX)
        server.start(recorder.environment)
        with contextlib.ExitStack() as stack:
            flags = ("--store", server.url(SCHEMA), "--metrics", "127.0.0.1:0")
            daemons = [
                stack.enter_context(recording.daemon(*flags, data_dir=folder / name, program=program))
                for name in ("one", "other")
            ]
            await asyncio.gather(*(recording.post(daemon, packets) for daemon in daemons))
            server.sql("CHECKPOINT")
            await asyncio.gather(*(recording.post(daemon, packets) for daemon in daemons))
            server.kill()
            for daemon in daemons:
                await until_ready(metrics_port(daemon), 503)
            server.start(recorder.environment)
            for daemon in daemons:
                await until_ready(metrics_port(daemon), 200)
            await asyncio.gather(*(recording.post(daemon, packets) for daemon in daemons))
            for daemon in daemons:
                assert daemon.stop() == 0
        server.stop()
    finally:
        server.remove()
    entries = recorder.entries()
    promised = promises(entries, recording.confirmations)

    async def check(remains: Path, cut: int) -> None:
        confirmed = {raw for promise in promised if promise.since < cut for raw in raws(promise.envelopes)}
        await _check(remains, confirmed, raws(recording.sent))

    return Scenario(recording, entries, promised, check)


async def _check(remains: Path, confirmed: set[bytes], sent: list[bytes]) -> None:
    """What a cut has left: PostgreSQL recovers, and the store in it has all that was confirmed, once.

    Raises:
        Broken: a promise was not kept.
    """
    _boot(remains)
    server = Server({}, data=remains)
    try:
        try:
            server.start()
        except pytest.fail.Exception as error:
            raise Broken(str(error)) from error
        if not server.sql(f"SELECT to_regclass('{SCHEMA}.mailserver_schema')"):
            if confirmed:
                raise Broken("the store is gone")
            return
        async with open_store(server.url(SCHEMA), must_exist=True) as store:
            check_served(await served(store), Expected(confirmed, others=sent))
            await store.message_ids.find([])  # once all are indexed
        if server.sql("SELECT (SELECT count(*) FROM ids) = (SELECT count(*) FROM envelopes)", SCHEMA) != "t":
            raise Broken("ids are missing")
        assert_sound(server, SCHEMA)
    except (MailserverError, AssertionError) as error:
        raise Broken(f"{type(error).__name__}: {error}") from error
    finally:
        server.remove()


def _boot(remains: Path) -> None:
    """What else is so once the machine runs again: whoever had the files is gone, and they are the server's."""
    (remains / "postmaster.pid").unlink(missing_ok=True)
    for path in (remains, *remains.rglob("*")):
        give_to_server(path)


def new_folder(server: Server, name: str = "power") -> Path:
    """An empty folder that the processes of servers may enter; it goes with this server."""
    folder = server.folder / name
    folder.mkdir()
    give_to_server(folder)
    return folder


def power(stage: Stage, rounds: int) -> None:
    """Record once, and cut the power at so many moments."""
    pair = stage.pair("power cuts")
    folder = new_folder(stage.server)
    scenario = asyncio.run(record(folder, stage.rng))
    pair.blame(f"not recorded: {file}" for file in recorded_all(scenario, folder))
    outcome = asyncio.run(
        cut_power(scenario, folder, cuts=rounds, disks=DISKS, seed=str(stage.rng.random()), name="power cuts")
    )
    pair.blame(outcome.shown)
    pair.figures["entries"] = len(scenario.entries)
    pair.figures["syncs"] = sum(entry.kind is Kind.SYNC_END for entry in scenario.entries)
    pair.figures["confirmations"] = len(scenario.promises)
    pair.figures["disks"] = outcome.disks


KINDS = {"power cuts": power}
