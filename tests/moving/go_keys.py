"""The keys under which a Go mailserver keeps envelopes, in either of its databases."""

from mailserver.store.interface import NewEnvelope
from mailserver.waku.envelope import Envelope
from tests.mailservers import stored

EARLY_BYTES = 36
"""How much of a key its early versions had."""


def key_of(envelope: Envelope) -> bytes:
    """The key of an envelope."""
    return envelope.created.to_bytes(4, "big") + envelope.hash() + envelope.topic


def by_key(envelopes: list[Envelope]) -> list[NewEnvelope]:
    """The rows that they become, in the order in which they are read."""
    return [stored(each, received=each.created) for each in sorted(envelopes, key=key_of)]
