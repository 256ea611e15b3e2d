"""A data directory that lives through many kills, and everything that must still be true of it after each."""

import asyncio
import contextlib
import random
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import uvloop

from mailserver.app.control_call import STATUS, call_daemon
from mailserver.catchup.ledger import open_ledger
from mailserver.catchup.ranges import MissingRange, merge
from mailserver.codec.keys import Enode, PrivateKey
from mailserver.data_dir.folder import KEY_FILE
from mailserver.errors import MailserverError
from mailserver.store.sqlite.schema import STORE_FILE
from tests.faults.kills.flood import MAX_ENVELOPES, Flood, all_history
from tests.faults.kills.judged import Judged
from tests.faults.kills.moments import Moment, killing
from tests.faults.kills.promises import Promises
from tests.faults.kills.wreck import Wreck, look_at
from tests.integration.daemons import PROGRAM, Daemon, run_command, running_daemon
from tests.pairs import private_key

NOBODY = Enode(private_key("nobody").public_key, "127.0.0.1", 1)
"""A trusted mailserver that is never there: what was missed while the daemon was down stays owed."""

MIXED = (1, 10, 100, 1)
"""Packets of so many envelopes, one connection each."""

STATUS_TIMEOUT_S = 15.0

FLOOD_LIMIT_S = 30.0
"""A flood whose moment has not come by then, on a machine that has much else to do, ends all the same."""


class Subject(Judged):
    """One data directory and what was promised by whoever served it."""

    def __init__(self, data_dir: Path, rng: random.Random, name: str, *flags: str) -> None:
        super().__init__(name)
        self.data_dir = data_dir
        self.store = data_dir / STORE_FILE
        self.log = data_dir / f"{STORE_FILE}-wal"
        self.rng = rng
        self.flags = (*flags, "--trusted-peers", str(NOBODY))
        self.promises = Promises()
        self._started_at = 0.0
        self._node_key: bytes | None = None
        self._down_since: float | None = None
        self._down: list[tuple[float, float]] = []

    @contextlib.contextmanager
    def running(self, *flags: str) -> Iterator[Daemon]:
        """Run the daemon on it, and see that it is itself; killed at the end, if it still runs."""
        self._begin()
        if self._down_since is not None:
            self._down.append((self._down_since, time.time()))
        with running_daemon(self.data_dir, *self.flags, *flags) as daemon:
            self.blame(self._identity(daemon))
            self.blame(self._owed())
            try:
                yield daemon
            finally:
                self._down_since = time.time()

    @contextlib.contextmanager
    def starting(self, program: Sequence[str] = PROGRAM) -> Iterator[Daemon]:
        """Start the daemon, or a program that becomes it, and wait for nothing; killed at the end, if it still runs."""
        self._begin()
        with running_daemon(self.data_dir, *self.flags, listening=False, program=program) as daemon:
            yield daemon

    def _begin(self) -> None:
        self.begin_round()
        self._started_at = time.time()

    def verify(
        self, daemon: Daemon, *, keeps: int | None = None, archived: Iterable[bytes] | None = None, checks: bool = True
    ) -> None:
        """Ask the running daemon for everything, compare it with what was promised, and look for damage.

        Args:
            keeps, archived: as of `Promises.broken_by`.
            checks: whether `waku-mailserver check` runs, too: it takes half a second.
        """
        served, status = uvloop.run(_ask(daemon.enode, self.data_dir))
        self.blame(self.promises.broken_by(served, keeps=keeps, archived=archived))
        self.blame(_wrong_status(status, daemon.enode, None if keeps is not None else len(served)))
        self.figures["envelopes_compared"] += len(served)
        if checks:
            self.check(self.data_dir)

    def check(self, data_dir: Path) -> None:
        """Have `waku-mailserver check` look at a data directory: it must be sound."""
        done = run_command("check", "--data-dir", data_dir, "--json")
        if done.returncode != 0:
            self.blame([f"check of {data_dir.name}: exit code {done.returncode}, {done.stdout.strip()}{done.stderr}"])
        else:
            self.figures["checks"] += 1

    def flood_and_kill(
        self, daemon: Daemon, moment: Moment, *, per_packet: Sequence[int] = MIXED, limit: int = MAX_ENVELOPES
    ) -> Wreck:
        """Flood the daemon until it is killed at a moment; return what is left."""
        before = self.promises.confirmed
        flood = Flood(self.promises, self.rng, per_packet, limit)
        with killing(daemon.process.pid, lambda: moment() or flood.is_over(), limit_s=FLOOD_LIMIT_S):
            asyncio.run(flood.run(daemon.enode))  # a wire cannot say goodbye to who is gone with uvloop
        daemon.wait()
        self.blame(flood.wrong)
        self.figures["kills"] += 1
        self.figures["confirmed"] += self.promises.confirmed - before
        return self.examine()

    def examine(self) -> Wreck:
        """Look at what a killed daemon has left, and count what it was doing."""
        wreck = look_at(self.store, self._started_at)
        self.figures["in_commit"] += wreck.in_commit
        self.figures["in_checkpoint"] += wreck.in_checkpoint
        return wreck

    def _identity(self, daemon: Daemon) -> Iterator[str]:
        key = (self.data_dir / KEY_FILE).read_bytes()
        if self._node_key not in (None, key):
            yield "the node key is another"
        self._node_key = key
        if daemon.enode.node_id != PrivateKey(bytes.fromhex(key.decode())).public_key:
            yield "the enode file names another node"
        if (self.data_dir / KEY_FILE).stat().st_mode & 0o777 != 0o600:
            yield "others may read the node key"

    def _owed(self) -> Iterator[str]:
        """Each time that the daemon was down is noted as missed, and to be asked for."""
        try:
            ledger = open_ledger(self.data_dir)
        except MailserverError as error:
            yield str(error)
            return
        # The part that is asked for first is cut off the rest.
        owed = merge(MissingRange(part.lower, part.upper) for part in ledger.account(NOBODY.node_id).pending)
        for what, ranges in (("missed", ledger.missed), ("pending", owed)):
            for since, until in self._down:
                if not any(part.lower <= since and int(until) <= part.upper for part in ranges):
                    yield f"sync.json: what was created from {since} to {until} is not {what}"


def _wrong_status(status: Mapping[str, Any], enode: Enode, envelopes: int | None) -> Iterator[str]:
    if not status["ready"]:
        yield f"status is not ready: {status['problems']}"
    if status["enode"] != str(enode):
        yield f"status has another enode: {status['enode']}"
    store = status["store"]  # None: nobody has looked yet
    if envelopes is not None and store is not None and store["envelopes"] != envelopes:
        yield f"status has {store['envelopes']} envelopes, {envelopes} were served"


async def _ask(enode: Enode, data_dir: Path) -> tuple[list[tuple[bytes, bytes]], dict[str, Any]]:
    served = await all_history(enode)
    async with asyncio.timeout(STATUS_TIMEOUT_S):
        status: dict[str, Any] = await call_daemon(data_dir, STATUS, {}, lambda _: None)
    return served, status
