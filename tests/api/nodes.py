"""A whole node in this process, as `mailserver.app.daemon` wires it, with the methods of JSON-RPC beside it."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mailserver.api.caller import Call, Caller
from mailserver.api.dialects import Dialect
from mailserver.api.dispatch import Dispatcher
from mailserver.api.filters import Filters
from mailserver.api.keys import KeyStore
from mailserver.api.methods import KNOWN_ERRORS, all_methods
from mailserver.api.params import Json
from mailserver.codec.keys import Enode
from mailserver.history.delivery import DeliverySettings
from mailserver.limits.admission import EMPTY_ALLOWLIST, Admission, AdmissionLimits
from mailserver.net.connection import Connection
from mailserver.net.dialer import StaticPeers, dial
from mailserver.net.listener import Listener
from mailserver.net.sessions import session_config
from mailserver.peers.connected import Peers
from mailserver.peers.node import Node
from mailserver.peers.served_peer import ServedPeer
from mailserver.store.sqlite.schema import STORE_FILE
from mailserver.store.sqlite.store import SqliteStore, open_store
from mailserver.waku.acceptance import Requirements
from mailserver.waku.packets import StatusOptions
from tests.mailservers import CLIENT_ID, PASSWORD_KEY, Clock, wired
from tests.pairs import private_key
from tests.raw_peer import RawPeer
from tests.waiting import DEADLINE_S


class CallFailed(Exception):
    """The answer is an error."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(code, message)
        self.code = code
        self.message = message


@dataclass
class RunningNode:
    """What runs."""

    node: Node
    store: SqliteStore
    keys: KeyStore
    filters: Filters
    peers: Peers
    dispatcher: Dispatcher
    clock: Clock
    raw_peers: list[RawPeer]

    async def call(self, method: str, *params: Json, caller: Caller | None = None) -> Any:
        """Call a method with parameters by position; otherwise as `call_with`."""
        return await self.call_with(method, params, caller=caller)

    async def call_with(self, method: str, params: Json, *, caller: Caller | None = None) -> Any:
        """Call a method as a client does; return the result.

        Raises:
            CallFailed: the answer is an error.
        """
        request = json.dumps({"jsonrpc": "2.0", "method": method, "params": params, "id": 1})
        call = Call(caller or Caller())
        text = await self.dispatcher.answer(request, call)
        call.answered.set()
        assert text is not None
        answer = json.loads(text)
        if "error" in answer:
            raise CallFailed(answer["error"]["code"], answer["error"]["message"])
        return answer["result"]

    async def dial(self, name: str, *, status: StatusOptions | None = None) -> RawPeer:
        """Join a peer that has exchanged Hello and Status, and is known by now."""
        raw = await RawPeer.dial(self.node.listen_address, self.node.key.public_key, name=name)
        self.raw_peers.append(raw)
        return await raw.greet(status=(status or StatusOptions(pow_requirement=0.0)).encode())


@contextlib.asynccontextmanager
async def running_node(
    folder: Path, *, min_pow: float = 0.0, request_pow: float = 0.0, dialect: Dialect = Dialect.SPECIFICATION
) -> AsyncIterator[RunningNode]:
    """Run a node with a store in `folder` and a port of its own."""
    key, clock, peers = private_key("node"), Clock(), Peers(10)
    async with open_store(folder / STORE_FILE) as store:
        settings = DeliverySettings(PASSWORD_KEY, key)
        node, services = wired(store, clock, settings, peers, requirements=Requirements(min_pow))

        async def serve(connection: Connection) -> None:
            peer = ServedPeer(connection, services, peers.next_number())
            peers.add(peer)
            try:
                await peer.run()
            finally:
                peers.discard(peer)

        async def dial_peer(enode: Enode) -> Connection:
            return await dial(enode, session_config(key, CLIENT_ID), node.status())

        listener = Listener(
            key,
            CLIENT_ID,
            status=node.status,
            refuse=peers.refuse,
            admission=Admission(AdmissionLimits(), EMPTY_ALLOWLIST),
            serve=serve,
        )
        port = await listener.start("127.0.0.1", 0)
        static_peers = StaticPeers(dial_peer, serve, lambda node_id: peers.find(node_id) is not None)
        node.listening(("127.0.0.1", port), Enode(key.public_key, "127.0.0.1", port), static_peers)
        keys, filters = KeyStore(), Filters(node.feed)
        methods = all_methods(
            node, keys, filters, services.ids.lists, dialect=dialect, request_pow=request_pow, clock=clock
        )
        running = RunningNode(node, store, keys, filters, peers, Dispatcher(methods, KNOWN_ERRORS), clock, [])
        tasks = [asyncio.create_task(services.relay.run()), asyncio.create_task(filters.run())]
        try:
            yield running
        finally:
            for raw in running.raw_peers:
                await raw.close()
            listener.stop()
            static_peers.stop()
            for peer in list(peers):
                peer.abort()
            for task in tasks:
                task.cancel()
            async with asyncio.timeout(DEADLINE_S):
                await listener.join()
                await static_peers.join()
