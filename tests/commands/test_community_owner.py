"""`waku-mailserver community`: the commands of owners."""

import json
import re
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from mailserver.commands.cli import main
from mailserver.communities.channels import chat_channel, community_id, id_text
from mailserver.community.folder import COMMUNITIES_FOLDER
from mailserver.community.owner.announcing import Announced
from mailserver.community.owner.appending import append, read_made
from mailserver.community.owner.folders import named
from mailserver.community.owner.progress import owned_progress
from mailserver.community.owner.publishing import take_next_index
from mailserver.community.owner.sent import SentPieces
from mailserver.files import write_atomically
from mailserver.handoff.communities import write_served
from mailserver.torrents.info import BLOCKS_PER_PIECE
from mailserver.torrents.statistics import TorrentTraffic
from tests.community.owner.samples import GARDEN, OWNER, archives_of, channel, garden, made_in, sealed, week

Capture = pytest.CaptureFixture[str]


def run(folder: Path, *arguments: str) -> int:
    return main(["community", *arguments, "--data-dir", str(folder)])


def shown(folder: Path, capsys: Capture) -> list[dict[str, Any]]:
    capsys.readouterr()
    assert run(folder, "list", "--json") == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_community_is_made_changed_and_listed(tmp_path: Path, capsys: Capture) -> None:
    assert run(tmp_path, "create", "Garden", "--network-topic", "/waku/2/rs/1/5") == 0
    name = capsys.readouterr().out.strip()
    assert run(tmp_path, "add-channel", "Garden", "general") == 0
    assert run(tmp_path, "add-channel", name, "news", "--topic", "0x00000001", "--since", "2024-10-01") == 0
    assert run(tmp_path, "add-channel", name, "pets", "--chat-id", f"{name}-pets") == 0
    assert run(tmp_path, "remove-channel", name, "news", "--at", "2024-11-01") == 0
    assert run(tmp_path, "disable", name) == 0

    (community,) = shown(tmp_path, capsys)

    assert community["id"] == name
    assert (community["name"], community["enabled"], community["format"]) == ("Garden", False, "spec")
    assert community["network_topic"] == "/waku/2/rs/1/5"
    channels = {each["name"]: each for each in community["channels"]}
    assert channels["general"]["content_topic"] == chat_channel("general").content_topic
    assert channels["general"]["has_key"]
    assert channels["pets"]["content_topic"] == chat_channel(f"{name}-pets").content_topic
    held = [datetime.fromtimestamp(channels["news"][which], UTC).date().isoformat() for which in ("since", "until")]
    assert held == ["2024-10-01", "2024-11-01"]
    assert run(tmp_path, "enable", name) == 0
    assert shown(tmp_path, capsys)[0]["enabled"]


def test_each_command_prints_the_community_for_programs(tmp_path: Path, capsys: Capture) -> None:
    said = []
    for command in (
        ("create", "Garden"),
        ("add-channel", "Garden", "general"),
        ("remove-channel", "Garden", "general"),
        ("disable", "Garden"),
        ("enable", "Garden"),
    ):
        assert run(tmp_path, *command, "--json") == 0
        said.append(json.loads(capsys.readouterr().out))
        assert shown(tmp_path, capsys) == [said[-1]]

    assert [len(each["channels"]) for each in said] == [0, 1, 1, 1, 1]
    assert [each["enabled"] for each in said] == [True, True, True, False, True]


