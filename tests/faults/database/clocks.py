"""One of two daemons has a clock that is ahead by a year, from the first start on, or all of a sudden: neither deletes
what the other has stored, and each goes by its own clock for what it takes in.
"""

import asyncio

from mailserver.client.mail_client import connect
from mailserver.store.interface import NewEnvelope
from mailserver.store.postgres.store import open_store
from mailserver.units import SECONDS_PER_DAY
from tests.faults.database.pair import Pair, Stage
from tests.faults.disk_client import metrics_port, until_ready
from tests.faults.kills.flood import CLIENT_ID
from tests.integration.daemons import Daemon
from tests.moved_clock import MovedClock
from tests.waiting import until

YEAR_S = 365 * SECONDS_PER_DAY
RETENTION_DAYS = 30
PACKET = 50
PRUNED_WITHIN_S = 30.0

_FLAGS = ("--retention-days", str(RETENTION_DAYS))


async def ahead_from_the_first_start(pair: Pair, clock: MovedClock) -> None:
    """The daemon whose clock is wrong is the first one on the database."""
    clock.step(YEAR_S)
    with pair.running(0, environment=clock.environment()) as wrong:
        with pair.running(1) as right:
            await _post(pair, right)
            assert right.stop() == 0
        await _prune(pair)
        await pair.verify((wrong, wrong))
        assert wrong.stop() == 0


async def ahead_of_a_sudden(pair: Pair, clock: MovedClock) -> None:
    """The clock of one daemon steps while both run."""
    with pair.running(0, environment=clock.environment()) as wrong:
        with pair.running(1) as right:
            await _post(pair, right)
            await _post(pair, wrong)
            clock.step(YEAR_S)
            await _post(pair, right)
            assert right.stop() == 0
        await _prune(pair)
        await pair.verify((wrong, wrong))
        assert wrong.stop() == 0


async def _post(pair: Pair, daemon: Daemon) -> None:
    await until_ready(metrics_port(daemon), 200)
    async with connect(daemon.enode, CLIENT_ID) as mail:
        pair.blame(await pair.post(mail, pair.envelopes(PACKET)))


async def _prune(pair: Pair) -> None:
    """Have a daemon prune: what was received so long ago goes, whatever a clock shows."""
    (old,) = pair.envelopes(1)
    async with open_store(pair.server.url(pair.schema)) as store:
        received = old.created - (RETENTION_DAYS + 10) * SECONDS_PER_DAY
        await store.put([NewEnvelope(received, received, old.topic, old.hash(), old.raw)])
    await until(lambda: not pair.rows(f"SELECT 1 FROM envelopes WHERE received = {received}"), PRUNED_WITHIN_S)
    pair.figures["pruned_rounds"] += 1


SCENARIOS = (ahead_from_the_first_start, ahead_of_a_sudden)


def clocks(stage: Stage, rounds: int) -> None:
    """So many of the scenarios, in turn."""
    for number in range(rounds):
        scenario = SCENARIOS[number % len(SCENARIOS)]
        pair = stage.pair(f"{scenario.__name__}, round {number}", *_FLAGS)
        pair.folder.mkdir()
        asyncio.run(scenario(pair, MovedClock(pair.folder)))


KINDS = {"clocks": clocks}
