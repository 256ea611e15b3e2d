"""How much work it is to read the store. The unit is one look at a topic of a day in its index, some 0.3 us.

Work is counted from what a statement has looked at. It is not timed: a clock would charge a reader for what others do
at the same time. The weights were measured with 470,000 envelopes whose pages were in memory.
"""

STATEMENT = 200
"""Handing a statement to a thread, and its result back."""

QUERY = 60
"""A short statement amidst others, on a thread that is at work."""

TOPIC = 1
ROW = 5
"""Finding one envelope's key by topic or by time, sorting and packing it."""

SUM = 2
"""Reading how many ids a day, an hour or a minute has, and their sum."""

PAIR = 7
"""Looking for a topic on a day, whether it is there or not."""

DAY = 1
ENVELOPE = 5
"""Going to an envelope."""

ID = 10
"""Making the MUID of an envelope, or the id of a MUID."""

UNIT_BYTES = 1024
"""Reading so many bytes of envelopes is one more unit."""
