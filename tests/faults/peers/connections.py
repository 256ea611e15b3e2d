"""Attacks with connections: many of them, half of a handshake, and places that nobody else gets."""

import asyncio
import contextlib
import itertools
import random
import socket
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import replace

from bench.addresses import address
from bench.daemon import cpu_s, usage
from bench.data import Distribution, Topics
from bench.history import DAY_S, PAGE_LIMIT, Asker
from bench.wire import connect
from mailserver.codec.keys import Enode
from mailserver.errors import ConnectionLost
from mailserver.limits.admission import BURST_S, KNOWN_AFTER_S, AdmissionLimits
from mailserver.mail.request import MailRequest, RequestId
from mailserver.net.listener import MAX_PENDING
from mailserver.rlpx.handshake import MAX_HANDSHAKE_PACKET_BYTES
from mailserver.waku.bloom import Interest
from tests.faults.peers.attacker import Target
from tests.faults.peers.harness import TOPICS, Scenario
from tests.faults.peers.intruder import AT_ONCE, connected, crowd, hang_up, join, recorded_auth
from tests.faults.report import Figure
from tests.pairs import private_key
from tests.raw_peer import Hangup
from tests.waiting import until

MANY = 5000
"""Addresses of a botnet, each in a subnet of its own."""

MAX_KB_EACH = 60.0
"""Most memory that an idle connection takes."""

MAX_US_REFUSED = 200.0
MAX_US_HANDSHAKE = 3000.0
"""Most CPU of a connection that is refused by its address, and of one that sends an auth packet."""

HONEST_SHARE = 0.2
"""What the honest client takes of a processor, at most."""

LIMITS = AdmissionLimits()
ADMITTED_PER_S = LIMITS.per_second * 0.9
"""So many strangers a second are let in."""

_AT_A_TIME = 20
"""So many connections are made at a time: more would only wait for the attacker's own processor."""


_ASKING_AT_ONCE = 8
_TIMES_ASKED = 4


async def idle(target: Target) -> Mapping[str, Figure]:
    """Connections from many addresses that do their handshake, answer pings, and say nothing."""
    count = 50 if target.is_quick else 2000
    open_files = usage(target.pid).open_files
    await fill_caches(target)
    await until(lambda: usage(target.pid).open_files <= open_files)
    before = usage(target.pid)
    async with crowd_of_idle(target, count) as held:
        during = usage(target.pid)
        await asyncio.sleep(target.seconds)
        left = usage(target.pid).open_files - open_files
    taken_kb = (during.memory_bytes - before.memory_bytes) / 1000
    return {"wanted": count, "held": held, "left": left, "kb_each": taken_kb / count}


async def fill_caches(target: Target) -> None:
    """Ask for all that honest clients ask for, from many addresses at once, so that every reader of the store has it.

    Else what the readers keep meanwhile, of up to 8 MiB each, would be counted as the connections'.
    """
    topics = frozenset(Topics(TOPICS, Distribution.UNIFORM).all)
    end = target.history_end
    day = MailRequest(RequestId(bytes(32)), end - DAY_S, end, Interest(topics=topics), limit=PAGE_LIMIT)

    async def one(number: int) -> None:
        async with connect(target.enode, source=address(MANY + number)) as (wire, settings):
            asker = Asker(wire, bytes.fromhex(target.request_key), settings.pow_requirement)
            for _ in range(_TIMES_ASKED):
                await asker.ask(day)

    await asyncio.gather(*map(one, range(_ASKING_AT_ONCE)))


@contextlib.asynccontextmanager
async def crowd_of_idle(target: Target, count: int, *, source: Callable[[int], str] = address) -> AsyncIterator[int]:
    """So many peers that answer pings; tells how many were let in.

    Few connect at a time: attackers have a low priority, and all at once they would be too late on a busy machine, even
    for the time that a handshake has.
    """
    connecting = asyncio.Semaphore(_AT_A_TIME)
    async with contextlib.AsyncExitStack() as stack:

        async def one(number: int) -> bool:
            await asyncio.sleep(number / ADMITTED_PER_S)
            async with connecting:
                try:
                    await stack.enter_async_context(connect(target.enode, trusting=True, source=source(number)))
                except (ConnectionLost, OSError):
                    return False
            return True

        yield sum(await asyncio.gather(*map(one, range(count))))


