"""mailserver.monitoring.status: the one value that everybody is shown, and its documentation."""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from mailserver.community.folder import COMMUNITIES_FOLDER
from mailserver.handoff.communities import SERVED_FILE, Served, write_served
from mailserver.handoff.last_run import EXIT_DAMAGED, MAX_ARCHIVED_DAYS, ArchivedDay, Compaction
from mailserver.metrics.figures import CompactionFigures
from mailserver.metrics.labels import Check, PostResult
from mailserver.metrics.registry import Metrics
from mailserver.monitoring.last_day import Column
from mailserver.monitoring.state import Monitoring
from mailserver.monitoring.status import (
    CatchupStatus,
    CommunitiesStatus,
    CompactionStatus,
    DayStatus,
    GatewaysStatus,
    LoggedError,
    days_of,
)
from mailserver.monitoring.watch import Sight, Watch
from mailserver.store.interface import ReceptionDay
from mailserver.store.sqlite.handoff import write_compaction
from mailserver.store.sqlite.schema import STORE_FILE
from mailserver.store.sqlite.store import open_store
from tests.communities.progress import JOINED, OWNED
from tests.mailservers import NEWS, NOW, fill, make_envelopes
from tests.monitoring.samples import ENODE, SYNC, minutes, monitoring
from tests.waiting import until

DOCUMENT = Path(__file__).parents[2] / "docs" / "status.md"
TODAY = NOW // 86_400
ERROR = LoggedError(NOW - 5.0, "ERROR", "store write failed envelopes=3", 7)


