"""mailserver.live.pool: bundles, and what a full pool loses."""

from collections import Counter
from collections.abc import Iterable

from hypothesis import given
from hypothesis import strategies as st

from mailserver.live.feed import LiveEnvelope
from mailserver.live.pool import ENVELOPE_OVERHEAD_BYTES, MAX_BUNDLE_BYTES, Pool, memory_of
from tests.mailservers import NOW, make_envelope
from tests.properties import settings

ROOM = 60 * (600 + ENVELOPE_OVERHEAD_BYTES)
"""For some sixty of the envelopes here."""


def live(number: int, net: int | None, data_bytes: int = 500) -> LiveEnvelope:
    """An envelope that came from this subnet, by its number; None: it was made here."""
    envelope = make_envelope(number, data_bytes=data_bytes)
    return LiveEnvelope(envelope, envelope.hash(), subnet=None if net is None else subnet(net))


def subnet(number: int) -> bytes:
    return bytes([192, 0, number])


def in_pool(pool: Pool) -> list[LiveEnvelope]:
    """What is there, in order, as a peer goes through it."""
    found, position = list[LiveEnvelope](), 0
    while (bundle := pool.first(position)) is not None:
        found += bundle.envelopes
        position = bundle.number + 1
    return found


def memory_by_subnet(lives: Iterable[LiveEnvelope]) -> Counter[bytes | None]:
    memory: Counter[bytes | None] = Counter()
    for one in lives:
        memory[one.subnet] += memory_of(one)
    return memory


def test_subnet_that_floods_the_pool_drives_out_nothing_of_others() -> None:
    pool = Pool(ROOM)
    early = [live(1, net=7), live(2, net=None)]
    pool.add(early, NOW)

    for number in range(3, 1000, 10):
        pool.add([live(each, net=8) for each in range(number, number + 10)], NOW)
        assert pool.usage[1] <= ROOM

    left = in_pool(pool)
    assert left[:2] == early
    assert [one.subnet for one in left[2:]] == [subnet(8)] * (len(left) - 2)
    assert len(left) > 30


def test_of_a_bundle_that_several_have_brought_only_what_is_too_much_goes() -> None:
    pool = Pool(ROOM)
    mixed = [live(number, net=8 if number % 10 else 7) for number in range(50)]
    pool.add(mixed, NOW)

    pool.add([live(number, net=8) for number in range(50, 90)], NOW)

    assert [one.subnet for one in in_pool(pool)[:5]] == [subnet(7)] * 5
    assert in_pool(pool)[5:] == in_pool(pool)[-40:]


def test_pool_says_what_it_has_dropped_for_want_of_room_and_before_its_time() -> None:
    pool = Pool(ROOM)
    lives = [live(number, net=8) for number in range(80)]

    assert [*pool.add(lives[:50], NOW)] == []
    losses = [*pool.add(lives[50:], NOW)]

    assert {number for number, _ in losses} == {0}
    assert sum(count for _, count in losses) == 80 - len(in_pool(pool))
    assert sum(count for _, count in pool.add(lives, lives[0].envelope.expiry + 1)) == 0  # nothing is left


def test_numbers_go_on_over_bundles_that_were_dropped() -> None:
    pool = Pool(ROOM)
    for number in range(10):
        pool.add([live(10 * number + each, net=8) for each in range(10)], NOW)

    first = pool.first(0)

    assert first is not None
    assert first.number > 0
    assert pool.end == 10
    assert pool.first(9) is not None
    assert pool.first(10) is None


BATCHES = st.lists(
    st.lists(st.tuples(st.sampled_from([None, 1, 2, 3, 4]), st.integers(0, 3000)), min_size=1, max_size=40), max_size=12
)


@settings(max_examples=60)
@given(BATCHES)
def test_full_pool_drops_the_oldest_of_the_subnet_that_had_most(batches: list[list[tuple[int | None, int]]]) -> None:
    pool, number, before = Pool(ROOM), 0, list[LiveEnvelope]()
    for batch in batches:
        added = [live(number + at, net, data_bytes) for at, (net, data_bytes) in enumerate(batch)]
        number += len(added)
        pool.add(added, NOW)
        left = in_pool(pool)
        memory, had = memory_by_subnet(left), memory_by_subnet([*before, *added])

        assert memory.total() <= ROOM
        for whose, size in had.items():
            of_it = [one for one in [*before, *added] if one.subnet == whose]
            kept = [one for one in left if one.subnet == whose]
            assert kept == of_it[len(of_it) - len(kept) :]
            if len(kept) < len(of_it):  # whoever loses had as much as any that lost nothing
                assert all(size >= had[other] for other in had if memory[other] == had[other])
        if had.total() <= ROOM:
            assert left == [*before, *added]
        before = left


def test_bundles_are_no_longer_than_a_packet() -> None:
    pool = Pool()
    pool.add([live(number, net=1, data_bytes=5000) for number in range(40)], NOW)

    sizes, position = list[int](), 0
    while (bundle := pool.first(position)) is not None:
        sizes.append(bundle.bytes)
        position = bundle.number + 1
    assert max(sizes) <= MAX_BUNDLE_BYTES < sum(sizes[:2])
