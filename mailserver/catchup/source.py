"""One source: asks it for what it owes, page by page, stores what is missing here, and bears with its absence."""

import asyncio
import contextlib
import logging
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from mailserver.catchup.ledger import Account
from mailserver.catchup.page_rules import Basket, Judge, Lie, Page, PageTooLong, Passage, SourceLies, Wrong
from mailserver.catchup.progress import Progress, State
from mailserver.catchup.retry import RetryPolicy, backoff_s
from mailserver.client.mail_client import MailClient, NoAnswer, RequestFailed, RequestPowTooLow, connect
from mailserver.client.sealing import TooMuchWork
from mailserver.codec.keys import Enode
from mailserver.errors import ConnectionLost, DecodeError, MailserverError, StoreError
from mailserver.mail.request import Cursor
from mailserver.net.sessions import random_key
from mailserver.store.interface import NewEnvelope, Store
from mailserver.units import number_text
from mailserver.waku.acceptance import Acceptance
from mailserver.waku.envelope import EnvelopeHash

log = logging.getLogger(__name__)

PAGE_TIMEOUT_S = 120.0
"""Longest time for one page: MAX_PAGE_BYTES at half a megabit a second. Silence is noticed sooner, by the client."""

MAX_COME_BACK_S = 3600.0
"""How long a source may ask us to stay away; what it says beyond is not believed."""

SET_ASIDE_S = 3600.0
"""How long a source that lied is left alone."""

MAX_WRONG = 100
"""How many wrong envelopes a source may give before it counts as lying: another clock or setting explains some."""

MAX_REFUSALS = 3
"""So often in a row a source may refuse to answer for a window; then that is begun again, after all others."""

MAX_REQUEST_POW = 1.0
"""Most proof of work that is done for a request because a source announces that it asks for it, 50 ms of it; deployed
mailservers ask for 0.002. The operator may have more done."""

MAX_PROBLEM_CHARS = 200
"""How much of what a source says goes into the log."""

_JUDGED_TOGETHER = 256  # takes 2 ms
_COME_BACK = re.compile(r"come back in (\d{1,9}) s\b")
_RATE_LIMIT = "rate limit exceeded"  # the deployed server's word, without a time

Clock = Callable[[], float]
"""Returns the present in Unix seconds."""


class RequestTooDear(MailserverError):
    """A source asks for more than MAX_REQUEST_POW."""

    def __init__(self, pow_requirement: float) -> None:
        super().__init__(pow_requirement)
        self.pow_requirement = pow_requirement

    def __str__(self) -> str:
        return f"it asks for a proof of work of {number_text(self.pow_requirement)} for a request"


@dataclass(frozen=True, slots=True)
class CatchupSettings:
    """Whom to ask, for what, and what to take.

    `password_key` seals the requests. `acceptance` is that of the archive: what it would not take live is not taken
    from history; when its requirements change, each source is asked for its next page by the new ones.
    `request_pow`: least proof of work of a request; more where the source announces that it asks for more.
    `give_up_after`: so many failures in a row, or one lie, or the same final answer twice, and a source is not asked
    again; 0: never give up.
    """

    sources: tuple[Enode, ...]
    password_key: bytes
    client_id: str
    acceptance: Acceptance
    give_up_after: int = 0
    request_pow: float = 0.0


