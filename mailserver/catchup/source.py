"""One source: asks it for what it owes, page by page, stores what is missing here, and tries again when it fails."""

import asyncio
import contextlib
import logging
import math
from collections.abc import Callable
from functools import partial

from mailserver.catchup.asking import Asking, Unanswered, come_back_s, is_for_the_rate
from mailserver.catchup.comparing import Comparing, FetchTooLong
from mailserver.catchup.ledger import Account
from mailserver.catchup.page_rules import AnswerPage, Lie, PageTooLong, SourceLies, Walk
from mailserver.catchup.patience import Patience
from mailserver.catchup.progress import SourceProgress, SourceState
from mailserver.catchup.ranges import MissingRange
from mailserver.catchup.request_pow import RequestTooDear, request_pow
from mailserver.catchup.retry import RetryPolicy, backoff_s
from mailserver.catchup.settings import CatchupSettings
from mailserver.catchup.taking import Taking
from mailserver.client.id_client import QuestionRefused
from mailserver.client.mail_client import MailClient, NoAnswer, RequestFailed, RequestPowTooLow, connect
from mailserver.client.sealing import TooMuchWork
from mailserver.codec.keys import Enode
from mailserver.errors import ConnectionLost, DecodeError, StoreError
from mailserver.live.intake import Clock
from mailserver.net.sessions import random_key
from mailserver.store.message_ids import StoreWithIds

log = logging.getLogger(__name__)

MAX_COME_BACK_S = 3600.0
"""The longest time for which a source may send us away. If it asks for more, we come back after this."""

SET_ASIDE_S = 3600.0
"""How long a source is left alone after it lied."""

MAX_REFUSALS = 3
"""How often in a row a source may refuse to answer for a window. Then the window is begun again, after all others."""

MAX_CUTS = 2
"""How often in a row the connection may end before a page comes. After that it is no accident: less is asked for."""

ASIDE_S = 300.0
"""A part that was not answered is asked for at most this often: it may be what the source crashes at."""

MAX_PROBLEM_CHARS = 200
"""How much of the text of a source goes into the log."""


