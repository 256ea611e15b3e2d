"""Finding out what a source has and we lack, by comparing message ids (docs/wakuid.md), and fetching just that.

It costs what the two differ by, not what they hold. Of a range, as much is compared as both sides are sure to have all
of: not what either may have pruned, nor the last minute, of which envelopes are still on their way; and of the topics,
those that both accept. What is left of the range is fetched page by page, and so is everything from a source that does
not speak `wakuid`.
"""

import asyncio
import contextlib
import logging
import math
import random
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from mailserver.catchup.page_rules import PAGE_TIMEOUT_S, Judge, Lie, PageBuffer, SourceLies, Wrong, asked_interest
from mailserver.catchup.ranges import MissingRange
from mailserver.catchup.taking import Taking
from mailserver.client.id_client import IdClient, QuestionRefused, WrongAnswer
from mailserver.client.mail_client import MailClient, NoAnswer, OnEnvelopes
from mailserver.errors import DecodeError, MailserverError, Rejection
from mailserver.ids.envelopes import envelope_muid
from mailserver.ids.muid import sync_id
from mailserver.live.intake import Clock
from mailserver.reconcile.sides import Needed
from mailserver.reconcile.wire import MIN_FRAME_BYTES
from mailserver.store.message_ids import (
    MAX_IDS_OF_TOPICS,
    ComparedScope,
    Comparison,
    NotIndexedYet,
    RangeTooWide,
    StoreBusy,
    StoreWithIds,
    TooManyIds,
)
from mailserver.waku.acceptance import Requirements
from mailserver.waku.bloom import BLOOM_BYTES, Interest, as_integer
from mailserver.waku.envelope import Envelope
from mailserver.waku.packets import PeerSettings
from mailserver.wakuid.answers import Terms
from mailserver.wakuid.packets import MAX_FETCHED_IDS, MAX_RECONCILE_BYTES, WAKUID
from mailserver.wakuid.questions import Items, Reconcile

log = logging.getLogger(__name__)

UNSETTLED_S = 60
"""The last minute is not compared: its envelopes are still on their way to one of the two."""

COMPARE_INTERVAL_S = 300.0
"""How often what we have is compared with what each source of the settings has. Whatever either of us has lost, in a
crash or because a packet was refused, we then have again."""

UNABLE_S = 3600.0
"""For so long a source is asked page by page, and not dialled only to be compared with, after it could not be compared
with: a Go mailserver, one of another network topic, or one that did not answer."""

MAX_ROUNDS = 2000
"""How many messages the comparison of a range may take, all its parts together, before it has brought as many
envelopes that were missing here. Then as many more may follow: each may name 4,000 ids."""

MAX_PASSED_OVER = 50
"""How many seconds with too much in each of them are passed over in one range. To find one takes some 20 messages."""

MAX_REFUSED = 10_000
"""How many ids are remembered whose envelopes we have refused, so that they are not fetched each time; 100 bytes
each."""

UNDELIVERED_S = 3600.0
MAX_UNDELIVERED = 10_000
"""For how long an id is not asked for again that a source has named, but not given: its envelope may be unreadable
there, or was deleted just then, or there is none. And how many of them are remembered; 100 bytes each."""

MIN_FETCHED_IDS = 7
"""The fewest ids to fetch at once: so many of the longest envelopes fit into the memory for a page."""

_FETCH_DIVISOR = 8


class FetchTooLong(MailserverError):
    """So much came at once, or for so long, that it was dropped. The next time, less is asked for at once."""


class _CannotCompare(MailserverError):
    """The two cannot be compared now; `str()` says why. Pages serve as well."""


class CompareTimes:
    """When to compare with all sources, by the loop's clock: at once, and then every COMPARE_INTERVAL_S at most."""

    def __init__(self) -> None:
        self._due_at = -math.inf

    def are_due(self, now: float) -> bool:
        """Whether it is time. If so, it is not again for a while; not all mailservers are to do it in one second."""
        if now < self._due_at:
            return False
        self._due_at = now + random.uniform(COMPARE_INTERVAL_S / 2, COMPARE_INTERVAL_S)  # noqa: S311 - no secret
        return True


