"""mailserver.rlpx.shared_payload, as sessions send it."""

import pytest

from mailserver.codec import snappy
from mailserver.rlpx.shared_payload import SharedPayload
from tests.pairs import TOY, TOY_OFFSET, open_session


def test_shared_payload_is_sent_to_each_as_it_understands_it() -> None:
    payload = SharedPayload(b"said to many " * 50)
    heard = []

    for version in (5, 4, 5):
        session, peer = open_session(version=version)
        session.send(TOY, 3, payload)
        heard.append(peer.hear())

    compressed = [(TOY_OFFSET + 3, snappy.compress(payload.raw))]
    assert heard == [compressed, [(TOY_OFFSET + 3, payload.raw)], compressed]


def test_shared_payload_is_compressed_once_and_only_if_someone_needs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    compressed: list[bytes] = []
    compress = snappy.compress

    def count(data: bytes) -> bytes:
        compressed.append(data)
        return compress(data)

    monkeypatch.setattr(snappy, "compress", count)
    payload = SharedPayload(b"said to many")

    for version in (4, 4):
        session, _ = open_session(version=version)
        compressed.clear()
        session.send(TOY, 0, payload)
    unneeded = list(compressed)
    for _ in range(3):
        session, _ = open_session()
        session.send(TOY, 0, payload)

    assert unneeded == []
    assert compressed.count(payload.raw) == 1


def test_empty_shared_payload_is_a_payload_too() -> None:
    session, peer = open_session()

    session.send(TOY, 0, SharedPayload(b""))

    assert peer.hear_inflated() == [(TOY_OFFSET, b"")]
