"""Attacks with questions about message ids (docs/wakuid.md): each kind that takes a mailserver much, again and again.

All but a few keep to the rules and to the default limits. What honest clients are promised is about history and live
envelopes: they must not notice.
"""

import contextlib
import random
from collections.abc import Iterable, Iterator, Mapping

from mailserver.errors import ConnectionLost
from mailserver.ids.envelopes import NS
from mailserver.ids.muid import DEFAULT_NETWORK_TOPIC, Muid
from mailserver.reconcile.wire import ID_BYTES, VERSION, write_varint
from mailserver.waku.bloom import BLOOM_BYTES, Interest
from mailserver.waku.envelope import MAX_U32, TOPIC_BYTES, Topic, decode_envelope
from mailserver.wakuid.packets import MAX_FETCHED_IDS, MAX_RECONCILE_BYTES, IdPacketCode, Order, What
from mailserver.wakuid.questions import Fetch, FetchItems, Items, Open, Query, Question, Reconcile
from tests.faults.peers.attacker import Target
from tests.faults.peers.flood import Packets, Tally, flood, joined
from tests.faults.peers.harness import DAYS, Scenario
from tests.faults.peers.messages import crowd, many, sealed
from tests.faults.report import Figure

OPEN_EVERY = 20
"""A question of so many asks for access: who was disconnected needs it anew."""

DAY_S = 86_400
_SKIPPED = b"\2\0\0"  # a range of one second
EVER = 0, MAX_U32


def _asked(target: Target, questions: Iterator[Question]) -> Packets:
    """These questions, and Open before and among them."""
    while True:
        yield IdPacketCode.OPEN, Open(0).encode()
        for _ in range(OPEN_EVERY):
            question = next(questions)
            yield question.code, question.encode()


