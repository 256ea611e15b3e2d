"""The store in a PostgreSQL database, as `store.interface` describes it."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Mapping, Sequence
from typing import TypeVar

import asyncpg

from mailserver.errors import StoreError
from mailserver.handoff.archived import Mark
from mailserver.handoff.kinds import ARCHIVED
from mailserver.ids.muid import DEFAULT_NETWORK_TOPIC
from mailserver.store.engine.index_state import IndexState
from mailserver.store.engine.keys import HASH_PREFIX_BYTES
from mailserver.store.engine.page import KeptKeysPage
from mailserver.store.engine.search import KeySearch
from mailserver.store.interface import (
    OURSELVES,
    Deleted,
    GoesOn,
    NewEnvelope,
    Payer,
    Query,
    ReceptionDay,
    StoreStats,
    always,
)
from mailserver.store.message_ids import OtherNetworkTopic
from mailserver.store.postgres.ahead import PartitionsAhead
from mailserver.store.postgres.connections import (
    READERS,
    SNAPSHOTS,
    DatabaseLink,
    DriverConnection,
    check_server,
    check_sessions,
    open_links,
)
from mailserver.store.postgres.deletion import NOTE_REMOVED, count_held, delete_batch, forget_left_over
from mailserver.store.postgres.failures import StoreFailures, explain
from mailserver.store.postgres.indexing import Indexing
from mailserver.store.postgres.inspection import inspect
from mailserver.store.postgres.lookups import PostgresLookups
from mailserver.store.postgres.message_ids import PostgresMessageIds
from mailserver.store.postgres.migration import NoStore, make_or_migrate
from mailserver.store.postgres.others import PostgresOthers, open_others
from mailserver.store.postgres.presence import STATE, DatabaseState, Presence, with_staging
from mailserver.store.postgres.readers import REMOVED, PaidReader, ReaderPool, Removed
from mailserver.store.postgres.records import PostgresHandoff, PostgresMoveRecord, PostgresTimeRecord
from mailserver.store.postgres.rights import check_rights
from mailserver.store.postgres.rows import RowPlaces, RowReader
from mailserver.store.postgres.snapshots import open_snapshots
from mailserver.store.postgres.stats import USAGE, stats_of
from mailserver.store.postgres.urls import shown_url
from mailserver.store.postgres.writer import PostgresWriter
from mailserver.store.retention import Surplus, Usage

ROW_OVERHEAD_BYTES = 590
"""What a row takes on disk besides its envelope: in its table, four indexes, and the index of ids. The most that was
measured: with 300,000 envelopes in 9 days it was 493 where all were of 561 bytes, and 586 where they were padded; with
40,000 of 118, 520 and 1,520 bytes, 427, 455 and 463."""

_RECEPTION_DAYS = """
    SELECT array_agg(reception_day), array_agg(envelopes), array_agg(bytes) FROM (
        SELECT reception_day, sum(envelopes)::bigint AS envelopes, sum(bytes)::bigint AS bytes
        FROM counts GROUP BY reception_day ORDER BY reception_day DESC LIMIT $1
    ) AS days
"""
_SIZE = """
    SELECT coalesce(sum(pg_total_relation_size(oid)), 0)::bigint FROM pg_class
    WHERE relnamespace = current_schema()::regnamespace AND relkind = 'r'
