"""mailserver.waku.last_hash: the hash of the last of many envelopes."""

import tracemalloc

import pytest

from mailserver.codec.keccak import keccak256
from mailserver.waku.last_hash import MAX_KEPT_BYTES, LastHash


def test_hash_is_that_of_the_last_one() -> None:
    last = LastHash()
    assert last.value() is None

    for raw in b"one", bytes(2 * MAX_KEPT_BYTES), b"three":
        last.take(raw)
        assert [last.value(), last.value()] == [keccak256(raw)] * 2


@pytest.mark.parametrize(("size", "kept"), [(MAX_KEPT_BYTES, MAX_KEPT_BYTES), (MAX_KEPT_BYTES + 1, 0)])
def test_long_envelope_is_not_kept(size: int, kept: int) -> None:
    last = LastHash()
    tracemalloc.start()
    try:
        last.take(bytes(size))
        now, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert kept <= now < kept + 1024
