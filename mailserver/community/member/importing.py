"""From a downloaded archive to messages of the history: checked, and taken out of their wrappers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mailserver.communities.checking import check_archive
from mailserver.communities.deployed_format import deployed_message
from mailserver.communities.formats import CommunityMessage
from mailserver.communities.index import DEPLOYED, format_named
from mailserver.communities.spec_format import waku_message
from mailserver.community.member.downloads import Downloads
from mailserver.community.member.records import Content, HistoryMessage, KnownArchive
from mailserver.community.member.replacing import ArchiveRefused


@dataclass(frozen=True, slots=True)
class Loader:
    """Reads downloads for `replace_range`. `archives`: what is known of them."""

    downloads: Downloads
    archives: Mapping[Content, KnownArchive]
    network_topic: str

    def load(self, content: Content) -> Sequence[HistoryMessage]:
        """The messages of an archive, in ascending order.

        Raises:
            ArchiveRefused: it is not as the index says, or does not decode.
            DownloadLost: it is not on the disk any more.
        """
        known = self.archives[content]
        checked = check_archive(format_named(known.form, self.network_topic), known.entry, self.downloads.read(content))
        if checked.archive is None:
            raise ArchiveRefused(checked.findings)
        unwrap = _unwrap_deployed if known.form == DEPLOYED else _unwrap_sealed
        return [unwrap(message) for message in checked.archive.messages]


def _unwrap_sealed(message: CommunityMessage) -> HistoryMessage:
    whole = waku_message(message)
    return HistoryMessage(
        message.timestamp_ns,
        message.hash,
        message.content_topic,
        whole.payload,
        None,
        whole.meta or None,
        whole.version,
    )


def _unwrap_deployed(message: CommunityMessage) -> HistoryMessage:
    whole = deployed_message(message)
    return HistoryMessage(
        message.timestamp_ns,
        message.hash,
        message.content_topic,
        whole.payload,
        signer=whole.sig[1:] or None,  # without the 0x04 of an uncompressed point
    )