"""

T = TypeVar("T")


class PostgresStore:
    """A `store.message_ids.StoreWithIds`, which says what each method does and raises. Made by `open_store`."""

    def __init__(
        self,
        url: str,
        identity: str,
        presence: Presence,
        writer: PostgresWriter,
        readers: ReaderPool,
        upkeep: DatabaseLink,
        indexing: Indexing,
        message_ids: PostgresMessageIds,
        others: PostgresOthers,
        failures: StoreFailures,
        *,
        removed: Removed,
        was_archived: bool,
    ) -> None:
        self._url = url
        self._identity = identity
        self._presence = presence
        self._writer = writer
        self._readers = readers
        self._upkeep = upkeep
        self._indexing = indexing
        self._message_ids = message_ids
        self.others = others
        """The other mailservers on the database."""
        self._failures = failures
        self._rows = RowReader(PaidReader(readers))
        self._removed = removed
        self._ahead = PartitionsAhead()
        self._handoff = PostgresHandoff(lambda job: self._change("read", job), was_archived=was_archived)

    async def put(self, envelopes: Sequence[NewEnvelope], source: Hashable = None, *, is_live: bool = False) -> None:
        """Store envelopes; return once they are on disk."""
        await self._writer.put(envelopes, source, is_live=is_live)

    def hold(self, why: str) -> None:
        """Refuse every `put` from now on, for this reason; "": take envelopes again."""
        self._writer.hold(why)

    @property
    def problem(self) -> str:
        """Why envelopes are not being stored; "" if they are, as far as is known."""
        return self._writer.held or self._failures.writing

    @property
    def is_lost(self) -> bool:
        """Whether another store, or none, is at the URL by now."""
        return self._failures.is_lost

    @property
    def generation(self) -> int:
        """Rises whenever the database may have lost what it confirmed before."""
        return self._presence.generation

    @property
    def damage(self) -> str:
        """What else is wrong with the database, as far as was noticed since it was opened; "" if nothing is."""
        return self._failures.damage

    def tell(self, on_change: Callable[[], None]) -> None:
        """Call this whenever a write or a read has changed `problem` or `damage`."""
        self._failures.tell(on_change)

    @property
    def queued(self) -> tuple[int, int]:
        """How many envelopes wait for the database, and their bytes."""
        return self._writer.queued

    @property
    def unindexed(self) -> int:
        """How many envelopes are not in the index of message ids yet, at most."""
        return self._indexing.unindexed

    @property
    def message_ids(self) -> PostgresMessageIds:
        """The ids of its envelopes."""
        return self._message_ids

    async def find(
        self, query: Query, limit: int, *, payer: Payer = OURSELVES, goes_on: GoesOn = always
    ) -> KeptKeysPage[RowPlaces]:
        """Find the first `limit` matches, newest first."""
        reader = PaidReader(self._readers, payer)
        found = await KeySearch(PostgresLookups(reader), query, limit, goes_on).page()
        return KeptKeysPage(found, RowReader(reader))

    async def missing(self, envelopes: Sequence[NewEnvelope]) -> list[NewEnvelope]:
        """Which of these envelopes are not in the store."""
        places = [(envelope.created, envelope.hash[:HASH_PREFIX_BYTES]) for envelope in envelopes]
        present = await self._rows.present(places)
        return [envelope for envelope, place in zip(envelopes, places, strict=True) if place not in present]

    async def usage(self) -> Usage:
        """How much there is, and an estimate of what it takes on disk."""
        envelopes, size = await self._readers.run(USAGE)
        return Usage(envelopes, size + envelopes * ROW_OVERHEAD_BYTES)

    async def sizes_on_disk(self) -> tuple[int, int]:
        """How many bytes the tables take on disk; the log is the server's, and shared."""
        (size,) = await self._readers.run(_SIZE)
        return int(size), 0

    @property
    def location(self) -> str:
        """The URL of the database, without the password."""
        return shown_url(self._url)

    @property
    def handoff(self) -> PostgresHandoff:
        """What the nightly job and the daemon tell each other about this store."""
        return self._handoff

    @property
    def time_record(self) -> PostgresTimeRecord:
        """The moment that time has certainly reached."""
        return PostgresTimeRecord(lambda job: self._change("write", job))

    @property
    def move_record(self) -> PostgresMoveRecord:
        """How far another store was moved into this one."""
        return PostgresMoveRecord(lambda job: self._change("write", job))

    async def reception_days(self, limit: int) -> list[ReceptionDay]:
        """The last days of reception that have any envelopes, the latest first."""
        days, *counts = await self._readers.run(_RECEPTION_DAYS, (limit,))
        return [ReceptionDay(*row) for row in zip(days, *counts, strict=True)] if days else []

    async def prune(self, surplus: Surplus, archived: Mapping[int, Mark] | None = None) -> Deleted:
        """Delete a day, or a batch of the surplus, oldest by reception first. A mark is a row's `seq`."""
        deleted = await self._change("prune", lambda connection: delete_batch(connection, surplus, archived))
        self._removed.note(*await self._readers.run(f"SELECT {REMOVED}"))
        return deleted

    @property
    def removed_until(self) -> int:
        """The store still has everything it ever stored that was created later than this, in Unix seconds."""
        return self._removed.until

    @property
    def pruned_until(self) -> int:
        """Nothing that was created later than this was ever pruned, in Unix seconds; -1 if nothing was."""
        return self._removed.pruned

    async def note_pruned(self, until: int) -> int:
        """Note that what was created up to `until` may have been pruned; return up to when anything was."""
        await self._change("write", lambda connection: connection.execute(NOTE_REMOVED, until))
        self._removed.note(*await self._readers.run(f"SELECT {REMOVED}"))
        return self._removed.pruned

    async def maintain(self) -> bool:
        """Make tomorrow's partitions; remove some of what days have left over that were dropped; return whether there
        was any."""
        await self._change("maintain", self._ahead.keep)
        return await self._change("maintain", forget_left_over)

    async def touch(self) -> None:
        """Commit a change without content."""
        await self._change("write", lambda connection: connection.execute("UPDATE identity SET id = id"))

    async def check_presence(self) -> None:
        """Check that the database answers, and that the store in it is the one that was opened."""
        try:
            state = DatabaseState.of(*await self._readers.run(STATE))
        except StoreError as error:
            if not self._failures.is_lost:
                self._failures.reached(str(error))
            raise
        self._presence.take(state)
        if self._presence.is_behind(state):
            await self._change("write", self._presence.check)
        self._failures.reached()

    async def held(self, surplus: Surplus) -> int:
        """How many envelopes of the surplus there are, without those that only wait for the rest of their day."""
        return await self._change("read", lambda connection: count_held(connection, surplus))

    async def oldest_reception(self) -> int | None:
        """When the oldest envelope was received."""
        (oldest,) = await self._readers.run("SELECT min(received) FROM envelopes")
        return None if oldest is None else int(oldest)

    async def last_reception(self, until: int) -> int | None:
        """When the last envelope was received that was received by `until`."""
        (last,) = await self._readers.run("SELECT max(received) FROM envelopes WHERE received <= $1", (until,))
        return None if last is None else int(last)

    async def identity(self) -> str:
        """An identity that no other store has."""
        return self._identity

    @property
    def newest_seen(self) -> int:
        """The highest number of a row that was ever seen in it."""
        return self._presence.seen

    async def shrinks(self) -> bool:
        """Days that are dropped give their space back."""
        return True

    async def stats(self) -> StoreStats:
        """What is in the store."""
        return await stats_of(self._readers)

    async def _change(self, what: str, job: Callable[[DriverConnection], Awaitable[T]]) -> T:
        """Do something on the connection for upkeep.

        Raises:
            StoreError: the database could not.
        """
        try:
            return await self._upkeep.run(job)
        except asyncpg.PostgresError as error:
            raise StoreError(f"cannot {what} the store: {explain(error)}") from error


