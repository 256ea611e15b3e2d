"""What holds for both formats: order, chunks, what is refused, and that nothing depends on chance."""

import random
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mailserver.communities import formats
from mailserver.communities.checking import check_archive, check_index
from mailserver.communities.deployed_format import DeployedFormat
from mailserver.communities.formats import PIECE_BYTES, CommunityMessage, Format, HistoryArchive, TimeRange, chunks
from mailserver.communities.index import decode_index, entry_of
from mailserver.errors import DecodeError, LocalProtocolError
from mailserver.ids.envelopes import NS
from tests.communities.making import SPEC, WEEK, Published, by_range, community, history, messages, publish
from tests.properties import settings

FORMS: tuple[Format, ...] = (SPEC, DeployedFormat())
COMMUNITY = community()
TOPICS = COMMUNITY.content_topics

both = pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)


@given(
    form=st.sampled_from(FORMS),
    per_range=st.integers(0, 12),
    ranges=st.integers(1, 4),
    empty=st.sets(st.integers(0, 3)),
    seed=st.integers(0, 2**32),
)
@settings(max_examples=25)
def test_what_is_published_is_read_again_and_the_same_each_time(
    form: Format, per_range: int, ranges: int, empty: set[int], seed: int
) -> None:
    found = messages(form, COMMUNITY, history(COMMUNITY, WEEK, ranges, per_range, empty=empty)) if per_range else []
    in_ranges = by_range(found)
    shuffled = random.Random(seed).sample(TOPICS, len(TOPICS))

    published = publish(form, TOPICS, in_ranges)

    assert publish(form, shuffled, in_ranges) == published
    index = decode_index(published.index)
    assert index.entries == published.entries
    assert check_index(index, len(published.data)) == []
    again = [check_archive(form, entry, published.data[entry.offset : entry.end]).archive for entry in index.entries]
    assert again == [HistoryArchive(each, tuple(sorted(TOPICS)), (*in_ranges[each],)) for each in in_ranges]


@both
def test_data_only_grows_and_late_messages_make_one_more_archive(form: Format) -> None:
    found = messages(form, COMMUNITY, history(COMMUNITY, WEEK, 3, 10))
    late, in_time = found[3:5], found[:3] + found[5:]

    ranges = by_range(in_time)
    first, *rest = ranges.items()
    published = [publish(form, TOPICS, [first])]
    for each in [*rest, (WEEK, late)]:
        published.append(publish(form, TOPICS, [each], published[-1]))

    for before, after in pairwise(published):
        assert after.data[: len(before.data)] == before.data
        assert after.entries[: len(before.entries)] == before.entries
    assert [entry.time_range for entry in published[-1].entries] == [*ranges, WEEK]
    assert sorted(_all_messages(form, published[-1])) == found


@given(form=st.sampled_from(FORMS), data=st.data())
@settings(max_examples=15)
def test_however_late_messages_arrive_each_is_published_once_and_all_before_stays(
    form: Format, data: st.DataObject
) -> None:
    found = messages(form, COMMUNITY, history(COMMUNITY, WEEK, 3, 4))
    arrival = data.draw(st.lists(st.integers(0, 5), min_size=len(found), max_size=len(found)))  # the run that has it
    published = again = publish(form, TOPICS, ())

    for run in range(6):
        arrived = by_range(message for message, came in zip(found, arrival, strict=True) if came == run)
        before, published = published, publish(form, TOPICS, arrived, published)
        again = publish(form, TOPICS[::-1], arrived, again)
        assert published == again
        assert published.data.startswith(before.data)
        assert published.entries[: len(before.entries)] == before.entries

    assert check_index(decode_index(published.index), len(published.data)) == []
    assert sorted(_all_messages(form, published)) == found


def _all_messages(form: Format, published: Published) -> list[CommunityMessage]:
    archives = [
        check_archive(form, entry, published.data[entry.offset : entry.end]).archive for entry in published.entries
    ]
    return [message for archive in archives if archive for message in archive.messages]


@both
def test_range_of_many_messages_makes_several_archives(form: Format, monkeypatch: pytest.MonkeyPatch) -> None:
    found = messages(form, COMMUNITY, history(COMMUNITY, WEEK, 1, 50))
    monkeypatch.setattr(formats, "MAX_CHUNK_BYTES", 4000)

    published = publish(form, TOPICS, {WEEK: found})

    archives = [
        form.decode_archive(published.data[entry.offset : entry.end], entry.padding) for entry in published.entries
    ]
    assert len(archives) > 3
    assert [message for archive in archives for message in archive.messages] == found
    assert all(sum(len(message.encoded) for message in archive.messages) <= 4000 for archive in archives)
    assert {archive.time_range for archive in archives} == {WEEK}


