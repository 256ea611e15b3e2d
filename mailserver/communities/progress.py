"""How far a community's history is, as a person or a program is told: week by week, and on the whole.

Metrics, the status page and `community status` show the same values. They identify no peer and no channel.
"""

from dataclasses import dataclass
from enum import Enum


class CommunityRole(Enum):
    """What we are to a community."""

    OWNER = "owner"
    MEMBER = "member"


class WeekState(Enum):
    """How far the weeks of a community are. Each week has a history archive; the rest holds for it, too, or does not.

    DISTRIBUTED: a magnet link of it was posted, or is known. SEEDING: peers get it from us. FETCHED: a member has all
    of it; of what is ours, peers have got all of it from us, though not each of them.
    """

    ARCHIVED = "archived"
    DISTRIBUTED = "distributed"
    SEEDING = "seeding"
    FETCHED = "fetched"


@dataclass(frozen=True, slots=True)
class Week:
    """A range of time that has history archives: [`lower`, `upper`), in Unix seconds.

    `archives`: how many. `fetched_times`: how often each of its pieces at least was sent to peers, `fetched_at`: when
    one was last, Unix seconds; None if never, and for a member. The rest is what `WeekState` says.
    """

    lower: int
    upper: int
    archives: int
    is_distributed: bool
    is_seeding: bool
    is_fetched: bool
    fetched_times: int | None = None
    fetched_at: int | None = None

    def states(self) -> dict[WeekState, bool]:
        """Which states hold."""
        return {
            WeekState.ARCHIVED: True,
            WeekState.DISTRIBUTED: self.is_distributed,
            WeekState.SEEDING: self.is_seeding,
            WeekState.FETCHED: self.is_fetched,
        }


@dataclass(frozen=True, slots=True)
class CommunityProgress:
    """What is known of one community.

    Args:
        id: `0x` and 66 hex digits.
        weeks: in the order of time.
        archives: how many history archives there are in each state; none for an owner, who has made them.
        late_weeks: how many weeks have ended without a history archive; None for a member, or if it is not known.
        is_seeding: whether its torrent is offered; None if there is none, or it is switched off.
        announced_at: when the newest magnet link was posted, Unix seconds; None if there is none.
        peers: BitTorrent peers that are connected for it.
        uploaded: bytes of its torrents that were sent to peers since the service began.
        downloaded: bytes that were taken from them.
        problem: what is wrong, on one line; "" if nothing is.
    """

    id: str
    role: CommunityRole
    weeks: tuple[Week, ...]
    archives: dict[str, int]
    late_weeks: int | None
    is_seeding: bool | None
    announced_at: float | None
    peers: int
    uploaded: int
    downloaded: int
    problem: str

    @property
    def newest(self) -> int | None:
        """The end of the newest week that an owner has archived, or a member has fetched; None if there is none."""
        is_owner = self.role is CommunityRole.OWNER
        return max((week.upper for week in self.weeks if is_owner or week.is_fetched), default=None)

    @property
    def fetched_at(self) -> int | None:
        """When peers last got something of its weeks from us, as its owner; None if never."""
        return max((week.fetched_at for week in self.weeks if week.fetched_at is not None), default=None)
