"""Broken networks: partitions, bad lines, lines of one direction, changed addresses, flapping, resets.

Daemons run in hosts of their own (tests/faults/fleet.py), and every packet between them goes through a switch that does
to it what a scenario says. Each scenario leaves perfect lines and a whole fleet behind. What was confirmed to a client
must be stored by every node in the end, each once, whatever happened on the way.
"""

import argparse
import asyncio
import contextlib
import random
import signal
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any

from mailserver.errors import MailserverError
from mailserver.rlpx.liveness import IDLE_TIMEOUT_S, SEEN_RECENTLY_S
from mailserver.waku.envelope import EnvelopeHash, Topic
from tests.faults.fleet import START_WITHIN_S, Fleet, NotReached, Pages, fleet, reach
from tests.faults.report import Figure, Report, Row
from tests.faults.switch import Line
from tests.faults.wires import CUT, REJECTING

SUMMARY = "partitions, bad lines, one-way lines, changed addresses, flapping"
QUICK: Mapping[str, object] = {
    "daemons": 3,
    "factor": 0.2,
    "rounds": 1,
    "partitions": (2.0, 10.0),
    "envelopes": 300,
    "history": 1500,
    "loss": (0.02,),
    "delay": 0.03,
    "flaps": 6,
}

BAD = Line(delay_s=0.05, jitter_s=0.02, loss=0.01, reordering=0.02)

LOCKOUT_S = 5.0
"""How long a client whose network has changed may wait to be let in again."""

SLACK_S = 20.0
"""What anything may take beyond the times that are named, on a machine that has much else to do."""

SHORT_TTL_S = 2
"""Of envelopes that are to expire on their way."""

LINGER_S = 3.0
"""From the end of the patience with a silent peer until it is neither served nor counted any more."""

STOP_S = 8.0
"""How long a daemon may take to stop while its peers do not listen (docs/operating/running.md)."""

LINES_PER_FLAP = 4
"""Most lines at the default level that a node may log for each time that the lines are cut."""

LINES_SHOWN = 60
"""Of what each node has logged, when a promise was broken."""

Figures = dict[str, Figure]
Scenario = Callable[[Fleet, argparse.Namespace], Awaitable[Figures]]


async def partition(nodes: Fleet, arguments: argparse.Namespace) -> Figures:
    """A node is cut off, while both sides take envelopes that expire before the lines are back."""
    figures: Figures = {}
    alone, *rest = nodes.nodes
    for seconds in arguments.partitions:
        topic = nodes.topic()
        hashes = await nodes.post(alone, nodes.envelopes(topic, 40, ttl=60))
        nodes.cut([alone], CUT)
        for node in (alone, rest[0]):
            hashes += await nodes.post(node, nodes.envelopes(topic, 40, ttl=SHORT_TTL_S))
        cut_at = time.monotonic()
        await until_passed(cut_at + max(seconds, SHORT_TTL_S + 2))
        if seconds > IDLE_TIMEOUT_S * nodes.factor + LINGER_S:
            await nodes.connected(alone, 0, SLACK_S)
        nodes.wires.heal()
        figures[f"cut_{seconds:g}s_whole_s"] = await nodes.whole(100 * nodes.factor + SLACK_S)
        hashes += await nodes.post(rest[-1], nodes.envelopes(topic, 10, ttl=60))
        figures[f"cut_{seconds:g}s_converged_s"] = await nodes.converged(topic, hashes, SLACK_S + 60 * nodes.factor)
        await same_history(nodes, topic, hashes)
    return figures


async def bad_line(nodes: Fleet, arguments: argparse.Namespace) -> Figures:
    """A flood goes along a chain of lines that delay, lose, reorder and repeat packets; clients' lines are as bad."""
    figures: Figures = {}
    numbers = [node.host.number for node in nodes.nodes]
    for loss in arguments.loss:
        topic, began = nodes.topic(), time.monotonic()
        delay = arguments.delay
        nodes.wires.everywhere(
            Line(delay_s=delay, jitter_s=delay / 2, loss=loss, duplication=loss, reordering=min(2 * loss, 0.05))
        )
        for place, number in enumerate(numbers):  # each with its neighbours only
            nodes.wires.between([number], numbers[place + 2 :], CUT)
        patience = 600.0 if loss >= 0.1 else 300.0
        hashes = await nodes.post(nodes.nodes[0], nodes.envelopes(topic, arguments.envelopes, ttl=1200))
        figures[f"loss_{loss:g}_posted_s"] = time.monotonic() - began
        figures[f"loss_{loss:g}_converged_s"] = await nodes.converged(topic, hashes, patience)
        await same_history(nodes, topic, hashes)
        nodes.wires.heal()
        await nodes.whole(100 * nodes.factor + SLACK_S)
    return figures


