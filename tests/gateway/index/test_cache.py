"""What is kept of messages that were asked for."""

from mailserver.gateway.index.cache import EntryCache
from mailserver.gateway.index.values import StoredEntry
from mailserver.ids.envelopes import message_of
from mailserver.ids.waku_message import MessageHash
from tests.gateway.index.worlds import envelope, stored


def entry(number: int) -> tuple[MessageHash, StoredEntry]:
    found = stored(message_of(envelope(number, size=1000)))
    return found.message_hash, found


def test_those_that_were_not_used_for_longest_go_when_it_is_full() -> None:
    some = [entry(number) for number in range(4)]
    cache: EntryCache[MessageHash] = EntryCache(max_bytes=5000)  # room for three
    for each in some[:3]:
        cache.put(*each)
    cache.get(some[0][0])
    cache.put(*some[0])

    cache.put(*some[3])

    assert [cache.get(key) for key, _ in some] == [some[0][1], None, some[2][1], some[3][1]]


def test_entry_that_is_longer_than_all_room_is_not_kept() -> None:
    cache: EntryCache[MessageHash] = EntryCache(max_bytes=100)

    cache.put(*entry(1))

    assert cache.get(entry(1)[0]) is None
