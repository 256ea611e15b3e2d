"""The client's side of both filters: what it has asked for of which service node, and which pushes it believes.

"A filter client SHOULD verify that each MessagePush it receives originated from a service node where the client has an
active subscription and that it matches filter criteria belonging to that subscription." A subscription counts from the
request on, for a push may overtake the answer; one that is taken back counts no longer from its request on.
Spec: 12/WAKU2-FILTER "Message Push", "FilterRPC".
"""

from collections.abc import Sequence
from enum import Enum
from typing import Generic

from mailserver.ids.waku_message import WakuMessage
from mailserver.waku2.codes import FilterStatus
from mailserver.waku2.criteria import ANY, Criterion, S
from mailserver.waku2.filter_packets import (
    FilterSubscribeRequest,
    FilterSubscribeResponse,
    FilterSubscribeType,
    MessagePush,
)
from mailserver.waku2.old_filter import FilterRequest, FilterRpc


class PushFault(Enum):
    """Why a push is not believed."""

    NOT_SUBSCRIBED = "nothing was asked for of this node, or nothing with this request id"
    NO_PUBSUB_TOPIC = "the pubsub topic is missing"
    NOT_WANTED = "it matches nothing that was asked for of this node"
    NO_MESSAGE = "there is no message in it"


class _Service:
    """What one node was asked for."""

    def __init__(self) -> None:
        self.criteria: set[Criterion] = set()
        self.pending: dict[str, set[Criterion]] = {}  # what an answer may still refuse, by request id
        self.old: dict[str, FilterRequest] = {}


class FilterClient(Generic[S]):
    """What is asked for of service nodes, which are known by their peer ids."""

    def __init__(self) -> None:
        self._services: dict[S, _Service] = {}

    def subscribe(
        self, service: S, request_id: str, pubsub_topic: str, content_topics: Sequence[str]
    ) -> FilterSubscribeRequest:
        """Ask for messages; return the request to send."""
        asked = self._services.setdefault(service, _Service())
        added = {Criterion(pubsub_topic, topic) for topic in content_topics} - asked.criteria
        asked.pending[request_id] = added
        asked.criteria |= added
        return FilterSubscribeRequest(request_id, FilterSubscribeType.SUBSCRIBE, pubsub_topic, tuple(content_topics))

    def unsubscribe(
        self, service: S, request_id: str, pubsub_topic: str, content_topics: Sequence[str]
    ) -> FilterSubscribeRequest:
        """Ask for no more of them; return the request to send."""
        asked = self._services.setdefault(service, _Service())
        named = {Criterion(pubsub_topic, topic) for topic in content_topics}
        for held in (asked.criteria, *asked.pending.values()):
            held.difference_update(named)
        return FilterSubscribeRequest(request_id, FilterSubscribeType.UNSUBSCRIBE, pubsub_topic, tuple(content_topics))

    def unsubscribe_all(self, service: S, request_id: str) -> FilterSubscribeRequest:
        """Ask for nothing more, of the old filter either; return the request to send."""
        self._services.pop(service, None)
        return FilterSubscribeRequest(request_id, FilterSubscribeType.UNSUBSCRIBE_ALL)

    def on_response(self, service: S, response: FilterSubscribeResponse) -> bool:
        """Take an answer; say whether it grants what was asked for.

        NOT_FOUND: the node has forgotten what it has granted. What it has not answered yet still counts.
        """
        asked = self._services.get(service)
        if asked is not None:
            added = asked.pending.pop(response.request_id, set())
            if response.status_code == FilterStatus.NOT_FOUND:
                asked.criteria = set().union(*asked.pending.values())
            elif response.status_code != FilterStatus.OK:
                asked.criteria -= added
        return response.status_code == FilterStatus.OK

    def request_old(self, service: S, request_id: str, request: FilterRequest) -> FilterRpc:
        """Ask by the old filter, or take back what these match; return what to send.

        A request that is taken back in part stays, but nothing of what was taken back is believed any more.
        """
        asked = self._services.setdefault(service, _Service())
        if request.subscribe:
            asked.old[request_id] = request
        else:
            asked.old = {name: left for name, each in asked.old.items() if (left := _without(each, request))}
        return FilterRpc(request_id, request)

    def forget(self, service: S) -> None:
        """The node is gone, and with it what it was asked for."""
        self._services.pop(service, None)

    def fault_of(self, service: S, push: MessagePush) -> PushFault | None:
        """Why a push is not believed; None: it is."""
        asked = self._services.get(service)
        if asked is None or not asked.criteria:
            return PushFault.NOT_SUBSCRIBED
        if not push.pubsub_topic:
            return PushFault.NO_PUBSUB_TOPIC
        is_wanted = (push.pubsub_topic, push.waku_message.content_topic) in asked.criteria
        return None if is_wanted else PushFault.NOT_WANTED

    def old_fault_of(self, service: S, rpc: FilterRpc) -> PushFault | None:
        """Why a push of the old filter is not believed; None: it is. It says nothing of the pubsub topic."""
        asked = self._services.get(service)
        request = asked.old.get(rpc.request_id) if asked else None
        if request is None:
            return PushFault.NOT_SUBSCRIBED
        if rpc.push is None or not rpc.push.messages:
            return PushFault.NO_MESSAGE
        return None if all(_wants(request, each) for each in rpc.push.messages) else PushFault.NOT_WANTED


def _wants(request: FilterRequest, message: WakuMessage) -> bool:
    return not request.content_topics or message.content_topic in request.content_topics


def _without(request: FilterRequest, taken_back: FilterRequest) -> FilterRequest | None:
    """What is left of a request; None: nothing."""
    if taken_back.topic not in (ANY, request.topic):
        return request
    if not taken_back.content_topics:
        return None
    left = tuple(topic for topic in request.content_topics if topic not in taken_back.content_topics)
    if request.content_topics and not left:
        return None
    return FilterRequest(True, request.topic, left)
