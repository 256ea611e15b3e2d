"""Why a call fails: a closed set of codes, the one error that carries them, and which code an error of ours has."""

from collections.abc import Mapping
from enum import IntEnum

from mailserver.errors import MailserverError

Known = Mapping[type[MailserverError], "ErrorCode"]
"""Errors that methods may let through, with the code that each is answered with."""


class ErrorCode(IntEnum):
    """The codes of JSON-RPC 2.0 "Error object", and from -32000 down ours."""

    PARSE_ERROR = -32700
    INVALID_REQUEST = -32600
    METHOD_NOT_FOUND = -32601
    INVALID_PARAMS = -32602
    INTERNAL_ERROR = -32603
    REFUSED = -32000
    """This node does not take the envelope: its proof of work, size, topic or time."""
    NOT_FOUND = -32001
    """No key, filter or subscription has this id."""
    TOO_MANY = -32002
    """As many keys, filters, subscriptions, proofs of work or history requests as there may be."""
    TOO_MUCH_WORK = -32003
    """The proof of work was not found in the time given."""
    PEER_UNAVAILABLE = -32004
    """The peer is not connected, or must be trusted and is not."""
    STORE_UNAVAILABLE = -32005
    """The envelope is not on disk."""
    NO_NOTIFICATIONS = -32006
    """Subscriptions need a connection that stays: a WebSocket."""
    TIMED_OUT = -32007
    """The call, or its batch, took longer than it may."""
    RESPONSE_TOO_LARGE = -32008
    """Earlier calls of the batch have filled the response; this one was not made."""


class RpcError(MailserverError):
    """A call fails for a known reason; `message` is for the caller."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(code, message)
        self.code = code
        self.message = message

    def __str__(self) -> str:
        return self.message
