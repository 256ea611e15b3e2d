"""mailserver.api.topic_index against a search through all that there is."""

from hypothesis import given
from hypothesis import strategies as st

from mailserver.api.topic_index import TopicIndex
from mailserver.waku.envelope import Topic

TOPIC = Topic(b"abcd")

# Of two letters, so that many begin with one another.
full_topics = st.lists(st.sampled_from(b"ab"), min_size=4, max_size=4).map(bytes)
wishes = st.lists(st.lists(st.sampled_from(b"ab"), min_size=1, max_size=4).map(bytes), max_size=6)


@given(st.lists(wishes, max_size=8), st.data(), full_topics)
def test_finds_what_a_search_through_all_finds(
    all_wishes: list[list[bytes]], data: st.DataObject, topic: bytes
) -> None:
    index = TopicIndex[int]()
    for number, wish in enumerate(all_wishes):
        index.add(number, wish)
    removed = data.draw(st.sets(st.sampled_from(range(len(all_wishes))))) if all_wishes else set()
    for number in removed:
        index.remove(number, all_wishes[number])

    found = index.find(Topic(topic))

    assert sorted(found) == [
        number
        for number, wish in enumerate(all_wishes)
        if number not in removed and (not wish or any(topic.startswith(beginning) for beginning in wish))
    ]


def test_item_with_topics_that_begin_with_one_another_is_found_once() -> None:
    index = TopicIndex[str]()

    index.add("item", [b"abcd", b"ab", b"abc", b"abcd"])

    assert index.find(TOPIC) == ("item",)
    assert index.find(Topic(b"abzz")) == ("item",)
    assert index.find(Topic(b"azzz")) == ()


def test_item_without_topics_wants_any() -> None:
    index = TopicIndex[str]()

    index.add("any", [])
    index.add("one", [TOPIC])

    assert index.find(TOPIC) == ("any", "one")
    assert index.find(Topic(bytes(4))) == ("any",)


def test_what_was_found_stays_while_items_come_and_go() -> None:
    index = TopicIndex[str]()
    index.add("first", [TOPIC])
    index.add("second", [TOPIC])

    found = index.find(TOPIC)
    index.remove("first", [TOPIC])
    index.add("third", [TOPIC])

    assert found == ("first", "second")
    assert index.find(TOPIC) == ("second", "third")


def test_nothing_is_left_of_items_that_are_removed() -> None:
    index = TopicIndex[int]()

    for number in range(100):
        index.add(number, [number.to_bytes(4, "big"), b"x"])
    for number in range(100):
        index.remove(number, [number.to_bytes(4, "big"), b"x"])

    assert len(index) == 0
