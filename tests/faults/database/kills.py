"""Kills of two daemons and their database, of any of them, while peers post to both and clients ask both.

What is killed is killed at a moment that chance decides: how many packets were confirmed by then, or how long it took.
Afterwards everybody is started again, whoever got no confirmation sends again, and then everything that was ever
confirmed is served once, by each daemon, and page by page by both in turn; and the index of message ids has all of it.
"""

import asyncio
import contextlib
import signal
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial

from mailserver.client.mail_client import RequestFailed, connect
from mailserver.codec.keccak import keccak256
from tests.faults.database.archivist import Archivist
from tests.faults.database.pair import ANSWER_WITHIN_S, Pair, Reader, Stage, paged
from tests.faults.disk_client import REFUSED_WITHIN_S, metrics_port, until_ready
from tests.faults.kills.flood import CLIENT_ID, Flood
from tests.faults.kills.moments import Moment, acting, after, at_packets
from tests.integration.daemons import Daemon
from tests.waiting import until

VICTIMS = ("database", "one daemon", "everything", "database and one daemon", "both daemons")
"""What is killed, in turn."""

PER_PACKET = (1, 10, 100, 10)
"""Packets of so many envelopes, one connection each, to each daemon."""

MOST_ENVELOPES = 250
"""One connection sends no more in a round: all of a store is read several times after each kill."""

MOST_PACKETS = 50
LONGEST_S = 0.8
GOES_ON_PACKETS = 20
"""What survives must confirm so many packets more."""

ROUND_S = 30.0
ROUNDS_OF_A_STORE = 25

KEPT = 400
PRUNED_WITHIN_S = 30.0


def ingest(stage: Stage, rounds: int) -> None:
    """Nothing is ever deleted: all that was confirmed is there at the end."""
    for first in range(0, rounds, ROUNDS_OF_A_STORE):
        pair = stage.pair(f"ingest, from round {first}")
        with Daemons(pair) as daemons:
            for number in range(first, min(first + ROUNDS_OF_A_STORE, rounds)):
                pair.begin_round()
                asyncio.run(daemons.flood_and_kill(VICTIMS[number % len(VICTIMS)]))
                asyncio.run(daemons.go_on_alone())
                asyncio.run(daemons.recover())
                asyncio.run(pair.verify(daemons.daemons))
                pair.check_sound()
            daemons.stop()


def pruning(stage: Stage, rounds: int) -> None:
    """Both delete what is too much and archived, while an archivist takes rows; any of them is killed."""
    flags = ("--retention-days", "0", "--retention-envelopes", str(KEPT), "--archive", "hdfs://host/archive")
    pair = stage.pair("pruning", *flags)
    archivist = Archivist(stage.server.url(pair.schema), stage.folder / "archive")
    with Daemons(pair) as daemons, contextlib.ExitStack() as stack:
        stack.callback(archivist.kill)
        for number in range(rounds):
            pair.begin_round()
            archivist.start()
            victims = VICTIMS[(number + 2) % len(VICTIMS)]  # a short run has others than that of `ingest`
            asyncio.run(daemons.flood_and_kill(victims, archivist.kill if number % 2 else None))
            asyncio.run(daemons.recover())
            archivist.kill()  # else its lock would keep everything
            asyncio.run(pair.verify(daemons.daemons, keeps=KEPT, archived=archivist.handed_over()))
        _to_the_end(pair, daemons, archivist)


def _to_the_end(pair: Pair, daemons: "Daemons", archivist: Archivist) -> None:
    """One daemon dies for good. All is archived; then the other one alone deletes all that is too much."""
    daemons.kill(daemons.daemons[0])
    archivist.start()
    archivist.until_all_is_taken()
    archivist.kill()
    deadline = time.monotonic() + PRUNED_WITHIN_S
    while int(pair.rows("SELECT count(*) FROM envelopes")[0]) > KEPT and time.monotonic() < deadline:
        time.sleep(0.05)
    daemons.stop()
    there = [keccak256(bytes.fromhex(line)) for line in pair.rows("SELECT encode(raw, 'hex') FROM envelopes")]
    if len(there) != KEPT:
        pair.blame([f"{len(there)} envelopes are left, and {KEPT} are to be kept"])
    taken = archivist.taken()
    if len(taken) != len(set(taken)):
        pair.blame([f"{len(taken) - len(set(taken))} envelopes are archived twice"])
    if lost := pair.promises.owed() - set(taken):
        pair.blame([f"{len(lost)} confirmed envelopes are not archived"])
    pair.figures["archived"] = len(taken)
    pair.figures["pruned"] = len(taken) - len(there)
    pair.check_sound()


KINDS = {
    "kills while both take in": ingest,
    "kills while both delete": pruning,
}


