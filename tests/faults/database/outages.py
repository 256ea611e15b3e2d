"""The database far away, cut off, silent, or hanging: for one of two daemons, while the other goes on, or for both.

Whoever cannot reach it confirms nothing, answers with an error in time, and says so at /ready; all recovers by itself.
The line is a relay on loopback (`tests.store.postgres.line`): a silent one is what a router looks like that has
forgotten a connection, but that new connections come about, and then nobody answers.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

from mailserver.client.mail_client import RequestFailed, connect
from mailserver.store.postgres.schema import LOCK_CLASS, Lock
from tests.faults.database.pair import ANSWER_WITHIN_S, Pair, Stage, paged
from tests.faults.disk_client import REFUSED_WITHIN_S, metrics_port, until_ready
from tests.faults.kills.flood import CLIENT_ID
from tests.integration.daemons import Daemon
from tests.store.postgres.line import Line, Way, line_to
from tests.waiting import until

FAR_S = 0.02
"""How long each piece takes to a database that is far away, and as long back."""

PACKETS, PACKET = 3, 10

STOP_WITHIN_S = 10.0
"""How long a daemon may take to stop while its database says nothing: as long as Docker waits by default."""


class Outages:
    """Both daemons of a pair: the first reaches the database by a line, the other by its socket."""

    def __init__(self, pair: Pair, line: Line, daemons: Sequence[Daemon]) -> None:
        self.pair = pair
        self.line = line
        self.daemons = [*daemons]

    async def posts(self, daemon: Daemon) -> float:
        """Post some packets, which must be confirmed; return how long that took."""
        began = time.monotonic()
        async with connect(daemon.enode, CLIENT_ID) as mail:
            for _ in range(PACKETS):
                self.pair.blame(await self.pair.post(mail, self.pair.envelopes(PACKET)))
        return time.monotonic() - began

    async def refuses(self, daemon: Daemon) -> None:
        """A daemon that cannot reach its database must do what it promises."""
        pair, began = self.pair, time.monotonic()
        async with connect(daemon.enode, CLIENT_ID) as mail, contextlib.AsyncExitStack() as stack:
            posting = asyncio.create_task(pair.post(mail, pair.envelopes(PACKET)))
            stack.callback(posting.cancel)
            try:
                async with asyncio.timeout(ANSWER_WITHIN_S):
                    await paged([mail])
                pair.blame(["history is answered without a database"])
            except RequestFailed:
                pair.slowest("error_s", time.monotonic() - began)
            except TimeoutError:
                pair.blame([f"no error within {ANSWER_WITHIN_S:g} s"])
            text = await until_ready(metrics_port(daemon), 503, ANSWER_WITHIN_S)
            pair.slowest("not_ready_s", time.monotonic() - began)
            if "database" not in text:
                pair.blame([f"/ready does not name the database: {text}"])
            await asyncio.wait([posting], timeout=REFUSED_WITHIN_S)
            if posting.done():
                pair.blame(["a packet is confirmed without a database"])

    async def recovers(self, daemons: Sequence[Daemon]) -> None:
        """When all is well again, daemons must be ready soon, and store what is sent again."""
        began = time.monotonic()
        for daemon in daemons:
            await until_ready(metrics_port(daemon), 200, ANSWER_WITHIN_S)
        self.pair.slowest("ready_again_s", time.monotonic() - began)
        for daemon in daemons:
            await self.pair.send_again(daemon)
            await self.posts(daemon)
        await self.pair.verify(self.daemons)
        self.pair.check_sound()


async def far_away(both: Outages) -> None:
    """One daemon is far away from the database."""
    both.line.delay_s = FAR_S
    both.pair.slowest("far_post_s", await both.posts(both.daemons[0]))
    await both.posts(both.daemons[1])
    await both.recovers(both.daemons)
    await both.line.mend()


async def cut_off(both: Outages) -> None:
    """One daemon is cut off; the other one goes on."""
    cut, other = both.daemons
    await both.line.cut()
    await asyncio.gather(both.refuses(cut), both.posts(other))
    await both.line.mend()
    await both.recovers([cut])


async def silent(both: Outages) -> None:
    """Nothing is heard any more on one daemon's line; the other one goes on."""
    cut, other = both.daemons
    both.line.fall_silent()
    await asyncio.gather(both.refuses(cut), both.posts(other))
    await both.line.mend()
    await both.recovers([cut])


async def silent_in_commit(both: Outages) -> None:
    """Nothing is heard any more of a daemon that holds the lock of all that store: the server gives it to the next."""
    cut, other = both.daemons
    both.line.fall_silent_at(Way.BACK, b"COPY ")
    async with connect(cut.enode, CLIENT_ID) as mail:
        posting = asyncio.create_task(both.pair.post(mail, both.pair.envelopes(PACKET)))
        try:
            await until(lambda: both.line.is_silent)
            await until(lambda: bool(both.pair.rows(_COMMITTING)))
            both.pair.slowest("others_waited_s", await both.posts(other))
        finally:
            posting.cancel()
            await asyncio.wait([posting])
    await both.line.mend()
    await both.recovers([cut])


async def hanging(both: Outages) -> None:
    """All of PostgreSQL hangs, and then goes on."""
    both.pair.server.hang()
    try:
        await asyncio.gather(*map(both.refuses, both.daemons))
    finally:
        both.pair.server.go_on()
    await both.recovers(both.daemons)


async def stopped_while_silent(both: Outages) -> None:
    """A daemon that is stopped while nothing is heard of its database does not wait for it for long."""
    both.line.fall_silent()
    await both.refuses(both.daemons[0])
    began = time.monotonic()
    both.daemons[0].process.terminate()
    code = await asyncio.to_thread(both.daemons[0].wait, 2 * STOP_WITHIN_S)
    both.pair.slowest("stop_s", time.monotonic() - began)
    if code or time.monotonic() - began > STOP_WITHIN_S:
        both.pair.blame([f"exit code {code} after {time.monotonic() - began:.1f} s"])
    await both.line.mend()


SCENARIOS: Sequence[Callable[[Outages], Awaitable[None]]] = (
    far_away,
    cut_off,
    silent,
    silent_in_commit,
    hanging,
    stopped_while_silent,
)

_COMMITTING = (
    f"SELECT 1 FROM pg_locks JOIN pg_stat_activity USING (pid) WHERE locktype = 'advisory' AND granted "
    f"AND classid::bigint = {LOCK_CLASS + Lock.COMMIT} AND state = 'idle in transaction' "
    "AND state_change < now() - interval '1 second'"
)
"""Who holds the lock, and has been silent for a second. Whoever begins to wait for it sooner may be refused, after as
long as the server bears with the silence; its peers send again."""


def outages(stage: Stage, rounds: int) -> None:
    """Go through all of it, so many times."""
    for number in range(rounds):
        asyncio.run(_go_through(stage.pair(f"outages, time {number}")))


async def _go_through(pair: Pair) -> None:
    async with _both(pair) as both:
        for scenario in SCENARIOS:
            pair.begin_round()
            await scenario(both)


@contextlib.asynccontextmanager
async def _both(pair: Pair) -> AsyncIterator[Outages]:
    async with line_to(pair.server) as line:
        with contextlib.ExitStack() as stack:
            daemons = [
                # In a thread: this one carries what the first says to its database.
                await asyncio.to_thread(stack.enter_context, pair.running(number, url=url))
                for number, url in enumerate((line.url(pair.schema), ""))
            ]
            yield Outages(pair, line, daemons)
            await line.mend()


KINDS = {"outages": outages}