async def late_comer(nodes: Fleet, arguments: argparse.Namespace) -> Figures:
    """A node with an empty store fetches everything over a bad line, and moves to another address meanwhile."""
    source, spare = nodes.nodes[0], nodes.spare
    topic = nodes.topic()
    hashes = await nodes.post(source, nodes.envelopes(topic, arguments.history, ttl=1200), per_packet=100)
    wanted = sorted(hashes)
    nodes.wires.between([spare.host.number], [source.host.number], BAD)
    began = time.monotonic()
    with spare.running(nodes.factor, [source], static=False) as daemon:
        daemon.wait_for_line("listening", START_WITHIN_S)
        some = len(wanted) // 10
        await reach("some pages", lambda: len(spare.stored(topic)) > some, SLACK_S + 60)
        before = len(spare.stored(topic))
        nodes.move(spare)
        await reach("all", lambda: len(spare.stored(topic)) == len(wanted), SLACK_S + 120)
        taken_s = time.monotonic() - began
        status = await spare.status()
        assert spare.stored(topic) == wanted, "what was fetched is not what was confirmed"
        spare.daemon.stop()
    nodes.wires.heal()
    return {
        "envelopes": len(wanted),
        "before_the_move": before,
        "fetched": int(status["catching_up"]["fetched"]),
        "seconds": taken_s,
    }


async def one_way(nodes: Fleet, arguments: argparse.Namespace) -> Figures:
    """One node hears another, and is not heard: both must notice."""
    deaf, mute, *_ = nodes.nodes
    nodes.wires.set((mute.host.number, deaf.host.number), line=CUT)
    idle_s = IDLE_TIMEOUT_S * nodes.factor
    others = len(nodes.nodes) - 2
    noticed = await asyncio.gather(*(nodes.connected(node, others, idle_s + SLACK_S) for node in (deaf, mute)))
    topic = nodes.topic()
    hashes = await nodes.post(mute, nodes.envelopes(topic, 20, ttl=60))
    nodes.wires.heal()
    whole = await nodes.whole(3 * idle_s + SLACK_S)
    await nodes.converged(topic, hashes, SLACK_S)
    return {"deaf_noticed_s": noticed[0], "mute_noticed_s": noticed[1], "whole_s": whole}


async def phone_moves(nodes: Fleet, arguments: argparse.Namespace) -> Figures:
    """A client whose address changes, at rest and within an answer, is let in soon, and goes on with its cursor."""
    node, topic = nodes.nodes[0], nodes.topic()
    large = nodes.envelopes(topic, 1000, ttl=60, data_bytes=7000)  # a longer ttl would need more proof of work
    pages, hashes = Pages(topic, 150), await nodes.post(node, large, per_packet=50)
    lockouts = []
    for is_answered, speaks in ((False, False), (True, False), (True, True)):
        async with nodes.insistent(node, name="phone") as client, asyncio.TaskGroup() as group:
            await pages.next(client)
            await until_passed(time.monotonic() + SEEN_RECENTLY_S * nodes.factor)
            tasks = []
            if is_answered:
                nodes.wires.everywhere(Line(delay_s=0.1))
                carried = nodes.wires.counts()["carried"]
                tasks.append(group.create_task(given_up(Pages(topic, 1000).next(client))))
                await reach("an answer", lambda: nodes.wires.counts()["carried"] > carried + 300, SLACK_S)  # noqa: B023
            if speaks:  # then nothing is read from it until it reads
                tasks.append(group.create_task(given_up(client.post(large[:1]))))
                await until_passed(time.monotonic() + 0.3)
            nodes.clients.move()
            nodes.wires.heal()
            began = time.monotonic()
            async with nodes.client(node, name="phone") as second:  # once: deployed clients wait when refused
                lockouts.append(time.monotonic() - began)
                await pages.next(second)
            for task in tasks:
                task.cancel()
    async with nodes.insistent(node, name="phone") as client:
        while not await pages.next(client):
            pass
    assert sorted(pages.hashes) == sorted(hashes), "an envelope came twice, or not at all"
    assert max(lockouts) < LOCKOUT_S, f"locked out for {max(lockouts):.1f} s"
    return {"moves": len(lockouts), "longest_lockout_s": max(lockouts)}


