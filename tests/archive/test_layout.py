import pytest

from mailserver.archive.layout import FILE_BYTES, MAX_TOPIC_DIRECTORIES, Layout, PartitionBy, choose_layout

TOPIC, PREFIX = PartitionBy.TOPIC, PartitionBy.TOPIC_PREFIX


@pytest.mark.parametrize(
    ("topics", "layout"),
    [
        (0, Layout(TOPIC, 0)),
        (MAX_TOPIC_DIRECTORIES, Layout(TOPIC, 0)),
        (MAX_TOPIC_DIRECTORIES + 1, Layout(PREFIX, 1)),
    ],
)
def test_number_of_topics_chooses_where_nothing_is_asked(topics: int, layout: Layout) -> None:
    assert choose_layout(None, None, topics=topics, day_bytes=0) == layout


@pytest.mark.parametrize("topics", [1, 50_000])
def test_what_is_asked_is_done(topics: int) -> None:
    assert choose_layout(TOPIC, None, topics=topics, day_bytes=0) == Layout(TOPIC, 0)
    assert choose_layout(TOPIC, 3, topics=topics, day_bytes=0) == Layout(TOPIC, 0)
    assert choose_layout(PREFIX, None, topics=topics, day_bytes=0) == Layout(PREFIX, 1)
    assert choose_layout(PREFIX, 3, topics=topics, day_bytes=0) == Layout(PREFIX, 3)
    assert choose_layout(None, 2, topics=topics, day_bytes=0) == Layout(PREFIX, 2)


@pytest.mark.parametrize(
    ("day_bytes", "digits"),
    [
        (16 * FILE_BYTES, 1),
        (16 * FILE_BYTES + 1, 2),
        (256 * FILE_BYTES, 2),
        (256 * FILE_BYTES + 1, 3),
        (4096 * FILE_BYTES + 1, 4),
        (16**6 * FILE_BYTES, 4),
    ],
)
def test_bytes_of_a_day_choose_the_digits(day_bytes: int, digits: int) -> None:
    assert choose_layout(PREFIX, None, topics=1, day_bytes=day_bytes) == Layout(PREFIX, digits)


@pytest.mark.parametrize(
    ("layout", "column", "value", "text"),
    [
        (Layout(TOPIC, 0), "topic", "0x9acb0442", "topic"),
        (Layout(PREFIX, 1), "topic_prefix", "9", "topic-prefix (1 hex digits)"),
        (Layout(PREFIX, 4), "topic_prefix", "9acb", "topic-prefix (4 hex digits)"),
    ],
)
def test_topic_lies_in_its_partition(layout: Layout, column: str, value: str, text: str) -> None:
    assert layout.column == column
    assert layout.value("0x9acb0442") == value
    assert str(layout) == text