class Source:
    """Asks one source, for as long as `run` runs."""

    def __init__(
        self,
        enode: Enode,
        account: Account,
        store: Store,
        settings: CatchupSettings,
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
        self._judge = Judge(settings.acceptance.requirements)
        self._passage: Passage | None = None
        self._roused = asyncio.Event()
        self._settled = asyncio.Event()
        self._state = State.WAITING
        self._problem = ""
        self._retry = RetryPolicy(settings.give_up_after)
        self._is_sent_away = False
        self.is_dismissed = False
        self._leash: asyncio.Timeout | None = None  # of the visit
        self._has_answered = False
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
            self._state = State.WAITING
            self._problem = ""
            self._retry = RetryPolicy(self._settings.give_up_after)
        self.is_dismissed = False
        self._settled.clear()
        self._roused.set()

    def dismiss(self) -> None:
        """Ask it nothing more, until it is roused: a visit is broken off. What it owes stays in its account."""
        self.is_dismissed = True
        self._give_up_if_dismissed()
        self._settled.set()
        if self._leash is not None:
            self._leash.reschedule(asyncio.get_running_loop().time())
            self._leash = None  # once

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
            failures=self._retry.failures,
            is_hopeless=self._retry.is_hopeless,
        )

    async def run(self) -> None:
        """Ask for what is owed, now and whenever there is more. Ends only by being cancelled."""
        while True:
            self._roused.clear()
            pause_s = 0.0
            if self.account.pending and not self.is_dismissed:
                pause_s = await self._visit()
                if not self.account.pending:
                    self.progress().log_end()
            if not self.account.pending:
                self._state = State.DONE
                self._lies = 0
            self._give_up_if_dismissed()
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
            async with (
                asyncio.timeout(None) as self._leash,
                connect(self.enode, self._settings.client_id, self._key) as client,
            ):
                while (passage := self._next_passage()) is not None:
                    await self._pass(client, passage)
                return 0.0
        except PageTooLong:
            return self._shrink_pages()
        except SourceLies as error:
            return self._set_aside(error.lie)
        except RequestFailed as error:
            return self._on_refusal(error)
        except NoAnswer as error:
            return self._fail(str(error), is_final=not self._has_answered)
        except (ConnectionLost, RequestTooDear, TooMuchWork, DecodeError) as error:
            return self._fail(str(error))
        except TimeoutError:  # dismissed
            self._state = State.WAITING
            return backoff_s(0)
        except StoreError as error:  # not the source's fault, and nothing is lost: it is asked again
            log.error("catch-up cannot store source=%s error=%r", self, str(error))
            return self._fail(str(error))
        except Exception:
            # A fault of ours that this source has hit upon must not end catching up from all others.
            log.exception("internal error in catch-up source=%s", self)
            return self._fail("internal error")
        finally:
            self._seconds += loop.time() - self._visit_began
            self._visit_began = self._leash = None

    def _give_up_if_dismissed(self) -> None:
        if self.is_dismissed and self.account.pending:
            self._state = State.GIVEN_UP
            self._problem = "no trusted peer any more"

    def _next_passage(self) -> Passage | None:
        window = self.account.window()
        if window is None:
            self._passage = None
        elif self._passage is None:
            self._passage = Passage(window)
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
        self._retry.on_window_paid()
        self.account.finish()
        self._on_change()

    async def _ask(self, client: MailClient, passage: Passage, cursor: Cursor | None) -> Page:
        min_pow = max(client.settings.pow_requirement, self._settings.request_pow)
        if min_pow > max(MAX_REQUEST_POW, self._settings.request_pow):
            raise RequestTooDear(min_pow)
        now = asyncio.get_running_loop().time
        judge = self._judge_now()
        request = passage.request(cursor, judge.asked)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(PAGE_TIMEOUT_S) as deadline:
                basket = Basket(on_full=lambda: deadline.reschedule(now()))
                try:
                    completion = await client.request(request, self._settings.password_key, basket, min_pow=min_pow)
                finally:
                    self._has_answered = self._has_answered or not basket.is_empty
                if not basket.is_full:  # else its end has come in the same moment
                    return Page(basket.envelopes, completion.cursor, judge)
        raise PageTooLong

    def _judge_now(self) -> Judge:
        requirements = self._settings.acceptance.requirements
        if requirements is not self._judge.requirements:
            self._judge = Judge(requirements)
        return self._judge

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
                wrong = page.judge.wrong(envelope, passage.asked, now)
                if wrong is not None:
                    self._count_wrong(wrong, page.judge, client.settings.pow_requirement)
                elif page.judge.requirements.interest.wants(envelope.topic):
                    row = NewEnvelope(int(now), envelope.created, envelope.topic, envelope_hash, envelope.raw)
                    right[envelope_hash] = row
        missing = await self._store.missing(list(right.values()))
        if missing:
            await self._store.put(missing, source=self)
        self._pages += 1
        self._fetched += len(page.envelopes)
        self._stored += len(missing)
        if self._lies > MAX_WRONG:
            raise SourceLies(Lie.WRONG_ENVELOPES)
        if page.cursor is not None:
            passage.note(places, page.cursor)
            self.account.advance(page.cursor)
            self._on_change()
        passage.refusals = 0
        self._retry.on_page()
        if not self.is_dismissed:  # it may have been while this was stored
            self._problem = ""
        self._has_answered = True

    def _count_wrong(self, wrong: Wrong, judge: Judge, announced_pow: float) -> None:
        self._wrong[wrong] += 1
        # Who asks the world for less than we do has such envelopes, and the request cannot say what we want.
        is_honest = wrong is Wrong.OVERSIZE or (wrong is Wrong.LOW_POW and announced_pow < judge.requirements.min_pow)
        if not is_honest:
            self._lies += 1

    # What went wrong, and for how many seconds to stay away.

    def _shrink_pages(self) -> float:
        assert self._passage is not None
        try:
            self._passage.shrink()
        except SourceLies as error:
            return self._set_aside(error.lie)
        self._state = State.WAITING
        return backoff_s(0)

    def _on_refusal(self, error: RequestFailed) -> float:
        self._has_answered = True
        again = _COME_BACK.search(error.failure.message)
        if again is not None:
            self._is_sent_away = True
            # Not all who were sent away come back in the same second.
            pause_s = min(float(again[1]), MAX_COME_BACK_S) + backoff_s(0)
            return self._wait_for(str(error), State.WAITING, pause_s)
        window = self.account.window()
        assert self._passage is not None
        assert window is not None
        self._passage.refusals += 1
        # No cursor, no haste of ours explains it: the next window shows whether it is this one, or everything.
        is_final = window.cursor is None and _RATE_LIMIT not in error.failure.message
        if is_final or self._passage.refusals >= MAX_REFUSALS:
            self._passage = None
            self._retry.on_window_postponed()
            self.account.postpone()
            self._on_change()
        hint = "; give more by --request-pow" if isinstance(error, RequestPowTooLow) else ""
        return self._fail(f"{error}{hint}", is_final=is_final)

    def _set_aside(self, lie: Lie) -> float:
        log.warning("catch-up leaves a source alone source=%s reason=%r wrong=%s", self, lie.value, self._wrong_text())
        self._begin_again()  # wherever it had led us
        self._lies = 0
        self._problem = lie.value
        self._state = State.GIVEN_UP if self._settings.give_up_after else State.SET_ASIDE
        return SET_ASIDE_S + backoff_s(0)

    def _fail(self, problem: str, *, is_final: bool = False) -> float:
        self._retry.on_failure(problem, is_final=is_final)
        state = State.GIVEN_UP if self._retry.is_over else State.WAITING
        return self._wait_for(problem, state, backoff_s(self._retry.failures))

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
