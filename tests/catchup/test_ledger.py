"""mailserver.catchup.ledger: accounts, and the file that a kill leaves whole."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mailserver.catchup.ledger import MAX_ACCOUNTS, MAX_FILE_BYTES, PROGRESS_FILE, Account, CatchupError, open_ledger
from mailserver.catchup.ranges import LATE_S, MAX_ASIDE, MAX_RANGES, WINDOW_S, MissingRange
from mailserver.codec.keys import NodeId
from mailserver.mail.request import Cursor
from mailserver.waku.envelope import EnvelopeHash
from tests.pairs import digest
from tests.store.samples import names_in

NOW = 1_795_236_010
ONE = NodeId(bytes(range(64)))
OTHER = NodeId(bytes(64))
CURSOR = Cursor(NOW, EnvelopeHash(digest("envelope")))


def window_of(account: Account) -> MissingRange:
    window = account.window()
    assert window is not None
    return window


# Accounts


def test_windows_come_newest_first_until_nothing_is_owed() -> None:
    account = Account()
    account.add(MissingRange(NOW - 2 * WINDOW_S, NOW))
    uppers = []

    while account.window() is not None:
        uppers.append(window_of(account).upper)
        account.finish()

    assert uppers == [NOW, NOW - WINDOW_S, NOW - 2 * WINDOW_S]
    assert account.pending == []


def test_window_is_the_same_until_it_is_finished() -> None:
    account = Account()
    account.add(MissingRange(0, 10))

    first = window_of(account)
    account.add(MissingRange(100, 200))
    account.advance(CURSOR)

    assert account.window() == MissingRange(first.lower, first.upper, CURSOR)
    account.finish()
    assert account.window() == MissingRange(100, 200)


def test_window_can_be_begun_again() -> None:
    account = Account()
    account.add(MissingRange(0, 10))
    account.window()
    account.advance(CURSOR)

    account.advance(None)

    assert account.window() == MissingRange(0, 10)


def test_postponed_window_is_asked_for_last_and_from_its_beginning() -> None:
    account = Account()
    account.add(MissingRange(NOW - 2 * WINDOW_S, NOW))
    postponed = window_of(account)
    account.advance(CURSOR)

    account.set_aside()
    windows = []
    while account.window() is not None:
        windows.append(window_of(account))
        account.finish()

    assert len(windows) == 3
    assert windows[-1] == postponed


def test_account_stays_small_whatever_is_postponed() -> None:
    account = Account()
    account.add(MissingRange(NOW - 100 * WINDOW_S, NOW))

    for _ in range(500):
        account.window()
        account.set_aside()
        assert len(account.aside) <= MAX_ASIDE
        assert len(account.pending) <= MAX_RANGES + MAX_ASIDE
    account.window()

    assert len(account.pending) <= MAX_RANGES + MAX_ASIDE + 1  # as many as a file may have
    assert sum(part.seconds for part in account.pending) == 100 * WINDOW_S + 1


def test_what_was_set_aside_is_not_asked_for_unless_that_is_wanted_nor_joined_with_what_is_new() -> None:
    account = Account()
    account.add(MissingRange(NOW - 10, NOW))
    account.window()
    account.set_aside()
    account.add(MissingRange(NOW - 10, NOW + 2 * LATE_S))

    states = [account.is_only_aside]
    new = account.window(takes_aside=False)
    account.finish()
    states.append(account.is_only_aside)
    asked = [account.window(takes_aside=False), account.window()]
    states.append(account.is_only_aside)

    assert new == MissingRange(NOW - 10, NOW + 2 * LATE_S)
    assert asked == [None, MissingRange(NOW - 10, NOW)]
    assert states == [False, True, False]


def test_parts_that_are_set_aside_are_asked_for_in_turn_and_shorter_ones_if_that_is_wanted() -> None:
    account = Account()
    account.add(MissingRange(0, 99))
    for _ in range(2):
        account.window(50)
        account.set_aside()

    asked = []
    for _ in range(4):
        asked.append(account.window(25))
        account.shorten(None)

    assert asked == [MissingRange(75, 99), MissingRange(50, 74), MissingRange(25, 49), MissingRange(0, 24)]
    assert sum(part.seconds for part in account.pending) == 100


@pytest.mark.parametrize(
    ("created", "lowest", "left"),
    [
        (70, 70, MissingRange(0, 70)),
        (70, 75, MissingRange(0, 70)),
        (70, 60, MissingRange(0, 99)),
        (70, None, MissingRange(0, 99)),
    ],
    ids=["newest first", "behind empty pages", "oldest first", "not known"],
)
@pytest.mark.parametrize("is_aside", [False, True])
def test_window_is_shortened_by_what_has_come_if_that_is_known(
    created: int, lowest: int | None, left: MissingRange, *, is_aside: bool
) -> None:
    account = Account([], [MissingRange(0, 99)], [MissingRange(0, 99)] if is_aside else [])
    account.window()
    account.advance(Cursor(created, EnvelopeHash(bytes(32))))

    account.shorten(lowest)

    assert account.pending == [left]
    assert account.is_only_aside is is_aside


def test_window_that_is_shortened_waits_as_one_with_what_is_older() -> None:
    account = Account()
    account.add(MissingRange(0, 99))
    account.window(60)

    account.shorten(None)

    assert account.window(10) == MissingRange(90, 99)
    assert account.pending == [MissingRange(90, 99), MissingRange(0, 89)]


def test_what_is_given_by_another_way_is_no_longer_set_aside() -> None:
    account = Account([], [MissingRange(0, 9), MissingRange(20, 29)], [MissingRange(0, 9), MissingRange(20, 29)])

    account.give(MissingRange(5, 24))
    assert account.pending == account.aside == [MissingRange(0, 4), MissingRange(25, 29)]
    account.give(MissingRange(0, 29))

    assert account.pending == account.asked == []


@pytest.mark.parametrize("is_under_way", [False, True])
async def test_what_was_set_aside_is_so_for_the_next_process(tmp_path: Path, *, is_under_way: bool) -> None:
    ledger = open_ledger(tmp_path)
    account = ledger.account(ONE)
    account.add(MissingRange(0, 99))
    account.window(10)
    account.set_aside()
    if is_under_way:
        account.window()
        account.finish()
        account.window()
        account.advance(None)
    ledger.note_change()
    await ledger.save()

    again = open_ledger(tmp_path).account(ONE)

    assert again.aside == [MissingRange(90, 99)]
    assert again.pending == ([] if is_under_way else [MissingRange(0, 89)]) + again.aside


def test_account_that_sets_aside_what_is_not_owed_owes_no_more() -> None:
    aside = [MissingRange(5, 6), MissingRange(50, 60, CURSOR), MissingRange(7, 8)]

    account = Account([], [MissingRange(5, 6), MissingRange(50, 60, CURSOR)], aside)

    assert account.pending == [MissingRange(50, 60, CURSOR), MissingRange(5, 6)]
    assert account.aside == [MissingRange(5, 6)]


def test_what_is_asked_for_twice_is_owed_once() -> None:
    account = Account()
    account.add(MissingRange(0, NOW))
    window = window_of(account)

    account.add(MissingRange(0, NOW))
    account.add(MissingRange(window.lower, NOW - 5))
    account.add(MissingRange(0, NOW + 50))

    assert account.pending == [window, MissingRange(NOW - LATE_S + 1, NOW + 50), MissingRange(0, window.lower - 1)]


def test_what_was_paid_can_be_asked_for_again() -> None:
    account = Account()
    account.add(MissingRange(0, 10))
    account.window()
    account.finish()

    account.add(MissingRange(0, 10))

    assert account.window() == MissingRange(0, 10)


@given(st.lists(st.integers(0, 10**6), min_size=1, max_size=3 * MAX_RANGES))
def test_account_stays_small_whatever_is_added(starts: list[int]) -> None:
    account = Account()

    for start in starts:
        account.add(MissingRange(start, start + 5))
        account.window()

        assert len(account.asked) <= MAX_RANGES
        assert len(account.pending) <= MAX_RANGES + 1
        for moment in range(start, start + 6):
            assert any(part.lower <= moment <= part.upper for part in account.pending)


# The file


async def test_ledger_without_a_file_owes_nothing_and_writes_nothing(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path)

    await ledger.save()

    assert ledger.account(ONE).pending == []
    assert names_in(tmp_path) == set()


async def test_what_was_saved_is_owed_by_the_next_process(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path)
    account = ledger.account(ONE)
    account.add(MissingRange(NOW - 3 * WINDOW_S, NOW))
    account.window()
    account.advance(CURSOR)
    ledger.account(OTHER).add(MissingRange(5, 6))
    ledger.note_change()
    await ledger.save()

    again = open_ledger(tmp_path)

    assert again.account(ONE).pending == account.pending
    assert again.account(ONE).asked == account.asked
    assert again.account(ONE).window() == MissingRange(NOW - WINDOW_S + 1, NOW, CURSOR)
    assert again.account(OTHER).pending == [MissingRange(5, 6)]


async def test_source_that_owes_nothing_is_not_in_the_file(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path)
    ledger.account(ONE).add(MissingRange(5, 6))
    ledger.account(ONE).window()
    ledger.account(ONE).finish()
    ledger.note_change()

    await ledger.save()

    assert json.loads((tmp_path / PROGRESS_FILE).read_text()) == {"version": 1, "missed": [], "sources": {}}


async def test_source_that_is_not_asked_now_is_kept_until_there_are_too_many(tmp_path: Path) -> None:
    for number in range(MAX_ACCOUNTS + 2):
        ledger = open_ledger(tmp_path)
        ledger.account(ONE).add(MissingRange(0, 1))
        ledger.account(NodeId(number.to_bytes(64, "big"))).add(MissingRange(5, 6))
        ledger.note_change()
        await ledger.save()

    sources = json.loads((tmp_path / PROGRESS_FILE).read_text())["sources"]

    assert len(sources) == MAX_ACCOUNTS
    assert ONE.hex() in sources
    assert bytes(64).hex() not in sources


async def test_source_that_is_asked_is_kept_however_many_were_asked_by_the_way(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path)
    account = ledger.account(ONE)
    for number in range(MAX_ACCOUNTS + 2):
        by_the_way = NodeId(number.to_bytes(64, "big"))
        ledger.account(by_the_way)
        ledger.forget(by_the_way)
    account.add(MissingRange(5, 6))
    ledger.note_change()

    await ledger.save()

    assert open_ledger(tmp_path).account(ONE).pending == [MissingRange(5, 6)]


async def test_what_is_missed_is_in_the_file_whoever_is_asked(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path)
    ledger.note_missed(MissingRange(50, 60))
    ledger.note_missed(MissingRange(5, 6))
    ledger.note_missed(MissingRange(55, 70))
    await ledger.save()

    assert open_ledger(tmp_path).missed == [MissingRange(50, 70), MissingRange(5, 6)]


def test_what_is_missed_stays_small(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path)

    for at in range(0, 1000 * MAX_RANGES, 1000):
        ledger.note_missed(MissingRange(at, at + 5))
    assert len(ledger.missed) == MAX_RANGES
    ledger.note_missed(MissingRange(NOW, NOW))

    assert ledger.missed == [MissingRange(0, NOW)]


async def test_file_with_as_much_as_there_may_be_is_read(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path)
    for number in range(MAX_ACCOUNTS):
        account = ledger.account(NodeId(number.to_bytes(64, "big")))
        for at in range(MAX_RANGES):
            account.add(MissingRange(NOW + 100 * at, NOW + 100 * at + 50))
            account.window()
            account.advance(CURSOR)
    ledger.note_change()
    await ledger.save()

    assert (tmp_path / PROGRESS_FILE).stat().st_size < MAX_FILE_BYTES // 4
    assert len(open_ledger(tmp_path).account(OTHER).pending) == MAX_RANGES


async def test_failed_write_leaves_the_file_and_is_tried_again(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path)
    ledger.account(ONE).add(MissingRange(5, 6))
    ledger.note_change()
    await ledger.save()
    before = (tmp_path / PROGRESS_FILE).read_text()
    ledger.account(ONE).add(MissingRange(50, 60))
    ledger.note_change()

    (tmp_path / f"{PROGRESS_FILE}.tmp").mkdir()
    with pytest.raises(CatchupError, match=r"cannot write .*sync\.json"):
        await ledger.save()
    assert (tmp_path / PROGRESS_FILE).read_text() == before
    (tmp_path / f"{PROGRESS_FILE}.tmp").rmdir()
    await ledger.save()

    assert open_ledger(tmp_path).account(ONE).pending == [MissingRange(50, 60), MissingRange(5, 6)]


async def test_cancelled_save_has_finished_its_write(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path)
    for number in range(20):
        ledger.account(ONE).add(MissingRange(100 * number, 100 * number + 6))
        ledger.note_change()
        saving = asyncio.create_task(ledger.save())
        await asyncio.sleep(0)
        saving.cancel()
        await asyncio.wait([saving])

        assert open_ledger(tmp_path).account(ONE).pending[0].lower == 100 * number


async def test_saves_at_once_follow_each_other(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path)

    async def add_and_save(number: int) -> None:
        ledger.account(ONE).add(MissingRange(100 * number, 100 * number + 6))
        ledger.note_change()
        await ledger.save()

    await asyncio.gather(*(add_and_save(number) for number in range(20)))

    assert len(open_ledger(tmp_path).account(ONE).pending) == 20


def record(**changes: Any) -> dict[str, Any]:
    """A good file's content, with changes to its one pending range."""
    fields = {"lower": 5, "upper": 6, **changes}
    return {"version": 1, "missed": [], "sources": {ONE.hex(): {"asked": [], "pending": [fields]}}}


