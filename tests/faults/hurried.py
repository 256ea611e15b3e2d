"""`python -m tests.faults.hurried FACTOR ..`: `waku-mailserver ..` that waits a FACTOR as long for whatever is silent.

A short form of a test cannot wait for half a minute again and again, and still less for what is done once a minute:
that is done by the square of it more often. Only times change; at the factor 1, nothing does.
"""

import sys
from types import ModuleType

from mailserver.catchup import comparing, outages, retry
from mailserver.client import mail_client as client
from mailserver.commands import cli
from mailserver.net import dialer
from mailserver.rlpx import liveness

TIMES: tuple[tuple[ModuleType, tuple[str, ...]], ...] = (
    (liveness, ("PING_INTERVAL_S", "IDLE_TIMEOUT_S", "SEEN_RECENTLY_S")),
    (client, ("ANSWER_TIMEOUT_S",)),
    (dialer, ("DIAL_TIMEOUT_S", "FIRST_BACKOFF_S", "MAX_BACKOFF_S", "STABLE_S")),
    (retry, ("MIN_BACKOFF_S", "MAX_BACKOFF_S")),
)

if __name__ == "__main__":
    factor = float(sys.argv.pop(1))
    for module, names in TIMES:
        for name in names:
            setattr(module, name, getattr(module, name) * factor)
    outages.BACK_INTERVAL_S *= factor**2
    outages.AWAY_INTERVAL_S *= factor**2
    outages.STILL_S *= factor
    comparing.COMPARE_INTERVAL_S *= factor**2
    sys.exit(cli.main())