def _all_held(figures: Mapping[str, Figure]) -> Iterator[str]:
    if not figures["wanted"] == figures["held"] == figures["left"]:
        yield f"of {figures['wanted']} idle connections {figures['held']} were held, {figures['left']} left"
    if float(figures["kb_each"]) > MAX_KB_EACH:
        yield f"an idle connection took {figures['kb_each']:.0f} kB"


async def _storm(target: Target, source: Callable[[int], str], says: bytes) -> Mapping[str, Figure]:
    """Connect, say something, and close, as fast as it goes."""
    began, cpu = time.perf_counter(), cpu_s(target.pid)
    numbers = itertools.count()
    made = 0

    async def one() -> None:
        nonlocal made
        while time.perf_counter() - began < target.seconds:
            with contextlib.suppress(OSError):
                sock = await connected(target.enode, source(next(numbers)))
                with contextlib.suppress(OSError):
                    sock.send(says)
                hang_up(sock)
                made += 1

    await asyncio.gather(*(one() for _ in range(_AT_A_TIME)))
    took = time.perf_counter() - began
    return {"connections": made, "flood_s": took, "cpu_us_each": (cpu_s(target.pid) - cpu) / made * 1e6}


async def storm_of_one(target: Target) -> Mapping[str, Figure]:
    """One address connects and closes."""
    return await _storm(target, lambda number: address(1), b"")


async def storm_of_many(target: Target) -> Mapping[str, Figure]:
    """Many addresses connect and close."""
    return await _storm(target, lambda number: address(number % MANY), b"")


async def auth_storm_of_one(target: Target) -> Mapping[str, Figure]:
    """One address sends a recorded auth packet again and again."""
    return await _storm(target, lambda number: address(1), recorded_auth(target.enode))


async def auth_storm_of_many(target: Target) -> Mapping[str, Figure]:
    """Many addresses do."""
    return await _storm(target, lambda number: address(number % MANY), recorded_auth(target.enode))


def _costs_little(figures: Mapping[str, Figure]) -> Iterator[str]:
    made, flood_s = float(figures["connections"]), float(figures["flood_s"])
    admitted = min(made, LIMITS.per_second * (BURST_S + flood_s))
    most_us = (admitted * MAX_US_HANDSHAKE + made * MAX_US_REFUSED) / made + HONEST_SHARE * flood_s * 1e6 / made
    if float(figures["cpu_us_each"]) > most_us:
        yield f"a connection took {figures['cpu_us_each']:.0f} us of CPU, {most_us:.0f} is the most"


async def half_open(target: Target) -> Mapping[str, Figure]:
    """Connections from many addresses that stop in the middle of the handshake, each kind of middle in turn."""
    auth, rng = recorded_auth(target.enode), random.Random(target.seed)
    kinds = (
        b"",  # nothing
        b"\x01",
        auth[:2],  # a size, and no more
        b"\xff\xff",  # the largest size there is
        (MAX_HANDSHAKE_PACKET_BYTES - 2).to_bytes(2, "big") + rng.randbytes(MAX_HANDSHAKE_PACKET_BYTES - 3),
        auth[:-1],
        auth,  # and never reads the ack
        auth[:2] + rng.randbytes(len(auth) - 2),  # of the right length
        auth[:2] + b"\x04" + auth[3:-1] + bytes([auth[-1] ^ 1]),  # all right but for the tag
        auth + rng.randbytes(4096),  # and frames that are none
    )
    most = made = 0
    held: list[socket.socket] = []
    began, before, cpu = time.perf_counter(), usage(target.pid), cpu_s(target.pid)
    while time.perf_counter() - began < target.seconds or made < len(kinds):
        with contextlib.suppress(OSError):
            sock = await connected(target.enode, address(made % MANY))
            sock.send(kinds[made % len(kinds)])
            held.append(sock)
            made += 1
        if made % 50 == 0:
            most = max(most, usage(target.pid).open_files - before.open_files)
            await asyncio.sleep(0.05)
        if len(held) > 5000:
            hang_up(held.pop(0))
    flood_s, cpu_us_each = time.perf_counter() - began, (cpu_s(target.pid) - cpu) / made * 1e6
    for sock in held:
        hang_up(sock)
    return {"connections": made, "flood_s": flood_s, "open_most": most, "cpu_us_each": cpu_us_each}


