"""Asks a source for one page, at the pace that it allows, and within the memory and the time that a page may take."""

import asyncio
import contextlib
import logging
import re
from collections.abc import Callable

from mailserver.catchup.pace import RequestPace
from mailserver.catchup.page_rules import PAGE_TIMEOUT_S, AnswerPage, Judge, PageBuffer, PageTooLong, Walk
from mailserver.catchup.request_pow import request_pow
from mailserver.client.mail_client import MailClient, NoAnswer, RequestFailed
from mailserver.errors import ConnectionLost, MailserverError
from mailserver.mail.completion import Completion
from mailserver.mail.request import Cursor

log = logging.getLogger(__name__)

_COME_BACK = re.compile(r"come back in (\d{1,9}) s\b")
_RATE_LIMIT = "rate limit exceeded"  # the words of the deployed server, which names no time


class Unanswered(MailserverError):
    """A page was asked for, and did not come. `is_cut`: the connection ended first."""

    def __init__(self, cause: str, *, is_cut: bool) -> None:
        super().__init__(cause)
        self.is_cut = is_cut


class Asking:
    """Asks one source, over any number of connections.

    `has_answered`: whether anything but silence has ever come.
    """

    def __init__(self, password_key: bytes, least_pow: float, source: object) -> None:
        """Begin at any pace.

        Args:
            password_key: seals the requests.
            least_pow: the least proof of work of a request.
            source: `str()` is its name in the log.
        """
        self._password_key = password_key
        self._least_pow = least_pow
        self._source = source
        self._pace = RequestPace()
        self.has_answered = False

    async def page(
        self, client: MailClient, walk: Walk, cursor: Cursor | None, judge: Callable[[], Judge]
    ) -> AnswerPage:
        """Ask for the page of a window behind a cursor.

        Args:
            judge: the rules that are in force at the moment.
        Raises:
            PageTooLong: it is too long, or takes too long.
            Unanswered: nothing came, or no more of it.
            RequestFailed: the source refuses, and not only for the pace.
            RequestTooDear, TooMuchWork: as `request_pow` and `MailClient.request`.
        """
        while True:
            await self._pace.keep()
            try:
                return await self._page(client, walk, cursor, judge())
            except RequestFailed as error:
                self.has_answered = True
                if not is_for_the_rate(error) or not self._pace.on_refusal():
                    raise
                log.debug("catch-up asks more slowly source=%s", self._source)
            except NoAnswer as error:
                raise Unanswered(str(error), is_cut=False) from error
            except ConnectionLost as error:
                raise Unanswered(str(error), is_cut=True) from error

    async def _page(self, client: MailClient, walk: Walk, cursor: Cursor | None, judge: Judge) -> AnswerPage:
        now = asyncio.get_running_loop().time
        began = now()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(PAGE_TIMEOUT_S) as deadline:
                buffer = PageBuffer(on_full=lambda: deadline.reschedule(now()))
                completion = await self._request(client, walk, cursor, judge, buffer)
                if not buffer.is_full:  # it may have filled up in the moment in which the page ended
                    self._pace.on_answer()
                    walk.longest_s = max(walk.longest_s, now() - began)
                    return AnswerPage(buffer.envelopes, completion.cursor, judge)
        raise PageTooLong

    async def _request(
        self, client: MailClient, walk: Walk, cursor: Cursor | None, judge: Judge, buffer: PageBuffer
    ) -> Completion:
        min_pow = request_pow(client.settings.pow_requirement, self._least_pow)
        request = walk.request(cursor, judge.asked)
        try:
            completion = await client.request(request, self._password_key, buffer, min_pow=min_pow)
        finally:
            self.has_answered = self.has_answered or not buffer.is_empty
        self.has_answered = True
        return completion


def is_for_the_rate(error: RequestFailed) -> bool:
    """Whether the deployed server refuses a request because it came too soon after the last one."""
    return _RATE_LIMIT in error.failure.message


def come_back_s(error: RequestFailed) -> float | None:
    """In how many seconds a source wants to be asked again; None if it does not say."""
    again = _COME_BACK.search(error.failure.message)
    return None if again is None else float(again[1])
