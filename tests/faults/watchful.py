"""The real program, but for its patience: it looks at store and disk five times a second, and prunes as often.

What a test waits for would else take 15 s, and a minute.
"""

import sys

from mailserver.commands.cli import main
from mailserver.monitoring import watch
from mailserver.upkeep import pruning

watch.LOOK_INTERVAL_S = 0.2
pruning.ROUND_INTERVAL_S = 0.2
pruning.FIRST_ROUND_S = 0.0

if __name__ == "__main__":
    sys.exit(main())
