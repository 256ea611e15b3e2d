"""Bans of addresses: for a time, and not more than some."""

from mailserver.torrents.bans import BAN_S, MAX_BANS, Bans


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
