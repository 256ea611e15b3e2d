"""Which holdings may go: what is in a history archive, and what no archive will ever take.

Anybody may post on the topics of channels, and claim any time of creation. What the job leaves out for that would be
held for ever.
"""

from bisect import bisect_right
from collections.abc import Collection, Sequence

from mailserver.communities.index import IndexEntry, IndexRoom
from mailserver.community.owner.holdings import HeldEnvelope
from mailserver.community.owner.record import Community


class Removal:
    """What may go of a community, as far as its published archives tell."""

    def __init__(self, record: Community, entries: Sequence[IndexEntry], published: Collection[bytes]) -> None:
        """Begin.

        Args:
            entries: what the published index lists.
            published: the keys of the envelopes that the archives have.
        """
        self._record = record
        self._published = published
        self._ranges = sorted({entry.time_range for entry in entries})
        self._newest = max((each.upper for each in self._ranges), default=0)
        self._takes_late = IndexRoom(record.format, entries).takes_late

    def may_go(self, held: HeldEnvelope) -> bool:
        """Whether an envelope is in an archive, or will be in none."""
        of_channel = (each for each in self._record.channels if each.topic == held.topic)
        if held.key in self._published or not any(each.holds_at(held.created) for each in of_channel):
            return True
        if self._has_archive(held.created):
            return not self._takes_late
        # The run that made the newest archive had this envelope, looked at its range, and made none: it claims to be
        # older than the history. A range that is still to be made is not before the newest one.
        return held.created < self._newest and held.received < self._newest

    def _has_archive(self, second: int) -> bool:
        at = bisect_right(self._ranges, second, key=lambda each: each.lower)
        return at > 0 and second < self._ranges[at - 1].upper
