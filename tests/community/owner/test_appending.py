"""Appending history archives: whatever happens, what was published stays, and nothing is missing in the end."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mailserver.communities import deployed_format, index
from mailserver.communities.checking import check_archive, check_index
from mailserver.communities.index import DEPLOYED, decode_index, encode_index
from mailserver.communities.spec_format import SpecFormat
from mailserver.community.owner import appending
from mailserver.community.owner.appending import DAMAGED, Made, NewArchive, append, read_made
from mailserver.community.owner.folders import CommunityFolder, create
from mailserver.community.owner.published_ids import decode_ids
from mailserver.community.owner.publishing import take_next_index
from mailserver.community.owner.record import CommunityError, new_community
from mailserver.errors import DecodeError
from mailserver.files import write_whole
from mailserver.ids.muid import DEFAULT_NETWORK_TOPIC
from mailserver.waku.payload import OpenedPayload
from tests.community.owner.samples import OWNER, archives_of, garden, made_in, sealed, week
from tests.properties import settings

FORM = SpecFormat(DEFAULT_NETWORK_TOPIC)
GARDEN_RECORD = garden()


class Killed(BaseException):
    """As a kill: nothing catches it."""


@contextmanager
def killed_after(calls: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let so many steps that touch the disk happen, and die at the next one."""
    left = calls

    def step() -> None:
        nonlocal left
        if left <= 0:
            raise Killed
        left -= 1

    with monkeypatch.context() as patched:
        sync, truncate, write = os.fsync, os.ftruncate, write_whole

        def dying_sync(descriptor: int) -> None:
            step()
            sync(descriptor)

        def dying_truncate(descriptor: int, length: int) -> None:
            step()
            truncate(descriptor, length)

        def dying_write(path: Path, content: bytes) -> None:
            step()
            write(path, content)
            step()

        patched.setattr(os, "fsync", dying_sync)
        patched.setattr(os, "ftruncate", dying_truncate)
        patched.setattr(appending, "write_whole", dying_write)
        yield


def published(folder: CommunityFolder) -> tuple[bytes, bytes]:
    """`data` as far as `index` goes, and `index`."""
    index = folder.index.read_bytes() if folder.index.exists() else b""
    entries = decode_index(index).entries
    return folder.data.read_bytes()[: entries[-1].end if entries else 0], index


def keys_in(folder: CommunityFolder) -> list[bytes]:
    return [each.keys for each in decode_ids(folder.ids.read_bytes())]


@pytest.mark.parametrize("bound", ["MAX_ENTRIES", "MAX_INDEX_BYTES"])
def test_archives_that_an_index_may_not_list_any_more_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bound: str
) -> None:
    folder = made_in(tmp_path, GARDEN_RECORD)
    weeks = [each for number in range(4) for each in archives_of(GARDEN_RECORD, number)]
    late = archives_of(GARDEN_RECORD, 0, sealed(week(0).lower, 1))
    whole = append(folder, FORM, Made(), weeks)
    limit = len(whole.entries) if bound == "MAX_ENTRIES" else len(encode_index(FORM, whole.entries))
    monkeypatch.setattr(index, bound, limit)

    for _ in range(2):
        full = append(folder, FORM, read_made(folder, FORM), [*late, *archives_of(GARDEN_RECORD, 4)])

        assert full == whole
        assert read_made(folder, FORM) == whole
        assert folder.data.stat().st_size == whole.end


WEEK = st.lists(st.integers(0, 500), max_size=4, unique=True)


@given(
    weeks=st.lists(WEEK, min_size=1, max_size=5),
    late=st.lists(st.tuples(st.integers(0, 4), st.integers(600, 900)), max_size=3, unique=True),
    kills=st.lists(st.integers(0, 8), max_size=4),
    publishes=st.lists(st.booleans(), min_size=8, max_size=8),
)
@settings(max_examples=40)
def test_history_is_the_same_whatever_kills_the_run(
    tmp_path_factory: pytest.TempPathFactory,
    weeks: list[list[int]],
    late: list[tuple[int, int]],
    kills: list[int],
    publishes: list[bool],
) -> None:
    folders = [made_in(tmp_path_factory.mktemp("kills") / name, GARDEN_RECORD) for name in ("killed", "calm")]
    steps = [(number, [sealed(week(number).lower + at, at) for at in ats]) for number, ats in enumerate(weeks)]
    steps += [(at % len(weeks), [sealed(week(at % len(weeks)).lower + number, number)]) for at, number in late]
    monkeypatch = pytest.MonkeyPatch()
    before = b"", b""
    killed = iter(kills)

    for step, (number, envelopes) in enumerate(steps):
        new = archives_of(GARDEN_RECORD, number, *envelopes)
        append(folders[1], FORM, read_made(folders[1], FORM), new)
        goal = len(decode_index(folders[1].next_index.read_bytes()).entries)
        while True:
            try:
                with killed_after(next(killed, 1000), monkeypatch):
                    made = read_made(folders[0], FORM)
                    if len(made.entries) < goal:
                        append(folders[0], FORM, made, new)
                    break
            except Killed:
                with folders[0].data.open("ab") as data:
                    data.write(b"what did not reach the disk whole")
                assert published(folders[0])[0] == before[0]
        if publishes[step]:
            take_next_index(folders[0])
            now = published(folders[0])
            assert now[0].startswith(before[0])
            before = now

    take_next_index(folders[0])
    take_next_index(folders[1])
    assert folders[0].data.read_bytes() == folders[1].data.read_bytes()
    assert folders[0].index.read_bytes() == folders[1].index.read_bytes()
    assert folders[0].ids.read_bytes() == folders[1].ids.read_bytes()


