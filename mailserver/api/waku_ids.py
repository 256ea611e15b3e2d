"""Message ids: listing them, fetching by them, comparing sets of them, and checking them (docs/message-ids.md).

What peers do over the capability `wakuid`, for applications; the answers are the same. Applications take turns with
peers, but nothing is charged to them: whoever can call methods controls the node.
"""

import asyncio
import contextlib
from collections.abc import Collection, Iterable
from itertools import starmap

from mailserver.api.caller import Call
from mailserver.api.dispatch import Method, Result
from mailserver.api.params import Check, Fields, Invalid, Json, encode_hex, hex_bytes, list_of, text, topic, whole
from mailserver.errors import DecodeError
from mailserver.history.delivery import PAGE_WORK
from mailserver.history.id_answers import FETCH_WORK
from mailserver.history.id_lists import IdLists
from mailserver.history.id_search import CursorOfAnotherStore, Selection
from mailserver.ids.envelopes import content_topic_of, envelope_differences, envelope_muid, message_of
from mailserver.ids.muid import (
    CHECKSUM_BYTES,
    MAX_METADATA_BYTES,
    MAX_MUID_BYTES,
    MAX_NETWORK_TOPIC_BYTES,
    Muid,
    NoId,
    differences,
    muid,
)
from mailserver.ids.waku_message import MAX_MESSAGE_BYTES, MESSAGE_HASH_BYTES, WakuMessage, decode_message
from mailserver.mail.request import MAX_REQUEST_TOPICS
from mailserver.reconcile.wire import MAX_MESSAGE_BYTES as MAX_RECONCILE_BYTES
from mailserver.store.interface import Payer
from mailserver.store.message_ids import MAX_IDS_OF_PAGE, ComparedScope, MetadataRange
from mailserver.waku.acceptance import MAX_ENVELOPE_BYTES
from mailserver.waku.bloom import FULL_INTEREST, Interest
from mailserver.waku.envelope import MAX_U32, Envelope, decode_envelope
from mailserver.wakuid.packets import MAX_CURSOR_BYTES, Order

DEFAULT_PAGE = 1000
"""How many ids a page has if the caller does not say."""

MAX_FETCHED_IDS = 1000
MAX_FETCHED_BYTES = 1024 * 1024
"""Most ids to fetch by at once, and most bytes of envelopes in one answer, which hex digits double."""

NAMED_TOGETHER = 64
"""Of how many envelopes ids are made before others have their turn: of a full answer, it takes 20 ms."""

_FILTER = ("networkTopic", "topics", "from", "to")
_LIST = (*_FILTER, "order", "metadataPrefix", "metadataFrom", "metadataTo", "cursor", "limit")
_ORDERS = {"newest": Order.NEWEST_FIRST, "arrival": Order.AS_ARRIVED}
_CALLERS = "JSON-RPC"
"""They take turns with peers as one address does."""


