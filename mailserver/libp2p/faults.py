"""What a libp2p peer did wrong: it ends that connection, and nothing else."""

from enum import Enum

from mailserver.errors import MailserverError


class Cause(Enum):
    """Which rule was broken. The value is the label of counters and log lines."""

    # Of multistream-select:
    NO_MULTISTREAM = "no_multistream"  # the first line says something else
    BAD_LINE = "bad_line"  # a line without its newline, or no text
    LINE_TOO_LONG = "line_too_long"
    TOO_MANY_PROPOSALS = "too_many_proposals"
    WRONG_ANSWER = "wrong_answer"  # to a proposal, neither yes nor no
    NO_NOISE = "no_noise"  # the node dialled does not speak it
    NO_COMMON_MUXER = "no_common_muxer"

    # Of Noise:
    BAD_IDENTITY_KEY = "bad_identity_key"  # the payload of a handshake has no key that could be used
    WRONG_SIGNATURE = "wrong_signature"  # the identity key has not signed the static key
    WRONG_PEER = "wrong_peer"  # the node dialled is another one
    LOW_ORDER_POINT = "low_order_point"  # a key with which everybody would know the secret
    UNDECRYPTABLE = "undecryptable"  # tampered with, repeated, or out of order
    NONCES_USED_UP = "nonces_used_up"

    # Of the connection:
    HANDSHAKE_TIMEOUT = "handshake_timeout"
    NEGOTIATION_TIMEOUT = "negotiation_timeout"  # of one stream, which ends alone

    # Of the muxers:
    BAD_FRAME = "bad_frame"  # a header that is none of its muxer's
    FRAME_TOO_LONG = "frame_too_long"
    BAD_STREAM_ID = "bad_stream_id"  # a stream opened by an id of our side's
    STREAM_REUSED = "stream_reused"  # a stream opened by an id that has been used
    WINDOW_OVERRUN = "window_overrun"  # more bytes on a stream than its window allowed
    WINDOW_OVERFLOW = "window_overflow"  # a window of more bytes than its number can hold
    IDLE_FRAMES = "idle_frames"  # too many frames at once that do nothing, or open streams where no more may be
    TOO_MANY_FRAMES = "too_many_frames"  # at once
    TOO_MUCH_UNREAD = "too_much_unread"  # more bytes on all streams together than are kept


class Libp2pFault(MailserverError):
    """The peer broke a rule of libp2p; its connection is closed.

    Args:
        cause: which rule, for counters.
        got: what was found, or None.
        limit: the bound that was passed, or None.
    """

    def __init__(self, cause: Cause, got: object = None, limit: object = None) -> None:
        super().__init__(cause, got, limit)
        self.cause = cause
        self.got = got
        self.limit = limit

    def __str__(self) -> str:
        text = self.cause.value.replace("_", " ")
        if self.got is not None:
            text += f", got {self.got}"
        if self.limit is not None:
            text += f", limit {self.limit}"
        return text
