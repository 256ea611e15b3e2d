"""The questions of `wakuid/1`: see `wakuid.packets`."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, TypeAlias

from mailserver.codec import rlp
from mailserver.errors import DecodeError
from mailserver.ids.muid import Muid
from mailserver.mail.request import MAX_REQUEST_TOPICS
from mailserver.reconcile.wire import ID_BYTES
from mailserver.waku.bloom import FULL_INTEREST, Interest
from mailserver.waku.envelope import Envelope, decode_envelope
from mailserver.wakuid.fields import (
    FEW_ITEMS,
    as_interest,
    as_message,
    as_muids,
    as_network_topic,
    as_request_id,
    as_short,
    as_u32,
    at_most,
    elements,
    encode_interest,
    encoded_uint,
    list_of,
    read_request_id,
    uint,
)
from mailserver.wakuid.packets import (
    MAX_CURSOR_BYTES,
    MAX_FETCHED_IDS,
    MAX_METADATA_BYTES,
    MAX_QUESTION_BYTES,
    IdPacketCode,
    Order,
    What,
)

_GROUP_FIELDS = 3


@dataclass(frozen=True, slots=True)
class Open:
    """Asks for access, and for the terms. `envelope`: what proves that its sender may ask; None: nothing does."""

    code: ClassVar = IdPacketCode.OPEN

    request_id: int
    envelope: Envelope | None = None

    def encode(self) -> bytes:
        """Encode the payload."""
        envelope = b"\x80" if self.envelope is None else self.envelope.raw
        return list_of(encoded_uint(self.request_id), envelope)


@dataclass(frozen=True, slots=True)
class Query:
    """Asks for ids, or for envelopes, created from `lower` to `upper`, both inclusive.

    `low`, `high`: only those whose metadata is from `low`, inclusive, to `high`, exclusive, compared as bytes; None:
    without an end. `cursor`: where an earlier answer ended. `limit`: most of them to give; 0: as many as a page holds.
    """

    code: ClassVar = IdPacketCode.QUERY

    request_id: int
    network_topic: str
    lower: int
    upper: int
    what: What = What.IDS
    order: Order = Order.NEWEST_FIRST
    interest: Interest = FULL_INTEREST
    low: bytes = b""
    high: bytes | None = None
    cursor: bytes = b""
    limit: int = 0

    def encode(self) -> bytes:
        """Encode the payload."""
        return rlp.encode(
            [
                uint(self.request_id),
                self.network_topic.encode(),
                uint(self.what),
                uint(self.order),
                uint(self.lower),
                uint(self.upper),
                encode_interest(self.interest),
                self.low,
                self.high or b"",
                self.cursor,
                uint(self.limit),
            ]
        )


@dataclass(frozen=True, slots=True)
class Fetch:
    """Asks for the envelopes that have these MUIDs."""

    code: ClassVar = IdPacketCode.FETCH

    request_id: int
    network_topic: str
    muids: Sequence[Muid]

    def encode(self) -> bytes:
        """Encode the payload."""
        return rlp.encode([uint(self.request_id), self.network_topic.encode(), self.muids])


@dataclass(frozen=True, slots=True)
class Items:
    """One id of reconciliation or more, 32 bytes each, of envelopes created from `lower` to `upper`, both inclusive."""

    lower: int
    upper: int
    ids: Sequence[bytes]


@dataclass(frozen=True, slots=True)
class FetchItems:
    """Asks for the envelopes that a comparison has found missing."""

    code: ClassVar = IdPacketCode.FETCH_ITEMS

    request_id: int
    network_topic: str
    groups: Sequence[Items]

    def encode(self) -> bytes:
        """Encode the payload."""
        groups: list[list[rlp.Encodable]] = [[uint(each.lower), uint(each.upper), each.ids] for each in self.groups]
        return rlp.encode([uint(self.request_id), self.network_topic.encode(), groups])


@dataclass(frozen=True, slots=True)
class Reconcile:
    """Asks to compare what both sides have that was created from `lower` to `upper`, both inclusive.

    `message` is one of negentropy.
    """

    code: ClassVar = IdPacketCode.RECONCILE

    request_id: int
    network_topic: str
    lower: int
    upper: int
    message: bytes
    interest: Interest = FULL_INTEREST

    def encode(self) -> bytes:
        """Encode the payload."""
        return rlp.encode(
            [
                uint(self.request_id),
                self.network_topic.encode(),
                uint(self.lower),
                uint(self.upper),
                encode_interest(self.interest),
                self.message,
            ]
        )


Question: TypeAlias = Open | Query | Fetch | FetchItems | Reconcile


def decode_question(code: IdPacketCode, payload: bytes) -> Question:
    """Decode a question.

    Args:
        code: one of QUESTIONS.
    Raises:
        DecodeError: it has another form, or is beyond a bound.
    """
    if len(payload) > MAX_QUESTION_BYTES:
        raise DecodeError(f"{code.name} is too long", got=len(payload), limit=MAX_QUESTION_BYTES)
    match code:
        case IdPacketCode.OPEN:
            return _decode_open(payload)
        case IdPacketCode.QUERY:
            return _decode_query(payload)
        case IdPacketCode.FETCH:
            request_id, network_topic, muids = elements(payload, 3, MAX_FETCHED_IDS + FEW_ITEMS)
            return Fetch(as_request_id(request_id), as_network_topic(network_topic), as_muids(muids))
        case IdPacketCode.FETCH_ITEMS:
            request_id, network_topic, groups = elements(payload, 3, (_GROUP_FIELDS + 3) * MAX_FETCHED_IDS + FEW_ITEMS)
            return FetchItems(as_request_id(request_id), as_network_topic(network_topic), _as_groups(groups))
        case IdPacketCode.RECONCILE:
            return _decode_reconcile(payload)
        case _:
            raise DecodeError("packet is no question", got=code.name)


def request_id_of(payload: bytes) -> int:
    """The request id of a question, read without the rest of it; 0 if it cannot be read."""
    try:
        return read_request_id(payload)[0]
    except DecodeError:
        return 0


def _decode_open(payload: bytes) -> Open:
    request_id, at, end = read_request_id(payload)
    is_envelope, start, stop = rlp.header(payload, at, end)
    if is_envelope:
        return Open(request_id, decode_envelope(payload[at:stop]))
    if stop > start:
        raise DecodeError("OPEN has something else than an envelope", got=stop - start)
    return Open(request_id)


def _decode_query(payload: bytes) -> Query:
    (request_id, network_topic, what, order, lower, upper, interest, low, high, cursor, limit) = elements(
        payload, 11, MAX_REQUEST_TOPICS + FEW_ITEMS
    )
    try:
        kind, sequence = What(as_u32(what)), Order(as_u32(order))
    except ValueError as error:
        raise DecodeError(str(error)) from error
    return Query(
        as_request_id(request_id),
        as_network_topic(network_topic),
        as_u32(lower),
        as_u32(upper),
        what=kind,
        order=sequence,
        interest=as_interest(interest),
        low=as_short(low, MAX_METADATA_BYTES, "metadata"),
        high=as_short(high, MAX_METADATA_BYTES, "metadata") or None,
        cursor=as_short(cursor, MAX_CURSOR_BYTES, "cursor"),
        limit=as_u32(limit),
    )


def _decode_reconcile(payload: bytes) -> Reconcile:
    request_id, network_topic, lower, upper, interest, message = elements(payload, 6, MAX_REQUEST_TOPICS + FEW_ITEMS)
    return Reconcile(
        as_request_id(request_id),
        as_network_topic(network_topic),
        as_u32(lower),
        as_u32(upper),
        as_message(message),
        as_interest(interest),
    )


def _as_groups(item: rlp.Item) -> list[Items]:
    groups = []
    count = 0
    for each in at_most(rlp.as_list(item), MAX_FETCHED_IDS, "groups"):
        group = rlp.as_list(each)
        if len(group) < _GROUP_FIELDS:
            raise DecodeError("group of ids has too few elements", got=len(group), limit=_GROUP_FIELDS)
        lower, upper, items = group[:_GROUP_FIELDS]
        ids = [rlp.as_bytes(item_id, ID_BYTES) for item_id in rlp.as_list(items)]
        if not ids:  # it takes as long to read as one with ids, and nobody has a use for it
            raise DecodeError("group has no ids")
        count += len(ids)
        groups.append(Items(as_u32(lower), as_u32(upper), ids))
    if count > MAX_FETCHED_IDS:
        raise DecodeError("too many ids", got=count, limit=MAX_FETCHED_IDS)
    return groups
