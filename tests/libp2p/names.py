"""Keys of whoever has a name: a test sees the same bytes on every run."""

from mailserver.libp2p.identity import IdentityKey
from tests.pairs import digest


def identity(name: str) -> IdentityKey:
    """The key of whoever has this name."""
    return IdentityKey(digest(f"{name}, identity"))
