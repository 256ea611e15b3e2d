"""All methods in one table, and the code of every error of ours that they let through."""

from mailserver.client import TooMuchWork
from mailserver.errors import ConnectionLost, StoreError
from mailserver.rpc.admin import AdminMethods
from mailserver.rpc.dispatch import Method
from mailserver.rpc.errors import ErrorCode, Known
from mailserver.rpc.waku import Dialect, KeyMethods, NodeMethods
from mailserver.rpc.waku_ext import HistoryMethods
from mailserver.rpc.waku_messages import FilterMethods, PostMethods
from mailserver.rpc.work import Works
from mailserver.services.archive import Clock, EnvelopeRefused
from mailserver.services.completions import TooManyRequests
from mailserver.services.filters import FilterNotFound, Filters, TooManyFilters
from mailserver.services.keys import KeyNotFound, KeyStore, TooManyKeys
from mailserver.services.node import Node
from mailserver.services.peers import PeerNotConnected, PeerNotTrusted

KNOWN_ERRORS: Known = {
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
}


def all_methods(
    node: Node, keys: KeyStore, filters: Filters, *, dialect: Dialect, clock: Clock, request_pow: float = 0.0
) -> dict[str, Method]:
    """Every method of the interface, by name.

    Args:
        request_pow: least proof of work of the history requests that are made.
    """
    works = Works()
    return {
        **NodeMethods(node).table(),
        **KeyMethods(keys).table(),
        **PostMethods(node, keys, works, dialect=dialect, clock=clock).table(),
        **FilterMethods(keys, filters).table(),
        **HistoryMethods(node, keys, works, clock=clock, request_pow=request_pow).table(),
        **AdminMethods(node).table(),
    }
