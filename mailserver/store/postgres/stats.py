"""How much is in a store, as it was counted."""

from mailserver.store.interface import StoreStats
from mailserver.store.postgres.readers import ReaderPool

USAGE = "SELECT coalesce(sum(envelopes), 0)::bigint, coalesce(sum(bytes), 0)::bigint FROM counts"
_TOPICS = "SELECT count(DISTINCT topic) FROM day_topics WHERE day IN (SELECT day FROM counts)"
_CREATED = "SELECT (SELECT min(created) FROM envelopes), (SELECT max(created) FROM envelopes)"


async def stats_of(readers: ReaderPool) -> StoreStats:
    """What is in the store.

    Raises:
        StoreError: it cannot be read.
    """
    envelopes, size = await readers.run(USAGE)
    (topics,) = await readers.run(_TOPICS)
    oldest, newest = await readers.run(_CREATED)
    return StoreStats(envelopes, size, topics, oldest, newest)
