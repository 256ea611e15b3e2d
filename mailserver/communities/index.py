"""The index of history archives (61/STATUS "WakuMessageArchiveIndex"): a map of ids to what is said of each archive.

The id is `0x` and the Keccak-256 of the encoded entry. It says where an archive lies, and nothing of what is in it: two
with the same range, offset and size have the same id. Entries are written in the order of their offsets.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from mailserver.codec.keccak import keccak256
from mailserver.codec.protobuf import WireType, read_fields, write_bytes
from mailserver.communities.deployed_format import DeployedFormat
from mailserver.communities.formats import PIECE_BYTES, EncodedArchive, EntryFields, Format, TimeRange
from mailserver.communities.metadata import MAX_METADATA_BYTES
from mailserver.communities.spec_format import SpecFormat
from mailserver.errors import DecodeError
from mailserver.waku2 import fields

MAX_INDEX_BYTES = 16 * 1024 * 1024
MAX_ENTRIES = 20_000
"""How many archives an index may list: of 100 years, three a week."""

LATE_SHARE = 2
"""What comes late for a range that has an archive may use half of either bound. Anybody can post envelopes that claim
to be of any week, and each may be one more archive; what is left is for new weeks: two hundred years of them."""

MAX_ID_BYTES = 100
"""Of an id. One has 66."""

SPEC, DEPLOYED = "spec", "deployed"


@dataclass(frozen=True, slots=True)
class IndexEntry:
    """What an index says of one history archive.

    `id`: as it stands in the index, `0x` and 64 hex digits. `offset`: where in `data` it begins, in bytes; `size`:
    its length with all padding; `padding`: as in EncodedArchive.
    """

    id: str
    time_range: TimeRange
    content_topics: tuple[str, ...]
    offset: int
    size: int
    padding: int

    @property
    def end(self) -> int:
        """Where in `data` it ends."""
        return self.offset + self.size

    @property
    def pieces(self) -> range:
        """The pieces of the torrent that hold it: `data` is the torrent's first file."""
        return range(self.offset // PIECE_BYTES, -(-self.end // PIECE_BYTES))


@dataclass(frozen=True, slots=True)
class HistoryIndex:
    """A decoded index. `format_name`: SPEC or DEPLOYED. `entries`: in the order of their offsets."""

    format_name: str
    entries: tuple[IndexEntry, ...]


class IndexRoom:
    """How much room an index has for further archives, within the bounds that members check."""

    def __init__(self, form: Format, entries: Iterable[IndexEntry]) -> None:
        listed = [*entries]
        self._form = form
        self._entries = len(listed)
        self._bytes = len(encode_index(form, listed))

    @property
    def takes_late(self) -> bool:
        """Whether there is room for what comes late."""
        return self._entries < MAX_ENTRIES // LATE_SHARE and self._bytes < MAX_INDEX_BYTES // LATE_SHARE

    def add(self, entry: IndexEntry, *, is_late: bool) -> bool:
        """Use the room for an entry, if there is enough; return whether there was.

        Args:
            is_late: its range has an archive already.
        """
        share = LATE_SHARE if is_late else 1
        size = self._bytes + len(encode_index(self._form, [entry]))
        if self._entries >= MAX_ENTRIES // share or size > MAX_INDEX_BYTES // share:
            return False
        self._entries, self._bytes = self._entries + 1, size
        return True


def format_named(name: str, network_topic: str) -> Format:
    """A format by its name.

    Raises:
        DecodeError: there is none of this name.
    """
    match name:
        case "spec":
            return SpecFormat(network_topic)
        case "deployed":
            return DeployedFormat()
        case _:
            raise DecodeError("format of history archives is not known", got=name)


def entry_of(form: Format, encoded: EncodedArchive, offset: int) -> IndexEntry:
    """The entry of an archive that is appended to `data` at `offset`: the sum of the sizes of all before."""
    entry = EntryFields(encoded.time_range, encoded.content_topics, offset, len(encoded.data), encoded.padding)
    return IndexEntry(_id(form.encode_entry(entry)), *entry)


def encode_index(form: Format, entries: Iterable[IndexEntry]) -> bytes:
    """Encode an index: the same for the same entries, in whatever order they come."""
    return b"".join(
        write_bytes(1, write_bytes(1, entry.id.encode()) + write_bytes(2, form.encode_entry(_fields(entry))))
        for entry in sorted(entries, key=lambda each: (each.offset, each.id))
    )


def decode_index(data: bytes) -> HistoryIndex:
    """Decode an index of either format, and find out which.

    Raises:
        DecodeError: it parses in neither, lists nothing though it is not empty (deployed indexes can be encrypted), or
            a bound is passed.
    """
    if len(data) > MAX_INDEX_BYTES:
        raise DecodeError("index is too long", got=len(data), limit=MAX_INDEX_BYTES)
    values = _values(data)
    if not values and data:
        raise DecodeError("index lists no history archives: it may be encrypted", got=len(data))
    deployed = _is_deployed(next(iter(values.values()), b""))
    form: DeployedFormat | SpecFormat = DeployedFormat() if deployed else SpecFormat("")
    for name, value in values.items():
        if name != _id(value):
            raise DecodeError("id of a history archive is not that of its entry", got=name)
    found = form.decode_entries(values.values())
    entries = [IndexEntry(name, *entry) for name, entry in zip(values, found, strict=True)]
    entries.sort(key=lambda entry: (entry.offset, entry.id))
    return HistoryIndex(form.name, tuple(entries))


def _values(data: bytes) -> dict[str, bytes]:
    """The encoded entries by their ids. If an id comes twice, the last one counts, as in every map of protobuf."""
    values: dict[str, bytes] = {}
    for number, _, value in read_fields(data):
        if number != 1:
            continue
        if not isinstance(value, bytes):
            raise DecodeError("entry of an index has another wire type")
        found = fields.read(value, _MAP_ENTRY)
        values[found.text("id") or ""] = found.data("entry") or b""
        if len(values) > MAX_ENTRIES:
            raise DecodeError("index lists too many history archives", limit=MAX_ENTRIES)
    return values


def _is_deployed(encoded: bytes) -> bool:
    """Whether field 4 counts bytes: no archive has so many pieces as one piece has bytes. The last one counts."""
    sizes = [
        value
        for number, wire_type, value in read_fields(encoded)
        if number == 4 and wire_type is WireType.VARINT and isinstance(value, int)
    ]
    return bool(sizes) and sizes[-1] >= PIECE_BYTES


_MAP_ENTRY = {1: fields.data("id", MAX_ID_BYTES), 2: fields.data("entry", 2 * MAX_METADATA_BYTES)}


def _fields(entry: IndexEntry) -> EntryFields:
    return EntryFields(entry.time_range, entry.content_topics, entry.offset, entry.size, entry.padding)


def _id(encoded: bytes) -> str:
    return f"0x{keccak256(encoded).hex()}"
