"""One Waku v1 peer, without I/O: Status first, then packets as events (6/WAKU1).

It sees the payloads of the `waku` capability and nothing of RLPx. A peer's fault raises RemoteProtocolError,
which the connection turns into a Disconnect. Times are monotonic seconds.

    AWAIT_STATUS --Status, within STATUS_TIMEOUT_S--> READY
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto
from typing import NamedTuple, TypeAlias

from mailserver.codec.keccak import keccak256
from mailserver.errors import DecodeError, DisconnectReason, RemoteProtocolError
from mailserver.waku.envelope import MAX_ENVELOPES_PER_PACKET, Envelope, EnvelopeReader, decode_envelopes
from mailserver.waku.packets import (
    MessageResponse,
    PacketCode,
    PeerSettings,
    StatusOptions,
    decode_batch_acknowledged,
)

STATUS_TIMEOUT_S = 5.0
"""How long Status may take after both Hellos: as long as the handshake may. Without this, a peer that sends only Pong
could keep its place for ever. Deployed nodes send Status at once."""


class PeerState(Enum):
    """Where a peer stands."""

    __hash__ = object.__hash__  # Enum's own is written in Python and slow; members are looked up for each packet

    AWAIT_STATUS = auto()
    READY = auto()


_READY = frozenset({PeerState.READY})

LAWFUL: dict[PacketCode | None, frozenset[PeerState]] = {
    # 6/WAKU1 "Status": "MUST NOT be sent again". A second one is ignored.
    PacketCode.STATUS: frozenset(PeerState),
    PacketCode.MESSAGES: _READY,
    PacketCode.BATCH_ACKNOWLEDGED: _READY,
    PacketCode.MESSAGE_RESPONSE: _READY,
    PacketCode.STATUS_UPDATE: _READY,
    PacketCode.P2P_REQUEST_COMPLETE: _READY,
    PacketCode.P2P_REQUEST: _READY,
    PacketCode.P2P_MESSAGE: _READY,
    None: _READY,  # an unknown code: it is ignored, except before Status
}
"""In which states a packet may arrive."""

_KNOWN_CODES = {int(code): code for code in PacketCode}


@dataclass(frozen=True, slots=True)
class StatusReceived:
    """The peer's Status has come. From now on it may send any packet."""

    settings: PeerSettings


@dataclass(frozen=True, slots=True)
class SettingsChanged:
    """A Status Update changed what holds for the peer."""

    settings: PeerSettings


class MessagesReceived(NamedTuple):
    """Live envelopes; `batch_hash` is what a confirmation names: Keccak-256 of the packet's payload.

    It is a tuple, which is made faster: there may be thousands a second.
    """

    envelopes: list[Envelope]
    batch_hash: bytes


@dataclass(frozen=True, slots=True)
class LongMessagesReceived:
    """A Messages packet that is too long to be decoded in one step: the caller reads it part by part."""

    reader: EnvelopeReader


@dataclass(frozen=True, slots=True)
class BatchAcknowledged:
    """The peer has received the packet with this hash."""

    batch_hash: bytes


@dataclass(frozen=True, slots=True)
class MessageResponseReceived:
    """The peer says which envelopes of a packet it refused."""

    response: MessageResponse


@dataclass(frozen=True, slots=True)
class P2PRequestReceived:
    """A history request; `payload` is still encoded, and decoded in `mail` (8/WAKU-MAIL)."""

    payload: bytes


@dataclass(frozen=True, slots=True)
class P2PMessagesReceived:
    """Envelopes outside gossip: the answer to a history request. The caller knows whether the peer is trusted."""

    envelopes: list[Envelope]


@dataclass(frozen=True, slots=True)
class P2PRequestCompleted:
    """The end of an answer; `payload` is still encoded."""

    payload: bytes


@dataclass(frozen=True, slots=True)
class PacketIgnored:
    """A packet that needs no action: an unknown code, a second Status, or an unknown version of a response."""

    code: int


Event: TypeAlias = (
    StatusReceived
    | SettingsChanged
    | MessagesReceived
    | LongMessagesReceived
    | BatchAcknowledged
    | MessageResponseReceived
    | P2PRequestReceived
    | P2PMessagesReceived
    | P2PRequestCompleted
    | PacketIgnored
)


ENVELOPE_CODES = frozenset({PacketCode.MESSAGES, PacketCode.P2P_MESSAGE})
"""The packets that hold envelopes."""


class LargePacket:
    """A packet of many envelopes, which its receiver decodes part by part, so that other tasks can run in between."""

    def __init__(self, code: int, payload: bytes) -> None:
        """Take a packet with one of ENVELOPE_CODES.

        Raises:
            RemoteProtocolError: its payload is not one list.
        """
        self._code = PacketCode(code)
        try:
            self._reader = EnvelopeReader(payload, max_envelopes=MAX_ENVELOPES_PER_PACKET)
        except DecodeError as error:
            raise self._fault(error) from error

    def read(self) -> list[Envelope]:
        """Decode the next envelopes; return [] at the end.

        Raises:
            RemoteProtocolError: one does not decode, or there are more than MAX_ENVELOPES_PER_PACKET.
        """
        try:
            return self._reader.read()
        except DecodeError as error:
            raise self._fault(error) from error

    def event(self, envelopes: list[Envelope]) -> MessagesReceived | P2PMessagesReceived:
        """The packet as an event, with what has been read of it."""
        if self._code is PacketCode.P2P_MESSAGE:
            return P2PMessagesReceived(envelopes)
        return MessagesReceived(envelopes, self._reader.payload_hash())

    def _fault(self, error: DecodeError) -> RemoteProtocolError:
        return RemoteProtocolError(DisconnectReason.SUBPROTOCOL_ERROR, f"{self._code.name}: {error}")


