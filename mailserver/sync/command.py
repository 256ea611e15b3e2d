"""Catching up once, as `waku-mailserver sync` does it where no daemon has the store open, and what people see of it."""

import asyncio
import json
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType

from mailserver.store.envelopes import EnvelopeStore
from mailserver.sync.catchup import Catchup
from mailserver.sync.progress import Progress, State
from mailserver.sync.source import Clock, SyncSettings

ATTEMPTS = 6
"""So many failures in a row, and a source is given up: after about a minute. Deployed nodes refuse a second connection
from one address for half of that."""

SHOW_INTERVAL_S = 0.5

_CLEAR_LINE = "\r\x1b[K"

Show = Callable[[Sequence[Progress]], None]


async def run_once(
    store: EnvelopeStore,
    folder: Path,
    settings: SyncSettings,
    since: int,
    until: int,
    *,
    show: Show | None = None,
    clock: Clock = time.time,
) -> tuple[Progress, ...]:
    """Catch up from the sources of the settings; return how it ended with each.

    Cancelled, it stops within a second, and the next run goes on where it was.

    Args:
        folder: of the progress file.
        since: together with `until`, the range of creation times, Unix seconds; at most the present.
        show: called with the progress every SHOW_INTERVAL_S.
    Raises:
        SyncError: the progress file is damaged, or cannot be written; or there are too many sources.
        StoreError: the store cannot be read.
    """
    catchup = Catchup(store, folder, replace(settings, give_up_after=ATTEMPTS), clock)
    await catchup.note_missed()  # for the daemon: to it, what comes now looks as if we had not been away
    await catchup.add(since, until)
    running = asyncio.create_task(catchup.run())
    settled = asyncio.create_task(catchup.settled())
    try:
        while not settled.done() and not running.done():
            await asyncio.wait([settled, running], timeout=SHOW_INTERVAL_S, return_when=asyncio.FIRST_COMPLETED)
            if show is not None:
                show(catchup.snapshot())
    finally:
        settled.cancel()
        catchup.stop()
        await running
    return catchup.snapshot()


class ProgressLine:
    """One line on a terminal that says how far it is; nothing where stderr is no terminal."""

    def __init__(self, span_s: int) -> None:
        """Take how many seconds of creation times are asked for."""
        self._span_s = max(span_s, 1)
        self._is_shown = sys.stderr.isatty()

    def __enter__(self) -> "ProgressLine":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._is_shown:
            sys.stderr.write(_CLEAR_LINE)
            sys.stderr.flush()

    def show(self, sources: Sequence[Progress]) -> None:
        """Show how far it is."""
        if self._is_shown:
            width = shutil.get_terminal_size().columns - 1  # a line that wraps could not be taken back
            sys.stderr.write(_CLEAR_LINE + _line(sources, self._span_s)[:width])
            sys.stderr.flush()


def report(sources: Sequence[Progress], *, as_json: bool) -> str:
    """How it ended: a line for each source, or one array of JSON."""
    if as_json:
        return json.dumps([source.as_json() for source in sources])
    return "\n".join(_ended(source) for source in sources)


def is_complete(sources: Sequence[Progress]) -> bool:
    """Whether every source has given all that it was asked for."""
    return all(source.state is State.DONE for source in sources)


def _line(sources: Sequence[Progress], span_s: int) -> str:
    done = 1 - sum(source.left_s for source in sources) / (span_s * max(len(sources), 1))
    fetched, stored = (sum(getattr(source, name) for source in sources) for name in ("fetched", "stored"))
    waiting = [f"; {source.source}: {source.problem!r}" for source in sources if source.problem]  # others' words
    return f"{max(done, 0):.0%}, {fetched} envelopes, {stored} of them new{''.join(waiting)}"


def _ended(source: Progress) -> str:
    text = f"{source.source}: {source.fetched} envelopes in {source.pages} pages, {source.stored} of them new"
    for wrong, count in source.wrong.items():
        text += f", {count} dropped ({wrong.value})"
    return text if source.state is State.DONE else f"{text}; {source.state.value}: {source.problem!r}"
