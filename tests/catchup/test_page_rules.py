"""mailserver.catchup.page_rules: which envelopes are right, and which pages lead on."""

import random

import pytest

from mailserver.catchup import page_rules as pages_module
from mailserver.catchup.page_rules import (
    MAX_IDLE_PAGES,
    MAX_PAGE_BYTES,
    MAX_PAGE_ENVELOPES,
    MIN_PAGE_ENVELOPES,
    PAGE_ENVELOPES,
    Judge,
    Lie,
    PageBuffer,
    SourceLies,
    Walk,
    Wrong,
    asked_interest,
)
from mailserver.catchup.ranges import OVERLAP_S, MissingRange
from mailserver.mail.request import MAX_REQUEST_TOPICS, Cursor
from mailserver.store.interface import Place
from mailserver.waku.acceptance import MAX_AHEAD_S, MAX_ENVELOPE_BYTES, Requirements
from mailserver.waku.bloom import FULL_INTEREST, Interest, bloom_of
from mailserver.waku.envelope import Envelope, EnvelopeHash, Topic, encode_envelope, mine
from tests.catchup.servers import DAY
from tests.mailservers import NEWS, NOW, SPORT, make_envelope
from tests.pairs import digest

WINDOW = MissingRange(NOW - DAY, NOW)
ALL = Judge(Requirements(0.0))
CURSOR = Cursor(0, EnvelopeHash(bytes(32)))
"""One that nobody understands."""


def places(*numbers: int) -> list[Place]:
    return [(NOW + number, EnvelopeHash(digest(str(number)))) for number in numbers]


# Envelopes


@pytest.mark.parametrize(
    ("created", "expected"),
    [
        (WINDOW.lower - 1, Wrong.OUT_OF_RANGE),
        (WINDOW.lower, None),
        (WINDOW.upper, None),
        (WINDOW.upper + 1, Wrong.OUT_OF_RANGE),
    ],
)
def test_envelope_was_created_within_what_was_asked_for(created: int, expected: Wrong | None) -> None:
    assert ALL.wrong(make_envelope(1, created=created), WINDOW, NOW) is expected


def test_forged_envelope_is_out_of_every_range() -> None:
    forged = encode_envelope(10, 4_000_000_000, NEWS, b"data", 1)

    assert ALL.wrong(forged, MissingRange(0, NOW), NOW) is Wrong.OUT_OF_RANGE


@pytest.mark.parametrize(("ahead", "expected"), [(MAX_AHEAD_S, None), (MAX_AHEAD_S + 1, Wrong.FROM_THE_FUTURE)])
def test_envelope_was_not_created_in_the_future(ahead: int, expected: Wrong | None) -> None:
    envelope = make_envelope(1, created=NOW + ahead)

    assert ALL.wrong(envelope, MissingRange(NOW, NOW + 100), NOW + 0.9) is expected


def test_envelope_may_have_expired_long_ago_or_never_expire() -> None:
    assert ALL.wrong(make_envelope(1, created=1000, ttl=0), MissingRange(0, NOW), NOW) is None
    assert ALL.wrong(make_envelope(1, created=1000, ttl=4_000_000_000), MissingRange(0, NOW), NOW) is None


@pytest.mark.parametrize(("more", "expected"), [(0, None), (1, Wrong.OVERSIZE)])
def test_envelope_is_not_too_long(more: int, expected: Wrong | None) -> None:
    overhead = len(make_envelope(1, data_bytes=MAX_ENVELOPE_BYTES - 100).raw) - (MAX_ENVELOPE_BYTES - 100)
    envelope = make_envelope(1, data_bytes=MAX_ENVELOPE_BYTES - overhead + more)
    assert len(envelope.raw) == MAX_ENVELOPE_BYTES + more

    assert ALL.wrong(envelope, WINDOW, NOW) is expected


