"""How a member asks one mailserver, against mailservers that answer as each test says."""

import asyncio
from collections.abc import AsyncIterator, Collection, Sequence
from pathlib import Path

import pytest

from mailserver.catchup.page_rules import SourceLies
from mailserver.catchup.ranges import LATE_S
from mailserver.catchup.request_pow import RequestTooDear
from mailserver.codec.keys import Enode
from mailserver.community.member.history import MemberHistory, open_history
from mailserver.community.member.mailserver import HISTORY_S, Mailserver
from mailserver.community.member.schema import HISTORY_FILE
from mailserver.errors import ConnectionLost
from mailserver.mail.request import Cursor
from mailserver.waku.envelope import Envelope, Topic
from tests.catchup.servers import DAY, PASSWORD_KEY, STATUS, Archive, Asked, make_envelopes, place, serving
from tests.mailservers import NEWS, NOW, SPORT, make_large_envelopes
from tests.raw_peer import Hangup
from tests.waiting import until

pytestmark = pytest.mark.integration

MONTH = make_envelopes(90, step_s=DAY // 3)


@pytest.fixture
async def history(tmp_path: Path) -> AsyncIterator[MemberHistory]:
    async with open_history(tmp_path / HISTORY_FILE) as opened:
        yield opened


class Asking:
    """A mailserver that is asked, and what it has given. `now`: the present."""

    def __init__(self, history: MemberHistory, enode: Enode, topics: Collection[Topic] = (NEWS,)) -> None:
        self.taken: list[Envelope] = []
        self.now = NOW
        self.mailserver = Mailserver(
            enode, frozenset(topics), PASSWORD_KEY, "test/1", history, self._take, lambda: self.now
        )

    async def _take(self, envelopes: Sequence[Envelope]) -> None:
        self.taken += envelopes


@pytest.mark.parametrize("like_go", [False, True], ids=["ours", "go"])
async def test_last_thirty_days_are_asked_for_the_newest_first(history: MemberHistory, *, like_go: bool) -> None:
    long_ago = make_envelopes(1, first=31, step_s=DAY)
    async with serving(Archive([*MONTH, *long_ago], like_go=like_go, max_limit=2)) as server:
        asking = Asking(history, server.enode)
        await asking.mailserver.ask_once()

    assert asking.taken == MONTH
    assert min(request.lower for request in server.requests) == NOW - HISTORY_S
    assert all(request.interest.topics == {NEWS} for request in server.requests)


async def test_what_was_asked_for_is_not_asked_for_again(history: MemberHistory) -> None:
    async with serving(Archive(MONTH)) as server:
        await Asking(history, server.enode).mailserver.ask_once()
        before = len(server.requests)
        later = Asking(history, server.enode)
        later.now += 100
        await later.mailserver.ask_once()

        assert {request.lower for request in server.requests[before:]} == {NOW - LATE_S}

        before = len(server.requests)
        await Asking(history, server.enode, (NEWS, SPORT)).mailserver.ask_once()  # a topic that is new

        assert min(request.lower for request in server.requests[before:]) == NOW - HISTORY_S


async def test_asking_goes_on_where_the_connection_ended(history: MemberHistory) -> None:
    archive = Archive(MONTH)

    async def answer(asked: Asked) -> None:
        if asked.number == 10:  # in the middle of a page
            asked.give([each for each in MONTH if asked.request.lower <= each.created <= asked.request.upper])
            raise Hangup(None)
        await archive(asked)

    async with serving(answer) as server:
        asking = Asking(history, server.enode)
        with pytest.raises(ConnectionLost):
            await asking.mailserver.ask_once()
        await asking.mailserver.ask_once()

    assert len(server.requests) <= 33  # 31 windows, the one that was cut off, and the last minutes again
    assert {*asking.taken} == {*MONTH}


async def test_follower_connects_again_and_says_why_it_had_to(history: MemberHistory) -> None:
    archive = Archive(MONTH)

    async def answer(asked: Asked) -> None:
        if asked.visit == 1:
            raise Hangup(None)
        await archive(asked)

    async with serving(answer) as server:
        asking = Asking(history, server.enode)
        following = asyncio.create_task(asking.mailserver.follow())
        await until(lambda: asking.mailserver.problem not in ("not asked yet", ""))
        await asyncio.wait_for(asking.mailserver.answered.wait(), 15)
        following.cancel()
        await asyncio.wait([following])

    assert asking.mailserver.problem == ""
    assert asking.taken == MONTH


async def test_page_that_is_too_long_is_asked_for_again_in_smaller_parts(history: MemberHistory) -> None:
    long = make_large_envelopes(100, 100_000)  # 10 MB: more than a page may have

    async with serving(Archive(long)) as server:
        asking = Asking(history, server.enode)
        await asking.mailserver.ask_once()

    assert asking.taken == long
    assert {request.limit for request in server.requests} == {1000, 125, 15}
    assert server.visits == 3


async def test_pages_that_lead_nowhere_end_it(history: MemberHistory) -> None:
    async def answer(asked: Asked) -> None:
        asked.give(MONTH[:1])
        asked.complete(Cursor(*place(MONTH[0])))

    async with serving(answer) as server:
        with pytest.raises(SourceLies, match="lead nowhere"):
            await Asking(history, server.enode).mailserver.ask_once()


async def test_mailserver_that_wants_too_much_work_is_not_asked(history: MemberHistory) -> None:
    status = STATUS.__class__(pow_requirement=50.0, bloom=STATUS.bloom, light_node=False, confirmations=True)

    async with serving(Archive(MONTH), status=status) as server:
        with pytest.raises(RequestTooDear):
            await Asking(history, server.enode).mailserver.ask_once()

    assert server.requests == []


async def test_what_was_not_asked_for_is_left_out(history: MemberHistory) -> None:
    async def answer(asked: Asked) -> None:
        asked.give([*make_envelopes(1, topic=SPORT), *make_envelopes(1, first=40, step_s=DAY)])
        asked.complete()

    async with serving(answer) as server:
        asking = Asking(history, server.enode)
        await asking.mailserver.ask_once()

    assert asking.taken == []
