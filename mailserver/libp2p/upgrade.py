"""The upgrade of a connection, either side: from its first byte until it carries sealed messages of a muxer.

    multistream: /noise  ->  Noise  ->  the muxer, by the lists in Noise's payloads, or else by multistream again

Spec: libp2p/specs, connections, "Upgrading Connections"; inlined-muxer-negotiation, by which the muxer is the first of
the dialer's list that the listener speaks. But js-libp2p, when it dials, takes the first of the listener's list. So we
take the first of our list in both roles: all that dial with lists are js-libp2p, and go-libp2p, which prefers yamux as
we do.
"""

from collections.abc import Callable
from dataclasses import dataclass

from mailserver.libp2p.faults import Cause, Libp2pFault
from mailserver.libp2p.multistream import Answering, Proposing
from mailserver.libp2p.noise import NOISE, NoiseChannel, NoiseHandshake, NoiseKeys
from mailserver.libp2p.peer_id import PeerId

MAX_MUXER_MESSAGES = 64
"""In how many messages of Noise the muxer must be agreed on: empty ones bring nothing, and would have no end. Deployed
nodes send each line, or a line and its length, in one."""


@dataclass(frozen=True, slots=True)
class Upgraded:
    """What a connection is after it: `first` are bytes of the muxer that came together with the end."""

    peer_id: PeerId
    muxer: str
    channel: NoiseChannel
    first: bytes


class Upgrade:
    """The upgrade of one connection."""

    def __init__(
        self,
        keys: NoiseKeys,
        ephemeral_secret: Callable[[], bytes],
        received: bytearray,
        *,
        is_dialer: bool,
        expected: PeerId | None,
    ) -> None:
        """Start.

        Args:
            ephemeral_secret: 32 random bytes; called once, when they are needed.
            received: the bytes that have come. Its owner appends to it; this object removes what it has read.
            expected: whom we have dialled; None takes anybody.
        """
        self._keys = keys
        self._ephemeral_secret = ephemeral_secret
        self._received = received
        self._is_dialer = is_dialer
        self._expected = expected
        self._out: list[bytes] = []
        self._handshake: NoiseHandshake | None = None  # once /noise is agreed on
        self._channel: NoiseChannel | None = None  # once the handshake is finished
        self._messages = 0  # with the negotiation of the muxer
        self._negotiation = self._negotiate((NOISE,))

    def _negotiate(self, protocols: tuple[str, ...]) -> Answering | Proposing:
        return Proposing(protocols) if self._is_dialer else Answering(protocols)

    def data_to_send(self) -> list[bytes]:
        """Return what is to be sent since the last call."""
        negotiated = [self._negotiation.data_to_send()]
        self._out += negotiated if self._channel is None else self._channel.seal(negotiated)
        out, self._out = [piece for piece in self._out if piece], []
        return out

    def advance(self) -> Upgraded | None:
        """Read what has come; return what the connection is once the upgrade is done, None before that.

        Raises:
            Libp2pFault: the peer broke a rule, or is another one than we dialled.
        """
        if self._handshake is None:
            self._handshake = self._agree_on_noise()
        if self._handshake is not None and self._channel is None:
            self._channel = self._shake_hands(self._handshake)
        if self._handshake is None or self._channel is None:
            return None
        if self._handshake.remote_muxers:
            muxer, first = self._muxer_of_lists(self._handshake.remote_muxers), b""
        else:
            self._agree_on_muxer(self._channel)
            if self._negotiation.agreed is None:
                return None
            muxer, first = self._negotiation.agreed, self._negotiation.rest()
        assert self._handshake.remote_key is not None, "the handshake is finished"
        return Upgraded(self._handshake.remote_key.peer_id, muxer, self._channel, first)

    def _agree_on_noise(self) -> NoiseHandshake | None:
        negotiation = self._negotiation
        received = bytes(self._received)
        self._received.clear()
        negotiation.receive_data(received)
        if negotiation.is_refused:
            raise Libp2pFault(Cause.NO_NOISE)
        if negotiation.agreed is None:
            return None
        self._received += negotiation.rest()
        self._out.append(negotiation.data_to_send())
        handshake = NoiseHandshake(self._keys, self._ephemeral_secret(), is_dialer=self._is_dialer)
        if self._is_dialer:
            self._out.append(handshake.begin())
        return handshake

    def _shake_hands(self, handshake: NoiseHandshake) -> NoiseChannel | None:
        while not handshake.is_finished:
            reply = handshake.advance(self._received)
            if reply is None:
                return None
            if handshake.remote_key is not None and self._expected not in (None, handshake.remote_key.peer_id):
                raise Libp2pFault(Cause.WRONG_PEER, got=handshake.remote_key.peer_id, limit=self._expected)
            self._out.append(reply)
        if not handshake.remote_muxers:
            self._negotiation = self._negotiate(self._keys.muxers)
        return handshake.channel()

    def _muxer_of_lists(self, theirs: tuple[str, ...]) -> str:
        muxer = next((muxer for muxer in self._keys.muxers if muxer in theirs), None)
        if muxer is None:
            raise Libp2pFault(Cause.NO_COMMON_MUXER)
        return muxer

    def _agree_on_muxer(self, channel: NoiseChannel) -> None:
        negotiation = self._negotiation
        while negotiation.agreed is None and (plaintext := channel.open(self._received)) is not None:
            self._messages += 1
            if self._messages > MAX_MUXER_MESSAGES:
                raise Libp2pFault(Cause.TOO_MANY_PROPOSALS, limit=MAX_MUXER_MESSAGES)
            negotiation.receive_data(plaintext)
            if negotiation.is_refused:
                raise Libp2pFault(Cause.NO_COMMON_MUXER)
