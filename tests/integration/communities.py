"""`waku-mailserver community serve` as a process of its own, for the length of a `with`."""

import contextlib
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.integration.daemons import PROGRAM, Daemon, assert_no_traceback, own_environment

METRICS = ("--metrics", "127.0.0.1:0")
"""What has it serve metrics on a free port."""


@contextlib.contextmanager
def running_communities(data_dir: Path, *flags: str, program: Sequence[str] = PROGRAM) -> Iterator[Daemon]:
    """Serve the communities of a data directory on a free port of loopback; kill the process at the end, if it still
    runs.

    Args:
        flags: more of `waku-mailserver community serve`.
        program: what runs `waku-mailserver`, if not this Python alone.
    """
    arguments = ["community", "serve", "--data-dir", str(data_dir), "--torrent-listen", "127.0.0.1:0", *flags]
    process = subprocess.Popen(
        [*program, *arguments],
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env=own_environment(),
    )
    service = Daemon(process, data_dir)
    try:
        service.wait_for_line("torrents listening port=")
        yield service
    finally:
        service.end()
    assert_no_traceback(service.log)
