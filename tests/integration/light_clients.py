"""Clients of the gateway: js-waku, in a process of Node.js 22 (`tests/gateway/js/light_client.mjs`), and Waku v1."""

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

from mailserver.client.mail_client import MailClient, connect
from mailserver.client.sealing import seal_envelope
from mailserver.codec.keys import Enode
from mailserver.ids.envelopes import NS, content_topic_of, message_of
from mailserver.ids.muid import DEFAULT_NETWORK_TOPIC
from mailserver.ids.waku_message import WakuMessage
from mailserver.mail.request import UNSEALED_ID, MailRequest
from mailserver.waku.bloom import Interest
from mailserver.waku.envelope import Envelope, Topic
from mailserver.waku.payload import key_from_password
from tests.integration.daemons import DEADLINE_S
from tests.mailservers import PASSWORD_KEY
from tests.node_js import require_packages
from tests.waiting import until

JS = Path(__file__).parents[1] / "gateway" / "js"

MAX_LINE_BYTES = 4 * 1024 * 1024
CHAT_KEY = key_from_password("garden")

Shown = dict[str, Any]
"""A message as js-waku has it: pubsubTopic, topic, payload and meta in hex, version, timestamp in ns, hash in hex."""


class LightClient:
    """A node of js-waku. Made by `light_client`; `pushed` is what it was pushed so far."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._answers: dict[int, asyncio.Future[Any]] = {}
        self.pushed: list[Shown] = []
        self.told: list[str] = []
        """What else it has told unasked: ready; connecting, connected and lost while it follows a topic."""

    async def ask(self, do: str, **given: object) -> Any:
        """Have it do something; return what comes of it."""
        number = len(self._answers)
        answer = self._answers[number] = asyncio.get_running_loop().create_future()
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"id": number, "do": do, **given}).encode() + b"\n")
        return await asyncio.wait_for(answer, DEADLINE_S)

    async def dial(self, address: str) -> list[str]:
        """Connect; return the muxer of each connection."""
        muxers: list[str] = await self.ask("dial", address=address)
        return muxers

    async def subscribe(self, *topics: Topic) -> None:
        """Ask for the pushes of topics."""
        assert await self.ask("subscribe", topics=list(map(content_topic_of, topics))) is True

    async def unsubscribe(self, *topics: Topic) -> None:
        """Ask for no more of them."""
        assert await self.ask("unsubscribe", topics=list(map(content_topic_of, topics))) is True

    async def query(self, topic: Topic, **options: object) -> list[list[Shown]]:
        """The pages of a topic's history."""
        pages: list[list[Shown]] = await self.ask("query", topics=[content_topic_of(topic)], **options)
        return pages

    async def history(self, topic: Topic) -> list[str]:
        """The hashes of a topic's whole history, in order."""
        return [message["hash"] for page in await self.query(topic) for message in page]

    async def wait_until_disconnected(self) -> None:
        """Wait until it has noticed that its gateway is gone: until then, a dial takes the old connection."""
        async with asyncio.timeout(DEADLINE_S):
            while await self.is_connected():
                pass

    async def send(self, topic: Topic, payload: bytes, **options: object) -> None:
        """Send a message, which must be taken."""
        options |= {"topic": content_topic_of(topic), "payload": payload.hex()}
        answer = await self.ask("send", **options)
        assert answer == {"successes": 1, "failures": []}, answer

    async def follow(self, address: str, topic: Topic) -> None:
        """Have it follow a topic as docs/examples/follow.mjs does, from the last hour on: `pushed` has that, too."""
        since = (int(time.time()) - 3600) * 1000
        await self.ask("follow", address=address, topic=content_topic_of(topic), since=since)

    async def is_connected(self) -> bool:
        """Whether it has a connection."""
        return bool(await self.ask("isConnected"))

    async def wait_for_pushes(self, count: int) -> list[str]:
        """Wait until so many messages were pushed; return the hashes of all."""
        await until(lambda: len(self.pushed) >= count, DEADLINE_S)
        return [message["hash"] for message in self.pushed]

    async def wait_until_told(self, event: str, count: int = 1) -> None:
        """Wait until it has told something so many times."""
        await until(lambda: self.told.count(event) >= count, DEADLINE_S)

    async def read(self) -> None:
        """Read what it says until it ends."""
        assert self._process.stdout is not None
        while line := await self._process.stdout.readline():
            said = json.loads(line)
            if said.get("event") == "message":
                self.pushed.append(said)
            elif "event" in said:
                self.told.append(said["event"])
            elif "error" in said:
                self._answers[said["id"]].set_exception(AssertionError(said["error"]))
            else:
                self._answers[said["id"]].set_result(said["result"])
        for answer in self._answers.values():
            if not answer.done():
                answer.set_exception(AssertionError("js-waku has ended"))


@contextlib.asynccontextmanager
async def light_client(*flags: str) -> AsyncIterator[LightClient]:
    """Run a node of js-waku; skip the test where that is not installed.

    Args:
        flags: `--tcp` has it dial over TCP, with yamux, instead of over WebSocket, with mplex; `--keep-alive-ms NUMBER`
            is the pause between the pings of its subscriptions.
    """
    require_packages(JS)
    process = await asyncio.create_subprocess_exec(
        JS / "node_modules" / ".bin" / "node",
        JS / "light_client.mjs",
        *flags,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        limit=MAX_LINE_BYTES,
    )
    client = LightClient(process)
    reading = asyncio.create_task(client.read())
    try:
        await client.wait_until_told("ready")
        yield client
        await client.ask("stop")
    finally:
        with contextlib.suppress(ProcessLookupError):  # it has ended
            process.kill()
        await process.wait()
        await reading


async def sealed(topic: Topic, text: str, *, ttl: int = 60, created: int | None = None) -> Envelope:
    """A new envelope, sealed with CHAT_KEY."""
    now = int(time.time()) if created is None else created
    return await seal_envelope(text.encode(), CHAT_KEY, topic, ttl=ttl, min_pow=0.000002, now=now)


async def post(enode: Enode, *envelopes: Envelope) -> list[str]:
    """Post as a client of Waku v1 does; return the hashes of the messages in Waku v2."""
    async with connect(enode, "test/1") as client:
        response = await client.post(envelopes)
    assert response.errors == ()
    return [hash_of(envelope) for envelope in envelopes]


async def envelopes_of(client: MailClient, topic: Topic) -> list[Envelope]:
    """The history of the last hour of a topic, oldest first, as a client of Waku v1 gets it."""
    found: list[Envelope] = []
    interest = Interest(topics=frozenset({topic}))
    request = MailRequest(UNSEALED_ID, lower=int(time.time()) - 3600, upper=0, interest=interest)
    await client.request_all(request, PASSWORD_KEY, found.extend)
    return found[::-1]


def hash_of(envelope: Envelope) -> str:
    """The hash of an envelope's message."""
    return message_of(envelope).hash(DEFAULT_NETWORK_TOPIC).hex()


def sent_hash(topic: Topic, payload: bytes, timestamp_ms: int) -> str:
    """The hash of a message that js-waku sends."""
    message = WakuMessage(payload, content_topic_of(topic), timestamp=timestamp_ms * NS // 1000)
    return message.hash(DEFAULT_NETWORK_TOPIC).hex()


def hashes_of(shown: Sequence[Shown]) -> list[str]:
    """The hashes of messages as js-waku has computed them."""
    return [message["hash"] for message in shown]