def test_good_file_is_read(tmp_path: Path) -> None:
    (tmp_path / PROGRESS_FILE).write_text(json.dumps(record(cursor=CURSOR.encode().hex())))

    assert open_ledger(tmp_path).account(ONE).pending == [MissingRange(5, 6, CURSOR)]


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "[]",
        "[" * 100_000,
        "1" * 10_000,
        '"\udcff"',
        json.dumps(record())[:-1],
        json.dumps({"version": 1}),
        json.dumps({**record(), "version": 2}),
        json.dumps({"version": 1, "sources": {}}),
        json.dumps({**record(), "missed": {}}),
        json.dumps({**record(), "missed": [{"lower": 7, "upper": 6}]}),
        json.dumps({"version": "1" * 10_000}),
        json.dumps({"version": 1, "sources": []}),
        json.dumps({"version": 1, "sources": {"00" * 10_000: {"asked": [], "pending": []}}}),
        json.dumps({"version": 1, "sources": {ONE.hex(): [0] * 10_000}}),
        json.dumps({"version": 1, "sources": {ONE.hex(): {"asked": [], "pending": "1" * 10_000}}}),
        json.dumps({"version": 1, "sources": {"00": {"asked": [], "pending": []}}}),
        json.dumps({"version": 1, "sources": {"g" * 128: {"asked": [], "pending": []}}}),
        json.dumps({"version": 1, "sources": {ONE.hex(): []}}),
        json.dumps({"version": 1, "sources": {ONE.hex(): {"asked": []}}}),
        json.dumps({"version": 1, "sources": {ONE.hex(): {"pending": []}}}),
        json.dumps({"version": 1, "sources": {ONE.hex(): {"asked": [], "pending": [5]}}}),
        json.dumps({"version": 1, "sources": {ONE.hex(): {"asked": [], "pending": [record()] * 100}}}),
        json.dumps({"version": 1, "sources": {f"{number:0128x}": [] for number in range(MAX_ACCOUNTS + 1)}}),
        json.dumps(record(lower=7)),
        json.dumps(record(lower=-1)),
        json.dumps(record(lower=True)),
        json.dumps(record(lower=5.0)),
        json.dumps(record(lower=None)),
        json.dumps(record(upper=2**32)),
        json.dumps(record(upper="6")),
        json.dumps(record(cursor=7)),
        json.dumps(record(cursor="00")),
        json.dumps(record(cursor="zz" * 36)),
        json.dumps(record()) + " " * MAX_FILE_BYTES,
    ],
)
def test_damaged_file_is_an_error_that_names_it(tmp_path: Path, content: str) -> None:
    path = tmp_path / PROGRESS_FILE
    path.write_bytes(content.encode(errors="surrogateescape"))

    with pytest.raises(CatchupError) as caught:
        open_ledger(tmp_path)

    assert str(caught.value).startswith(f"{path} is damaged: ")
    assert len(str(caught.value)) < 1000
    assert str(caught.value).endswith(
        "; delete it, and fetch what may be missing here with waku-mailserver sync --since"
    )
    assert path.read_bytes() == content.encode(errors="surrogateescape")


@given(st.data())
def test_every_truncation_is_whole_or_an_error(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    folder = tmp_path_factory.mktemp("sync")
    text = json.dumps(record(cursor=CURSOR.encode().hex()))
    (folder / PROGRESS_FILE).write_text(text[: data.draw(st.integers(0, len(text) - 1))])

    with pytest.raises(CatchupError):
        open_ledger(folder)


def test_file_that_cannot_be_read_is_an_error_that_names_it(tmp_path: Path) -> None:
    (tmp_path / PROGRESS_FILE).mkdir()

    with pytest.raises(CatchupError, match=r"cannot read .*sync\.json"):
        open_ledger(tmp_path)


def test_only_missed_times_that_some_source_owes_are_awaited(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path)
    ledger.note_missed(MissingRange(100, 200))
    ledger.note_missed(MissingRange(1000, 2000))
    assert ledger.awaited == []

    ledger.account(ONE).add(MissingRange(150, 160))

    assert ledger.awaited == [MissingRange(100, 200)]
