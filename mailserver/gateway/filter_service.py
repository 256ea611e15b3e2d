"""Pushes to clients the messages that they have subscribed to (12/WAKU2-FILTER), in its new and its old form.

Pushes are sent as well as can be: nothing is kept for a client that is away, nothing is sent twice, and each message
has a packet of its own ("Filter-Push").
"""

import asyncio
from collections.abc import Hashable, Iterator, Sequence
from typing import TypeAlias, cast

from mailserver.errors import DecodeError
from mailserver.gateway.peer import Peer
from mailserver.gateway.rates import Rates
from mailserver.libp2p.peer_id import PeerId
from mailserver.metrics.gateway import ClientProtocol, GatewayMetrics
from mailserver.net.due import call_when_due
from mailserver.waku2.codes import FilterStatus
from mailserver.waku2.criteria import Subscription
from mailserver.waku2.fields import request_id_of
from mailserver.waku2.filter_packets import (
    FilterSubscribeResponse,
    decode_filter_subscribe_request,
    encode_message_push,
)
from mailserver.waku2.frames import encode_frame
from mailserver.waku2.old_filter import FilterRpc, decode_filter_rpc, encode_old_push, encode_pushing_rpc
from mailserver.waku2.protocols import FRAME_BOUNDS, ProtocolId
from mailserver.waku2.subscriptions import Subscriptions

CLIENTS_AT_ONCE = 50
"""Whoever pushes may pause after so many clients, so that their sockets get it before all others are served."""

_Wanted: TypeAlias = tuple[Subscription[PeerId], str]
"""What a push is sent for: a subscription, and the content topic of the message."""


class _Frames:
    """The frames that push one message, each made when the first client may have it."""

    def __init__(self, message: bytes, network_topic: str) -> None:
        self._message = message
        self._network_topic = network_topic
        self._frame = self._old_push = b""

    def of(self, subscription: Subscription[PeerId]) -> bytes:
        """What a subscription gets: that of the old filter carries the id of the request that matched ("FilterRPC")."""
        if subscription.request_id is not None:
            self._old_push = self._old_push or encode_old_push(self._message)
            return encode_frame(encode_pushing_rpc(subscription.request_id, self._old_push))
        self._frame = self._frame or encode_frame(encode_message_push(self._message, self._network_topic))
        return self._frame


class FilterService:
    """The subscriptions of all clients, and the pushes to them."""

    def __init__(
        self,
        subscriptions: Subscriptions[PeerId],
        network_topic: str,
        metrics: GatewayMetrics,
    ) -> None:
        """Begin without clients.

        Args:
            network_topic: the pubsub topic of all messages here.
        """
        self.subscriptions = subscriptions
        self._network_topic = network_topic
        self._metrics = metrics
        self._clients: dict[PeerId, list[Peer]] = {}  # the connections of each, the latest last
        self._timer: asyncio.TimerHandle | None = None

    def wants(self, content_topic: str) -> bool:
        """Whether anybody has subscribed to this topic."""
        return self.subscriptions.is_wanted(self._network_topic, content_topic)

    def push(self, message: bytes, content_topic: str) -> Iterator[None]:
        """Push a message, in its protobuf form, to all who want it, and read what they get.

        It stops after each CLIENTS_AT_ONCE of them, and once more at the end. Whoever takes back a subscription
        meanwhile gets nothing more.
        """
        frames = _Frames(message, self._network_topic)
        wanting = self.subscriptions.matches(self._network_topic, content_topic)
        taken_back = self.subscriptions.taken_back
        for at in range(0, len(wanting), CLIENTS_AT_ONCE):
            some = wanting[at : at + CLIENTS_AT_ONCE]
            if self.subscriptions.taken_back != taken_back:
                some = [each for each in some if each.wants(self._network_topic, content_topic)]
            self._push_to(some, frames, content_topic)
            yield

    def _push_to(self, wanting: Sequence[Subscription[PeerId]], frames: _Frames, content_topic: str) -> None:
        """Push a message for these subscriptions. What is done here for each is done a thousand times for a message."""
        clients, frame_of, reached = self._clients, frames.of, self.subscriptions.push_reached
        is_wanted, forgotten = self._is_wanted, self._forgotten
        pushed = dropped = 0
        for subscription in wanting:
            connections = clients.get(subscription.subscriber)
            if not connections:
                continue
            peer = connections[-1]
            if peer.may_push():  # asked first: for a client that does not read, nothing is even encoded
                protocol = ProtocolId.FILTER_PUSH if subscription.request_id is None else ProtocolId.OLD_FILTER
                peer.push(protocol, frame_of(subscription), (subscription, content_topic), is_wanted, forgotten)
                reached(subscription.subscriber)
                pushed += 1
            else:
                self.subscriptions.push_failed(subscription.subscriber, _now())
                dropped += 1
        self._metrics.pushes.inc(pushed)
        if dropped:
            self._metrics.dropped_pushes.inc(dropped)
            self._set_timer()

    def on_client(self, peer: Peer) -> None:
        """A client has connected, perhaps once more."""
        assert peer.peer_id is not None
        self._clients.setdefault(peer.peer_id, []).append(peer)
        self.subscriptions.connected(peer.peer_id)

    def on_client_gone(self, peer: Peer) -> None:
        """A connection of a client has ended."""
        assert peer.peer_id is not None
        connections = self._clients[peer.peer_id]
        connections.remove(peer)
        if not connections:
            del self._clients[peer.peer_id]
            self.subscriptions.gone(peer.peer_id, _now())
            self._set_timer()

    def stop(self) -> None:
        """Stop waiting for what expires."""
        if self._timer is not None:
            self._timer.cancel()

    def _is_wanted(self, criterion: Hashable) -> bool:
        subscription, content_topic = cast(_Wanted, criterion)
        return subscription.wants(self._network_topic, content_topic)

    def _forgotten(self, criterion: Hashable) -> None:
        """A client has reset a push: it does not know of the subscription any more."""
        subscription, content_topic = cast(_Wanted, criterion)
        if subscription.request_id is None:
            self.subscriptions.forget(subscription.subscriber, self._network_topic, content_topic)

    def _set_timer(self) -> None:
        due = self.subscriptions.next_timer()
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None if due is None else call_when_due(due, self._expire)

    def _expire(self) -> None:
        self.subscriptions.expire(_now())
        self._set_timer()


