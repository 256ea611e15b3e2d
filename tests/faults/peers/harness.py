"""Plays a scenario: a daemon on a filled store, an attack beside it, honest peers, and what must hold.

    Scenario --play--> Outcome(row of figures, broken promises)

While the attack goes on: every answer to the honest client is right and there within MAX_ANSWER_S, every envelope that
it posts is confirmed, served and relayed, the daemon's event loop is not held up again and again (`stalls`), and its
memory stays below MAX_MEMORY_BYTES. Once the attackers are gone: it has let go of their connections and memory, and
stops when it is told to, without a traceback.
"""

import asyncio
import contextlib
import random
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import uvloop

from bench.addresses import LIMITED
from bench.daemon import Usage, cpu_s, usage
from bench.data import Distribution, Topics, history
from bench.helper import HelperFailed
from bench.history import DAY_S
from bench.results import percentile
from mailserver.errors import ConnectionLost
from mailserver.store.sqlite.schema import STORE_FILE
from mailserver.store.sqlite.store import open_store
from mailserver.waku.envelope import Topic
from mailserver.waku.payload import key_from_password
from tests.faults.peers.attacker import Attack, Target, attacking
from tests.faults.peers.honest import Expected, Served, honest_peers
from tests.faults.peers.stalls import read_beats, stall_figures, stalled
from tests.faults.report import Figure, Row
from tests.integration.daemons import Daemon, running_daemon
from tests.waiting import until

MAX_MEMORY_BYTES = 300_000_000
"""Highest memory of the daemon, whatever peers do."""

MAX_ANSWER_S = 0.5
"""Longest time to an answer of the honest client, whatever other peers do, less what was waited for a processor by
either side: here the attackers use the same ones. What the clock says is told beside it."""

MAX_LEFT_BYTES = 32 * 1024 * 1024
"""How much more memory the daemon may have after a second round of an attack than after the first. What the first
leaves is no leak: allocators give little back, and use it again."""

SETTLED_WITHIN_S = 30.0
"""All that times out by itself once attackers are gone: handshakes, writes, silence."""

ENVELOPES = 50_000
TOPICS = 50
DAYS = 30
HISTORY_ENDED_S = 3600
"""The history ends so long ago: what is posted meanwhile, by anyone, changes no answer."""

ROUNDS = 2
"""Of each attack at full size, one after the other on one daemon."""

PASSWORD = "status-offline-inbox"

WATCHED = (sys.executable, "-m", "tests.faults.peers.watched")
"""The real program, with a beat on its event loop; takes a file to write that to."""

QUICK_SECONDS = 0.5
"""How long an attack goes on in the short form."""

Check = Callable[[Mapping[str, Figure]], Iterable[str]]
"""Looks at the figures of an attack; says each promise that was not kept."""


def nothing_else(figures: Mapping[str, Figure]) -> Iterable[str]:
    """Of an attack that has to keep no promise of its own."""
    return ()


