"""Two daemons on one database, what they have promised, and everything that must be true of both."""

import asyncio
import contextlib
import random
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from bench.data import envelope
from mailserver.client.id_client import IdClient
from mailserver.client.mail_client import MailClient, NoAnswer, RequestFailed, connect
from mailserver.errors import ConnectionLost, MailserverError
from mailserver.ids.envelopes import envelope_muid
from mailserver.ids.muid import DEFAULT_NETWORK_TOPIC, Muid
from mailserver.mail.request import MailRequest, RequestId
from mailserver.waku.bloom import Interest
from mailserver.waku.envelope import Envelope, decode_envelope
from mailserver.wakuid.questions import Query
from tests.faults.disk_client import metrics_port, until_ready
from tests.faults.kills.flood import CLIENT_ID, PASSWORD_KEY, TOPICS
from tests.faults.kills.judged import Judged
from tests.faults.kills.promises import Promises
from tests.integration.daemons import Daemon, running_daemon
from tests.store.postgres.looking import assert_sound
from tests.store.postgres.server import Server, new_schema
from tests.store.samples import EVER

ANSWER_WITHIN_S = 15.0
"""How long an answer may take, or an error in its place, whatever the database does."""

SENT_AGAIN_S = 60.0
"""Whoever gets no confirmation sends again, for as long as an envelope lives; here, for no longer."""

CARELESS = (sys.executable, "-m", "tests.faults.database.careless")


def impatient(factor: float) -> Sequence[str]:
    """The program with a factor of its patience for the database."""
    return sys.executable, "-m", "tests.faults.database.impatient", str(factor)


PAUSE_S = 0.1
PACKET = 100
PAGE = 150
"""Of a client that changes from one daemon to the other with each page."""


class Pair(Judged):
    """A store in a schema of its own, and two data directories whose daemons use it."""

    def __init__(self, stage: "Stage", server: Server, name: str, *flags: str) -> None:
        """Begin with an empty store.

        Args:
            flags: of both daemons.
        """
        super().__init__(name)
        self._program = stage.program
        self._flags = flags
        self.folder = stage.folder / str(len(stage.pairs))
        self.server = server
        self.schema = new_schema(server)
        self.rng = stage.rng
        self.promises = Promises()
        self.times: dict[str, float] = {}
        """How long things took at most, in seconds."""
        self.data_dirs = (self.folder / "one", self.folder / "other")

    @contextlib.contextmanager
    def running(self, number: int, *, url: str = "", environment: Mapping[str, str] | None = None) -> Iterator[Daemon]:
        """Run one of the daemons, which looks and prunes often; killed at the end, if it still runs.

        Args:
            number: 0 or 1.
            url: where it finds the store, if not by the server's socket.
            environment: more variables.
        """
        store = ("--store", url or self.server.url(self.schema), "--metrics", "127.0.0.1:0")
        limits = ("--allowed-addresses", "127.0.0.0/8")  # tests/faults/peers is about those
        flags = (*store, *limits, *self._flags)
        with running_daemon(self.data_dirs[number], *flags, environment=environment, program=self._program) as daemon:
            yield daemon

    def rows(self, statement: str) -> list[str]:
        """What psql prints of a statement, line by line."""
        return self.server.sql(statement, self.schema).splitlines()

    def envelopes(self, count: int) -> list[Envelope]:
        """So many new ones, created now."""
        now = int(time.time())
        return [decode_envelope(envelope(now, self.rng.choice(TOPICS), self.rng)) for _ in range(count)]

    def slowest(self, what: str, seconds: float) -> None:
        """Take down how long something took, if it is more than before."""
        self.times[what] = max(self.times.get(what, 0.0), round(seconds, 2))

    def check_sound(self) -> None:
        """What the database counts fits what it has. Nobody may be writing."""
        try:
            assert_sound(self.server, self.schema)
        except AssertionError as error:
            self.blame([f"what is counted is wrong: {error}"])

    async def send_again(self, daemon: Daemon) -> None:
        """Do what senders do that got no confirmation: send it all once more. Now it must be confirmed."""
        now = time.time()
        left = [
            sent.raw
            for sent in self.promises.sent.values()
            if sent.confirmed_at is None and now - sent.sent_at < SENT_AGAIN_S
        ]
        async with connect(daemon.enode, CLIENT_ID) as mail:
            for at in range(0, len(left), PACKET):
                self.figures["sent_again"] += len(left[at : at + PACKET])
                self.blame(await self.post(mail, [decode_envelope(raw) for raw in left[at : at + PACKET]]))

    async def post(self, mail: MailClient, envelopes: Sequence[Envelope]) -> list[str]:
        """Post a packet, take down what was confirmed, and return what was wrong."""
        self.promises.send(
            {one.hash(): one.raw for one in envelopes if one.hash() not in self.promises.sent}, time.time()
        )
        try:
            async with asyncio.timeout(ANSWER_WITHIN_S):
                response = await mail.post(envelopes)
        except (TimeoutError, MailserverError) as error:
            return [f"{len(envelopes)} envelopes are not confirmed: {error!r}"]
        refused = {error.hash for error in response.errors}
        self.promises.confirm({one.hash() for one in envelopes} - refused, time.time())
        return [f"{len(refused)} envelopes were refused: {response.errors[0].description}"] if refused else []

    async def verify(
        self, daemons: Sequence[Daemon], *, keeps: int | None = None, archived: set[bytes] | None = None
    ) -> None:
        """Ask each daemon for everything, and both page by page; compare it with what was promised, and with the ids.

        Args:
            keeps, archived: as of `Promises.broken_by`.
        """
        for daemon in daemons:
            await until_ready(metrics_port(daemon), 200)
        async with contextlib.AsyncExitStack() as stack:
            clients = [await stack.enter_async_context(connect(each.enode, CLIENT_ID)) for each in daemons]
            served = {
                "one": await paged(clients[:1]),
                "other": await paged(clients[1:]),
                "both in turn": await paged(clients),
            }
            for name, envelopes in served.items():
                found = [(each.hash(), each.raw) for each in envelopes]
                broken = self.promises.broken_by(found, keeps=keeps, archived=archived)
                self.blame(f"by {name}: {text}" for text in broken)
                self.figures["envelopes_compared"] += len(envelopes)
            if keeps is None:
                wanted = Counter(envelope_muid(DEFAULT_NETWORK_TOPIC, each) for each in served["one"])
                for name, client in zip(("one", "other"), clients, strict=True):
                    ids = await ids_of(client)
                    lost, more = wanted - ids, ids - wanted
                    if lost or more:
                        self.blame([f"ids of {name}: {lost.total()} are missing, {more.total()} are too many"])
                    self.figures["ids_compared"] += ids.total()

    async def verify_ids(self, daemon: Daemon) -> None:
        """Have a daemon list all ids: those of all that was confirmed must be among them."""
        owed = [decode_envelope(self.promises.sent[each].raw) for each in self.promises.owed()]
        async with connect(daemon.enode, CLIENT_ID) as mail:
            lost = {envelope_muid(DEFAULT_NETWORK_TOPIC, each) for each in owed} - set(await ids_of(mail))
        if lost:
            self.blame([f"{len(lost)} ids are missing at the one that is left"])
        self.figures["ids_of_survivors"] += len(owed)


