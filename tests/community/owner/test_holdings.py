"""Live envelopes of a community's channels, beside the mailserver's store."""

import sqlite3
from collections.abc import Iterable
from pathlib import Path

import pytest

from mailserver.communities.formats import TimeRange
from mailserver.community.owner import holdings as module
from mailserver.community.owner.holdings import HeldEnvelope, StoreProgress, open_holdings
from mailserver.errors import StoreError
from mailserver.store.arrivals import ArrivedEnvelope
from mailserver.store.message_ids import Arrival
from mailserver.waku.envelope import Envelope
from tests.community.owner.samples import ATTIC, GARDEN, KITCHEN, sealed

TOPICS = frozenset({GARDEN, KITCHEN})


def arrived(envelopes: Iterable[Envelope], first: int = 1) -> list[ArrivedEnvelope]:
    return [ArrivedEnvelope(Arrival(first + number), each, each.hash()) for number, each in enumerate(envelopes)]


def rows(path: Path) -> list[tuple[int, bytes, bytes, int]]:
    connection = sqlite3.connect(path)
    found = connection.execute("SELECT created, topic, raw, received FROM envelopes ORDER BY created").fetchall()
    connection.close()
    return found


async def test_what_arrives_on_the_channels_is_held_once(tmp_path: Path) -> None:
    envelopes = [sealed(100 + number, number, topic) for number, topic in enumerate((GARDEN, ATTIC, KITCHEN))]
    async with open_holdings(tmp_path / "community.db") as holdings:
        await holdings.begin_anew("store")
        taken = [
            await holdings.take(arrived(envelopes), Arrival(3), TOPICS, 500),
            await holdings.take(arrived([*envelopes, sealed(99)]), Arrival(4), TOPICS, 600),
        ]

        assert taken == [2, 1]
        assert await holdings.count() == 3

    assert rows(tmp_path / "community.db") == [
        (99, GARDEN, sealed(99).raw, 600),
        (100, GARDEN, envelopes[0].raw, 500),
        (102, KITCHEN, envelopes[2].raw, 500),
    ]


async def test_range_is_asked_for_what_was_created_in_it(tmp_path: Path) -> None:
    async with open_holdings(tmp_path / "community.db") as holdings:
        await holdings.begin_anew("store")
        await holdings.take(arrived([sealed(100)]), Arrival(1), TOPICS, 500)

        assert [await holdings.holds_any(TimeRange(*each)) for each in ((100, 101), (0, 100), (101, 200))] == [
            True,
            False,
            False,
        ]


async def test_following_goes_on_after_a_restart_and_begins_anew_with_another_store(tmp_path: Path) -> None:
    path = tmp_path / "community.db"
    async with open_holdings(path) as holdings:
        assert holdings.progress == StoreProgress("", Arrival(0))
        await holdings.begin_anew("one")
        await holdings.take(arrived([sealed(1)]), Arrival(7), TOPICS, 5)
    async with open_holdings(path) as holdings:
        assert holdings.progress == StoreProgress("one", Arrival(7))
        await holdings.begin_anew("two")
    async with open_holdings(path) as holdings:
        assert holdings.progress == StoreProgress("two", Arrival(0))
        assert await holdings.count() == 1


async def test_two_do_not_follow_a_store_at_once(tmp_path: Path) -> None:
    path = tmp_path / "community.db"
    async with open_holdings(path) as one, open_holdings(path) as other:
        await one.take(arrived([sealed(1)]), Arrival(1), TOPICS, 5)

        with pytest.raises(StoreError, match="another process"):
            await other.take(arrived([sealed(2)]), Arrival(1), TOPICS, 5)

        assert await one.count() == 1


async def test_only_what_is_old_and_may_go_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "REMOVED_ROWS", 2)
    envelopes = [sealed(100 + number // 2, number) for number in range(10)]
    async with open_holdings(tmp_path / "community.db") as holdings:
        await holdings.take(arrived(envelopes), Arrival(10), TOPICS, 5)
        asked: list[HeldEnvelope] = []

        def is_removable(held: HeldEnvelope) -> bool:
            asked.append(held)
            return held.created != 101

        removed = await holdings.remove(104, is_removable)

        assert removed == 6
        assert sorted(asked) == sorted(
            HeldEnvelope(each.created, GARDEN, each.hash()[:16], 5) for each in envelopes[:8]
        )
        assert await holdings.remove(104, lambda held: True) == 2

    assert [row[0] for row in rows(tmp_path / "community.db")] == [104, 104]


async def test_file_of_something_else_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "community.db"
    path.write_bytes(b"no database at all, but long enough to be looked at" * 20)
    with pytest.raises(StoreError, match="cannot use the holdings"):
        async with open_holdings(path):
            pass

    path.unlink()
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE cats (name)")
    connection.close()
    with pytest.raises(StoreError, match="holds no envelopes"):
        async with open_holdings(path):
            pass


async def test_file_of_a_later_version_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "community.db"
    async with open_holdings(path):
        pass
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version = 99")
    connection.close()

    with pytest.raises(StoreError, match="version 99"):
        async with open_holdings(path):
            pass
