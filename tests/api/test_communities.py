"""mailserver.api.communities: each method by itself, on real records; nobody serves the communities."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mailserver.api.caller import Call, Caller
from mailserver.api.communities import COMMUNITY_ERRORS, CommunityMethods
from mailserver.api.dispatch import Dispatcher
from mailserver.api.errors import ErrorCode
from mailserver.api.params import Json
from mailserver.communities.channels import CommunityId, chat_channel, community_id, id_text
from mailserver.communities.choosing import All, Between, Choice, Latest
from mailserver.communities.formats import TimeRange
from mailserver.community.folder import COMMUNITIES_FOLDER
from mailserver.community.member.joined import Joined, MembershipError, membership
from mailserver.community.owner.folders import named
from mailserver.waku.envelope import MAX_U32
from tests.community.member.publishing import FOREIGNER, OWNER

NOW = 1_800_000_000
ID = id_text(community_id(OWNER.public_key))
OTHER = community_id(FOREIGNER.public_key)
ENODE = "enode://" + OWNER.public_key.hex() + "@192.0.2.1:30303"


class Calls:
    """The methods, called as a transport does. `asked`: what was to be fetched."""

    def __init__(self, data_dir: Path) -> None:
        self.data_dir = data_dir
        self.asked: list[tuple[CommunityId, str | None]] = []
        methods = CommunityMethods(data_dir, "/waku/2/rs/1/5", self._fetch, lambda: NOW)
        self._dispatcher = Dispatcher(methods.table(), COMMUNITY_ERRORS)

    def _fetch(self, community: CommunityId, uri: str | None) -> None:
        if community != OTHER:
            raise MembershipError("it is not followed")
        self.asked.append((community, uri))

    async def answer(self, method: str, *params: Json) -> dict[str, Any]:
        request = {"jsonrpc": "2.0", "id": 1, "method": f"community_{method}", "params": [*params]}
        answer = await self._dispatcher.answer(json.dumps(request), Call(Caller()))
        assert answer is not None
        found: dict[str, Any] = json.loads(answer)
        return found

    async def __call__(self, method: str, *params: Json) -> Any:
        answer = await self.answer(method, *params)
        assert "error" not in answer, answer
        return answer["result"]

    async def failure(self, method: str, *params: Json) -> tuple[int, str]:
        error = (await self.answer(method, *params))["error"]
        return error["code"], error["message"]

    def joined(self, community: CommunityId = OTHER) -> Joined:
        return membership(self.data_dir, community).read()


@pytest.fixture
def calls(tmp_path: Path) -> Calls:
    return Calls(tmp_path)


async def test_community_is_made_changed_switched_off_and_listed(calls: Calls) -> None:
    made = await calls("create", {"name": "Garden", "privateKey": f"0x{OWNER.secret.hex()}"})
    await calls("addChannel", "Garden", {"name": "general"})
    await calls("addChannel", ID, {"name": "pets", "chatId": f"{ID}-pets", "since": 5})
    key = "0x" + "07" * 32
    await calls("addChannel", ID, {"name": "attic", "topic": "0x00000001", "symmetricKey": key, "since": 7})
    await calls("removeChannel", ID, "pets", 9)
    await calls("removeChannel", ID, "attic")
    off = await calls("disable", "Garden")
    on = await calls("enable", "Garden")

    assert made == {
        "id": ID,
        "name": "Garden",
        "enabled": True,
        "format": "spec",
        "networkTopic": "/waku/2/rs/1/5",
        "registered": NOW,
        "channels": [],
        "archives": 0,
        "bytes": 0,
        "until": None,
        "unpublished": False,
        "announced": None,
    }
    assert (off["enabled"], on["enabled"]) == (False, True)
    assert await calls("list") == [on]
    assert on["channels"] == [
        {
            "name": name,
            "contentTopic": content_topic,
            "hasKey": True,
            "since": since,
            "until": until,
        }
        for name, content_topic, since, until in (
            ("general", chat_channel("general").content_topic, None, None),
            ("pets", chat_channel(f"{ID}-pets").content_topic, 5, 9),
            ("attic", "/waku/1/0x00000001/rfc26", 7, NOW),
        )
    ]
    folder = named(calls.data_dir / COMMUNITIES_FOLDER, "Garden")
    assert folder.read_key().secret == OWNER.secret
    assert folder.read().channels[2].key == bytes([7]) * 32


async def test_community_gets_a_key_of_its_own_unless_one_is_given(calls: Calls) -> None:
    made = [await calls("create", {"name": "Garden", "format": "deployed"}) for _ in range(2)]

    assert made[0]["id"] != made[1]["id"]
    assert {each["format"] for each in made} == {"deployed"}
    code, message = await calls.failure("disable", "Garden")
    assert (code, message.partition(":")[0]) == (-32009, "several communities are called Garden")


@pytest.mark.parametrize(
    ("said", "choice"),
    [
        ({}, All()),
        ({"fetch": "all"}, All()),
        ({"fetch": "latest"}, Latest()),
        ({"fetch": "range", "from": 5, "to": 9}, Between(TimeRange(5, 9))),
        ({"from": 5}, Between(TimeRange(5, MAX_U32))),
        ({"to": 5}, Between(TimeRange(0, 5))),
    ],
    ids=["nothing", "all", "latest", "range", "from", "to"],
)
async def test_community_is_joined_and_shown(calls: Calls, said: dict[str, Json], choice: Choice) -> None:
    about: dict[str, Json] = {"community": id_text(OTHER), "channels": ["news", "news"], "mailservers": [ENODE]}

    joined = await calls("join", {**about, **said})

    assert (calls.joined().channels, calls.joined().choice) == (("news",), choice)
    assert [*map(str, calls.joined().mailservers)] == [ENODE]
    assert (joined["id"], joined["archives"], joined["link"]) == (id_text(OTHER), [], None)
    assert await calls("status") == await calls("status", id_text(OTHER)) == [joined]


async def test_community_is_left_and_its_history_deleted_where_that_is_said(calls: Calls) -> None:
    await calls("join", {"community": id_text(OTHER)})

    assert await calls("leave", id_text(OTHER)) is True
    assert await calls("status") == []
    assert membership(calls.data_dir, OTHER).read_kept() == Joined(OTHER)

    assert await calls("leave", id_text(OTHER), True) is True
    assert membership(calls.data_dir, OTHER).deleting.exists()


async def test_history_is_fetched_when_it_is_asked_for(calls: Calls) -> None:
    assert await calls("fetch", id_text(OTHER))
    assert await calls("fetch", id_text(OTHER), "magnet:?x")

    assert calls.asked == [(OTHER, None), (OTHER, "magnet:?x")]


@pytest.mark.parametrize(
    ("method", "params", "code", "said"),
    [
        ("disable", ["Attic"], ErrorCode.COMMUNITY_REFUSED, "no community of ours is called Attic"),
        ("removeChannel", ["Garden", "attic"], ErrorCode.COMMUNITY_REFUSED, "has no channel attic"),
        ("create", [{"name": "Garden", "format": "x"}], ErrorCode.COMMUNITY_REFUSED, "'x' is no format"),
        ("create", [{"name": "Garden", "privateKey": "0x00"}], ErrorCode.INVALID_PARAMS, "community.privateKey: "),
        ("create", [{"name": "G", "key": "0x00"}], ErrorCode.INVALID_PARAMS, "community.'key': unknown"),
        ("addChannel", ["Garden", {}], ErrorCode.INVALID_PARAMS, "channel.name: missing"),
        (
            "addChannel",
            ["Garden", {"name": "x", "topic": "0x00000001", "chatId": "x"}],
            ErrorCode.INVALID_PARAMS,
            "channel.topic: give either",
        ),
        (
            "addChannel",
            ["Garden", {"name": "x", "symmetricKey": "0x" + "00" * 32}],
            ErrorCode.INVALID_PARAMS,
            "channel.symmetricKey: it needs topic",
        ),
        ("join", [{"community": ID}], ErrorCode.COMMUNITY_REFUSED, "is ours"),
        ("leave", [id_text(OTHER)], ErrorCode.COMMUNITY_REFUSED, "was not joined"),
        ("leave", [id_text(OTHER), 1], ErrorCode.INVALID_PARAMS, "delete: not true or false"),
        ("join", [{"community": "0x02"}], ErrorCode.INVALID_PARAMS, "membership.community: "),
        ("join", [{"community": ID, "fetch": "some"}], ErrorCode.INVALID_PARAMS, "membership.fetch: not one of"),
        ("join", [{"community": ID, "fetch": "all", "to": 5}], ErrorCode.INVALID_PARAMS, "membership.fetch: "),
        ("join", [{"community": ID, "fetch": "range"}], ErrorCode.INVALID_PARAMS, "membership.fetch: "),
        ("join", [{"community": ID, "from": 5, "to": 5}], ErrorCode.INVALID_PARAMS, "membership.from: not before to"),
        ("join", [{"community": ID, "mailservers": ["x"]}], ErrorCode.INVALID_PARAMS, "membership.mailservers[0]: "),
        ("status", [id_text(OTHER)], ErrorCode.COMMUNITY_REFUSED, "was not joined"),
        ("fetch", [ID], ErrorCode.COMMUNITY_REFUSED, "it is not followed"),
    ],
)
async def test_what_cannot_be_done_is_said(
    calls: Calls, method: str, params: list[Json], code: ErrorCode, said: str
) -> None:
    await calls("create", {"name": "Garden", "privateKey": f"0x{OWNER.secret.hex()}"})

    failed, message = await calls.failure(method, *params)

    assert (failed, said in message) == (code, True), message


@pytest.mark.parametrize(
    ("damage", "code"),
    [
        (lambda calls: (calls.data_dir / COMMUNITIES_FOLDER / ID / "index").write_bytes(b"x"), -32009),
        (lambda calls: (calls.data_dir / COMMUNITIES_FOLDER / ID / "community.json").write_text("x"), -32009),
    ],
    ids=["index", "record"],
)
async def test_files_that_are_damaged_are_named(calls: Calls, damage: Callable[[Calls], object], code: int) -> None:
    await calls("create", {"name": "Garden", "privateKey": f"0x{OWNER.secret.hex()}"})
    damage(calls)

    failed, message = await calls.failure("list")

    assert (failed, ID in message) == (code, True)


async def test_history_that_cannot_be_read_is_no_fault_of_the_caller(calls: Calls) -> None:
    await calls("join", {"community": id_text(OTHER)})
    membership(calls.data_dir, OTHER).history.write_bytes(b"no database " * 1000)

    code, message = await calls.failure("status")

    assert (code, "cannot use the history" in message) == (ErrorCode.STORE_UNAVAILABLE, True)
