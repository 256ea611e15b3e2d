"""What a mailserver owes its clients: every envelope that it has confirmed, and what it serves must be ours, once."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from itertools import accumulate

MAX_SHOWN = 3
"""Of what is wrong in the same way, so many are named."""


@dataclass(frozen=True, slots=True)
class Sent:
    """An envelope as it was sent. Times are Unix seconds; `confirmed_at` is None as long as it was not confirmed."""

    raw: bytes
    sent_at: float
    confirmed_at: float | None = None

    @property
    def created(self) -> int:
        """The whole second that stands in it: that in which it was sent."""
        return int(self.sent_at)


class Promises:
    """All that was ever sent to one store, by hash. What was sent and not confirmed may be there or not."""

    def __init__(self) -> None:
        self.sent: dict[bytes, Sent] = {}
        self.packets = 0
        """Confirmed."""
        self.confirmed = 0

    def send(self, envelopes: Mapping[bytes, bytes], now: float) -> None:
        """Take down a packet (hash -> raw) that is about to be sent."""
        for envelope_hash, raw in envelopes.items():
            self.sent[envelope_hash] = Sent(raw, now)

    def confirm(self, hashes: Iterable[bytes], now: float) -> None:
        """Take down that a packet was confirmed: from now on it is owed."""
        for envelope_hash in hashes:
            sent = self.sent[envelope_hash]
            if sent.confirmed_at is None:
                self.confirmed += 1
                self.sent[envelope_hash] = Sent(sent.raw, sent.sent_at, now)
        self.packets += 1

    def owed(self) -> set[bytes]:
        """The hashes of what was confirmed so far."""
        return {each for each, sent in self.sent.items() if sent.confirmed_at is not None}

    def copy(self, owed: AbstractSet[bytes] | None = None) -> "Promises":
        """The same, for a copy of the store.

        Args:
            owed: only these of what was confirmed are owed there; None: all.
        """
        other = Promises()
        for each, sent in self.sent.items():
            other.sent[each] = sent if owed is None or each in owed else Sent(sent.raw, sent.sent_at)
        return other

    def broken_by(
        self,
        served: Iterable[tuple[bytes, bytes]],
        *,
        keeps: int | None = None,
        archived: Iterable[bytes] | None = None,
    ) -> Iterator[str]:
        """Compare with all that a client is given (hash, raw), without or with retention; say what is wrong.

        Args:
            keeps: retention keeps so many, and deletes those first that were received first; None: it keeps all.
            archived: what retention may delete, hashes; None: anything.
        """
        counts: Counter[bytes] = Counter()
        for envelope_hash, raw in served:
            counts[envelope_hash] += 1
            if envelope_hash not in self.sent:
                yield f"served what was never sent: {envelope_hash.hex()}"
            elif self.sent[envelope_hash].raw != raw:
                yield f"served other bytes than were sent: {envelope_hash.hex()}"
        yield from _named("served twice", (each for each, count in counts.items() if count > 1))
        owed = {each: sent for each, sent in self.sent.items() if sent.confirmed_at is not None}
        missing = owed.keys() - counts.keys()
        if keeps is None:
            yield from _named("confirmed, and not served", missing)
            return
        if len(counts) < min(keeps, len(owed)):
            yield f"{len(counts)} envelopes are left of {len(owed)} confirmed, though {keeps} are to be kept"
        there = {each: sent for each, sent in owed.items() if each in counts}
        yield from _named("deleted before older ones", _too_early(missing, owed, there))
        if archived is not None:
            yield from _named("deleted, and not archived", missing - frozenset(archived))


def _too_early(missing: Iterable[bytes], owed: Mapping[bytes, Sent], there: Mapping[bytes, Sent]) -> Iterator[bytes]:
    """Which of the missing cannot have been deleted first: something is there that was received before it was sent.

    A client sees what was created later first. Only what is older by that order, too, proves anything: pruning may go
    on while the client reads.
    """
    older = sorted((sent.confirmed_at, sent.created) for sent in there.values() if sent.confirmed_at is not None)
    times = [confirmed_at for confirmed_at, _ in older]
    oldest = list(accumulate((created for _, created in older), min))
    for each in missing:
        before = bisect_left(times, owed[each].sent_at)
        if before and oldest[before - 1] < owed[each].created:
            yield each


def _named(what: str, hashes: Iterable[bytes]) -> Iterator[str]:
    found = sorted(hashes)
    if found:
        yield f"{what}: {len(found)}, {', '.join(each.hex()[:16] for each in found[:MAX_SHOWN])}"
