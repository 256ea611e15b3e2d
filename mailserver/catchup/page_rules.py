"""What may be in the pages of a source, and how far they may lead: pure bookkeeping, without the network.

The operator trusts a source, but everything that it sends is checked. Each envelope is judged as it would have been
when it was created. The pages of a window must lead somewhere: whatever a source sends, asking it comes to an end, and
takes the memory of two pages.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from enum import Enum
from typing import NamedTuple

from mailserver.catchup.ranges import OVERLAP_S, MissingRange
from mailserver.errors import MailserverError
from mailserver.mail.request import MAX_REQUEST_TOPICS, UNSEALED_ID, Cursor, MailRequest
from mailserver.store.interface import NewEnvelope, Place
from mailserver.waku.acceptance import MAX_AHEAD_S, Acceptance, Requirements, Verdict
from mailserver.waku.bloom import Interest, bloom_of
from mailserver.waku.envelope import Envelope, EnvelopeHash

PAGE_ENVELOPES = 1000
"""How many envelopes to ask for per page: as many as deployed clients do."""

MIN_PAGE_ENVELOPES = 7
"""The fewest to ask for: so many of the longest envelopes fit into MAX_PAGE_BYTES."""

MAX_PAGE_ENVELOPES = 4000
MAX_PAGE_BYTES = 8 * 1024 * 1024
"""Most envelopes in one page, and most bytes. A page must be held in memory: a source cannot be told to wait."""

PAGE_TIMEOUT_S = 120.0
"""Longest time for one page: MAX_PAGE_BYTES at half a megabit per second. The client notices silence sooner."""

MAX_WINDOW_PAGES = 20_000
"""Most pages of one window: 20 million envelopes per day, 230 per second."""

MAX_IDLE_PAGES = 10
"""How many pages of one window may lead nowhere, though their cursors say that more follows. A page of an honest source
leads nowhere if everything that it found was deleted before it was read, and we do not understand its cursor."""

_PAGE_DIVISOR = 8


class Wrong(Enum):
    """Why an envelope of a source is not stored."""

    OUT_OF_RANGE = "created outside of the range asked for"
    FROM_THE_FUTURE = "created in the future"
    OVERSIZE = "too long"
    LOW_POW = "proof of work too low"
    UNWANTED_TOPIC = "topic not asked for"
    NOT_GIVEN = "named by its id, but not given"


UNASKED = frozenset({Wrong.OUT_OF_RANGE, Wrong.UNWANTED_TOPIC})
"""What the request itself excludes. The other kinds may come from a source with another clock or other settings."""

_WRONG = {
    Verdict.OVERSIZE: Wrong.OVERSIZE,
    Verdict.LOW_POW: Wrong.LOW_POW,
    Verdict.UNWANTED_TOPIC: Wrong.UNWANTED_TOPIC,
}


class Lie(Enum):
    """Why a source is left alone for a while."""

    WRONG_ENVELOPES = "it gives too many wrong envelopes"
    STANDSTILL = "its pages lead nowhere"
    ENDLESS_PAGE = "its pages are longer than what was asked for"
    ENDLESS_WINDOW = "its pages do not end"
    NO_COMPARISON = "its messages are none of a comparison"
    ENDLESS_COMPARISON = "its comparison does not end"


class SourceLies(MailserverError):
    """A source answers as no honest mailserver would; `lie` says how."""

    def __init__(self, lie: Lie) -> None:
        super().__init__(lie)
        self.lie = lie

    def __str__(self) -> str:
        return self.lie.value


class PageTooLong(MailserverError):
    """A page did not end within MAX_PAGE_ENVELOPES, MAX_PAGE_BYTES, or the time that it may take."""


class Judge:
    """Decides which envelopes of a page are right.

    `requirements`: those of the intake when the page was asked for; `asked`: the topics that the source was asked for.
    """

    def __init__(self, requirements: Requirements) -> None:
        self.requirements = requirements
        self.asked = asked_interest(requirements.interest)
        self._acceptance = Acceptance(replace(requirements, interest=self.asked))

    def wrong(self, envelope: Envelope, asked: MissingRange, now: float) -> Wrong | None:
        """What is wrong with an envelope; None if nothing is. That it has expired is right: it is history.

        Args:
            asked: the range that the source was asked for.
            now: Unix seconds.
        """
        created = envelope.created
        if not asked.lower <= created <= asked.upper:  # a creation time below 0 is out of range, too
            return Wrong.OUT_OF_RANGE
        if created - int(now) > MAX_AHEAD_S:
            return Wrong.FROM_THE_FUTURE
        verdict = self._acceptance.judge(envelope, created)  # as at its creation, when it was neither expired nor early
        return None if verdict is Verdict.ACCEPTED else _WRONG[verdict]


def asked_interest(interest: Interest) -> Interest:
    """What to ask a source for: the interest, or its bloom filter if it has more topics than a request may name."""
    if interest.topics is None or len(interest.topics) <= MAX_REQUEST_TOPICS:
        return interest
    return Interest(bloom=bloom_of(interest.topics))


class AnswerPage(NamedTuple):
    """One answer. `cursor` is None at the end of the window; `judge` holds the rules by which it was asked for."""

    envelopes: Sequence[Envelope]
    cursor: Cursor | None
    judge: Judge


class JudgedPage:
    """The envelopes of a page, sorted.

    `places`: where each stands, wrong ones included. `right`: what is to be stored, by hash: a page may repeat itself.
    `wrong`: how many are wrong, by kind.
    """

    def __init__(self, judge: Judge, asked: MissingRange, now: float) -> None:
        """Begin with none.

        Args:
            asked: the range that the source was asked for.
            now: Unix seconds.
        """
        self.places: list[Place] = []
        self.right: dict[EnvelopeHash, NewEnvelope] = {}
        self.wrong: Counter[Wrong] = Counter()
        self._judge = judge
        self._asked = asked
        self._now = now

    def add(self, envelopes: Iterable[Envelope]) -> None:
        """Judge some of them: 256 take 2 ms."""
        wanted = self._judge.requirements.interest
        for envelope in envelopes:
            envelope_hash = envelope.hash()
            self.places.append((envelope.created, envelope_hash))
            wrong = self._judge.wrong(envelope, self._asked, self._now)
            if wrong is not None:
                self.wrong[wrong] += 1
            elif wanted.wants(envelope.topic):
                row = NewEnvelope(int(self._now), envelope.created, envelope.topic, envelope_hash, envelope.raw)
                self.right[envelope_hash] = row


class PageBuffer:
    """Collects the envelopes of one page as its packets arrive. If there are too many, it drops all of them."""

    def __init__(self, on_full: Callable[[], None]) -> None:
        self._on_full = on_full
        self._bytes = 0
        self.envelopes: list[Envelope] = []
        self.is_full = False

    @property
    def is_empty(self) -> bool:
        """Whether nothing has come yet."""
        return self._bytes == 0

    def __call__(self, envelopes: Sequence[Envelope]) -> None:
        """Take the envelopes of a packet. `on_full` is called once, when there is no more room."""
        if self.is_full:
            return
        self._bytes += sum(len(envelope.raw) for envelope in envelopes)
        if len(self.envelopes) + len(envelopes) <= MAX_PAGE_ENVELOPES and self._bytes <= MAX_PAGE_BYTES:
            self.envelopes += envelopes
            return
        self.is_full = True
        self.envelopes.clear()
        self._on_full()


class Walk:
    """The way through one window, page by page, over any number of connections. It takes the memory of a few numbers.

    Pages must lead on: a page with a cursor must have an envelope that is older, or newer, than all before it in this
    window. This finds repeated pages and cursors that go in circles, whatever the order in which the source answers,
    and no cursor needs to be understood. An empty page leads on by its cursor, if that is a place in the window below
    all cursors before it: a mailserver may end a page early when it has searched for long and found nothing. Envelopes
    or cursors that are made up to deceive us cannot be found like this; MAX_WINDOW_PAGES ends them.
    """

    def __init__(self, window: MissingRange) -> None:
        # It overlaps the window above: some servers leave out the upper bound itself.
        self.asked = MissingRange(window.lower, window.upper + OVERLAP_S)
        self._limit = PAGE_ENVELOPES
        self._pages = 0
        self._idle = 0
        self._lowest: Place | None = None
        self._highest: Place | None = None
        self._lowest_cursor: Cursor | None = None
        self.refusals = self.cuts = 0  # in a row
        self.longest_s = 0.0  # of all pages

    @property
    def lowest(self) -> int | None:
        """When the oldest envelope so far was created; None before the first."""
        return None if self._lowest is None else self._lowest[0]

    def request(self, cursor: Cursor | None, interest: Interest) -> MailRequest:
        """The request for the page behind `cursor`."""
        return MailRequest(UNSEALED_ID, self.asked.lower, self.asked.upper, interest, self._limit, cursor)

    def shrink(self) -> None:
        """Ask for fewer envelopes per page from now on, as one was too long. Pages of long envelopes may honestly be.

        Raises:
            SourceLies: it is MIN_PAGE_ENVELOPES already.
        """
        if self._limit == MIN_PAGE_ENVELOPES:
            raise SourceLies(Lie.ENDLESS_PAGE)
        self._limit = max(self._limit // _PAGE_DIVISOR, MIN_PAGE_ENVELOPES)

    def note(self, places: Sequence[Place], cursor: Cursor) -> None:
        """Note that a page had envelopes at these places, and this cursor.

        Raises:
            SourceLies: the pages lead nowhere, or do not end.
        """
        self._pages += 1
        if self._pages > MAX_WINDOW_PAGES:
            raise SourceLies(Lie.ENDLESS_WINDOW)
        if not (self._led_on(places) if places else self._went_on(cursor)):
            self._idle += 1
            if self._idle > MAX_IDLE_PAGES:
                raise SourceLies(Lie.STANDSTILL)

    def _led_on(self, places: Sequence[Place]) -> bool:
        lowest, highest = min(places), max(places)
        led_on = False
        if self._lowest is None or lowest < self._lowest:
            self._lowest, led_on = lowest, True
        if self._highest is None or highest > self._highest:
            self._highest, led_on = highest, True
        return led_on

    def _went_on(self, cursor: Cursor) -> bool:
        if not self.asked.lower <= cursor.created <= self.asked.upper:
            return False
        if self._lowest_cursor is not None and cursor >= self._lowest_cursor:
            return False
        self._lowest_cursor = cursor
        return True
