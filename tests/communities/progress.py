"""Two communities, one owned and one joined, as metrics, the status page and `community status` are told of them."""

from mailserver.communities.progress import CommunityProgress, CommunityRole, Week
from mailserver.communities.ranges import PERIOD_S

FIRST = 2858 * PERIOD_S

OWNED = CommunityProgress(
    id="0x02" + "11" * 32,
    role=CommunityRole.OWNER,
    weeks=(
        Week(FIRST, FIRST + PERIOD_S, 1, True, True, True, 3, 1_729_900_000),
        Week(FIRST + PERIOD_S, FIRST + 2 * PERIOD_S, 2, False, True, False, 0, None),
    ),
    archives={},
    late_weeks=1,
    is_seeding=True,
    announced_at=1_790_000_000.0,
    peers=3,
    uploaded=5000,
    downloaded=0,
    problem="",
)
JOINED = CommunityProgress(
    id="0x03" + "22" * 32,
    role=CommunityRole.MEMBER,
    weeks=(
        Week(FIRST, FIRST + PERIOD_S, 1, True, True, True),
        Week(FIRST + PERIOD_S, FIRST + 2 * PERIOD_S, 2, True, False, False),
    ),
    archives={"missing": 1, "downloaded": 0, "imported": 1, "refused": 1},
    late_weeks=None,
    is_seeding=True,
    announced_at=None,
    peers=0,
    uploaded=60,
    downloaded=7000,
    problem="no piece of torrent 01 came for 120 s",
)
