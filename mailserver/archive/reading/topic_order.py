"""The topics that a search wants, arranged for looking them up: there may be ten thousand, and hundreds of periods."""

from collections.abc import Collection

import numpy as np

from mailserver.waku.envelope import Topic


class TopicOrder:
    """Some topics in order, as themselves and as big-endian numbers."""

    def __init__(self, topics: Collection[Topic]) -> None:
        self.topics = topics
        self.in_order = sorted(topics)
        self.numbers = np.frombuffer(b"".join(self.in_order), ">u4").astype(np.uint32)
        self._prefixes: dict[int, frozenset[str]] = {}

    def prefixes(self, length: int) -> frozenset[str]:
        """Return the first `length` hex digits of all topics. The directories of an archive have such names."""
        found = self._prefixes.get(length)
        if found is None:
            found = self._prefixes[length] = frozenset(topic.hex()[:length] for topic in self.in_order)
        return found