class Comparing:
    """Compares what we have with one source, over any number of connections. `rounds`: messages it has answered."""

    def __init__(self, store: StoreWithIds, taking: Taking, clock: Clock, source: object) -> None:
        """Compare with a source, of which `str()` is its name in the log; whatever comes is given to `taking`."""
        self._store = store
        self._network_topic = store.message_ids.network_topic
        self._source = source
        self._taking = taking
        self._clock = clock
        self._refused: OrderedDict[bytes, None] = OrderedDict()
        self._undelivered: OrderedDict[bytes, float] = OrderedDict()  # since when, by the loop's clock; in this order
        self._refused_by: Requirements | None = None
        self._at_once = MAX_FETCHED_IDS
        self._unable_until = -math.inf  # by the loop's clock
        self.rounds = 0

    @property
    def may_be_able(self) -> bool:
        """Whether the source can be compared with, as far as is known."""
        return asyncio.get_running_loop().time() >= self._unable_until

    async def compare(
        self,
        client: MailClient,
        key: bytes,
        wanted: Sequence[MissingRange],
        *,
        min_pow: float,
        on_compared: Callable[[MissingRange, MissingRange], None],
    ) -> None:
        """Fetch what we lack of some ranges.

        Args:
            key: of the source's password.
            min_pow: the proof of work that asking takes.
            on_compared: called with a range and each part of it of which we now have all that the source has and we
                accept, the newest first. A second with too much in it is passed over: it is in no part.
        Raises:
            SourceLies: the source does not come to an end, gives what was not asked for, or too much that is wrong.
            FetchTooLong: too many bytes came at once, or for too long.
            NoAnswer, ConnectionLost, TooMuchWork: as `IdClient.open`.
            QuestionRefused: the source wants to be asked later.
            StoreError: an envelope is not on disk, or the store cannot be read.
        """
        if not self.may_be_able:
            return
        if WAKUID not in client.capabilities:
            self._put_off()
            return
        try:
            ids = IdClient(client)
            terms = await ids.open(key, min_pow=min_pow)
            if terms.network_topic != self._network_topic:
                self._put_off()
                raise _CannotCompare(f"its ids belong to {terms.network_topic!r}, ours to {self._network_topic!r}")
            for whole in wanted:
                part = self._settled_part(whole, terms)
                if part is not None:
                    judge = self._taking.judge()
                    self._forget_refused_by_others(judge.requirements)
                    await self._compare_all(_Session(ids, client.settings, judge), part, partial(on_compared, whole))
        except _CannotCompare as error:
            log.info("source is asked page by page source=%s cause=%r", self._source, str(error))
        except NoAnswer:  # pages may be answered all the same
            self._put_off()
            raise
        except WrongAnswer as error:
            raise SourceLies(Lie.WRONG_ENVELOPES) from error
        except DecodeError as error:
            raise SourceLies(Lie.NO_COMPARISON) from error

    def _put_off(self) -> None:
        self._unable_until = asyncio.get_running_loop().time() + UNABLE_S

    def _settled_part(self, whole: MissingRange, terms: Terms) -> MissingRange | None:
        """What of a range both sides are sure to have all of; None if there is nothing."""
        lower = max(whole.lower, terms.since, self._store.pruned_until + 1, 1)
        upper = min(whole.upper, min(terms.now, int(self._clock())) - UNSETTLED_S)
        return MissingRange(lower, upper) if lower <= upper else None

    async def _compare_all(
        self, session: "_Session", whole: MissingRange, on_compared: Callable[[MissingRange], None]
    ) -> None:
        """Compare a range, in parts if there is too much in it, and without seconds that anybody has filled up."""
        parts, rounds, passed_over = [whole], _Rounds(self._taking), list[int]()
        while parts:
            part = parts.pop()
            try:
                await self._compare(session, part, rounds)
                on_compared(part)
            except (TooManyIds, RangeTooWide) as error:
                if part.lower == part.upper:
                    passed_over.append(part.lower)
                    if len(passed_over) > MAX_PASSED_OVER:
                        raise _CannotCompare(str(error)) from error
                    continue
                middle = (part.lower + part.upper) // 2
                parts += [MissingRange(part.lower, middle), MissingRange(middle + 1, part.upper)]
            except (NotIndexedYet, StoreBusy) as error:
                raise _CannotCompare(str(error)) from error
        if passed_over:
            count, newest, oldest = len(passed_over), passed_over[0], passed_over[-1]
            log.info("seconds passed over source=%s count=%d newest=%d oldest=%d", self._source, count, newest, oldest)

    async def _compare(self, session: "_Session", part: MissingRange, rounds: "_Rounds") -> None:
        """Compare a range, message by message. What a message has shown to be missing is fetched before the next.

        Raises:
            TooManyIds, RangeTooWide: for either side.
        """
        scope = ComparedScope(part.lower, part.upper, session.interest)
        if scope.interest.topics is not None and not scope.interest.topics:
            return  # no topic is accepted by both
        frame_bytes = max(MIN_FRAME_BYTES, min(session.ids.terms.max_message_bytes, MAX_RECONCILE_BYTES))
        comparison = self._store.message_ids.comparison(scope, frame_bytes=frame_bytes)
        message: bytes | None = await comparison.begin()
        while message is not None:
            rounds.begin_one()
            answer = await session.reconcile(scope, message)
            self.rounds += 1
            message, needed = await _received(comparison, answer)
            await self._fetch(session, part, needed)

    async def _fetch(self, session: "_Session", part: MissingRange, needed: Sequence[Needed]) -> None:
        """Fetch and take the envelopes with these ids, but for those that were refused or not given before."""
        for groups in _cut(self._wanted(part, needed), self._at_once):
            envelopes = await self._fetched(session, groups)
            self._note_undelivered(groups, envelopes)
            judged = await self._taking.take(
                envelopes, session.judge, part, announced_pow=session.settings.pow_requirement
            )
            for envelope in envelopes:
                if envelope.hash() not in judged.right:
                    self._remember_refused(sync_id(envelope_muid(self._network_topic, envelope)))

    async def _fetched(self, session: "_Session", groups: Sequence[Items]) -> Sequence[Envelope]:
        """The envelopes with these ids.

        Raises:
            FetchTooLong: they are too many bytes, or take too long.
            SourceLies: so do even the fewest.
            RangeTooWide: the source has too many others in these ranges.
        """
        now = asyncio.get_running_loop().time
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(PAGE_TIMEOUT_S) as deadline:
                buffer = PageBuffer(on_full=lambda: deadline.reschedule(now()))
                await session.fetch_items(groups, buffer)
                if not buffer.is_full:  # it may have filled up in the moment in which the answer ended
                    return buffer.envelopes
        if self._at_once == MIN_FETCHED_IDS:
            raise SourceLies(Lie.ENDLESS_PAGE)
        self._at_once = max(self._at_once // _FETCH_DIVISOR, MIN_FETCHED_IDS)
        raise FetchTooLong

    def _wanted(self, part: MissingRange, needed: Sequence[Needed]) -> Iterator[Items]:
        long_ago = asyncio.get_running_loop().time() - UNDELIVERED_S
        while self._undelivered and next(iter(self._undelivered.values())) <= long_ago:
            self._undelivered.popitem(last=False)
        for each in needed:
            ids = [each_id for each_id in each.ids if each_id not in self._refused and each_id not in self._undelivered]
            lower, upper = max(each.lower, part.lower), min(each.upper, part.upper)
            if ids and lower <= upper:
                yield Items(lower, upper, ids)

    def _note_undelivered(self, groups: Sequence[Items], envelopes: Sequence[Envelope]) -> None:
        """Remember which of these ids the source has named, and no envelopes come for them."""
        if len(envelopes) == sum(len(group.ids) for group in groups):  # each is one of them, and none comes twice
            return
        given = {sync_id(envelope_muid(self._network_topic, envelope)) for envelope in envelopes}
        missing = [item_id for group in groups for item_id in group.ids if item_id not in given]
        if not missing:  # the comparison named one twice
            return
        self._taking.wrong[Wrong.NOT_GIVEN] += len(missing)
        log.info("source names messages that it does not give source=%s count=%d", self._source, len(missing))
        self._undelivered.update(dict.fromkeys(missing, asyncio.get_running_loop().time()))
        while len(self._undelivered) > MAX_UNDELIVERED:
            self._undelivered.popitem(last=False)

    def _forget_refused_by_others(self, requirements: Requirements) -> None:
        """Forget what other requirements than those in force have refused."""
        if requirements != self._refused_by:
            self._refused.clear()
            self._refused_by = requirements

    def _remember_refused(self, item_id: bytes) -> None:
        self._refused[item_id] = None
        if len(self._refused) > MAX_REFUSED:
            self._refused.popitem(last=False)


class _Rounds:
    """How many messages a comparison may take: there is no end to it as long as it brings something."""

    def __init__(self, taking: Taking) -> None:
        self._taking = taking
        self._stored = taking.stored
        self._left = MAX_ROUNDS

    def begin_one(self) -> None:
        """A message is to be sent.

        Raises:
            SourceLies: there have been too many for what they have brought.
        """
        if not self._left:
            if self._taking.stored < self._stored + MAX_ROUNDS:
                raise SourceLies(Lie.ENDLESS_COMPARISON)
            self._stored, self._left = self._taking.stored, MAX_ROUNDS
        self._left -= 1


@dataclass(frozen=True, slots=True)
class _Session:
    """One connection to a source that has granted access."""

    ids: IdClient
    settings: PeerSettings
    judge: Judge

    @property
    def interest(self) -> Interest:
        """The topics that both sides accept."""
        return common(self.judge.requirements.interest, self.settings.interest)

    async def reconcile(self, scope: ComparedScope, message: bytes) -> bytes:
        """Have a message answered.

        Raises:
            TooManyIds: the source cannot compare so much.
            QuestionRefused: it wants to be asked later.
        """
        question = Reconcile(0, "", scope.lower, scope.upper, message, scope.interest)
        try:
            return await self.ids.reconcile(question)
        except QuestionRefused as error:
            rejection = error.refused.rejection
            if rejection is Rejection.TOO_MANY_ITEMS:
                raise TooManyIds(MAX_IDS_OF_TOPICS) from error
            if rejection in (Rejection.RATE_LIMITED, Rejection.TOO_MANY_WAITING):
                raise
            raise _CannotCompare(str(error)) from error

    async def fetch_items(self, groups: Sequence[Items], on_envelopes: OnEnvelopes) -> None:
        """Fetch what a message has shown to be missing.

        Raises:
            RangeTooWide: the source has too many others in these ranges.
            QuestionRefused: it refuses for another reason.
        """
        try:
            await self.ids.fetch_items(groups, on_envelopes)
        except QuestionRefused as error:
            if error.refused.rejection is Rejection.TOO_WIDE:
                raise RangeTooWide from error
            raise


async def _received(comparison: Comparison, answer: bytes) -> tuple[bytes | None, list[Needed]]:
    """The next message, None at the end, and what an answer has shown to be missing here."""
    needed: list[Needed] = []
    message = await comparison.receive(answer, lambda found: needed.extend(found.need))
    return message, needed


def common(ours: Interest, theirs: Interest) -> Interest:
    """What two interests have in common, as an interest that a question may name."""
    if ours.topics is None and theirs.topics is None:
        both = as_integer(ours.bloom) & as_integer(theirs.bloom)
        return Interest(bloom=both.to_bytes(BLOOM_BYTES, "little"))
    topics, other = (ours.topics, theirs) if ours.topics is not None else (theirs.topics, ours)
    assert topics is not None, "one of them has topics"
    wanted = frozenset(topic for topic in topics if other.wants(topic))
    return asked_interest(Interest(topics=wanted))


def _cut(items: Iterable[Items], most: int) -> Iterator[list[Items]]:
    """Cut groups of ids so that each list has `most` ids at most."""
    groups: list[Items] = []
    room = most
    for group in items:
        at = 0
        while at < len(group.ids):
            part = group.ids[at : at + room]
            groups.append(Items(group.lower, group.upper, part))
            at += len(part)
            room -= len(part)
            if not room:
                yield groups
                groups, room = [], most
    if groups:
        yield groups
