"""How long two stores take to find out what each lacks, at what price: by comparing their ids, without a network."""

import asyncio
import random
import time
from pathlib import Path

import uvloop

from bench.data import Topics, history
from bench.fetching import measure_fetching
from bench.results import Sync, SyncRun
from bench.store import FilledStore, copied
from mailserver.reconcile.sides import Differences
from mailserver.store.interface import NewEnvelope
from mailserver.store.message_ids import ComparedScope, MessageIds, NotIndexedYet, StoreWithIds
from mailserver.store.sqlite.reading import read_stats
from mailserver.store.sqlite.schema import STORE_FILE
from mailserver.store.sqlite.store import open_store

SCATTERED = 100
"""How many envelopes one of the two has, evenly over all days: half of them the one, half the other."""

GAP = 1000
"""How many one of the two missed, the last that came: it was away for as long as that takes."""

_DAY_S = 86_400
_POLL_S = 0.1


class SyncFailed(Exception):
    """The stores found other differences than there are."""


def measure_sync(store: FilledStore, envelopes: int, topics: Topics, *, runs: int, password: str) -> Sync:
    """Compare two copies of a store: while they are the same, when one has missed a while, and when each lacks some.
    Then have an empty store fetch everything from a daemon.

    Raises:
        FetchFailed: not everything was fetched.
        SyncFailed: what was found is not what differs.
    """
    with copied(store) as ours, copied(store) as theirs:
        cases = uvloop.run(_measure(ours / STORE_FILE, theirs / STORE_FILE, store, envelopes, topics, runs))
        stored = uvloop.run(read_stats(store.data_dir / STORE_FILE)).envelopes
    return Sync(envelopes, store.days, cases, measure_fetching(store, stored, password))


async def _measure(
    ours: Path, theirs: Path, store: FilledStore, envelopes: int, topics: Topics, runs: int
) -> dict[str, tuple[SyncRun, ...]]:
    rng = random.Random(envelopes)
    span_s = store.days * _DAY_S
    missed_s = max(1, span_s * GAP // envelopes)
    scope = ComparedScope(store.end - span_s - 1, store.end + missed_s)
    missed = _new(GAP, topics, scope.upper, missed_s, rng)
    scattered = _new(SCATTERED, topics, scope.upper, span_s, rng)
    async with open_store(ours) as one, open_store(theirs) as other:
        cases = {"the same": await _compare(one, other, scope, runs, have=0, need=0)}
        await other.put(missed)
        cases[f"{GAP:,} missed at the end"] = await _compare(one, other, scope, runs, have=0, need=GAP)
        await one.put([*missed, *scattered[::2]])
        await other.put(scattered[1::2])
        cases[f"{SCATTERED} scattered"] = await _compare(
            one, other, scope, runs, have=len(scattered[::2]), need=len(scattered[1::2])
        )
    return cases


def _new(count: int, topics: Topics, end: int, span_s: int, rng: random.Random) -> list[NewEnvelope]:
    return [row for rows in history(count, topics, end=end, span_s=span_s, rng=rng) for row in rows]


async def _until_indexed(ids: MessageIds, scope: ComparedScope) -> None:
    """Wait until all that was stored is indexed."""
    while True:
        try:
            await ids.comparison(scope).begin()
        except NotIndexedYet:
            await asyncio.sleep(_POLL_S)
        else:
            return


async def _compare(
    one: StoreWithIds, other: StoreWithIds, scope: ComparedScope, runs: int, *, have: int, need: int
) -> tuple[SyncRun, ...]:
    """Compare all that both have, so many times, once what is new is indexed."""
    for each in (one, other):
        await _until_indexed(each.message_ids, scope)
    done = []
    for _ in range(runs):
        run, found = await _run(one.message_ids, other.message_ids, scope)
        if found != (have, need):
            raise SyncFailed(f"{have} and {need} differ, {found[0]} and {found[1]} were found")
        done.append(run)
    return tuple(done)


async def _run(one: MessageIds, other: MessageIds, scope: ComparedScope) -> tuple[SyncRun, tuple[int, int]]:
    have, need = set[bytes](), set[bytes]()

    def learn(found: Differences) -> None:
        have.update(found.have)
        need.update(found.need_ids)

    asking, asked = one.comparison(scope), other.comparison(scope)
    trips = sent = 0
    responding_s = 0.0
    began = time.perf_counter()
    message: bytes | None = await asking.begin()
    while message is not None:
        asked_at = time.perf_counter()
        answer = await asked.respond(message)
        responding_s += time.perf_counter() - asked_at
        trips, sent = trips + 1, sent + len(message) + len(answer)
        message = await asking.receive(answer, learn)
    seconds = time.perf_counter() - began
    return SyncRun(trips, sent, seconds, responding_s), (len(have), len(need))
