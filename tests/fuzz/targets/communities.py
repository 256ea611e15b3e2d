"""What a member of a community reads: history archives, indexes, magnet links."""

from collections.abc import Iterator
from dataclasses import replace

from mailserver.codec.keccak import keccak256
from mailserver.codec.protobuf import write_bytes
from mailserver.communities.application import open_application_message, sign_application_message
from mailserver.communities.channels import community_id
from mailserver.communities.checking import check_archive, check_index
from mailserver.communities.choosing import All, Between, Latest, chosen
from mailserver.communities.deployed_format import DeployedFormat, deployed_message, message
from mailserver.communities.formats import PIECE_BYTES, CommunityMessage, EntryFields, Format, HistoryArchive, TimeRange
from mailserver.communities.index import HistoryIndex, IndexEntry, decode_index, encode_index
from mailserver.communities.links import COMMUNITY_ARCHIVE_MAGNETLINK, encode_link, open_link
from mailserver.communities.spec_format import padding_field, waku_message
from mailserver.errors import DecodeError
from tests.communities.making import SPEC, WEEK, community, history, messages
from tests.data import load
from tests.fuzz.choices import Choices
from tests.fuzz.target import Target

FORMS: tuple[Format, ...] = (SPEC, DeployedFormat())
COMMUNITY = community()
TOPICS = COMMUNITY.content_topics
KEY = COMMUNITY.key
VECTORS = load("communities/messages.json")

# History archives


def fuzz_archive(data: bytes) -> None:
    """What decodes is written and read again, if it is what may be written; what a member checks raises nothing."""
    if not data:
        return
    form, padding, encoded = FORMS[data[0] & 1], data[0] >> 1, data[1:]
    for outside in {0, padding}:
        entry = IndexEntry("0x", WEEK, TOPICS, 0, len(encoded), outside)
        checked = check_archive(form, entry, encoded)
        assert (checked.archive is None) == bool(checked.findings)
        try:
            found = form.decode_archive(encoded, outside)
        except DecodeError:
            assert checked.archive is None
            continue
        for each in found.messages:
            again = SPEC.message(waku_message(each)) if form is SPEC else message(deployed_message(each))
            assert again[:3] == each[:3] or not _has_hash(form, each)
        _written_again(form, found)


def _has_hash(form: Format, found: CommunityMessage) -> bool:
    """Whether the hash does not depend on how the message was encoded."""
    return form is SPEC or len(deployed_message(found).hash) == len(found.hash)


def _written_again(form: Format, found: HistoryArchive) -> None:
    ordered = sorted({each.hash: each for each in found.messages}.values())
    may = [each for each in ordered if found.time_range.has(each.timestamp_ns) and each.content_topic in _topics(found)]
    for encoded in form.encode_archives(found.time_range, found.content_topics, may):
        assert len(encoded.data) % PIECE_BYTES == 0
        again = form.decode_archive(encoded.data, encoded.padding)
        assert again == HistoryArchive(found.time_range, tuple(sorted(_topics(found))), (*may,))


def _topics(found: HistoryArchive) -> set[str]:
    return {*found.content_topics}


def archive_seeds() -> Iterator[bytes]:
    """Small ones of each format: all but the padding, and with a little of it."""
    for place, form in enumerate(FORMS):
        for count in (0, 1, 3):
            found = messages(form, COMMUNITY, history(COMMUNITY, WEEK, 1, count)) if count else []
            for encoded in form.encode_archives(WEEK, TOPICS, found):
                yield bytes([place]) + encoded.data.rstrip(b"\0")[: None if form is not SPEC else -4]
                yield bytes([place + 2 * 5]) + encoded.data.rstrip(b"\0") + bytes(5)
    yield b"\0" + bytes.fromhex(VECTORS["spec"]["archive_begin"])[:-4] + padding_field(PIECE_BYTES - 3 - 60)[:60]
    yield b"\1" + bytes.fromhex(VECTORS["deployed"]["archive"])


# Indexes


def fuzz_index(data: bytes) -> None:
    """An index that decodes is written and read again; whatever it says, checking and choosing raise nothing.

    Besides the bytes themselves, entries of them are listed under their right ids, which chance would never find.
    """
    _read(data)
    choices, values = Choices(data), list[bytes]()
    while choices.more:
        values.append(choices.take(255))
    _read(b"".join(write_bytes(1, write_bytes(1, _id(each)) + write_bytes(2, each)) for each in values))


def _id(value: bytes) -> bytes:
    return f"0x{keccak256(value).hex()}".encode()


def _read(data: bytes) -> None:
    try:
        index = decode_index(data)
    except DecodeError:
        return
    form = next(form for form in FORMS if form.name == index.format_name)
    entries = []
    for entry in index.entries:
        fields = EntryFields(entry.time_range, entry.content_topics, entry.offset, entry.size, entry.padding)
        entries.append(replace(entry, id=_id(form.encode_entry(fields)).decode()))
    again = decode_index(encode_index(form, entries))
    assert set(again.entries) == set(entries)
    assert encode_index(form, again.entries) == encode_index(form, reversed(again.entries))
    _check(again)


def _check(index: HistoryIndex) -> None:
    end = max((entry.end for entry in index.entries), default=0)
    if not check_index(index, end):
        assert sum(entry.size for entry in index.entries) == end
        assert [piece for entry in index.entries for piece in entry.pieces] == [*range(end // PIECE_BYTES)]
    for choice in (All(), Latest(), Between(WEEK), Between(TimeRange(0, 2**40))):
        assert set(chosen(index.entries, choice)) <= set(index.entries)


def index_seeds() -> Iterator[bytes]:
    """Those of another encoder, as they are and by their entries."""
    for name in ("spec", "deployed"):
        yield bytes.fromhex(VECTORS[name]["index"])
        entries = [bytes.fromhex(entry) for entry in VECTORS[name]["entries"]]
        yield b"".join(bytes([len(entry)]) + entry for entry in entries)


# Magnet links


def fuzz_link(data: bytes) -> None:
    """Nothing is a link that the community has not signed; what it has signed is read, or refused as malformed."""
    others = community_id(community(2).key.public_key)
    for message_ in (data, sign_application_message(data, COMMUNITY_ARCHIVE_MAGNETLINK, KEY)):
        try:
            link = open_link(message_, COMMUNITY.id)
        except DecodeError:
            continue
        assert open_application_message(message_).signer == KEY.public_key
        assert open_link(encode_link(link, KEY), COMMUNITY.id) == link
        try:
            open_link(message_, others)
        except DecodeError:
            continue
        raise AssertionError("a link is that of two communities")


def link_seeds() -> Iterator[bytes]:
    """One of another encoder, in each of its wrappings."""
    for part in ("payload", "message", "wrapped"):
        yield bytes.fromhex(VECTORS["link"][part])


TARGETS = {
    "archive": Target(fuzz_archive, archive_seeds),
    "index": Target(fuzz_index, index_seeds),
    "link": Target(fuzz_link, link_seeds),
}
