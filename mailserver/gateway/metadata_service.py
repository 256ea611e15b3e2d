"""Tells clients our cluster and shard (66/WAKU2-METADATA). js-waku uses no node that has not told it."""

from mailserver.gateway.peer import Peer
from mailserver.metrics.gateway import ClientProtocol, GatewayMetrics
from mailserver.waku2.metadata import Metadata, decode_metadata
from mailserver.waku2.protocols import FRAME_BOUNDS, ProtocolId


class MetadataService:
    """Answers with our cluster and shard, whatever a client says of its own."""

    max_request_bytes = FRAME_BOUNDS[ProtocolId.METADATA].to_service

    def __init__(self, ours: Metadata, metrics: GatewayMetrics) -> None:
        self._answer = ours.encode()
        self._metrics = metrics

    def answer(self, peer: Peer, request: bytes) -> bytes:
        """Answer a request."""
        decode_metadata(request)
        self._metrics.requests.labels(ClientProtocol.METADATA.value, "200").inc()
        return self._answer
