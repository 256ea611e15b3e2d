"""What a store query may ask for.

Entries are in the order (timestamp, message hash), in every page, whichever way the pages follow each other.
`time_start` is inclusive, `time_end` exclusive; a range that ends before it begins has nothing, as in nwaku. A cursor
is the hash of the entry behind which the next page begins: it is given only if something is there.

js-waku sends the pubsub topic along with hashes, and ends a walk at the first empty page, whatever the cursor says.
Among the hashes may be MUIDs: their length tells them apart.
Spec: 13/WAKU2-STORE; deployed: nwaku, waku_archive.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from mailserver.ids.muid import CHECKSUM_BYTES, MAX_MUID_BYTES, Muid
from mailserver.ids.waku_message import MESSAGE_HASH_BYTES, MessageHash
from mailserver.waku2.codes import StoreStatus
from mailserver.waku2.store_query import (
    MAX_READ_HASHES,
    StoreQueryRequest,
    StoreQueryResponse,
)

DEFAULT_PAGE_ENTRIES = 20
MAX_PAGE_ENTRIES = 100
"""As nwaku and go-waku. Whoever asks for more gets as many."""

MAX_QUERY_TOPICS = 100
"""Content topics of one query: as many as filter-subscribe takes. go-waku's client sends 10 at most."""

MAX_QUERY_HASHES = MAX_READ_HASHES
"""Hashes of one query. status-go sends 50 at a time, js-waku as many as its caller has."""

MAX_QUERY_MUIDS = MAX_PAGE_ENTRIES
"""MUIDs of one query: as many as a page has. Others of the same time or meta are read to find the message of each."""


class StoreRefusal(NamedTuple):
    """Why a query is not answered: the code, and a text for its sender, which names no topic."""

    status: StoreStatus
    text: str

    def answer(self, request_id: str) -> StoreQueryResponse:
        """The packet that says so."""
        return StoreQueryResponse(request_id, self.status, self.text)


UNKNOWN_CURSOR = StoreRefusal(StoreStatus.BAD_REQUEST, "pagination_cursor names no message that is stored here")


@dataclass(frozen=True, slots=True)
class StoreQuery:
    """A query that keeps all rules. If `message_hashes` or `muids` are given, nothing else says which entries are asked
    for.

    No `content_topics` are all. Times are Unix nanoseconds; None: without an end. `cursor`: the first entry behind it,
    or before it if not `is_forward`; None: from the end that comes first. `limit`: most entries of a page, from 1 to
    MAX_PAGE_ENTRIES. `include_muids`: whether entries come with their MUIDs; those that `muids` name do in any case.
    """

    include_data: bool
    message_hashes: tuple[MessageHash, ...]
    pubsub_topic: str | None
    content_topics: tuple[str, ...]
    time_start: int | None
    time_end: int | None
    cursor: MessageHash | None
    is_forward: bool
    limit: int
    muids: tuple[Muid, ...] = ()
    include_muids: bool = False

    def has_nothing(self, network_topic: str) -> bool:
        """Whether no entry of this network topic can be asked for: the page is empty."""
        has_names = self.message_hashes or self.muids
        is_elsewhere = not has_names and self.pubsub_topic not in (None, network_topic)
        is_no_time = self.time_start is not None and self.time_end is not None and self.time_start >= self.time_end
        return is_elsewhere or is_no_time


def check_query(request: StoreQueryRequest) -> StoreQuery | StoreRefusal:
    """Check what is asked for."""
    topics = tuple(dict.fromkeys(request.content_topics))
    names = tuple(dict.fromkeys(request.message_hashes))
    cursor = request.pagination_cursor
    if why := _fault(request, topics, names):
        return StoreRefusal(StoreStatus.BAD_REQUEST, why)
    return StoreQuery(
        include_data=request.include_data,
        message_hashes=tuple(MessageHash(each) for each in names if len(each) == MESSAGE_HASH_BYTES),
        pubsub_topic=None if names else request.pubsub_topic or None,
        content_topics=topics,
        time_start=request.time_start,
        time_end=request.time_end,
        cursor=None if cursor is None else MessageHash(cursor),
        is_forward=request.pagination_forward,
        limit=min(request.pagination_limit or DEFAULT_PAGE_ENTRIES, MAX_PAGE_ENTRIES),
        muids=tuple(Muid(each) for each in names if _is_muid(each)),
        include_muids=request.include_muids,
    )


def _is_muid(name: bytes) -> bool:
    return CHECKSUM_BYTES < len(name) <= MAX_MUID_BYTES


def _fault(request: StoreQueryRequest, topics: Sequence[str], names: Sequence[bytes]) -> str | None:
    """What of a request is against the rules, for its sender."""
    if len(topics) > MAX_QUERY_TOPICS:
        return f"more than {MAX_QUERY_TOPICS} content_topics"
    if len(names) > MAX_QUERY_HASHES:
        return f"more than {MAX_QUERY_HASHES} message_hashes"
    if not all(len(each) == MESSAGE_HASH_BYTES or _is_muid(each) for each in names):
        return "one of message_hashes is neither 32 bytes nor a MUID"
    if sum(map(_is_muid, names)) > MAX_QUERY_MUIDS:
        return f"more than {MAX_QUERY_MUIDS} MUIDs in message_hashes"
    if names:
        if topics or request.time_start is not None or request.time_end is not None:
            return "message_hashes exclude content_topics, time_start and time_end"
    elif bool(request.pubsub_topic) != bool(topics):
        return "pubsub_topic and content_topics must both be given, or neither"
    cursor = request.pagination_cursor
    if cursor is not None and len(cursor) != MESSAGE_HASH_BYTES:
        return "pagination_cursor is not 32 bytes"
    if cursor is not None and not any(cursor):
        return "pagination_cursor is all zeros"
    return None
