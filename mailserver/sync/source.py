"""One source: asks it for what it owes, page by page, stores what is missing here, and bears with its absence."""

import asyncio
import contextlib
import logging
import random
import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from enum import Enum
from typing import Any

from mailserver.client import MailClient, NoAnswer, RequestFailed, TooMuchWork, connect
from mailserver.codec.keys import Enode
from mailserver.errors import ConnectionLost, DecodeError, MailserverError, StoreError
from mailserver.mail.request import Cursor
from mailserver.net.connection import random_key
from mailserver.store.envelopes import EnvelopeStore
from mailserver.store.writer import NewEnvelope
from mailserver.sync.ledger import Account
from mailserver.sync.pages import Basket, Judge, Lie, Page, PageTooLong, Passage, SourceLies, Wrong, asked_interest
from mailserver.waku.bloom import FULL_INTEREST, Interest
from mailserver.waku.envelope import EnvelopeHash

log = logging.getLogger(__name__)

PAGE_TIMEOUT_S = 120.0
"""Longest time for one page: MAX_PAGE_BYTES at half a megabit a second. Silence is noticed sooner, by the client."""

MIN_BACKOFF_S = 1.0
MAX_BACKOFF_S = 300.0
"""Least and longest wait before a source that failed is asked again: doubled with each failure, and by chance."""

MAX_COME_BACK_S = 3600.0
"""How long a source may ask us to stay away; what it says beyond is not believed."""

SET_ASIDE_S = 3600.0
"""How long a source that lied is left alone."""

MAX_WRONG = 100
"""How many wrong envelopes a source may give before it counts as lying: another clock or setting explains some."""

MAX_REFUSALS = 3
"""So often in a row a source may refuse to answer for a window; then that is begun again, after all others."""

MAX_REQUEST_POW = 1.0
"""Most proof of work that is done for a request, 50 ms of it; deployed mailservers ask for 0.002."""

MAX_PROBLEM_CHARS = 200
"""How much of what a source says goes into the log."""

_JUDGED_TOGETHER = 256  # takes 2 ms
_MAX_DOUBLINGS = 16  # of a float; far beyond MAX_BACKOFF_S
_COME_BACK = re.compile(r"come back in (\d{1,9}) s\b")

Clock = Callable[[], float]
"""Returns the present in Unix seconds."""


class RequestTooDear(MailserverError):
    """A source asks for more than MAX_REQUEST_POW."""

    def __init__(self, pow_requirement: float) -> None:
        super().__init__(pow_requirement)
        self.pow_requirement = pow_requirement

    def __str__(self) -> str:
        return f"it asks for a proof of work of {self.pow_requirement:g} for a request"


@dataclass(frozen=True, slots=True)
class SyncSettings:
    """Whom to ask, for what, and what to take.

    `password_key` seals the requests. `min_pow` and `interest` are those of the archive: what it would not take live
    it does not take from history. `give_up_after`: so many failures in a row, or one lie, and a source is not asked
    again; 0: never give up.
    """

    sources: tuple[Enode, ...]
    password_key: bytes
    client_id: str
    min_pow: float
    interest: Interest = FULL_INTEREST
    give_up_after: int = 0


class State(Enum):
    """What is going on with a source."""

    FETCHING = "fetching"
    WAITING = "waiting"
    SET_ASIDE = "left alone"
    DONE = "done"
    GIVEN_UP = "given up"


@dataclass(frozen=True, slots=True)
class Progress:
    """How far catching up from one source is.

    `ranges` and `left_s`: how many ranges of creation times are to be asked for, and how many seconds they span.
    `fetched`: envelopes that came; `stored`: those that were missing here; `wrong`: those that were dropped.
    `seconds`: how long the source was connected, or dialled. `problem`: what went wrong last, if it is not over;
    `failures`: how often in a row.
    """

    source: str
    state: State
    ranges: int
    left_s: int
    pages: int
    fetched: int
    stored: int
    wrong: Mapping[Wrong, int]
    seconds: float
    problem: str
    failures: int

    def __str__(self) -> str:
        wrong = sum(self.wrong.values())
        return (
            f"source={self.source} left_s={self.left_s} pages={self.pages} fetched={self.fetched} "
            f"stored={self.stored} wrong={wrong} seconds={self.seconds:.1f}"
        )

    def as_json(self) -> dict[str, Any]:
        """The same as an object of JSON."""
        return asdict(self) | {
            "state": self.state.value,
            "wrong": {wrong.name.lower(): count for wrong, count in self.wrong.items()},
        }

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> "Progress":
        """Read what `as_json` made.

        Raises:
            ValueError, KeyError, TypeError: it is something else.
        """
        wrong = {Wrong[name.upper()]: count for name, count in fields["wrong"].items()}
        return cls(**{**fields, "state": State(fields["state"]), "wrong": wrong})


