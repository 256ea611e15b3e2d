"""mailserver.metrics.communities: what a scrape of `community serve` says of each community."""

from dataclasses import replace

from prometheus_client.exposition import generate_latest

from mailserver.communities.progress import CommunityProgress
from mailserver.metrics.communities import ServiceFigures, communities_registry
from tests.communities.progress import JOINED, OWNED

OF_OWNED = f'community="{OWNED.id}",role="owner"'
OF_JOINED = f'community="{JOINED.id}",role="member"'


def scrape(*communities: CommunityProgress) -> list[str]:
    figures = ServiceFigures(communities, True, 28_800.0, 2, 50_000_000)
    text = generate_latest(communities_registry(lambda: figures)).decode()
    return [line for line in text.splitlines() if not line.startswith("#")]


def test_service_is_told_without_a_community() -> None:
    lines = scrape()

    for line in (
        'community_served{role="owner"} 0.0',
        'community_served{role="member"} 0.0',
        "community_connected 1.0",
        "community_announce_interval_seconds 28800.0",
        "community_torrent_restarts_total 2.0",
        "community_torrent_memory_bytes 5e+07",
    ):
        assert line in lines


def test_owned_community_is_told_by_weeks_and_when_it_was_last_fetched() -> None:
    lines = scrape(OWNED, JOINED)

    assert [line for line in lines if OF_OWNED in line] == [
        f'community_ranges{{{OF_OWNED},state="archived"}} 2.0',
        f'community_ranges{{{OF_OWNED},state="distributed"}} 1.0',
        f'community_ranges{{{OF_OWNED},state="seeding"}} 2.0',
        f'community_ranges{{{OF_OWNED},state="fetched"}} 1.0',
        f"community_problem{{{OF_OWNED}}} 0.0",
        f"community_seeding{{{OF_OWNED}}} 1.0",
        f"community_late_ranges{{{OF_OWNED}}} 1.0",
        f"community_newest_timestamp_seconds{{{OF_OWNED}}} 1.729728e+09",
        f"community_announced_timestamp_seconds{{{OF_OWNED}}} 1.79e+09",
        f"community_fetched_timestamp_seconds{{{OF_OWNED}}} 1.7299e+09",
        f"community_peers{{{OF_OWNED}}} 3.0",
        f"community_uploaded_bytes_total{{{OF_OWNED}}} 5000.0",
        f"community_downloaded_bytes_total{{{OF_OWNED}}} 0.0",
    ]


def test_joined_community_is_told_by_weeks_and_archives_and_is_as_new_as_what_it_has() -> None:
    lines = scrape(OWNED, JOINED)

    assert [line for line in lines if OF_JOINED in line] == [
        f'community_ranges{{{OF_JOINED},state="archived"}} 2.0',
        f'community_ranges{{{OF_JOINED},state="distributed"}} 2.0',
        f'community_ranges{{{OF_JOINED},state="seeding"}} 1.0',
        f'community_ranges{{{OF_JOINED},state="fetched"}} 1.0',
        f'community_archives{{{OF_JOINED},state="missing"}} 1.0',
        f'community_archives{{{OF_JOINED},state="downloaded"}} 0.0',
        f'community_archives{{{OF_JOINED},state="imported"}} 1.0',
        f'community_archives{{{OF_JOINED},state="refused"}} 1.0',
        f"community_problem{{{OF_JOINED}}} 1.0",
        f"community_seeding{{{OF_JOINED}}} 1.0",
        f"community_newest_timestamp_seconds{{{OF_JOINED}}} 1.7291232e+09",
        f"community_peers{{{OF_JOINED}}} 0.0",
        f"community_uploaded_bytes_total{{{OF_JOINED}}} 60.0",
        f"community_downloaded_bytes_total{{{OF_JOINED}}} 7000.0",
    ]


def test_what_is_not_known_is_left_out() -> None:
    lines = scrape(replace(OWNED, weeks=(), is_seeding=None, announced_at=None))

    for name in ("community_seeding", "community_newest_timestamp_seconds", "community_announced_timestamp_seconds"):
        assert not [line for line in lines if line.startswith(name)]
