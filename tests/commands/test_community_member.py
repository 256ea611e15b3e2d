"""`waku-mailserver community join|leave|fetch|status|messages`: what they write, print and refuse."""

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import pytest

from mailserver.commands.cli import main
from mailserver.communities.channels import chat_channel, community_id, id_text
from mailserver.communities.choosing import All, Between, Choice, Latest
from mailserver.communities.formats import TimeRange
from mailserver.communities.links import AnnouncedLink as Announced
from mailserver.community.folder import COMMUNITIES_FOLDER
from mailserver.community.member.history import open_history, read_overview
from mailserver.community.member.joined import Joined, membership, memberships
from mailserver.community.member.progress import joined_progress
from mailserver.community.member.records import Attempt, HistoryMessage
from mailserver.handoff.communities import write_served
from mailserver.ids.envelopes import NS
from mailserver.torrents.client import TorrentProcess
from mailserver.torrents.statistics import TorrentTraffic
from mailserver.waku.envelope import MAX_U32
from mailserver.waku.payload import MAX_PADDING_BYTES, seal_symmetric
from tests.community.member.publishing import OWNER, published, sealed
from tests.community.member.torrents import LOOPBACK, Seeded
from tests.community.member.worlds import content, import_week, listed, message, week
from tests.mailservers import NOW

COMMUNITY = community_id(OWNER.public_key)
ID = id_text(COMMUNITY)
ENODE = "enode://" + OWNER.public_key.hex() + "@192.0.2.1:30303"


def community(data_dir: Path, command: str, *words: str) -> int:
    return main(["community", command, *words, "--data-dir", str(data_dir)])


@pytest.mark.parametrize(
    ("flags", "choice"),
    [
        ((), All()),
        (("--latest",), Latest()),
        (("--from", "100"), Between(TimeRange(100, MAX_U32))),
        (("--to", "1970-01-01T00:01:00"), Between(TimeRange(0, 60))),
        (("--from", "100", "--to", "200"), Between(TimeRange(100, 200))),
    ],
)
def test_join_writes_what_was_said(tmp_path: Path, flags: tuple[str, ...], choice: Choice) -> None:
    flags += ("--channel", "news", "--channel", "news", "--mailserver", ENODE)
    assert community(tmp_path, "join", ID, *flags) == 0

    joined = membership(tmp_path, COMMUNITY).read()
    assert (joined.channels, joined.choice) == (("news",), choice)
    assert [*map(str, joined.mailservers)] == [ENODE]
    assert [folder.community for folder in memberships(tmp_path)] == [COMMUNITY]
    assert [path for path in tmp_path.rglob("*.json") if path.stat().st_mode & 0o077] == []


def test_join_prints_what_status_does_for_programs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert community(tmp_path, "join", ID, "--latest", "--json") == 0
    said = json.loads(capsys.readouterr().out)
    assert community(tmp_path, "status", "--json") == 0

    assert said == json.loads(capsys.readouterr().out)
    assert (said["id"], said["fetch"], said["messages"]) == (ID, "latest", 0)


def test_joining_again_changes_what_was_said(tmp_path: Path) -> None:
    assert community(tmp_path, "join", ID, "--channel", "news") == 0
    assert community(tmp_path, "join", ID, "--latest") == 0

    assert membership(tmp_path, COMMUNITY).read() == Joined(COMMUNITY, choice=Latest())


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--latest", "--from", "1"), "--latest and --from"),
        (("--from", "2", "--to", "2"), "--from 2 is not before --to 2"),
        (tuple(f"--channel={number}" for number in range(901)), "--channel: there may be"),
        (tuple(f"--mailserver={ENODE[:-2]}{number:02}" for number in range(17)), "--mailserver: there may be"),
    ],
    ids=["choice", "times", "channels", "mailservers"],
)
def test_what_cannot_be_joined_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], flags: tuple[str, ...], said: str
) -> None:
    assert community(tmp_path, "join", ID, *flags) == 2

    assert said in capsys.readouterr().err
    assert memberships(tmp_path) == []


def test_community_of_ours_is_not_joined(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["community", "create", "ours", "--data-dir", str(tmp_path)]) == 0
    own = capsys.readouterr().out.strip()

    assert community(tmp_path, "join", own) == 1

    assert "is ours" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["fetch", "leave", "status", "messages"])
def test_community_that_was_not_joined_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    listen = ("--torrent-listen", "127.0.0.1:0") if command == "fetch" else ()
    assert community(tmp_path, command, ID, *listen) == 1

    assert f"community {ID} was not joined" in capsys.readouterr().err


