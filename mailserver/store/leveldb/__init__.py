"""The history of a Go mailserver in its LevelDB, which is only read."""
