"""mailserver.catchup.patience: how much a source is asked for at once."""

from mailserver.catchup.patience import MIN_SPAN_S, QUICK_S, SURE_AFTER, Patience
from mailserver.catchup.ranges import WINDOW_S


def silences(patience: Patience, *, has_answered: bool = True, is_aside: bool = False) -> list[int]:
    """What a source is asked for until a part is set aside, as long as nothing is answered."""
    asked = [patience.span_s]
    while not patience.on_silence(asked[-1], has_answered=has_answered, is_aside=is_aside):
        asked.append(patience.span_s)
    return asked


def test_source_that_does_not_answer_is_asked_for_less_until_a_part_is_set_aside() -> None:
    assert silences(Patience()) == [WINDOW_S, 10_800, 1350, MIN_SPAN_S]


def test_source_that_has_never_answered_is_asked_for_the_least_at_once() -> None:
    assert silences(Patience(), has_answered=False) == [WINDOW_S, MIN_SPAN_S]


def test_parts_that_are_set_aside_one_after_another_are_twice_as_long_each_until_something_is_answered() -> None:
    patience = Patience()
    silences(patience)

    longer = [silences(patience)[-1] for _ in range(8)]
    patience.on_page()

    assert longer == [1350, 2700, 5400, 10_800, 21_600, 43_200, WINDOW_S, WINDOW_S]
    assert silences(patience)[-1] == MIN_SPAN_S


def test_part_that_was_set_aside_becomes_no_longer_however_often_there_is_no_answer() -> None:
    patience = Patience()
    silences(patience)

    for _ in range(5):
        assert patience.on_silence(MIN_SPAN_S, has_answered=True, is_aside=True)
    patience.on_silence(WINDOW_S, has_answered=True, is_aside=True)

    assert patience.span_s == 10_800


def test_source_that_answers_quickly_is_asked_for_more_again_but_seldom_for_what_was_too_much() -> None:
    patience = Patience()
    patience.on_silence(WINDOW_S, has_answered=True, is_aside=False)

    patience.on_window_done(QUICK_S + 0.1)
    assert patience.span_s == 10_800
    spans = []
    for _ in range(2 * SURE_AFTER):
        patience.on_window_done(QUICK_S)
        spans.append(patience.span_s)

    assert spans == [21_600, *[43_200] * (SURE_AFTER - 3), *[WINDOW_S] * (SURE_AFTER + 2)]


def test_after_a_part_was_set_aside_parts_are_as_long_as_before_soon() -> None:
    patience = Patience()
    silences(patience)
    patience.on_page()

    spans = []
    for _ in range(7):
        patience.on_window_done(0.0)
        spans.append(patience.span_s)

    assert spans == [2700, 5400, 10_800, 21_600, 43_200, WINDOW_S, WINDOW_S]
