"""Daemons in hosts of their own, that trust and keep connected to each other, and clients that come by the same lines.

Each node is named in the others' enode URLs, not by its address: it may move. Everything is looked at from outside of
the namespaces: by the control sockets, the stores and /proc.
"""

import asyncio
import contextlib
import random
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from mailserver.app.config import Config
from mailserver.app.control_call import STATUS, call_daemon
from mailserver.client.mail_client import MailClient
from mailserver.codec.keccak import keccak256
from mailserver.codec.keys import Enode
from mailserver.errors import ConnectionLost, DisconnectReason
from mailserver.mail.request import Cursor, MailRequest, RequestId
from mailserver.net.connection import Connection
from mailserver.net.dialer import DIAL_TIMEOUT_S
from mailserver.net.pipe import Pipe
from mailserver.net.sessions import session_config
from mailserver.store.sqlite.schema import STORE_FILE
from mailserver.waku.bloom import EMPTY_BLOOM, Interest
from mailserver.waku.envelope import Envelope, EnvelopeHash, Topic, encode_envelope
from mailserver.waku.packets import PeerSettings, StatusOptions
from mailserver.waku.payload import key_from_password
from tests.faults.switch import Line
from tests.faults.wires import PORT, Host, Network, network
from tests.integration.daemons import Daemon, running_daemon
from tests.pairs import private_key
from tests.store.samples import rows

PASSWORD_KEY = key_from_password(Config().password)
POLL_S = 0.1

CONNECT_WITHIN_S = 30.0

START_WITHIN_S = 60.0
"""How long daemons that start together may take."""

_CLIENT_STATUS = StatusOptions(pow_requirement=0.0, bloom=EMPTY_BLOOM, light_node=True, confirmations=False)


class Node:
    """A daemon in its host. `daemon` is there while it runs."""

    def __init__(self, host: Host, folder: Path) -> None:
        self.host = host
        self.folder = folder
        self.name = f"node{host.number}"
        self.key = private_key(self.name)
        self.daemon: Daemon
        folder.mkdir()
        key_file = folder / "nodekey"
        key_file.touch(0o600)
        key_file.write_text(f"{self.key.secret.hex()}\n")

    @property
    def enode(self) -> Enode:
        """Where it is, by name."""
        return Enode(self.key.public_key, self.name, PORT)

    @contextlib.contextmanager
    def running(self, factor: float, others: Sequence["Node"], *, static: bool = True) -> Iterator[Daemon]:
        """Run it for the length of a `with`; it trusts the others, and keeps connected to them if they are `static`."""
        enodes = ",".join(str(other.enode) for other in others)
        peers = ["--trusted-peers", enodes, *(["--static-peers", enodes] if static else [])]
        limits = ["--allowed-addresses", "10.0.0.0/8"]  # tests/faults/peers.py is about those
        address = ["--listen", f"0.0.0.0:{PORT}", "--advertise", self.name]
        program = [*self.host.inside, sys.executable, "-m", "tests.faults.hurried", str(factor)]
        with running_daemon(self.folder, *address, *peers, *limits, program=program, listening=False) as self.daemon:
            yield self.daemon

    async def status(self) -> dict[str, Any]:
        """What `waku-mailserver status --json` says."""
        status: dict[str, Any] = await call_daemon(self.folder, STATUS, {}, lambda _: None)
        return status

    async def peers(self) -> tuple[int, int]:
        """How many daemons are connected, inbound and outbound. One that catches up from this node is inbound, too."""
        peers = (await self.status())["peers"]
        return int(peers["inbound"]["waku-mailserver"]), int(peers["outbound"]["waku-mailserver"])

    def stored(self, topic: Topic) -> list[EnvelopeHash]:
        """The hashes of what is on disk of a topic; what is there twice is twice in it."""
        found = rows(self.folder / STORE_FILE, "SELECT raw FROM envelopes WHERE topic = ?", topic)
        return sorted(EnvelopeHash(keccak256(raw)) for (raw,) in found)

    def open_files(self) -> int:
        """How many descriptors the daemon has."""
        return len(list(Path(f"/proc/{self.daemon.process.pid}/fd").iterdir()))

    def rss_mb(self) -> float:
        """How much memory it has."""
        status = Path(f"/proc/{self.daemon.process.pid}/status").read_text()
        return int(status.split("VmRSS:")[1].split()[0]) / 1024