def test_community_is_found_where_the_settings_of_communities_say(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COMMUNITIES_DATA_DIR", str(tmp_path))
    monkeypatch.setenv("COMMUNITIES_NETWORK_TOPIC", "/waku/2/rs/1/5")
    monkeypatch.setenv("MAILSERVER_DATA_DIR", str(tmp_path / "elsewhere"))

    assert main(["community", "create", "Garden"]) == 0

    assert shown(tmp_path, capsys)[0]["network_topic"] == "/waku/2/rs/1/5"


def test_community_is_made_of_a_key_that_nobody_else_may_read(tmp_path: Path, capsys: Capture) -> None:
    key = tmp_path / "owner.key"
    key.write_text(OWNER.secret.hex())
    key.chmod(0o644)
    assert run(tmp_path, "create", "Garden", "--key-file", str(key)) == 1
    key.chmod(0o600)

    assert run(tmp_path, "create", "Garden", "--key-file", str(key)) == 0

    assert capsys.readouterr().out.strip() == id_text(community_id(OWNER.public_key))
    assert named(tmp_path / COMMUNITIES_FOLDER, "Garden").read_key().secret == OWNER.secret


@pytest.mark.parametrize("text", [None, "no key"])
def test_key_file_that_is_none_is_named(tmp_path: Path, capsys: Capture, text: str | None) -> None:
    key = tmp_path / "owner.key"
    if text is not None:
        key.write_text(text)
        key.chmod(0o600)

    assert run(tmp_path, "create", "Garden", "--key-file", str(key)) == 2

    assert "owner.key" in capsys.readouterr().err


def test_what_cannot_be_done_is_said(tmp_path: Path, capsys: Capture) -> None:
    made_in(tmp_path / COMMUNITIES_FOLDER)

    assert run(tmp_path, "disable", "Attic") == 1
    assert run(tmp_path, "remove-channel", "Garden", "attic") == 1
    assert run(tmp_path, "add-channel", "Garden", "attic", "--symmetric-key", "00" * 32) == 2
    said = capsys.readouterr().err.splitlines()
    assert [line.partition(": ")[2].partition(":")[0] for line in said] == [
        "no community of ours is called Attic",
        "community Garden has no channel attic that is on",
        "--symmetric-key needs --topic",
    ]


def test_list_says_what_is_published_and_what_waits(tmp_path: Path, capsys: Capture) -> None:
    assert run(tmp_path, "list") == 0
    assert capsys.readouterr().out == ""
    folder = made_in(tmp_path / COMMUNITIES_FOLDER, garden().without_channel(channel(GARDEN).name, at=week(2).lower))
    form = folder.read().format
    append(folder, form, read_made(folder, form), archives_of(folder.read(), 0, sealed(week(0).lower)))

    (waiting,) = shown(tmp_path, capsys)
    take_next_index(folder)
    (published,) = shown(tmp_path, capsys)

    assert (waiting["archives"], waiting["unpublished"]) == (0, True)
    assert (published["archives"], published["unpublished"]) == (1, False)
    assert (published["bytes"], published["until"]) == (102_400, week(0).upper)
    assert run(tmp_path, "list") == 0
    row = capsys.readouterr().out.splitlines()[1].split()
    assert row[:5] == ["Garden", folder.path.name, "on", "spec", "0"]
    assert row[-1] == "2024-10-17"


def test_damaged_index_is_named(tmp_path: Path, capsys: Capture) -> None:
    folder = made_in(tmp_path / COMMUNITIES_FOLDER)
    folder.index.write_bytes(b"no index")

    assert run(tmp_path, "list") == 1

    assert f"{folder.index} is damaged" in capsys.readouterr().err


def test_status_of_a_community_of_ours_shows_its_weeks(tmp_path: Path, capsys: Capture) -> None:
    folder = made_in(tmp_path / COMMUNITIES_FOLDER)
    record = folder.read()
    for number in (0, 1):
        append(folder, record.format, read_made(folder, record.format), archives_of(record, number))
    take_next_index(folder)
    size = folder.data.stat().st_size // 2
    write_atomically(folder.announced, Announced(bytes(20), size, 1, int(time.time())).encode())

    sent = SentPieces()
    sent.add({0: 2 * BLOCKS_PER_PIECE}, week(5).lower, 2)
    sent.write(folder.sent)

    assert run(tmp_path, "status", "--json") == 0
    said = json.loads(capsys.readouterr().out)
    assert [(each["fetched_times"], each["fetched_at"]) for each in said["weeks"]] == [(2, week(5).lower), (0, None)]
    assert (said["id"], said["role"], said["name"], said["late_weeks"]) == (folder.path.name, "owner", "Garden", None)
    assert [(each["from"], each["distributed"], each["seeding"], each["fetched"]) for each in said["weeks"]] == [
        (week(0).lower, True, False, True),
        (week(1).lower, False, False, False),
    ]

    progress = owned_progress(
        folder,
        read_made(folder, record.format).entries,
        seeded_bytes=2 * size,
        announced=None,
        sent=SentPieces(),
        is_on=True,
        late_weeks=3,
        traffic=TorrentTraffic(peers=1),
        problem="the disk is full",
    )
    write_served(tmp_path / COMMUNITIES_FOLDER, [progress], time.time())
    assert run(tmp_path, "status") == 0
    titles, row = capsys.readouterr().out.splitlines()
    assert titles.split()[:3] == ["COMMUNITY", "ROLE", "ARCHIVES"]
    assert row.split()[:4] == [folder.path.name, "owner", "2", "-"]
    assert row.endswith("the disk is full")

    assert run(tmp_path, "status", folder.path.name) == 0
    out = capsys.readouterr().out
    assert re.search(r"weeks without an archive +3\n", out)
    rows = [" ".join(line.split()[4:]) for line in out.splitlines() if " times " in line]
    moment = f"{datetime.fromtimestamp(week(5).lower, UTC):%Y-%m-%d %H:%M}"
    assert rows == [f"1 yes yes yes, 2 times {moment}", "1 no yes no, 0 times -"]

    folder.sent.write_bytes(b"no counts")
    assert run(tmp_path, "status", "--json") == 0
    assert {each["fetched"] for each in json.loads(capsys.readouterr().out)["weeks"]} == {False}


def test_status_of_a_community_whose_index_is_damaged_says_so(tmp_path: Path, capsys: Capture) -> None:
    folder = made_in(tmp_path / COMMUNITIES_FOLDER)
    folder.index.write_bytes(b"\xff")

    assert run(tmp_path, "status") == 1

    assert "index is damaged" in capsys.readouterr().err
