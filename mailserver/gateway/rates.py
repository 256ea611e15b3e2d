"""How fast clients may ask, by address: peer ids cost nothing."""

from collections.abc import Mapping

from mailserver.limits.admission import MAX_ADDRESSES, Allowlist, groups_of
from mailserver.limits.buckets import Buckets
from mailserver.metrics.gateway import ClientProtocol

BURST_S = 10.0
"""So many seconds' worth of requests may come at once: a client asks a lot when it starts, and is silent then. go-waku
backs off for a minute when it is refused once (status-go#7783)."""

STORE_WORK_PER_SECOND = 800_000.0
"""How much of the store's work clients of one address may cause, in units of about 0.3 us: a quarter of a processor. A
query by 1,000 hashes costs a hundred times as much as one for 20 messages, so to count queries is not enough."""


class Rates:
    """The requests of each address, for each protocol. An IPv6 address is a /64."""

    def __init__(self, per_second: Mapping[ClientProtocol, float], allowed: Allowlist) -> None:
        """Take the limits.

        Args:
            per_second: by protocol; 0, or not there: no limit.
            allowed: addresses without limits.
        """
        self._allowed = allowed
        self._buckets: dict[ClientProtocol, Buckets[bytes]] = {
            asked: Buckets(rate, max(rate * BURST_S, 1.0), max_keys=MAX_ADDRESSES)
            for asked, rate in per_second.items()
            if rate
        }
        self._work: Buckets[bytes] | None = None
        if ClientProtocol.STORE in self._buckets:
            self._work = Buckets(STORE_WORK_PER_SECOND, STORE_WORK_PER_SECOND * BURST_S, max_keys=MAX_ADDRESSES)

    def take(self, asked: ClientProtocol, host: str, now: float) -> bool:
        """Whether an address may ask now; if so, it is counted. `now` is monotonic seconds."""
        buckets = self._buckets.get(asked)
        if buckets is None or self._allowed.has_address(host):
            return True
        bucket = buckets.of(groups_of(host).address, now)
        if bucket.wait(1.0, now) > 0.0:
            return False
        bucket.take(1.0, now)
        return True

    def charge(self, work: int, host: str, now: float) -> None:
        """Charge an address for work of the store; a negative amount is given back. It may come to owe some."""
        if self._work is not None and not self._allowed.has_address(host):
            self._work.of(groups_of(host).address, now).take(work, now)

    def owes_work(self, host: str, now: float) -> bool:
        """Whether an address has caused more work of the store than it may by now."""
        if self._work is None or self._allowed.has_address(host):
            return False
        return self._work.of(groups_of(host).address, now).level(now) < 0.0
