"""mailserver.waku.envelope_rows: many envelopes in one go; `test_envelope` reads each kind of envelope by it, too."""

import pytest

from mailserver.waku import envelope_rows
from mailserver.waku.envelope import Envelope, encode_envelope
from mailserver.waku.envelope_rows import EnvelopeFields, read_fields
from tests.waku.envelopes import TOPIC

LAST_NONCE = (1 << 64) - 1


def envelope(data_bytes: int, nonce: int, *, ttl: int = 50) -> Envelope:
    return encode_envelope(1_795_000_050, ttl, TOPIC, bytes(data_bytes), nonce)


def fields_of(envelope: Envelope) -> EnvelopeFields:
    nonce = envelope.nonce.to_bytes(8, "big")
    return envelope.created, envelope.ttl, envelope.topic, envelope.data, nonce


def read(*raws: bytes) -> list[EnvelopeFields | None]:
    return read_fields(b"".join(raws), map(len, raws))


def test_envelopes_of_one_length_may_differ_in_the_lengths_of_their_fields() -> None:
    several = [envelope(300, LAST_NONCE), envelope(307, 0x80), envelope(304, 1 << 24)]
    garbage = b"\xb9" * len(several[0].raw)
    of_long_ttl = envelope(299, LAST_NONCE, ttl=0x80)
    raws = [garbage, *(each.raw for each in several), of_long_ttl.raw, garbage, *(each.raw for each in several[::-1])]

    fields = read(*raws)

    expected = [fields_of(each) for each in several]
    assert len({*map(len, raws)}) == 1
    assert fields == [None, *expected, fields_of(of_long_ttl), None, *expected[::-1]]


@pytest.mark.parametrize("data_bytes", [65_508, 65_509, 65_510, 65_535])
def test_envelope_of_nearly_64_kib_is_read_whichever_head_it_has(data_bytes: int) -> None:
    longest = envelope(data_bytes, LAST_NONCE)

    assert read(longest.raw, longest.raw) == [fields_of(longest)] * 2


def test_forms_of_few_lengths_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(envelope_rows, "FORMS_KEPT", 3)
    forms: dict[int, object] = {}
    monkeypatch.setattr(envelope_rows, "_forms", forms)
    several = [envelope(256 + number, LAST_NONCE) for number in range(10)]

    fields = read(*(each.raw for each in several))

    assert fields == [*map(fields_of, several)]
    assert 1 <= len(forms) <= 3