class Source:
    """Asks one source, for as long as `run` runs."""

    def __init__(
        self,
        enode: Enode,
        account: Account,
        store: EnvelopeStore,
        settings: SyncSettings,
        clock: Clock,
        on_change: Callable[[], None],
    ) -> None:
        """Take what to work with.

        Args:
            on_change: called whenever the account has changed.
        """
        self.enode = enode
        self.account = account
        self._store = store
        self._settings = settings
        self._clock = clock
        self._on_change = on_change
        self._key = random_key()  # one for all visits: a source that counts requests knows us again
        self._interest = asked_interest(settings.interest)
        self._judge = Judge(settings.min_pow, self._interest)
        self._passage: Passage | None = None
        self._roused = asyncio.Event()
        self._settled = asyncio.Event()
        self._state = State.WAITING
        self._problem = ""
        self._failures = 0
        self._postponed = 0  # windows since the last one that came to its end
        self._is_sent_away = False
        self._lies = 0
        self._pages = self._fetched = self._stored = 0
        self._wrong: Counter[Wrong] = Counter()
        self._seconds = 0.0
        self._visit_began: float | None = None

    def __str__(self) -> str:
        return f"{self.enode.node_id.hex()[:8]}@{self.enode.host}:{self.enode.port}"

    def rouse(self) -> None:
        """There is something to ask for: it is tried now, unless the source has asked us to come back later."""
        if self._state is State.GIVEN_UP:
            self._failures = 0
        self._settled.clear()
        self._roused.set()

    async def settled(self) -> None:
        """Wait until nothing is owed, or the source was given up."""
        await self._settled.wait()

    def progress(self) -> Progress:
        """How far this is."""
        pending = self.account.pending
        left_s = sum(part.seconds for part in pending)
        if self._passage is not None and self._passage.lowest is not None:
            left_s -= max(0, self._passage.asked.upper - self._passage.lowest)
        now = asyncio.get_running_loop().time()
        return Progress(
            source=str(self),
            state=self._state,
            ranges=len(pending),
            left_s=max(left_s, 0),
            pages=self._pages,
            fetched=self._fetched,
            stored=self._stored,
            wrong=dict(self._wrong),
            seconds=self._seconds + (0.0 if self._visit_began is None else now - self._visit_began),
            problem=self._problem,
            failures=self._failures,
        )

    async def run(self) -> None:
        """Ask for what is owed, now and whenever there is more. Ends only by being cancelled."""
        while True:
            self._roused.clear()
            pause_s = 0.0
            if self.account.pending:
                pause_s = await self._visit()
                if not self.account.pending:
                    log.info("caught up %s", self.progress())
            if not self.account.pending:
                self._state = State.DONE
                self._lies = 0
            if self._state in (State.DONE, State.GIVEN_UP):
                self._settled.set()
                await self._roused.wait()
            else:
                await self._stay_away(pause_s)

    async def _stay_away(self, pause_s: float) -> None:
        self._roused.clear()
        if self._is_sent_away:
            await asyncio.sleep(pause_s)
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(pause_s):
                await self._roused.wait()

    async def _visit(self) -> float:
        """Connect and ask until nothing is owed; return for how many seconds to stay away if something still is."""
        loop = asyncio.get_running_loop()
        self._state = State.FETCHING
        self._is_sent_away = False
        self._visit_began = loop.time()
        try:
            async with connect(self.enode, self._settings.client_id, self._key) as client:
                while (passage := self._next_passage()) is not None:
                    await self._pass(client, passage)
                return 0.0
        except PageTooLong:
            return self._shrink_pages()
        except SourceLies as error:
            return self._set_aside(error.lie)
        except RequestFailed as error:
            return self._on_refusal(error)
        except (ConnectionLost, NoAnswer, RequestTooDear, TooMuchWork, DecodeError) as error:
            return self._fail(str(error))
        except StoreError as error:  # not the source's fault, and nothing is lost: it is asked again
            log.error("catch-up cannot store source=%s error=%r", self, str(error))
            return self._fail(str(error))
        except Exception:
            # A fault of ours that this source has hit upon must not end catching up from all others.
            log.exception("internal error in catch-up source=%s", self)
            return self._fail("internal error")
        finally:
            self._seconds += loop.time() - self._visit_began
            self._visit_began = None

    def _next_passage(self) -> Passage | None:
        window = self.account.window()
        if window is None:
            self._passage = None
        elif self._passage is None:
            self._passage = Passage(window, self._interest)
        return self._passage

    async def _pass(self, client: MailClient, passage: Passage) -> None:
        """Ask for a window's pages to its end; each is stored while the next one is on its way."""
        window = self.account.window()
        assert window is not None
        page = await self._ask(client, passage, window.cursor)
        while page.cursor is not None:
            taking = asyncio.create_task(self._take(client, passage, page))
            try:
                following = await self._ask(client, passage, page.cursor)
            finally:
                await taking  # what has come is not lost with the connection
            page = following
        await self._take(client, passage, page)
        self._passage = None
        self._failures = self._postponed = 0
        self.account.finish()
        self._on_change()

    async def _ask(self, client: MailClient, passage: Passage, cursor: Cursor | None) -> Page:
        if client.settings.pow_requirement > MAX_REQUEST_POW:
            raise RequestTooDear(client.settings.pow_requirement)
        now = asyncio.get_running_loop().time
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(PAGE_TIMEOUT_S) as deadline:
                basket = Basket(on_full=lambda: deadline.reschedule(now()))
                completion = await client.request(passage.request(cursor), self._settings.password_key, basket)
                if not basket.is_full:  # else its end has come in the same moment
                    return Page(basket.envelopes, completion.cursor)
        raise PageTooLong

    async def _take(self, client: MailClient, passage: Passage, page: Page) -> None:
        """Store what is right and missing here of a page; then, not before, the account moves on.

        Raises:
            SourceLies: there have been too many wrong envelopes, or the pages lead nowhere.
            StoreError: it is not on disk, or not all.
        """
        now = self._clock()
        right: dict[EnvelopeHash, NewEnvelope] = {}  # by hash: a page may repeat itself
        places = []
        for at in range(0, len(page.envelopes), _JUDGED_TOGETHER):
            if at:
                await asyncio.sleep(0)  # others' turn
            for envelope in page.envelopes[at : at + _JUDGED_TOGETHER]:
                envelope_hash = envelope.hash()
                places.append((envelope.created, envelope_hash))
                wrong = self._judge.wrong(envelope, passage.asked, now)
                if wrong is not None:
                    self._count_wrong(wrong, client.settings.pow_requirement)
                elif self._settings.interest.wants(envelope.topic):
                    row = NewEnvelope(int(now), envelope.created, envelope.topic, envelope_hash, envelope.raw)
                    right[envelope_hash] = row
        missing = await self._store.missing(list(right.values()))
        if missing:
            await self._store.put(missing)
        self._pages += 1
        self._fetched += len(page.envelopes)
        self._stored += len(missing)
        if self._lies > MAX_WRONG:
            raise SourceLies(Lie.WRONG_ENVELOPES)
        if page.cursor is not None:
            passage.note(places)
            self.account.advance(page.cursor)
            self._on_change()
        passage.refusals = 0
        self._failures = self._postponed  # to fetch the same pages again and again is no success
        self._problem = ""

    def _count_wrong(self, wrong: Wrong, announced_pow: float) -> None:
        self._wrong[wrong] += 1
        # Who asks the world for less work than we do has such envelopes, and the request cannot say what we want.
        if wrong is not Wrong.LOW_POW or announced_pow >= self._settings.min_pow:
            self._lies += 1

    # What went wrong, and for how many seconds to stay away.

    def _shrink_pages(self) -> float:
        assert self._passage is not None
        try:
            self._passage.shrink()
        except SourceLies as error:
            return self._set_aside(error.lie)
        self._state = State.WAITING
        return MIN_BACKOFF_S

    def _on_refusal(self, error: RequestFailed) -> float:
        again = _COME_BACK.search(error.failure.message)
        if again is not None:
            self._is_sent_away = True
            # Not all who were sent away come back in the same second.
            pause_s = max(min(float(again[1]), MAX_COME_BACK_S), MIN_BACKOFF_S) + _chance(0.0, MIN_BACKOFF_S)
            return self._wait_for(str(error), State.WAITING, pause_s)
        assert self._passage is not None
        self._passage.refusals += 1
        if self._passage.refusals >= MAX_REFUSALS:
            self._passage = None
            self._postponed += 1
            self.account.postpone()
            self._on_change()
        return self._fail(str(error))

    def _set_aside(self, lie: Lie) -> float:
        log.warning("catch-up leaves a source alone source=%s reason=%r wrong=%s", self, lie.value, self._wrong_text())
        self._begin_again()  # wherever it had led us
        self._lies = 0
        self._problem = lie.value
        self._state = State.GIVEN_UP if self._settings.give_up_after else State.SET_ASIDE
        return SET_ASIDE_S + _chance(0.0, MIN_BACKOFF_S)

    def _fail(self, problem: str) -> float:
        self._failures += 1
        given_up = 0 < self._settings.give_up_after <= self._failures
        return self._wait_for(problem, State.GIVEN_UP if given_up else State.WAITING, backoff_s(self._failures))

    def _wait_for(self, problem: str, state: State, pause_s: float) -> float:
        self._problem = problem[:MAX_PROBLEM_CHARS]
        self._state = state
        log.info("catch-up waits source=%s cause=%r seconds=%.1f", self, self._problem, pause_s)
        return pause_s

    def _begin_again(self) -> None:
        """Forget how far the current window was."""
        self._passage = None
        if self.account.window() is not None:
            self.account.advance(None)
            self._on_change()

    def _wrong_text(self) -> str:
        return ", ".join(f"{count} {wrong.value}" for wrong, count in self._wrong.items()) or "0"


def backoff_s(failures: int) -> float:
    """How long to wait after so many failures in a row: 1 to 2 s after the first, 2 to 4 s after the second."""
    longest = min(MIN_BACKOFF_S * 2 ** min(failures, _MAX_DOUBLINGS), MAX_BACKOFF_S)
    return _chance(longest / 2, longest)


def _chance(least: float, most: float) -> float:
    return random.uniform(least, most)  # noqa: S311 - no secret
