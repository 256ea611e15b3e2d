"""The data directory: its lock, keys, store, backups, and what is saved of a damaged one."""
