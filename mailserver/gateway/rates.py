"""How fast clients may ask, by address: peer ids cost nothing."""

from collections.abc import Mapping

from mailserver.limits.admission import MAX_ADDRESSES, Allowlist, groups_of
from mailserver.limits.buckets import Buckets
from mailserver.metrics.gateway import Asked

BURST_S = 10.0
"""So many seconds' worth of requests may come at once: a client asks a lot when it starts, and is silent then. go-waku
backs off for a minute when it is refused once (status-go#7783)."""


class Rates:
    """The requests of each address, for each protocol. An IPv6 address is a /64."""

    def __init__(self, per_second: Mapping[Asked, float], allowed: Allowlist) -> None:
        """Take the limits.

        Args:
            per_second: by protocol; 0, or not there: no limit.
            allowed: addresses without limits.
        """
        self._allowed = allowed
        self._buckets: dict[Asked, Buckets[bytes]] = {
            asked: Buckets(rate, max(rate * BURST_S, 1.0), max_keys=MAX_ADDRESSES)
            for asked, rate in per_second.items()
            if rate
        }

    def take(self, asked: Asked, host: str, now: float) -> bool:
        """Whether an address may ask now; if so, it is counted. `now` is monotonic seconds."""
        buckets = self._buckets.get(asked)
        if buckets is None or self._allowed.has_address(host):
            return True
        bucket = buckets.of(groups_of(host).address, now)
        if bucket.wait(1.0, now) > 0.0:
            return False
        bucket.take(1.0, now)
        return True
