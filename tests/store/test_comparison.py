"""Comparing a store's ids with others: every engine says, byte for byte, what a set in memory would."""

import random
from collections.abc import Iterable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mailserver.errors import DecodeError
from mailserver.ids.envelopes import envelope_muid
from mailserver.ids.muid import DEFAULT_NETWORK_TOPIC, sync_id
from mailserver.reconcile.sides import Differences, Initiator, Responder, run
from mailserver.reconcile.storage import MemoryStorage
from mailserver.reconcile.wire import MAX_MESSAGE_BYTES, MIN_FRAME_BYTES, OtherVersion
from mailserver.store.engine.comparison import StoredComparison
from mailserver.store.interface import Payer
from mailserver.store.message_ids import ComparedScope, Comparison, StoreWithIds, TooManyIds
from mailserver.waku.bloom import Interest
from mailserver.waku.envelope import Envelope, Topic
from tests.mailservers import fill, make_envelope
from tests.properties import settings
from tests.reconcile.sets import Item, Talk, TimesStorage, ids, received
from tests.store.engines import ENGINES, each_engine
from tests.store.samples import DAY, EVER, FULL, LAST_SECOND, NEWS, SPORT, START, UNSHRUNK, deployed_bloom, wants

EVERYTHING = ComparedScope(*EVER)
OF_NEWS = ComparedScope(*EVER, Interest(topics=frozenset({NEWS})))
BY_BLOOM = ComparedScope(*EVER, Interest(bloom=deployed_bloom(NEWS)))
HEAD = b"\x61"
EMPTY_LIST = HEAD + bytes.fromhex("00 00 02 00")
"""A message that says: I have nothing."""

SECONDS = (0, 1, 59, 60, DAY - 1, DAY, START - 1, START, START + 3599, START + 3600, LAST_SECOND)


def envelopes_of(numbers: Iterable[int], *, spread: int) -> list[Envelope]:
    """The same for the same numbers: some at edges of minutes, hours and days, the others within so many seconds."""
    made = []
    for number in numbers:
        rng = random.Random(number)
        created = rng.choice(SECONDS) if rng.random() < 0.1 else START + rng.randrange(spread)
        topic = rng.choice([NEWS, SPORT, Topic(b"\xff\x00\xff\x07")])
        made.append(make_envelope(number, created=created, ttl=0 if created == LAST_SECOND else 50, topic=topic))
    return made


def items_of(envelopes: Iterable[Envelope], scope: ComparedScope = EVERYTHING) -> list[Item]:
    """What a scope has of these envelopes."""
    return [
        (each.created, sync_id(envelope_muid(DEFAULT_NETWORK_TOPIC, each)))
        for each in envelopes
        if each.created > 0 and scope.lower <= each.created <= scope.upper and wants(scope.interest, each.topic)
    ]


def set_of(scope: ComparedScope, items: Iterable[Item]) -> MemoryStorage:
    """Items of a scope in memory, divided as a store divides them: those by topics are in its memory, too."""
    return (TimesStorage if scope.interest == FULL else MemoryStorage)(items)


class Twin:
    """A comparison of a store beside one in memory of what should be in the store: both say the same."""

    def __init__(self, comparison: Comparison, items: Iterable[Item], frame_bytes: int = MAX_MESSAGE_BYTES) -> None:
        assert isinstance(comparison, StoredComparison)
        self._comparison = comparison
        self._storage = set_of(comparison.scope, items)
        self._frame_bytes = frame_bytes

    async def begin(self) -> bytes:
        message = await self._comparison.begin()
        assert message == Initiator(self._storage, self._frame_bytes).begin()
        return message

    async def receive(self, answer: bytes, held: Talk) -> bytes | None:
        found, expected = Talk(), Talk()
        message = await self._comparison.receive(answer, found.learn)
        assert message == received(Initiator(self._storage, self._frame_bytes), answer, expected.learn)
        assert (found.have, found.need) == (expected.have, expected.need)
        held.learn(Differences([*found.have], found.needed))
        return message

    async def respond(self, message: bytes) -> bytes:
        answer = await self._comparison.respond(message)
        assert answer == run(Responder(self._storage, self._frame_bytes).respond(message))
        return answer


async def talk(initiator: Twin, responder: Twin) -> Talk:
    """Talk to the end."""
    held = Talk()
    message: bytes | None = await initiator.begin()
    while message is not None:
        answer = await responder.respond(message)
        held.messages += [message, answer]
        message = await initiator.receive(answer, held)
    return held


