"""Keys of whoever has a name: a test sees the same bytes on every run."""

from collections.abc import Callable, Sequence

from mailserver.libp2p import mplex, yamux
from mailserver.libp2p.identity import IdentityKey
from mailserver.libp2p.noise import NoiseKeys
from tests.pairs import digest

MUXERS = (yamux.PROTOCOL, mplex.PROTOCOL)
DIALER = "dialer"
LISTENER = "listener"


def identity(name: str) -> IdentityKey:
    """The key of whoever has this name."""
    return IdentityKey(digest(f"{name}, identity"))


def noise_keys(name: str, muxers: Sequence[str] = MUXERS) -> NoiseKeys:
    """What they bring to a handshake."""
    return NoiseKeys(identity(name), digest(f"{name}, static"), muxers)


def ephemeral_of(name: str) -> Callable[[], bytes]:
    """The randomness of their handshakes, always the same."""
    return lambda: digest(f"{name}, ephemeral")
