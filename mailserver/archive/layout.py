"""How the rows of a period are spread over directories and files.

    date=2026-11-20/topic=0x9acb0442/part-...parquet       --partition-by topic
    date=2026-11-20/topic_prefix=9/part-...parquet         --partition-by topic-prefix

A directory per topic is what people expect, and right for some hundred topics. A Status network has tens of thousands
of topics a day. A directory for each would mean as many files of a few kilobytes, which take minutes to write and
seconds to list. A prefix keeps each topic whole, and in one small range of one file, since files are sorted by topic.
"""

from dataclasses import dataclass
from enum import Enum

PERIOD = "date"
"""Partition column: the UTC day of reception, `2026-11-20`, or the month, `2026-11`, that its days were merged into."""

TOPIC_PREFIX = "topic_prefix"
"""Partition column: the first hex digits of the topic, without `0x`."""

MAX_PREFIX_DIGITS = 4

MAX_TOPIC_DIRECTORIES = 300
"""Up to this many topics a day, the default is a directory per topic."""

FILE_BYTES = 256 * 1024 * 1024
"""Above this a directory's rows go into several files."""


class PartitionBy(Enum):
    """What a directory below the period holds. The value is the option's."""

    TOPIC = "topic"
    TOPIC_PREFIX = "topic-prefix"


@dataclass(frozen=True, slots=True)
class Layout:
    """What an archive is partitioned by, chosen once. `prefix_digits` is 0 where each topic has a directory."""

    by: PartitionBy
    prefix_digits: int

    @property
    def column(self) -> str:
        """The partition column below the period."""
        return "topic" if self.by is PartitionBy.TOPIC else TOPIC_PREFIX

    def value(self, topic: str) -> str:
        """The partition in which a topic lies; `topic` is 0x and 8 hex digits."""
        return topic if self.by is PartitionBy.TOPIC else topic[2 : 2 + self.prefix_digits]

    def __str__(self) -> str:
        return self.by.value + (f" ({self.prefix_digits} hex digits)" if self.prefix_digits else "")


def choose_layout(by: PartitionBy | None, prefix_digits: int | None, *, topics: int, day_bytes: int) -> Layout:
    """Choose the layout of a new archive.

    Args:
        by: what was asked for, or None for what suits the number of topics.
        prefix_digits: what was asked for; None for the fewest digits with which a prefix of an average day fits into a
            file.
        topics: distinct topics of a day.
        day_bytes: envelopes' bytes of an average day.
    """
    if by is None:
        many = topics > MAX_TOPIC_DIRECTORIES or prefix_digits is not None
        by = PartitionBy.TOPIC_PREFIX if many else PartitionBy.TOPIC
    if by is PartitionBy.TOPIC:
        return Layout(by, 0)
    if prefix_digits is None:
        prefix_digits = 1
        while prefix_digits < MAX_PREFIX_DIGITS and day_bytes > FILE_BYTES * 16**prefix_digits:
            prefix_digits += 1
    return Layout(by, prefix_digits)