scopes = st.builds(
    lambda bounds, interest: ComparedScope(bounds[0], bounds[1], interest),
    st.just(EVER)
    | st.tuples(
        st.sampled_from([*SECONDS, -(2**70), START + 70, 2**70]) | st.integers(START, START + 2 * DAY),
        st.sampled_from([*SECONDS, -1, START + 200, START + DAY, 2**70]) | st.integers(START, START + 2 * DAY),
    ),
    st.sampled_from([FULL, FULL, FULL, OF_NEWS.interest, BY_BLOOM.interest, Interest(topics=frozenset())]),
)
frames = st.sampled_from([MIN_FRAME_BYTES, 5000, MAX_MESSAGE_BYTES])


@each_engine
@given(
    shared=st.sampled_from([0, 5, 40, 400]),
    alone=st.tuples(st.sampled_from([0, 1, 8, 150]), st.sampled_from([0, 1, 8, 150])),
    spread=st.sampled_from([1, 50, 3000, 2 * DAY]),
    scope=scopes,
    frame_bytes=st.tuples(frames, frames),
)
@settings(max_examples=30, phases=UNSHRUNK)
async def test_two_stores_compare_as_two_sets_in_memory_do(
    tmp_path_factory: pytest.TempPathFactory,
    name: str,
    shared: int,
    alone: tuple[int, int],
    spread: int,
    scope: ComparedScope,
    frame_bytes: tuple[int, int],
) -> None:
    both = envelopes_of(range(shared), spread=spread)
    own, others = (
        envelopes_of(range(first, first + count), spread=spread)
        for first, count in zip((1000, 2000), alone, strict=True)
    )
    engines = [ENGINES[name](tmp_path_factory.mktemp("comparison")) for _ in range(2)]
    async with engines[0].open() as ours, engines[1].open() as theirs:
        await fill(ours, both + own)
        await fill(theirs, others + both)

        held = await talk(
            *(
                Twin(store.message_ids.comparison(scope, frame_bytes=most), items_of(both + more, scope), most)
                for store, more, most in zip((ours, theirs), (own, others), frame_bytes, strict=True)
            )
        )

    assert held.have == ids(items_of(own, scope))
    assert held.need == ids(items_of(others, scope))
    assert max(map(len, held.messages[::2])) <= frame_bytes[0]
    assert max(map(len, held.messages[1::2])) <= frame_bytes[1]


async def test_equal_stores_need_one_trip(store: StoreWithIds) -> None:
    envelopes = envelopes_of(range(500), spread=2 * DAY)
    await fill(store, envelopes)

    twin = Twin(store.message_ids.comparison(EVERYTHING), items_of(envelopes))
    held = await talk(twin, twin)

    found: list[Differences] = []
    charges: list[int] = []
    last = store.message_ids.comparison(EVERYTHING, payer=Payer(charge=charges.append))
    assert await last.receive(HEAD, found.append) is None

    assert len(held.messages) == 2
    assert held.messages[1] == HEAD
    assert found == []  # nobody is told that there is nothing
    assert charges == []  # nor is anything read for that


async def test_message_of_a_new_comparison_is_about_what_is_stored_by_then(store: StoreWithIds) -> None:
    envelopes = envelopes_of(range(200), spread=3000)
    await fill(store, envelopes[:100])
    other = Responder(MemoryStorage(items_of(envelopes[50:])))

    first = await Twin(store.message_ids.comparison(EVERYTHING), items_of(envelopes[:100])).begin()
    await fill(store, envelopes[100:150])
    held = Talk()
    next_: bytes | None = first
    while next_ is not None:
        twin = Twin(store.message_ids.comparison(EVERYTHING), items_of(envelopes[:150]))
        next_ = await twin.receive(run(other.respond(next_)), held)

    assert held.have == ids(items_of(envelopes[:50]))
    assert ids(items_of(envelopes[150:])) <= held.need <= ids(items_of(envelopes[100:]))


async def test_differences_come_some_at_a_time(store: StoreWithIds) -> None:
    envelopes = envelopes_of(range(3000), spread=3000)
    await fill(store, envelopes)
    found: list[Differences] = []

    assert await store.message_ids.comparison(EVERYTHING).receive(EMPTY_LIST, found.append) is None

    assert {each for some in found for each in some.have} == ids(items_of(envelopes))
    assert len(found) > 1
    assert all(some.have for some in found)


async def test_whoever_is_told_may_end_it(store: StoreWithIds) -> None:
    await fill(store, envelopes_of(range(3000), spread=3000))
    told: list[Differences] = []

    class Enough(Exception):
        pass

    def tell(some: Differences) -> None:
        told.append(some)
        raise Enough

    for _ in range(4):  # as often as there are connections, and more
        with pytest.raises(Enough):
            await store.message_ids.comparison(EVERYTHING).receive(EMPTY_LIST, tell)

    assert len(told) == 4
    assert await store.message_ids.comparison(EVERYTHING).respond(HEAD) == HEAD


