"""The profile `communities` of the real compose file: a week becomes a history archive that a member fetches."""

import json
import time
import urllib.request
from pathlib import Path

import pytest

from mailserver.units import SECONDS_PER_DAY
from mailserver.waku.envelope import encode_envelope
from mailserver.waku.topics import topic_of
from tests.docker.engine import QUICK_S, wait_for
from tests.docker.stack import COMPACTED_WITHIN_S, PROFILES, Stack
from tests.integration.daemons import run_command
from tests.mailservers import stored

pytestmark = [pytest.mark.docker, pytest.mark.integration]

MESSAGES = 30
FETCHED_WITHIN_S = 120.0
"""Of these, 20 s are those that a member waits for later links."""


def metrics(stack: Stack) -> list[str]:
    """What the service says of itself on the host's loopback."""
    url = f"http://127.0.0.1:{stack.settings['TORRENT_METRICS_PORT']}/metrics"
    with urllib.request.urlopen(url, timeout=QUICK_S) as answer:
        lines: list[str] = answer.read().decode().splitlines()
    return lines


def test_a_week_is_archived_seeded_announced_and_fetched_through_the_published_ports(
    built: Stack, tmp_path: Path
) -> None:
    topic, noon = topic_of("garden"), (int(time.time()) // SECONDS_PER_DAY - 10) * SECONDS_PER_DAY + 43_200
    built.down()
    built.put([stored(encode_envelope(noon + 60, 60, topic, bytes(300), number), noon) for number in range(MESSAGES)])
    built.up("mailserver")
    built.up("communities")

    def community(*words: str) -> str:
        inside = ("exec", "-T", "communities", "waku-mailserver", "community")
        return built.compose(*PROFILES, *inside, *words).stdout.strip()

    try:
        name = community("create", "Garden")
        community("add-channel", "Garden", "garden")
        built.compose("run", "--rm", "-T", "compaction", "communities", within_s=COMPACTED_WITHIN_S)
        wait_for(
            lambda: f'community_ranges{{community="{name}",role="owner",state="distributed"}} 1.0' in metrics(built),
            lambda: built.logs("communities"),
            QUICK_S,
        )

        data = ("--data-dir", tmp_path)
        joined = run_command("community", "join", name, "--mailserver", built.enode(), "--channel", "garden", *data)
        assert joined.returncode == 0, joined.stderr
        peers = ("--torrent-peers", f"127.0.0.1:{built.settings['TORRENT_PORT']}", "--torrent-listen", "127.0.0.1:0")
        fetched = run_command("community", "fetch", name, "--json", *peers, *data, within_s=FETCHED_WITHIN_S)
        assert fetched.returncode == 0, fetched.stderr + built.logs("communities")
        said = json.loads(fetched.stdout)
        assert (said["downloaded"], said["imported"], said["messages"], said["refused"]) == (1, 1, MESSAGES, 0)
        (status,) = (json.loads(line) for line in community("status", "--json").splitlines())
        assert (status["role"], status["served"], status["seeding"]) == ("owner", True, True)
        assert [(week["distributed"], week["seeding"]) for week in status["weeks"]] == [(True, True)]
    finally:
        built.compose(*PROFILES, "down", "--volumes")  # a community would be a part of every night from now on
