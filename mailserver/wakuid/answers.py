"""The answers of `wakuid/1`: see `wakuid.packets`."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from mailserver.codec import rlp
from mailserver.errors import DecodeError, Rejection
from mailserver.ids.muid import Muid
from mailserver.waku.envelope import Envelope, decode_envelopes
from mailserver.wakuid.fields import (
    FEW_ITEMS,
    as_message,
    as_muids,
    as_network_topic,
    as_request_id,
    as_short,
    as_text,
    as_u32,
    elements,
    encoded_uint,
    list_of,
    read_equal_muids,
    read_request_id,
    uint,
)
from mailserver.wakuid.packets import MAX_CURSOR_BYTES, MAX_FETCHED_IDS, MAX_TEXT_BYTES, REASONS, IdPacketCode

_REJECTIONS = {number: rejection for rejection, number in REASONS.items()}


@dataclass(frozen=True, slots=True)
class Terms:
    """Grants access. `since`: from which second of creation on the mailserver has pruned nothing; `now`: its clock.

    `max_ids`, `max_envelopes`: the longest pages. `max_message_bytes`: of Reconcile, and of its answer.
    """

    request_id: int
    network_topic: str
    since: int
    now: int
    max_ids: int
    max_envelopes: int
    max_message_bytes: int

    def encode(self) -> bytes:
        """Encode the payload."""
        numbers = self.since, self.now, self.max_ids, self.max_envelopes, self.max_message_bytes
        return rlp.encode([uint(self.request_id), self.network_topic.encode(), *map(uint, numbers)])


@dataclass(frozen=True, slots=True)
class Refused:
    """A question is not answered, or its answer ends here. `rejection` is None for a reason that we do not know."""

    request_id: int
    rejection: Rejection | None
    text: str
    retry_after_s: int = 0

    def encode(self) -> bytes:
        """Encode the payload."""
        reason = 0 if self.rejection is None else REASONS[self.rejection]
        text = self.text.encode()[:MAX_TEXT_BYTES]
        return rlp.encode([uint(self.request_id), uint(reason), text, uint(self.retry_after_s)])


@dataclass(frozen=True, slots=True)
class Ids:
    """Some of the ids that were asked for."""

    request_id: int
    muids: Sequence[Muid]

    def encode(self) -> bytes:
        """Encode the payload."""
        return list_of(encoded_uint(self.request_id), rlp.encode_strings(self.muids))


@dataclass(frozen=True, slots=True)
class Envelopes:
    """Some of the envelopes that were asked for."""

    request_id: int
    envelopes: Sequence[Envelope]


def encode_envelopes(request_id: int, body: bytes) -> bytes:
    """Encode the payload of Envelopes from envelopes that are already joined."""
    return list_of(encoded_uint(request_id), rlp.list_prefix(len(body)), body)


@dataclass(frozen=True, slots=True)
class Reconciled:
    """The answer to Reconcile."""

    request_id: int
    message: bytes

    def encode(self) -> bytes:
        """Encode the payload."""
        return rlp.encode([uint(self.request_id), self.message])


@dataclass(frozen=True, slots=True)
class Done:
    """The end of an answer. `cursor`: where the next page begins; empty if there is none.

    `is_all`: whether nothing follows at the moment. A list in the order of arrival has a cursor even then: for what
    arrives later.
    """

    request_id: int
    cursor: bytes = b""
    is_all: bool = True

    def encode(self) -> bytes:
        """Encode the payload."""
        return rlp.encode([uint(self.request_id), self.cursor, uint(self.is_all)])


Answer: TypeAlias = Terms | Refused | Ids | Envelopes | Reconciled | Done


def decode_answer(code: IdPacketCode, payload: bytes) -> Answer:
    """Decode an answer.

    Raises:
        DecodeError: it has another form, or is beyond a bound; or it is a question.
    """
    match code:
        case IdPacketCode.TERMS:
            request_id, network_topic, *numbers = elements(payload, 7, FEW_ITEMS)
            return Terms(as_request_id(request_id), as_network_topic(network_topic), *map(as_u32, numbers))
        case IdPacketCode.REFUSED:
            request_id, reason, text, retry_after = elements(payload, 4, FEW_ITEMS)
            rejection = _REJECTIONS.get(as_u32(reason))
            return Refused(as_request_id(request_id), rejection, as_text(text), as_u32(retry_after))
        case IdPacketCode.IDS:
            return _decode_ids(payload)
        case IdPacketCode.ENVELOPES:
            return _decode_envelopes(payload)
        case IdPacketCode.RECONCILED:
            request_id, message = elements(payload, 2, FEW_ITEMS)
            return Reconciled(as_request_id(request_id), as_message(message))
        case IdPacketCode.DONE:
            request_id, cursor, is_all = elements(payload, 3, FEW_ITEMS)
            place = as_short(cursor, MAX_CURSOR_BYTES, "cursor")
            return Done(as_request_id(request_id), place, is_all=bool(as_u32(is_all)))
        case _:
            raise DecodeError("packet is no answer", got=code.name)


def _decode_ids(payload: bytes) -> Ids:
    request_id, at, end = read_request_id(payload)
    muids = read_equal_muids(payload, at, end)
    if muids is None:  # they have several lengths, or are followed by other elements
        _, items = elements(payload, 2, MAX_FETCHED_IDS + FEW_ITEMS)
        muids = as_muids(items)
    return Ids(request_id, muids)


def _decode_envelopes(payload: bytes) -> Envelopes:
    request_id, at, end = read_request_id(payload)
    _, _, stop = rlp.header(payload, at, end)
    return Envelopes(request_id, decode_envelopes(payload[at:stop]))
