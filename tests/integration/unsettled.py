"""The real program, but its gateway looks into the store just after it was told that it missed something, and no later.

Else it does so for ten seconds after its start, and a test would not know why it has found what it pushes.
"""

import sys

from mailserver.commands.cli import main
from mailserver.gateway import live

live.SETTLE_S = 0.0

if __name__ == "__main__":
    sys.exit(main())
