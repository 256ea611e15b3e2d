"""The running node as those see it who drive it: its settings, its peers, and what it sends of its own.

A setting that changes here takes effect at once, and is announced to every peer by a Status Update. Peers learn of it
late: what keeps to the former one is tolerated for a grace period (6/WAKU1 "Status Update").
"""

import logging
from collections.abc import Iterable
from dataclasses import replace

from mailserver.codec.keys import Enode, NodeId, PrivateKey
from mailserver.history.delivery import send_in_turn
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
    """What can be asked of the node, and told to it, while it runs."""

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
        """Put together what runs. `listening` says where, once that is known."""
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
        self._has_said_ourselves = False

    def listening(self, address: tuple[str, int], enode: Enode, static_peers: StaticPeers) -> None:
        """Take where the node listens, and what keeps it connected."""
        self.listen_address = address
        self.enode = enode
        self._static_peers = static_peers

    # Settings.

    @property
    def requirements(self) -> Requirements:
        """What an envelope must be."""
        return self._acceptance.requirements

    def status(self) -> StatusOptions:
        """What is announced to a peer: topics if we keep only those, else a full bloom filter; and every number."""
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
        """Ask for another proof of work."""
        self._change(replace(self.requirements, min_pow=min_pow))

    def set_interest(self, interest: Interest) -> None:
        """Take other topics, or all."""
        self._change(replace(self.requirements, interest=interest))

    def set_max_envelope_bytes(self, limit: int) -> None:
        """Refuse longer envelopes. It is not announced: there is no option for it.

        Raises:
            ValueError: it is not from 1 to MAX_ENVELOPE_BYTES.
        """
        if not 1 <= limit <= MAX_ENVELOPE_BYTES:
            raise ValueError(f"{limit} is not from 1 to {MAX_ENVELOPE_BYTES}")
        self._change(replace(self.requirements, max_envelope_bytes=limit))

    def set_rate_limits(self, packets: RateLimits, sizes: RateLimits) -> None:
        """Announce other rate limits; whoever measures puts them in force."""
        self._packet_rate_limits, self._byte_rate_limits = packets, sizes
        self._peers.announce(self.status())

    def _change(self, requirements: Requirements) -> None:
        self._acceptance.change(requirements, self._clock())
        self._peers.announce(self.status())

    # Envelopes.

    def live_usage(self) -> tuple[int, int]:
        """How many envelopes float here, and their bytes."""
        return self._relay.usage

    async def post(self, envelope: Envelope) -> None:
        """Store an envelope that was made here, and relay it.

        Raises:
            EnvelopeRefused: no node would take it.
            StoreError: it is not on disk; it is relayed all the same.
        """
        await self._intake.take_own(envelope)

    async def send_direct(self, node_id: NodeId, envelope: Envelope) -> None:
        """Send an envelope to one peer outside gossip, as a P2P Message: it takes that only if it trusts us.

        Raises:
            PeerNotConnected: there is no such peer.
            ConnectionLost: it is going away.
        """
        await send_in_turn(self._peers.get(node_id).sender(), PacketCode.P2P_MESSAGE, encode_envelopes([envelope.raw]))

    async def request_history(
        self, node_id: NodeId, envelope: Envelope, *, asker: Asker, timeout_s: float = ANSWER_TIMEOUT_S
    ) -> None:
        """Send a history request to a trusted peer; what it answers comes by the feed, and its end by `completions`.

        Args:
            asker, timeout_s: as of `Completions.expect`.
        Raises:
            PeerNotConnected: there is no such peer.
            PeerNotTrusted: we would not take its answer.
            TooManyRequests: as many are under way as may be.
            ConnectionLost: it is going away.
        """
        peer = self._peers.get(node_id)
        if node_id not in self._peers.trusted:
            raise PeerNotTrusted(f"peer {node_id.hex()[:8]} is not trusted")
        request_id = RequestId(envelope.hash())
        self.completions.expect(peer.number, request_id, asker, timeout_s)
        try:
            await send_in_turn(peer.sender(), PacketCode.P2P_REQUEST, envelope.raw)
        except BaseException:  # whoever asked is told by the error, or has gone
            self.completions.forget(peer.number, request_id)
            raise

    # Peers.

    def peers(self) -> list[PeerInfo]:
        """Who is connected."""
        return self._peers.infos()

    def say_ourselves(self) -> None:
        """Say, once, that somebody has named us among our own peers."""
        if not self._has_said_ourselves:
            self._has_said_ourselves = True
            log.info("own enode is named among the peers, it is left out")

    def _are_ourselves(self, node_id: NodeId) -> bool:
        if node_id != self.key.public_key:
            return False
        self.say_ourselves()
        return True

    def mark_trusted(self, node_id: NodeId) -> None:
        """Take history from this peer, from now on; from ourselves there is none to take."""
        if not self._are_ourselves(node_id):
            self._peers.trusted.add(node_id)

    def mark_untrusted(self, node_id: NodeId) -> bool:
        """Take history from this peer no longer; return whether we did. What it was asked for ends so."""
        was_trusted = node_id in self._peers.trusted
        self._peers.trusted.discard(node_id)
        for peer in self._peers:
            if peer.connection.node_id == node_id:
                self.completions.end_all(peer.number, "the mailserver is not trusted any more")
        return was_trusted

    def follow_trusted(self, before: Iterable[NodeId], now: Iterable[NodeId]) -> None:
        """The settings name these trusted peers now, and those before. Whom they do not speak of stays as it is."""
        before, now = set(before), set(now)
        for node_id in before - now:
            self.mark_untrusted(node_id)
        for node_id in now - before:
            self.mark_trusted(node_id)

    def add_peer(self, enode: Enode) -> None:
        """Stay connected to this peer until it is removed or the process ends; nothing is to be done for ourselves."""
        if not self._are_ourselves(enode.node_id):
            self._peers.static.add(enode.node_id)
            self._static_peers.add(enode)

    def remove_peer(self, node_id: NodeId) -> bool:
        """Stay connected to this peer no longer, and disconnect; return whether there was a connection."""
        self._peers.static.discard(node_id)
        self._static_peers.remove(node_id)
        return self._peers.disconnect(node_id, "removed by the operator")

    def follow_static(self, before: Iterable[Enode], now: Iterable[Enode]) -> None:
        """As `follow_trusted`, of the peers to stay connected to. A connection that is there goes on."""
        before, now = set(before), set(now)
        for node_id in {enode.node_id for enode in before} - {enode.node_id for enode in now}:
            self._peers.static.discard(node_id)
            self._static_peers.remove(node_id)
        for enode in now - before:
            self.add_peer(enode)
