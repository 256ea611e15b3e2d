"""mailserver.net.sessions: the randomness of a handshake."""

from mailserver.net.sessions import random_entropy, random_key
from mailserver.rlpx.handshake import MAX_PADDING_BYTES, MIN_PADDING_BYTES


def test_random_key_is_another_one_each_time() -> None:
    keys = {random_key().secret for _ in range(100)}

    assert len(keys) == 100


def test_entropy_is_fresh_each_time_and_of_the_lengths_that_the_handshake_wants() -> None:
    entropies = [random_entropy() for _ in range(300)]

    for parts in zip(*((e.ephemeral_key.secret, e.seal_key.secret, e.nonce, e.iv) for e in entropies), strict=True):
        assert len(set(parts)) == len(parts)
    assert {len(e.nonce) for e in entropies} == {32}
    assert {len(e.iv) for e in entropies} == {16}
    lengths = {len(e.padding) for e in entropies}
    assert min(lengths) >= MIN_PADDING_BYTES
    assert max(lengths) <= MAX_PADDING_BYTES
    assert len(lengths) > 50
