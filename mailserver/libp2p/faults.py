"""What a libp2p peer did wrong: it ends that connection, and nothing else."""

from enum import Enum

from mailserver.errors import MailserverError


class Cause(Enum):
    """Which rule was broken. The value is the label of counters and log lines."""

    # Those of the muxers:
    BAD_FRAME = "bad_frame"  # a header that is none of its muxer's
    FRAME_TOO_LONG = "frame_too_long"
    BAD_STREAM_ID = "bad_stream_id"  # a stream opened by an id of our side's
    STREAM_REUSED = "stream_reused"  # a stream opened by an id that has been used
    WINDOW_OVERRUN = "window_overrun"  # more bytes on a stream than its window allowed
    WINDOW_OVERFLOW = "window_overflow"  # a window of more bytes than its number can hold
    IDLE_FRAMES = "idle_frames"  # too many frames at once that do nothing, or open streams where no more may be
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
