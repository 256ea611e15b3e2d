"""Communities over JSON-RPC, as the commands have them: `waku-mailserver community ..` (61/STATUS).

Both write the same records in the data directory, which `community serve` reads anew every few seconds; so it does not
matter which of them says something. Results are the objects that commands print with `--json`, with names as all
methods have them (`contentTopic`).
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from mailserver.api.caller import Call
from mailserver.api.dispatch import Method
from mailserver.api.errors import ErrorCode, ErrorCodes
from mailserver.api.params import (
    Fields,
    Invalid,
    Json,
    enode,
    flag,
    hex_bytes,
    list_of,
    private_key,
    text,
    topic,
    whole,
)
from mailserver.codec.keys import PrivateKey
from mailserver.communities.channels import Channel, CommunityId, chat_channel, parse_id
from mailserver.communities.choosing import All, Between, Choice, Latest
from mailserver.communities.formats import TimeRange
from mailserver.communities.index import SPEC
from mailserver.communities.links import MAX_URI_BYTES
from mailserver.community.folder import COMMUNITIES_FOLDER
from mailserver.community.member.joined import (
    MAX_CHANNELS,
    MAX_MAILSERVERS,
    Joined,
    MembershipError,
    membership,
)
from mailserver.community.member.leaving import join, leave
from mailserver.community.owner.folders import CommunityFolder, create, named, owned
from mailserver.community.owner.record import (
    KEY_BYTES,
    MAX_NAME_CHARACTERS,
    Community,
    CommunityError,
    new_community,
)
from mailserver.community.owner.showing import owned_as_json
from mailserver.community.status import read_status, status_as_json
from mailserver.errors import DecodeError, StoreError
from mailserver.handoff.communities import ServedError
from mailserver.ids.envelopes import content_topic_of
from mailserver.live.intake import Clock
from mailserver.net.sessions import random_key
from mailserver.waku.envelope import MAX_U32

COMMUNITY_ERRORS: ErrorCodes = {
    CommunityError: ErrorCode.COMMUNITY_REFUSED,
    MembershipError: ErrorCode.COMMUNITY_REFUSED,
    ServedError: ErrorCode.COMMUNITY_REFUSED,
    StoreError: ErrorCode.STORE_UNAVAILABLE,
}

MAX_CHAT_ID_CHARS = 512
"""Longest chat id. In Status it is two ids, 200 characters together."""

_CHANNEL = ("name", "chatId", "topic", "symmetricKey", "since")
_MEMBERSHIP = ("community", "channels", "mailservers", "fetch", "from", "to")

FetchNow = Callable[[CommunityId, str | None], None]
"""Has the history of a community fetched now: the newest link, or one that was given, and then the newest.

