from collections.abc import Iterator
from functools import partial

from hypothesis import given
from hypothesis import strategies as st

from mailserver.leveldb.entries import BEFORE_ALL, Entry, UnreadablePiece
from mailserver.leveldb.merge import Items, SortedRun, newest
from tests.properties import settings

DAMAGE = UnreadablePiece("000005.ldb", 5, 0, b"", "why")


def run(entries: list[Entry]) -> SortedRun:
    return SortedRun((entries[0].key, -entries[0].sequence) if entries else BEFORE_ALL, lambda: iter(entries))


@settings(max_examples=80)
@given(
    st.lists(
        st.tuples(
            st.sampled_from([b"", b"a", b"aa", b"b", b"c"]), st.none() | st.binary(max_size=2), st.integers(0, 4)
        ),
        max_size=40,
    )
)
def test_newest_of_each_key_is_left_wherever_it_is(written: list[tuple[bytes, bytes | None, int]]) -> None:
    runs: list[list[Entry]] = [[] for _ in range(5)]
    expected: dict[bytes, bytes | None] = {}
    for sequence, (key, value, where) in enumerate(written):
        runs[where].append(Entry(key, sequence, value))
        expected[key] = value
    for each in runs:
        each.sort(key=lambda entry: (entry.key, -entry.sequence))

    found = [(item.key, item.value) for item in newest(list(map(run, runs))) if isinstance(item, Entry)]

    assert found == sorted((key, value) for key, value in expected.items() if value is not None)


def test_run_is_opened_only_when_it_is_next() -> None:
    opened: list[int] = []

    def counted(number: int) -> Items:
        opened.append(number)
        yield Entry(bytes([number]), 1, b"")
        yield Entry(bytes([number, 0]), 1, b"")

    runs = [SortedRun((bytes([number]), -1), partial(counted, number)) for number in (3, 1, 2)]
    items: Iterator[Entry | UnreadablePiece] = newest(runs)

    seen = []
    for item in items:
        assert isinstance(item, Entry)
        seen.append((item.key, list(opened)))

    assert seen[0] == (b"\1", [1])
    assert seen[2] == (b"\2", [1, 2])
    assert seen[-1] == (b"\3\0", [1, 2, 3])


def test_what_cannot_be_read_is_told_and_the_rest_is_read() -> None:
    items: list[Entry | UnreadablePiece] = [DAMAGE, Entry(b"a", 1, b""), DAMAGE, DAMAGE, Entry(b"b", 1, b""), DAMAGE]

    found = list(newest([SortedRun(BEFORE_ALL, lambda: iter(items)), run([Entry(b"aa", 1, b"")])]))

    assert found.count(DAMAGE) == 4
    assert [item.key for item in found if isinstance(item, Entry)] == [b"a", b"aa", b"b"]


def test_nothing_of_nothing() -> None:
    assert list(newest([])) == []
    assert list(newest([run([]), SortedRun(BEFORE_ALL, lambda: iter([DAMAGE]))])) == [DAMAGE]
