"""A month in the life of a mailserver, in half an hour: does anything grow, slow down, or get lost?

The real daemon, its commands and the real compaction, by a clock that moves minutes at a time (`tests.moved_clock`).
"""
