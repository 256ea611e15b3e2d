"""mailserver.live.seen."""

import pytest

from mailserver.live.seen import MAX_SENDERS, Seen, Sighting
from mailserver.waku.envelope import EnvelopeHash
from tests.pairs import digest

NOW = 1000.0


def hash_of(number: int) -> EnvelopeHash:
    return EnvelopeHash(digest(f"envelope {number}"))


def seen_with(*expiries: int, now: float = NOW, max_seen: int = 100) -> Seen:
    """What has seen envelopes that expire then, numbered from 0."""
    seen = Seen(max_seen=max_seen)
    for number, expiry in enumerate(expiries):
        seen.add(hash_of(number), expiry, now)
    return seen


def known(seen: Seen, count: int) -> list[int]:
    """Which of the envelopes numbered below `count` it remembers."""
    return [number for number in range(count) if seen.get(hash_of(number)) is not None]


def test_what_is_added_is_found_as_the_same_sighting() -> None:
    seen = Seen()

    sighting = seen.add(hash_of(1), 1050, NOW)

    assert seen.get(hash_of(1)) is sighting
    assert (sighting.expiry, sighting.stored_in, sighting.peers) == (1050, None, ())
    assert seen.get(hash_of(2)) is None


def test_expired_ones_are_forgotten_as_new_ones_come() -> None:
    seen = seen_with(1001, 1001, 1001, 1050)

    seen.add(hash_of(4), 1060, now=1002.0)
    assert known(seen, 5) == [2, 3, 4]
    seen.add(hash_of(5), 1060, now=1002.0)

    assert known(seen, 6) == [3, 4, 5]


@pytest.mark.parametrize("now", [1000.0, 1000.5, 1000.999])
def test_envelope_is_remembered_until_the_end_of_the_second_in_which_it_expires(now: float) -> None:
    seen = Seen()

    seen.add(hash_of(0), 1000, now)
    seen.add(hash_of(1), 1000, now)

    assert known(seen, 2) == [0, 1]


def test_everything_may_have_expired() -> None:
    seen = seen_with(1001, 1001)

    sighting = seen.add(hash_of(2), 900, now=2000.0)

    assert known(seen, 3) == [2]
    assert seen.get(hash_of(2)) is sighting


def test_beyond_the_most_the_one_first_seen_is_forgotten() -> None:
    seen = seen_with(*[2000] * 10, max_seen=3)

    assert known(seen, 10) == [7, 8, 9]
    assert len(seen) == 3


def test_it_shrinks_again_after_a_burst() -> None:
    seen = seen_with(*[1001] * 50)

    for number in range(50, 100):
        seen.add(hash_of(number), 1003, now=1002.0)

    assert known(seen, 100) == list(range(50, 100))


def test_each_peer_that_has_it_is_noted_once() -> None:
    sighting = Sighting()

    for number in (3, 1, 3, 2, 1):
        sighting.add_peer(number)

    assert sighting.peers == (3, 1, 2)


def test_peers_that_are_noted_are_bounded() -> None:
    sighting = Sighting()

    for number in range(MAX_SENDERS + 10):
        sighting.add_peer(number)

    assert sighting.peers == tuple(range(10, MAX_SENDERS + 10))


def test_what_one_peer_alone_has_sent_shares_one_tuple_whatever_others_do() -> None:
    seen = Seen()
    first, second, third = (seen.add(hash_of(number), 10, 0.0) for number in range(3))

    first.add_peer(70_001)
    second.add_peer(70_001)
    third.add_peer(70_002)
    shared = first.peers is second.peers
    second.add_peer(70_003)

    assert shared
    assert (first.peers, second.peers, third.peers) == ((70_001,), (70_001, 70_003), (70_002,))
