"""What a member finds wrong with an index or a history archive."""

from dataclasses import replace

import pytest

from mailserver.codec.protobuf import write_bytes
from mailserver.communities.checking import HistoryFault, check_archive, check_index
from mailserver.communities.deployed_format import DeployedFormat
from mailserver.communities.formats import PIECE_BYTES, Format, TimeRange
from mailserver.communities.index import HistoryIndex, IndexEntry
from mailserver.communities.spec_format import padding_field
from tests.communities.making import SPEC, WEEK, community, history, messages, publish

COMMUNITY = community()
TOPICS = COMMUNITY.content_topics

both = pytest.mark.parametrize("form", [SPEC, DeployedFormat()], ids=lambda form: form.name)


def entry(offset: int, pieces: int = 1) -> IndexEntry:
    return IndexEntry(f"0x{offset:064x}", WEEK, TOPICS, offset * PIECE_BYTES, pieces * PIECE_BYTES, 0)


def index(*entries: IndexEntry) -> HistoryIndex:
    return HistoryIndex("spec", entries)


def test_archives_that_fill_the_data_are_fine() -> None:
    assert check_index(index(entry(0, 2), entry(2, 1), entry(3, 5)), 8 * PIECE_BYTES) == []
    assert check_index(index(), 0) == []


@pytest.mark.parametrize(
    ("entries", "pieces", "faults"),
    [
        pytest.param([entry(1)], 2, [HistoryFault.GAP], id="not from the beginning"),
        pytest.param([entry(0), entry(2)], 3, [HistoryFault.GAP], id="gap"),
        pytest.param([entry(0, 2), entry(1, 2)], 3, [HistoryFault.GAP], id="overlap"),
        pytest.param([entry(0), entry(0)], 1, [HistoryFault.GAP], id="same place"),
        pytest.param(
            [replace(entry(0), offset=1)],
            1,
            [HistoryFault.GAP, HistoryFault.PIECES, HistoryFault.DATA_LENGTH],
            id="beside the pieces",
        ),
        pytest.param([entry(0)], 2, [HistoryFault.DATA_LENGTH], id="data longer"),
        pytest.param([entry(0, 2)], 1, [HistoryFault.DATA_LENGTH], id="data shorter"),
        pytest.param([], 1, [HistoryFault.DATA_LENGTH], id="nothing listed"),
        pytest.param(
            [replace(entry(0), size=PIECE_BYTES - 1), replace(entry(1), offset=PIECE_BYTES - 1, size=PIECE_BYTES + 1)],
            2,
            [HistoryFault.PIECES, HistoryFault.PIECES],
            id="parts of pieces",
        ),
    ],
)
def test_index_that_does_not_fit_its_data_is_found(
    entries: list[IndexEntry], pieces: int, faults: list[HistoryFault]
) -> None:
    found = check_index(index(*entries), pieces * PIECE_BYTES)

    assert [finding.fault for finding in found] == faults
    assert all(finding.detail for finding in found)


def published(form: Format) -> tuple[IndexEntry, bytes]:
    found = publish(form, TOPICS, {WEEK: messages(form, COMMUNITY, history(COMMUNITY, WEEK, 1, 10))})
    return found.entries[0], found.data


@both
def test_archive_that_is_as_its_entry_says_has_all_its_messages(form: Format) -> None:
    checked = check_archive(form, *published(form))

    assert checked.findings == ()
    assert checked.archive is not None
    assert [*checked.archive.messages] == messages(form, COMMUNITY, history(COMMUNITY, WEEK, 1, 10))


OTHER_WEEK = TimeRange(WEEK.lower + 1, WEEK.upper + 1)


@both
@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        pytest.param({"size": 2 * PIECE_BYTES}, HistoryFault.SIZE, id="too little data"),
        pytest.param({"size": PIECE_BYTES - 1}, HistoryFault.SIZE, id="too much data"),
        pytest.param({"time_range": OTHER_WEEK}, HistoryFault.RANGE, id="range"),
        pytest.param({"content_topics": TOPICS[1:]}, HistoryFault.TOPICS, id="topics"),
    ],
)
def test_archive_that_is_not_as_its_entry_says_is_refused(
    form: Format, changes: dict[str, object], fault: HistoryFault
) -> None:
    listed, data = published(form)

    checked = check_archive(form, replace(listed, **changes), data)  # type: ignore[arg-type]

    assert [finding.fault for finding in checked.findings] == [fault]
    assert checked.archive is None


@both
def test_order_in_which_topics_are_listed_does_not_matter(form: Format) -> None:
    listed, data = published(form)

    assert check_archive(form, replace(listed, content_topics=listed.content_topics[::-1]), data).findings == ()


@both
def test_archive_that_does_not_decode_is_refused(form: Format) -> None:
    listed, data = published(form)

    for damaged in (b"\xff" + data[1:], data[:-1] + b"\x01"):
        (finding,) = check_archive(form, listed, damaged).findings
        assert finding.fault is HistoryFault.UNREADABLE


def test_messages_that_do_not_belong_are_counted() -> None:
    found = messages(SPEC, COMMUNITY, history(COMMUNITY, WEEK, 1, 10))
    other = messages(SPEC, community(2), history(community(2), WEEK, 1, 1))
    early = messages(SPEC, COMMUNITY, history(COMMUNITY, TimeRange(WEEK.lower - 100, WEEK.upper - 100), 1, 2))[:1]
    (encoded,) = SPEC.encode_archives(WEEK, TOPICS, [])
    begin = encoded.data.rstrip(b"\0")[:-4]  # without the field of the padding
    data = begin + b"".join(write_bytes(3, each.encoded) for each in [*found, *other, *early, found[0], found[1]])
    data += padding_field(len(data))
    listed = IndexEntry("0x", WEEK, encoded.content_topics, 0, len(data), 0)

    checked = check_archive(SPEC, listed, data)

    assert checked.archive is None
    assert {finding.fault: finding.detail for finding in checked.findings} == {
        HistoryFault.MESSAGE_TOPIC: "1 of 14 messages",
        HistoryFault.MESSAGE_RANGE: "1 of 14 messages",
        HistoryFault.TWICE: "2 of 14 messages",
    }