class FilterSubscribe:
    """Answers filter-subscribe."""

    max_request_bytes = FRAME_BOUNDS[ProtocolId.FILTER_SUBSCRIBE].to_service

    def __init__(self, service: FilterService, rates: Rates, metrics: GatewayMetrics) -> None:
        self._service = service
        self._rates = rates
        self._metrics = metrics

    def answer(self, peer: Peer, request: bytes) -> bytes:
        """Do what the request asks for, if its address has not asked too often."""
        assert peer.peer_id is not None
        if self._rates.take(ClientProtocol.FILTER, peer.host, _now()):
            response = self._response(peer.peer_id, request)
        else:
            response = _refused(request, FilterStatus.TOO_MANY_REQUESTS)
        self._metrics.requests.labels(ClientProtocol.FILTER.value, str(int(response.status_code))).inc()
        return response.encode()

    def _response(self, peer_id: PeerId, request: bytes) -> FilterSubscribeResponse:
        try:
            asked = decode_filter_subscribe_request(request)
        except DecodeError:
            return _refused(request, FilterStatus.BAD_REQUEST)
        return self._service.subscriptions.answer(peer_id, asked, _now())


class OldFilter:
    """Takes the requests of the old filter, which has no answers: what is refused is only counted."""

    max_request_bytes = FRAME_BOUNDS[ProtocolId.OLD_FILTER].to_service

    def __init__(self, service: FilterService, rates: Rates, metrics: GatewayMetrics) -> None:
        self._service = service
        self._rates = rates
        self._metrics = metrics

    def answer(self, peer: Peer, request: bytes) -> None:
        """Do what the request asks for, if its address has not asked too often: what is beyond that is not even read.

        What a client pushes to us, nobody has asked for.
        """
        status = FilterStatus.TOO_MANY_REQUESTS
        if self._rates.take(ClientProtocol.OLD_FILTER, peer.host, _now()):
            status = self._status(peer, decode_filter_rpc(request))
        self._metrics.requests.labels(ClientProtocol.OLD_FILTER.value, str(int(status))).inc()

    def _status(self, peer: Peer, rpc: FilterRpc) -> FilterStatus:
        if rpc.request is None:
            return FilterStatus.BAD_REQUEST
        assert peer.peer_id is not None
        return self._service.subscriptions.apply_old(peer.peer_id, rpc.request_id, rpc.request, _now()).status


def _now() -> float:
    return asyncio.get_running_loop().time()


def _refused(request: bytes, status: FilterStatus) -> FilterSubscribeResponse:
    return FilterSubscribeResponse(request_id_of(request), status, status.text)
