"""The store in SQLite: one writer, many readers, one file."""
