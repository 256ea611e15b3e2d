"""Sends what was found to whoever asked for it, packet by packet."""

import asyncio
from collections.abc import Callable
from typing import NamedTuple, Protocol

from mailserver.limits.request_quotas import Bill
from mailserver.mail.packing import max_body_bytes
from mailserver.net.sessions import Code
from mailserver.store.interface import Raws
from mailserver.waku.envelope import packet_bytes

MAX_ROWS = 256
"""Most envelopes that are looked at for one packet. As sealed envelopes have at least 256 bytes, this many fill it.
Without it, a page of tiny envelopes with long ones among them would be looked at to its end for each packet."""

LIKELY_BYTES = 512
"""How long an envelope is assumed to be before the first of an answer was read."""


class Client(Protocol):
    """Where an answer is sent to."""

    async def wait_turn(self, size: int) -> None:
        """Wait until a packet of about `size` bytes may be sent: until the client has read enough of those before.

        Raises:
            ConnectionLost: the client is gone.
            RequestRejected: it is long, and too much of others waits to be read.
        """

    def send(self, code: Code, payload: bytes) -> None:
        """Send a packet, after `wait_turn`.

        Raises:
            ConnectionLost: the client is gone.
            RequestRejected: as of `wait_turn`, if it is much longer than was said there.
        """


class Readable(Protocol):
    """Envelopes that were found, and read themselves: see `store.interface.Page`."""

    @property
    def left(self) -> int:
        """How many are still to be read."""

    async def read(self, count: int, max_bytes: int) -> Raws:
        """Read the next ones."""


class Sent(NamedTuple):
    """A packet that was sent: its envelopes, the bytes of its payload, and how many came from the archive."""

    envelopes: int
    bytes: int
    archived: int


class EnvelopePackets:
    """Sends envelopes that were found in packets of one kind."""

    def __init__(
        self,
        client: Client,
        code: Code,
        encode: Callable[[bytes], bytes],
        max_packet_bytes: int,
        bill: Bill,
        on_sent: Callable[[Sent], None],
    ) -> None:
        """Send to a client.

        Args:
            encode: makes the payload of a packet from envelopes that are joined.
            max_packet_bytes: the longest packet with more than one envelope.
            bill: on which each envelope is put that was looked at.
            on_sent: called for each packet.
        """
        self._client = client
        self._code = code
        self._encode = encode
        self._max_packet_bytes = max_packet_bytes
        self._bill = bill
        self._on_sent = on_sent

    async def send_all(self, found: Readable, *, one_by_one: bool = False) -> None:
        """Send all that was found; deleted envelopes are left out.

        Raises:
            ConnectionLost, RequestRejected: as `Client` raises them.
            StoreError: the store cannot be read.
        """
        max_bytes = max_body_bytes(self._max_packet_bytes)
        mean = LIKELY_BYTES
        while found.left:
            # As many as will fit if they are as long as those of the packet before.
            count = 1 if one_by_one else min(max_bytes // mean + 1, MAX_ROWS, found.left)
            # Wait first, then read envelopes and send them at once: so a client that stalls costs no memory.
            likely = packet_bytes(count * mean)  # behind a long envelope, there may be another
            await self._client.wait_turn(likely if count == 1 else min(likely, self._max_packet_bytes))
            raws = await found.read(count, max_bytes)
            self._bill.charge_envelopes(len(raws.sizes), asyncio.get_running_loop().time())
            if raws.body:
                payload = self._encode(raws.body)
                self._client.send(self._code, payload)
                count = len(raws.sizes) - raws.sizes.count(0)
                mean = len(raws.body) // count
                self._on_sent(Sent(count, len(payload), raws.archived))
                del payload
            del raws


async def send_in_turn(client: Client, code: Code, payload: bytes) -> None:
    """Wait until a packet may be sent, and send it.

    Raises:
        ConnectionLost: the client is gone.
    """
    await client.wait_turn(len(payload))
    client.send(code, payload)
