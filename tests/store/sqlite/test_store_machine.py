"""SqliteStore beside a plain model: put, found, pruned, closed, killed, backed up, migrated; in any order."""

import asyncio
import contextlib
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from mailserver.store.interface import NewEnvelope, Query, ReceptionDay
from mailserver.store.retention import BATCH_ROWS, END_OF_TIME, Surplus
from mailserver.store.sqlite.backup import snapshot
from mailserver.store.sqlite.schema import STORE_FILE
from mailserver.store.sqlite.store import SqliteStore, open_store
from mailserver.waku.bloom import EMPTY_BLOOM, Interest, bloom_of
from mailserver.waku.envelope import Topic
from tests.properties import settings
from tests.store.samples import (
    DAY,
    EVER,
    EVERY_BYTE,
    FULL,
    LAST_SECOND,
    NEWS,
    RECEIVED,
    SPORT,
    START,
    UNSHRUNK,
    answer,
    assert_counts_are_right,
    change,
    copy_as_on_disk,
    is_prefix_of,
    new_envelope,
    place,
    raws,
    rows,
    stored,
)

TO_FIRST_VERSION = (
    "DROP TABLE ids",
    "DROP TABLE id_sums",
    "DROP TABLE id_index",
    "DROP TABLE identity",
    "DROP TABLE removed",
    "DROP TABLE reception_days",
    "DROP INDEX envelopes_by_reception",
    "PRAGMA user_version = 1",
)

numbers = st.integers(0, 40)
seconds = st.sampled_from([0, DAY - 1, DAY, START - 1, START, START + 1, START + DAY, LAST_SECOND])
receptions = st.sampled_from([RECEIVED, RECEIVED + 1, RECEIVED - DAY, RECEIVED + 3 * DAY])
topics = st.sampled_from([NEWS, SPORT, Topic(b"\xff\x00\xff\x07")])
envelopes = st.builds(
    lambda number, created, received, topic, size: new_envelope(
        number, created=created, topic=topic, size=size
    )._replace(received=received),
    numbers,
    seconds,
    receptions,
    topics,
    st.sampled_from([40, 500, 20_000]),
)
interests = st.one_of(
    st.sampled_from([FULL, Interest(bloom=EMPTY_BLOOM), Interest(topics=frozenset())]),
    st.frozensets(topics).map(lambda wanted: Interest(topics=wanted)),
    st.frozensets(topics).map(lambda wanted: Interest(bloom=bloom_of(wanted))),
)