async def node_moves(nodes: Fleet, arguments: argparse.Namespace) -> Figures:
    """A node that others know by its name gets another address."""
    node, topic = nodes.nodes[1], nodes.topic()
    began = time.monotonic()
    nodes.move(node)
    hashes = await nodes.post(node, nodes.envelopes(topic, 20, ttl=SHORT_TTL_S))
    hashes += await nodes.post(nodes.nodes[0], nodes.envelopes(topic, 20, ttl=SHORT_TTL_S))
    await nodes.converged(topic, hashes, 4 * IDLE_TIMEOUT_S * nodes.factor + 60 * nodes.factor + SLACK_S)
    converged_s = time.monotonic() - began
    await nodes.whole(4 * IDLE_TIMEOUT_S * nodes.factor + SLACK_S)
    await same_history(nodes, topic, hashes)
    return {"converged_s": converged_s}


async def flapping(nodes: Fleet, arguments: argparse.Namespace) -> Figures:
    """All lines go on and off, by silence and by resets; nothing grows by it."""
    topic, hashes = nodes.topic(), []
    before = {node: (node.open_files(), node.rss_mb(), len(node.daemon.lines)) for node in nodes.nodes}
    for flap in range(arguments.flaps):
        nodes.cut(nodes.nodes[: 1 + flap % 2], REJECTING if flap % 4 >= 2 else CUT)
        hashes += await nodes.post(nodes.nodes[flap % len(nodes.nodes)], nodes.envelopes(topic, 5, ttl=SHORT_TTL_S))
        await until_passed(time.monotonic() + nodes.chance.uniform(0.2, 1.0))
        nodes.wires.heal()
        await until_passed(time.monotonic() + nodes.chance.uniform(0.2, 1.0))
    whole_s = await nodes.whole(100 * nodes.factor + SLACK_S)
    converged_s = await nodes.converged(topic, hashes, 150 * nodes.factor + SLACK_S)
    await same_history(nodes, topic, hashes)
    figures: Figures = {"flaps": arguments.flaps, "whole_s": whole_s, "converged_s": converged_s}
    for node, (files, rss, lines) in before.items():
        await reach(f"{node.name} has more open files", lambda: node.open_files() <= files + 2, SLACK_S)  # noqa: B023
        grown, logged = node.rss_mb() - rss, len(node.daemon.lines) - lines
        figures[f"{node.name}_rss_mb_more"] = grown
        figures[f"{node.name}_lines"] = logged
        assert logged <= LINES_PER_FLAP * arguments.flaps + 40, f"{node.name} has logged {logged} lines"
        assert grown < 30, f"{node.name} has grown by {grown:.0f} MB"
        status = await node.status()
        assert status["peers"]["handshakes"] == 0, "connections hang in their handshake"
        assert status["ready"]
    return figures


async def narrow_line(nodes: Fleet, arguments: argparse.Namespace) -> Figures:
    """A line that swallows long packets without a word lets pings through, and nothing else."""
    one, other, *_ = nodes.nodes
    topic = nodes.topic()
    pair = [one.host.number], [other.host.number]
    nodes.wires.between(*pair, Line(max_bytes=600))
    hashes = await nodes.post(one, nodes.envelopes(topic, 60, ttl=60, data_bytes=2000))
    await nodes.converged(topic, hashes, SLACK_S)  # others pass it on
    nodes.wires.heal()
    whole_s = await nodes.whole(4 * IDLE_TIMEOUT_S * nodes.factor + SLACK_S)
    return {"whole_s": whole_s, "too_long": nodes.wires.counts().get("too_long", 0)}


async def stop_and_start_while_cut(nodes: Fleet, arguments: argparse.Namespace) -> Figures:
    """A node is stopped, and another started, while nobody hears them."""
    spare, topic = nodes.spare, nodes.topic()
    hashes = await nodes.post(nodes.nodes[0], nodes.envelopes(topic, 30, ttl=SHORT_TTL_S))
    number = spare.host.number
    nodes.wires.between([number], [node.host.number for node in nodes.nodes], CUT)
    with spare.running(nodes.factor, nodes.nodes) as daemon:
        daemon.wait_for_line("listening", START_WITHIN_S)
        await until_passed(time.monotonic() + SHORT_TTL_S + 1)
        nodes.wires.heal()
        await nodes.connected(spare, len(nodes.nodes), 60 * nodes.factor + SLACK_S)
        await reach("what it missed", lambda: spare.stored(topic) == sorted(hashes), 60 * nodes.factor + SLACK_S)
        nodes.wires.between([number], [node.host.number for node in nodes.nodes], CUT)
        began = time.monotonic()
        spare.daemon.process.send_signal(signal.SIGTERM)
        assert spare.daemon.wait(STOP_S + SLACK_S) == 0
        stopped_s = time.monotonic() - began
    assert stopped_s < STOP_S, f"took {stopped_s:.1f} s to stop"
    idle_s = IDLE_TIMEOUT_S * nodes.factor
    nodes.wires.heal()
    await nodes.whole(idle_s + SLACK_S)
    return {"stop_s": stopped_s}


