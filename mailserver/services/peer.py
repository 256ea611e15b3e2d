"""One connected peer and what it uses: its packets are archived and confirmed, its requests answered in turn.

Everything that a peer can make us hold is bounded here: packets that wait for the disk, requests that wait for
their turn. At a bound, reading from this peer pauses, or the request is refused; other peers notice nothing.
"""

import asyncio
import contextlib
import logging
from collections import deque

from mailserver.errors import ConnectionLost, DisconnectReason, Rejection, StoreError
from mailserver.net.connection import Connection
from mailserver.services.archive import Archive
from mailserver.services.delivery import MAX_REQUEST_BYTES, Delivery
from mailserver.waku.packets import PacketCode, encode_batch_acknowledged
from mailserver.waku.peer import Event, MessagesReceived, P2PRequestReceived, StatusReceived

log = logging.getLogger(__name__)

MAX_UNCONFIRMED_PACKETS = 1024
MAX_UNCONFIRMED_ENVELOPES = 4000
MAX_UNCONFIRMED_BYTES = 4 * 1024 * 1024
"""Packets, envelopes and their bytes of one peer that may wait for the disk: some transactions' worth."""

MAX_WAITING_REQUESTS = 16
"""Requests of one peer that may wait while one is answered; deployed clients send 3 at once."""


class ServedPeer:
    """Serves one connection until it ends."""

    def __init__(self, connection: Connection, archive: Archive, delivery: Delivery) -> None:
        self._connection = connection
        self._archive = archive
        self._delivery = delivery
        self._unconfirmed_packets = 0
        self._unconfirmed_envelopes = 0
        self._unconfirmed_bytes = 0
        self._confirmed = asyncio.Event()
        self._requests: deque[bytes] = deque()
        self._requested = asyncio.Event()
        self._stopping = False
        self._tasks: asyncio.TaskGroup

    async def run(self) -> None:
        """Serve until the connection ends."""
        async with asyncio.TaskGroup() as self._tasks:
            answering = self._tasks.create_task(self._answer_requests())
            try:
                await self._connection.run(self._on_event)
            finally:
                answering.cancel()  # what is being stored goes on; its confirmation finds nobody
        closed = self._connection.closed
        log.debug("peer left peer=%s cause=%r", self._connection, closed.cause if closed else "")

    async def stop(self) -> None:
        """Confirm what was received, then disconnect: we are quitting."""
        self._stopping = True
        while self._unconfirmed_packets:
            self._confirmed.clear()
            await self._confirmed.wait()
        self._connection.disconnect(DisconnectReason.CLIENT_QUITTING, "we are quitting")

    def cut(self) -> None:
        """End the connection at once."""
        self._connection.abort("not gone in time")

    async def _on_event(self, event: Event) -> None:
        match event:
            case MessagesReceived():
                await self._on_messages(event)
            case P2PRequestReceived(payload=payload):
                await self._on_request(payload)
            case StatusReceived():
                log.debug("peer connected peer=%s client=%r", self._connection, self._connection.client_id)
            case _:
                pass  # settings are the connection's; P2P Messages are taken from trusted peers only, we have none

    async def _on_messages(self, event: MessagesReceived) -> None:
        if self._stopping:
            return
        self._unconfirmed_packets += 1
        self._unconfirmed_envelopes += len(event.envelopes)
        self._unconfirmed_bytes += _size(event)
        self._tasks.create_task(self._archive_and_confirm(event))
        while (
            self._unconfirmed_packets >= MAX_UNCONFIRMED_PACKETS
            or self._unconfirmed_envelopes >= MAX_UNCONFIRMED_ENVELOPES
            or self._unconfirmed_bytes >= MAX_UNCONFIRMED_BYTES
        ):
            self._confirmed.clear()
            await self._confirmed.wait()

    async def _archive_and_confirm(self, event: MessagesReceived) -> None:
        try:
            response = await self._archive.take(event.envelopes, event.batch_hash)
            if response.errors:
                log.debug(
                    "envelopes refused peer=%s count=%d first=%r",
                    self._connection,
                    len(response.errors),
                    response.errors[0].description,
                )
            self._connection.send(PacketCode.MESSAGE_RESPONSE, response.encode())
            self._connection.send(PacketCode.BATCH_ACKNOWLEDGED, encode_batch_acknowledged(event.batch_hash))
        except StoreError:
            pass  # the writer has logged it; without a confirmation the sender sends again
        except ConnectionLost:
            pass  # the sender is gone; its envelopes are stored
        finally:
            self._unconfirmed_packets -= 1
            self._unconfirmed_envelopes -= len(event.envelopes)
            self._unconfirmed_bytes -= _size(event)
            self._confirmed.set()

    async def _on_request(self, payload: bytes) -> None:
        refused = None
        if len(payload) > MAX_REQUEST_BYTES:
            refused = Rejection.MALFORMED
        elif len(self._requests) >= MAX_WAITING_REQUESTS:
            refused = Rejection.TOO_MANY_REQUESTS
        if refused is None:
            self._requests.append(payload)
            self._requested.set()
        else:
            with contextlib.suppress(ConnectionLost):
                await self._delivery.refuse(payload, refused, self._send)

    async def _answer_requests(self) -> None:
        """Answer one request after the other."""
        while True:
            await self._requested.wait()
            if not self._requests:
                self._requested.clear()
                continue
            try:
                await self._delivery.answer(self._requests.popleft(), self._send)
            except ConnectionLost:
                return

    async def _send(self, code: PacketCode, payload: bytes) -> None:
        self._connection.send(code, payload)
        await self._connection.drain()


def _size(event: MessagesReceived) -> int:
    return sum(len(envelope.raw) for envelope in event.envelopes)
