"""What methods that make an envelope and send it have in common."""

from mailserver.api.keys import KeyStore
from mailserver.api.work import Works
from mailserver.live.intake import Clock
from mailserver.peers.node import Node


class SendingMethods:
    """Base class of these methods."""

    def __init__(self, node: Node, keys: KeyStore, works: Works, *, clock: Clock) -> None:
        """Take what the methods need.

        Args:
            works: shared by all methods that seek a proof of work.
        """
        self._node = node
        self._keys = keys
        self._works = works
        self._clock = clock
