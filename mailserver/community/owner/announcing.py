"""Announcing: the magnet link of what is seeded, signed and sealed, goes to the community's special channel.

It goes through the daemon, as every envelope of ours: it is on disk there when `post` returns. `announced.json` says
what was announced last. It is written after the post, so a kill between the two means that it is announced once more.
"""

import asyncio
import json
import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from mailserver.client.sealing import TooMuchWork, seal_envelope
from mailserver.codec.keys import PrivateKey
from mailserver.communities.channels import Channel, CommunityId, id_text, special_channel
from mailserver.communities.links import AnnouncedLink, encode_link, next_clock
from mailserver.community.owner.record import CommunityError
from mailserver.errors import ConnectionLost
from mailserver.feed_socket.client import FeedClient, PostUnanswered
from mailserver.files import write_atomically
from mailserver.handoff.json_records import Record, count_of, field_of, read_record
from mailserver.waku.envelope import Topic

log = logging.getLogger(__name__)

RECORD_VERSION = 1

TTL_S = 60
"""Of the envelopes that have links."""

_MS = 1000


@dataclass(frozen=True, slots=True)
class Announced:
    """What was announced last.

    Args:
        info_hash: of the torrent, 20 bytes.
        data_bytes: how much of `data` it has.
        clock: of the link, Unix milliseconds.
        posted_at: Unix seconds.
    """

    info_hash: bytes
    data_bytes: int
    clock: int
    posted_at: int

    def encode(self) -> str:
        """The record, as JSON."""
        record = {
            "version": RECORD_VERSION,
            "info_hash": self.info_hash.hex(),
            "data_bytes": self.data_bytes,
            "clock": self.clock,
            "posted_at": self.posted_at,
        }
        return json.dumps(record, indent=1) + "\n"

    @classmethod
    def decode(cls, record: Record) -> "Announced":
        """Read the record.

        Raises:
            ValueError: it is none.
        """
        data_bytes, clock, posted_at = (
            count_of(name, record.get(name)) for name in ("data_bytes", "clock", "posted_at")
        )
        return cls(bytes.fromhex(field_of(record, "info_hash", str)), data_bytes, clock, posted_at)


def read_announced(path: Path) -> Announced | None:
    """Read what was announced last; None if nothing was.

    Raises:
        CommunityError: the file cannot be read.
    """
    return read_record(
        path, Announced.decode, version=RECORD_VERSION, what="record of a magnet link", error=CommunityError
    )


class Announcer:
    """Posts links through the daemon."""

    def __init__(self, feed: FeedClient, wall_clock: Callable[[], float]) -> None:
        self._feed = feed
        self._wall_clock = wall_clock
        self._turn = asyncio.Lock()

    @property
    def topics(self) -> frozenset[Topic] | None:
        """The only topics that the daemon takes; None if it takes all, or is not connected."""
        terms = self._feed.terms
        return None if terms is None else terms.topics

    async def announce(
        self, path: Path, community: CommunityId, key: PrivateKey, uri: str, info_hash: bytes, data_bytes: int
    ) -> Announced:
        """Post a link, and write that it was posted; return once both are on disk.

        Args:
            path: where it is written.
            uri: the magnet link of the torrent.
        Raises:
            CommunityError: it was not posted, or that could not be written.
        """
        terms = self._feed.terms
        if terms is None:
            raise CommunityError("the mailserver is not running, or runs without --feed-socket: no link is announced")
        before, channel = await asyncio.to_thread(_prepare, path, community)
        assert channel.key is not None, "the special channel is a public chat"
        now = self._wall_clock()
        clock = next_clock(int(now * _MS), 0 if before is None else before.clock)
        try:
            envelope = await seal_envelope(
                encode_link(AnnouncedLink(clock, uri), key),
                channel.key,
                channel.topic,
                ttl=TTL_S,
                min_pow=terms.min_pow,
                now=int(now),
                signing_key=key,
                turn=self._turn,
            )
            refusal = await self._feed.post(envelope.raw)
        except PostUnanswered as error:
            raise CommunityError("magnet link was perhaps not posted: the mailserver did not answer") from error
        except (ConnectionLost, TooMuchWork) as error:
            raise CommunityError(f"magnet link was not posted: {error}") from error
        if refusal is not None:
            topic = f"0x{channel.topic.hex()}"
            raise CommunityError(f"the mailserver does not take the magnet link on topic {topic}: {refusal.text}")
        announced = Announced(info_hash, data_bytes, clock, int(now))
        try:
            await asyncio.to_thread(write_atomically, path, announced.encode())
        except OSError as error:
            raise CommunityError(f"cannot write {path}: {error.strerror or error}") from error
        log.info("magnet link announced community=%s torrent=%s", id_text(community), info_hash.hex())
        return announced


def _prepare(path: Path, community: CommunityId) -> tuple[Announced | None, Channel]:
    return read_announced(path), special_channel(community)
