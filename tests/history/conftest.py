"""Fixtures of the tests in this folder."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from mailserver.history.delivery import Delivery
from mailserver.limits.request_quotas import Requester
from mailserver.mail.request import Cursor
from mailserver.metrics.registry import Metrics
from mailserver.store.sqlite.store import open_store
from tests.history.desk import SETTINGS, Desk, Time
from tests.mailservers import Clock
from tests.waiting import DEADLINE_S


@pytest.fixture
async def desk(tmp_path: Path) -> AsyncIterator[Desk]:
    async with open_store(tmp_path / "mailserver.db") as store:
        yield Desk(store, Delivery(store, SETTINGS, Clock(), metrics=Metrics()))


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> Time:
    """The time that limits go by."""
    time = Time()
    wait, admit, take, remember = Requester.wait, Requester.admit, Requester.take, Requester.remember_cursor

    def check(now: float) -> None:
        assert now == pytest.approx(asyncio.get_running_loop().time(), abs=DEADLINE_S)

    def wait_then(requester: Requester, now: float, *, may_follow: bool) -> float:
        check(now)
        return wait(requester, time.now, may_follow=may_follow)

    def admit_then(requester: Requester, cursor: Cursor | None, now: float) -> float:
        check(now)
        return admit(requester, cursor, time.now)

    def take_then(requester: Requester, envelopes: float, now: float) -> None:
        check(now)
        take(requester, envelopes, time.now)

    def remember_then(requester: Requester, cursor: Cursor, now: float) -> None:
        check(now)
        remember(requester, cursor, time.now)

    for name, then in (
        ("wait", wait_then),
        ("admit", admit_then),
        ("take", take_then),
        ("remember_cursor", remember_then),
    ):
        monkeypatch.setattr(Requester, name, then)
    return time