def documented() -> set[str]:
    """The fields that the document's table names."""
    rows = re.findall(r"^\| (`.*?) \|", DOCUMENT.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {name for row in rows for name in re.findall("`([^`]+)`", row)}


def paths(value: object, at: str = "") -> Iterator[str]:
    """The fields of a status as the document names them. What is counted by program is one field."""
    if isinstance(value, dict) and at not in ("peers.inbound", "peers.outbound"):
        if at in ("minute", "day", "store", "compaction"):  # that may be null, or stand for the rest
            yield at
        for name, each in value.items():
            yield from paths(each, f"{at}.{name}" if at else name)
    elif isinstance(value, list):
        assert value, f"{at} is empty here: its fields are not seen"
        yield from paths(value[0], f"{at}[]")
    else:
        yield at


@pytest.fixture
async def state(tmp_path: Path) -> AsyncIterator[Monitoring]:
    """A mailserver of which everything is known, that has looked once."""
    run = Compaction(
        started_at=NOW - 600,
        finished_at=NOW - 500,
        exit_code=1,
        error="no Java",
        archived={TODAY - 1: ArchivedDay(5, 500), TODAY: ArchivedDay(1, 100)},
    )
    write_compaction(tmp_path / STORE_FILE, run)
    (tmp_path / COMMUNITIES_FOLDER).mkdir()
    write_served(tmp_path / COMMUNITIES_FOLDER, [OWNED, JOINED], NOW - 1.0)
    async with open_store(tmp_path / STORE_FILE) as store:
        await fill(store, make_envelopes(3))
        state = monitoring(store, tmp_path, sync=[SYNC], errors=[ERROR])
        state.last_day.resume(minutes(4, NOW - 180, taken=2.0, bytes_in=1000.0, **{"answers_le_0.01": 1.0}))
        running = asyncio.create_task(state.run())
        await until(lambda: bool(state.health.problems))
        running.cancel()
        await asyncio.wait([running])
        yield state


def as_json(state: Monitoring) -> dict[str, Any]:
    shown: dict[str, Any] = json.loads(json.dumps(state.status().as_json()))
    return shown


def test_document_names_every_field_and_no_other(state: Monitoring) -> None:
    assert set(paths(as_json(state))) == documented()


def test_document_names_every_column_of_the_history() -> None:
    text = DOCUMENT.read_text(encoding="utf-8").partition("`/history.json` has")[2]

    named = set(re.findall("`([a-z0-9_]+)`", text)) - {"first_at", "step_s", "columns"}
    assert named == {column.value for column in Column} | {"median_s", "p95_s"}


def test_everything_stands_where_it_belongs(state: Monitoring) -> None:
    shown = as_json(state)

    assert shown["enode"] == str(ENODE)
    assert shown["time"] == NOW
    assert shown["ready"] is True
    text = "the last compaction failed: no Java"
    problems = [problem for problem in shown["problems"] if problem["check"] != Check.DISK.value]  # as it is here
    assert problems == [{"check": "compaction", "fatal": False, "text": text}]
    assert shown["peers"]["inbound"]["status-go"] == 7
    assert shown["peers"]["outbound"]["waku-mailserver"] == 1
    assert (shown["peers"]["max"], shown["peers"]["handshakes"]) == (500, 2)
    assert shown["minute"]["taken"] == 2
    assert shown["minute"]["bytes_in"] == 1000
    assert shown["minute"]["median_s"] == 0.0075
    assert shown["day"]["taken"] in (6, 8)  # the first minute may lie half a minute off, and the last then be left out
    assert shown["queues"] == {
        "store_envelopes": 3,
        "store_bytes": 300,
        "relay_envelopes": 4,
        "relay_bytes": 400,
        "requests": 5,
    }
    assert shown["store"]["envelopes"] == 3
    assert shown["store"]["oldest"] == NOW
    assert 0 < shown["disk"]["free"] < shown["disk"]["size"]
    assert shown["compaction"]["state"] == "failed"
    assert shown["compaction"]["exit_code"] == 1
    assert shown["catching_up"] == {"sources": 1, "set_aside": 0, "left_s": 86_400, "fetched": 250, "stored": 200}
    assert (shown["communities"]["at"], shown["communities"]["running"]) == (NOW - 1, True)
    owned, joined = shown["communities"]["known"]
    assert (owned["id"], owned["role"], owned["late_weeks"], owned["problem"]) == (OWNED.id, "owner", 1, None)
    assert (joined["id"], joined["role"], joined["problem"]) == (JOINED.id, "member", JOINED.problem)
    assert [(week["distributed"], week["seeding"], week["fetched"]) for week in owned["weeks"]] == [
        (True, True, True),
        (False, True, False),
    ]
    assert [(week["fetched_times"], week["fetched_at"]) for week in owned["weeks"]] == [(3, 1_729_900_000), (0, None)]
    assert [day["archive_envelopes"] for day in shown["days"]] == [5, 1]
    assert [day["store_envelopes"] for day in shown["days"]] == [None, 3]
    assert shown["errors"] == [asdict(ERROR)]


def test_nothing_of_a_peer_is_in_it(state: Monitoring) -> None:
    text = json.dumps(as_json(state))

    assert SYNC.source not in text
    assert "192.0.2.1:" not in text
    assert NEWS.hex() not in text


async def test_what_is_not_known_is_null(tmp_path: Path) -> None:
    async with open_store(tmp_path / STORE_FILE) as store:
        shown = as_json(monitoring(store, tmp_path))

    assert [shown[name] for name in ("minute", "store", "disk", "compaction")] == [None] * 4
    assert (shown["days"], shown["errors"], shown["problems"]) == ([], [], [])
    assert shown["communities"] == {"at": None, "running": False, "known": []}
    assert shown["day"]["taken"] == 0
    assert shown["day"]["median_s"] is None
    assert shown["catching_up"] == {"sources": 0, "set_aside": 0, "left_s": 0, "fetched": 0, "stored": 0}


@pytest.mark.parametrize(
    ("exit_code", "is_running", "has_died", "state"),
    [
        (0, False, False, "succeeded"),
        (1, False, False, "failed"),
        (EXIT_DAMAGED, False, False, "damaged"),
        (None, True, False, "running"),
        (None, False, True, "died"),
    ],
)
def test_compaction_is_told_in_a_word(exit_code: int | None, is_running: bool, has_died: bool, state: str) -> None:
    finished_at = None if exit_code is None else NOW - 1.0
    run = Compaction(started_at=NOW - 9.0, finished_at=finished_at, exit_code=exit_code, rows=4, seconds=8.0)
    figures = CompactionFigures(
        finished_at=finished_at,
        exit_code=exit_code,
        rows=4,
        seconds=8.0,
        succeeded_at=None,
        verified_at=NOW - 2.0,
        is_running=is_running,
        has_died=has_died,
    )

    shown = CompactionStatus.of(Sight(compaction=run, compaction_figures=figures))

    assert shown == CompactionStatus(state, NOW - 9.0, finished_at, exit_code, 4, 8.0, None, NOW - 2.0)


def test_source_with_most_before_it_says_how_far_catching_up_is() -> None:
    shown = CatchupStatus.of([SYNC, replace(SYNC, left_s=5, is_set_aside=True)])

    assert shown == CatchupStatus(sources=2, set_aside=1, left_s=86_400, fetched=500, stored=400)


def test_gateways_are_told_together() -> None:
    metrics = Metrics()
    metrics.gateways.set(2)
    metrics.communities.set(1)
    metrics.gateway_envelopes.inc(50)
    metrics.gateway_missed.inc(3)
    for result, count in zip(PostResult, (7, 5, 1, 2), strict=True):
        metrics.gateway_posts[result].inc(count)

    shown = GatewaysStatus.of(metrics)

    assert shown == GatewaysStatus(2, 1, 50, 3, posts_stored=7, posts_refused=6, posts_failed=2)


def test_nothing_is_seeded_while_communities_are_not_served() -> None:
    served = Served(NOW - 600.0, (OWNED, JOINED))

    running, stopped = CommunitiesStatus.of(served, NOW - 590.0), CommunitiesStatus.of(served, NOW)

    assert [running.running, stopped.running] == [True, False]
    owned, joined = running.known
    assert [week.seeding for week in (*owned.weeks, *joined.weeks)] == [True, True, True, False]
    assert owned.peers == 3
    assert stopped.known == (
        replace(owned, peers=0, weeks=tuple(replace(week, seeding=False) for week in owned.weeks)),
        replace(joined, weeks=tuple(replace(week, seeding=False) for week in joined.weeks)),
    )


async def test_record_of_communities_that_cannot_be_read_is_reported_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / COMMUNITIES_FOLDER).mkdir()
    (tmp_path / COMMUNITIES_FOLDER / SERVED_FILE).write_text("{")
    async with open_store(tmp_path / STORE_FILE) as store:
        watch = Watch(store, tmp_path, Metrics().loop_lag)
        await watch.look()
        await watch.look()

        assert watch.sight.served is None
        assert len([text for text in caplog.messages if "state of communities unknown" in text]) == 1
        write_served(tmp_path / COMMUNITIES_FOLDER, [OWNED], 5.0)
        await watch.look()

    assert watch.sight.served == Served(5.0, (OWNED,))


def test_days_of_store_and_archive_are_put_side_by_side_and_bounded() -> None:
    stored = [ReceptionDay(day, day, day) for day in range(100, 30, -1)]
    archived = {day: ArchivedDay(2 * day, 3 * day) for day in range(20, 99)}

    days = days_of(stored, archived)

    assert len(days) == MAX_ARCHIVED_DAYS
    assert days[0].day == "1970-02-09"  # day 39
    assert days[-2:] == (
        DayStatus("1970-04-10", 99, 99, None, None),
        DayStatus("1970-04-11", 100, 100, None, None),
    )
    assert days[-3] == DayStatus("1970-04-09", 98, 98, 196, 294)
    assert days_of([], {5: ArchivedDay(1, 2)}) == (DayStatus("1970-01-06", None, None, 1, 2),)
