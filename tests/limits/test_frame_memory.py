"""mailserver.limits.frame_memory."""

from mailserver.limits.frame_memory import FrameShare, ReceiveMemory


class Frames:
    """Large frames of many peers, by name; `served` says whose were granted later."""

    def __init__(self, max_bytes: int) -> None:
        self.memory = ReceiveMemory(max_bytes)
        self.served: list[str] = []

    def ask(self, name: str, size: int) -> FrameShare:
        return self.memory.ask(size, lambda: self.served.append(name))


def test_memory_that_is_there_is_granted_at_once() -> None:
    frames = Frames(100)

    assert frames.ask("first", 60).is_granted
    assert frames.ask("second", 40).is_granted
    assert frames.served == []


def test_no_more_is_granted_than_there_is() -> None:
    frames = Frames(100)
    frames.ask("first", 60)

    assert not frames.ask("second", 41).is_granted
    assert frames.ask("third", 40).is_granted


def test_what_is_given_back_goes_to_who_waits() -> None:
    frames = Frames(100)
    first = frames.ask("first", 100)
    second = frames.ask("second", 50)

    frames.memory.give_back(first)

    assert second.is_granted
    assert frames.served == ["second"]
    assert frames.ask("third", 50).is_granted


def test_smallest_goes_first_and_of_equal_ones_the_oldest() -> None:
    frames = Frames(100)
    first = frames.ask("first", 100)
    frames.ask("large", 90)
    frames.ask("small", 30)
    frames.ask("as small", 30)
    frames.ask("middle", 45)

    frames.memory.give_back(first)

    assert frames.served == ["small", "as small"]


def test_who_gives_up_waiting_gets_nothing() -> None:
    frames = Frames(100)
    first, second = frames.ask("first", 100), frames.ask("second", 50)

    frames.memory.give_back(second)
    frames.memory.give_back(first)

    assert frames.served == []
    assert frames.ask("third", 100).is_granted
