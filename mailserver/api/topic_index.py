"""Who wants a topic: looked up at the cost of those who are found, however many others there are."""

from collections.abc import Hashable, Iterable
from typing import Generic, TypeVar

from mailserver.waku.envelope import TOPIC_BYTES, Topic

T = TypeVar("T", bound=Hashable)


class TopicIndex(Generic[T]):
    """Things by the topics that they want: whole ones, beginnings of 1 to 3 bytes, or, if they name none, any.

    What was found stays as it is while others come and go. Coming and going costs nothing for the others, either, many
    as may want the same topics: hence dicts, used as sets that keep their order.
    """

    def __init__(self) -> None:
        self._wanting: dict[bytes, dict[T, None]] = {}

    def __len__(self) -> int:
        return len(self._wanting)

    def add(self, item: T, topics: Iterable[bytes]) -> None:
        """Enter a thing under its topics."""
        for beginning in _beginnings(topics):
            self._wanting.setdefault(beginning, {})[item] = None

    def remove(self, item: T, topics: Iterable[bytes]) -> None:
        """Remove a thing from under the topics that it was entered with."""
        for beginning in _beginnings(topics):
            wanting = self._wanting[beginning]
            del wanting[item]
            if not wanting:
                del self._wanting[beginning]

    def find(self, topic: Topic) -> tuple[T, ...]:
        """All that want a topic, each once."""
        found: list[T] = []
        for length in range(TOPIC_BYTES + 1):
            found.extend(self._wanting.get(topic[:length], ()))
        return tuple(found)


def _beginnings(topics: Iterable[bytes]) -> set[bytes]:
    """The topics without those that begin with another of them: at most one of what is left fits a topic.

    Whatever names no topic wants what begins with nothing.
    """
    wanted = set(topics) or {b""}
    return {topic for topic in wanted if not any(topic[:length] in wanted for length in range(len(topic)))}
