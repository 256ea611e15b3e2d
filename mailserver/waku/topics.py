"""Topic derivations of 10/WAKU-USAGE: the first 4 bytes of a Keccak-256."""

import re

from mailserver.codec.keccak import keccak256
from mailserver.codec.keys import NodeId, PrivateKey
from mailserver.errors import DecodeError
from mailserver.waku.envelope import TOPIC_BYTES, Topic

PARTITIONS = 5000
"""Number of partitioned topics."""

DISCOVERY_TOPIC_NAME = "contact-discovery"

_NEGOTIATED_HALF_BYTES = 16
_HEX_TOPIC = re.compile("0x[0-9a-fA-F]{8}")


def topic_of(name: str) -> Topic:
    """The topic of a public chat, or of any other name."""
    return Topic(keccak256(name.encode())[:TOPIC_BYTES])


def partitioned_topic(public_key: NodeId) -> Topic:
    """The partitioned topic on which the owner of `public_key` listens: x mod 5000 of its X coordinate."""
    x = int.from_bytes(public_key[:32], "big")
    return topic_of(f"{DISCOVERY_TOPIC_NAME}-{x % PARTITIONS}")


def contact_code_topic(public_key: NodeId) -> Topic:
    """The topic on which the owner of `public_key` publishes its contact code."""
    return topic_of(f"0x04{public_key.hex()}-contact-code")


def negotiated_topic(key: PrivateKey, public_key: NodeId) -> Topic:
    """The topic that two parties derive from their shared key: the hex of the first 32 bytes of the agreement.

    Deployed clients ask their ECIES for an encryption and a MAC key of 16 bytes each and join the two: that is
    the X coordinate of the shared point.

    Raises:
        DecodeError: `public_key` is no point of the curve.
    """
    return topic_of(key.agree(public_key)[: 2 * _NEGOTIATED_HALF_BYTES].hex())


def parse_topic(text: str) -> Topic:
    """Read a topic as people write it: `0x` and 8 hex digits, else a name.

    Raises:
        DecodeError: it begins with 0x and is not 4 bytes.
    """
    if not text.startswith("0x"):
        return topic_of(text)
    if _HEX_TOPIC.fullmatch(text) is None:
        raise DecodeError("topic is not 0x and 8 hex digits", got=text)
    return Topic(bytes.fromhex(text[2:]))
