"""mailserver.reconcile.storage: a set in memory, beside sums and searches that are made the long way."""

from hashlib import sha256

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mailserver.reconcile.storage import SUMS_EVERY, MemoryStorage, fingerprint_of
from mailserver.reconcile.wire import INFINITY, MAX_TIMESTAMP
from tests.properties import settings
from tests.reconcile.sets import Item, items

FEW = MemoryStorage(items(range(3 * SUMS_EVERY + 5), 20))
TOP = (1 << 256) - 1

some_items = st.lists(
    st.tuples(
        st.sampled_from([0, 1, 2, 300, MAX_TIMESTAMP]),
        st.integers(0, TOP).map(lambda number: number.to_bytes(32, "big")),
    ),
    max_size=80,
)


def test_fingerprint_is_of_the_sum_and_the_count() -> None:
    # Of nothing: 32 zero bytes and the number 0.
    assert fingerprint_of(0, 0) == sha256(bytes(33)).digest()[:16]
    assert fingerprint_of(0x0102, 300) == sha256(b"\x02\x01" + bytes(30) + b"\x82\x2c").digest()[:16]
    assert fingerprint_of((1 << 256) + 7, 1) == fingerprint_of(7, 1)


def test_sum_does_not_tell_which_ids_it_is_of_but_the_count_does() -> None:
    one_two = MemoryStorage([(1, (1).to_bytes(32, "little")), (1, (2).to_bytes(32, "little"))])
    three = MemoryStorage([(1, (3).to_bytes(32, "little"))])

    assert one_two.fingerprint(0, 2) != three.fingerprint(0, 1)


@settings(max_examples=60)
@given(some_items, st.data())
def test_range_is_what_a_sorted_list_has(some: list[Item], data: st.DataObject) -> None:
    storage = MemoryStorage(some)
    expected = sorted(set(some))
    start = data.draw(st.integers(0, len(expected)))
    stop = data.draw(st.integers(start, len(expected)))
    part = expected[start:stop]

    assert len(storage) == len(expected)
    assert storage.ids(start, stop) == [item_id for _, item_id in part]
    assert [storage.key(index) for index in range(start, stop)] == [t.to_bytes(8, "big") + name for t, name in part]
    total = sum(int.from_bytes(item_id, "little") for _, item_id in part)
    assert storage.fingerprint(start, stop) == fingerprint_of(total, len(part))


@pytest.mark.parametrize("start", range(0, len(FEW), 7))
def test_fingerprints_are_right_wherever_they_begin_and_end(start: int) -> None:
    for stop in range(start, len(FEW) + 1):
        total = sum(int.from_bytes(each, "little") for each in FEW.ids(start, stop))
        assert FEW.fingerprint(start, stop) == fingerprint_of(total, stop - start)


@settings(max_examples=60)
@given(some_items, st.sampled_from([0, 1, 2, 3, 300, MAX_TIMESTAMP]), st.binary(max_size=32), st.data())
def test_first_item_that_is_not_below_a_bound_is_found(
    some: list[Item], timestamp: int, prefix: bytes, data: st.DataObject
) -> None:
    storage = MemoryStorage(some)
    start = data.draw(st.integers(0, len(storage)))
    below = [each for each in sorted(set(some)) if each < (timestamp, prefix)]

    found = storage.find(timestamp.to_bytes(8, "big") + prefix, start, len(storage))

    assert found == max(start, len(below))


def test_nothing_is_above_infinity_and_a_search_ends_where_it_should() -> None:
    assert FEW.find(INFINITY, 0, len(FEW)) == len(FEW)
    assert FEW.find(INFINITY, 3, 9) == 9
    assert FEW.find(bytes(8), 4, 9) == 4


def test_order_of_the_items_and_repetitions_make_no_difference() -> None:
    some = items(range(50), 5)

    one, other = MemoryStorage(some), MemoryStorage([*reversed(some), *some[:7]])

    assert one.ids(0, 50) == other.ids(0, len(other))


@pytest.mark.parametrize("bad", [(-1, bytes(32)), (MAX_TIMESTAMP + 1, bytes(32)), (1, bytes(31)), (1, bytes(33))])
def test_what_is_no_item_is_refused(bad: Item) -> None:
    with pytest.raises(ValueError, match=r"timestamp|id has"):
        MemoryStorage([bad])