def test_envelope_took_the_work_that_is_asked_of_it() -> None:
    def made(target: float) -> Envelope:
        return mine(NOW + 50, 50, NEWS, bytes(100), target=target)

    judge = Judge(Requirements(0.005))
    poor = next(envelope for envelope in (made(0.0),) if envelope.pow() < 0.005)

    assert judge.wrong(made(0.005), WINDOW, NOW) is None
    assert judge.wrong(poor, WINDOW, NOW) is Wrong.LOW_POW


def test_envelope_has_a_topic_that_was_asked_for() -> None:
    judge = Judge(Requirements(0.0, Interest(topics=frozenset({SPORT}))))

    assert judge.wrong(make_envelope(1, topic=SPORT), WINDOW, NOW) is None
    assert judge.wrong(make_envelope(1, topic=NEWS), WINDOW, NOW) is Wrong.UNWANTED_TOPIC


def test_more_topics_than_a_request_may_name_are_asked_for_by_bloom_filter() -> None:
    topics = frozenset(Topic(number.to_bytes(4, "big")) for number in range(MAX_REQUEST_TOPICS + 1))
    some = Interest(topics=frozenset(list(topics)[:-1]))

    assert asked_interest(some) is some
    assert asked_interest(Interest(topics=topics)) == Interest(bloom=bloom_of(topics))
    assert asked_interest(FULL_INTEREST) is FULL_INTEREST


# One page


