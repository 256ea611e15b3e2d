"""Tables, columns and migrations of the envelope store. Standard library only: the nightly export reads it too.

One row of `envelopes` is one envelope. `seq` rises in order of reception and is never used twice, so an export can
continue where it stopped. `hash` holds the first 16 bytes of the envelope's hash. They are enough: making two envelopes
that share them takes 2**64 hashes, they order the envelopes of one second as the whole hash does, and the whole hash
can be computed from `raw` at any time. Each envelope has this column three times, in the table and two indexes. Whole
hashes would make the store a tenth larger, and filling it a quarter slower.

Envelopes of one topic are indexed within one day of creation. So new envelopes change only the pages of the current
day, however large the store is. An index by topic alone touched one page for each envelope, and at two million
envelopes the store filled at a third of the speed. A request searches one day after another, newest first.

`days` and `day_topics` say which days and topics there are, and how much a day has. So nothing is ever counted, and a
bloom filter becomes a set of topics before any envelope is read.

`reception_days` says the same of the days of reception: what the compaction has to archive, and in which range of `seq`
the rows of a day are. If our clock was stepped, the ranges of several days overlap, and only `received` says to which
day a row belongs. Pruning therefore finds the oldest rows by the index of `received`, not by `seq`.

`removed` says how far back the store is complete. Anything that has an archive searches it only for what is older. And
two stores are compared only for what is newer than what either has pruned.

`ids` has the message ids of rows (`mailserver.ids`), in the order in which sets of them are compared, and `id_sums` has
sums of these ids by day, hour and minute of creation. So a fingerprint of any range reads a few sums and the ids of two
minutes. `id_index` says up to which row that is done: `store.sqlite.id_index` keeps all three. New ids are appended
almost in order, so they change few pages. Nothing in these tables is not in `envelopes`, too.
"""

from mailserver.store.engine import keys

STORE_FILE = "mailserver.db"

APPLICATION_ID = 0x57_41_4B_55
"""PRAGMA application_id of our files: "WAKU". A file with a different one is not ours, and is left alone."""

PAGE_BYTES = 16384
"""An envelope of the usual half kilobyte wastes little of such a page, and one of 16 kB still fits."""

HASH_PREFIX_BYTES = keys.HASH_PREFIX_BYTES

IDENTITY_BYTES = 16
"""Length of a store's identity, which is random, and written in lower-case hexadecimal digits."""

NEWEST = "SELECT coalesce(max(seq), 0) FROM sqlite_sequence WHERE name = 'envelopes'"
"""SQL: the newest number that was ever given to a row, whether or not that is still there; 0 if none was."""

MISSED_MARGIN_S = 3600
"""By so much an envelope may claim to be newer than its reception: clocks differ, and are set."""

MISSED_UNTIL = f"(CAST(strftime('%s', 'now') AS INTEGER) + {MISSED_MARGIN_S})"
"""SQL: what an archive may have that a store lacks which begins now was created no later, in Unix seconds."""


MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        """
        CREATE TABLE envelopes (
            seq INTEGER PRIMARY KEY AUTOINCREMENT,  -- order of reception
            received INTEGER NOT NULL,              -- our clock, Unix seconds
            created INTEGER NOT NULL,               -- the sender's claim, expiry - ttl, Unix seconds
            topic BLOB NOT NULL,                    -- 4 bytes
            hash BLOB NOT NULL,                     -- first 16 bytes of Keccak-256 of raw
            raw BLOB NOT NULL                       -- RLP as received
        )
        """,
        "CREATE UNIQUE INDEX envelopes_by_time ON envelopes (created, hash)",
        "CREATE INDEX envelopes_by_topic ON envelopes (created / 86400, topic, created, hash)",
        """
        CREATE TABLE days (
            day INTEGER PRIMARY KEY,                -- created / 86400
            envelopes INTEGER NOT NULL,
            bytes INTEGER NOT NULL                  -- of raw
        )
        """,
        """
        CREATE TABLE day_topics (
            day INTEGER NOT NULL,
            topic BLOB NOT NULL,
            PRIMARY KEY (day, topic)
        ) WITHOUT ROWID
        """,
        # For bloom filters: `mailserver.store.sqlite.lookups` says why it is the third byte.
        "CREATE INDEX day_topics_by_third_byte ON day_topics (day, substr(topic, 3, 1))",
    ),
    (
        "CREATE TABLE identity (id TEXT NOT NULL)",  # one row: an identity that no other store has
        "INSERT INTO identity VALUES (lower(hex(randomblob(16))))",
        """
        CREATE TABLE reception_days (
            day INTEGER PRIMARY KEY,                -- received / 86400
            envelopes INTEGER NOT NULL,
            bytes INTEGER NOT NULL,                 -- of raw
            first_seq INTEGER NOT NULL,             -- of the rows that are there
            last_seq INTEGER NOT NULL               -- of the last one received, whether still there or not
        )
        """,
        """
        INSERT INTO reception_days
        SELECT received / 86400, count(*), sum(length(raw)), min(seq), max(seq) FROM envelopes GROUP BY 1
        """,
        "CREATE INDEX envelopes_by_reception ON envelopes (received)",
    ),
    (
        "CREATE TABLE removed (until INTEGER NOT NULL)",  # one row: created; nothing that is newer was ever removed
        # What earlier versions removed is not known, nor what a store had that this one takes the place of.
        f"""
        INSERT INTO removed
        SELECT max({MISSED_UNTIL}, (coalesce(max(day), -1) + 1) * 86400 + {MISSED_MARGIN_S}) FROM reception_days
        """,
    ),
    (
        # The rows are indexed later, while the store is in use: a migration of millions of them would take minutes.
        """
        CREATE TABLE ids (
            created INTEGER NOT NULL,               -- of the row, above 0
            id BLOB NOT NULL,                       -- 32 bytes, SHA-256 of the MUID
            seq INTEGER NOT NULL,                   -- of the row
            PRIMARY KEY (created, id)
        ) WITHOUT ROWID
        """,
        """
        CREATE TABLE id_sums (
            span INTEGER NOT NULL,                  -- in seconds, one of SPANS
            bucket INTEGER NOT NULL,                -- created / span
            count INTEGER NOT NULL,                 -- of ids, above 0
            sum BLOB NOT NULL,                      -- of ids as little-endian numbers, modulo 2**256
            PRIMARY KEY (span, bucket)
        ) WITHOUT ROWID
        """,
        """
        CREATE TABLE id_index (                     -- one row
            network_topic TEXT NOT NULL,            -- to which the ids belong; '' while the ids of another are removed
            until_seq INTEGER NOT NULL              -- all rows up to this one are indexed, and no others
        )
        """,
        "INSERT INTO id_index VALUES ('', 0)",
    ),
    (
        # `until` also counts what a store had that this one takes the place of; `pruned` does not.
        "ALTER TABLE removed ADD COLUMN pruned INTEGER NOT NULL DEFAULT -1",  # newest created that pruning removed
        # What pruning has removed was received before all that is left.
        f"""
        UPDATE removed SET pruned = (
            SELECT coalesce(min(day) * 86400 + 86400 + {MISSED_MARGIN_S}, -1) FROM reception_days
        )
        """,
    ),
)
"""Statement by statement; MIGRATIONS[n] leads from `user_version` n to n + 1. Never change one that was released."""

SCHEMA_VERSION = len(MIGRATIONS)
