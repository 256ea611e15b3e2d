"""mailserver.store.sqlite.repair.id_check: ids that do not fit the envelopes are found, and mended by salvage."""

from pathlib import Path

import pytest

from mailserver.ids.muid import DEFAULT_NETWORK_TOPIC
from mailserver.store.sqlite.repair.check import check_store
from mailserver.store.sqlite.repair.report import CheckReport, DamageKind
from mailserver.store.sqlite.repair.salvage import salvage
from mailserver.store.sqlite.schema import STORE_FILE
from mailserver.store.sqlite.store import open_store
from tests.mailservers import fill, make_envelopes
from tests.store.samples import change
from tests.store.sqlite.ids import assert_all_is_indexed
from tests.waiting import until


@pytest.fixture
async def indexed(path: Path) -> Path:
    """A closed store of 50 envelopes, all of them indexed."""
    async with open_store(path) as store:
        await fill(store, make_envelopes(50))
        await until(lambda: not store.unindexed)
    return path


def check(path: Path) -> CheckReport:
    return check_store(path, lambda step, done, total: None)


def test_index_that_fits_is_sound(indexed: Path) -> None:
    assert check(indexed).is_sound


@pytest.mark.parametrize(
    "unfinished",
    [
        ("UPDATE id_index SET until_seq = 0, network_topic = ''",),
        ("UPDATE id_index SET until_seq = 0, network_topic = ''", "DELETE FROM ids WHERE seq < 20"),
        ("UPDATE id_index SET until_seq = 0", "DELETE FROM ids", "DELETE FROM id_sums"),
    ],
    ids=["ids are to be removed", "half of them are", "nothing is indexed"],
)
def test_index_that_is_not_complete_yet_is_sound(indexed: Path, unfinished: tuple[str, ...]) -> None:
    change(indexed, *unfinished)

    assert check(indexed).is_sound


@pytest.mark.parametrize(
    ("damage", "what"),
    [
        ("DELETE FROM ids WHERE seq = 5", "the id of row 5 is missing"),
        ("UPDATE ids SET seq = 60 WHERE seq = 5", "the id of row 5 is missing"),
        ("UPDATE ids SET seq = 60 WHERE seq = 5", "1 ids are of no row that is there"),
        ("INSERT INTO ids VALUES (7, zeroblob(32), 5)", "1 ids are of no row that is there"),
        ("UPDATE id_sums SET sum = zeroblob(32) WHERE span = 3600", " of 3600 s is wrong"),
        ("UPDATE id_sums SET count = count + 1 WHERE span = 60", " of 60 s is wrong"),
        ("DELETE FROM id_sums WHERE span = 86400", " of 86400 s is wrong"),
        ("INSERT INTO id_sums VALUES (60, 1, 1, zeroblob(32))", "the sum of bucket 1 of 60 s is of no ids"),
        ("UPDATE id_index SET until_seq = 51", "rows up to 51 are said to be indexed, but there were 50"),
        ("DELETE FROM id_index", "id_index has not one row, but []"),
        ("UPDATE id_index SET until_seq = 40", "10 ids are of no row that is there"),
    ],
)
async def test_index_that_does_not_fit_is_found_and_salvage_makes_it_anew(
    indexed: Path, tmp_path: Path, damage: str, what: str
) -> None:
    change(indexed, damage)

    report = check(indexed)

    assert report.found.keys() == {DamageKind.IDS}
    assert what in "\n".join(report.shown[DamageKind.IDS])
    assert "waku-mailserver salvage" in DamageKind.IDS.value

    target = tmp_path / "saved" / STORE_FILE
    target.parent.mkdir()
    found = await salvage(indexed, target, tmp_path / "aside", lambda step, done, total: None)
    async with open_store(target) as store:
        await until(lambda: not store.unindexed)
    assert found.saved == 50
    assert_all_is_indexed(target, DEFAULT_NETWORK_TOPIC)
    assert check(target).is_sound
