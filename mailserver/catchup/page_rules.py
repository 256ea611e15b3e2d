"""What may be in the pages of a source, and how far they may lead: pure bookkeeping, without the network.

A source is a mailserver that the operator trusts, and still nothing that it sends is taken unseen. Each envelope is
judged as it would have been when it was created. The pages of a window must lead somewhere: whatever a source sends,
asking it comes to an end, and takes memory for two pages.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from enum import Enum
from typing import NamedTuple

from mailserver.catchup.ranges import OVERLAP_S, Range
from mailserver.errors import MailserverError
from mailserver.mail.request import MAX_REQUEST_TOPICS, UNSEALED_ID, Cursor, MailRequest
from mailserver.waku.acceptance import MAX_AHEAD_S, Acceptance, Requirements, Verdict
from mailserver.waku.bloom import Interest, bloom_of
from mailserver.waku.envelope import Envelope, EnvelopeHash

PAGE_ENVELOPES = 1000
"""How many envelopes to ask for at once, as deployed clients do."""

MIN_PAGE_ENVELOPES = 7
"""The fewest to ask for: as many of the longest as fit into MAX_PAGE_BYTES."""

MAX_PAGE_ENVELOPES = 4000
MAX_PAGE_BYTES = 8 * 1024 * 1024
"""Most envelopes, and their bytes, in one page. A page has to be held: there is no way to have the source wait."""

MAX_WINDOW_PAGES = 20_000
"""Most pages of one window: 20 million envelopes a day, 230 a second."""

MAX_IDLE_PAGES = 10
"""How many pages of one window may lead nowhere although more is said to follow. An honest page does so where all
that it found was deleted before it was read, and its cursor is not one that we understand."""

_PAGE_DIVISOR = 8

Place = tuple[int, EnvelopeHash]
"""Where an envelope stands in the order of answers: (created, hash)."""


class Wrong(Enum):
    """Why an envelope of a source is not stored."""

    OUT_OF_RANGE = "created outside of the range asked for"
    FROM_THE_FUTURE = "created in the future"
    OVERSIZE = "too long"
    LOW_POW = "proof of work too low"
    UNWANTED_TOPIC = "topic not asked for"


UNASKED = frozenset({Wrong.OUT_OF_RANGE, Wrong.UNWANTED_TOPIC})
"""What a request leaves out by its own words. Another clock or other settings of the source may explain the rest."""

_WRONG = {
    Verdict.OVERSIZE: Wrong.OVERSIZE,
    Verdict.LOW_POW: Wrong.LOW_POW,
    Verdict.UNWANTED_TOPIC: Wrong.UNWANTED_TOPIC,
}


class Lie(Enum):
    """Why a source is not asked any more for a while."""

    WRONG_ENVELOPES = "it gives too many wrong envelopes"
    STANDSTILL = "its pages lead nowhere"
    ENDLESS_PAGE = "its pages are longer than what was asked for"
    ENDLESS_WINDOW = "its pages do not end"


class SourceLies(MailserverError):
    """A source answers as no honest mailserver would; `lie` says how."""

    def __init__(self, lie: Lie) -> None:
        super().__init__(lie)
        self.lie = lie

    def __str__(self) -> str:
        return self.lie.value


class PageTooLong(MailserverError):
    """A page was not over after MAX_PAGE_ENVELOPES, MAX_PAGE_BYTES, or the time that it may take."""


class Judge:
    """Decides which envelopes of a page are right.

    `requirements`: those of the archive when the page was asked for; `asked`: the topics that it was asked for.
    """

    def __init__(self, requirements: Requirements) -> None:
        self.requirements = requirements
        self.asked = asked_interest(requirements.interest)
        self._acceptance = Acceptance(replace(requirements, interest=self.asked))

    def wrong(self, envelope: Envelope, asked: Range, now: float) -> Wrong | None:
        """What is wrong with an envelope, None if nothing is. It may have expired: history has.

        Args:
            asked: the range that the source was asked for.
            now: Unix seconds.
        """
        created = envelope.created
        if not asked.lower <= created <= asked.upper:  # then it is not below zero, either
            return Wrong.OUT_OF_RANGE
        if created - int(now) > MAX_AHEAD_S:
            return Wrong.FROM_THE_FUTURE
        verdict = self._acceptance.judge(envelope, created)  # as at its creation: neither expired nor early
        return None if verdict is Verdict.ACCEPTED else _WRONG[verdict]


def asked_interest(interest: Interest) -> Interest:
    """What to ask a source for: the interest, or of more topics than a request may name the bloom filter."""
    if interest.topics is None or len(interest.topics) <= MAX_REQUEST_TOPICS:
        return interest
    return Interest(bloom=bloom_of(interest.topics))


class Page(NamedTuple):
    """One answer. `cursor` is None at the end of the window; `judge` holds the rules by which it was asked for."""

    envelopes: Sequence[Envelope]
    cursor: Cursor | None
    judge: Judge


class Basket:
    """Collects the envelopes of one page as its packets arrive; drops all of them when they are too many."""

    def __init__(self, on_full: Callable[[], None]) -> None:
        self._on_full = on_full
        self._bytes = 0
        self.envelopes: list[Envelope] = []
        self.is_full = False

    @property
    def is_empty(self) -> bool:
        """Whether nothing has come."""
        return self._bytes == 0

    def __call__(self, envelopes: Sequence[Envelope]) -> None:
        """Take a packet's envelopes. `on_full` is called once, when there is no more room."""
        if self.is_full:
            return
        self._bytes += sum(len(envelope.raw) for envelope in envelopes)
        if len(self.envelopes) + len(envelopes) <= MAX_PAGE_ENVELOPES and self._bytes <= MAX_PAGE_BYTES:
            self.envelopes += envelopes
            return
        self.is_full = True
        self.envelopes.clear()
        self._on_full()


