"""Whether a mailserver runs on a data directory: its control socket answers."""

import socket
from pathlib import Path

from mailserver.data_dir.folder import KEY_FILE
from mailserver.net.unix_socket import short_path

CONTROL_FILE = "control"


def is_running(data_dir: Path) -> bool:
    """Whether a daemon listens in a data directory, be it ours or another user's; its `sync.json` is written then."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asking:
        try:
            with short_path(data_dir / CONTROL_FILE) as path:
                asking.connect(path)
        except PermissionError:
            return True
        except OSError:
            return False
        return True


def was_run(data_dir: Path) -> bool:
    """Whether it is a mailserver's. A store without one is a copy."""
    return (data_dir / KEY_FILE).exists()
