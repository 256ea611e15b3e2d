"""The running node, as JSON-RPC and the daemon control it: its settings, its peers, and what it sends itself.

A setting that is changed here takes effect at once, and is announced to all peers by a Status Update. Peers learn of it
late, so envelopes that met the former setting are accepted for a grace period (6/WAKU1 "Status Update").
"""

import logging
from collections.abc import Iterable
from dataclasses import replace

from mailserver.codec.keys import Enode, NodeId, PrivateKey
from mailserver.history.sending import send_in_turn
from mailserver.live.feed import Feed
from mailserver.live.intake import Clock, Intake
from mailserver.live.relay import Relay
from mailserver.mail.request import RequestId
from mailserver.net.dialer import StaticPeers
from mailserver.peers.completions import ANSWER_TIMEOUT_S, Asker, Completions
from mailserver.peers.connected import PeerInfo, PeerNotTrusted, Peers
from mailserver.waku.acceptance import MAX_ENVELOPE_BYTES, Acceptance, Requirements
from mailserver.waku.bloom import FULL_BLOOM, Interest
from mailserver.waku.envelope import Envelope, encode_envelopes
from mailserver.waku.packets import PacketCode, RateLimits, StatusOptions

log = logging.getLogger(__name__)


class Node:
    """The controls of a running node."""

    def __init__(
        self,
        key: PrivateKey,
        client_id: str,
        *,
        acceptance: Acceptance,
        intake: Intake,
        completions: Completions,
        feed: Feed,
        relay: Relay,
        peers: Peers,
        clock: Clock,
        light_node: bool = False,
        packet_rate_limits: RateLimits,
        byte_rate_limits: RateLimits,
    ) -> None:
        """Put the parts together. `listening` adds the address, once it is known."""
        self.key = key
        self.client_id = client_id
        self.completions = completions
        self.feed = feed
        self.enode: Enode
        self.listen_address: tuple[str, int]
        self._acceptance = acceptance
        self._intake = intake
        self._relay = relay
        self._peers = peers
        self._clock = clock
        self._light_node = light_node
        self._packet_rate_limits = packet_rate_limits
        self._byte_rate_limits = byte_rate_limits
        self._static_peers: StaticPeers
        self._has_logged_own_enode = False

    def listening(self, address: tuple[str, int], enode: Enode, static_peers: StaticPeers) -> None:
        """Note where the node listens, and what dials its static peers."""
        self.listen_address = address
        self.enode = enode
        self._static_peers = static_peers

    # Settings.

    @property
    def requirements(self) -> Requirements:
        """What an envelope must have to be accepted."""
        return self._acceptance.requirements

    def status(self) -> StatusOptions:
        """The Status that we announce: the topics that we accept, or a full bloom filter if we accept all; and all
        numbers."""
        requirements = self.requirements
        topics = requirements.interest.topics
        return StatusOptions(
            pow_requirement=requirements.min_pow,
            bloom=FULL_BLOOM if topics is None else None,
            light_node=self._light_node,
            confirmations=True,
            packet_rate_limits=self._packet_rate_limits,
            topic_interest=None if topics is None else frozenset(topics),
            byte_rate_limits=self._byte_rate_limits,
        )

    def set_min_pow(self, min_pow: float) -> None:
        """Require this proof of work."""
        self._change(replace(self.requirements, min_pow=min_pow))

    def set_interest(self, interest: Interest) -> None:
        """Accept these topics, or all."""
        self._change(replace(self.requirements, interest=interest))

    def set_max_envelope_bytes(self, limit: int) -> None:
        """Refuse longer envelopes. This is not announced: Status has no option for it.

        Raises:
            ValueError: the limit is not from 1 to MAX_ENVELOPE_BYTES.
        """
        if not 1 <= limit <= MAX_ENVELOPE_BYTES:
            raise ValueError(f"{limit} is not from 1 to {MAX_ENVELOPE_BYTES}")
        self._change(replace(self.requirements, max_envelope_bytes=limit))

    def set_rate_limits(self, packets: RateLimits, sizes: RateLimits) -> None:
        """Announce these rate limits. The `RateLimiter` has to be changed, too, to put them in force."""
        self._packet_rate_limits, self._byte_rate_limits = packets, sizes
        self._peers.announce(self.status())

    def _change(self, requirements: Requirements) -> None:
        self._acceptance.change(requirements, self._clock())
        self._peers.announce(self.status())

    # Envelopes.

    def live_usage(self) -> tuple[int, int]:
        """How many live envelopes the relay's pool holds, and their bytes."""
        return self._relay.usage

    async def post(self, envelope: Envelope) -> None:
        """Store and relay an envelope that was made here.

        Raises:
            EnvelopeRefused: it is not acceptable; `verdict` says why.
            StoreError: it could not be stored; it is relayed all the same.
        """
        await self._intake.take_own(envelope)

    async def send_direct(self, node_id: NodeId, envelope: Envelope) -> None:
        """Send an envelope to one peer only, as a P2P Message. The peer takes it only if it trusts us.

        Raises:
            PeerNotConnected: the peer is not connected.
            ConnectionLost: the connection has ended meanwhile.
        """
        await send_in_turn(self._peers.get(node_id).sender(), PacketCode.P2P_MESSAGE, encode_envelopes([envelope.raw]))

    async def request_history(
        self, node_id: NodeId, envelope: Envelope, *, asker: Asker, timeout_s: float = ANSWER_TIMEOUT_S
    ) -> None:
        """Send a history request to a trusted peer. Its answer comes by the feed, the outcome by `completions`.

        Args:
            asker, timeout_s: see `Completions.expect`.
        Raises:
            PeerNotConnected: the peer is not connected.
            PeerNotTrusted: we would not take the answer of this peer.
            TooManyRequests: as many requests are under way as may be.
            ConnectionLost: the connection has ended meanwhile.
        """
        peer = self._peers.get(node_id)
        if node_id not in self._peers.trusted:
            raise PeerNotTrusted(f"peer {node_id.hex()[:8]} is not trusted")
        request_id = RequestId(envelope.hash())
        self.completions.expect(peer.number, request_id, asker, timeout_s)
        try:
            await send_in_turn(peer.sender(), PacketCode.P2P_REQUEST, envelope.raw)
        except BaseException:  # the caller learns of the failure by this error, or was cancelled
            self.completions.forget(peer.number, request_id)
            raise

    # Peers.

    def peers(self) -> list[PeerInfo]:
        """Describe the connected peers."""
        return self._peers.infos()

    def log_own_enode(self) -> None:
        """Log, once, that our own enode is named as one of our peers."""
        if not self._has_logged_own_enode:
            self._has_logged_own_enode = True
            log.info("own enode is named among the peers, it is left out")

    def _is_own(self, node_id: NodeId) -> bool:
        if node_id != self.key.public_key:
            return False
        self.log_own_enode()
        return True

    def mark_trusted(self, node_id: NodeId) -> None:
        """Trust this peer from now on: take history from it. Our own id is ignored."""
        if not self._is_own(node_id):
            self._peers.trusted.add(node_id)

    def mark_untrusted(self, node_id: NodeId) -> bool:
        """Stop trusting this peer; return whether it was trusted. Requests that were sent to it fail."""
        was_trusted = node_id in self._peers.trusted
        self._peers.trusted.discard(node_id)
        for peer in self._peers:
            if peer.connection.node_id == node_id:
                self.completions.end_all(peer.number, "the mailserver is no longer trusted")
        return was_trusted

    def follow_trusted(self, before: Iterable[NodeId], now: Iterable[NodeId]) -> None:
        """Apply a change of the trusted peers in the settings. Peers that are in neither list stay as they are."""
        before, now = set(before), set(now)
        for node_id in before - now:
            self.mark_untrusted(node_id)
        for node_id in now - before:
            self.mark_trusted(node_id)

    def add_peer(self, enode: Enode) -> None:
        """Make this a static peer: stay connected to it until it is removed. Our own enode is ignored."""
        if not self._is_own(enode.node_id):
            self._peers.static.add(enode.node_id)
            self._static_peers.add(enode)

    def remove_peer(self, node_id: NodeId) -> bool:
        """Stop staying connected to this peer, and disconnect it; return whether it was connected."""
        self._peers.static.discard(node_id)
        self._static_peers.remove(node_id)
        return self._peers.disconnect(node_id, "removed by the operator")

    def follow_static(self, before: Iterable[Enode], now: Iterable[Enode]) -> None:
        """Apply a change of the static peers in the settings. Open connections stay."""
        before, now = set(before), set(now)
        for node_id in {enode.node_id for enode in before} - {enode.node_id for enode in now}:
            self._peers.static.discard(node_id)
            self._static_peers.remove(node_id)
        for enode in now - before:
            self.add_peer(enode)