class IdMethods:
    """The ids of this mailserver's envelopes."""

    def __init__(self, lists: IdLists) -> None:
        self._lists = lists
        self._ids = lists.ids

    def table(self) -> dict[str, Method]:
        """The methods by name."""
        return {
            "waku_messageIds": Method(self._message_ids, ("filter",)),
            "waku_messagesByIds": Method(self._messages_by_ids, ("query",)),
            "waku_reconcile": Method(self._reconcile, ("query",)),
            "waku_checkMessageId": Method(self._check_message_id, ("message",)),
        }

    async def _message_ids(self, params: Fields, call: Call) -> Result:
        fields = params.object("filter", _LIST)
        self._check_network(fields)
        lower, upper, interest = _scope(fields)
        selection = Selection(
            lower,
            upper,
            interest,
            _metadata(fields),
            order=_ORDERS[fields.optional("order", _one_of(_ORDERS), "newest")],
            cursor=fields.optional("cursor", hex_bytes(0, MAX_CURSOR_BYTES), b""),
        )
        limit = fields.optional("limit", whole(1, MAX_IDS_OF_PAGE), DEFAULT_PAGE)
        try:
            found = await self._lists.list(selection, limit, _payer(call), lambda work: work < PAGE_WORK)
        except CursorOfAnotherStore:
            raise
        except DecodeError as error:
            raise fields.wrong("cursor", str(error)) from error
        return {
            "ids": map(encode_hex, found.muids),
            "cursor": encode_hex(found.cursor) if found.cursor else "",
            "isAll": found.is_all,
        }

    async def _messages_by_ids(self, params: Fields, call: Call) -> Result:
        """The envelopes that have these ids, and the ids that did not fit into the answer; others are not there."""
        fields = params.object("query", ("networkTopic", "ids"))
        self._check_network(fields)
        asked = dict.fromkeys(fields.required("ids", list_of(_muid, MAX_FETCHED_IDS)))
        found = await self._ids.find([*asked], payer=_payer(call), goes_on=lambda work: work < FETCH_WORK)
        messages: dict[Muid, Envelope] = {}
        left = MAX_FETCHED_BYTES
        while found.left and (left > 0 or not messages):  # one at least: the rest is what was asked for behind it
            raws = await found.read(found.left, max(1, left))
            left -= len(raws.body)
            messages |= await self._named(raws.split(), asked)
        rest: list[Muid] = []
        if found.left:
            names = [*asked]
            rest = names[names.index(next(reversed(messages))) + 1 :]
        return {
            "messages": starmap(_shown, messages.items()),
            "rest": map(encode_hex, rest),
        }

    async def _reconcile(self, params: Fields, call: Call) -> Json:
        """Answer a message of negentropy, as the side that is asked."""
        fields = params.object("query", (*_FILTER, "message"))
        self._check_network(fields)
        message = fields.required("message", hex_bytes(1, MAX_RECONCILE_BYTES))
        comparison = self._ids.comparison(ComparedScope(*_scope(fields)), payer=_payer(call))
        try:
            return {"message": encode_hex(await comparison.respond(message))}
        except DecodeError as error:
            raise fields.wrong("message", str(error)) from error

    async def _check_message_id(self, params: Fields, call: Call) -> Json:
        """The ids of a message, and what of it is not as a given id says."""
        fields = params.object("message", ("networkTopic", "envelope", "message", "id"))
        network_topic = fields.optional("networkTopic", text(MAX_NETWORK_TOPIC_BYTES), self._ids.network_topic)
        claimed = fields.maybe("id", hex_bytes(MESSAGE_HASH_BYTES, MAX_MUID_BYTES))
        envelope, message = _given(fields)
        message_hash = message.hash(network_topic)
        differs: list[str] = []
        if claimed is not None and len(claimed) == MESSAGE_HASH_BYTES:
            differs = [] if claimed == message_hash else ["message hash"]
        elif claimed is not None and envelope is not None:
            differs = [*envelope_differences(network_topic, Muid(claimed), envelope)]
        elif claimed is not None:
            found = differences(Muid(claimed), network_topic, message.content_topic, message.meta, message.payload)
            differs = sorted(each.value for each in found)
        try:
            name = encode_hex(muid(network_topic, message.content_topic, message.meta, message.payload))
        except NoId:
            name = ""
        return {"muid": name, "messageHash": encode_hex(message_hash), "differs": differs}

    async def _named(self, raws: Iterable[bytes], asked: Collection[Muid]) -> dict[Muid, Envelope]:
        """Envelopes by their MUIDs, but for those that are damaged by now: they may be others than were asked for."""
        named = {}
        for count, raw in enumerate(raws, 1):
            if count % NAMED_TOGETHER == 0:
                await asyncio.sleep(0)
            with contextlib.suppress(DecodeError, NoId):
                envelope = decode_envelope(raw)
                name = envelope_muid(self._ids.network_topic, envelope)
                if name in asked:
                    named[name] = envelope
        return named

    def _check_network(self, fields: Fields) -> None:
        """Refuse a question about the ids of another network."""
        ours = self._ids.network_topic
        if fields.optional("networkTopic", text(MAX_NETWORK_TOPIC_BYTES), ours) != ours:
            raise fields.wrong("networkTopic", f"message ids here belong to {ours!r}")


def _given(fields: Fields) -> tuple[Envelope | None, WakuMessage]:
    """The message that is given: an envelope, which is also returned as it is, or a message of Waku v2."""
    raw = fields.maybe("envelope", hex_bytes(1, MAX_ENVELOPE_BYTES))
    encoded = fields.maybe("message", hex_bytes(1, MAX_MESSAGE_BYTES))
    if raw is not None and encoded is None:
        try:
            envelope = decode_envelope(raw)
            return envelope, message_of(envelope)
        except (DecodeError, NoId) as error:
            raise fields.wrong("envelope", str(error)) from error
    if encoded is None or raw is not None:
        raise fields.wrong("envelope", "give either this or message, not both")
    try:
        return None, decode_message(encoded)
    except DecodeError as error:
        raise fields.wrong("message", str(error)) from error


def _payer(call: Call) -> Payer:
    return Payer(_CALLERS, call.caller)


def _scope(fields: Fields) -> tuple[int, int, Interest]:
    lower = fields.optional("from", whole(0, MAX_U32), 0)
    upper = fields.optional("to", whole(0, MAX_U32), MAX_U32)
    if lower > upper:
        raise fields.wrong("from", "later than to")
    topics = fields.maybe("topics", list_of(topic, MAX_REQUEST_TOPICS))
    return lower, upper, Interest(topics=frozenset(topics)) if topics else FULL_INTEREST


def _metadata(fields: Fields) -> MetadataRange:
    bound = hex_bytes(0, MAX_METADATA_BYTES)
    prefix = fields.maybe("metadataPrefix", bound)
    low, high = fields.maybe("metadataFrom", bound), fields.maybe("metadataTo", bound)
    if prefix is None:
        return MetadataRange(low or b"", high or None)
    if low is not None or high is not None:
        raise fields.wrong("metadataPrefix", "give either this, or metadataFrom and metadataTo")
    return MetadataRange.of_prefix(prefix)


def _muid(value: Json) -> Muid:
    return Muid(hex_bytes(CHECKSUM_BYTES + 1, MAX_MUID_BYTES)(value))


def _one_of(choices: dict[str, Order]) -> Check[str]:
    def check(value: Json) -> str:
        if not isinstance(value, str) or value not in choices:
            raise Invalid(f"not one of {', '.join(choices)}")
        return value

    return check


def _shown(name: Muid, envelope: Envelope) -> Json:
    return {
        "id": encode_hex(name),
        "hash": encode_hex(envelope.hash()),
        "topic": encode_hex(envelope.topic),
        "contentTopic": content_topic_of(envelope.topic),
        "timestamp": envelope.created,
        "expiry": envelope.expiry,
        "ttl": envelope.ttl,
        "nonce": encode_hex(envelope.nonce.to_bytes(8, "big")),
        "data": encode_hex(envelope.data),
    }
