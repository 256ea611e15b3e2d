"""What methods share that make an envelope and send it: what they need for it, and what they return."""

from mailserver.rpc.params import Json, encode_hex
from mailserver.rpc.waku import Dialect
from mailserver.rpc.work import Works
from mailserver.services.archive import Clock
from mailserver.services.keys import KeyStore
from mailserver.services.node import Node
from mailserver.waku.envelope import Envelope


class SendingMethods:
    """Base of such methods."""

    def __init__(self, node: Node, keys: KeyStore, works: Works, *, dialect: Dialect, clock: Clock) -> None:
        """Take what to work with.

        Args:
            works: shared by all methods that seek a proof of work.
        """
        self._node = node
        self._keys = keys
        self._works = works
        self._dialect = dialect
        self._clock = clock

    def _sent(self, envelope: Envelope) -> Json:
        """What is returned once an envelope is sent."""
        return encode_hex(envelope.hash()) if self._dialect is Dialect.DEPLOYED else True
