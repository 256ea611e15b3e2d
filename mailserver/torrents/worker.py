"""What the torrent process does for its requests, with libtorrent's session and the files of torrents."""

import asyncio
import contextlib
import traceback
from collections import Counter, defaultdict
from collections.abc import Callable, Coroutine
from dataclasses import asdict
from pathlib import Path
from typing import Any

from mailserver.torrents import session
from mailserver.torrents.errors import RequestFault, TorrentFault
from mailserver.torrents.frames import Frame, decode_bytes, decode_pieces, encode_bytes
from mailserver.torrents.held import HeldPieces
from mailserver.torrents.info import DATA_FILE, INDEX_FILE, TorrentInfo
from mailserver.torrents.magnet import Address
from mailserver.torrents.memory import resident_bytes
from mailserver.torrents.statistics import TorrentStatistics
from mailserver.torrents.under_way import MetadataFetch, PieceFetch, Torrent

LOOK_INTERVAL_S = 5.0
"""How often a fetch under way syncs what has come, and says so in `held`; and how long nothing may come after a wrong
piece, until the torrent is opened again."""

DIAL_INTERVAL_S = 2.0
"""How often the peers that we were told of are dialled, while something is wanted."""

PROGRESS_INTERVAL_S = 0.1

FLUSH_S = 30.0
"""How long libtorrent may take to write what has come. What is not there then, is not counted as there."""

ATTEMPTS = 3
"""How often pieces that came right, and are wrong on disk, are fetched within one request."""


