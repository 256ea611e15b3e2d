"""P2P Request Complete: the end of an answer (8/WAKU-MAIL, and the form of deployed clients).

    deployed        request-id(32) || last-envelope-hash(32) || [cursor(36)]    one byte string
                    "ERROR=" || request-id(32) || message                       the request failed
    specification   [request-id, last-envelope-hash, cursor]                    a list

We send the deployed form, which deployed clients need, or, if the operator says so, the list. We read both.
"""

import re
from dataclasses import dataclass
from enum import Enum

from mailserver.codec import rlp
from mailserver.errors import DecodeError
from mailserver.mail.request import CURSOR_BYTES, REQUEST_ID_BYTES, Cursor, RequestId
from mailserver.waku.envelope import HASH_BYTES, EnvelopeHash

NO_ENVELOPE = EnvelopeHash(bytes(HASH_BYTES))
"""Stands for the hash of the last envelope if none was found."""

_ERROR_PREFIX = b"ERROR="
_POW_TOO_LOW = re.compile(r"\b(pow|proof of work)\b.*\btoo low\b", re.IGNORECASE)
_MIN_BYTES = REQUEST_ID_BYTES + HASH_BYTES


class CompletionFormat(Enum):
    """Which form to send."""

    BYTES = "bytes"
    LIST = "list"


@dataclass(frozen=True, slots=True)
class Completion:
    """A request is answered. `cursor`: where the next request continues; None if nothing remains."""

    request_id: RequestId
    last_envelope_hash: EnvelopeHash = NO_ENVELOPE
    cursor: Cursor | None = None

    def encode(self, form: CompletionFormat = CompletionFormat.BYTES) -> bytes:
        """Encode as a byte string or as a list."""
        cursor = self.cursor.encode() if self.cursor else b""
        if form is CompletionFormat.LIST:
            return rlp.encode([self.request_id, self.last_envelope_hash, cursor])
        return rlp.encode(self.request_id + self.last_envelope_hash + cursor)


@dataclass(frozen=True, slots=True)
class Failure:
    """A request failed. `message` tells people why."""

    request_id: RequestId
    message: str

    @property
    def is_pow_too_low(self) -> bool:
        """Whether it says, in our words or the deployed server's, that the request has too little proof of work."""
        return _POW_TOO_LOW.search(self.message) is not None

    def encode(self) -> bytes:
        """Encode as a byte string: the specification has no form for it."""
        return rlp.encode(_ERROR_PREFIX + self.request_id + self.message.encode())


def decode_completion(payload: bytes) -> Completion | Failure:
    """Decode a completion in any form.

    Raises:
        DecodeError: it has none of the forms.
    """
    item = rlp.decode(payload)
    if isinstance(item, list):
        return _from_list(item)
    if item.startswith(_ERROR_PREFIX):  # even if it has 64 or 100 bytes: deployed clients look at the prefix first
        return _failure(item)
    if len(item) not in (_MIN_BYTES, _MIN_BYTES + CURSOR_BYTES):
        raise DecodeError("completion has the wrong length", got=len(item))
    cursor = item[_MIN_BYTES:]
    return Completion(
        RequestId(item[:REQUEST_ID_BYTES]),
        EnvelopeHash(item[REQUEST_ID_BYTES:_MIN_BYTES]),
        Cursor.decode(cursor) if cursor else None,
    )


def _failure(item: bytes) -> Failure:
    message_at = len(_ERROR_PREFIX) + REQUEST_ID_BYTES
    if len(item) < message_at:
        raise DecodeError("error completion is too short", got=len(item), limit=message_at)
    return Failure(RequestId(item[len(_ERROR_PREFIX) : message_at]), item[message_at:].decode("utf-8", "replace"))


def _from_list(fields: list[rlp.Item]) -> Completion:
    if len(fields) < 2:
        raise DecodeError("completion has too few elements", got=len(fields), limit=2)
    cursor = fields[2] if len(fields) > 2 else b""
    if isinstance(cursor, list):  # the specification's brackets, taken literally
        cursor = cursor[0] if cursor else b""
    return Completion(
        RequestId(rlp.as_bytes(fields[0], REQUEST_ID_BYTES)),
        EnvelopeHash(rlp.as_bytes(fields[1], HASH_BYTES)),
        Cursor.decode(rlp.as_bytes(cursor)) if cursor else None,
    )
