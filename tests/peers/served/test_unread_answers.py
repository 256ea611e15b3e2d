"""mailserver.history.id_answers: what an answer keeps in memory while its client does not read."""

import asyncio
import tracemalloc

import pytest

from mailserver.codec.keys import NodeId
from mailserver.history.id_conversation import IdConversation
from mailserver.history.id_lists import READ_AHEAD
from mailserver.ids.muid import DEFAULT_NETWORK_TOPIC
from mailserver.limits.request_quotas import Requester
from mailserver.net.sessions import Code
from mailserver.store.interface import Query
from mailserver.wakuid.packets import What
from mailserver.wakuid.questions import Open
from mailserver.wakuid.questions import Query as IdQuery
from tests.history.answered import Client
from tests.mailservers import Mailserver, fill, make_envelopes
from tests.store.samples import EVER, FULL
from tests.waiting import until

STALLED = 20
MOST_BYTES = 64 * 1024
"""Of one answer: what it needs to go on, and no packet of 64 KiB, nor what that was made of."""

MOST_BYTES_AHEAD = READ_AHEAD * 1024 * 1024
"""Of the few answers that read ahead."""


class Unread(Client):
    """One that reads two packets, which it does not keep, and then no more."""

    async def wait_turn(self, size: int) -> None:
        if len(self.turns) == 2:
            await asyncio.get_running_loop().create_future()
        await super().wait_turn(size)

    def send(self, code: Code, payload: bytes) -> None:
        super().send(code, b"")


@pytest.mark.slow
@pytest.mark.parametrize("what", What)
@pytest.mark.parametrize(("count", "data_bytes"), [(4000, 300), (20, 500_000)])
async def test_answer_that_waits_to_be_read_keeps_no_packet(
    mailserver: Mailserver, count: int, data_bytes: int, what: What
) -> None:
    await fill(mailserver.store, make_envelopes(count, data_bytes=data_bytes))
    services = mailserver.services
    question = IdQuery(1, DEFAULT_NETWORK_TOPIC, *EVER, what)

    async def stall(number: int, client: Client) -> None:
        requester: Requester = services.requests.requester(f"192.0.2.{number}", NodeId(bytes(64)))
        conversation = IdConversation(services.ids)
        for asked in (Open(0), question):
            await conversation.answer(asked.code, asked.encode(), client, requester)

    async def all_stall(count: int) -> list[asyncio.Task[None]]:
        clients = [Unread() for _ in range(count)]
        tasks = [asyncio.create_task(stall(number, client)) for number, client in enumerate(clients)]
        await until(lambda: all(len(client.sent) == 2 for client in clients))
        # The store's threads keep what they have returned last: let that be little.
        await asyncio.gather(*(mailserver.store.find(Query(0, 0, FULL), 1) for _ in range(20)))
        return tasks

    tasks = await all_stall(1)  # what is kept by the store, and loaded, is there then
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        tasks += await all_stall(STALLED)
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)

    ahead = MOST_BYTES_AHEAD if what is What.IDS else 0
    assert after - before < STALLED * MOST_BYTES + ahead
