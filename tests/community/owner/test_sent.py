"""mailserver.community.owner.sent: how often pieces were sent, over restarts."""

from pathlib import Path

import pytest

from mailserver.community.owner.sent import MAGIC, SentPieces
from mailserver.errors import DecodeError
from mailserver.torrents.info import BLOCKS_PER_PIECE
from mailserver.waku.envelope import MAX_U32


def test_what_was_counted_is_there_after_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "sent"
    assert SentPieces.read(path).times(range(3)) == (0, None)
    sent = SentPieces()
    sent.add({0: BLOCKS_PER_PIECE, 1: 2 * BLOCKS_PER_PIECE}, 50, 2)
    sent.write(path)

    again = SentPieces.read(path)
    again.add({0: BLOCKS_PER_PIECE, 2: 1}, 60, 3)  # a week later, of the next torrent

    assert again.times(range(2)) == (2, 60)
    assert again.times(range(1, 2)) == (2, 50)
    assert again.times(range(3)) == (0, 60)
    assert again.times(range(3, 5)) == (0, None)


def test_count_does_not_outgrow_the_file(tmp_path: Path) -> None:
    sent = SentPieces()
    for _ in range(2):
        sent.add({0: MAX_U32}, MAX_U32, 1)
    sent.write(tmp_path / "sent")

    assert SentPieces.read(tmp_path / "sent").times([0]) == (MAX_U32 // BLOCKS_PER_PIECE, MAX_U32)


@pytest.mark.parametrize("data", [b"", b"wakuids1", MAGIC + bytes(7)], ids=["empty", "another file", "cut off"])
def test_file_that_is_none_is_said(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "sent"
    path.write_bytes(data)

    with pytest.raises(DecodeError, match="what was sent"):
        SentPieces.read(path)