def message(timestamp_ns: int, number: int = 0, topic: str = TOPICS[0], size: int = 10) -> CommunityMessage:
    return CommunityMessage(timestamp_ns, bytes([number]) * 32, topic, bytes(size))


def test_chunks_are_as_full_as_they_can_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(formats, "MAX_CHUNK_BYTES", 300)
    begin, sizes = WEEK.lower * NS, (100, 100, 100, 1, 300, 100, 100, 100, 1, 1)

    found = [
        [len(each.encoded) for each in chunk]
        for chunk in chunks(WEEK, TOPICS, [message(begin + at, size=size) for at, size in enumerate(sizes)])
    ]

    assert found == [[100, 100, 100], [1], [300], [100, 100, 100], [1, 1]]


def test_chunks_hold_no_more_messages_than_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(formats, "MAX_ARCHIVE_MESSAGES", 3)

    found = [len(chunk) for chunk in chunks(WEEK, TOPICS, [message(WEEK.lower * NS + at) for at in range(7)])]

    assert found == [3, 3, 1]


@pytest.mark.parametrize(
    "wrong",
    [
        pytest.param([message(WEEK.lower * NS, 2), message(WEEK.lower * NS, 1)], id="order of hashes"),
        pytest.param([message(WEEK.lower * NS + 1, 1), message(WEEK.lower * NS, 2)], id="order of times"),
        pytest.param([message(WEEK.lower * NS), message(WEEK.lower * NS)], id="twice"),
        pytest.param([message(WEEK.lower * NS - 1)], id="before the range"),
        pytest.param([message(WEEK.upper * NS)], id="after the range"),
        pytest.param([message(WEEK.lower * NS, topic="/other")], id="topic"),
        pytest.param([message(WEEK.lower * NS, size=formats.MAX_ENCODED_MESSAGE_BYTES + 1)], id="length"),
    ],
)
def test_what_does_not_belong_into_an_archive_is_a_bug_of_ours(wrong: list[CommunityMessage]) -> None:
    with pytest.raises(LocalProtocolError):
        list(chunks(WEEK, TOPICS, wrong))


def test_longest_message_has_room() -> None:
    longest = message(WEEK.lower * NS, size=formats.MAX_ENCODED_MESSAGE_BYTES)

    assert list(chunks(WEEK, TOPICS, [longest])) == [[longest]]


@both
def test_more_topics_than_are_read_are_a_bug_of_ours(form: Format) -> None:
    topics = [f"/waku/1/0x{number:08x}/rfc26" for number in range(formats.MAX_TOPICS + 1)]
    found = messages(form, COMMUNITY, history(COMMUNITY, WEEK, 1, 1))
    most = [found[0].content_topic, *topics[1:-1]]

    (encoded,) = form.encode_archives(WEEK, most, found)

    assert len(form.decode_archive(encoded.data, encoded.padding).content_topics) == formats.MAX_TOPICS
    with pytest.raises(LocalProtocolError):
        list(form.encode_archives(WEEK, topics, []))


def test_deployed_format_has_only_topics_of_waku_v1() -> None:
    with pytest.raises(DecodeError, match="none of Waku v1"):
        list(DeployedFormat().encode_archives(WEEK, ["/app/1/name/proto"], []))


def test_first_moment_of_a_range_is_in_it_and_its_end_is_not() -> None:
    assert list(chunks(WEEK, TOPICS, [message(WEEK.lower * NS), message(WEEK.upper * NS - 1)]))
    assert WEEK.has(WEEK.lower * NS)
    assert not WEEK.has(WEEK.upper * NS)


@both
def test_id_says_where_an_archive_lies_and_not_what_is_in_it(form: Format) -> None:
    found = messages(form, COMMUNITY, history(COMMUNITY, WEEK, 1, 4))
    (one,), (other,) = (form.encode_archives(WEEK, TOPICS, some) for some in (found[:1], found[1:2]))

    ids = {entry_of(form, encoded, offset).id for encoded in (one, other) for offset in (0, PIECE_BYTES)}

    assert one.data != other.data
    # The deployed entry has the length of the padding, which may differ.
    assert len(ids) == (2 if one.padding == other.padding else 4)


def test_ranges_overlap_if_a_moment_is_in_both() -> None:
    one = TimeRange(10, 20)

    assert one.overlaps(TimeRange(19, 30))
    assert one.overlaps(TimeRange(0, 11))
    assert one.overlaps(TimeRange(12, 13))
    assert not one.overlaps(TimeRange(20, 30))
    assert not one.overlaps(TimeRange(0, 10))