class Stage:
    """Where scenarios play: a server of their own, a folder, chance, and all pairs that there were.

    `program`: what runs daemons.
    """

    def __init__(self, server: Server, folder: Path, rng: random.Random, program: Sequence[str]) -> None:
        self.server = server
        self.folder = folder
        self.rng = rng
        self.program = program
        self.pairs: list[Pair] = []

    def pair(self, name: str, *flags: str, server: Server | None = None) -> Pair:
        """One more pair.

        Args:
            flags: of both daemons.
            server: another than the stage's.
        """
        made = Pair(self, server or self.server, name, *flags)
        self.pairs.append(made)
        return made


async def paged(clients: Sequence[MailClient]) -> list[Envelope]:
    """Everything, each page by the next of these clients, with the cursor that the one before was given."""
    found: list[Envelope] = []
    request = MailRequest(RequestId(bytes(32)), 0, 0, Interest(), limit=PAGE)
    number = 0
    while True:
        completion = await clients[number % len(clients)].request(request, PASSWORD_KEY, found.extend)
        if completion.cursor is None:
            return found
        number += 1
        request = replace(request, cursor=completion.cursor)


async def ids_of(client: MailClient) -> "Counter[Muid]":
    """All ids that a daemon lists."""
    found: Counter[Muid] = Counter()
    ids = IdClient(client)
    await ids.open(PASSWORD_KEY)
    query = Query(0, "", *EVER)
    while True:
        end = await ids.list_ids(query, found.update)
        if end.is_all:
            return found
        query = replace(query, cursor=end.cursor)


class Reader:
    """A client that asks one daemon for everything again and again, whatever happens to it."""

    def __init__(self, daemon: Daemon) -> None:
        self.broken: list[str] = []
        self.answers = 0
        self.failures = 0
        self._daemon = daemon

    async def run(self) -> None:
        """Ask until the daemon is gone, or this is cancelled."""
        with contextlib.suppress(ConnectionLost, OSError):
            async with connect(self._daemon.enode, CLIENT_ID) as mail:
                while True:
                    await self._ask(mail)
                    await asyncio.sleep(PAUSE_S)  # as people do

    async def _ask(self, mail: MailClient) -> None:
        began = time.monotonic()
        try:
            found = await paged([mail])
        except RequestFailed as error:
            self.failures += 1
            if "the store could not answer" not in str(error):
                self.broken.append(f"refused: {error}")
            if time.monotonic() - began > ANSWER_WITHIN_S:
                self.broken.append(f"an error took {time.monotonic() - began:.1f} s")
        except NoAnswer as error:
            self.broken.append(f"neither an answer nor an error: {error}")
        else:
            self.answers += 1
            twice = [each for each, count in Counter(one.hash() for one in found).items() if count > 1]
            if twice:
                self.broken.append(f"{len(twice)} envelopes came twice in one answer")
