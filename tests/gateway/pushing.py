"""Pushes to one client."""

import asyncio
from collections.abc import Hashable

from mailserver.gateway.peer import MAX_UNREAD_BYTES
from mailserver.waku2.filter_packets import encode_message_push
from mailserver.waku2.frames import encode_frame
from mailserver.waku2.protocols import ProtocolId
from tests.gateway.hosts import World
from tests.gateway.messages import message

PUBSUB_TOPIC = "/waku/2/rs/1/4"


class Pushed:
    """Pushes messages to a client of a world, by default the first; `unwanted` is what it does not want, by number."""

    def __init__(self, world: World, at: int = 0) -> None:
        self.world = world
        self.peer = world.told.present[at]
        self.unwanted: set[Hashable] = set()
        self.forgotten: list[Hashable] = []

    def push(self, number: int, size: int = 1) -> bool:
        """Push a message, if the client reads; return whether it does."""
        if not self.peer.may_push():
            return False
        frame = encode_frame(encode_message_push(message(number, size).encode(), PUBSUB_TOPIC))
        self.peer.push(
            ProtocolId.FILTER_PUSH, frame, number, lambda each: each not in self.unwanted, self.forgotten.append
        )
        return True

    async def fill(self) -> int:
        """Push until a message is dropped; return how many were not."""
        number = 0
        while self.push(number, 100_000):
            number += 1
            await asyncio.sleep(0)  # so that it is sent
            assert self.world.host.unread_bytes < MAX_UNREAD_BYTES
        return number
