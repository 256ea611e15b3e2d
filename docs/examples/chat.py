"""A public chat, from Python.

python docs/examples/chat.py ENODE CHAT         shows the last hour of it, and then what is new
python docs/examples/chat.py ENODE CHAT TEXT    posts a text
"""

import asyncio
import sys
import time
from collections.abc import Sequence

from mailserver.client.mail_client import MailClient, connect
from mailserver.client.sealing import open_envelope, seal_envelope
from mailserver.codec.keys import Enode
from mailserver.errors import DecodeError, MailserverError
from mailserver.mail.answer import AnswerCheck
from mailserver.mail.request import UNSEALED_ID, MailRequest
from mailserver.waku.bloom import Interest
from mailserver.waku.envelope import Envelope, EnvelopeHash
from mailserver.waku.payload import key_from_password
from mailserver.waku.topics import topic_of

MAILSERVER_PASSWORD = "status-offline-inbox"  # all clients know it


async def main(node: str, chat: str, text: str | None = None) -> None:
    async with connect(Enode.parse(node), "chat-example/1") as client:
        if text is None:
            await follow(client, chat)
        else:
            await post(client, chat, text)


async def post(client: MailClient, chat: str, text: str) -> None:
    envelope = await seal_envelope(
        text.encode(),
        key_from_password(chat),  # a public chat is sealed with its name
        topic_of(chat),
        ttl=60,
        min_pow=client.settings.pow_requirement,
        now=int(time.time()),
    )
    response = await client.post([envelope])
    print([error.description for error in response.errors] or "confirmed")


async def follow(client: MailClient, chat: str) -> None:
    key, interest = key_from_password(chat), Interest(topics=frozenset({topic_of(chat)}))
    seen: set[EnvelopeHash] = set()

    def show(envelopes: Sequence[Envelope]) -> None:
        for envelope in envelopes:
            if envelope.hash() in seen:
                continue
            seen.add(envelope.hash())
            try:
                opened = open_envelope(envelope, key)
            except DecodeError:  # sealed with another key: anybody may send to this topic
                continue
            print(envelope.created, opened.payload, flush=True)

    with client.subscribe(interest) as live:  # before history is asked for: nothing is missed between the two
        request = MailRequest(UNSEALED_ID, lower=int(time.time()) - 3600, upper=0, interest=interest)
        check = AnswerCheck()
        await client.request_all(request, key_from_password(MAILSERVER_PASSWORD), show, check=check)
        print(f"that was the last hour; not as asked for: {str(check) or 'nothing'}", flush=True)
        async for envelope in live:
            show([envelope])


if __name__ == "__main__":
    if len(sys.argv) not in (3, 4):
        sys.exit(__doc__)
    try:
        asyncio.run(main(*sys.argv[1:]))
    except MailserverError as error:
        sys.exit(str(error))
    except KeyboardInterrupt:
        pass
