"""mailserver.mail.answer: an answer is compared with its request."""

from dataclasses import replace

import pytest

from mailserver.mail import answer as answer_module
from mailserver.mail.answer import AnswerCheck, AnswerFault
from mailserver.mail.request import MailRequest, RequestId
from mailserver.waku.bloom import Interest, bloom_of
from mailserver.waku.envelope import MAX_U32, Envelope
from tests.mailservers import NEWS, NOW, SPORT, make_envelope

ASKED = MailRequest(RequestId(bytes(32)), NOW - 100, NOW, Interest(topics=frozenset({NEWS})), limit=5)


def judged(*envelopes: Envelope, request: MailRequest = ASKED) -> tuple[list[Envelope], dict[AnswerFault, int]]:
    """What is right of one page, and what is wrong."""
    check = AnswerCheck()
    check.begin(request)
    return check.right(envelopes), dict(check.faults)


def at(seconds: int, number: int = 0) -> Envelope:
    return make_envelope(number, created=seconds)


def test_answer_from_newest_to_oldest_within_both_bounds_is_right() -> None:
    page = [at(NOW), at(NOW - 50, 1), at(NOW - 50, 2), at(NOW - 100)]

    assert judged(*page) == (page, {})
    assert judged(*page[:1], *page[2:0:-1], page[3])[1] == {}  # within a second any order will do


@pytest.mark.parametrize("created", [NOW - 101, NOW + 1, 1_000_000_000])
def test_envelope_outside_of_the_range_is_dropped(created: int) -> None:
    assert judged(at(NOW), at(created), at(NOW - 1)) == ([at(NOW), at(NOW - 1)], {AnswerFault.OUT_OF_RANGE: 1})


def test_without_an_upper_bound_the_mailservers_clock_counts() -> None:
    late = at(MAX_U32 - 100)

    assert judged(late, request=replace(ASKED, upper=0)) == ([late], {})


def test_envelope_with_another_topic_is_dropped() -> None:
    sport = make_envelope(1, created=NOW, topic=SPORT)
    by_bloom = replace(ASKED, interest=Interest(bloom=bloom_of([NEWS])))

    for request in (ASKED, by_bloom):
        assert judged(sport, at(NOW), request=request) == ([at(NOW)], {AnswerFault.UNWANTED_TOPIC: 1})


def test_envelopes_beyond_the_limit_are_dropped_and_without_one_there_is_none() -> None:
    page = [at(NOW, number) for number in range(8)]

    assert judged(*page) == (page[:5], {AnswerFault.TOO_MANY: 3})
    assert judged(*page, request=replace(ASKED, limit=0)) == (page, {})


def test_limit_counts_for_each_page() -> None:
    check = AnswerCheck()
    for number in range(3):
        check.begin(ASKED)
        assert len(check.right([at(NOW - number, 10 * number + each) for each in range(5)])) == 5

    assert check.faults == {}


def test_double_is_dropped_in_the_same_page_and_in_a_later_one() -> None:
    check = AnswerCheck()
    check.begin(ASKED)

    assert check.right([at(NOW), at(NOW), at(NOW - 1)]) == [at(NOW), at(NOW - 1)]
    check.begin(ASKED)
    assert check.right([at(NOW - 1), at(NOW - 2)]) == [at(NOW - 2)]

    assert check.faults == {AnswerFault.DOUBLE: 2}


def test_doubles_are_remembered_only_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answer_module, "MAX_REMEMBERED", 2)

    assert judged(at(NOW, 1), at(NOW, 2), at(NOW, 3), at(NOW, 2), at(NOW, 1))[1] == {AnswerFault.DOUBLE: 1}


def test_envelope_in_the_wrong_place_is_counted_but_taken_also_on_the_next_page() -> None:
    check = AnswerCheck()
    check.begin(ASKED)

    assert check.right([at(NOW - 5), at(NOW - 3), at(NOW - 4)]) == [at(NOW - 5), at(NOW - 3), at(NOW - 4)]
    check.begin(ASKED)
    assert check.right([at(NOW)]) == [at(NOW)]

    assert check.faults == {AnswerFault.OUT_OF_ORDER: 2}


def test_faults_are_described_with_an_example_of_each() -> None:
    check = AnswerCheck()
    check.begin(ASKED)

    check.right([at(1), at(2), at(NOW), at(NOW)])

    assert str(check) == (
        f"2 created outside of the range that was asked for (first: {at(1).hash().hex()}),"
        f" 1 sent twice ({at(NOW).hash().hex()})"
    )
