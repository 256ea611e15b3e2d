"""The index of history archives: what it lists, what is refused, and how long it takes to read."""

import random
import time

import pytest

from mailserver.codec.keccak import keccak256
from mailserver.codec.protobuf import write_bytes, write_number
from mailserver.communities import index as index_module
from mailserver.communities.deployed_format import DeployedFormat
from mailserver.communities.formats import PIECE_BYTES, EncodedArchive, Format, TimeRange
from mailserver.communities.index import (
    HistoryIndex,
    IndexEntry,
    IndexRoom,
    decode_index,
    encode_index,
    entry_of,
    format_named,
)
from mailserver.communities.metadata import MAX_DATA_BYTES
from mailserver.errors import DecodeError
from mailserver.ids.muid import DEFAULT_NETWORK_TOPIC
from tests.communities.making import SPEC, WEEK, community

DEPLOYED = DeployedFormat()
PERIOD = WEEK.upper - WEEK.lower
TEN_YEARS = 520

both = pytest.mark.parametrize("form", [SPEC, DEPLOYED], ids=lambda form: form.name)


def entries(form: Format, count: int, topics: tuple[str, ...]) -> list[IndexEntry]:
    padding = 77 if form is DEPLOYED else 0
    return [
        entry_of(
            form,
            EncodedArchive(
                TimeRange(WEEK.lower + place * PERIOD, WEEK.upper + place * PERIOD),
                topics,
                bytes(PIECE_BYTES),
                padding,
                1,
            ),
            place * PIECE_BYTES,
        )
        for place in range(count)
    ]