class Daemons(contextlib.ExitStack):
    """Both daemons of a pair; each is started again after it was killed."""

    def __init__(self, pair: Pair) -> None:
        super().__init__()
        self._pair = pair
        self._server = pair.server
        self.daemons: list[Daemon] = []
        self._killed: set[int] = set()

    def __enter__(self) -> "Daemons":
        super().__enter__()
        self.daemons = [self.enter_context(self._pair.running(number)) for number in range(2)]
        return self

    def kill(self, daemon: Daemon) -> None:
        """End one, which stays dead for now."""
        daemon.process.send_signal(signal.SIGKILL)
        self._killed.add(self.daemons.index(daemon))

    def stop(self) -> None:
        """Have those that live stop in order."""
        for number, daemon in enumerate(self.daemons):
            if number not in self._killed and (code := daemon.stop()):
                self._pair.blame([f"exit code {code}"])

    async def flood_and_kill(self, victims: str, besides: Callable[[], None] | None = None) -> None:
        """Flood both, and read from both, until something is killed, and then a little longer what is left."""
        pair, rng = self._pair, self._pair.rng
        floods = [Flood(pair.promises, rng, PER_PACKET, MOST_ENVELOPES) for _ in self.daemons]
        readers = [Reader(daemon) for daemon in self.daemons]
        before, killed_at = pair.promises.confirmed, 0
        is_killed = threading.Event()
        first = rng.randrange(2)

        def kill() -> None:
            nonlocal killed_at
            dying = {"one daemon": [first], "database": [], "database and one daemon": [first]}.get(victims, [0, 1])
            acts: list[Callable[[], None]] = [partial(self.kill, self.daemons[number]) for number in dying]
            if victims.startswith("database") or victims == "everything":
                acts.append(self._server.kill)
            if besides is not None:
                acts.append(besides)
            rng.shuffle(acts)
            for act in acts:
                act()
            killed_at = pair.promises.packets
            is_killed.set()

        def is_over() -> bool:
            if not is_killed.is_set():
                return False
            if not self._server.is_running or len(self._killed) == len(self.daemons):
                return True
            return pair.promises.packets >= killed_at + GOES_ON_PACKETS or all(flood.is_over() for flood in floods)

        with acting(kill, _moment(pair)):
            tasks = [
                asyncio.create_task(each)
                for number, daemon in enumerate(self.daemons)
                for each in (floods[number].run(daemon.enode), readers[number].run())
            ]
            await until(is_over, ROUND_S)
        if not self._server.is_running:
            await self._without_database(self._alive())
        for task in tasks:
            task.cancel()
        ends = await asyncio.gather(*tasks, return_exceptions=True)
        pair.blame(repr(end) for end in ends if isinstance(end, Exception))
        pair.blame(wrong for flood in floods for wrong in flood.wrong)
        pair.blame(wrong for reader in readers for wrong in reader.broken)
        pair.figures[f"killed_{victims.replace(' ', '_')}"] += 1
        pair.figures["confirmed"] += pair.promises.confirmed - before
        pair.figures["answers"] += sum(reader.answers for reader in readers)
        pair.figures["error_answers"] += sum(reader.failures for reader in readers)

    async def _without_database(self, alive: Sequence[Daemon]) -> None:
        """Each daemon that lives confirms nothing, answers with an error, and says so."""
        for daemon in alive:
            text = await until_ready(metrics_port(daemon), 503, ANSWER_WITHIN_S)
            if "database" not in text:
                self._pair.blame([f"/ready does not name the database: {text}"])
            before = self._pair.promises.confirmed
            async with connect(daemon.enode, CLIENT_ID) as mail:
                try:
                    async with asyncio.timeout(ANSWER_WITHIN_S):
                        await paged([mail])
                    self._pair.blame(["history is answered without a database"])
                except RequestFailed:
                    self._pair.figures["errors_in_time"] += 1
                except TimeoutError:
                    self._pair.blame([f"no error within {ANSWER_WITHIN_S:g} s"])
            await asyncio.sleep(REFUSED_WITHIN_S)
            if self._pair.promises.confirmed != before:
                self._pair.blame(["something is confirmed without a database"])

    async def go_on_alone(self) -> None:
        """Whoever is left with the database, if anybody is, indexes what all have stored."""
        if self._server.is_running:
            for daemon in self._alive():
                await self._pair.verify_ids(daemon)

    def _alive(self) -> list[Daemon]:
        return [daemon for number, daemon in enumerate(self.daemons) if number not in self._killed]

    async def recover(self) -> None:
        """Start again what was killed; then what was not confirmed is sent again, to either."""
        pair = self._pair
        before = set(pair.promises.sent) - pair.promises.owed()
        if not self._server.is_running:
            await asyncio.to_thread(self._server.start)
        there = {keccak256(bytes.fromhex(line)) for line in pair.rows("SELECT encode(raw, 'hex') FROM envelopes")}
        pair.figures["unconfirmed_and_stored"] += len(before & there)
        for number in sorted(self._killed):
            self.daemons[number].wait()
            self.daemons[number] = self.enter_context(pair.running(number))
        self._killed.clear()
        for daemon in self.daemons:
            await until_ready(metrics_port(daemon), 200)
        await pair.send_again(pair.rng.choice(self.daemons))


def _moment(pair: Pair) -> Moment:
    """When to kill."""
    if pair.rng.random() < 0.7:
        return at_packets(pair.promises, pair.promises.packets + pair.rng.randint(1, MOST_PACKETS))
    return after(pair.rng.uniform(0, LONGEST_S))
