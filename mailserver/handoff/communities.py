"""What `community serve` tells the daemon, which shows it on the status page, and `community status`.

JSON, written every few seconds beside the communities. Who reads it tells by `at` whether the service still runs.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mailserver.communities.progress import CommunityProgress, CommunityRole, Week
from mailserver.errors import MailserverError
from mailserver.files import write_atomically
from mailserver.handoff.json_records import (
    MAX_RECORD_BYTES,
    Record,
    count_of,
    field_of,
    number_of,
    number_or_none,
    read_record,
)

SERVED_FILE = "served.json"
"""In the folder of the communities."""

VERSION = 2

MAX_SHOWN = 100
MAX_WEEKS = 60
"""How many communities the record has, and how many weeks of each, the newest: a year, and some. So it stays below
MAX_RECORD_BYTES, whatever is served."""

MAX_PROBLEM_CHARACTERS = 300

STALE_S = 60.0
"""An older record is that of a service that does not run any more: it is written every 15 s."""


class ServedError(MailserverError):
    """The record cannot be read or understood. `str()` is one line for the operator."""


@dataclass(frozen=True, slots=True)
class Served:
    """What was served at a moment, `at`, in Unix seconds."""

    at: float
    communities: tuple[CommunityProgress, ...]

    def is_current(self, now: float) -> bool:
        """Whether the service runs."""
        return abs(now - self.at) <= STALE_S


def write_served(folder: Path, communities: Sequence[CommunityProgress], at: float) -> None:
    """Write the record. It is there, or the one before is.

    Args:
        folder: of the communities.
    Raises:
        OSError: it cannot be written.
    """
    shown = [_encode(each) for each in communities[:MAX_SHOWN]]
    text = json.dumps({"version": VERSION, "at": at, "communities": shown}, separators=(",", ":"))
    assert len(text) <= MAX_RECORD_BYTES
    write_atomically(folder / SERVED_FILE, text + "\n")


def read_served(folder: Path) -> Served | None:
    """Read the record; None if nothing was ever served.

    Raises:
        ServedError: it cannot be read.
    """
    return read_record(
        folder / SERVED_FILE, _decode, version=VERSION, what="record of served communities", error=ServedError
    )


def _encode(community: CommunityProgress) -> dict[str, object]:
    return {
        "id": community.id,
        "role": community.role.value,
        "weeks": [
            [
                *(week.lower, week.upper, week.archives),
                *(week.is_distributed, week.is_seeding, week.is_fetched),
                *(week.fetched_times, week.fetched_at),
            ]
            for week in community.weeks[-MAX_WEEKS:]
        ],
        "archives": community.archives,
        "late_weeks": community.late_weeks,
        "is_seeding": community.is_seeding,
        "announced_at": community.announced_at,
        "peers": community.peers,
        "uploaded": community.uploaded,
        "downloaded": community.downloaded,
        "problem": community.problem[:MAX_PROBLEM_CHARACTERS],
    }


def _decode(record: Record) -> Served:
    communities = record.get("communities")
    if not isinstance(communities, list) or len(communities) > MAX_SHOWN:
        raise ValueError("communities is no list of communities")
    return Served(number_of("at", record.get("at")), tuple(map(_community, communities)))


def _community(record: object) -> CommunityProgress:
    if not isinstance(record, dict):
        raise ValueError("a community is no object")
    weeks = record.get("weeks")
    if not isinstance(weeks, list) or len(weeks) > MAX_WEEKS:
        raise ValueError("weeks is no list of weeks")
    late_weeks = record.get("late_weeks")
    archives = field_of(record, "archives", dict)
    return CommunityProgress(
        id=field_of(record, "id", str),
        role=CommunityRole(record.get("role")),
        weeks=tuple(map(_week, weeks)),
        archives={str(state): count_of(str(state), count) for state, count in archives.items()},
        late_weeks=None if late_weeks is None else count_of("late_weeks", late_weeks),
        is_seeding=_flag_or_none("is_seeding", record.get("is_seeding")),
        announced_at=number_or_none(record, "announced_at"),
        peers=count_of("peers", record.get("peers")),
        uploaded=count_of("uploaded", record.get("uploaded")),
        downloaded=count_of("downloaded", record.get("downloaded")),
        problem=field_of(record, "problem", str),
    )


def _week(values: object) -> Week:
    match values:
        case [lower, upper, archives, bool(is_distributed), bool(is_seeding), bool(is_fetched), times, at]:
            return Week(
                count_of("the beginning of a week", lower),
                count_of("the end of a week", upper),
                count_of("the archives of a week", archives),
                is_distributed,
                is_seeding,
                is_fetched,
                None if times is None else count_of("how often a week was fetched", times),
                None if at is None else count_of("when a week was fetched", at),
            )
    raise ValueError("a week is not one")


def _flag_or_none(name: str, value: object) -> bool | None:
    if value is not None and not isinstance(value, bool):
        raise ValueError(f"{name} is neither true nor false")
    return value
