"""What a control node publishes, made by the same formats: the files `data` and `index` of a torrent."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from mailserver.codec.keys import PrivateKey
from mailserver.communities.channels import community_id, id_text
from mailserver.communities.formats import CommunityMessage, EncodedArchive, Format, TimeRange
from mailserver.communities.index import IndexEntry, encode_index, entry_of
from mailserver.communities.spec_format import SpecFormat
from mailserver.ids.envelopes import NS
from mailserver.ids.waku_message import WakuMessage
from mailserver.torrents.info import TorrentInfo
from mailserver.torrents.making import make_torrent

NETWORK_TOPIC = "/waku/2/default-waku/proto"
SPEC_FORMAT = SpecFormat(NETWORK_TOPIC)
TOPICS = tuple(f"/waku/1/0x0000000{number}/rfc26" for number in range(1, 4))
OWNER = PrivateKey(bytes([7]) * 32)
FOREIGNER = PrivateKey(bytes([8]) * 32)
NAME = id_text(community_id(OWNER.public_key))
"""Of torrents, if a test says nothing else."""


def sealed(second: int, text: str = "", topic: str = TOPICS[0], form: SpecFormat = SPEC_FORMAT) -> CommunityMessage:
    """A message; another text makes it another one."""
    return form.message(WakuMessage(f"{second} {text}".encode(), topic, 1, second * NS, b"meta"))


@dataclass
class Published:
    """The files of a community as they grow. `entries`: what the index lists."""

    form: Format = SPEC_FORMAT
    data: bytes = b""
    entries: list[IndexEntry] = field(default_factory=list)

    def add(self, time_range: TimeRange, messages: Iterable[CommunityMessage]) -> list[IndexEntry]:
        """Append the archives of a range; return their entries."""
        return [self.append(encoded) for encoded in self.form.encode_archives(time_range, TOPICS, sorted(messages))]

    def append(self, encoded: EncodedArchive) -> IndexEntry:
        """Append an archive."""
        entry = entry_of(self.form, encoded, len(self.data))
        self.data += encoded.data
        self.entries.append(entry)
        return entry

    def write(self, folder: Path, name: str = NAME) -> TorrentInfo:
        """Write the files, and make their torrent."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "data").write_bytes(self.data)
        (folder / "index").write_bytes(encode_index(self.form, self.entries))
        return make_torrent(folder, name)


def published(weeks: Mapping[TimeRange, Sequence[CommunityMessage]], form: Format = SPEC_FORMAT) -> Published:
    """The files of some ranges."""
    made = Published(form)
    for time_range, messages in weeks.items():
        made.add(time_range, messages)
    return made