@both
def test_each_entry_of_an_index_takes_as_long_to_read_in_one_of_ten_years_as_of_one_year(form: Format) -> None:
    listed = entries(form, TEN_YEARS, community(channels=50).content_topics)
    encoded, of_one = encode_index(form, listed), encode_index(form, listed[: TEN_YEARS // 10])

    assert decode_index(encoded) == HistoryIndex(form.name, (*listed,))
    assert cpu_of(encoded) < 40 * cpu_of(of_one)  # ten times, and a hundred if each were compared with each


def cpu_of(encoded: bytes) -> float:
    """The least that it takes to read this, in seconds."""
    took = []
    for _ in range(5):
        began = time.process_time()
        decode_index(encoded)
        took.append(time.process_time() - began)
    return min(took)


@both
def test_index_is_the_same_in_whatever_order_its_entries_come(form: Format) -> None:
    listed = entries(form, 20, community().content_topics)
    shuffled = random.Random(1).sample(listed, len(listed))

    assert encode_index(form, shuffled) == encode_index(form, listed)


@both
def test_topic_that_is_listed_twice_counts_once(form: Format) -> None:
    first, second = community(channels=2).content_topics
    (entry,) = entries(form, 1, (second, first, second))

    (found,) = decode_index(encode_index(form, [entry])).entries

    assert found.content_topics == (second, first)


@both
def test_channels_may_change_between_archives(form: Format) -> None:
    before, after = community(1).content_topics, community(2, channels=5).content_topics
    listed = entries(form, 3, before)[:2] + entries(form, 3, after)[2:]

    found = decode_index(encode_index(form, listed))

    assert [entry.content_topics for entry in found.entries] == [before, before, after]


def test_entry_knows_its_pieces() -> None:
    entry = IndexEntry("0x", WEEK, (), 3 * PIECE_BYTES, 2 * PIECE_BYTES, 0)

    assert entry.end == 5 * PIECE_BYTES
    assert entry.pieces == range(3, 5)
    assert IndexEntry("0x", WEEK, (), PIECE_BYTES - 1, PIECE_BYTES + 2, 0).pieces == range(3)


def test_empty_index_lists_nothing() -> None:
    assert decode_index(b"").entries == ()


def test_formats_have_names() -> None:
    assert format_named("spec", DEFAULT_NETWORK_TOPIC) == SPEC
    assert format_named("deployed", DEFAULT_NETWORK_TOPIC) == DEPLOYED
    with pytest.raises(DecodeError, match="not known"):
        format_named("other", DEFAULT_NETWORK_TOPIC)


def test_numbers_that_come_twice_count_as_they_come_last() -> None:
    (entry,) = entries(SPEC, 1, ())
    metadata = write_number(2, 5) + write_number(3, 7) + write_bytes(9, b"unknown") + write_number(2, 0)
    metadata += write_number(3, 10**9) + write_bytes(4, b"/a") + write_number(3, 2 * 10**9)
    encoded = write_bytes(2, metadata) + write_number(4, 1)

    (found,) = decode_index(listing(encoded)).entries

    assert (found.time_range, found.content_topics, found.size) == (TimeRange(0, 2), ("/a",), entry.size)


def listing(*encoded: bytes) -> bytes:
    return b"".join(
        write_bytes(1, write_bytes(1, f"0x{keccak256(each).hex()}".encode()) + write_bytes(2, each)) for each in encoded
    )


METADATA = write_bytes(2, write_number(2, 10**9) + write_number(3, 2 * 10**9))


def test_entry_with_a_range_in_nanoseconds_is_read() -> None:
    (entry,) = decode_index(listing(METADATA + write_number(4, 1))).entries

    assert entry.time_range == TimeRange(1, 2)


SECONDS = write_bytes(2, write_number(2, 1) + write_number(3, 2))


def test_format_is_told_by_the_size_that_counts_if_there_are_two() -> None:
    pieces, size = write_number(4, 1), write_number(4, PIECE_BYTES)

    assert decode_index(listing(METADATA + size + pieces)).format_name == SPEC.name
    assert decode_index(listing(SECONDS + pieces + size)).format_name == DEPLOYED.name


@pytest.mark.parametrize(
    ("encoded", "why"),
    [
        pytest.param(
            listing(SECONDS + write_number(4, PIECE_BYTES), SECONDS + write_number(4, PIECE_BYTES - 1)),
            "size",
            id="less than a piece",
        ),
        pytest.param(b"\xff", "truncated", id="no protobuf"),
        pytest.param(write_bytes(102, b"sealed"), "encrypted", id="encrypted"),
        pytest.param(write_number(1, 5), "wire type", id="wire type"),
        pytest.param(write_bytes(1, write_bytes(1, b"0x00") + write_bytes(2, METADATA)), "id", id="other id"),
        pytest.param(write_bytes(1, write_bytes(2, METADATA)), "id", id="no id"),
        pytest.param(write_bytes(1, write_bytes(1, bytes(101))), "id is too long", id="long id"),
        pytest.param(listing(METADATA), "size", id="no pieces"),
        pytest.param(listing(METADATA + write_number(4, 1001)), "size", id="too many pieces"),
        pytest.param(listing(write_number(4, 1)), "empty", id="no metadata"),
        pytest.param(listing(METADATA + write_number(1, 2) + write_number(4, 1)), "version", id="version"),
        pytest.param(
            listing(METADATA + write_number(3, MAX_DATA_BYTES + 1) + write_number(4, 1)), "offset", id="offset"
        ),
        pytest.param(
            listing(METADATA + write_number(4, PIECE_BYTES) + write_number(5, PIECE_BYTES)),
            "as long as itself",
            id="padding",
        ),
        pytest.param(
            listing(METADATA + write_number(4, PIECE_BYTES), METADATA + write_number(4, 10**9)),
            "size is too large",
            id="size",
        ),
    ],
)
def test_what_does_not_parse_is_refused(encoded: bytes, why: str) -> None:
    with pytest.raises(DecodeError, match=why):
        decode_index(encoded)


def test_too_many_entries_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_module, "MAX_ENTRIES", 3)
    listed = entries(SPEC, 4, ())

    assert len(decode_index(encode_index(SPEC, listed[:3])).entries) == 3
    with pytest.raises(DecodeError, match="too many"):
        decode_index(encode_index(SPEC, listed))


@both
@pytest.mark.parametrize("bound", ["MAX_ENTRIES", "MAX_INDEX_BYTES"])
def test_room_for_what_comes_late_is_half_of_the_index(
    form: Format, bound: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = entries(form, 10, community().content_topics)
    limit = len(listed) if bound == "MAX_ENTRIES" else len(encode_index(form, listed))
    monkeypatch.setattr(index_module, bound, limit)
    assert IndexRoom(form, listed[:3]).add(listed[3], is_late=True)
    room = IndexRoom(form, listed[:5])
    assert not room.add(listed[5], is_late=True)
    assert [room.add(entry, is_late=False) for entry in (*listed[5:], listed[5])] == [True] * 5 + [False]
    assert IndexRoom(form, listed[:4]).takes_late
    assert not IndexRoom(form, listed[:6]).takes_late


def test_too_long_an_index_is_not_read() -> None:
    with pytest.raises(DecodeError, match="too long"):
        decode_index(bytes(index_module.MAX_INDEX_BYTES + 1))


@both
def test_every_truncation_is_refused_or_lists_less(form: Format) -> None:
    listed = entries(form, 3, community().content_topics)
    encoded = encode_index(form, listed)
    found = []

    for end in range(1, len(encoded)):
        try:
            found.append(decode_index(encoded[:end]).entries)
        except DecodeError:
            continue

    assert found == [(*listed[:1],), (*listed[:2],)]
