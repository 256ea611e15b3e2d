"""Reading many envelopes that lie one after the other, as a store has them: the fields of each, and nothing more.

The bytes are judged as `waku.envelope` judges them. It reads all that is not of the form that nearly all have.
"""

import struct
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, TypeAlias

from mailserver.errors import DecodeError
from mailserver.waku.envelope import NONCE_BYTES, Topic, decode_envelope

FORMS_KEPT = 4096
"""Of how many lengths of envelopes it is remembered how the last one lay: up to 2 MB."""

EnvelopeFields: TypeAlias = tuple[int, int, Topic, bytes, bytes]
"""What an envelope says: created, ttl, topic, data, and the nonce as 8 bytes, big-endian."""


def read_fields(body: bytes, sizes: Iterable[int]) -> list[EnvelopeFields | None]:
    """Read envelopes that lie one after the other, as a store has them: of each its fields, None if it does not decode.

    It takes half the time of `decode_envelope`: nothing is kept of where the fields are.

    Args:
        sizes: the length of each. One of 0 does not decode.
    """
    return [
        None if row is None else (row[1] - row[2], row[2], row[4], row[6], row[8]) for row in read_rows(body, sizes)
    ]


EnvelopeRow: TypeAlias = tuple[bytes, int, int, bytes, Topic, bytes, bytes, bytes, bytes]
"""An envelope as it lies there: its head, expiry, ttl, head of the topic, topic, head of the data, data, head of the
nonce, nonce. The nonce has 8 bytes, big-endian; of an unusual envelope, the heads are empty."""


def read_rows(body: bytes, sizes: Iterable[int]) -> list[EnvelopeRow | None]:
    """Do what `read_fields` does, and leave the fields as they are read; that takes two thirds of the time.

    The fields of nearly all envelopes of one length have the same lengths. So these are looked at once, and all fields
    are read in one step.
    """
    rows: list[EnvelopeRow | None] = []
    forms, at = _forms, 0
    for size in sizes:
        form = forms.get(size)
        if form is None:
            form = _keep_form(body, at, size)
        unpack, head, data_head, nonce_head, least, is_long = form
        if unpack is not None:
            row = a_head, expiry, ttl, topic_head, _, a_data_head, _, a_nonce_head, nonce = unpack(body, at)
            if (  # as `waku.envelope` says of usual ones
                a_head == head
                and topic_head == b"\x84"
                and a_data_head == data_head
                and a_nonce_head == nonce_head
                and nonce[0] >= least
                and expiry > 0xFF_FFFF
                and 0 < ttl < 0x80
            ):
                rows.append(row if is_long else (*row[:-1], nonce.rjust(NONCE_BYTES, b"\0")))
                at += size
                continue
        _keep_form(body, at, size)  # the next one of this length may be like this one
        rows.append(_row_of(body[at : at + size]))
        at += size
    return rows


_DATA_AT = 17
"""Where the data of a usual envelope begins: behind the heads of the list, expiry, topic and data, of 3, 1, 1 and 3
bytes, and expiry, ttl and topic, of 4, 1 and 4."""


class _Form(NamedTuple):
    """How a usual envelope lies whose data and nonce have certain lengths.

    `unpack` reads it, None if there is no such envelope; what it finds as heads must be these. `least`: of the first
    byte of the nonce. `is_long`: whether the nonce has all of its 8 bytes.
    """

    unpack: Callable[[bytes, int], Any] | None
    head: bytes = b""
    data_head: bytes = b""
    nonce_head: bytes = b""
    least: int = 1
    is_long: bool = True


_UNUSUAL = _Form(None)
_forms: dict[int, _Form] = {}  # of the last envelope of each length, whoever has read it


def _keep_form(body: bytes, at: int, size: int) -> _Form:
    """Take the form of the envelope of so many bytes that begins there, by the length that it gives its data."""
    if len(_forms) >= FORMS_KEPT:
        _forms.clear()
    data_at = at + _DATA_AT
    data_bytes = int.from_bytes(body[data_at - 2 : data_at], "big")
    form = _forms[size] = _form(data_bytes, size - _DATA_AT - data_bytes - 1)
    return form


def _form(data_bytes: int, nonce_bytes: int) -> _Form:
    if data_bytes <= 0xFF or not 0 < nonce_bytes <= NONCE_BYTES:
        return _UNUSUAL
    fields = struct.Struct(f">4s I B s 4s 3s {data_bytes}s s {nonce_bytes}s")
    if fields.size - 3 > 0xFFFF:  # then its head is longer
        return _UNUSUAL
    return _Form(
        fields.unpack_from,
        b"\xf9" + (fields.size - 3).to_bytes(2, "big") + b"\x84",
        b"\xb9" + data_bytes.to_bytes(2, "big"),
        bytes((0x80 + nonce_bytes,)),
        least=0x80 if nonce_bytes == 1 else 1,
        is_long=nonce_bytes == NONCE_BYTES,
    )


def _row_of(raw: bytes) -> EnvelopeRow | None:
    """An envelope of any form."""
    try:
        envelope = decode_envelope(raw)
    except DecodeError:
        return None
    nonce = envelope.nonce.to_bytes(NONCE_BYTES, "big")
    return b"", envelope.expiry, envelope.ttl, b"", envelope.topic, b"", envelope.data, b"", nonce