def test_basket_collects_what_a_page_may_hold() -> None:
    buffer = PageBuffer(on_full=lambda: pytest.fail("it is not"))
    one = make_envelope(1)

    for _ in range(4):
        buffer([one] * (MAX_PAGE_ENVELOPES // 4))

    assert buffer.envelopes == [one] * MAX_PAGE_ENVELOPES
    assert not buffer.is_full


@pytest.mark.parametrize(
    ("envelope", "packets"),
    [(make_envelope(1), [8192]), (make_envelope(1), [1] * (MAX_PAGE_ENVELOPES + 3)), (None, [1] * 12)],
)
def test_full_basket_drops_all_and_says_so_once(envelope: Envelope | None, packets: list[int]) -> None:
    said = []
    buffer = PageBuffer(on_full=lambda: said.append(1))
    envelope = envelope or make_envelope(1, data_bytes=MAX_PAGE_BYTES // 10)

    for count in packets:
        buffer([envelope] * count)

    assert buffer.is_full
    assert buffer.envelopes == []
    assert said == [1]


def test_fewest_envelopes_of_a_page_fit_whatever_their_length() -> None:
    assert MIN_PAGE_ENVELOPES * MAX_ENVELOPE_BYTES <= MAX_PAGE_BYTES


# The way through a window


def test_request_reaches_beyond_the_window_by_the_overlap() -> None:
    walk = Walk(WINDOW)
    cursor = Cursor(NOW, EnvelopeHash(digest("envelope")))

    request = walk.request(cursor, FULL_INTEREST)

    assert (request.lower, request.upper) == (WINDOW.lower, WINDOW.upper + OVERLAP_S)
    assert (request.limit, request.cursor, request.interest) == (PAGE_ENVELOPES, cursor, FULL_INTEREST)


def test_fewer_envelopes_are_asked_for_until_that_is_a_lie() -> None:
    walk = Walk(WINDOW)
    for limit in (PAGE_ENVELOPES, 125, 15):
        assert walk.request(None, FULL_INTEREST).limit == limit
        walk.shrink()
    assert walk.request(None, FULL_INTEREST).limit == MIN_PAGE_ENVELOPES

    with pytest.raises(SourceLies) as caught:
        walk.shrink()

    assert caught.value.lie is Lie.ENDLESS_PAGE
    assert str(caught.value) == Lie.ENDLESS_PAGE.value


def in_descending_order(pages: int) -> list[list[Place]]:
    return [places(*range(-10 * page, -10 * page - 10, -1)) for page in range(pages)]


def test_pages_that_lead_on_may_be_many_in_either_order() -> None:
    pages = in_descending_order(100)

    for order in (pages, pages[::-1], [page[::-1] for page in pages]):
        note_all(Walk(WINDOW), order)


def test_pages_of_one_second_lead_on_by_their_hashes() -> None:
    hashes = sorted((EnvelopeHash(digest(str(number))) for number in range(300)), reverse=True)
    walk = Walk(WINDOW)

    for envelope_hash in hashes:
        walk.note([(NOW, envelope_hash)], CURSOR)


def test_oldest_envelope_so_far_is_known() -> None:
    walk = Walk(WINDOW)
    assert walk.lowest is None

    walk.note(places(-5, -9, -2), CURSOR)

    assert walk.lowest == NOW - 9


def note_all(walk: Walk, pages: list[list[Place]]) -> None:
    for page in pages:
        walk.note(page, CURSOR)


def repeated_pages() -> list[list[Place]]:
    return [places(-1, -2, -3)] * 100


def circular_pages() -> list[list[Place]]:
    return in_descending_order(7) * 20


def empty_pages() -> list[list[Place]]:
    return [[]] * 100


def shuffled_pages() -> list[list[Place]]:
    everything = places(*range(-50, 0))
    return [random.Random(number).sample(everything, 20) for number in range(200)]


@pytest.mark.parametrize("pages", [repeated_pages(), circular_pages(), empty_pages(), shuffled_pages()])
def test_pages_that_lead_nowhere_are_a_lie(pages: list[list[Place]]) -> None:
    walk = Walk(WINDOW)

    with pytest.raises(SourceLies) as caught:
        note_all(walk, pages)

    assert caught.value.lie is Lie.STANDSTILL


def test_some_pages_may_lead_nowhere() -> None:
    idle: list[list[Place]] = [[]] * (MAX_IDLE_PAGES // 2)

    note_all(Walk(WINDOW), [*idle, *in_descending_order(5), *idle])


def cursors(*numbers: int) -> list[Cursor]:
    return [Cursor(*place) for place in places(*numbers)]


def follow(way: list[Cursor], page: list[Place] | None = None) -> Walk:
    """A walk that was led along these cursors, by pages that are all the same; empty, if not given."""
    walk = Walk(WINDOW)
    for cursor in way:
        walk.note(page or [], cursor)
    return walk


def test_empty_pages_lead_on_by_cursors_that_go_down_within_the_window() -> None:
    assert follow(cursors(*range(0, -1000, -1))).lowest is None


@pytest.mark.parametrize(
    "following",
    [
        cursors(-5) * 100,  # the same
        cursors(-5, -6, -7) * 50,  # circles
        cursors(*range(-100, 0)),  # upwards
        cursors(*range(-DAY - 1, -DAY - 100, -1)),  # below the window
        cursors(*range(200, 100, -1)),  # above it
    ],
)
def test_empty_pages_whose_cursors_lead_nowhere_are_a_lie(following: list[Cursor]) -> None:
    with pytest.raises(SourceLies) as caught:
        follow(following)

    assert caught.value.lie is Lie.STANDSTILL


def test_pages_that_repeat_envelopes_are_a_lie_wherever_their_cursors_lead() -> None:
    with pytest.raises(SourceLies) as caught:
        follow(cursors(*range(0, -100, -1)), places(-1, -2))

    assert caught.value.lie is Lie.STANDSTILL


def test_empty_pages_without_end_are_a_lie(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages_module, "MAX_WINDOW_PAGES", 50)

    with pytest.raises(SourceLies) as caught:
        follow(cursors(*range(0, -100, -1)))

    assert caught.value.lie is Lie.ENDLESS_WINDOW


def test_pages_without_end_are_a_lie_even_if_they_lead_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages_module, "MAX_WINDOW_PAGES", 50)
    walk = Walk(WINDOW)
    note_all(walk, in_descending_order(50))

    with pytest.raises(SourceLies) as caught:
        walk.note(places(-10_000), CURSOR)

    assert caught.value.lie is Lie.ENDLESS_WINDOW