class WakuPeer:
    """The peer's side of one connection, as its packets describe it."""

    def __init__(self, *, light_node: bool) -> None:
        """Start before the peer's Status.

        Args:
            light_node: whether we announce that we are a light node: two light nodes have nothing to relay to each
            other.
        """
        self._light_node = light_node
        self._state = PeerState.AWAIT_STATUS
        self._settings = PeerSettings()
        self._deadline: float | None = None
        self._left_s: float | None = None  # time left for Status while reading is paused
        self._decoders: dict[PacketCode, Callable[[bytes], Event]] = {
            PacketCode.STATUS: self._on_status,
            PacketCode.MESSAGES: _on_messages,
            PacketCode.BATCH_ACKNOWLEDGED: lambda payload: BatchAcknowledged(decode_batch_acknowledged(payload)),
            PacketCode.MESSAGE_RESPONSE: _on_message_response,
            PacketCode.STATUS_UPDATE: self._on_status_update,
            PacketCode.P2P_REQUEST_COMPLETE: P2PRequestCompleted,
            PacketCode.P2P_REQUEST: P2PRequestReceived,
            PacketCode.P2P_MESSAGE: lambda payload: P2PMessagesReceived(decode_envelopes(payload)),
        }

    @property
    def state(self) -> PeerState:
        """Where the peer stands."""
        return self._state

    @property
    def settings(self) -> PeerSettings:
        """What the peer has announced so far."""
        return self._settings

    def opened(self, now: float) -> None:
        """Start the time for Status, as the session is open."""
        self._deadline = now + STATUS_TIMEOUT_S

    def next_timer(self) -> float | None:
        """When to call `handle_timer`; None if nothing is due."""
        return self._deadline

    def handle_timer(self, now: float) -> None:
        """Give up on a peer that has not sent Status.

        Raises:
            RemoteProtocolError: its time is over.
        """
        if self._deadline is not None and now >= self._deadline:
            self._deadline = None
            raise RemoteProtocolError(DisconnectReason.PING_TIMEOUT, f"no Status within {STATUS_TIMEOUT_S:g} s")

    def pause_reading(self, now: float) -> None:
        """Stop the time for Status: the caller pauses reading, and not because of the peer."""
        if self._deadline is not None:
            self._left_s, self._deadline = self._deadline - now, None

    def resume_reading(self, now: float) -> None:
        """Let the time for Status go on: the caller reads again."""
        if self._left_s is not None:
            self._deadline, self._left_s = now + self._left_s, None

    def receive_packet(self, code: int, payload: bytes) -> Event:
        """Decode one packet; return it as an event.

        Raises:
            RemoteProtocolError: it came before Status, both sides are light nodes, or the payload does not decode.
        """
        known = _KNOWN_CODES.get(code)
        if self._state not in LAWFUL[known]:
            _refuse_before_status(code)
        if known is None:
            return PacketIgnored(code)
        try:
            return self._decoders[known](payload)
        except DecodeError as error:
            raise RemoteProtocolError(DisconnectReason.SUBPROTOCOL_ERROR, f"{known.name}: {error}") from error

    def receive_large_packet(self, code: int, payload: bytes) -> LargePacket:
        """Take a packet with one of ENVELOPE_CODES that is to be decoded part by part.

        Raises:
            RemoteProtocolError: it came before Status, or its payload is not one list.
        """
        if self._state not in LAWFUL[PacketCode(code)]:
            _refuse_before_status(code)
        return LargePacket(code, payload)

    def receive_long_packet(self, code: int, payload: bytearray) -> Event:
        """Take a packet of more than MAX_RECEIVED_PACKET_BYTES from a named peer. Only Messages may be so long.

        Raises:
            RemoteProtocolError: it came before Status, has another code, or its payload is not one list.
        """
        if code != PacketCode.MESSAGES or self._state not in LAWFUL[PacketCode.MESSAGES]:
            raise RemoteProtocolError(DisconnectReason.SUBPROTOCOL_ERROR, f"packet {code} is too long")
        try:
            return LongMessagesReceived(EnvelopeReader(payload))
        except DecodeError as error:
            raise RemoteProtocolError(DisconnectReason.SUBPROTOCOL_ERROR, f"MESSAGES: {error}") from error

    def _on_status(self, payload: bytes) -> Event:
        if self._state is PeerState.READY:
            return PacketIgnored(PacketCode.STATUS)
        self._update(payload)
        self._state = PeerState.READY
        self._deadline = self._left_s = None
        return StatusReceived(self._settings)

    def _on_status_update(self, payload: bytes) -> Event:
        self._update(payload)
        return SettingsChanged(self._settings)

    def _update(self, payload: bytes) -> None:
        settings = self._settings.updated(StatusOptions.decode(payload))
        if self._light_node and settings.light_node:
            raise RemoteProtocolError(DisconnectReason.USELESS_PEER, "both are light nodes")
        self._settings = settings


def _refuse_before_status(code: int) -> None:
    raise RemoteProtocolError(DisconnectReason.SUBPROTOCOL_ERROR, f"packet {code} before Status")


def _on_messages(payload: bytes) -> Event:
    return MessagesReceived(decode_envelopes(payload), keccak256(payload))


def _on_message_response(payload: bytes) -> Event:
    response = MessageResponse.decode(payload)
    return PacketIgnored(PacketCode.MESSAGE_RESPONSE) if response is None else MessageResponseReceived(response)
