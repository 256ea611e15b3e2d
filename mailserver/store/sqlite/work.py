"""How much work it is to read the store, in one unit: what it takes to look at one topic of a day in its index, some
0.3 us.

It is counted from what a statement has looked at, and not measured: a clock would charge a reader for what others do at
the same time. The weights were measured with 470,000 envelopes, their pages in memory.
"""

STATEMENT = 200
"""To hand a statement to a thread, and its result back."""

TOPIC = 1
ROW = 5
"""One envelope's key, found by topic or by time, put in order, and packed."""

PAIR = 7
"""To look for a topic on a day, whether it is there or not."""

DAY = 1
ENVELOPE = 5
"""To go to an envelope."""

UNIT_BYTES = 1024
"""So many bytes of envelopes are a unit more."""
