"""What the owner has said of a community: its channels with the times in which they held, its format, whether it is on.

A channel that is switched off keeps its place: what was posted while it held belongs to the history. So does one that
is added later, from the time on that is named, or from the beginning. All times are Unix seconds. No I/O.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from mailserver.communities.channels import Channel
from mailserver.communities.formats import MAX_TOPICS, Format, TimeRange
from mailserver.communities.index import DEPLOYED, SPEC, format_named
from mailserver.errors import DecodeError, MailserverError
from mailserver.handoff.json_records import Record, count_of, field_of
from mailserver.ids.envelopes import topic_of
from mailserver.waku.envelope import MAX_U32, Topic

RECORD_VERSION = 1

MAX_CHANNELS = MAX_TOPICS
"""Most channels of a community, those included that were switched off: a history archive lists no more topics."""

MAX_NAME_CHARACTERS = 200

KEY_BYTES = 32


class CommunityError(MailserverError):
    """A community of ours cannot be read, written, or changed in this way. `str()` is one line for the operator."""


@dataclass(frozen=True, slots=True)
class OwnedChannel:
    """A channel, and the time in which it holds: from `since` until just before `until`; None is no bound.

    `key`: opens its messages, which only the deployed format needs.
    """

    name: str
    content_topic: str
    key: bytes | None = field(default=None, repr=False)
    since: int | None = None
    until: int | None = None

    @property
    def topic(self) -> Topic:
        """The topic of its envelopes."""
        return topic_of(self.content_topic)

    def held_in(self, time_range: TimeRange) -> bool:
        """Whether it held at some moment of a range."""
        return (self.since is None or self.since < time_range.upper) and (
            self.until is None or self.until > max(time_range.lower, self.since or 0)
        )

    def holds_at(self, second: int) -> bool:
        """Whether what was created in this second belongs to the channel."""
        return (self.since is None or self.since <= second) and (self.until is None or second < self.until)


@dataclass(frozen=True, slots=True)
class Community:
    """What `community.json` says. `registered`: when the owner made it here; `network_topic`: of its message hashes."""

    name: str
    format_name: str
    network_topic: str
    registered: int
    channels: tuple[OwnedChannel, ...] = ()
    is_enabled: bool = True

    @property
    def format(self) -> Format:
        """The format of its history archives."""
        return format_named(self.format_name, self.network_topic)

    @property
    def topics(self) -> frozenset[Topic]:
        """The topics of all its channels, those included that are switched off."""
        return frozenset(channel.topic for channel in self.channels)

    @property
    def keys(self) -> Mapping[Topic, tuple[bytes, ...]]:
        """What opens the messages of each topic: the keys of all channels that had it, the newest one first. None in
        the format of the specification, whose messages stay sealed."""
        if self.format_name != DEPLOYED:
            return {}
        keys: dict[Topic, list[bytes]] = defaultdict(list)
        for channel in reversed(self.channels):
            if channel.key is not None and channel.key not in keys[channel.topic]:
                keys[channel.topic].append(channel.key)
        return {topic: tuple(each) for topic, each in keys.items()}

    def content_topics(self, time_range: TimeRange) -> tuple[str, ...]:
        """Those of the channels that held in a range, sorted: what its history archives list."""
        return tuple(sorted({each.content_topic for each in self.channels if each.held_in(time_range)}))

    def with_channel(self, channel: Channel, *, since: int | None = None) -> "Community":
        """Add a channel, or change the name and key of the one that has its topic and holds now.

        Raises:
            CommunityError: another channel that holds has the name, or a key is missing, or there are too many.
        """
        _check_name(channel.name)
        self._check_key(channel)
        try:
            topic_of(channel.content_topic)
        except DecodeError as error:
            raise CommunityError(f"channel {channel.name}: {error}") from error
        kept = []
        added = OwnedChannel(channel.name, channel.content_topic, channel.key, since)
        for each in self.channels:
            if each.until is None and each.content_topic == channel.content_topic:
                added = replace(added, since=each.since if since is None else since)
                continue
            if each.until is None and each.name == channel.name:
                raise CommunityError(f"community {self.name} already has a channel {channel.name}")
            kept.append(each)
        if len(kept) >= MAX_CHANNELS:
            raise CommunityError(f"community {self.name} has {MAX_CHANNELS} channels: there can be no more")
        return replace(self, channels=(*kept, added))

    def without_channel(self, name: str, *, at: int) -> "Community":
        """Switch a channel off from a moment on, which names it or its content topic.

        Raises:
            CommunityError: no channel that holds is called so, or it began later.
        """
        found = [each for each in self.channels if each.until is None and name in (each.name, each.content_topic)]
        if not found:
            raise CommunityError(f"community {self.name} has no channel {name} that is on")
        if (found[0].since or 0) > at:
            raise CommunityError(f"channel {name} begins later than it is to end")
        ended = replace(found[0], until=at)
        return replace(self, channels=tuple(ended if each is found[0] else each for each in self.channels))

    def encode(self) -> dict[str, Any]:
        """The record, for JSON."""
        return {
            "version": RECORD_VERSION,
            "name": self.name,
            "format": self.format_name,
            "network_topic": self.network_topic,
            "registered": self.registered,
            "enabled": self.is_enabled,
            "channels": [_encode_channel(each) for each in self.channels],
        }

    @classmethod
    def decode(cls, record: Record) -> "Community":
        """Read a record.

        Raises:
            ValueError: it is none.
        """
        form, name = field_of(record, "format", str), field_of(record, "name", str)
        if form not in (SPEC, DEPLOYED):
            raise ValueError(f"format is {form!r}")
        listed = record.get("channels")
        if not isinstance(listed, list) or len(listed) > MAX_CHANNELS:
            raise ValueError("channels are no list of channels")
        enabled = record.get("enabled")
        if not isinstance(enabled, bool):
            raise ValueError(f"enabled is {enabled!r}")
        return cls(
            name,
            form,
            field_of(record, "network_topic", str),
            count_of("registered", record.get("registered")),
            tuple(map(_decode_channel, listed)),
            enabled,
        )

    def _check_key(self, channel: Channel) -> None:
        if channel.key is not None and len(channel.key) != KEY_BYTES:
            raise CommunityError(f"the key of channel {channel.name} is not {KEY_BYTES} bytes long")
        if channel.key is None and self.format_name == DEPLOYED:
            raise CommunityError(f"channel {channel.name} needs a key: the deployed format has opened messages")


def new_community(name: str, format_name: str, network_topic: str, now: int) -> Community:
    """A community without channels.

    Raises:
        CommunityError: the name or the format is none.
    """
    _check_name(name)
    if format_name not in (SPEC, DEPLOYED):
        raise CommunityError(f"{format_name!r} is no format: {SPEC} or {DEPLOYED}")
    return Community(name, format_name, network_topic, now)


def _check_name(name: str) -> None:
    if not 0 < len(name) <= MAX_NAME_CHARACTERS or not name.isprintable():
        raise CommunityError(f"{name[:MAX_NAME_CHARACTERS]!r} is no name: 1 to {MAX_NAME_CHARACTERS} characters")


def _encode_channel(channel: OwnedChannel) -> dict[str, Any]:
    return {
        "name": channel.name,
        "content_topic": channel.content_topic,
        "key": None if channel.key is None else channel.key.hex(),
        "since": channel.since,
        "until": channel.until,
    }


def _decode_channel(record: object) -> OwnedChannel:
    if not isinstance(record, Mapping):
        raise ValueError("a channel is no object")
    key = record.get("key")
    secret = None if key is None else bytes.fromhex(field_of(record, "key", str))
    if secret is not None and len(secret) != KEY_BYTES:
        raise ValueError("the key of a channel has another length")
    content_topic = field_of(record, "content_topic", str)
    try:
        topic_of(content_topic)
    except DecodeError as error:
        raise ValueError(str(error)) from error
    return OwnedChannel(field_of(record, "name", str), content_topic, secret, *_times(record))


def _times(record: Record) -> Iterator[int | None]:
    for name in ("since", "until"):
        value = record.get(name)
        if value is not None and count_of(name, value) > MAX_U32:
            raise ValueError(f"{name} is {value!r}")
        yield None if value is None else count_of(name, value)