def test_history_of_a_community_that_was_left_is_printed_until_it_is_deleted(
    history: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert community(history, "leave", ID) == 0
    assert memberships(history) == []
    assert community(history, "messages", ID, "--json") == 0
    assert capsys.readouterr().out

    assert community(history, "leave", ID, "--delete") == 0
    assert community(history, "messages", ID) == 1
    assert f"community {ID} was not joined" in capsys.readouterr().err
    assert not membership(history, COMMUNITY).path.exists()


def test_community_that_is_followed_is_left_and_the_rest_is_said_to_follow(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert community(tmp_path, "join", ID) == 0
    with membership(tmp_path, COMMUNITY).locked():
        assert community(tmp_path, "leave", ID, "--delete") == 0
        assert "removes its files" in capsys.readouterr().out
        assert community(tmp_path, "leave", ID, "--delete", "--json") == 0
        assert json.loads(capsys.readouterr().out) == {"id": ID, "deleted": True, "done": False}

    assert memberships(tmp_path) == []
    assert community(tmp_path, "leave", ID, "--delete", "--json") == 0
    assert json.loads(capsys.readouterr().out)["done"] is True


@pytest.mark.parametrize(
    "damage",
    [
        "no JSON",
        "[]",
        '{"version": 2}',
        '{"version": 1, "community": "0x01", "channels": [], "mailservers": [], "fetch": "all"}',
        f'{{"version": 1, "community": "{ID}", "channels": [1], "mailservers": [], "fetch": "all"}}',
        f'{{"version": 1, "community": "{ID}", "channels": [], "mailservers": ["x"], "fetch": "all"}}',
        f'{{"version": 1, "community": "{ID}", "channels": [], "mailservers": [], "fetch": "some"}}',
        f'{{"version": 1, "community": "{ID}", "channels": [], "mailservers": [], "fetch": "range", "from": -1}}',
    ],
    ids=["text", "list", "version", "id", "channels", "mailservers", "fetch", "range"],
)
def test_record_that_is_damaged_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str], damage: str) -> None:
    assert community(tmp_path, "join", ID) == 0
    membership(tmp_path, COMMUNITY).record.write_text(damage)

    assert community(tmp_path, "status") == 1

    assert "is no record of a membership" in capsys.readouterr().err


@pytest.fixture
def history(tmp_path: Path) -> Path:
    """A community with two weeks, one of them refused, and a sealed message that no archive has yet."""
    assert community(tmp_path, "join", ID, "--channel", "news") == 0
    folder = membership(tmp_path, COMMUNITY)
    news = chat_channel("news")
    assert news.key is not None

    async def fill() -> None:
        async with open_history(folder.history) as opened:
            await import_week(opened, 5, {"a": [message(week(5).lower)]})
            await opened.list_archives([listed("a", 5), listed("b", 6)])
            await opened.refuse(content("b"), "it does not decode")
            await opened.note_link(Announced(int(time.time() * 1000), "magnet:?a"), NOW)
            await opened.note_attempt(Attempt("magnet:?a", NOW, "no metadata"))
            assert news.key is not None
            payload = seal_symmetric(b"hello", news.key, nonce=bytes(12), padding=bytes(MAX_PADDING_BYTES))
            sealed_one = HistoryMessage(NOW * NS, bytes(32), news.content_topic, payload, meta=b"m", version=1)
            await opened.put_recent([sealed_one])

    asyncio.run(fill())
    return tmp_path


