"""JSON-RPC of `community serve`: what is said takes effect, with a real mailserver and real torrents on loopback."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from mailserver.api.params import Json
from mailserver.app import community_members, community_watch
from mailserver.app.communities import Serving, serve_communities
from mailserver.app.communities_config import CommunitiesConfig
from mailserver.communities import links
from mailserver.communities.channels import id_text, parse_id
from mailserver.community.folder import COMMUNITIES_FOLDER
from mailserver.community.member.following import MAX_GIVEN
from mailserver.community.owner import service
from mailserver.community.owner.folders import folder_of
from mailserver.torrents.client import TorrentProcess
from mailserver.torrents.magnet import MagnetLink
from tests.app.daemons import Daemon, running
from tests.community.member.test_following import COMMUNITY, announcement, now_ms, post, weeks
from tests.community.member.torrents import LOOPBACK, Seeded
from tests.community.owner.serving import make_week
from tests.waiting import until

pytestmark = pytest.mark.integration

PATIENCE_S = 60.0
METADATA_TIMEOUT_S = 3.0
TOKEN = "correct-horse-battery-staple"


@pytest.fixture(autouse=True)
def no_long_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links, "WAIT_S", 0.2)
    monkeypatch.setattr(community_members, "LOOK_INTERVAL_S", 0.05)
    monkeypatch.setattr(community_watch, "FIRST_LOOK_S", 0.05)
    monkeypatch.setattr(community_watch, "LOOK_INTERVAL_S", 0.05)
    monkeypatch.setattr(service, "LOOK_S", 0.05)


@dataclass
class Running:
    """What runs, and how it is called."""

    daemon: Daemon
    serving: Serving
    client: aiohttp.ClientSession

    async def answer(self, method: str, *params: Json, token: str = TOKEN) -> Any:
        """The answer, or the status of HTTP if there is none."""
        request = {"jsonrpc": "2.0", "id": 1, "method": f"community_{method}", "params": [*params]}
        url = f"http://127.0.0.1:{self.serving.rpc_port}/"
        async with self.client.post(url, json=request, headers={"Authorization": f"Bearer {token}"}) as response:
            return await response.json() if response.status == 200 else response.status

    async def __call__(self, method: str, *params: Json) -> Any:
        answer = await self.answer(method, *params)
        assert "error" not in answer, answer
        return answer["result"]

    async def until(self, expected: dict[str, Any], method: str, *params: Json) -> dict[str, Any]:
        """Call until the only result has these members; return it."""
        return await self.until_holds(lambda found: found | expected == found, method, *params)

    async def until_holds(self, holds: Callable[[dict[str, Any]], bool], method: str, *params: Json) -> dict[str, Any]:
        """Call until something holds of the only result; return it."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                (found,) = await self(method, *params)
                if holds(found):
                    return dict(found)
                await asyncio.sleep(0.02)


def config_of(data_dir: Path, metadata_timeout_s: float) -> CommunitiesConfig:
    return CommunitiesConfig(
        data_dir,
        torrent_listen="127.0.0.1:0",
        metadata_timeout_s=metadata_timeout_s,
        rpc="127.0.0.1:0",
        rpc_token_file=str(data_dir / "token"),
    )


@pytest.fixture
def metadata_timeout_s() -> float:
    return METADATA_TIMEOUT_S


@pytest.fixture
async def rpc(tmp_path: Path, metadata_timeout_s: float) -> AsyncIterator[Running]:
    (tmp_path / "data").mkdir(0o700)
    token = tmp_path / "data" / "token"
    token.write_text(TOKEN)
    token.chmod(0o600)
    failed = asyncio.Event()
    async with (
        running(tmp_path / "data", feed_socket=True) as daemon,
        serve_communities(config_of(tmp_path / "data", metadata_timeout_s), time.time, failed.set) as serving,
        aiohttp.ClientSession() as client,
    ):
        yield Running(daemon, serving, client)
        assert not failed.is_set()


