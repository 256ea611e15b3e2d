"""What the index of message ids should have, computed from the rows by plain Python."""

from collections import defaultdict
from hashlib import sha256
from pathlib import Path
from typing import Any

from mailserver.ids.envelopes import envelope_muid
from mailserver.store.interface import NewEnvelope
from mailserver.waku.envelope import Topic, decode_envelope
from tests.mailservers import NEWS, make_envelope
from tests.store.samples import rows

SPANS = (86_400, 3_600, 60)


def row(number: int, *, created: int, topic: Topic = NEWS, data_bytes: int = 40, received: int = 0) -> NewEnvelope:
    """A row that is a real envelope, and so has an id if it was created after 1970 began."""
    envelope = make_envelope(number, created=created, topic=topic, data_bytes=data_bytes)
    return NewEnvelope(received or created, created, topic, envelope.hash(), envelope.raw)


def ids_of(path: Path, network_topic: str, until_seq: int) -> list[Any]:
    """(created, id, seq) of the rows up to `until_seq`, in order."""
    return sorted(
        (created, sha256(envelope_muid(network_topic, decode_envelope(raw))).digest(), seq)
        for seq, created, raw in rows(path, "SELECT seq, created, raw FROM envelopes WHERE seq <= ?", until_seq)
        if created > 0
    )


def sums_of(ids: list[Any]) -> list[Any]:
    """(span, bucket, count, sum) of these ids, in order."""
    buckets: defaultdict[tuple[int, int], list[bytes]] = defaultdict(list)
    for created, name, _ in ids:
        for span in SPANS:
            buckets[span, created // span].append(name)
    return [
        (*key, len(names), (sum(int.from_bytes(name, "little") for name in names) % 2**256).to_bytes(32, "little"))
        for key, names in sorted(buckets.items())
    ]


def assert_ids_are_right(path: Path) -> tuple[str, int]:
    """The index has what it says it has, and nothing else; return its network topic, and up to which row it goes."""
    ((network_topic, until_seq),) = rows(path, "SELECT network_topic, until_seq FROM id_index")
    if network_topic:
        expected = ids_of(path, network_topic, until_seq)
        assert rows(path, "SELECT created, id, seq FROM ids ORDER BY created, id") == expected
        assert rows(path, "SELECT span, bucket, count, sum FROM id_sums ORDER BY span, bucket") == sums_of(expected)
    else:
        assert until_seq == 0
    return str(network_topic), int(until_seq)


def assert_all_is_indexed(path: Path, network_topic: str) -> None:
    """The index has the ids of all rows."""
    ((last,),) = rows(path, "SELECT coalesce(max(seq), 0) FROM envelopes")
    topic, until_seq = assert_ids_are_right(path)
    assert topic == network_topic
    assert until_seq >= last