# Topics


@pytest.mark.parametrize("scope", [OF_NEWS, BY_BLOOM])
async def test_scope_by_topics_has_a_bound(
    store: StoreWithIds, monkeypatch: pytest.MonkeyPatch, scope: ComparedScope
) -> None:
    monkeypatch.setattr("mailserver.store.engine.comparison.MAX_IDS_OF_TOPICS", 60)
    envelopes = envelopes_of(range(600), spread=3000)
    narrow = ComparedScope(START + 100, START + 600, scope.interest)
    assert 0 < len(items_of(envelopes, narrow)) < 60 < len(items_of(envelopes, scope))
    await fill(store, envelopes)

    with pytest.raises(TooManyIds, match="more than 60 envelopes") as refused:
        await store.message_ids.comparison(scope).begin()

    assert refused.value.limit == 60
    await Twin(store.message_ids.comparison(narrow), items_of(envelopes, narrow)).begin()


# Liars


def broken(rng: random.Random, messages: Sequence[bytes]) -> bytes:
    """A message that was cut, changed or made up."""
    kind = rng.randrange(3)
    message = rng.choice(messages)
    if kind == 0:
        return message[: rng.randrange(len(message))]
    if kind == 1:
        changed = bytearray(message)
        changed[rng.randrange(1, len(changed))] ^= 1 << rng.randrange(8)
        return bytes(changed)
    return HEAD + rng.randbytes(rng.randrange(200))


@pytest.mark.parametrize("scope", [EVERYTHING, OF_NEWS])
async def test_whatever_a_liar_sends_is_answered_as_from_memory_or_refused_and_charged(
    store: StoreWithIds, scope: ComparedScope
) -> None:
    envelopes = envelopes_of(range(300), spread=2 * DAY)
    await fill(store, envelopes)
    charges: list[int] = []
    comparison = store.message_ids.comparison(scope, payer=Payer("liar", charge=charges.append))
    storage = set_of(scope, items_of(envelopes, scope))
    good = [
        Initiator(storage).begin(),
        run(Responder(storage).respond(EMPTY_LIST)),
        run(Responder(storage).respond(Initiator(MemoryStorage(items_of(envelopes[::2], scope))).begin())),
    ]
    rng = random.Random(7)
    refused = answered = 0

    for message in [HEAD + bytes.fromhex("00 00 02 81 ff ff ff 7f"), *(broken(rng, good) for _ in range(150))]:
        charges.clear()
        try:
            expected: object = run(Responder(storage).respond(message))
        except DecodeError as error:
            expected = str(error)
        try:
            got: object = await comparison.respond(message)
            answered += 1
        except DecodeError as error:
            got = str(error)
            refused += 1
        assert got == expected
        assert sum(charges) > 0

    assert min(refused, answered) > 20


async def test_initiator_refuses_what_is_no_answer(store: StoreWithIds) -> None:
    await fill(store, envelopes_of(range(50), spread=3000))
    comparison = store.message_ids.comparison(EVERYTHING)
    found: list[Differences] = []

    with pytest.raises(OtherVersion):
        await comparison.receive(b"\x62", found.append)
    for message in (b"", b"\x41", HEAD + bytes.fromhex("00 00 02 02") + bytes(64), bytes(MAX_MESSAGE_BYTES + 1)):
        with pytest.raises(DecodeError):
            await comparison.receive(message, found.append)
    assert found == []


@pytest.mark.parametrize("frame_bytes", [0, MIN_FRAME_BYTES - 1, MAX_MESSAGE_BYTES + 1])
async def test_frame_limit_out_of_bounds_is_refused(store: StoreWithIds, frame_bytes: int) -> None:
    with pytest.raises(ValueError, match=str(frame_bytes)):
        await store.message_ids.comparison(EVERYTHING, frame_bytes=frame_bytes).begin()


async def test_what_is_compared_is_charged_by_what_is_read(store: StoreWithIds) -> None:
    await fill(store, envelopes_of(range(2000), spread=2 * DAY))
    charges: list[int] = []

    async def charged(scope: ComparedScope, message: bytes) -> int:
        charges.clear()
        await store.message_ids.comparison(scope, payer=Payer(charge=charges.append)).respond(message)
        return sum(charges)

    little = await charged(EVERYTHING, HEAD)
    much = await charged(EVERYTHING, EMPTY_LIST)
    by_few_topics = await charged(OF_NEWS, HEAD)
    few_seconds = await charged(ComparedScope(START, START + 500, OF_NEWS.interest), HEAD)

    assert 0 < little < much / 5
    assert 0 < few_seconds < by_few_topics / 5