def dearest(begin: int) -> bytes:
    """The message of negentropy that takes most to answer: as many ranges as there may be, all skipped.

    Args:
        begin: at which second the first range ends; each of the others is a second longer.
    """
    first = bytes([VERSION]) + write_varint(begin + 1) + b"\0\0"
    return first + _SKIPPED * ((MAX_RECONCILE_BYTES - len(first)) // len(_SKIPPED))


def _dearest(target: Target) -> Iterator[Question]:
    """About all there is: ranges before all envelopes, and among those of the last days."""
    while True:
        for begin in (1, target.history_end - DAY_S):
            yield Reconcile(1, DEFAULT_NETWORK_TOPIC, *EVER, dearest(begin))


def _by_topics(target: Target, rng: random.Random) -> Iterator[Question]:
    """About the envelopes of some topics, all of which are read for each message."""
    while True:
        interest = Interest(bloom=bytes(each | rng.getrandbits(8) for each in rng.randbytes(BLOOM_BYTES)))
        yield Reconcile(1, DEFAULT_NETWORK_TOPIC, *EVER, bytes([VERSION]), interest)


def _wide(rng: random.Random) -> Iterator[Question]:
    """Ids that nobody has, each in a group of its own over all time."""
    while True:
        groups = [Items(*EVER, [rng.randbytes(ID_BYTES)]) for _ in range(MAX_FETCHED_IDS)]
        yield FetchItems(2, DEFAULT_NETWORK_TOPIC, groups)


def _nothing(target: Target) -> Iterator[Question]:
    """What is nowhere. In the order of arrival, every envelope is looked at for it."""
    lower, upper = target.history_end - DAYS * DAY_S, target.history_end
    low, high = ((upper * NS + each).to_bytes(8, "big") for each in (1, 2))  # nothing is created between two seconds
    while True:
        for what in What:
            for order in Order:
                yield Query(3, DEFAULT_NETWORK_TOPIC, *EVER, what, order, low=low, high=high)
                yield Query(4, DEFAULT_NETWORK_TOPIC, lower, upper, what, order, Interest(bloom=bytes(BLOOM_BYTES)))


def _everything() -> Iterator[Question]:
    """All ids, and all envelopes, in either order."""
    while True:
        for what in What:
            for order in Order:
                yield Query(5, DEFAULT_NETWORK_TOPIC, *EVER, what, order)


def _many_topics() -> Iterator[Question]:
    """As many topics as may be named."""
    topics = frozenset(Topic(number.to_bytes(TOPIC_BYTES, "big")) for number in range(1000))
    while True:
        for what in What:
            for order in Order:
                yield Query(6, DEFAULT_NETWORK_TOPIC, *EVER, what, order, Interest(topics=topics))


def _unlawful(target: Target, rng: random.Random) -> Packets:
    """Before access, with a wrong password, malformed, and too long."""
    while True:
        yield IdPacketCode.QUERY, Query(7, DEFAULT_NETWORK_TOPIC, *EVER).encode()
        for key in (None, rng.randbytes(32)):
            envelope = decode_envelope(sealed(target, rng.randbytes(100), rng, key))
            yield IdPacketCode.OPEN, Open(8, envelope).encode()
        yield IdPacketCode.FETCH_ITEMS, FetchItems(9, DEFAULT_NETWORK_TOPIC, [Items(1, 0, [])] * 1001).encode()
        yield IdPacketCode.FETCH, rng.randbytes(300)
        yield IdPacketCode.RECONCILE, Reconcile(9, DEFAULT_NETWORK_TOPIC, *EVER, bytes(140_000)).encode()
        yield IdPacketCode.RECONCILED, rng.randbytes(1000)


def _of_every_kind(target: Target, rng: random.Random) -> Packets:
    unlawful = _unlawful(target, rng)
    kinds = (_dearest(target), _by_topics(target, rng), _wide(rng), _nothing(target), _everything(), _many_topics())
    while True:
        for _ in range(7):
            yield next(unlawful)
        yield IdPacketCode.OPEN, Open(0).encode()
        for questions in kinds:
            question = next(questions)
            yield question.code, question.encode()
        unknown = [Muid(rng.randbytes(52)) for _ in range(MAX_FETCHED_IDS)]
        yield IdPacketCode.FETCH, Fetch(10, DEFAULT_NETWORK_TOPIC, unknown).encode()


async def every_kind_from_many(target: Target) -> Mapping[str, Figure]:
    """All kinds of questions, lawful or not, from twenty peers."""
    return await flood(target, _of_every_kind, many(target))


async def dearest_comparisons(target: Target) -> Mapping[str, Figure]:
    """The dearest message of a comparison, as often as the limits allow, from twenty peers."""
    return await flood(target, lambda target, rng: _asked(target, _dearest(target)), many(target))


async def comparisons_by_topics(target: Target) -> Mapping[str, Figure]:
    """Comparisons of what is on some topics, from twenty peers."""
    return await flood(target, lambda target, rng: _asked(target, _by_topics(target, rng)), many(target))


async def wide_fetches(target: Target) -> Mapping[str, Figure]:
    """1,000 groups of ids that nobody has, each over all time, from twenty peers."""
    return await flood(target, lambda target, rng: _asked(target, _wide(rng)), many(target))


async def metadata_of_nothing(target: Target) -> Mapping[str, Figure]:
    """Lists of what is nowhere, in either order, from twenty peers."""
    return await flood(target, lambda target, rng: _asked(target, _nothing(target)), many(target))


async def answers_unread(target: Target) -> Mapping[str, Figure]:
    """Hundreds of peers that ask for all ids and envelopes, and for comparisons by the longest message; none reads."""
    tally, held = Tally(), 0
    async with contextlib.AsyncExitStack() as stack:
        for number in range(crowd(target)):
            rng = random.Random(f"{target.seed} {number}")
            everything, long = _everything(), _dearest(target)
            with contextlib.suppress(ConnectionLost, OSError):
                wire, _ = await stack.enter_async_context(joined(target, number, rng, tally))
                wire.transport.pause_reading()
                asked: list[Question] = [Open(0), *(next(everything) for _ in range(8)), next(long), next(long)]
                for question in asked:
                    wire.send(question.code, question.encode())
                wire.flush()
                held += 1
        figures = await flood(target, lambda target, rng: _asked(target, _everything()), 3)
    return {"held": held, **figures}


def answered(figures: Mapping[str, Figure]) -> Iterable[str]:
    """Questions are the end of no connection; some are answered, and what is too much is refused.

    To open access is one of them: in the short form, the others may not have ended.
    """
    ended = sorted(name for name in figures if name.startswith("ended_"))
    if ended:
        yield f"questions ended in {ended}"
    if not any(figures.get(name) for name in ("terms", "done", "reconciled")):
        yield "no question was answered"


SCENARIOS: tuple[Scenario, ...] = (
    Scenario("questions of every kind", every_kind_from_many, check=answered),
    Scenario("dearest comparisons", dearest_comparisons, check=answered),
    Scenario("comparisons by topics", comparisons_by_topics, check=answered),
    Scenario("fetches in wide ranges", wide_fetches, check=answered),
    Scenario("metadata of nothing", metadata_of_nothing, check=answered),
    Scenario("answers about ids unread", answers_unread),
)