class Fleet:
    """Some nodes, a spare one that does not run, and a host for clients. Made by `fleet`."""

    def __init__(
        self, wires: Network, nodes: Sequence[Node], spare: Node, clients: Host, factor: float, seed: int
    ) -> None:
        self.wires = wires
        self.nodes = nodes
        self.spare = spare
        self.clients = clients
        self.factor = factor
        self.chance = random.Random(seed)
        self.failed_connects = 0

    def topic(self) -> Topic:
        """One that nothing has been posted to yet."""
        return Topic(self.chance.randbytes(4))

    def envelopes(self, topic: Topic, count: int, *, ttl: int, data_bytes: int = 300) -> list[Envelope]:
        """New ones, created now."""
        chance, expiry = self.chance, int(time.time()) + ttl
        return [
            encode_envelope(expiry, ttl, topic, chance.randbytes(data_bytes), chance.getrandbits(63))
            for _ in range(count)
        ]

    def cut(self, ones: Sequence[Node], line: Line) -> None:
        """Have lines between these nodes and all others be so; those of clients stay."""
        numbers = [node.host.number for node in ones]
        self.wires.between(numbers, [n.host.number for n in self.nodes if n.host.number not in numbers], line)

    def move(self, node: Node) -> None:
        """Give a node another address, that its name then has."""
        node.host.move()
        self.wires.name(node.name, node.host)

    async def post(self, node: Node, envelopes: Sequence[Envelope], *, per_packet: int = 20) -> list[EnvelopeHash]:
        """Have a client send these; return the hashes of those that were confirmed."""
        confirmed: list[EnvelopeHash] = []
        async with self.insistent(node) as client:
            for at in range(0, len(envelopes), per_packet):
                packet = envelopes[at : at + per_packet]
                errors = (await client.post(packet)).errors
                assert not errors, f"refused: {errors[0].description}"
                confirmed += [envelope.hash() for envelope in packet]
        return confirmed

    async def history(self, node: Node, topic: Topic, *, page: int = 100) -> list[EnvelopeHash]:
        """Have a client ask for all of a topic, page by page."""
        async with self.insistent(node) as client:
            pages = Pages(topic, page)
            while not await pages.next(client):
                pass
            return pages.hashes

    @contextlib.asynccontextmanager
    async def insistent(self, node: Node, *, name: str = "client") -> AsyncIterator[MailClient]:
        """Connect as clients do: at once, and again after a second where the line is too bad for the handshake's time.

        Raises:
            ConnectionLost: not within CONNECT_WITHIN_S.
        """
        async with contextlib.AsyncExitStack() as stack:
            client: MailClient | None = None
            deadline = time.monotonic() + CONNECT_WITHIN_S
            while client is None:
                try:
                    client = await stack.enter_async_context(self.client(node, name=name))
                except ConnectionLost:
                    self.failed_connects += 1
                    if time.monotonic() > deadline:
                        raise
                    await asyncio.sleep(1)
            yield client

    @contextlib.asynccontextmanager
    async def client(self, node: Node, *, name: str = "client") -> AsyncIterator[MailClient]:
        """Connect from the host of clients; the key is that of the name.

        Raises:
            ConnectionLost, TimeoutError: it does not come about.
        """
        made = self.clients.socket()
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(DIAL_TIMEOUT_S):
                await loop.sock_connect(made, (node.host.address, PORT))
        except BaseException as error:
            made.close()
            if isinstance(error, OSError):
                raise ConnectionLost(None, str(error)) from error
            raise
        _, pipe = await loop.create_connection(Pipe, sock=made)
        key = private_key(name)
        config = session_config(key, "faults/1")
        connection = Connection(pipe, config, _CLIENT_STATUS, remote_id=node.key.public_key)
        client = MailClient(connection, PeerSettings(), key.public_key)
        running = asyncio.create_task(connection.run(client.on_event))
        running.add_done_callback(lambda _: client.on_lost())
        try:
            client.settings = await connection.ready()
            yield client
        finally:
            connection.disconnect(DisconnectReason.CLIENT_QUITTING, "done")
            await running

    async def connected(self, node: Node, count: int, within_s: float) -> float:
        """Wait until a node is connected to so many others; return for how long."""
        return await _peers_of([node], lambda peers: sum(peers[0]) == count, within_s)

    async def whole(self, within_s: float) -> float:
        """Wait until every node is connected to every other one, and nobody catches up; return for how long.

        Of two live peers, exactly one counts the other as outbound. A node that catches up is inbound where it asks,
        and nobody's outbound peer: at the start, a node may have as many such visitors as it will have peers.
        """
        others = len(self.nodes) - 1
        lines = len(self.nodes) * others // 2

        def is_whole(peers: Sequence[tuple[int, int]]) -> bool:
            return all(sum(ways) == others for ways in peers) and sum(outbound for _, outbound in peers) == lines

        return await _peers_of(self.nodes, is_whole, within_s)

    async def converged(self, topic: Topic, hashes: Sequence[EnvelopeHash], within_s: float) -> float:
        """Wait until every node has stored exactly these of a topic, each once; return for how long."""
        wanted = sorted(hashes)

        try:
            return await reach("", lambda: all(node.stored(topic) == wanted for node in self.nodes), within_s)
        except NotReached:
            there = ", ".join(f"{node.name} {len(node.stored(topic))}" for node in self.nodes)
            raise NotReached(f"of {len(wanted)} envelopes after {within_s:g} s: {there}") from None


