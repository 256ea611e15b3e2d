"""Message ids, from Python.

python docs/examples/ids.py ENODE CHAT    lists the ids of the last hour of a public chat, and fetches some
"""

import asyncio
import sys
import time
from collections.abc import Sequence

from mailserver.client.id_client import IdClient
from mailserver.client.mail_client import connect
from mailserver.client.sealing import open_envelope
from mailserver.codec.keys import Enode
from mailserver.errors import MailserverError
from mailserver.ids.envelopes import envelope_muid
from mailserver.ids.muid import Muid
from mailserver.waku.bloom import Interest
from mailserver.waku.envelope import Envelope
from mailserver.waku.payload import key_from_password
from mailserver.waku.topics import topic_of
from mailserver.wakuid.questions import Query

MAILSERVER_PASSWORD = "status-offline-inbox"  # all clients know it
NEWEST = 3


async def main(node: str, chat: str) -> None:
    async with connect(Enode.parse(node), "ids-example/1") as client:
        ids = IdClient(client)
        terms = await ids.open(key_from_password(MAILSERVER_PASSWORD), min_pow=client.settings.pow_requirement)
        names: list[Muid] = []
        now = int(time.time())
        query = Query(0, "", now - 3600, now, interest=Interest(topics=frozenset({topic_of(chat)})))
        await ids.list_ids(query, names.extend)  # newest first
        print(f"{len(names)} ids")

        def show(envelopes: Sequence[Envelope]) -> None:
            for envelope in envelopes:
                name = envelope_muid(terms.network_topic, envelope)
                print(name.hex()[:16], open_envelope(envelope, key_from_password(chat)).payload)

        await ids.fetch(names[:NEWEST], show)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    try:
        asyncio.run(main(*sys.argv[1:]))
    except MailserverError as error:
        sys.exit(str(error))
