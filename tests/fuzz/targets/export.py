"""The archive's own records."""

from collections.abc import Callable, Iterator

from mailserver.archive.errors import ArchiveError
from mailserver.archive.manifest import decode_record, decode_records, decode_settings
from tests.fuzz.choices import Choices
from tests.fuzz.target import Target
from tests.fuzz.targets.disk import record_seeds, text_of

ARCHIVE_SETTINGS = {"version": 1, "partition_by": "topic-prefix", "prefix_digits": 2}
ARCHIVE_RECORD = {
    "version": 1,
    "period": "2026-11-20",
    "run": "20261121T031700Z-1",
    "days": {
        "2026-11-20": {
            "rows": 5,
            "bytes": 6,
            "checksum": "00000000000000ff",
            "created_min": 1,
            "created_max": 2,
            "stores": {"ab": 70},
            "quarantined": 0,
        }
    },
    "files": [["topic=00/part.parquet", 10, 5]],
    "replaces": [["2026-11-20", "run"]],
    "snapshot": False,
}

DECODERS: tuple[tuple[Callable[[str, str], object], object], ...] = (
    (decode_settings, ARCHIVE_SETTINGS),
    (decode_record, ARCHIVE_RECORD),
    (decode_records, {"version": 1, "records": [ARCHIVE_RECORD]}),
)


def fuzz_records(data: bytes) -> None:
    """The archive's own records are read, or refused."""
    choices = Choices(data)
    decode, sound = choices.pick(DECODERS)
    text = text_of(choices.rest(), sound).decode("utf-8", "replace")
    try:
        decode(text, "record")
    except ArchiveError as error:
        assert str(error).isprintable()


def seeds() -> Iterator[bytes]:
    """Each record, in each state."""
    for number, (_, sound) in enumerate(DECODERS):
        for seed in record_seeds(sound)():
            yield bytes([number]) + seed


TARGETS = {"records": Target(fuzz_records, seeds)}
