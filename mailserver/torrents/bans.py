"""Addresses of peers that sent wrong pieces. No I/O.

libtorrent bans an address with its port, and who dials has another port each time. A ban ends, because a piece may get
damaged on the way, and a community may have one seed.
"""

BAN_S = 600.0
MAX_BANS = 1000
"""With more, the oldest is forgotten."""


class Bans:
    """Who is banned, and since when. Times are monotonic seconds."""

    def __init__(self) -> None:
        self._since: dict[str, float] = {}  # in the order of time

    def add(self, address: str, now: float) -> None:
        """Ban an address from now on."""
        self._since.pop(address, None)
        self._since[address] = now
        if len(self._since) > MAX_BANS:
            del self._since[next(iter(self._since))]

    def expire(self, now: float) -> bool:
        """Forget those whose time is over; return whether there were any."""
        over = [address for address, since in self._since.items() if now - since >= BAN_S]
        for address in over:
            del self._since[address]
        return bool(over)

    def addresses(self) -> list[str]:
        """Those that are banned."""
        return list(self._since)