@dataclass(frozen=True, slots=True)
class Scenario:
    """One attack. `flags` go to the daemon after LIMITED: the later one counts.

    `askers`: honest clients that ask for history meanwhile. `is_timed`: at full size, 99 of 100 answers must be there
    within MAX_ANSWER_S by the clock, of those asked for between the figures `from_s` and `until_s` of the attack
    (`perf_counter`): on a machine that is busy with other things it fails.
    """

    name: str
    attack: Attack
    flags: tuple[str, ...] = ()
    check: Check = nothing_else
    askers: int = 1
    is_timed: bool = False


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a scenario; `broken` is empty if all that must hold did."""

    row: Row
    broken: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Stage:
    """A data directory with a history, copied for each scenario, and what is in it."""

    data_dir: Path
    expected: Expected
    history_end: int

    @classmethod
    def fill(cls, folder: Path, *, seed: int, envelopes: int = ENVELOPES) -> "Stage":
        """Store `envelopes`, created evenly over DAYS and TOPICS; it runs an event loop of its own."""
        data_dir, end = folder / "filled", int(time.time()) - HISTORY_ENDED_S
        data_dir.mkdir()
        return cls(data_dir, uvloop.run(_fill(data_dir, envelopes, end, random.Random(seed))), end)


async def _fill(data_dir: Path, envelopes: int, end: int, rng: random.Random) -> Expected:
    topics = Topics(TOPICS, Distribution.UNIFORM)
    expected: dict[Topic, set[bytes]] = {topic: set() for topic in topics.all}
    async with open_store(data_dir / STORE_FILE) as store:
        for rows in history(envelopes, topics, end=end, span_s=DAYS * DAY_S, rng=rng):
            await store.put(rows)
            for row in rows:
                if row.created >= end - DAY_S:
                    expected[row.topic].add(row.raw)
    return {topic: frozenset(raws) for topic, raws in expected.items()}


async def play(scenario: Scenario, stage: Stage, *, seconds: float, seed: int, is_quick: bool) -> Outcome:
    """Play one scenario. What was not kept is in the outcome, and not raised.

    Args:
        seconds: how long the attack goes on; what cannot be done in less takes longer.
    """
    beats = stage.data_dir.with_name("beats")
    beats.unlink(missing_ok=True)
    program = (*WATCHED, str(beats))
    with (
        _copied(stage) as data_dir,
        running_daemon(data_dir, *LIMITED, *scenario.flags, program=program) as daemon,
    ):
        target = Target(
            enode_url=str(daemon.enode),
            pid=daemon.process.pid,
            request_key=key_from_password(PASSWORD).hex(),
            history_end=stage.history_end,
            seconds=seconds,
            seed=seed,
            is_quick=is_quick,
        )
        began = time.perf_counter()
        try:
            outcome = await _attack(scenario, target, stage.expected)
        except (ConnectionLost, ProcessLookupError) as error:
            outcome = Outcome(Row(scenario.name, {}), (f"the daemon is gone: {error!r}",))
        except HelperFailed as error:
            outcome = Outcome(Row(scenario.name, {}), (f"the attack failed: {error}",))
        seconds = time.perf_counter() - began
        ended = list(_stop(daemon))
    late = []
    if beats.exists():
        late = [beat for beat in read_beats(beats) if began <= beat.at <= began + seconds]
        ended += stalled(late, seconds)
    else:
        ended.append("the daemon has not told how its event loop was held up")
    row = replace(outcome.row, figures={**outcome.row.figures, **stall_figures(late)})
    return Outcome(row, tuple(f"{scenario.name}, seed {seed}: {text}" for text in (*outcome.broken, *ended)))


@contextlib.contextmanager
def _copied(stage: Stage) -> Iterator[Path]:
    data_dir = stage.data_dir.with_name("played")
    shutil.copytree(stage.data_dir, data_dir)
    try:
        yield data_dir
    finally:
        shutil.rmtree(data_dir)


def _stop(daemon: Daemon) -> Iterator[str]:
    """Stop the daemon; `running_daemon` looks for tracebacks."""
    code = daemon.process.poll()
    if code is not None:
        yield f"the daemon has ended with {code}: {daemon.log[-2000:]}"
    elif (code := daemon.stop()) != 0:
        yield f"the daemon stopped with {code}: {daemon.log[-2000:]}"
    for line in daemon.lines:
        if " ERROR " in line or " CRITICAL " in line or "Traceback" in line:
            yield f"in the log: {line}"


async def _attack(scenario: Scenario, target: Target, expected: Expected) -> Outcome:
    async with honest_peers(target, expected, askers=scenario.askers) as honest:
        asking = asyncio.create_task(honest.run())
        await until(lambda: asking.done() or bool(honest.served.answers_s and honest.served.posted))
        before = usage(target.pid)
        rounds = [
            await _round(scenario.attack, target, before.open_files) for _ in range(1 if target.is_quick else ROUNDS)
        ]
        honest.stop()
        await asking
        await honest.check_posted()
        after = usage(target.pid)
    broken = [*broken_promises(honest.served, [before, *(one.after for one in rounds), after])]
    if scenario.is_timed and not target.is_quick:
        for one in rounds:
            broken += too_slow(honest.served, one.figures)
    for one in rounds:
        broken += scenario.check(one.figures)
    return Outcome(Row(scenario.name, _figures(rounds[0], honest.served, before, after)), tuple(broken))


@dataclass(frozen=True, slots=True)
class _Round:
    """One round of an attack: its figures, how long it took, the CPU of the daemon, and how that was afterwards."""

    figures: Mapping[str, Figure]
    took_s: float
    daemon_cpu_s: float
    after: Usage


async def _round(attack: Attack, target: Target, open_files: int) -> _Round:
    """Attack, then wait until the daemon has let go of every connection of the attackers."""
    began, cpu = time.perf_counter(), cpu_s(target.pid)
    async with attacking(attack, target) as attacked:
        figures = await attacked
        took_s, daemon_cpu_s = time.perf_counter() - began, cpu_s(target.pid) - cpu
    with contextlib.suppress(TimeoutError):
        await until(lambda: usage(target.pid).open_files <= open_files, SETTLED_WITHIN_S)
    return _Round(figures, took_s, daemon_cpu_s, usage(target.pid))


def broken_promises(served: Served, usages: Sequence[Usage]) -> Iterator[str]:
    """Say what must hold in every scenario, and did not.

    Args:
        usages: of the daemon, before the attack, after each round of it, and at the end.
    """
    before, *rounds, after = usages
    yield from served.wrong
    own_s, took_s = max(zip(served.own_answers_s, served.answers_s, strict=True))
    if own_s > MAX_ANSWER_S:
        yield f"an answer took {own_s * 1000:.0f} ms, and {took_s * 1000:.0f} ms with what was waited for a processor"
    if after.peak_bytes > MAX_MEMORY_BYTES:
        yield f"the daemon had {after.peak_bytes / 1e6:.0f} MB"
    if after.open_files > before.open_files:
        yield f"{after.open_files} files are open, {before.open_files} were"
    left = rounds[-1].memory_bytes - rounds[0].memory_bytes
    if left > MAX_LEFT_BYTES:
        yield f"the daemon keeps {left / 1e6:.0f} MB more after each attack"


def while_attacked(served: Served, figures: Mapping[str, Figure]) -> list[float]:
    """How long the answers took that were asked for in the time that these figures of an attack name."""
    began, ended = float(figures["from_s"]), float(figures["until_s"])
    return [took for at, took in zip(served.asked_at, served.answers_s, strict=True) if began <= at <= ended]


def too_slow(served: Served, figures: Mapping[str, Figure]) -> Iterator[str]:
    """Say whether answers took longer by the clock than they may, but for one of a hundred."""
    took_s = percentile(while_attacked(served, figures), 0.99)
    if took_s is None:
        yield "nobody asked while it was attacked"
        return
    if took_s > MAX_ANSWER_S:
        yield f"an answer took {took_s * 1000:.0f} ms by the clock (99th percentile)"


def _figures(first: _Round, served: Served, before: Usage, after: Usage) -> dict[str, Figure]:
    return {
        **first.figures,
        "seconds": first.took_s,
        "peak_mb": after.peak_bytes / 1e6,
        "before_mb": before.memory_bytes / 1e6,
        "after_mb": after.memory_bytes / 1e6,
        "open_files_after": after.open_files,
        "cpu_share": first.daemon_cpu_s / first.took_s,
        "answers": len(served.answers_s),
        **(_times("attacked_answer", while_attacked(served, first.figures)) if "from_s" in first.figures else {}),
        **_times("answer", served.answers_s),
        **_times("answer_own", served.own_answers_s),
        "confirmations": len(served.confirmations_s),
        "slowest_confirmation_ms": max(served.confirmations_s) * 1000,
    }


def _times(name: str, times_s: Sequence[float]) -> dict[str, Figure]:
    """Median, 99th percentile and the longest, in ms; the `own` ones are without what was waited for a processor."""
    return {
        f"{name}_p50_ms": (percentile(times_s, 0.5) or 0.0) * 1000,
        f"{name}_p99_ms": (percentile(times_s, 0.99) or 0.0) * 1000,
        f"slowest_{name}_ms": max(times_s, default=0.0) * 1000,
    }
