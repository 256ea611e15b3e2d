"""Tables, columns and migrations of the envelope store in PostgreSQL.

The rows are those of `store.sqlite.schema`, which says why `hash` is a prefix. They are divided by day of creation:
each day of late has a partition of its own (`store.postgres.partitions`), all others are in one that takes whatever has
no partition, because strangers may claim any day since 1970. A day that is beyond the retention is dropped with its
indexes; only in the last one are rows deleted one by one, which leaves dead entries in indexes until they are vacuumed.

(created, hash) is the key in every partition, and `created` is a part of the envelope that is hashed. So it is as good
as the hash alone: no envelope can be in two partitions, and whoever received it first has stored it.

`seq` rises in the order of commits: it is assigned by whoever holds Lock.COMMIT, which is held until the commit is
visible. So whoever has seen a row has seen, or will never see, every row with a lower one. (A sequence by itself does
not do that: a lower number can be committed later.) All that is counted is changed in the same transactions, so no two
of them ever wait for a row.

`counts` says which days there are, and how much each has, by day of creation and of reception. So nothing is ever
counted, and a partition may be dropped by what it says. `reception_days` says which rows came on a day of reception,
for the nightly job; its few bytes a day stay. `removed` is as in SQLite; several mailservers may delete, so each search
reads it with its rows. `records` has the records that SQLite's engine keeps in files beside the store.
"""

from enum import IntEnum

SCHEMA_TABLE = "mailserver_schema"
"""Its one row is the version. A schema without it that has tables of our names is another program's."""

MISSED_MARGIN_S = 3600
"""By so much an envelope may claim to be newer than its reception: clocks differ, and are set."""

IDENTITY_BYTES = 16

LOCK_CLASS = 0x57_41_4B_00
"""Our advisory locks are of this class, plus one of `Lock`; the second number is the schema."""


class Lock(IntEnum):
    """The advisory locks. Whoever wants several takes them in the order of their numbers. The first three end with
    a transaction, the others with a connection: so one is free if its holder has died, or lost its connection."""

    SCHEMA = 1
    """While the schema is made or migrated."""

    UPKEEP = 2
    """While rows are deleted, or message ids indexed."""

    COMMIT = 3
    """From when the first `seq` of a group is assigned until the group is visible."""

    COMPACTION = 4
    """Held by the nightly job for as long as its connection lasts, while it reads the store; by whoever deletes shared,
    to the end of a transaction, and never waited for there."""

    MERGE = 5
    VERIFY = 6
    COMMUNITIES = 7
    """These three are held in the same way while such a run is at work (`handoff.last_upkeep`)."""


NUMBER = "bigint NOT NULL"

MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        "CREATE SEQUENCE envelope_seq",
        f"""
        CREATE TABLE envelopes (
            seq {NUMBER},                               -- order of commits
            received {NUMBER},                          -- our clock, Unix seconds
            created {NUMBER},                           -- the sender's claim, expiry - ttl, Unix seconds
            topic bytea NOT NULL,                       -- 4 bytes
            hash bytea NOT NULL,                        -- first 16 bytes of Keccak-256 of raw
            raw bytea NOT NULL                          -- RLP as received
        ) PARTITION BY RANGE (created)
        """,
        # Encrypted bytes cannot be compressed.
        "ALTER TABLE envelopes ALTER COLUMN raw SET STORAGE EXTERNAL",
        "CREATE UNIQUE INDEX envelopes_by_time ON envelopes (created, hash)",
        "CREATE INDEX envelopes_by_topic ON envelopes (topic, created, hash)",
        "CREATE INDEX envelopes_by_seq ON envelopes (seq)",
        "CREATE INDEX envelopes_by_reception ON envelopes (received, seq)",
        "CREATE TABLE envelopes_rest PARTITION OF envelopes DEFAULT",
        f"""
        CREATE TABLE counts (
            day {NUMBER},                               -- created / 86400
            reception_day {NUMBER},                     -- received / 86400
            envelopes {NUMBER},                         -- above 0
            bytes {NUMBER},                             -- of raw
            last_received {NUMBER},                     -- of those ever received
            last_seq {NUMBER},                          -- of those ever received
            PRIMARY KEY (day, reception_day)
        )
        """,
        f"""
        CREATE TABLE day_topics (
            day {NUMBER},                               -- those of days that `counts` does not have are left over
            third smallint NOT NULL,                    -- the third byte of topic: see store.engine.search
            topic bytea NOT NULL,
            PRIMARY KEY (day, third, topic)
        )
        """,
        "CREATE TABLE identity (id text NOT NULL)",  # one row: an identity that no other store has
        f"CREATE TABLE removed (until {NUMBER}, pruned {NUMBER})",  # one row, as in SQLite
        # What an archive may have that this store, which begins now, lacks.
        f"INSERT INTO removed SELECT extract(epoch FROM now())::bigint + {MISSED_MARGIN_S}, -1",
        "CREATE TABLE records (name text PRIMARY KEY, body text NOT NULL)",
    ),
    (
        f"""
        CREATE TABLE ids (
            created {NUMBER},                           -- of the row, above 0
            id bytea NOT NULL,                          -- 32 bytes, SHA-256 of the MUID
            hash bytea NOT NULL,                        -- of the row
            seq {NUMBER},                               -- of the row
            PRIMARY KEY (created, id)
        ) PARTITION BY RANGE (created)
        """,
        "CREATE TABLE ids_rest PARTITION OF ids DEFAULT",
        f"""
        CREATE TABLE id_sums (
            span integer NOT NULL,                      -- in seconds, one of SPANS
            bucket {NUMBER},                            -- created / span
            count {NUMBER},                             -- of ids, above 0
            sum bytea NOT NULL,                         -- of ids as little-endian numbers, modulo 2**256
            PRIMARY KEY (span, bucket)
        )
        """,
        f"""
        CREATE TABLE id_index (                         -- one row
            network_topic text NOT NULL,                -- to which the ids belong; '' at the beginning
            until_seq {NUMBER}                          -- all rows up to this one are indexed, and no others
        )
        """,
        "INSERT INTO id_index VALUES ('', 0)",
    ),
    (
        f"""
        CREATE TABLE reception_days (
            day bigint PRIMARY KEY,                     -- received / 86400
            first_seq {NUMBER},                         -- no row that was ever received on it has a lower one
            last_seq {NUMBER}                           -- the highest of those ever received on it: it never falls
        )
        """,
        # The first row of all is a bound for each day, and found at once: to look at every row could take minutes.
        """
        INSERT INTO reception_days
        SELECT reception_day, (SELECT coalesce(min(seq), 1) FROM envelopes), max(last_seq)
        FROM counts GROUP BY reception_day
        """,
    ),
)
"""Statement by statement; MIGRATIONS[n] leads from version n to n + 1. Never change one that was released."""

SCHEMA_VERSION = len(MIGRATIONS)