class TorrentRequests:
    """The requests, and the torrents that they are about.

    Args:
        group: of the tasks that requests become.
        send: passes a frame to the service.
    """

    def __init__(
        self, group: asyncio.TaskGroup, torrents: session.TorrentSession, send: Callable[[Frame], None]
    ) -> None:
        self._group = group
        self._session = torrents
        self._send = send
        self._torrents: dict[bytes, Torrent] = {}
        self._asked: dict[bytes, MetadataFetch] = {}
        self._locks: defaultdict[bytes, asyncio.Lock] = defaultdict(asyncio.Lock)  # of what comes and goes
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._dropping: set[int] = set()  # the requests that are not forgotten: half dropped, a torrent would be paused
        self.stopped = asyncio.Event()

    def on_request(self, frame: Frame) -> None:
        """Begin with a request; one that is under way is not begun again."""
        request_id = frame["id"]
        if frame["op"] == "forget":
            if (task := self._tasks.get(frame["request"])) is not None and frame["request"] not in self._dropping:
                task.cancel()
            return
        if request_id in self._tasks:
            return
        work: Coroutine[Any, Any, Frame]
        match frame["op"]:
            case "add":
                work = self._add(frame)
            case "metadata":
                work = self._metadata(frame)
            case "fetch":
                work = self._fetch(request_id, frame)
            case "drop":
                work = self._drop(bytes.fromhex(frame["info_hash"]))
                self._dropping.add(request_id)
            case "statistics":
                work = self._statistics()
            case "sent":
                work = self._sent(bytes.fromhex(frame["info_hash"]))
            case "ping":
                work = self._ping()
            case "stop":
                work = self._stop()
            case op:
                raise AssertionError(op)
        task = self._group.create_task(self._answer(request_id, work))
        self._tasks[request_id] = task
        task.add_done_callback(lambda _: self._end(request_id))

    def _end(self, request_id: int) -> None:
        del self._tasks[request_id]
        self._dropping.discard(request_id)

    def on_events(self) -> None:
        """Take what libtorrent has to say."""
        for event in self._session.events():
            if isinstance(event, session.EventsLost):
                self._catch_up()
            elif (asked := self._asked.get(event.info_hash)) is not None:
                self._on_metadata(asked, event)
            elif (torrent := self._torrents.get(event.info_hash)) is not None:
                self._on_event(torrent, event)

    async def dial(self) -> None:
        """Dial the peers that we were told of, while something is wanted, and lift bans; does not return."""
        while True:
            await asyncio.sleep(DIAL_INTERVAL_S)
            self._session.lift_bans()
            for torrent in self._torrents.values():
                if torrent.fetches:
                    session.dial(torrent.handle, torrent.peers)
            for asked in self._asked.values():
                session.dial(asked.handle, asked.peers)

    async def _answer(self, request_id: int, work: Coroutine[Any, Any, Frame]) -> None:
        try:
            result = await work
        except RequestFault as error:
            self._send({"id": request_id, "error": error.fault.value, "text": error.text})
        except OSError as error:
            self._send({"id": request_id, "error": TorrentFault.DISK.value, "text": error.strerror or str(error)})
        except Exception as error:  # noqa: BLE001 - else the process ends, and the next one gets the same request
            traceback.print_exc()
            self._send(
                {"id": request_id, "error": TorrentFault.FAILED.value, "text": f"{type(error).__name__}: {error}"}
            )
        else:
            self._send({"id": request_id, "result": result})

    async def _add(self, frame: Frame) -> Frame:
        info = TorrentInfo.decode(decode_bytes(frame["info"]))
        folder, trackers = Path(frame["folder"]), frame["trackers"]
        peers: list[Address] = [(host, port) for host, port in frame["peers"]]
        async with self._locks[info.info_hash]:
            if (there := self._torrents.get(info.info_hash)) is not None:
                session.dial(there.handle, peers)  # first: it refuses what nobody shall dial again
                there.peers = peers
                return {}
            held = HeldPieces(info, folder)
            if frame["seed"]:
                await asyncio.to_thread(_check_sizes, info, folder)
            else:
                await asyncio.to_thread(held.load)
            if (asked := self._asked.get(info.info_hash)) is not None:
                self._end_asking(info.info_hash, asked)
                asked.answer.set_result(info.info)
            have = set(held.known)
            if frame["seed"]:
                handle = self._session.seed(info, folder, trackers, peers)
            else:
                handle = self._session.fetch(info, folder, have, trackers, peers)
            self._torrents[info.info_hash] = Torrent(info, folder, frame["seed"], trackers, peers, held, handle, have)
        return {}

    async def _metadata(self, frame: Frame) -> Frame:
        info_hash = bytes.fromhex(frame["info_hash"])
        async with self._locks[info_hash]:
            if (torrent := self._torrents.get(info_hash)) is not None:
                return {"info": encode_bytes(torrent.info.info)}
            asked = self._asked.get(info_hash)
            if asked is None:
                peers: list[Address] = [(host, port) for host, port in frame["peers"]]
                handle = self._session.ask_for_metadata(info_hash, frame["trackers"], peers)
                asked = MetadataFetch(handle, peers, asyncio.get_running_loop().create_future())
                self._asked[info_hash] = asked
        asked.requests += 1
        try:
            return {"info": encode_bytes(await asyncio.shield(asked.answer))}
        finally:
            asked.requests -= 1
            if not asked.requests and not asked.answer.done():
                self._end_asking(info_hash, asked)

    def _end_asking(self, info_hash: bytes, asked: MetadataFetch) -> None:
        del self._asked[info_hash]
        self._session.remove(asked.handle)

    async def _fetch(self, request_id: int, frame: Frame) -> Frame:
        info_hash = bytes.fromhex(frame["info_hash"])
        async with self._locks[info_hash]:
            torrent = self._torrents.get(info_hash)
        if torrent is None:
            raise RequestFault(TorrentFault.DROPPED, "there is no such torrent")
        wanted = decode_pieces(frame["pieces"]) & set(torrent.info.pieces)
        if torrent.wrong and not torrent.fetches:
            torrent.wrong = 0
            self._open_again(torrent)  # libtorrent never lifts its bans
        await self._check_again(torrent, wanted & torrent.have)
        for _ in range(ATTEMPTS):
            await self._have(request_id, torrent, wanted)
            if not await self._settle(torrent, wanted):
                return {}
            await self._check_again(torrent, wanted)
        raise RequestFault(TorrentFault.DISK, "pieces are not on disk as they came")

    async def _have(self, request_id: int, torrent: Torrent, wanted: set[int]) -> None:
        """Wait until these pieces have come; save what has, now and then."""
        if torrent.failed:
            await self._flush(torrent)  # nothing is on its way to the disk any more that could fail late
            torrent.failed = False
            self._open_again(torrent)
        fetch = torrent.fetches[request_id] = PieceFetch(wanted - torrent.have)
        try:
            self._want(torrent)
            session.dial(torrent.handle, torrent.peers)
            self._report(request_id, torrent, fetch)
            fetch.check()
            came = -1
            while not fetch.ended.is_set():
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(LOOK_INTERVAL_S):
                        await fetch.ended.wait()
                if fetch.missing and fetch.failure is None:
                    await self._settle(torrent, set(torrent.have))
                    came = self._open_if_stuck(torrent, came)
            if fetch.failure is not None:
                if fetch.failure.fault is TorrentFault.DISK:
                    await self._flush(torrent)  # what the system says may come after what libtorrent makes of it
                raise fetch.failure
        finally:
            del torrent.fetches[request_id]
            self._want(torrent)

    def _want(self, torrent: Torrent) -> None:
        wanted = set().union(*(fetch.missing for fetch in torrent.fetches.values()))
        session.want(torrent.handle, wanted, len(torrent.info.pieces))

    async def _settle(self, torrent: Torrent, pieces: set[int]) -> set[int]:
        """Have pieces that came on disk, and remember them; return those that are not there.

        libtorrent may say that a piece is there before it has written it, and that it has written everything while
        something is on its way. So what counts is what we read, and that is synced before it is remembered.
        """
        async with torrent.settling:
            unchecked = pieces - torrent.held.checked
            if unchecked:
                await self._flush(torrent)
            wrong = await asyncio.to_thread(torrent.held.verify, unchecked)
            await asyncio.to_thread(torrent.held.save)
            return wrong

    async def _flush(self, torrent: Torrent) -> None:
        torrent.flushed.clear()
        session.flush(torrent.handle)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FLUSH_S):
                await torrent.flushed.wait()

    async def _check_again(self, torrent: Torrent, pieces: set[int]) -> None:
        """Look whether the disk has the pieces that it is said to have; have libtorrent fetch those that are wrong."""
        async with torrent.settling:
            wrong = await asyncio.to_thread(torrent.held.verify, pieces - torrent.held.checked)
            if wrong:
                torrent.have -= wrong
                self._open_again(torrent)

    def _open_if_stuck(self, torrent: Torrent, came_before: int) -> int:
        """Open a torrent again of which nothing comes any more since a wrong piece came; return how many bytes came.

        libtorrent bans an honest peer that sent a part of a piece, if a liar sent the rest. It never lifts that.
        """
        found = _since_opened(torrent)
        if found.wrong_bytes and found.downloaded_bytes == came_before:
            self._open_again(torrent)
        return found.downloaded_bytes

    def _open_again(self, torrent: Torrent) -> None:
        torrent.before = _statistics_of(torrent)
        self._session.remove(torrent.handle)
        torrent.handle = self._session.fetch(
            torrent.info, torrent.folder, torrent.have, torrent.trackers, torrent.peers
        )
        self._want(torrent)

    async def _drop(self, info_hash: bytes) -> Frame:
        async with self._locks[info_hash]:
            if (torrent := self._torrents.get(info_hash)) is not None:
                try:
                    await self._leave(torrent)
                finally:
                    del self._torrents[info_hash]  # not before: it is told meanwhile that all is written
        return {}

    async def _leave(self, torrent: Torrent) -> None:
        for fetch in torrent.fetches.values():
            fetch.fail(RequestFault(TorrentFault.DROPPED, "the torrent was dropped"))
        session.disconnect(torrent.handle)  # first: what comes after the last flush could be written later
        try:
            if not torrent.seed:
                with contextlib.suppress(OSError):  # what is not remembered is found on disk, if it is there
                    await self._settle(torrent, set(torrent.have))
        finally:
            self._session.remove(torrent.handle)

    async def _statistics(self) -> Frame:
        found = [asdict(_statistics_of(torrent)) for torrent in self._torrents.values()]
        torrents = [{**each, "info_hash": each["info_hash"].hex()} for each in found]
        return {"memory_bytes": resident_bytes(), "torrents": torrents}

    async def _sent(self, info_hash: bytes) -> Frame:
        torrent = self._torrents.get(info_hash)
        if torrent is None:
            return {"pieces": []}
        sent, torrent.sent = torrent.sent, Counter()
        return {"pieces": [*sent.items()]}

    async def _ping(self) -> Frame:
        return {}

    async def _stop(self) -> Frame:
        for info_hash in list(self._torrents):
            await self._drop(info_hash)
        self.stopped.set()
        return {}

    def _on_event(self, torrent: Torrent, event: session.Event) -> None:
        match event:
            case session.Ready():
                torrent.ready.set()
                return
            case session.PieceCame(_, piece):
                torrent.have.add(piece)
            case session.BlockSent(_, piece):
                torrent.sent[piece] += 1
                return
            case session.WrongPieceCame():
                torrent.wrong += 1
            case session.Flushed():
                torrent.flushed.set()
                return
            case session.DiskFailed(_, text, is_of_system):
                torrent.failed = True
                torrent.ready.set()
                for fetch in torrent.fetches.values():
                    if fetch.failure is None or (is_of_system and fetch.failure.fault is TorrentFault.DISK):
                        fetch.fail(RequestFault(TorrentFault.DISK, text))
                return
        self._on_progress(torrent)

    def _on_progress(self, torrent: Torrent) -> None:
        for request_id, fetch in torrent.fetches.items():
            fetch.missing -= torrent.have
            fetch.check()
            if not fetch.report_is_due:
                fetch.report_is_due = True
                loop = asyncio.get_running_loop()
                loop.call_later(PROGRESS_INTERVAL_S, self._report, request_id, torrent, fetch)

    def _report(self, request_id: int, torrent: Torrent, fetch: PieceFetch) -> None:
        fetch.report_is_due = False
        if request_id in torrent.fetches:
            frame = {"id": request_id, "event": "progress", "missing": len(fetch.missing), "wrong": torrent.wrong}
            self._send(frame)

    def _on_metadata(self, asked: MetadataFetch, event: session.Event) -> None:
        match event:
            case session.MetadataCame(info_hash, info):
                self._end_asking(info_hash, asked)
                asked.answer.set_result(info)
            case session.MetadataUnusable(info_hash, refusal):
                self._end_asking(info_hash, asked)
                asked.answer.set_exception(RequestFault(TorrentFault.METADATA, refusal.name))

    def _catch_up(self) -> None:
        """Look up what alerts would have told."""
        for torrent in self._torrents.values():
            torrent.ready.set()
            torrent.have |= session.pieces_there(torrent.handle)
            torrent.flushed.set()
            self._on_progress(torrent)


def _since_opened(torrent: Torrent) -> TorrentStatistics:
    return session.statistics(torrent.info.info_hash, torrent.handle, len(torrent.info.pieces))


def _statistics_of(torrent: Torrent) -> TorrentStatistics:
    """Since the torrent was added, however often it was opened again."""
    return _since_opened(torrent).after(torrent.before)


def _check_sizes(info: TorrentInfo, folder: Path) -> None:
    """Refuse to seed files that are not those of the torrent."""
    data_bytes, index_bytes = ((folder / name).stat().st_size for name in (DATA_FILE, INDEX_FILE))
    if data_bytes < info.data_bytes:
        raise RequestFault(TorrentFault.DISK, f"data has {data_bytes} bytes, and the torrent {info.data_bytes}")
    if index_bytes != info.index_bytes:
        raise RequestFault(TorrentFault.DISK, f"index has {index_bytes} bytes, and the torrent {info.index_bytes}")
