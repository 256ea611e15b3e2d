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
    cache.keep(dict(some[:3]))
    cache.find([some[0][0]])
    cache.keep(dict(some[:1]))

    cache.keep(dict(some[3:]))

    assert cache.find(key for key, _ in some) == dict([some[0], some[2], some[3]])


def test_of_more_than_there_is_room_for_the_last_are_kept() -> None:
    some = [entry(number) for number in range(5)]
    cache: EntryCache[MessageHash] = EntryCache(max_bytes=5000)

    cache.keep(dict(some))

    assert cache.find(key for key, _ in some) == dict(some[2:])


def test_entry_that_is_longer_than_all_room_is_not_kept() -> None:
    cache: EntryCache[MessageHash] = EntryCache(max_bytes=100)

    cache.keep(dict([entry(1)]))

    assert not cache.find([entry(1)[0]])