@pytest.fixture
def folder(tmp_path: Path) -> CommunityFolder:
    return made_in(tmp_path)


def test_archives_are_listed_and_their_envelopes_named(folder: CommunityFolder) -> None:
    envelopes = [sealed(week(0).lower + 7, number) for number in range(3)]

    made = append(folder, FORM, read_made(folder, FORM), archives_of(garden(), 0, *envelopes))

    data = folder.data.read_bytes()
    index = decode_index(folder.next_index.read_bytes())
    assert check_index(index, len(data)) == []
    assert check_archive(FORM, index.entries[0], data).findings == ()
    assert made == read_made(folder, FORM)
    keys = made.ids[0].keys
    assert {keys[at : at + 16] for at in range(0, 48, 16)} == {each.hash()[:16] for each in envelopes}


def test_nothing_to_append_writes_nothing(folder: CommunityFolder) -> None:
    assert append(folder, FORM, read_made(folder, FORM), []) == Made()

    assert not folder.next_index.exists()


@pytest.mark.parametrize(
    "damage", [b"", b"something else", b"wakuids1" + b"short", b"wakuids1" + bytes(7) + b"\xff" * 60]
)
def test_ids_that_are_lost_or_damaged_are_made_again(folder: CommunityFolder, damage: bytes) -> None:
    envelopes = [sealed(week(0).lower + 7, number) for number in range(3)]
    made = append(folder, FORM, read_made(folder, FORM), archives_of(garden(), 0, *envelopes))
    folder.ids.write_bytes(damage)

    assert read_made(folder, FORM) == made


def test_ids_of_an_archive_that_was_never_published_are_not_believed(folder: CommunityFolder) -> None:
    first, other = (archives_of(garden(), 0, sealed(week(0).lower, number)) for number in (1, 2))
    append(folder, FORM, read_made(folder, FORM), first)
    kept = folder.ids.read_bytes()
    folder.next_index.unlink()
    append(folder, FORM, read_made(folder, FORM), other)
    folder.ids.write_bytes(kept)  # of the same place and size

    assert read_made(folder, FORM).ids[0].keys == other[0].keys


def test_ids_of_opened_messages_are_those_of_their_envelopes(tmp_path: Path) -> None:

    community = new_community("Old", DEPLOYED, DEFAULT_NETWORK_TOPIC, 0)
    folder = create(tmp_path, community, OWNER)
    envelope = sealed(week(0).lower)
    message = deployed_format.message_of(envelope, OpenedPayload(b"hello", None, b""))
    (encoded,) = community.format.encode_archives(week(0), [message.content_topic], [message])
    append(folder, community.format, Made(), [NewArchive(encoded, envelope.hash()[:16])])
    kept = folder.ids.read_bytes()
    folder.ids.unlink()

    made = read_made(folder, community.format)

    assert made.ids[0].encode() == kept[8:]


@pytest.mark.parametrize("damage", ["no index", "a gap"])
def test_damaged_next_index_is_set_aside(folder: CommunityFolder, damage: str) -> None:
    made = append(folder, FORM, read_made(folder, FORM), archives_of(garden(), 0))
    take_next_index(folder)
    longer = append(folder, FORM, made, archives_of(garden(), 1))
    damaged = b"damaged" if damage == "no index" else encode_index(FORM, longer.entries[1:])
    folder.next_index.write_bytes(damaged)

    assert read_made(folder, FORM) == made

    assert folder.next_index.with_name(folder.next_index.name + DAMAGED).read_bytes() == damaged
    assert folder.data.stat().st_size == made.end


def test_published_index_that_is_damaged_ends_the_run(folder: CommunityFolder) -> None:
    made = append(folder, FORM, append(folder, FORM, Made(), archives_of(garden(), 0)), archives_of(garden(), 1))
    folder.next_index.unlink()
    for damaged in (b"damaged", encode_index(FORM, made.entries[1:])):
        folder.index.write_bytes(damaged)

        with pytest.raises(CommunityError, match="is damaged"):
            read_made(folder, FORM)


def test_data_that_is_shorter_than_published_ends_the_run(folder: CommunityFolder) -> None:
    append(folder, FORM, Made(), archives_of(garden(), 0))
    os.truncate(folder.data, 5)

    with pytest.raises(CommunityError, match="has 5 bytes, and 102400"):
        read_made(folder, FORM)


def test_index_of_another_format_ends_the_run(folder: CommunityFolder) -> None:
    append(folder, FORM, Made(), archives_of(garden(), 0))
    other = new_community("Old", DEPLOYED, DEFAULT_NETWORK_TOPIC, 0).format

    with pytest.raises(CommunityError, match="has the format spec"):
        read_made(folder, other)


def test_full_disk_is_named_and_changes_nothing(folder: CommunityFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    made = append(folder, FORM, Made(), archives_of(garden(), 0))

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        with pytest.raises(CommunityError, match="No space left"):
            append(folder, FORM, made, archives_of(garden(), 1))

    assert read_made(folder, FORM) == made


@pytest.mark.parametrize("data", [b"", b"wakuids2", b"wakuids1" + b"\0" * 55])
def test_file_that_has_no_ids_is_refused(data: bytes) -> None:
    with pytest.raises(DecodeError, match="published ids"):
        decode_ids(data)