class CatchupSource:
    """Asks one source while `run` runs."""

    def __init__(
        self,
        enode: Enode,
        account: Account,
        store: StoreWithIds,
        settings: CatchupSettings,
        clock: Clock,
        on_change: Callable[[], None],
    ) -> None:
        """Begin with nothing asked.

        Args:
            on_change: called whenever the account has changed.
        """
        self.enode = enode
        self.account = account
        self._store = store
        self._settings = settings
        self._clock = clock
        self._on_change = on_change
        self._key = random_key()  # the same for all visits: sources count our requests by it
        self._taking = Taking(store, settings.acceptance, clock, self)
        self._comparing = Comparing(store, self._taking, clock, self)
        self._to_compare: MissingRange | None = None
        self._walk: Walk | None = None
        self._asking = Asking(settings.password_key, settings.request_pow, self)
        self._patience = Patience()
        self._aside_at = -math.inf  # when to ask for what is set aside, by the loop's clock
        self._woken = asyncio.Event()
        self._settled = asyncio.Event()
        self._state = SourceState.WAITING
        self._problem = ""
        self._retry = RetryPolicy(settings.give_up_after)
        self._is_sent_away = False
        self.is_dismissed = False
        self._visit_timeout: asyncio.Timeout | None = None  # ends the visit under way
        self._seconds = 0.0
        self._visit_began: float | None = None

    def __str__(self) -> str:
        return f"{self.enode.node_id.hex()[:8]}@{self.enode.host}:{self.enode.port}"

    def wake(self) -> None:
        """There is something to ask for. The source is tried now, unless it has told us to come back later."""
        if self._state is SourceState.GIVEN_UP:
            self._state = SourceState.WAITING
            self._problem = ""
            self._retry = RetryPolicy(self._settings.give_up_after)
            self._aside_at = -math.inf
        self.is_dismissed = False
        self._settled.clear()
        self._woken.set()

    def compare(self, part: MissingRange) -> None:
        """Compare what we have of a range with what the source has, soon, if it can. If it cannot, nothing is owed."""
        is_idle = self._state is SourceState.DONE or (self._state is SourceState.WAITING and self.account.is_only_aside)
        if not self.is_dismissed and is_idle and self._comparing.may_be_able:
            self._to_compare = self._to_compare or part  # what was not compared the last time comes first
            self._woken.set()

    def dismiss(self) -> None:
        """Ask it for nothing until `wake` is called. It ends a visit under way. The account keeps what is owed."""
        self.is_dismissed = True
        self._give_up_if_dismissed()
        self._settled.set()
        if self._visit_timeout is not None:
            self._visit_timeout.reschedule(asyncio.get_running_loop().time())
            self._visit_timeout = None  # it is ended once

    async def settled(self) -> None:
        """Wait until the source owes nothing, or is given up."""
        await self._settled.wait()

    def progress(self) -> SourceProgress:
        """How far catching up from this source is."""
        pending = self.account.pending
        left_s = sum(part.seconds for part in pending)
        if self._walk is not None and self._walk.lowest is not None:
            left_s -= max(0, self._walk.asked.upper - self._walk.lowest)
        now = asyncio.get_running_loop().time()
        return SourceProgress(
            source=str(self),
            state=self._state,
            ranges=len(pending),
            left_s=max(left_s, 0),
            pages=self._taking.pages,
            fetched=self._taking.fetched,
            stored=self._taking.stored,
            wrong=dict(self._taking.wrong),
            seconds=self._seconds + (0.0 if self._visit_began is None else now - self._visit_began),
            problem=self._problem,
            failures=self._retry.failures,
            is_hopeless=self._retry.is_hopeless,
        )

    async def run(self) -> None:
        """Ask for what the source owes, now and whenever there is more. Only cancelling ends this."""
        while True:
            self._woken.clear()
            pause_s = 0.0
            is_owed = bool(self.account.pending) and self._aside_in_s() <= 0
            is_visited = (is_owed or self._to_compare is not None) and not self.is_dismissed
            if is_visited:
                pause_s = await self._visit()
                if is_owed and not self.account.pending:
                    self.progress().log_end()
            if not self.account.pending and not (is_visited and self._state is SourceState.SET_ASIDE):
                self._state = SourceState.DONE
                self._taking.forgive()
            self._give_up_if_dismissed()
            if self._state in (SourceState.DONE, SourceState.GIVEN_UP):
                self._settled.set()
                await self._woken.wait()
            else:
                await self._stay_away(max(pause_s, self._aside_in_s()))

    def _aside_in_s(self) -> float:
        """In how many seconds there is something to ask for, if all that is owed is set aside."""
        return self._aside_at - asyncio.get_running_loop().time() if self.account.is_only_aside else 0.0

    async def _stay_away(self, pause_s: float) -> None:
        self._woken.clear()
        if self._is_sent_away:
            await asyncio.sleep(pause_s)
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(pause_s):
                await self._woken.wait()

    async def _visit(self) -> float:
        """Connect, and ask until nothing is owed. If something still is, return how many seconds to stay away."""
        loop = asyncio.get_running_loop()
        self._state = SourceState.FETCHING
        self._is_sent_away = False
        self._visit_began = loop.time()
        try:
            async with (
                asyncio.timeout(None) as self._visit_timeout,
                connect(self.enode, self._settings.client_id, self._key, bounds=self._settings.bounds) as client,
            ):
                await self._compare(client)
                while (walk := self._next_walk()) is not None:
                    await self._ask_window(client, walk)
                self._state = SourceState.WAITING  # for what is set aside, if anything is
                return 0.0
        except PageTooLong:
            return self._shrink_pages()
        except FetchTooLong:
            self._state = SourceState.WAITING
            return backoff_s(0)
        except SourceLies as error:
            return self._set_aside(error.lie)
        except RequestFailed as error:
            return self._on_refusal(error)
        except QuestionRefused as error:
            return self._send_away(str(error), error.refused.retry_after_s)
        except Unanswered as error:
            return self._on_silence(error)
        except NoAnswer as error:
            return self._fail(str(error), is_final=not self._asking.has_answered)
        except (ConnectionLost, RequestTooDear, TooMuchWork, DecodeError) as error:
            return self._fail(str(error))
        except TimeoutError:  # dismissed
            self._state = SourceState.WAITING
            return backoff_s(0)
        except StoreError as error:  # not the source's fault, and nothing is lost: it is asked again
            log.error("catch-up cannot store source=%s error=%r", self, str(error))
            return self._fail(str(error))
        except Exception:
            # A fault of ours that one source brings out must not end catching up from all others.
            log.exception("internal error in catch-up source=%s", self)
            return self._fail("internal error")
        finally:
            self._seconds += loop.time() - self._visit_began
            self._visit_began = self._visit_timeout = None

    def _give_up_if_dismissed(self) -> None:
        if self.is_dismissed and self.account.pending:
            self._state = SourceState.GIVEN_UP
            self._problem = "no trusted peer any more"

    async def _compare(self, client: MailClient) -> None:
        """Fetch what we lack of all that is owed, if the source speaks `wakuid`. The rest is asked for by windows."""
        wanted = [MissingRange(part.lower, part.upper) for part in self.account.pending]
        if self._to_compare is not None:
            wanted.append(self._to_compare)
        key, on_compared = self._settings.password_key, partial(self._on_compared, self._to_compare)
        min_pow = request_pow(client.settings.pow_requirement, self._settings.request_pow)
        await self._comparing.compare(client, key, wanted, min_pow=min_pow, on_compared=on_compared)
        self._to_compare = None

    def _on_compared(self, asked: MissingRange | None, whole: MissingRange, done: MissingRange) -> None:
        self._walk = None
        self._retry.on_window_done()
        self.account.give(done)
        # What is owed is compared first, and may lie in the midst of it: then what is newer is still to be compared.
        if asked is not None and whole == asked and asked.lower < done.lower:
            self._to_compare = MissingRange(asked.lower, done.lower - 1)
        self._on_change()

    def _next_walk(self) -> Walk | None:
        takes_aside = self._aside_at <= asyncio.get_running_loop().time()
        window = self.account.window(self._patience.span_s, takes_aside=takes_aside)
        if window is None:
            self._walk = None
        elif self._walk is None:
            self._walk = Walk(window)
        return self._walk

    async def _ask_window(self, client: MailClient, walk: Walk) -> None:
        """Ask for all pages of a window. Each is stored while the next one is on its way."""
        window = self.account.window()
        assert window is not None
        page = await self._asking.page(client, walk, window.cursor, self._taking.judge)
        while page.cursor is not None:
            taking = asyncio.create_task(self._take(client, walk, page))
            try:
                following = await self._asking.page(client, walk, page.cursor, self._taking.judge)
            finally:
                await taking  # a page that has come is stored, even if the connection is lost
            page = following
        await self._take(client, walk, page)
        self._walk = None
        self._retry.on_window_done()
        self._patience.on_window_done(walk.longest_s)
        self.account.finish()
        self._on_change()

    async def _take(self, client: MailClient, walk: Walk, page: AnswerPage) -> None:
        """Store the envelopes of a page that are right and missing here. Only then does the account move on.

        Raises:
            SourceLies: there have been too many wrong envelopes, or the pages lead nowhere.
            StoreError: the envelopes are not on disk, or not all of them.
        """
        judged = await self._taking.take(
            page.envelopes, page.judge, walk.asked, announced_pow=client.settings.pow_requirement
        )
        if page.cursor is not None:
            walk.note(judged.places, page.cursor)
            self.account.advance(page.cursor)
            self._on_change()
        walk.refusals = walk.cuts = 0
        self._retry.on_page()
        self._patience.on_page()
        if not self.is_dismissed:  # while this was stored, it may have been
            self._problem = ""

    # After something went wrong: each returns for how many seconds to stay away.

    def _shrink_pages(self) -> float:
        assert self._walk is not None
        try:
            self._walk.shrink()
        except SourceLies as error:
            return self._set_aside(error.lie)
        self._state = SourceState.WAITING
        return backoff_s(0)

    def _on_silence(self, error: Unanswered) -> float:
        window = self.account.window()
        assert self._walk is not None
        assert window is not None
        self._walk.cuts += error.is_cut
        if error.is_cut and self._walk.cuts < MAX_CUTS:
            return self._fail(str(error))
        is_final = not self._asking.has_answered
        if self._patience.on_silence(window.seconds, has_answered=not is_final, is_aside=self.account.is_from_aside):
            self._set_window_aside(str(error))
        else:
            self.account.shorten(self._walk.lowest)
        self._walk = None
        self._on_change()
        pause_s = self._fail(str(error), is_final=is_final and not error.is_cut)
        self._put_off_aside(pause_s if self._settings.give_up_after else max(pause_s, ASIDE_S))
        return pause_s

    def _on_refusal(self, error: RequestFailed) -> float:
        again_s = come_back_s(error)
        if again_s is not None:
            return self._send_away(str(error), again_s)
        window = self.account.window()
        assert self._walk is not None
        assert window is not None
        self._walk.refusals += 1
        # Neither a cursor nor the rate of our requests explains it. The next window shows whether all are refused.
        is_final = window.cursor is None and not is_for_the_rate(error)
        if is_final or self._walk.refusals >= MAX_REFUSALS:
            self._set_window_aside(str(error))
        hint = "; give more by --request-pow" if isinstance(error, RequestPowTooLow) else ""
        pause_s = self._fail(f"{error}{hint}", is_final=is_final)
        self._put_off_aside(pause_s)
        return pause_s

    def _set_window_aside(self, cause: str) -> None:
        """Ask for the current window last."""
        window = self.account.window()
        assert window is not None
        log.info(
            "catch-up puts a part off source=%s from=%d to=%d cause=%r",
            self,
            window.lower,
            window.upper,
            cause[:MAX_PROBLEM_CHARS],
        )
        self._walk = None
        self._retry.on_window_postponed()
        self.account.set_aside()
        self._on_change()

    def _put_off_aside(self, pause_s: float) -> None:
        self._aside_at = asyncio.get_running_loop().time() + pause_s

    def _send_away(self, problem: str, retry_after_s: float) -> float:
        self._is_sent_away = True
        # Not all clients that were sent away should come back in the same second.
        return self._wait_for(problem, SourceState.WAITING, min(retry_after_s, MAX_COME_BACK_S) + backoff_s(0))

    def _set_aside(self, lie: Lie) -> float:
        log.warning("catch-up leaves a source alone source=%s reason=%r wrong=%s", self, lie.value, self._wrong_text())
        self._begin_again()  # wherever its cursors have led us
        self._taking.forgive()
        self._to_compare = None
        self._problem = lie.value
        self._state = SourceState.GIVEN_UP if self._settings.give_up_after else SourceState.SET_ASIDE
        return SET_ASIDE_S + backoff_s(0)

    def _fail(self, problem: str, *, is_final: bool = False) -> float:
        self._retry.on_failure(problem, is_final=is_final)
        state = SourceState.GIVEN_UP if self._retry.is_over else SourceState.WAITING
        return self._wait_for(problem, state, backoff_s(self._retry.failures))

    def _wait_for(self, problem: str, state: SourceState, pause_s: float) -> float:
        self._problem = problem[:MAX_PROBLEM_CHARS]
        self._state = state
        log.info("catch-up waits source=%s cause=%r seconds=%.1f", self, self._problem, pause_s)
        return pause_s

    def _begin_again(self) -> None:
        """Ask for the current window from its beginning."""
        self._walk = None
        if self.account.window() is not None:
            self.account.advance(None)
            self._on_change()

    def _wrong_text(self) -> str:
        return ", ".join(f"{count} {wrong.value}" for wrong, count in self._taking.wrong.items()) or "0"
