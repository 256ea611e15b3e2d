"""Both ends of a move: a file in a folder of its own, and a schema on the server that these tests share."""

import contextlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import asyncpg

from mailserver.data_dir.moving import move
from mailserver.ids.envelopes import envelope_muid
from mailserver.ids.muid import DEFAULT_NETWORK_TOPIC
from mailserver.moving.move import Show
from mailserver.moving.report import MoveReport
from mailserver.store.interface import NewEnvelope
from mailserver.store.moving import MoveTarget
from mailserver.store.postgres.store import open_store as open_in_database
from mailserver.store.sqlite.schema import STORE_FILE
from mailserver.store.sqlite.store import open_store
from mailserver.waku.envelope import decode_envelope
from tests.mailservers import make_envelope, stored
from tests.store.postgres.server import Server, new_schema, shared_server
from tests.store.samples import DAY, NEWS, SPORT, START, change, rows

ROWS = "SELECT received, created, topic, hash, raw FROM envelopes ORDER BY seq"


def show_nothing(step: str, done: int, total: int | None) -> None:
    """Show no progress."""


def some(count: int, first: int = 0) -> list[NewEnvelope]:
    """Envelopes of several days, in an order of arrival that is not that of creation; some of the far past."""
    made = []
    for number in range(first, first + count):
        created = START - DAY * (number * 7 % 5) - number if number % 10 else 1_000_000 + number
        envelope = make_envelope(number, created=created, topic=NEWS if number % 3 else SPORT, data_bytes=300)
        made.append(stored(envelope, received=START + number * 60))
    return made


@dataclass(frozen=True)
class End:
    """A store: `place` is what the command is told; None of `server` is a file."""

    place: Path | str
    server: Server | None = None
    schema: str = ""

    @contextlib.asynccontextmanager
    async def open(self) -> AsyncIterator[MoveTarget]:
        """Open it as a mailserver does."""
        if isinstance(self.place, Path):
            async with open_store(self.place) as file:
                yield file
        else:
            async with open_in_database(self.place) as database:
                yield database

    async def fill(self, envelopes: Sequence[NewEnvelope]) -> None:
        """Put envelopes into it."""
        async with self.open() as store:
            await store.put(envelopes)

    async def rows(self, statement: str = ROWS) -> list[tuple[Any, ...]]:
        """What a plain connection reads: all rows in the order of arrival."""
        if isinstance(self.place, Path):
            return rows(self.place, statement)
        connection = await asyncpg.connect(self.place)
        try:
            return [tuple(row) for row in await connection.fetch(statement)]
        finally:
            await connection.close()

    async def change(self, *statements: str) -> None:
        """Change it behind the store's back."""
        if isinstance(self.place, Path):
            change(self.place, *statements)
            return
        assert self.server is not None
        for statement in statements:
            self.server.sql(statement, self.schema)


def file_in(folder: Path) -> End:
    """A store in a file that is not there yet."""
    folder.mkdir(mode=0o700, parents=True)
    return End(folder / STORE_FILE)


def database(server: Server | None = None) -> End:
    """A store in a schema that nothing is in yet."""
    server = server or shared_server()
    schema = new_schema(server)
    return End(server.url(schema), server, schema)


async def move_between(source: End, target: End, show: Show = show_nothing) -> MoveReport:
    """Move one into the other."""
    return await move(source.place, target.place, DEFAULT_NETWORK_TOPIC, show)


def columns(envelopes: Sequence[NewEnvelope]) -> list[tuple[object, ...]]:
    """The rows that envelopes make, in their order."""
    return [(*envelope[:3], envelope.hash[:16], envelope.raw) for envelope in envelopes]


def muids(envelopes: Sequence[NewEnvelope]) -> list[bytes]:
    """Their message ids, sorted."""
    return sorted(envelope_muid(DEFAULT_NETWORK_TOPIC, decode_envelope(envelope.raw)) for envelope in envelopes)
