"""A daemon on a bad disk, and the honest client that says what it was told: what is confirmed, and what is served."""

import asyncio
import contextlib
import random
import sys
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import AsyncIterator, Sequence

from mailserver.client.mail_client import MailClient, connect
from mailserver.codec.keccak import keccak256
from mailserver.codec.keys import Enode
from mailserver.errors import MailserverError
from mailserver.mail.request import MailRequest, RequestId
from mailserver.waku.bloom import FULL_INTEREST
from mailserver.waku.envelope import Envelope, encode_envelope
from tests.integration.daemons import Daemon
from tests.mailservers import NEWS, PASSWORD_KEY

WATCHFUL = (sys.executable, "-m", "tests.faults.watchful")

CONFIRMED_WITHIN_S = 10.0
"""How long a confirmation may take on a busy machine."""

REFUSED_WITHIN_S = 0.4
"""How long is waited for a confirmation that should not come."""


class Client:
    """One client of one daemon after the other; `confirmed` is what any of them confirmed, by hash."""

    def __init__(self, seed: int) -> None:
        self.confirmed: dict[bytes, bytes] = {}
        self.sent: dict[bytes, bytes] = {}
        self._random = random.Random(seed)

    def envelopes(self, count: int, data_bytes: int = 600, *, age_s: int = 0) -> list[Envelope]:
        """So many envelopes, created so many seconds ago."""
        expiry, draw = int(time.time()) - age_s + 50, self._random
        return [
            encode_envelope(expiry, 50, NEWS, draw.randbytes(data_bytes), draw.getrandbits(60)) for _ in range(count)
        ]

    async def post(self, mail: MailClient, envelopes: Sequence[Envelope], within_s: float = CONFIRMED_WITHIN_S) -> bool:
        """Post a packet; say whether it was confirmed within some time."""
        self.sent.update((envelope.hash(), envelope.raw) for envelope in envelopes)
        try:
            async with asyncio.timeout(within_s):
                response = await mail.post(envelopes)
        except (TimeoutError, MailserverError):
            return False
        refused = {error.hash for error in response.errors}
        assert not refused, response.errors
        self.confirmed.update((envelope.hash(), envelope.raw) for envelope in envelopes)
        return True

    def faults_of(self, served: Counter[bytes]) -> list[str]:
        """What is wrong with all that a daemon serves: lost, changed, or twice."""
        hashes = Counter(keccak256(raw) for raw in served.elements())
        lost = sum(1 for envelope_hash in self.confirmed if envelope_hash not in hashes)
        strange = sum(1 for envelope_hash in hashes if envelope_hash not in self.sent)
        twice = sum(1 for count in hashes.values() if count > 1)
        faults = {"confirmed, and not served": lost, "served, and never sent": strange, "served twice": twice}
        return [f"{count} envelopes {what}" for what, count in faults.items() if count]


@contextlib.asynccontextmanager
async def connected(daemon: Daemon) -> AsyncIterator[MailClient]:
    """A connection to a daemon. Where it listens, its log says: on a full disk the file of that is an old one."""
    line = daemon.wait_for_line("listening enode=")
    enode = Enode.parse(line.partition("enode=")[2].split()[0])
    async with connect(enode, "faults") as mail:
        yield mail


async def serves(mail: MailClient, limit: int = 1000) -> Counter[bytes]:
    """All that a daemon serves, by `raw`."""
    found: Counter[bytes] = Counter()
    request = MailRequest(RequestId(bytes(32)), 0, 2**32 - 1, FULL_INTEREST, limit=limit)
    await mail.request_all(request, PASSWORD_KEY, lambda envelopes: found.update(e.raw for e in envelopes))
    return found


def ready(port: int) -> tuple[int, str]:
    """What `/ready` says: its code and its text."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/ready", timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def metrics_port(daemon: Daemon) -> int:
    """Where a daemon that was started with `--metrics 127.0.0.1:0` serves them."""
    return int(daemon.wait_for_line("serving metrics").rpartition("port=")[2])


async def until_ready(port: int, code: int, within_s: float = 45.0) -> str:
    """Wait until `/ready` answers with a code; return its text."""
    async with asyncio.timeout(within_s):
        while True:
            found, text = await asyncio.to_thread(ready, port)
            if found == code:
                return text
            await asyncio.sleep(0.05)