async def test_community_that_is_made_is_seeded_until_it_is_switched_off(rpc: Running) -> None:
    made = await rpc("create", {"name": "Garden"})
    await rpc("addChannel", "Garden", {"name": "general"})
    await rpc.until({"role": "owner", "served": True, "seeding": False, "problem": None, "announced": None}, "status")
    folder = folder_of(rpc.daemon.config.data_dir / COMMUNITIES_FOLDER, parse_id(made["id"]))
    make_week(folder, 0)

    await rpc.until({"unpublished": False, "archives": 1}, "list")
    await until(folder.announced.exists, PATIENCE_S)
    seeded = await rpc.until({"seeding": True}, "status", made["id"])
    assert seeded["announced"] is not None
    assert [(week["distributed"], week["seeding"]) for week in seeded["weeks"]] == [(True, True)]
    (torrent,) = (await rpc.serving.torrents.statistics()).torrents
    await rpc("disable", "Garden")
    await rpc.until({"seeding": False}, "status", made["id"])
    assert (await rpc.serving.torrents.statistics()).torrents == ()
    await rpc("enable", "Garden")
    await rpc.until({"seeding": True}, "status", made["id"])
    (again,) = (await rpc.serving.torrents.statistics()).torrents
    assert again.info_hash == torrent.info_hash


async def test_community_that_is_joined_is_followed_and_fetched(rpc: Running, tmp_path: Path) -> None:
    community = id_text(COMMUNITY)
    async with TorrentProcess(LOOPBACK) as owner:
        seeded, made = Seeded(owner, tmp_path / "owner"), weeks(4)
        await post(rpc.daemon.enode, [await announcement(await seeded.publish(made), now_ms())])

        assert "is not followed" in (await rpc.answer("fetch", community))["error"]["message"]
        assert (await rpc("join", {"community": community}))["messages"] == 0
        followed = await rpc.until({"messages": 1, "problem": None}, "status", community)
        made = weeks(4, 5)
        assert await rpc("fetch", community, await seeded.publish(made))
        fetched = await rpc.until({"messages": 2, "problem": None}, "status")

    assert [archive["state"] for archive in followed["archives"]] == ["imported"]
    assert [archive["state"] for archive in fetched["archives"]] == ["imported"] * 2
    assert fetched["link"] == followed["link"]


async def test_newest_link_is_tried_at_once_when_that_is_asked_for(rpc: Running, tmp_path: Path) -> None:
    community = id_text(COMMUNITY)
    async with TorrentProcess(LOOPBACK) as owner:
        seeded = Seeded(owner, tmp_path / "owner")
        uri = await seeded.publish(weeks(4))
        assert seeded.info is not None
        await owner.drop(seeded.info.info_hash)
        await post(rpc.daemon.enode, [await announcement(uri, now_ms())])
        await rpc("join", {"community": community})
        stale = f"no metadata of torrent {seeded.info.info_hash.hex()} in {METADATA_TIMEOUT_S:g} s"
        await rpc.until({"problem": stale, "messages": 0}, "status")
        await owner.seed(seeded.info, seeded.folder)

        assert await rpc("fetch", community)

        await rpc.until({"problem": None, "messages": 1}, "status")


@pytest.mark.parametrize("metadata_timeout_s", [PATIENCE_S])  # it is to be sought still when the newer one comes
async def test_link_that_was_given_is_tried_though_a_newer_one_comes_meanwhile(rpc: Running, tmp_path: Path) -> None:
    community = id_text(COMMUNITY)
    async with TorrentProcess(LOOPBACK) as owner, TorrentProcess(LOOPBACK) as another:
        given = Seeded(another, tmp_path / "another")
        uri = await given.publish(weeks(4, 5))
        assert given.info is not None
        await another.drop(given.info.info_hash)
        await rpc("join", {"community": community})
        await rpc.until({"served": True}, "status")

        assert await rpc("fetch", community, uri)
        newer = await Seeded(owner, tmp_path / "owner").publish(weeks(4))
        await post(rpc.daemon.enode, [await announcement(newer, now_ms())])
        await rpc.until_holds(lambda status: status["link"] is not None, "status")
        await another.seed(given.info, given.folder)

        await rpc.until({"messages": 2, "problem": None}, "status")


async def test_only_so_many_links_wait_to_be_tried(rpc: Running) -> None:
    community = id_text(COMMUNITY)
    await rpc("join", {"community": community})
    await rpc.until({"served": True}, "status")

    # Meanwhile the first may have been tried, and make room.
    answers = [await rpc.answer("fetch", community, MagnetLink(bytes([n]) * 20).encode()) for n in range(2 * MAX_GIVEN)]

    assert [answer.get("result") for answer in answers[:MAX_GIVEN]] == [True] * MAX_GIVEN
    refused = [answer["error"]["message"] for answer in answers[MAX_GIVEN:] if "error" in answer]
    assert refused
    assert all(f"{MAX_GIVEN} links wait already" in message for message in refused)


async def test_callers_without_the_token_are_refused(rpc: Running) -> None:
    assert await rpc.answer("list", token="another") == 401