class Passage:
    """The way through one window, page by page, over any number of connections. It takes a few numbers of memory.

    Pages must lead on: one with a cursor has an envelope older, or newer, than all before it in this window. That
    finds repeated pages and cursors that go in circles, in whichever order the source answers, and needs no cursor
    to be understood. An empty page leads on by its cursor, if that is a place in the window below all cursors before:
    a mailserver may end a page early where it looks for long and finds nothing. What is made for the purpose, envelopes
    or cursors, cannot be found so: it ends with MAX_WINDOW_PAGES.
    """

    def __init__(self, window: Range) -> None:
        # Overlapping the window above: some servers leave the upper bound itself out.
        self.asked = Range(window.lower, window.upper + OVERLAP_S)
        self._limit = PAGE_ENVELOPES
        self._pages = 0
        self._idle = 0
        self._lowest: Place | None = None
        self._highest: Place | None = None
        self._lowest_cursor: Cursor | None = None
        self.refusals = 0

    @property
    def lowest(self) -> int | None:
        """When the oldest envelope so far was created; None before the first."""
        return None if self._lowest is None else self._lowest[0]

    def request(self, cursor: Cursor | None, interest: Interest) -> MailRequest:
        """What to ask for the page behind `cursor`."""
        return MailRequest(UNSEALED_ID, self.asked.lower, self.asked.upper, interest, self._limit, cursor)

    def shrink(self) -> None:
        """Ask for fewer envelopes a page from now on: one was too long. Honest ones may be, of long envelopes.

        Raises:
            SourceLies: fewer cannot be asked for.
        """
        if self._limit == MIN_PAGE_ENVELOPES:
            raise SourceLies(Lie.ENDLESS_PAGE)
        self._limit = max(self._limit // _PAGE_DIVISOR, MIN_PAGE_ENVELOPES)

    def note(self, places: Sequence[Place], cursor: Cursor) -> None:
        """A page with this cursor had envelopes at these places.

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
