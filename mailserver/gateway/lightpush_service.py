"""Takes what clients send (19/WAKU2-LIGHTPUSH), in its newer and its older form."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial

from mailserver.errors import DecodeError
from mailserver.gateway.bridge import Bridge
from mailserver.gateway.peer import Peer
from mailserver.gateway.rates import Rates
from mailserver.metrics.gateway import ClientProtocol, GatewayMetrics
from mailserver.waku2.codes import LightPushStatus
from mailserver.waku2.fields import request_id_of
from mailserver.waku2.lightpush import decode_light_push_request, decode_push_rpc
from mailserver.waku2.lightpush_rules import LightPushVerdict, verdict
from mailserver.waku2.protocols import FRAME_BOUNDS, ProtocolId

_MALFORMED = verdict(LightPushStatus.BAD_REQUEST)
_TOO_MANY = verdict(LightPushStatus.TOO_MANY_REQUESTS)


class _Service:
    """What both forms have in common."""

    def __init__(self, bridge: Bridge, rates: Rates, metrics: GatewayMetrics) -> None:
        self._bridge = bridge
        self._rates = rates
        self._metrics = metrics

    def _is_too_much(self, peer: Peer) -> bool:
        return peer.is_busy or not self._rates.take(
            ClientProtocol.LIGHTPUSH, peer.host, asyncio.get_running_loop().time()
        )

    def _count(self, sent: LightPushVerdict) -> LightPushVerdict:
        self._metrics.requests.labels(ClientProtocol.LIGHTPUSH.value, str(int(sent.status))).inc()
        return sent


class LightPush(_Service):
    """Answers lightpush 3.0.0."""

    max_request_bytes = FRAME_BOUNDS[ProtocolId.LIGHTPUSH].to_service

    def answer(self, peer: Peer, request: bytes) -> bytes | Callable[[], Awaitable[bytes]]:
        """Send a message on; answer once the mailserver has stored it."""
        if self._is_too_much(peer):
            return self._response(request_id_of(request), _TOO_MANY)
        try:
            asked = decode_light_push_request(request)
        except DecodeError:
            return self._response(request_id_of(request), _MALFORMED)
        send = partial(self._bridge.send, asked.pubsub_topic, asked.message)

        async def answer() -> bytes:
            return self._response(asked.request_id, await send())

        return answer

    def _response(self, request_id: str, sent: LightPushVerdict) -> bytes:
        return self._count(sent).response(request_id).encode()


class LightPush2(_Service):
    """Answers lightpush 2.0.0-beta1."""

    max_request_bytes = FRAME_BOUNDS[ProtocolId.LIGHTPUSH_2].to_service

    def answer(self, peer: Peer, request: bytes) -> bytes | Callable[[], Awaitable[bytes]]:
        """Send a message on; answer once the mailserver has stored it."""
        if self._is_too_much(peer):
            return self._response(request_id_of(request), _TOO_MANY)
        try:
            rpc = decode_push_rpc(request)
        except DecodeError:
            return self._response(request_id_of(request), _MALFORMED)
        if rpc.request is None:
            return self._response(rpc.request_id, _MALFORMED)
        send = partial(self._bridge.send, rpc.request.pubsub_topic, rpc.request.message)

        async def answer() -> bytes:
            return self._response(rpc.request_id, await send())

        return answer

    def _response(self, request_id: str, sent: LightPushVerdict) -> bytes:
        return self._count(sent).push_rpc(request_id).encode()
