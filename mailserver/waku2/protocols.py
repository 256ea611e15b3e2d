"""The protocols that a stream may be for, by their ids on the wire, and how long the frames of each may be."""

from enum import StrEnum
from typing import NamedTuple

from mailserver.waku2.filter_packets import MAX_PUSH_BYTES, MAX_SUBSCRIBE_REQUEST_BYTES, MAX_SUBSCRIBE_RESPONSE_BYTES
from mailserver.waku2.lightpush import MAX_LIGHTPUSH_REQUEST_BYTES, MAX_LIGHTPUSH_RESPONSE_BYTES
from mailserver.waku2.metadata import MAX_METADATA_BYTES
from mailserver.waku2.old_filter import MAX_OLD_PUSH_BYTES, MAX_OLD_REQUEST_BYTES
from mailserver.waku2.store_query import MAX_ANSWER_BYTES, MAX_QUERY_BYTES


class ProtocolId(StrEnum):
    """The ids, as multistream-select negotiates them."""

    FILTER_SUBSCRIBE = "/vac/waku/filter-subscribe/2.0.0-beta1"
    FILTER_PUSH = "/vac/waku/filter-push/2.0.0-beta1"
    OLD_FILTER = "/vac/waku/filter/2.0.0-beta1"
    STORE_QUERY = "/vac/waku/store-query/3.0.0"
    LIGHTPUSH = "/vac/waku/lightpush/3.0.0"
    LIGHTPUSH_2 = "/vac/waku/lightpush/2.0.0-beta1"
    METADATA = "/vac/waku/metadata/1.0.0"


class FrameBounds(NamedTuple):
    """The longest frames, in bytes; 0: this side sends none."""

    to_service: int
    to_client: int


FRAME_BOUNDS: dict[ProtocolId, FrameBounds] = {
    ProtocolId.FILTER_SUBSCRIBE: FrameBounds(MAX_SUBSCRIBE_REQUEST_BYTES, MAX_SUBSCRIBE_RESPONSE_BYTES),
    ProtocolId.FILTER_PUSH: FrameBounds(0, MAX_PUSH_BYTES),
    ProtocolId.OLD_FILTER: FrameBounds(MAX_OLD_REQUEST_BYTES, MAX_OLD_PUSH_BYTES),
    ProtocolId.STORE_QUERY: FrameBounds(MAX_QUERY_BYTES, MAX_ANSWER_BYTES),
    ProtocolId.LIGHTPUSH: FrameBounds(MAX_LIGHTPUSH_REQUEST_BYTES, MAX_LIGHTPUSH_RESPONSE_BYTES),
    ProtocolId.LIGHTPUSH_2: FrameBounds(MAX_LIGHTPUSH_REQUEST_BYTES, MAX_LIGHTPUSH_RESPONSE_BYTES),
    ProtocolId.METADATA: FrameBounds(MAX_METADATA_BYTES, MAX_METADATA_BYTES),
}
