"""A community's id and channels, and the special channel of its magnet links (61/STATUS, 10/WAKU-USAGE).

A community's id is its public key in compressed form, 33 bytes. A channel is a public chat: its topic and its symmetric
key come from its chat id, a text.
"""

from dataclasses import dataclass
from typing import NewType

from mailserver.codec.keys import NodeId, compress, decompress
from mailserver.errors import DecodeError
from mailserver.ids.envelopes import content_topic_of, topic_of
from mailserver.waku import topics
from mailserver.waku.envelope import Topic
from mailserver.waku.payload import key_from_password

CommunityId = NewType("CommunityId", bytes)
"""The public key of a community, compressed: 33 bytes."""

COMMUNITY_ID_BYTES = 33


@dataclass(frozen=True, slots=True)
class Channel:
    """A channel: `name` is for people; `key`, if it is known, opens its messages (32 bytes)."""

    name: str
    content_topic: str
    key: bytes | None = None

    @property
    def topic(self) -> Topic:
        """Its topic of Waku v1.

        Raises:
            DecodeError: its content topic is none of Waku v1.
        """
        return topic_of(self.content_topic)


def community_id(public_key: NodeId) -> CommunityId:
    """The id of the community with this public key (64 bytes)."""
    return CommunityId(compress(public_key))


def public_key_of(community: CommunityId) -> NodeId:
    """The public key of a community.

    Raises:
        DecodeError: not 33 bytes, or no point of the curve.
    """
    return decompress(community)


def id_text(community: CommunityId) -> str:
    """A community's id as people and folders have it: `0x` and 66 hex digits."""
    return f"0x{community.hex()}"


def parse_id(text: str) -> CommunityId:
    """Read such a text, whatever the case of its digits.

    Raises:
        DecodeError: another form, or no point of the curve.
    """
    digits = text.removeprefix("0x")
    try:
        community = CommunityId(bytes.fromhex(digits))
    except ValueError as error:
        raise DecodeError("community id is not 0x and 66 hex digits", got=text) from error
    if len(digits) != 2 * COMMUNITY_ID_BYTES or not text.startswith("0x"):
        raise DecodeError("community id is not 0x and 66 hex digits", got=text)
    public_key_of(community)
    return community


def chat_channel(chat_id: str, name: str = "") -> Channel:
    """The channel of a public chat. Deriving its key takes 30 ms.

    Args:
        chat_id: of a community's channel: the community's id and the channel's, joined.
    """
    return Channel(name or chat_id, content_topic_of(topics.topic_of(chat_id)), key_from_password(chat_id))


def universal_channel(community: CommunityId) -> Channel:
    """The channel on whose topic status-go sends the messages of all channels of a community."""
    return chat_channel(f"{id_text(community)}-memberUpdate")


def special_channel(community: CommunityId) -> Channel:
    """The channel in which a community's magnet links are announced; it is not shown to people."""
    return chat_channel(f"{id_text(community)}-magnetlinks")
