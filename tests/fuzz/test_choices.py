"""tests.fuzz.choices: the same bytes, the same decisions."""

from tests.fuzz.choices import Choices


def test_decisions_are_read_one_after_the_other() -> None:
    choices = Choices(b"\x05\x01\x01\x02\x03abcrest")

    assert choices.below(4) == 1
    assert choices.below(1000) == 257
    assert choices.pick("abc") == "c"
    assert choices.take(10) == b"abc"
    assert choices.more
    assert choices.rest() == b"rest"
    assert not choices.more


def test_at_the_end_of_the_bytes_everything_is_nothing() -> None:
    choices = Choices(b"")

    assert (choices.below(7), choices.flag(), choices.pick("ab"), choices.take(9), choices.rest()) == (
        0,
        False,
        "a",
        b"",
        b"",
    )