@contextlib.asynccontextmanager
async def open_store(
    url: str,
    network_topic: str = DEFAULT_NETWORK_TOPIC,
    *,
    reindex: bool = False,
    must_exist: bool = False,
    known: tuple[str, int] = ("", 0),
) -> AsyncIterator[PostgresStore]:
    """Open the store in the database at `url`; make or migrate it first if need be. At the end, commit what was put.

    Args:
        network_topic: to which the message ids of envelopes belong.
        must_exist: whether to make none.
        reindex: whether it may be another than before. Then all ids are made anew, while the store is in use.
        known: the identity of a store, and the highest number of a row that was ever seen in it.
    Raises:
        OtherNetworkTopic: it is another than before, and may not be.
        NoStore: there is none, and none is to be made.
        StoreError: the database cannot be reached, or what is in its schema is not a store, or of a later version.
    """
    failures = StoreFailures()
    identity, presence, removed, before, was_archived = await _prepare(url, failures, known, must_exist=must_exist)
    if before not in ("", network_topic) and not reindex:
        raise OtherNetworkTopic(before, network_topic)
    async with (
        open_links(url, READERS, failures, presence.check) as reading,
        open_links(url, 2, failures, presence.check) as (upkeep, index),
        open_snapshots(url, SNAPSHOTS, failures, presence.check) as snapshots,
        open_others(url, identity, failures, presence.check) as others,
        open_links(url, 1, failures, with_staging(presence.check_writing)) as (writing,),
    ):
        readers = ReaderPool(reading, failures, removed)
        indexing = Indexing(index, failures, network_topic)
        writer = PostgresWriter(writing, failures, presence, others, indexing.on_stored)
        state = IndexState(network_topic, indexing.moves, indexing.give_up)
        message_ids = PostgresMessageIds(identity, snapshots, state, readers)
        writes = asyncio.create_task(writer.run(), name="store writer")
        indexes = asyncio.create_task(indexing.run(), name="store indexing")
        try:
            yield PostgresStore(
                url,
                identity,
                presence,
                writer,
                readers,
                upkeep,
                indexing,
                message_ids,
                others,
                failures,
                removed=removed,
                was_archived=was_archived,
            )
        finally:
            writer.close()
            await writes
            indexes.cancel()
            await index.close()  # which ends what it is amid
            await asyncio.wait([indexes])


async def read_stats(url: str) -> StoreStats:
    """Read what is in the store in the database at `url`, whether a mailserver has it open or not.

    Raises:
        NoStore: there is none.
        StoreError: it cannot be read.
    """
    failures = StoreFailures()
    if not (await inspect(url)).has_store:
        raise NoStore
    async with open_links(url, 1, failures) as links:
        return await stats_of(ReaderPool(links, failures, Removed(-1, -1)))


async def _prepare(
    url: str, failures: StoreFailures, known: tuple[str, int], *, must_exist: bool
) -> tuple[str, Presence, Removed, str, bool]:
    """Have a store of this version; return its identity, what is known of it, what was removed of it, the network topic
    of its ids, and whether anything of it was ever archived."""

    async def prepare(connection: DriverConnection) -> tuple[str, Presence, Removed, str, bool]:
        await check_sessions(url, connection)
        await check_server(connection)
        identity = await make_or_migrate(connection, must_exist=must_exist)
        await check_rights(connection)
        presence = Presence(identity, failures, known[1] if known[0] == identity else 0)
        await presence.check(connection)
        removed = Removed(*await connection.fetchrow(f"SELECT {REMOVED}"))
        network_topic, was_archived = await connection.fetchrow(
            "SELECT network_topic, EXISTS (SELECT 1 FROM records WHERE name = $1) FROM id_index", ARCHIVED.name
        )
        return identity, presence, removed, network_topic, was_archived

    async with open_links(url, 1, failures) as (link,):
        try:
            return await link.run(prepare)
        except NoStore:
            raise
        except (asyncpg.PostgresError, StoreError) as error:
            cause = explain(error) if isinstance(error, asyncpg.PostgresError) else error
            raise StoreError(f"cannot open the store {shown_url(url)}: {cause}") from error
