"""mailserver.limits.frame_memory."""

from mailserver.limits.frame_memory import ReceiveMemory, Reservation


class Frames:
    """Large frames of many peers, by name; `served` says which were granted later."""

    def __init__(self, max_bytes: int) -> None:
        self.memory = ReceiveMemory(max_bytes)
        self.served: list[str] = []

    def reserve(self, name: str, size: int) -> Reservation:
        return self.memory.reserve(size, lambda: self.served.append(name))


def test_free_memory_is_granted_at_once() -> None:
    frames = Frames(100)

    assert frames.reserve("first", 60).is_granted
    assert frames.reserve("second", 40).is_granted
    assert frames.served == []


def test_no_more_memory_is_granted_than_there_is() -> None:
    frames = Frames(100)
    frames.reserve("first", 60)

    assert not frames.reserve("second", 41).is_granted
    assert frames.reserve("third", 40).is_granted


def test_released_memory_is_granted_to_the_next_that_waits() -> None:
    frames = Frames(100)
    first = frames.reserve("first", 100)
    second = frames.reserve("second", 50)

    frames.memory.release(first)

    assert second.is_granted
    assert frames.served == ["second"]
    assert frames.reserve("third", 50).is_granted


def test_smallest_goes_first_and_of_equal_ones_the_oldest() -> None:
    frames = Frames(100)
    first = frames.reserve("first", 100)
    frames.reserve("large", 90)
    frames.reserve("small", 30)
    frames.reserve("as small", 30)
    frames.reserve("middle", 45)

    frames.memory.release(first)

    assert frames.served == ["small", "as small"]


def test_reservation_that_is_released_while_it_waits_is_never_granted() -> None:
    frames = Frames(100)
    first, second = frames.reserve("first", 100), frames.reserve("second", 50)

    frames.memory.release(second)
    frames.memory.release(first)

    assert frames.served == []
    assert frames.reserve("third", 100).is_granted