def test_status_shows_each_community(history: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert community(history, "status") == 0

    titles, row = capsys.readouterr().out.splitlines()
    assert titles.split() == [
        "COMMUNITY",
        "ROLE",
        "ARCHIVES",
        "MESSAGES",
        "UNTIL",
        "LINK",
        "SEEDING",
        "PEERS",
        "PROBLEM",
    ]
    assert row.startswith(ID)
    assert "1 of 2, 1 refused" in row
    assert row.endswith("no metadata")


def test_status_of_one_community_shows_its_archives(history: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert community(history, "status", ID) == 0

    out = capsys.readouterr().out
    assert "2, 1 of them in no archive yet" in out
    assert "news" in out
    assert "community serve does not run" in out
    weeks = [line.split() for line in out.splitlines() if line.split()[-1:] == ["-"] and len(line.split()) == 9]
    assert [row[4:] for row in weeks] == [["1", "yes", "no", "yes", "-"], ["1", "yes", "no", "no", "-"]]
    rows = [line.split() for line in out.splitlines() if "100 KiB" in line]
    assert [row[4] for row in rows] == ["imported", "refused"]
    assert out.rstrip().endswith("it does not decode")


def test_status_as_json_has_all_of_it(history: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert community(history, "status", "--json") == 0

    (line,) = capsys.readouterr().out.splitlines()
    said: dict[str, Any] = json.loads(line)
    assert (said["id"], said["channels"], said["fetch"], said["messages"]) == (ID, ["news"], "all", 2)
    assert [(archive["state"], archive["from"]) for archive in said["archives"]] == [
        ("imported", week(5).lower),
        ("refused", week(6).lower),
    ]
    assert said["problem"] == "no metadata"
    assert [(each["from"], each["archives"], each["fetched"]) for each in said["weeks"]] == [
        (week(5).lower, 1, True),
        (week(6).lower, 1, False),
    ]
    assert (said["role"], said["served"], said["seeding"]) == ("member", False, False)


def test_status_says_what_serve_does_while_it_runs(history: Path, capsys: pytest.CaptureFixture[str]) -> None:
    progress = joined_progress(
        COMMUNITY,
        read_overview(membership(history, COMMUNITY).history).archives,
        link=None,
        offered=range(1),
        traffic=TorrentTraffic(peers=2, uploaded_bytes=2048, downloaded_bytes=5),
        problem="",
    )
    write_served(history / COMMUNITIES_FOLDER, [progress], time.time())
    capsys.readouterr()

    assert community(history, "status", "--json") == 0
    said: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert [each["seeding"] for each in said["weeks"]] == [True, False]
    assert (said["served"], said["seeding"], said["peers"], said["uploaded"]) == (True, True, 2, 2048)
    assert said["problem"] == "no metadata"

    assert community(history, "status", ID) == 0
    assert "seeding, 2 peers, 2 KiB sent, 5 B taken" in capsys.readouterr().out

    write_served(history / COMMUNITIES_FOLDER, [progress], time.time() - 3600)
    assert community(history, "status", "--json") == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["served"], said["peers"]) == (False, 0)


@pytest.mark.parametrize("flags", [(), (ID,), ("--json",)], ids=["all", "one", "json"])
def test_status_before_anything_was_fetched(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], flags: tuple[str, ...]
) -> None:
    assert community(tmp_path, "join", ID) == 0

    assert community(tmp_path, "status", *flags) == 0

    assert ID in capsys.readouterr().out
    assert not membership(tmp_path, COMMUNITY).history.exists()


def test_messages_are_opened_with_the_keys_of_channels(history: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert community(history, "messages", ID, "--json") == 0

    archived, recent = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    assert (recent["payload"], recent["timestamp"], recent["meta"]) == ("hello", NOW * NS, b"m".hex())
    assert archived["payload"] == f"{week(5).lower} "


def test_messages_are_chosen_by_channel_and_time(history: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert community(history, "messages", ID, "--channel", "news") == 0
    assert [line.split()[-1] for line in capsys.readouterr().out.splitlines()] == ["PAYLOAD", "hello"]

    assert community(history, "messages", ID, "--to", str(week(6).upper), "--json") == 0
    assert len(capsys.readouterr().out.splitlines()) == 1


@pytest.mark.integration
async def test_fetch_brings_the_history_of_a_link(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = published({week(5): [sealed(week(5).lower)], week(6): [sealed(week(6).lower)]})
    made.data = made.data[:-200] + b"\xff" * 200
    async with TorrentProcess(LOOPBACK) as owner:
        uri = await Seeded(owner, tmp_path / "owner").publish(made)
        words = (ID, "--magnet", uri, "--torrent-listen", "127.0.0.1:0")
        assert await asyncio.to_thread(community, tmp_path, "join", ID) == 0

        first = await asyncio.to_thread(community, tmp_path, "fetch", *words, "--json")
        said = json.loads(capsys.readouterr().out)
        second = await asyncio.to_thread(community, tmp_path, "fetch", *words)

    assert (first, second) == (1, 0)
    assert said == {"downloaded": 2, "imported": 1, "messages": 1, "refused": 1}
    assert capsys.readouterr().out == "0 history archives downloaded; 0 history archives imported with 0 messages\n"
    assert read_overview(membership(tmp_path, COMMUNITY).history).messages == 1
