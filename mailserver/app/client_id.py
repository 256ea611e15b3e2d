"""Our client ID. Commands that only connect say it too, and need nothing else of the daemon."""

import platform
import sys

from mailserver import __version__

CLIENT_ID = f"waku-mailserver/v{__version__}/{sys.platform}/python{platform.python_version()}"
"""In Hello (rlpx.md "Hello")."""