class Stored(RuleBasedStateMachine):
    """A store, and what should be in it: `model` maps the row's number to the envelope."""

    def __init__(self) -> None:
        super().__init__()
        self.stack = contextlib.ExitStack()
        self.folder = Path(self.stack.enter_context(tempfile.TemporaryDirectory()))
        self.runner = self.stack.enter_context(asyncio.Runner())
        self.path = self.folder / STORE_FILE
        self.model: dict[int, NewEnvelope] = {}
        self.last_seq = 0
        self.generation = 0
        self.identity = ""
        self.open()

    def teardown(self) -> None:
        self.close()
        assert raws(stored(self.path)) == raws(self.model.values())
        self.stack.close()

    def open(self) -> None:
        """Open what is at `path`."""
        self.opened = contextlib.AsyncExitStack()
        self.store: SqliteStore = self.runner.run(self.opened.enter_async_context(open_store(self.path)))

    def close(self) -> None:
        """Close it as it should be closed."""
        self.runner.run(self.opened.aclose())

    def elsewhere(self) -> Path:
        """A folder that is not there yet."""
        self.generation += 1
        return self.folder / str(self.generation)

    # What is put and deleted

    @rule(batch=st.lists(envelopes, max_size=12), parts=st.integers(1, 3))
    def put(self, batch: list[NewEnvelope], parts: int) -> None:
        there = {place(envelope) for envelope in self.model.values()}
        missing = [envelope for envelope in batch if place(envelope) not in there]
        assert self.runner.run(self.store.missing(batch)) == missing

        async def put_all() -> None:
            await asyncio.gather(*(self.store.put(batch[part::parts]) for part in range(parts)))

        self.runner.run(put_all())
        new: dict[tuple[int, bytes], NewEnvelope] = {}
        for envelope in (envelope for part in range(parts) for envelope in batch[part::parts]):
            if place(envelope) not in there:
                new.setdefault(place(envelope), envelope)
        # Numbers rise, and one that was there already may have used one up.
        seqs = [
            seq for (seq,) in rows(self.path, "SELECT seq FROM envelopes WHERE seq > ? ORDER BY seq", self.last_seq)
        ]
        self.model.update(zip(seqs, new.values(), strict=True))
        self.last_seq = max([self.last_seq, *seqs])

    @rule(
        before=st.sampled_from([RECEIVED - DAY, RECEIVED + 1, RECEIVED + 2 * DAY, END_OF_TIME, END_OF_TIME]),
        most=st.sampled_from([1, 100, 100]),
        archived=st.none()
        | st.dictionaries(st.sampled_from([RECEIVED // DAY + n for n in (-1, 0, 3)]), st.integers(0, 60), max_size=3),
    )
    def prune(self, before: int, most: int, archived: dict[int, int] | None) -> None:
        if archived is not None:
            archived = {day: self.a_row_of(day, number) for day, number in archived.items()}

        def may_go(seq: int, envelope: NewEnvelope) -> bool:
            return envelope.received < before and (archived is None or seq <= archived.get(envelope.received // DAY, 0))

        doomed = sorted((envelope.received, seq) for seq, envelope in self.model.items() if may_go(seq, envelope))
        oldest_day = [seq for received, seq in doomed if received // DAY == doomed[0][0] // DAY]
        gone = [self.model.pop(seq) for seq in oldest_day[: min(most, BATCH_ROWS)]]

        deleted = self.runner.run(self.store.prune(Surplus(before, most), archived))

        assert deleted == (len(gone), sum(map(len, raws(gone))))

    def a_row_of(self, day: int, number: int) -> int:
        """The number of some row of a day of reception, or one before it."""
        seqs = [seq for seq, envelope in self.model.items() if envelope.received // DAY == day] or [0]
        return seqs[number // 2 % len(seqs)] - number % 2

    # What is found

    @rule(bounds=st.just(EVER) | st.tuples(seconds, seconds).map(sorted), interest=interests, limit=st.integers(1, 9))
    def every_page_is_found(self, bounds: tuple[int, int], interest: Interest, limit: int) -> None:
        self.find(Query(*bounds, interest), limit)

    @rule(interest=interests, created=seconds, number=numbers, limit=st.integers(1, 9))
    def pages_behind_a_cursor_are_found(self, interest: Interest, created: int, number: int, limit: int) -> None:
        self.find(Query(*EVER, interest, place(new_envelope(number, created=created))), limit)

    def find(self, query: Query, limit: int) -> None:
        """Follow cursors to the end: all that the model has, none twice, byte for byte."""
        expected = answer(self.model.values(), query)
        found: list[bytes] = []
        more = True
        while more:
            page = self.runner.run(self.store.find(query, limit))
            asked = page.left
            found += self.runner.run(page.read(asked, EVERY_BYTE)).split()
            more = page.end is not None
            assert asked == limit or not more
            if more:
                assert page.end is not None
                assert is_prefix_of(page.end, place(expected[len(found) - 1]))
                query = Query(query.lower, query.upper, query.interest, place(expected[len(found) - 1]))
        assert found == raws(expected)

    @rule()
    def sums_are_those_of_the_model(self) -> None:
        kept = list(self.model.values())
        received = [envelope.received for envelope in kept]
        created = [envelope.created for envelope in kept]
        stats = self.runner.run(self.store.stats())
        assert (stats.envelopes, stats.bytes) == (len(kept), sum(map(len, raws(kept))))
        assert stats.topics == len({envelope.topic for envelope in kept})
        assert (stats.oldest, stats.newest) == (min(created, default=None), max(created, default=None))
        assert self.runner.run(self.store.usage()).envelopes == len(kept)
        assert self.runner.run(self.store.oldest_reception()) == min(received, default=None)
        assert self.runner.run(self.store.last_reception(RECEIVED)) == max(
            (moment for moment in received if moment <= RECEIVED), default=None
        )
        days = sorted({moment // DAY for moment in received}, reverse=True)
        assert self.runner.run(self.store.reception_days(10)) == [
            ReceptionDay(day, len(of_day), sum(map(len, of_day)))
            for day in days
            if (of_day := [envelope.raw for envelope in kept if envelope.received // DAY == day])
        ]

    # What befalls the file

    @rule()
    def opened_again(self) -> None:
        identity = self.runner.run(self.store.identity())
        self.close()
        self.open()
        assert self.runner.run(self.store.identity()) == identity

    @rule()
    def killed(self) -> None:
        left = copy_as_on_disk(self.path, self.elsewhere())
        self.close()
        self.path = left
        self.open()

    @rule()
    def restored_from_a_backup(self) -> None:
        identity = self.runner.run(self.store.identity())
        folder = self.elsewhere()
        folder.mkdir()
        with snapshot(self.path) as source:
            assert source.copy(folder / STORE_FILE, lambda done, whole: None) == len(self.model)
        self.close()
        self.path = folder / STORE_FILE
        self.open()
        assert self.runner.run(self.store.identity()) != identity

    @rule()
    def migrated_from_the_first_version(self) -> None:
        self.close()
        change(self.path, *TO_FIRST_VERSION)
        self.open()

    @invariant()
    def rows_and_counts_are_those_of_the_model(self) -> None:
        assert_counts_are_right(self.path)
        numbered: list[Any] = rows(self.path, "SELECT seq, raw FROM envelopes ORDER BY seq")
        assert numbered == [(seq, envelope.raw) for seq, envelope in sorted(self.model.items())]


TestStored = pytest.mark.slow(Stored.TestCase)
TestStored.settings = settings(max_examples=8, stateful_step_count=25, phases=UNSHRUNK)
