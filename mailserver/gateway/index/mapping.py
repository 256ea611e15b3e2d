"""From envelopes to messages: those that a client of v2 sent are found again as it sent them."""

import sqlite3
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from mailserver.gateway.index.schema import PREFIX_BYTES
from mailserver.ids.envelopes import content_topic_of, message_of
from mailserver.ids.muid import NoId
from mailserver.ids.waku_message import MessageHash, WakuMessage
from mailserver.waku.envelope import Envelope, EnvelopeHash, Topic

SLOTS = (1, 16, 256)
"""How many things a statement looks up at once: few sizes, so that few statements are prepared."""


@dataclass(frozen=True, slots=True)
class Original:
    """What a message says beyond its envelope. None is absent, as in `WakuMessage`."""

    timestamp: int
    meta: bytes
    version: int | None
    ephemeral: bool | None

    @classmethod
    def of(cls, message: WakuMessage) -> "Original":
        """That of a message, which has a timestamp."""
        assert message.timestamp
        return cls(message.timestamp, message.meta, message.version, message.ephemeral)

    def message(self, topic: Topic, data: bytes) -> WakuMessage:
        """The message that such an envelope was made from. Its proof of the rate limit is not kept."""
        return WakuMessage(
            payload=data,
            content_topic=content_topic_of(topic),
            version=self.version,
            timestamp=self.timestamp,
            meta=self.meta,
            ephemeral=self.ephemeral,
        )


class MappedMessage(NamedTuple):
    """The message of an envelope."""

    hash: MessageHash
    message: WakuMessage


def map_envelope(network_topic: str, envelope: Envelope, original: Original | None) -> MappedMessage | None:
    """The message of an envelope; None if it has none (`ids.envelopes`)."""
    try:
        message = message_of(envelope) if original is None else original.message(envelope.topic, envelope.data)
    except NoId:
        return None
    return MappedMessage(message.hash(network_topic), message)


_OF_ENVELOPES = {
    slots: f"""
        SELECT envelope, timestamp, meta, version, is_ephemeral FROM originals
        WHERE envelope IN ({", ".join("?" * slots)})
    """
    for slots in SLOTS
}


def map_envelopes(
    connection: sqlite3.Connection, network_topic: str, envelopes: Sequence[tuple[Envelope, EnvelopeHash]]
) -> list[MappedMessage | None]:
    """The messages of envelopes, in their order; None for one that has none. Their originals are looked up."""
    originals = originals_of(connection, [whole for _, whole in envelopes])
    return [map_envelope(network_topic, envelope, originals.get(whole)) for envelope, whole in envelopes]


def originals_of(connection: sqlite3.Connection, envelopes: Sequence[EnvelopeHash]) -> dict[EnvelopeHash, Original]:
    """The originals of those envelopes that have one."""
    found: dict[EnvelopeHash, Original] = {}
    if not connection.execute("SELECT EXISTS (SELECT 1 FROM originals)").fetchone()[0]:
        return found
    prefixes = {envelope[:PREFIX_BYTES]: envelope for envelope in envelopes}
    for part in in_slots([*prefixes]):
        for prefix, *columns in connection.execute(_OF_ENVELOPES[len(part)], part):
            found[prefixes[prefix]] = read_original(columns)
    return found


def read_original(columns: Sequence[Any]) -> Original:
    """An original from its columns: timestamp, meta, version, is_ephemeral."""
    timestamp, meta, version, is_ephemeral = columns
    return Original(timestamp, meta, version, None if is_ephemeral is None else bool(is_ephemeral))


def in_slots(keys: Sequence[bytes]) -> Iterator[list[bytes | None]]:
    """Keys in parts for which there are statements, filled up with what matches nothing."""
    for at in range(0, len(keys), SLOTS[-1]):
        part: list[bytes | None] = [*keys[at : at + SLOTS[-1]]]
        slots = next(slots for slots in SLOTS if slots >= len(part))
        yield part + [None] * (slots - len(part))
