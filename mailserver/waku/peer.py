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
from mailserver.waku.envelope import Envelope, EnvelopeReader, decode_envelopes
from mailserver.waku.packets import (
    MessageResponse,
    PacketCode,
    PeerSettings,
    StatusOptions,
    decode_batch_acknowledged,
)

STATUS_TIMEOUT_S = 5.0
"""From when both Hellos are in until Status is: as long as the handshake may take. Who says nothing but Pong would
otherwise keep a place for as long as it likes; deployed nodes send Status at once."""


class PeerState(Enum):
    """Where a peer stands."""

    __hash__ = object.__hash__  # that of Enum is written in Python: members are looked up for each packet

    AWAIT_STATUS = auto()
    READY = auto()


_READY = frozenset({PeerState.READY})

LAWFUL: dict[PacketCode | None, frozenset[PeerState]] = {
    # 6/WAKU1 "Status": "MUST NOT be sent again": a second one is let pass, and ignored
    PacketCode.STATUS: frozenset(PeerState),
    PacketCode.MESSAGES: _READY,
    PacketCode.BATCH_ACKNOWLEDGED: _READY,
    PacketCode.MESSAGE_RESPONSE: _READY,
    PacketCode.STATUS_UPDATE: _READY,
    PacketCode.P2P_REQUEST_COMPLETE: _READY,
    PacketCode.P2P_REQUEST: _READY,
    PacketCode.P2P_MESSAGE: _READY,
    None: _READY,  # a code that we do not know: ignored, but not before Status
}
"""In which states a packet may arrive."""

_KNOWN_CODES = {int(code): code for code in PacketCode}


@dataclass(frozen=True, slots=True)
class StatusReceived:
    """The peer's Status is in; from now on it may send anything."""

    settings: PeerSettings


@dataclass(frozen=True, slots=True)
class SettingsChanged:
    """A Status Update changed what holds for the peer."""

    settings: PeerSettings


class MessagesReceived(NamedTuple):
    """Live envelopes; `batch_hash` is what a confirmation names: Keccak-256 of the packet's payload.

    A tuple, which costs less to make: there may be thousands a second.
    """

    envelopes: list[Envelope]
    batch_hash: bytes


@dataclass(frozen=True, slots=True)
class LongMessagesReceived:
    """A Messages packet that is too long to be decoded in one go: whoever takes it reads it part by part."""

    reader: EnvelopeReader


@dataclass(frozen=True, slots=True)
class BatchAcknowledged:
    """The peer has taken the packet with this hash."""

    batch_hash: bytes


@dataclass(frozen=True, slots=True)
class MessageResponseReceived:
    """The peer says which envelopes of a packet it refused."""

    response: MessageResponse


@dataclass(frozen=True, slots=True)
class P2PRequestReceived:
    """A history request; `payload` is still encoded: it is mail's business (8/WAKU-MAIL)."""

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
    """A packet that nobody needs to act on: unknown code, second Status, unknown version of a response."""

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


class WakuPeer:
    """The peer's side of one connection, as its packets describe it."""

    def __init__(self, *, light_node: bool) -> None:
        """Start before the peer's Status.

        Args:
            light_node: whether we announce ourselves as a light node: two of them have nothing to say to each other.
        """
        self._light_node = light_node
        self._state = PeerState.AWAIT_STATUS
        self._settings = PeerSettings()
        self._deadline: float | None = None
        self._left_s: float | None = None  # of its time, while nothing is read
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
        """The session is open: Status is due."""
        self._deadline = now + STATUS_TIMEOUT_S

    def next_timer(self) -> float | None:
        """When to call `handle_timer`; None while nothing is due."""
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
        """The caller reads nothing for a reason of its own: until it reads again, the time for Status stands still."""
        if self._deadline is not None:
            self._left_s, self._deadline = self._deadline - now, None

    def resume_reading(self, now: float) -> None:
        """The caller reads again."""
        if self._left_s is not None:
            self._deadline, self._left_s = now + self._left_s, None

    def receive_packet(self, code: int, payload: bytes) -> Event:
        """Take one packet; return what it means.

        Raises:
            RemoteProtocolError: a packet before Status, two light nodes, or a payload that does not decode.
        """
        known = _KNOWN_CODES.get(code)
        if self._state not in LAWFUL[known]:
            raise RemoteProtocolError(DisconnectReason.SUBPROTOCOL_ERROR, f"packet {code} before Status")
        if known is None:
            return PacketIgnored(code)
        try:
            return self._decoders[known](payload)
        except DecodeError as error:
            raise RemoteProtocolError(DisconnectReason.SUBPROTOCOL_ERROR, f"{known.name}: {error}") from error

    def receive_long_packet(self, code: int, payload: bytearray) -> Event:
        """Take a packet of more than MAX_RECEIVED_PACKET_BYTES, of a peer that may send such: only Messages may be.

        Raises:
            RemoteProtocolError: a packet before Status, of another code, or the payload is not one list.
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


def _on_messages(payload: bytes) -> Event:
    return MessagesReceived(decode_envelopes(payload), keccak256(payload))


def _on_message_response(payload: bytes) -> Event:
    response = MessageResponse.decode(payload)
    return PacketIgnored(PacketCode.MESSAGE_RESPONSE) if response is None else MessageResponseReceived(response)
