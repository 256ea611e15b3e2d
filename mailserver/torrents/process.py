"""The torrent process: `python -m mailserver.torrents.process`, which the service starts, and asks by frames.

It ends when it is told to, and at once when the service is gone: what it had not written down, it finds on disk.
"""

import asyncio
import contextlib
import os
import signal
import socket
import sys

from mailserver.torrents.errors import CannotListen, TorrentFault
from mailserver.torrents.frames import Frame, encode_frame, read_frame
from mailserver.torrents.session import TorrentSession
from mailserver.torrents.settings import TorrentSettings
from mailserver.torrents.worker import TorrentRequests

_ALERT_BYTES = 4096


def main() -> None:
    """Run the process."""
    for number in (signal.SIGINT, signal.SIGTERM):  # the service stops us, whoever stops the service
        signal.signal(number, signal.SIG_IGN)
    os.umask(0o077)
    out = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # whatever prints, prints no frames
    asyncio.run(_run(out))


async def _run(out: int) -> None:
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    pipe, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)

    def send(frame: Frame) -> None:
        """Write a frame, however long the service takes to read it; what it does not read, we need not do."""
        data = memoryview(encode_frame(frame))
        try:
            while data:
                data = data[os.write(out, data) :]
        except BrokenPipeError:
            os._exit(1)

    start = await read_frame(reader)
    if start is None:
        return
    ours, alerts = socket.socketpair()
    with ours, alerts, contextlib.closing(pipe):
        ours.setblocking(False)
        session = TorrentSession(_settings(start["settings"]), alerts.fileno())
        try:
            port = await asyncio.to_thread(session.port)
        except CannotListen as error:
            send({"id": start["id"], "error": TorrentFault.LISTEN.value, "text": str(error)})
            return
        send({"id": start["id"], "result": {"port": port}})
        async with asyncio.TaskGroup() as group:
            worker = TorrentRequests(group, session, send)

            def on_alerts() -> None:
                ours.recv(_ALERT_BYTES)
                worker.on_events()

            loop.add_reader(ours, on_alerts)
            worker.on_events()  # what came while nobody listened
            helpers = [group.create_task(worker.dial()), group.create_task(_read(reader, worker))]
            await worker.stopped.wait()
            for helper in helpers:
                helper.cancel()
            loop.remove_reader(ours)


async def _read(reader: asyncio.StreamReader, worker: TorrentRequests) -> None:
    while (frame := await read_frame(reader)) is not None:
        worker.on_request(frame)
    if not worker.stopped.is_set():
        os._exit(1)


def _settings(values: Frame) -> TorrentSettings:
    """The settings, of which JSON has made lists."""
    host, port = values["listen"]
    peers = tuple((host, port) for host, port in values["peers"])
    return TorrentSettings(**{**values, "listen": (host, port), "trackers": tuple(values["trackers"]), "peers": peers})


if __name__ == "__main__":
    main()
