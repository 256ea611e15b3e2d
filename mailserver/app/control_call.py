"""How a command calls the daemon by its control socket; `control.py`, which answers, is not loaded for that."""

import asyncio
import contextlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from mailserver.api.params import Json
from mailserver.data_dir.running import CONTROL_FILE
from mailserver.errors import ConnectionLost, MailserverError, StartupError
from mailserver.net.unix_socket import short_path

MAX_LINE_BYTES = 1024 * 1024
"""Longest text that either side may send."""

SYNC = "mailserver_sync"
SYNC_PROGRESS = "mailserver_syncProgress"
SYNC_ARCHIVE = "mailserver_syncArchive"
SYNC_ARCHIVE_PROGRESS = "mailserver_syncArchiveProgress"
STATUS = "mailserver_status"

OnNotification = Callable[[Json], None]
"""Receives the params of a notification."""


class CallFailed(MailserverError):
    """The daemon answered a call with an error."""


async def call_daemon(data_dir: Path, method: str, params: Mapping[str, Json], on_notification: OnNotification) -> Any:
    """Make one call to the daemon that uses a data directory; return its result.

    Raises:
        StartupError: no daemon listens there.
        CallFailed: the daemon answered with an error.
        ConnectionLost: the daemon stopped before it answered.
    """
    try:
        with short_path(data_dir / CONTROL_FILE) as path:
            reader, writer = await asyncio.open_unix_connection(path, limit=MAX_LINE_BYTES)
    except OSError as error:
        raise StartupError(f"no mailserver answers at {data_dir / CONTROL_FILE}: {error.strerror or error}") from error
    try:
        request = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        writer.write(f"{json.dumps(request)}\n".encode())
        while line := await read_line(reader):
            answer = json.loads(line)
            if "method" in answer:
                on_notification(answer["params"])
            elif "error" in answer:
                raise CallFailed(str(answer["error"]["message"]))
            else:
                return answer["result"]
        raise ConnectionLost(None, "the mailserver stopped")
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


async def read_line(reader: asyncio.StreamReader) -> bytes:
    """Read a line. Empty at the end, or if the other side breaks off or sends too long a line."""
    try:
        return await reader.readuntil(b"\n")
    except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, ConnectionError):
        return b""
