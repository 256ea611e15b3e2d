"""mailserver.limits.fair_queue: whose turn it is."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mailserver.limits.fair_queue import FairQueue, GroupedFairQueue


def taken(turns: FairQueue[str], count: int | None = None) -> list[str]:
    """Take out so many, or all."""
    values: list[str] = []
    while turns.peek() is not None and len(values) != count:
        values.append(turns.take())
    return values


def flooded(sources: int, each: int, cost: int) -> FairQueue[str]:
    """So many sources with so much queued."""
    turns = FairQueue[str]()
    for number in range(each):
        for source in range(sources):
            turns.add(source, f"{source}.{number}", cost)
    return turns


def test_nothing_is_queued_at_first() -> None:
    turns = FairQueue[str]()

    assert turns.peek() is None
    with pytest.raises(IndexError):
        turns.take()


def test_what_one_source_queues_comes_out_in_its_order() -> None:
    turns = flooded(1, 5, cost=35)

    assert taken(turns) == ["0.0", "0.1", "0.2", "0.3", "0.4"]


def test_peek_says_what_is_taken_next_and_takes_nothing() -> None:
    turns = flooded(3, 2, cost=4)

    for _ in range(6):
        assert turns.peek() == turns.peek() == turns.take()


def test_sources_take_turns() -> None:
    turns = flooded(3, 2, cost=10)

    assert taken(turns) == ["0.0", "1.0", "2.0", "0.1", "1.1", "2.1"]


def test_cheap_items_go_several_at_a_turn() -> None:
    turns = FairQueue[str]()
    for number in range(4):
        turns.add("dear", f"dear {number}", 20)
    for number in range(8):
        turns.add("cheap", f"cheap {number}", 5)

    values = taken(turns)

    assert [value.split()[0] for value in values[:10]].count("dear") in (2, 3)  # 20 a piece, against 5 a piece
    assert [value for value in values if "dear" in value] == [f"dear {number}" for number in range(4)]


def test_source_that_had_nothing_queued_is_next_however_much_others_have() -> None:
    turns = flooded(500, 3, cost=100)
    taken(turns, 700)

    turns.add("lone", "lone", 10)

    assert turns.take() == "lone"


def test_source_that_takes_less_than_its_share_is_always_next() -> None:
    turns = flooded(200, 50, cost=100)

    for _ in range(30):
        turns.add("now and then", "now and then", 1)
        assert taken(turns, 4)[0] == "now and then"


def test_source_that_wants_more_than_its_share_still_gets_its_share() -> None:
    turns = flooded(9, 100, cost=10)
    for number in range(50):
        turns.add("much", f"much {number}", 2)

    places = [at for at, value in enumerate(taken(turns)) if value.startswith("much")]

    assert all(later - place <= 4 for place, later in itertools.pairwise(places))
    assert places[-1] in range(50 * 2, 50 * 3)  # 50 * 2 by it is 50 * 2 by each of 9


def test_new_source_with_a_long_item_waits_like_all_others() -> None:
    turns = flooded(3, 10, cost=100)
    taken(turns, 4)

    turns.add("newcomer", "newcomer", 100)

    assert 1 <= taken(turns).index("newcomer") <= 8


def test_new_sources_that_keep_coming_do_not_starve_the_others() -> None:
    turns = flooded(2, 5, cost=30)
    others = 0

    for _ in range(200):  # one thing waiting at any time, and never two
        for name in "abc":
            if name not in turns:
                turns.add(name, name, 10)
        others += turns.take() not in "abc"

    assert others == 10


def test_source_that_has_nothing_queued_any_more_is_forgotten() -> None:
    turns = flooded(100, 3, cost=7)
    taken(turns)

    assert len(turns) == turns.remembered == 0
    assert not any(source in turns for source in range(100))


def test_source_that_comes_once_is_forgotten_when_others_have_had_as_much() -> None:
    turns = flooded(2, 10_000, cost=10)

    for number in range(2000):
        turns.add(f"once {number}", "once", 100)
        taken(turns, 3)

        assert turns.remembered <= 2 + 1 + 100 / 10


def test_source_is_known_while_it_has_something_queued() -> None:
    turns = FairQueue[str]()
    turns.add("one", "a", 5)
    turns.add("other", "b", 5)

    assert "one" in turns
    turns.take()
    assert "one" not in turns
    assert "other" in turns
    assert list(turns) == ["b"]
    turns.clear()
    assert "other" not in turns
    assert turns.peek() is None


@given(
    st.lists(
        st.one_of(st.none(), st.tuples(st.integers(0, 5), st.integers(1, 60))),  # take one, or add
        max_size=120,
    )
)
def test_whatever_is_queued_comes_out_once_and_in_the_order_of_its_source(steps: list[tuple[int, int] | None]) -> None:
    turns = FairQueue[tuple[int, int]]()
    added: dict[int, int] = {}
    got: list[tuple[int, int]] = []

    for step in steps:
        if step is not None:
            source, cost = step
            added[source] = added.get(source, 0) + 1
            turns.add(source, (source, added[source]), cost)
        elif turns.peek() is not None:
            got.append(turns.take())
    while turns.peek() is not None:
        got.append(turns.take())

    for source, count in added.items():
        assert [number for key, number in got if key == source] == list(range(1, count + 1))
    assert len(got) == sum(added.values())


# What it has really cost


def test_source_whose_cost_is_corrected_down_is_served_sooner() -> None:
    turns = FairQueue[str]()
    for source in "ab":
        turns.add(source, source, 100)
    turns.add("c", "c", 1000)
    taken(turns, 2)

    turns.correct("a", -90)
    for source in "ba":
        turns.add(source, f"{source} again", 100)

    assert taken(turns) == ["a again", "b again", "c"]


def test_source_whose_cost_is_corrected_up_waits_longer() -> None:
    turns = FairQueue[str]()
    for source in "ab":
        turns.add(source, source, 100)
    turns.add("c", "c", 1000)
    taken(turns, 2)

    turns.correct("a", 500)
    for source in "ab":
        turns.add(source, f"{source} again", 100)

    order = taken(turns)
    assert order.index("b again") < order.index("a again")


def test_correction_of_a_forgotten_source_changes_nothing() -> None:
    turns = FairQueue[str]()
    turns.add("a", "a", 100)
    taken(turns)

    turns.correct("a", 500)

    assert turns.remembered == 0


def test_corrected_source_is_forgotten_when_others_have_had_as_much() -> None:
    turns = FairQueue[str]()
    for number in range(3):
        turns.add("a", f"a {number}", 10)
    turns.add("b", "b", 10)
    assert taken(turns, 2) == ["a 0", "b"]
    turns.correct("b", 5)
    assert turns.remembered == 2

    taken(turns)

    assert turns.remembered == 0


# Groups


def grouped(turns: GroupedFairQueue[str], count: int) -> list[str]:
    return [turns.take() for _ in range(count)]


def test_group_gets_no_more_by_having_more_members() -> None:
    turns = GroupedFairQueue[str]()
    for member in range(50):
        turns.add("crowd", member, "crowd", 10)
    for _ in range(5):
        turns.add("lone", 0, "lone", 10)

    assert grouped(turns, 10).count("lone") == 5
    assert len(turns) == 45


def test_within_a_group_its_members_take_turns() -> None:
    turns = GroupedFairQueue[str]()
    for _ in range(20):
        turns.add("home", "flood", "flood", 10)
    turns.add("home", "phone", "phone", 1)

    assert "phone" in grouped(turns, 2)


def test_work_that_a_group_was_spared_counts_for_it() -> None:
    turns = GroupedFairQueue[str]()
    for group in "ab":
        turns.add(group, 0, group, 100)
    turns.add("c", 0, "c", 1000)
    grouped(turns, 2)

    turns.correct("b", 0, -90)
    for group in "ab":
        turns.add(group, 0, f"{group} again", 100)

    assert grouped(turns, 3) == ["b again", "a again", "c"]


def test_new_sources_without_end_do_not_starve_an_old_item() -> None:
    turns = GroupedFairQueue[str]()
    turns.add("old", 0, "much", 1000)
    turns.add("other", 0, "other", 10)
    taken_so_far: list[str] = []
    for number in range(1000):  # each a group that nobody has seen
        turns.add(number, 0, "new", 100)
        taken_so_far.append(turns.take())
        if "much" in taken_so_far:
            break

    assert len(taken_so_far) < 60