def _few_open(figures: Mapping[str, Figure]) -> Iterator[str]:
    yield from _costs_little(figures)
    if float(figures["open_most"]) > MAX_PENDING + AT_ONCE:  # the oldest make room
        yield f"{figures['open_most']} handshakes were open"


async def slow_handshakes(target: Target) -> Mapping[str, Figure]:
    """Auth packets that come a byte at a time."""
    auth = recorded_auth(target.enode)
    socks: list[socket.socket] = []
    for number in range(40 if target.is_quick else 600):
        with contextlib.suppress(OSError):
            socks.append(await connected(target.enode, address(number)))
    sent = 0
    began = time.perf_counter()
    while time.perf_counter() - began < target.seconds or sent < 2:
        for sock in socks:
            with contextlib.suppress(OSError):
                sock.send(auth[sent : sent + 1])
        sent += 1
        await asyncio.sleep(1.0)
    for sock in socks:
        hang_up(sock)
    return {"connections": len(socks), "bytes_each": sent}


_FEW_PLACES = 60


async def places(target: Target) -> Mapping[str, Figure]:
    """Two subnets take all places and keep them; then peers come from everywhere else."""

    def source(number: int) -> str:
        return address(number // 4, subnet=number % 2)

    newcomers = 20
    async with (
        crowd_of_idle(target, _FEW_PLACES + 30, source=source) as held,
        crowd(lambda number: join(target, 1000 + number), range(newcomers)) as peers,
    ):
        await asyncio.sleep(target.seconds)
        stayed = sum(not peer.reader.at_eof() for peer in peers)
    return {"held": held, "newcomers": newcomers, "served": len(peers), "stayed": stayed}


def _newcomers_served(figures: Mapping[str, Figure]) -> Iterator[str]:
    if not figures["newcomers"] == figures["served"] == figures["stayed"]:
        yield f"of {figures['newcomers']} newcomers {figures['served']} were served, {figures['stayed']} stayed"


_TRUSTED = 49_000
_KNOWN = 49_001


async def locked_out(target: Target) -> Mapping[str, Figure]:
    """Strangers use up the connections per second; a trusted peer comes again and again, and one that is known."""
    known = () if target.is_quick else (_KNOWN,)
    for number in known:  # becomes known
        peer = await join(target, number)
        for _ in range(int(KNOWN_AFTER_S) + 1):
            peer.write(peer.frame(2, b"\xc0"))
            await asyncio.sleep(1.0)
        peer.writer.transport.abort()
    storm = asyncio.create_task(
        _storm(replace(target, seconds=target.seconds + 3.0), lambda number: address(number % MANY), b"")
    )
    await asyncio.sleep(2.0)  # by then, strangers have used up their burst
    tried = served = strangers = 0
    while not storm.done():
        for number in (_TRUSTED, *known, MANY + tried):
            came = False
            with contextlib.suppress(OSError, Hangup):
                (await join(target, number)).writer.transport.abort()
                came = True
            if number > MANY * 2:
                tried, served = tried + 1, served + came
            else:
                strangers += came
        await asyncio.sleep(0.2)
    return {**await storm, "tried": tried, "served": served, "strangers_served": strangers}


def _all_served(figures: Mapping[str, Figure]) -> Iterator[str]:
    if figures["tried"] != figures["served"]:
        yield f"of {figures['tried']} attempts of known and trusted peers {figures['served']} were served"


_TRUSTED_ENODE = str(Enode(private_key("trusted").public_key, address(_TRUSTED), 1))

SCENARIOS = (
    Scenario("idle", idle, ("--max-peers", "2100"), _all_held),
    Scenario("storm of one", storm_of_one, check=_costs_little),
    Scenario("storm of many", storm_of_many, check=_costs_little),
    Scenario("auth storm of one", auth_storm_of_one, check=_costs_little),
    Scenario("auth storm of many", auth_storm_of_many, check=_costs_little),
    Scenario("locked out", locked_out, ("--trusted-peers", _TRUSTED_ENODE, "--sync-days", "0"), _all_served),
    Scenario("half-open", half_open, check=_few_open),
    Scenario("slow handshakes", slow_handshakes),
    Scenario("places", places, ("--max-peers", str(_FEW_PLACES)), _newcomers_served),
)
