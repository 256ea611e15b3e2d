"""Why a call fails: the closed set of codes, the error that carries one, and the codes of our other errors."""

from collections.abc import Mapping
from enum import IntEnum

from mailserver.errors import MailserverError

ErrorCodes = Mapping[type[MailserverError], "ErrorCode"]
"""The errors that methods may raise besides RpcError, and the code that callers get for each."""


class ErrorCode(IntEnum):
    """The codes of JSON-RPC 2.0 "Error object", and ours from -32000 down."""

    PARSE_ERROR = -32700
    INVALID_REQUEST = -32600
    METHOD_NOT_FOUND = -32601
    INVALID_PARAMS = -32602
    INTERNAL_ERROR = -32603
    REFUSED = -32000
    """This node does not accept the envelope: its proof of work, size, topic or time is wrong."""
    NOT_FOUND = -32001
    """No key, filter or subscription has this id."""
    TOO_MANY = -32002
    """There are as many keys, filters, subscriptions, proofs of work or requests as allowed, or too much to look at."""
    TOO_MUCH_WORK = -32003
    """The proof of work was not found in the given time."""
    PEER_UNAVAILABLE = -32004
    """The peer is not connected, or must be trusted and is not."""
    STORE_UNAVAILABLE = -32005
    """The envelope could not be stored, or the store could not be read, or still indexes message ids."""
    NO_NOTIFICATIONS = -32006
    """Subscriptions need a lasting connection: a WebSocket."""
    TIMED_OUT = -32007
    """The call, or its batch, took longer than allowed."""
    RESPONSE_TOO_LARGE = -32008
    """Earlier calls of the batch have filled the response, so this call was not made."""
    COMMUNITY_REFUSED = -32009
    """There is no such community or channel, or it cannot be changed in this way."""
    CURSOR_OF_ANOTHER_STORE = -32010
    """The cursor is of another store, or of before the store was restored: begin without one."""


class RpcError(MailserverError):
    """A call fails for a known reason. The caller gets `message`."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(code, message)
        self.code = code
        self.message = message

    def __str__(self) -> str:
        return self.message
