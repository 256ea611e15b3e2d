"""Every error of the mailserver, arranged by who is at fault and what the caller does about it.

    MailserverError
      DecodeError            bytes do not parse; layer 1, knows no peer
      RemoteProtocolError    the peer broke a rule: close its connection with `.reason`
      LocalProtocolError     we called out of turn: a bug, caught nowhere
      ConnectionLost         the transport is gone, or the peer said goodbye: ordinary
      RequestRejected        a history request is refused: tell the client `.rejection`
      StoreError             the store could not do it; nothing was confirmed
      ConfigError            a setting is wrong: usage, exit code 2
      StartupError           the daemon cannot start: a file, a port, a lock; exit code 1

Errors carry fields; the text is built in `__str__`. A peer learns the reason, the log learns the cause.
"""

from enum import Enum, IntEnum


class DisconnectReason(IntEnum):
    """Why a connection ends, as sent in Disconnect (rlpx.md "Disconnect (0x01)")."""

    REQUESTED = 0x00
    TCP_ERROR = 0x01
    PROTOCOL_BREACH = 0x02
    USELESS_PEER = 0x03
    TOO_MANY_PEERS = 0x04
    ALREADY_CONNECTED = 0x05
    INCOMPATIBLE_VERSION = 0x06
    NULL_IDENTITY = 0x07
    CLIENT_QUITTING = 0x08
    UNEXPECTED_IDENTITY = 0x09
    SELF_CONNECTION = 0x0A
    PING_TIMEOUT = 0x0B
    SUBPROTOCOL_ERROR = 0x10


class Rejection(Enum):
    """Why a history request is refused. The value is the text that the client is told."""

    MALFORMED = "request is malformed"
    UNDECRYPTABLE = "request could not be decrypted"
    CLEAR_REFUSED = "request must be sealed in an envelope"
    REPLAYED = "request was made by another peer"
    POW_TOO_LOW = "proof of work of the request is too low"
    EMPTY_FILTER = "request names neither topics nor a bloom filter"
    BAD_TOPIC = "a topic is not 4 bytes long"
    TOO_MANY_TOPICS = "request names too many topics"
    BAD_BLOOM = "bloom filter is not 64 bytes long"
    BAD_RANGE = "lower bound is above the upper bound"
    BAD_CURSOR = "cursor is malformed"
    TOO_MANY_WAITING = "too many requests are waiting"
    RATE_LIMITED = "too many requests or envelopes in a short time"
    STORE_UNAVAILABLE = "the store could not answer"


class MailserverError(Exception):
    """Base of all errors that the mailserver raises on purpose."""


class DecodeError(MailserverError):
    """Bytes do not parse.

    Args:
        what: the thing that was being decoded, in the specification's word.
        got: what was found, or None.
        limit: the bound that was passed, or None.
    """

    def __init__(self, what: str, got: object = None, limit: object = None) -> None:
        super().__init__(what, got, limit)
        self.what = what
        self.got = got
        self.limit = limit

    def __str__(self) -> str:
        text = self.what
        if self.got is not None:
            text += f", got {self.got}"
        if self.limit is not None:
            text += f", limit {self.limit}"
        return text


class RemoteProtocolError(MailserverError):
    """The peer broke a rule; its connection is closed with `reason`."""

    def __init__(self, reason: DisconnectReason, cause: str) -> None:
        super().__init__(reason, cause)
        self.reason = reason
        self.cause = cause

    def __str__(self) -> str:
        return f"{self.cause} ({self.reason.name})"


class LocalProtocolError(MailserverError):
    """We used a machine out of turn. Always a bug of ours."""


class ConnectionLost(MailserverError):
    """The connection ended before the answer came; `reason` is None when the peer just went away."""

    def __init__(self, reason: DisconnectReason | None, cause: str) -> None:
        super().__init__(reason, cause)
        self.reason = reason
        self.cause = cause

    def __str__(self) -> str:
        return self.cause


class RequestRejected(MailserverError):
    """A history request is refused; `message` is what its sender is told.

    Args:
        rejection: why.
        cause: more, for the log.
        retry_after_s: when to come back, where that helps.
    """

    def __init__(self, rejection: Rejection, cause: str = "", retry_after_s: int | None = None) -> None:
        super().__init__(rejection, cause, retry_after_s)
        self.rejection = rejection
        self.cause = cause
        self.retry_after_s = retry_after_s

    @property
    def message(self) -> str:
        """What the client is told. Programs find the time by `come back in N s`."""
        again = "" if self.retry_after_s is None else f": come back in {self.retry_after_s} s"
        return self.rejection.value + again

    def __str__(self) -> str:
        return f"{self.rejection.value}: {self.cause}" if self.cause else self.rejection.value


class StoreError(MailserverError):
    """The store could not be opened, read or written."""


class ConfigError(MailserverError):
    """A setting is wrong or unknown. `str()` is one line for the operator, and names it."""


class StartupError(MailserverError):
    """Something that the daemon needs is not as it must be. `str()` is one line for the operator."""
