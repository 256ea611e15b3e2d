"""mailserver.api.caller: notifications, one after the other, and subscriptions that end."""

import asyncio
import json
import logging

import pytest

from mailserver.api.caller import NOTIFIED_TOGETHER_CHARS, Caller
from mailserver.api.errors import ErrorCode, RpcError
from mailserver.api.params import Json
from mailserver.errors import ConnectionLost
from tests.waiting import turns, until


class Connection:
    """A connection that takes what is sent while it is `open`."""

    def __init__(self) -> None:
        self.sent: list[str] = []
        self.open = asyncio.Event()
        self.open.set()

    async def send(self, text: str) -> None:
        self.sent.append(text)
        await self.open.wait()


async def test_caller_without_a_connection_is_not_notified() -> None:
    with pytest.raises(RpcError) as refused:
        await Caller().notify("news", dict)

    assert refused.value.code is ErrorCode.NO_NOTIFICATIONS


async def test_notification_is_one_text() -> None:
    connection = Connection()

    await Caller(connection.send).notify("news", lambda: {"number": 1})

    assert [json.loads(text) for text in connection.sent] == [
        {"jsonrpc": "2.0", "method": "news", "params": {"number": 1}}
    ]


async def test_notifications_are_made_one_at_a_time_as_they_are_read() -> None:
    connection, made = Connection(), 0
    caller = Caller(connection.send)
    connection.open.clear()

    def params() -> Json:
        nonlocal made
        made += 1
        return made

    waiting = [asyncio.create_task(caller.notify("news", params)) for _ in range(10)]
    await turns()
    assert made == len(connection.sent) == 1

    connection.open.set()
    await asyncio.gather(*waiting)

    assert [json.loads(text)["params"] for text in connection.sent] == list(range(1, 11))


async def test_others_have_their_turn_between_long_notifications_to_who_reads_fast() -> None:
    connection = Connection()
    caller = Caller(connection.send)

    async def notify() -> None:
        for _ in range(100):
            await caller.notify("news", lambda: "x" * NOTIFIED_TOGETHER_CHARS)

    notifying = asyncio.create_task(notify())
    await turns()

    assert 0 < len(connection.sent) < 100
    await notifying


async def test_cancelled_notification_keeps_nobody_waiting() -> None:
    connection = Connection()
    caller = Caller(connection.send)
    connection.open.clear()
    first, second = (asyncio.create_task(caller.notify("news", dict)) for _ in range(2))
    await turns()

    first.cancel()
    await until(lambda: len(connection.sent) == 2)

    connection.open.set()
    await second


@pytest.mark.parametrize("error", [None, ConnectionLost(None, "gone"), ZeroDivisionError()])
async def test_subscription_that_ends_by_itself_is_forgotten_and_only_our_faults_are_logged(
    error: Exception | None, caplog: pytest.LogCaptureFixture
) -> None:
    caller, ended = Caller(Connection().send), 0

    async def run() -> None:
        if error is not None:
            raise error

    def at_end() -> None:
        nonlocal ended
        ended += 1

    caller.follow("0123456789", run(), at_end)
    await until(lambda: ended == 1)

    assert not caller.cancel("0123456789")
    logged = [(record.levelno, record.getMessage()) for record in caplog.records]
    assert logged == (
        [(logging.ERROR, "internal error subscription=01234567")] if type(error) is ZeroDivisionError else []
    )