class Pages:
    """A client's way through the history of a topic; it may go on by another connection."""

    def __init__(self, topic: Topic, page: int) -> None:
        self.hashes: list[EnvelopeHash] = []
        self._topic = topic
        self._page = page
        self._cursor: Cursor | None = None

    async def next(self, client: MailClient) -> bool:
        """Fetch one page; return whether it was the last. One that fails counts for nothing."""
        envelopes: list[Envelope] = []
        interest = Interest(topics=frozenset({self._topic}))
        request = MailRequest(RequestId(bytes(32)), 0, int(time.time()) + 10, interest, self._page, self._cursor)
        completion = await client.request(request, PASSWORD_KEY, envelopes.extend)
        self.hashes += [envelope.hash() for envelope in envelopes]
        self._cursor = completion.cursor
        return completion.cursor is None


class NotReached(Exception):
    """What was waited for did not come."""


async def _peers_of(
    nodes: Sequence[Node], condition: Callable[[Sequence[tuple[int, int]]], bool], within_s: float
) -> float:
    """Wait until something holds of the nodes' peers, inbound and outbound; return for how long.

    Raises:
        NotReached: it did not within that time.
    """
    loop = asyncio.get_running_loop()
    began = loop.time()
    while not condition(peers := await asyncio.gather(*(node.peers() for node in nodes))):
        if loop.time() > began + within_s:
            counts = ", ".join(f"{node.name} {count}" for node, count in zip(nodes, peers, strict=True))
            raise NotReached(f"peers (inbound, outbound) after {within_s:g} s: {counts}")
        await asyncio.sleep(POLL_S)  # there is no event to wait for: the daemons are asked from outside
    return loop.time() - began


async def reach(what: str, condition: Callable[[], bool], within_s: float) -> float:
    """Wait until something holds; return for how long.

    Raises:
        NotReached: it did not within that time.
    """
    loop = asyncio.get_running_loop()
    began = loop.time()
    while not condition():
        if loop.time() > began + within_s:
            raise NotReached(f"not within {within_s:g} s: {what}")
        await asyncio.sleep(POLL_S)
    return loop.time() - began


@contextlib.contextmanager
def fleet(
    folder: Path, count: int, *, factor: float, seed: int, prepare: Callable[[Node], None] = lambda _: None
) -> Iterator[Fleet]:
    """So many daemons, each connected to each, for the length of a `with`; and a host for clients, and a spare one.

    Args:
        factor: how long daemons wait for silence, tests/faults/hurried.py.
        prepare: called with each node before it starts.
    """
    with network(folder, count + 2, seed) as wires, contextlib.ExitStack() as stack:
        nodes = [Node(wires[number], folder / f"node{number}") for number in range(1, count + 2)]
        for node in nodes:
            wires.name(node.name, node.host)
        nodes, spare = nodes[:count], nodes[count]
        for node in nodes:
            prepare(node)
        for node in nodes:
            stack.enter_context(node.running(factor, [other for other in nodes if other is not node]))
        for node in nodes:
            node.daemon.wait_for_line("listening", START_WITHIN_S)
        yield Fleet(wires, nodes, spare, wires[count + 2], factor, seed)
