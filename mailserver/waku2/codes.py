"""The status codes of the protocols, each with what it says to people where nothing better is known.

The numbers are those of nwaku, go-waku and js-waku. One number means different things in two protocols: 504.
"""

from enum import IntEnum


class FilterStatus(IntEnum):
    """Of FilterSubscribeResponse (12/WAKU2-FILTER; nwaku, waku_filter_v2/common)."""

    OK = 200
    BAD_RESPONSE = 300
    BAD_REQUEST = 400
    NOT_FOUND = 404
    TOO_MANY_REQUESTS = 429
    SERVICE_UNAVAILABLE = 503
    PEER_DIAL_FAILURE = 504

    @property
    def text(self) -> str:
        """For people."""
        return _FILTER_TEXTS[self]


class StoreStatus(IntEnum):
    """Of StoreQueryResponse (13/WAKU2-STORE; nwaku, waku_store/common)."""

    OK = 200
    BAD_RESPONSE = 300
    BAD_REQUEST = 400
    TOO_MANY_REQUESTS = 429
    SERVICE_UNAVAILABLE = 503
    PEER_DIAL_FAILURE = 504

    @property
    def text(self) -> str:
        """For people."""
        return _STORE_TEXTS[self]


class LightPushStatus(IntEnum):
    """Of LightPushResponse (19/WAKU2-LIGHTPUSH; nwaku, waku_lightpush/common)."""

    OK = 200
    BAD_REQUEST = 400
    PAYLOAD_TOO_LARGE = 413
    INVALID_MESSAGE = 420
    UNSUPPORTED_PUBSUB_TOPIC = 421
    TOO_MANY_REQUESTS = 429
    INTERNAL_SERVER_ERROR = 500
    SERVICE_UNAVAILABLE = 503
    OUT_OF_PROOFS = 504
    NO_PEERS_TO_RELAY = 505

    @property
    def text(self) -> str:
        """For people."""
        return _LIGHTPUSH_TEXTS[self]


_FILTER_TEXTS = {
    FilterStatus.OK: "OK",
    FilterStatus.BAD_RESPONSE: "the answer is malformed",
    FilterStatus.BAD_REQUEST: "the request is malformed",
    FilterStatus.NOT_FOUND: "peer has no subscriptions",
    FilterStatus.TOO_MANY_REQUESTS: "too many requests in a short time",
    FilterStatus.SERVICE_UNAVAILABLE: "no room for more subscriptions",
    FilterStatus.PEER_DIAL_FAILURE: "peer cannot be reached",
}
_STORE_TEXTS = {
    StoreStatus.OK: "OK",
    StoreStatus.BAD_RESPONSE: "the answer is malformed",
    StoreStatus.BAD_REQUEST: "the query is malformed",
    StoreStatus.TOO_MANY_REQUESTS: "too many queries in a short time",
    StoreStatus.SERVICE_UNAVAILABLE: "the store could not answer",
    StoreStatus.PEER_DIAL_FAILURE: "peer cannot be reached",
}
_LIGHTPUSH_TEXTS = {
    LightPushStatus.OK: "OK",
    LightPushStatus.BAD_REQUEST: "the request is malformed",
    LightPushStatus.PAYLOAD_TOO_LARGE: "the message is too large",
    LightPushStatus.INVALID_MESSAGE: "the message cannot be published here",
    LightPushStatus.UNSUPPORTED_PUBSUB_TOPIC: "the pubsub topic is not served here",
    LightPushStatus.TOO_MANY_REQUESTS: "too many messages in a short time",
    LightPushStatus.INTERNAL_SERVER_ERROR: "something is wrong here",
    LightPushStatus.SERVICE_UNAVAILABLE: "messages cannot be published now",
    LightPushStatus.OUT_OF_PROOFS: "no proofs are left",
    LightPushStatus.NO_PEERS_TO_RELAY: "no peers to relay to",
}
