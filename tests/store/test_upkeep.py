"""What a store says of itself, what it deletes, and the records that it keeps, whatever engine it is of."""

from pathlib import Path

import pytest

from mailserver.handoff.last_run import CompactionState
from mailserver.handoff.last_upkeep import Task
from mailserver.store.interface import ReceptionDay, Store, StoreStats
from mailserver.store.retention import END_OF_TIME, Surplus
from tests.store.engines import ENGINES, EVERYTHING, Engine, each_engine, found
from tests.store.samples import DAY, EVERY_BYTE, NEWS, RECEIVED, SPORT, START, new_envelope, new_envelopes, raws

EMPTY_STATS = StoreStats(envelopes=0, bytes=0, topics=0, oldest=None, newest=None)


async def test_empty_store_has_no_oldest_and_no_newest(store: Store) -> None:
    assert await store.stats() == EMPTY_STATS
    assert await store.oldest_reception() is None
    assert (await store.usage()).envelopes == 0
    assert await store.reception_days(10) == []


async def test_statistics_say_what_is_in_the_store(store: Store) -> None:
    envelopes = [
        new_envelope(1, created=START, topic=NEWS, size=100),
        new_envelope(2, created=START + DAY, topic=NEWS, size=20),
        new_envelope(3, created=START - DAY, topic=SPORT, size=3_000),
    ]
    expected = StoreStats(envelopes=3, bytes=3_120, topics=2, oldest=START - DAY, newest=START + DAY)

    await store.put([*envelopes, *envelopes])
    assert await store.stats() == expected
    await store.put(envelopes)
    assert await store.stats() == expected


async def test_days_of_reception_come_latest_first(store: Store) -> None:
    envelopes = [
        envelope._replace(received=RECEIVED + DAY * (number // 2)) for number, envelope in enumerate(new_envelopes(5))
    ]

    await store.put(envelopes)

    day = RECEIVED // DAY
    assert await store.reception_days(2) == [ReceptionDay(day + 2, 1, 40), ReceptionDay(day + 1, 2, 80)]


async def test_last_reception_is_not_the_last_row_nor_in_the_future(store: Store) -> None:
    assert await store.last_reception(RECEIVED) is None
    for number, received in enumerate((RECEIVED, RECEIVED + 100, RECEIVED - 100)):
        await store.put([new_envelope(number)._replace(received=received)])

    assert await store.oldest_reception() == RECEIVED - 100
    assert await store.last_reception(RECEIVED + 200) == RECEIVED + 100
    assert await store.last_reception(RECEIVED + 100) == RECEIVED + 100
    assert await store.last_reception(RECEIVED + 99) == RECEIVED
    assert await store.last_reception(RECEIVED - 101) is None


@each_engine
async def test_every_store_has_an_identity_and_a_place_of_its_own(name: str, tmp_path: Path) -> None:
    identities, locations = set(), set()
    for folder in (tmp_path / "one", tmp_path / "other"):
        folder.mkdir()
        async with ENGINES[name](folder).open() as store:
            identities.add(await store.identity())
            locations.add(store.location)

    assert len(identities) == len(locations) == 2


# Deleting


async def test_pruned_envelope_is_found_no_more(store: Store) -> None:
    envelopes = new_envelopes(3)

    await store.put(envelopes)
    page = await store.find(EVERYTHING, 10)
    deleted = await store.prune(Surplus(END_OF_TIME, 2))

    assert deleted == (2, 80)
    left = await page.read(3, EVERY_BYTE)
    assert left.split() == [envelopes[2].raw]
    assert left.sizes == [40, 0, 0]
    assert await found(store) == [envelopes[2].raw]
    assert (await store.stats()).envelopes == 1


async def test_what_was_received_since_is_not_pruned(engine: Engine) -> None:
    envelopes = [envelope._replace(received=RECEIVED + n) for n, envelope in enumerate(new_envelopes(4))]

    async with engine.open() as store:
        await store.put(envelopes)

        assert await store.held(Surplus(RECEIVED + 2, 10)) == 2
        assert (await store.prune(Surplus(RECEIVED + 2, 10))).envelopes == 2
        assert (await store.prune(Surplus(RECEIVED + 2, 10))).envelopes == 0
        assert await found(store) == raws(envelopes[:1:-1])
    engine.assert_sound()


async def test_nothing_is_pruned_of_days_that_are_not_archived(store: Store) -> None:
    await store.put(new_envelopes(3))

    assert (await store.prune(Surplus(END_OF_TIME, 3), {})).envelopes == 0
    assert (await store.prune(Surplus(END_OF_TIME, 3), {RECEIVED // DAY - 1: 10**9})).envelopes == 0
    assert await store.held(Surplus(END_OF_TIME, 3)) == 3


async def test_held_is_at_most_the_surplus(store: Store) -> None:
    await store.put(new_envelopes(10))

    assert await store.held(Surplus(END_OF_TIME, 4)) == 4
    assert await store.held(Surplus(END_OF_TIME, 40)) == 10
    assert await store.held(Surplus(RECEIVED, 40)) == 0


async def test_store_takes_less_when_all_was_pruned(store: Store) -> None:
    await store.put(new_envelopes(1000, size=1000))
    before = await store.usage()

    while (await store.prune(Surplus(END_OF_TIME, 1000))).envelopes:
        pass

    after = await store.usage()
    assert (before.envelopes, after.envelopes) == (1000, 0)
    assert after.bytes < before.bytes // 4


async def test_store_that_is_well_has_no_problem(store: Store) -> None:
    await store.put(new_envelopes(1))
    await store.touch()
    await store.check_presence()
    assert not await store.maintain()

    assert (store.problem, store.damage, store.is_lost) == ("", "", False)


# Records


@pytest.mark.parametrize("moments", [[START], [START, START + 1], [START, 0]])
async def test_moment_that_was_written_last_is_kept(engine: Engine, moments: list[int]) -> None:
    async with engine.open() as store:
        for moment in moments:
            await store.time_record.write(moment)
    async with engine.open() as store:
        assert await store.time_record.read() == moments[-1]


async def test_store_that_was_never_archived_has_no_record(store: Store) -> None:
    assert await store.handoff.archived() is None
    assert not await store.handoff.is_being_compacted()
    assert await store.handoff.last_run() == (CompactionState.NEVER, None)
    assert [await store.handoff.last_upkeep(task) for task in Task] == [(CompactionState.NEVER, None)] * len(Task)
    async with store.handoff.pruning_turn() as ours:
        assert ours
