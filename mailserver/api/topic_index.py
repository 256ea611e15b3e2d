"""An index of who wants a topic. A look-up costs as much as it finds, however many others there are."""

from collections.abc import Hashable, Iterable
from typing import Generic, TypeVar

from mailserver.waku.envelope import TOPIC_BYTES, Topic

T = TypeVar("T", bound=Hashable)


class TopicIndex(Generic[T]):
    """Items by the topics that they want: whole topics, prefixes of 1 to 3 bytes, or all topics if they name none.

    A result does not change while items are added and removed. The cost of adding or removing one does not depend on
    how many others want the same topics: that is why dicts serve as ordered sets.
    """

    def __init__(self) -> None:
        self._wanting: dict[bytes, dict[T, None]] = {}

    def __len__(self) -> int:
        return len(self._wanting)

    def add(self, item: T, topics: Iterable[bytes]) -> None:
        """Add an item under its topics."""
        for beginning in _beginnings(topics):
            self._wanting.setdefault(beginning, {})[item] = None

    def remove(self, item: T, topics: Iterable[bytes]) -> None:
        """Remove an item; `topics` are those that it was added with."""
        for beginning in _beginnings(topics):
            wanting = self._wanting[beginning]
            del wanting[item]
            if not wanting:
                del self._wanting[beginning]

    def find(self, topic: Topic) -> tuple[T, ...]:
        """All items that want a topic, each once."""
        found: list[T] = []
        for length in range(TOPIC_BYTES + 1):
            found.extend(self._wanting.get(topic[:length], ()))
        return tuple(found)


def _beginnings(topics: Iterable[bytes]) -> set[bytes]:
    """The topics, without those that begin with another of them. So at most one of the rest matches any topic.

    No topics at all become the empty prefix, with which every topic begins.
    """
    wanted = set(topics) or {b""}
    return {topic for topic in wanted if not any(topic[:length] in wanted for length in range(len(topic)))}
