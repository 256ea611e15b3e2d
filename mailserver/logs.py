"""How the daemon logs: one line per event, to stderr, times in UTC."""

import logging
import time


def set_up_logging(level: str, package: str = "mailserver") -> None:
    """Log events of a package of ours from `level` on."""
    formatter = logging.Formatter("%(asctime)s.%(msecs)03dZ %(levelname)-7s %(message)s", "%Y-%m-%dT%H:%M:%S")
    formatter.converter = time.gmtime
    handler = logging.StreamHandler()
    handler.setFormatter(formatter)
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    # Only our own events follow the level: aiosqlite logs the parameters of its statements at debug.
    logging.getLogger(package).setLevel(level.upper())
