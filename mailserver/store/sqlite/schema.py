"""Tables, columns and migrations of the envelope store. Standard library only: the nightly export reads it too.

One row of `envelopes` is one envelope. `seq` rises by reception and is never used twice, so an export can go on
where it stopped. `hash` holds the first 16 bytes of the envelope's hash: it tells envelopes apart as well as
anyone can break (two that share it take 2**64 hashes to make), puts envelopes of one second in the same order as
the whole hash, and the whole is Keccak-256 of `raw` at any time. It stands three times for each envelope, and
whole it would make the store a tenth larger and filling it a quarter slower.

Envelopes of one topic are indexed within one day of creation. New envelopes then change only the pages of the
present day, however large the store is: an index by topic alone touched one page for each envelope, and filled at
a third of the speed at two million envelopes. A request looks at one day after the other, newest first.

`days` and `day_topics` say which days and topics there are, and how much is in a day, so that nothing is ever
counted and a bloom filter becomes a set of topics before any envelope is read.

`reception_days` says the same of the days of reception: what the compaction has to archive, and in which stretch of
`seq` the rows of a day lie. Stretches of several days overlap where our clock was stepped; only `received` says of
which day a row is. Pruning finds the oldest rows by the index of `received`: the order of `seq` is another one then.

`removed` says how far back the store is complete. Whoever has an archive looks there for what is older, and only then.
"""

STORE_FILE = "mailserver.db"

APPLICATION_ID = 0x57_41_4B_55
"""PRAGMA application_id of our files: "WAKU". A file with another one is not ours and is left alone."""

PAGE_BYTES = 16384
"""An envelope of the usual half kilobyte wastes little of a page of this size, and one of 16 kB still fits in."""

HASH_PREFIX_BYTES = 16

IDENTITY_BYTES = 16
"""Of a store: random, in lower-case hexadecimal digits."""

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
        # For bloom filters: `mailserver.store.sqlite.reader` says why it is the third.
        "CREATE INDEX day_topics_by_third_byte ON day_topics (day, substr(topic, 3, 1))",
    ),
    (
        "CREATE TABLE identity (id TEXT NOT NULL)",  # one row: tells this store from every other
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
)
"""Statement by statement; MIGRATIONS[n] leads from `user_version` n to n + 1. Never change one that was released."""

SCHEMA_VERSION = len(MIGRATIONS)
