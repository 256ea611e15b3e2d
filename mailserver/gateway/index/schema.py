"""Tables and migrations of the index of messages.

One row of `messages` is one message of Waku v2 whose envelope is in the store, or was a moment ago. Its key is the
order of store v3. Hashes are in two halves: 16 bytes order messages as the whole does, and only the key goes into the
other indexes. Making two hashes that share them takes 2**64 attempts.

`archived` is the same of the messages that the archive has, whether the store has them, too, or not. It stays where it
is when another store is followed. `archived_periods` says which days and months of the archive are in it.

`originals` has what an envelope does not say of the message that it was made from; `arrival` is 0 if only the archive
has the envelope. `gone` has where messages were that are gone, so that a page can still begin behind them. `progress`
says how far the store was followed, and up to which of its removals.

All but `originals` is made from the store and the archive, and made anew if it is missing.
"""

INDEX_FILE = "gateway.db"

APPLICATION_ID = 0x57_41_4B_32
"""PRAGMA application_id of our files: "WAK2"."""

PREFIX_BYTES = 16
"""How much of a hash is in keys: of an envelope's, and of a message's."""

_BY_TOPIC = "CREATE INDEX {0}_by_topic ON {0} (topic, timestamp, hash, rest, {1}is_original)"
"""All that a query of topics returns: messages of one topic lie far from each other in the table."""

MESSAGES = (
    """
    CREATE TABLE messages (
        timestamp INTEGER NOT NULL,             -- Unix nanoseconds
        hash BLOB NOT NULL,                     -- first 16 bytes of the message hash
        rest BLOB NOT NULL,                     -- the other 16
        topic BLOB NOT NULL,                    -- 4 bytes
        arrival INTEGER NOT NULL,               -- names the envelope in the store
        is_original INTEGER NOT NULL,           -- whether `originals` has it
        PRIMARY KEY (timestamp, hash)
    ) WITHOUT ROWID
    """,
    _BY_TOPIC.format("messages", "arrival, "),
    "CREATE INDEX messages_by_hash ON messages (hash)",
)
"""Made anew, too, when another store is followed."""

ARCHIVED = (
    """
    CREATE TABLE archived (
        timestamp INTEGER NOT NULL,
        hash BLOB NOT NULL,
        rest BLOB NOT NULL,
        topic BLOB NOT NULL,
        is_original INTEGER NOT NULL,
        PRIMARY KEY (timestamp, hash)
    ) WITHOUT ROWID
    """,
    _BY_TOPIC.format("archived", ""),
    "CREATE INDEX archived_by_hash ON archived (hash)",
    """
    CREATE TABLE archived_periods (
        period TEXT NOT NULL,                   -- a day or a month
        run TEXT NOT NULL,                      -- what has written it last
        row_groups INTEGER NOT NULL,            -- so many of it are in `archived`
        is_all INTEGER NOT NULL,                -- whether it has no others
        PRIMARY KEY (period, run)
    ) WITHOUT ROWID
    """,
)
"""Made anew, too, when hashes belong to another network topic."""

MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        *MESSAGES,
        """
        CREATE TABLE originals (
            envelope BLOB PRIMARY KEY,              -- first 16 bytes of the envelope's hash
            message BLOB NOT NULL,                  -- the message hash, 32 bytes
            created INTEGER NOT NULL,               -- of the envelope, Unix seconds
            timestamp INTEGER NOT NULL,
            meta BLOB NOT NULL,
            version INTEGER,
            is_ephemeral INTEGER,
            arrival INTEGER                         -- names the envelope in the store; NULL: it has not arrived yet
        ) WITHOUT ROWID
        """,
        "CREATE INDEX originals_by_message ON originals (message)",
        "CREATE INDEX originals_by_arrival ON originals (arrival, created)",
        """
        CREATE TABLE gone (
            hash BLOB PRIMARY KEY,                  -- first 16 bytes of the message hash
            timestamp INTEGER NOT NULL,
            until INTEGER NOT NULL                  -- kept until then, Unix seconds
        ) WITHOUT ROWID
        """,
        "CREATE INDEX gone_by_end ON gone (until)",
        """
        CREATE TABLE progress (                     -- one row
            identity TEXT NOT NULL,                 -- of the store; '' before the first
            network_topic TEXT NOT NULL,            -- to which the hashes belong
            arrival INTEGER NOT NULL                -- all that arrived up to here is indexed
        )
        """,
        "INSERT INTO progress VALUES ('', '', 0)",
    ),
    ARCHIVED,
    ("CREATE INDEX originals_by_meta ON originals (meta, message) WHERE meta <> x''",),
    ("DROP INDEX messages_by_topic", MESSAGES[1], "DROP INDEX archived_by_topic", ARCHIVED[1]),
    ("ALTER TABLE progress ADD COLUMN swept TEXT",),  # `store.arrivals.Arrived.removals` of what was removed here, too
)
"""Statement by statement; MIGRATIONS[n] leads from `user_version` n to n + 1. Never change one that was released."""

SCHEMA_VERSION = len(MIGRATIONS)