MembershipError: it is not followed.
"""


class CommunityMethods:
    """The communities of one data directory, of which we are owner or member."""

    def __init__(self, data_dir: Path, network_topic: str, fetch_now: FetchNow, clock: Clock) -> None:
        """Take the process that serves them.

        Args:
            network_topic: of communities that are made here.
        """
        self._data_dir = data_dir
        self._communities = data_dir / COMMUNITIES_FOLDER
        self._network_topic = network_topic
        self._fetch_now = fetch_now
        self._clock = clock

    def table(self) -> dict[str, Method]:
        """The methods by name."""
        return {
            "community_list": Method(self._list),
            "community_create": Method(self._create, ("community",)),
            "community_addChannel": Method(self._add_channel, ("community", "channel")),
            "community_removeChannel": Method(self._remove_channel, ("community", "channel", "at")),
            "community_enable": Method(self._enable, ("community",)),
            "community_disable": Method(self._disable, ("community",)),
            "community_join": Method(self._join, ("membership",)),
            "community_leave": Method(self._leave, ("community", "delete")),
            "community_status": Method(self._status, ("community",)),
            "community_fetch": Method(self._fetch, ("community", "magnet")),
        }

    # As the owner.

    async def _list(self, params: Fields, call: Call) -> Json:
        def read() -> list[Json]:
            return [_shown(folder, folder.read()) for folder in owned(self._communities)]

        return await asyncio.to_thread(read)

    async def _create(self, params: Fields, call: Call) -> Json:
        fields = params.object("community", ("name", "format", "privateKey"))
        name = fields.required("name", text(MAX_NAME_CHARACTERS))
        form = fields.optional("format", text(MAX_NAME_CHARACTERS), SPEC)
        key: PrivateKey = fields.maybe("privateKey", private_key) or random_key()
        community = new_community(name, form, self._network_topic, int(self._clock()))

        def make() -> Json:
            return _shown(create(self._communities, community, key), community)

        return await asyncio.to_thread(make)

    async def _add_channel(self, params: Fields, call: Call) -> Json:
        fields = params.object("channel", _CHANNEL)
        name = fields.required("name", text(MAX_NAME_CHARACTERS))
        of_topic = fields.maybe("topic", topic)
        chat_id = fields.maybe("chatId", text(MAX_CHAT_ID_CHARS))
        key = fields.maybe("symmetricKey", hex_bytes(KEY_BYTES, KEY_BYTES))
        since = fields.maybe("since", whole(0, MAX_U32))
        if of_topic is not None and chat_id is not None:
            raise fields.wrong("topic", "give either this or chatId, not both")
        if of_topic is None and key is not None:
            raise fields.wrong("symmetricKey", "it needs topic: the key of a public chat comes from its chat id")
        if of_topic is None:
            channel = await asyncio.to_thread(chat_channel, chat_id or name, name)
        else:
            channel = Channel(name, content_topic_of(of_topic), key)
        return await self._change(params, lambda community: community.with_channel(channel, since=since))

    async def _remove_channel(self, params: Fields, call: Call) -> Json:
        name = params.required("channel", text(MAX_CHAT_ID_CHARS))
        at = params.optional("at", whole(0, MAX_U32), int(self._clock()))
        return await self._change(params, lambda community: community.without_channel(name, at=at))

    async def _enable(self, params: Fields, call: Call) -> Json:
        return await self._change(params, lambda community: replace(community, is_enabled=True))

    async def _disable(self, params: Fields, call: Call) -> Json:
        return await self._change(params, lambda community: replace(community, is_enabled=False))

    async def _change(self, params: Fields, change: Callable[[Community], Community]) -> Json:
        """Change the community that is named; return it."""
        name = params.required("community", text(MAX_NAME_CHARACTERS))

        def write() -> Json:
            folder = named(self._communities, name)
            return _shown(folder, folder.change(change))

        return await asyncio.to_thread(write)

    # As a member.

    async def _join(self, params: Fields, call: Call) -> Json:
        fields = params.object("membership", _MEMBERSHIP)
        joined = Joined(
            fields.required("community", _community),
            tuple(dict.fromkeys(fields.maybe("channels", list_of(text(MAX_CHAT_ID_CHARS), MAX_CHANNELS)) or ())),
            tuple(dict.fromkeys(fields.maybe("mailservers", list_of(enode, MAX_MAILSERVERS)) or ())),
            _choice(fields),
        )

        def write() -> Json:
            join(membership(self._data_dir, joined.community), joined)
            (status,) = self._status_of(joined.community)
            return status

        return await asyncio.to_thread(write)

    async def _leave(self, params: Fields, call: Call) -> Json:
        """Leave at once; whoever works for it ends within seconds, and then what is not kept is removed."""
        folder = membership(self._data_dir, params.required("community", _community))
        delete = params.optional("delete", flag, False)
        await asyncio.to_thread(lambda: leave(folder, delete=delete))
        return True

    async def _status(self, params: Fields, call: Call) -> Json:
        community = params.maybe("community", _community)
        return await asyncio.to_thread(self._status_of, community)

    def _status_of(self, community: CommunityId | None) -> list[Json]:
        return [_camel_case(status_as_json(each)) for each in read_status(self._data_dir, community, self._clock())]

    async def _fetch(self, params: Fields, call: Call) -> Json:
        """Begin at once; `community_status` says what became of it."""
        community = params.required("community", _community)
        self._fetch_now(community, params.maybe("magnet", text(MAX_URI_BYTES)))
        return True


def _shown(folder: CommunityFolder, community: Community) -> Json:
    return _camel_case(owned_as_json(folder, community))


def _community(value: Json) -> CommunityId:
    try:
        return parse_id(text(MAX_NAME_CHARACTERS)(value))
    except DecodeError as error:
        raise Invalid(str(error)) from error


def _choice(fields: Fields) -> Choice:
    lower, upper = (fields.maybe(name, whole(0, MAX_U32)) for name in ("from", "to"))
    fetch = fields.optional("fetch", text(MAX_NAME_CHARACTERS), "all" if lower is upper is None else "range")
    if fetch not in ("all", "latest", "range"):
        raise fields.wrong("fetch", "not one of all, latest, range")
    if (fetch == "range") == (lower is upper is None):
        raise fields.wrong("fetch", "from or to belong to range, and to nothing else")
    if fetch == "range":
        time_range = TimeRange(lower or 0, MAX_U32 if upper is None else upper)
        if time_range.lower >= time_range.upper:
            raise fields.wrong("from", "not before to")
        return Between(time_range)
    return Latest() if fetch == "latest" else All()


def _camel_case(value: Any) -> Json:
    """The same with the names of all objects as 9/WAKU-RPC writes them: `content_topic` -> `contentTopic`."""
    if isinstance(value, Mapping):
        return {_camel_name(name): _camel_case(each) for name, each in value.items()}
    if isinstance(value, list):
        return [*map(_camel_case, value)]
    found: Json = value
    return found


def _camel_name(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(map(str.capitalize, rest))
