"""mailserver.torrents.statistics: the traffic of a community, over new torrents and restarts."""

from dataclasses import replace

from mailserver.torrents.statistics import TorrentStatistics, TorrentTraffic

FIRST = TorrentStatistics(bytes(20), 3, 3, True, 2, 1, uploaded_bytes=100, downloaded_bytes=10, wrong_bytes=0)
OTHER = replace(FIRST, info_hash=bytes([1]) * 20, uploaded_bytes=1000, downloaded_bytes=1000)
SECOND = replace(FIRST, info_hash=bytes([2]) * 20, peers=5, uploaded_bytes=7, downloaded_bytes=0)


def of(traffic: TorrentTraffic) -> tuple[int, int, int]:
    return traffic.peers, traffic.uploaded_bytes, traffic.downloaded_bytes


def test_traffic_of_the_torrent_counts_and_that_of_others_does_not() -> None:
    traffic = TorrentTraffic()

    traffic.see([OTHER, FIRST], FIRST.info_hash)
    assert of(traffic) == (2, 100, 10)

    traffic.see([OTHER, replace(FIRST, peers=1, uploaded_bytes=150)], FIRST.info_hash)
    assert of(traffic) == (1, 150, 10)


def test_traffic_goes_on_with_the_next_torrent_and_with_a_process_that_was_started_again() -> None:
    traffic = TorrentTraffic()
    traffic.see([FIRST], FIRST.info_hash)

    traffic.see([SECOND], SECOND.info_hash)
    assert of(traffic) == (5, 107, 10)

    traffic.see([replace(SECOND, uploaded_bytes=2)], SECOND.info_hash)
    assert of(traffic) == (5, 109, 10)


def test_nobody_is_connected_while_there_is_no_torrent() -> None:
    traffic = TorrentTraffic()
    traffic.see([FIRST], FIRST.info_hash)

    for torrents, info_hash in (([FIRST], None), ([], FIRST.info_hash)):
        traffic.see(torrents, info_hash)
        assert of(traffic) == (0, 100, 10)
    traffic.see([FIRST], FIRST.info_hash)
    assert of(traffic) == (2, 100, 10)
