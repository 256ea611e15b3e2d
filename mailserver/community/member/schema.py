"""Tables and migrations of `history.db`: the history of one community, as one of its members has it.

`messages` holds what archives say (`is_archived`), and what mailservers sent that no archive has said yet. `replaced`
has the ranges of time for which only the archives count. `archives` remembers each archive by its content, and not by
the id in its index: two control nodes may list different archives under one id. `links` has the signed magnet links,
`asked` up to when each mailserver was asked for history.

Downloaded and imported are two states: what is downloaded lies in the folder `downloads` until it is imported, and a
restart between the two loses nothing.
"""

HISTORY_FILE = "history.db"

APPLICATION_ID = 0x57_41_4B_43
"""PRAGMA application_id of our files: "WAKC"."""

MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        """
        CREATE TABLE links (
            clock INTEGER PRIMARY KEY,              -- Unix milliseconds, as it was signed
            uri TEXT NOT NULL,
            seen_at INTEGER NOT NULL                -- Unix seconds
        )
        """,
        """
        CREATE TABLE refused_links (
            uri TEXT PRIMARY KEY,
            reason TEXT NOT NULL                    -- why its torrent or its index cannot be used
        ) WITHOUT ROWID
        """,
        """
        CREATE TABLE attempt (                      -- the last one to fetch; one row, or none
            uri TEXT NOT NULL,
            at INTEGER NOT NULL,                    -- Unix seconds
            problem TEXT                            -- why not all came that is wanted; NULL: it did
        )
        """,
        """
        CREATE TABLE archives (
            content BLOB PRIMARY KEY,               -- SHA-256 of the SHA-1 hashes of its pieces
            form TEXT NOT NULL,                     -- the format of the index that listed it
            id TEXT NOT NULL,                       -- as this index has it, like all that follows
            lower INTEGER NOT NULL,                 -- Unix seconds: its range is [lower, upper)
            upper INTEGER NOT NULL,
            topics TEXT NOT NULL,                   -- content topics, a JSON list
            offset INTEGER NOT NULL,                -- where in `data` it begins, in bytes
            size INTEGER NOT NULL,                  -- bytes, with padding
            padding INTEGER NOT NULL,               -- bytes outside of the encoded message
            is_listed INTEGER NOT NULL,             -- whether the index that was read last has it
            downloaded_at INTEGER,                  -- Unix seconds; NULL: it is not, or not any more
            imported_at INTEGER,                    -- Unix seconds; NULL: it is not
            messages INTEGER,                       -- how many it has; NULL before it was imported
            refused TEXT                            -- why it cannot be used; NULL: nothing is known against it
        ) WITHOUT ROWID
        """,
        """
        CREATE TABLE replaced (
            lower INTEGER NOT NULL,
            upper INTEGER NOT NULL,
            PRIMARY KEY (lower, upper)
        ) WITHOUT ROWID
        """,
        "CREATE TABLE topics (number INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE)",
        """
        CREATE TABLE messages (
            timestamp INTEGER NOT NULL,             -- Unix nanoseconds
            hash BLOB NOT NULL,                     -- 32 bytes: names the message within the community
            topic INTEGER NOT NULL,                 -- its content topic, by its number in `topics`
            payload BLOB NOT NULL,                  -- sealed, or opened by the control node: as the archive has it
            signer BLOB,                            -- public key of the sender, where the control node has opened it
            meta BLOB,
            version INTEGER,
            is_archived INTEGER NOT NULL            -- 0: only mailservers have it so far
        )
        """,
        "CREATE UNIQUE INDEX messages_by_time ON messages (timestamp, hash)",
        "CREATE INDEX messages_unarchived ON messages (timestamp) WHERE NOT is_archived",
        """
        CREATE TABLE asked (
            mailserver BLOB NOT NULL,               -- node id, 64 bytes
            topic BLOB NOT NULL,                    -- 4 bytes
            until INTEGER NOT NULL,                 -- Unix seconds: it was asked for all that was created before
            PRIMARY KEY (mailserver, topic)
        ) WITHOUT ROWID
        """,
    ),
    (
        """
        CREATE TABLE refused_archives (
            content BLOB NOT NULL,
            said TEXT NOT NULL,                     -- what an index said of it: form, lower, upper, topics, padding
            PRIMARY KEY (content, said)
        ) WITHOUT ROWID
        """,
        """
        INSERT INTO refused_archives
        SELECT content, json_array(form, lower, upper, topics, padding) FROM archives WHERE refused IS NOT NULL
        """,
    ),
)
"""Statement by statement; MIGRATIONS[n] leads from `user_version` n to n + 1. Never change one that was released."""

SCHEMA_VERSION = len(MIGRATIONS)
