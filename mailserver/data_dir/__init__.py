"""The data directory: its lock, keys, store, backups, and what can be saved of a damaged one."""
