"""The values of labels. They are closed sets, so that no peer can add a series."""

from enum import Enum


class RequestKind(Enum):
    """What a history request asks for."""

    TOPICS = "topics"
    BLOOM = "bloom"
    EVERYTHING = "everything"
    UNREADABLE = "unreadable"


class IdRequestKind(Enum):
    """What a question about message ids asks for: see docs/wakuid.md."""

    OPEN = "open"
    LIST = "list"
    ENVELOPES = "envelopes"
    FETCH = "fetch"
    FETCH_ITEMS = "fetch_items"
    RECONCILE = "reconcile"
    UNREADABLE = "unreadable"


class Outcome(Enum):
    """How a request ended. LOST: its client was gone before the answer was complete."""

    DELIVERED = "delivered"
    REJECTED = "rejected"
    FAILED = "failed"
    LOST = "lost"


class PostResult(Enum):
    """What became of an envelope that a gateway has posted. MALFORMED: it was none. FAILED: the store's fault."""

    STORED = "stored"
    REFUSED = "refused"
    MALFORMED = "malformed"
    FAILED = "failed"


class ArchiveRead(Enum):
    """What a row group of the archive is read for: to find envelopes, or to send them."""

    KEYS = "keys"
    ENVELOPES = "envelopes"


class Direction(Enum):
    """Who dialled, or in which direction bytes went."""

    IN = "in"
    OUT = "out"


class ClientFamily(Enum):
    """Which program a peer claims to be, by the name in its Hello."""

    STATUS_GO = "status-go"
    NIM = "nim"
    OURS = "waku-mailserver"
    GETH = "geth"
    OTHER = "other"

    @classmethod
    def of(cls, client_id: str) -> "ClientFamily":
        """Tell by the beginning of a client id such as `statusd/v0.77.0/linux-amd64/go1.18`."""
        name = client_id.lower()
        return next((family for prefix, family in _PREFIXES.items() if name.startswith(prefix)), cls.OTHER)


_PREFIXES = {
    "status": ClientFamily.STATUS_GO,
    "nim": ClientFamily.NIM,
    "waku-mailserver": ClientFamily.OURS,
    "geth": ClientFamily.GETH,
}


class Check(Enum):
    """What is checked to tell whether the mailserver is well."""

    STORE = "store"
    DAMAGE = "damage"
    DISK = "disk"
    CLOCK = "clock"
    COMPACTION = "compaction"
    ARCHIVE = "archive"
    PEERS = "peers"
    WORKERS = "workers"
