"""Addresses of peers that sent wrong pieces, and how they are found out. No I/O.

Whom libtorrent bans is not asked: it charges a wrong piece to all who sent blocks of it, and bans them after some of
these, so a liar has the owner banned, too. Besides, it bans an address with its port, and who dials has another port
each time. A ban ends, because a piece may get damaged on the way, and a community may have one seed.
"""

from mailserver.torrents.info import TorrentInfo

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


class Senders:
    """Who has sent the blocks of pieces that are under way."""

    def __init__(self) -> None:
        self._torrents: dict[bytes, tuple[TorrentInfo, dict[int, dict[int, str]]]] = {}  # of a piece, block -> address

    def follow(self, info: TorrentInfo) -> None:
        """From now on, blocks of this torrent come, and of all of its pieces anew."""
        self._torrents[info.info_hash] = info, {}

    def leave(self, info_hash: bytes) -> None:
        """No more blocks come of this torrent."""
        self._torrents.pop(info_hash, None)

    def on_block(self, info_hash: bytes, piece: int, block: int, address: str) -> None:
        """A block has come."""
        if info_hash in self._torrents:
            _, pieces = self._torrents[info_hash]
            pieces.setdefault(piece, {})[block] = address

    def on_piece(self, info_hash: bytes, piece: int) -> str | None:
        """A piece is whole, be it right or wrong; return who sent all of it, if that was one."""
        if info_hash not in self._torrents:
            return None
        info, pieces = self._torrents[info_hash]
        senders = pieces.pop(piece, {})
        addresses = set(senders.values())
        return addresses.pop() if len(senders) == info.blocks(piece) and len(addresses) == 1 else None

    def clear(self) -> None:
        """Something has come, and was not told."""
        for _, pieces in self._torrents.values():
            pieces.clear()
