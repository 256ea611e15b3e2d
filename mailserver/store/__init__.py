"""The envelope store: SQLite, one writer that groups commits, readers that never wait for it."""