SCENARIOS: tuple[Scenario, ...] = (
    partition,
    bad_line,
    one_way,
    node_moves,
    flapping,
    narrow_line,
    stop_and_start_while_cut,
    late_comer,  # these leave much behind, that is fetched again after each break
    phone_moves,
)


async def same_history(nodes: Fleet, topic: Topic, hashes: Sequence[EnvelopeHash]) -> None:
    """A client must get each of these from each node once, page by page."""
    for node in nodes.nodes:
        assert sorted(await nodes.history(node, topic)) == sorted(hashes), f"history of {node.name}"


async def until_passed(moment: float) -> None:
    """Wait for a time of the monotonic clock: that time passes is what some scenarios are about."""
    await asyncio.sleep(max(0.0, moment - time.monotonic()))


async def given_up(answer: Coroutine[Any, Any, object]) -> None:
    """Wait for an answer that may never come."""
    with contextlib.suppress(MailserverError):
        await answer


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Say what may be given; the defaults are the full size."""
    parser.add_argument("--seed", type=int, default=None, help="of everything left to chance (default: another one)")
    parser.add_argument("--rounds", type=int, default=3, help="fleets, each with a seed of its own")
    parser.add_argument("--daemons", type=int, default=4, help="daemons, each connected to each")
    parser.add_argument("--factor", type=float, default=1.0, help="how long they wait for silence, of what they should")
    parser.add_argument("--partitions", type=float, nargs="+", default=(10.0, 40.0, 120.0), help="seconds of each")
    parser.add_argument("--envelopes", type=int, default=1000, help="of the flood over bad lines")
    parser.add_argument("--history", type=int, default=12_000, help="envelopes that a late comer fetches")
    parser.add_argument("--loss", type=float, nargs="+", default=(0.01, 0.1), help="shares of lost packets")
    parser.add_argument("--delay", type=float, default=0.2, help="seconds, half of it more or less")
    parser.add_argument("--flaps", type=int, default=150, help="times that the lines go off and on")
    parser.add_argument("--only", nargs="+", choices=[scenario.__name__ for scenario in SCENARIOS], help="scenarios")


def run(arguments: argparse.Namespace) -> Report:
    """Do all scenarios, or those that are named, round after round."""
    first = random.randrange(1 << 32) if arguments.seed is None else arguments.seed
    rows, broken = [], []
    for seed in range(first, first + arguments.rounds):
        with (
            tempfile.TemporaryDirectory() as folder,
            fleet(Path(folder), arguments.daemons, factor=arguments.factor, seed=seed) as nodes,
        ):
            for scenario in SCENARIOS:
                if arguments.only and scenario.__name__ not in arguments.only:
                    continue
                row, fault = asyncio.run(attempt(scenario, nodes, arguments))
                rows.append(Row(f"{row.name} seed={seed}", row.figures))
                broken += [f"{fault} (--seed {seed} --rounds 1)"] if fault else []
    return Report("network", tuple(rows), tuple(broken))


async def attempt(scenario: Scenario, nodes: Fleet, arguments: argparse.Namespace) -> tuple[Row, str]:
    """Do one scenario; return its figures, and which promise was broken, or ""."""
    name, before, fault = scenario.__name__, nodes.wires.counts(), ""
    nodes.failed_connects = 0
    figures: Figures = {}
    try:
        await nodes.whole(IDLE_TIMEOUT_S * nodes.factor + SLACK_S)  # visitors of the one before may still be there
        figures = await scenario(nodes, arguments)
    except (NotReached, AssertionError, MailserverError, TimeoutError, ExceptionGroup) as error:
        fault = f"{name}: {error!r}"
        for node in nodes.nodes:
            lines = "\n  ".join(node.daemon.lines[-LINES_SHOWN:])
            sys.stderr.write(f"{name}, {node.name} has logged:\n  {lines}\n")
    finally:
        nodes.wires.heal()
    figures = {**figures, **({"failed_connects": nodes.failed_connects} if nodes.failed_connects else {})}
    packets = {what: count - before.get(what, 0) for what, count in nodes.wires.counts().items()}
    return Row(name, {**figures, **{f"packets_{what}": count for what, count in packets.items() if count}}), fault
