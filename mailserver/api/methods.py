"""The table of all methods, and the code of every error that they may raise."""

from mailserver.api.admin import AdminMethods
from mailserver.api.dialects import Dialect
from mailserver.api.dispatch import Method
from mailserver.api.errors import ErrorCode, ErrorCodes
from mailserver.api.filters import FilterNotFound, Filters, TooManyFilters
from mailserver.api.keys import KeyNotFound, KeyStore, TooManyKeys
from mailserver.api.waku import KeyMethods, NodeMethods
from mailserver.api.waku_ext import HistoryMethods
from mailserver.api.waku_ids import IdMethods
from mailserver.api.waku_messages import FilterMethods, PostMethods
from mailserver.api.work import Works
from mailserver.client.sealing import TooMuchWork
from mailserver.errors import ConnectionLost, StoreError
from mailserver.history.id_lists import IdLists
from mailserver.history.id_search import CursorOfAnotherStore
from mailserver.live.intake import Clock, EnvelopeRefused
from mailserver.peers.completions import TooManyRequests
from mailserver.peers.connected import PeerNotConnected, PeerNotTrusted
from mailserver.peers.node import Node
from mailserver.store.message_ids import RangeTooWide, TooManyIds

KNOWN_ERRORS: ErrorCodes = {
    EnvelopeRefused: ErrorCode.REFUSED,
    KeyNotFound: ErrorCode.NOT_FOUND,
    FilterNotFound: ErrorCode.NOT_FOUND,
    TooManyKeys: ErrorCode.TOO_MANY,
    TooManyFilters: ErrorCode.TOO_MANY,
    TooManyRequests: ErrorCode.TOO_MANY,
    TooMuchWork: ErrorCode.TOO_MUCH_WORK,
    PeerNotConnected: ErrorCode.PEER_UNAVAILABLE,
    PeerNotTrusted: ErrorCode.PEER_UNAVAILABLE,
    ConnectionLost: ErrorCode.PEER_UNAVAILABLE,
    StoreError: ErrorCode.STORE_UNAVAILABLE,
    RangeTooWide: ErrorCode.TOO_MANY,
    TooManyIds: ErrorCode.TOO_MANY,
    CursorOfAnotherStore: ErrorCode.CURSOR_OF_ANOTHER_STORE,
}


def all_methods(
    node: Node,
    keys: KeyStore,
    filters: Filters,
    lists: IdLists,
    *,
    dialect: Dialect,
    clock: Clock,
    request_pow: float = 0.0,
) -> dict[str, Method]:
    """Every method of the interface, by name.

    Args:
        lists: the message ids of this mailserver.
        request_pow: lowest proof of work of the history requests to send.
    """
    works = Works()
    return {
        **NodeMethods(node).table(),
        **KeyMethods(keys).table(),
        **PostMethods(node, keys, works, dialect=dialect, clock=clock).table(),
        **FilterMethods(keys, filters).table(),
        **HistoryMethods(node, keys, works, clock=clock, request_pow=request_pow).table(),
        **IdMethods(lists).table(),
        **AdminMethods(node).table(),
    }
