"""Bans of addresses: for a time, and not more than some."""

from mailserver.torrents.bans import BAN_S, MAX_BANS, Bans, Senders
from mailserver.torrents.info import BLOCK_BYTES, PIECE_BYTES, TorrentInfo


def test_ban_ends() -> None:
    bans = Bans()
    bans.add("192.0.2.1", 0.0)
    bans.add("192.0.2.2", 5.0)

    assert not bans.expire(BAN_S - 0.1)
    assert bans.addresses() == ["192.0.2.1", "192.0.2.2"]
    assert bans.expire(BAN_S)
    assert bans.addresses() == ["192.0.2.2"]


def test_ban_begins_again() -> None:
    bans = Bans()
    bans.add("192.0.2.1", 0.0)
    bans.add("192.0.2.1", 5.0)

    assert not bans.expire(BAN_S)
    assert bans.addresses() == ["192.0.2.1"]


def test_oldest_ban_is_forgotten_for_one_too_many() -> None:
    bans = Bans()
    for number in range(MAX_BANS + 1):
        bans.add(f"192.0.{number // 256}.{number % 256}", float(number))

    assert len(bans.addresses()) == MAX_BANS
    assert "192.0.0.0" not in bans.addresses()


INFO = TorrentInfo(bytes(20), "", PIECE_BYTES, 3 * BLOCK_BYTES - 1, b"")  # pieces of 7 and of 3 blocks
LAST = 1


def sent(*blocks: tuple[int, str], piece: int = LAST) -> Senders:
    senders = Senders()
    senders.follow(INFO)
    for block, address in blocks:
        senders.on_block(INFO.info_hash, piece, block, address)
    return senders


def test_who_sent_all_of_a_piece_is_known() -> None:
    assert sent((0, "a"), (2, "a"), (1, "a")).on_piece(INFO.info_hash, LAST) == "a"
    assert sent(*((block, "a") for block in range(7)), piece=0).on_piece(INFO.info_hash, 0) == "a"


def test_nobody_is_blamed_for_a_piece_that_several_have_sent() -> None:
    assert sent((0, "a"), (1, "b"), (2, "a")).on_piece(INFO.info_hash, LAST) is None


def test_nobody_is_blamed_for_a_piece_of_which_a_sender_is_not_known() -> None:
    assert sent((0, "a"), (2, "a")).on_piece(INFO.info_hash, LAST) is None
    assert sent((0, "a"), (1, "a"), (2, "a"), piece=0).on_piece(INFO.info_hash, 0) is None
    assert sent().on_piece(INFO.info_hash, LAST) is None


def test_who_sends_a_piece_anew_is_not_blamed_for_who_sent_it_first() -> None:
    senders = sent((0, "a"), (1, "a"), (2, "a"))
    assert senders.on_piece(INFO.info_hash, LAST) == "a"

    for block in range(3):
        senders.on_block(INFO.info_hash, LAST, block, "b")

    assert senders.on_piece(INFO.info_hash, LAST) == "b"


def test_what_is_begun_anew_has_no_senders() -> None:
    again, lost = sent((0, "a"), (1, "a"), (2, "a")), sent((0, "a"), (1, "a"), (2, "a"))

    again.follow(INFO)
    lost.clear()

    assert again.on_piece(INFO.info_hash, LAST) is None
    assert lost.on_piece(INFO.info_hash, LAST) is None


def test_late_blocks_of_a_torrent_that_was_left_are_nobodys() -> None:
    senders = sent()

    senders.leave(INFO.info_hash)
    senders.leave(INFO.info_hash)
    for block in range(3):
        senders.on_block(INFO.info_hash, LAST, block, "a")

    assert senders.on_piece(INFO.info_hash, LAST) is None
