"""Catching up once, as `waku-mailserver sync` does if no daemon has the store open, and how it is shown."""

import asyncio
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from mailserver.catchup.catchup import Catchup
from mailserver.catchup.page_rules import UNASKED, Wrong
from mailserver.catchup.progress import SourceProgress, SourceState
from mailserver.catchup.settings import CatchupSettings
from mailserver.live.intake import Clock
from mailserver.store.message_ids import StoreWithIds

ATTEMPTS = 6
"""A source is given up after so many failures in a row, which takes about a minute. Deployed nodes refuse a second
connection from one address for half a minute."""

SHOW_INTERVAL_S = 0.5

Show = Callable[[Sequence[SourceProgress]], None]


async def run_once(
    store: StoreWithIds,
    folder: Path,
    settings: CatchupSettings,
    since: int,
    until: int,
    *,
    show: Show | None = None,
    clock: Clock = time.time,
) -> tuple[SourceProgress, ...]:
    """Catch up from the sources of the settings; return how it ended with each.

    If it is cancelled, it stops within a second, and the next run continues.

    Args:
        folder: where the progress file is.
        since, until: the range of creation times, Unix seconds; at most the present.
        show: called with the progress every SHOW_INTERVAL_S.
    Raises:
        CatchupError: the progress file is damaged, or cannot be written, or there are too many sources.
        StoreError: the store cannot be read.
    """
    catchup = Catchup(store, folder, replace(settings, give_up_after=ATTEMPTS), clock)
    await catchup.note_missed()  # for the daemon, to which our fetched envelopes would hide its downtime
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


def overview(sources: Sequence[SourceProgress], span_s: int) -> tuple[str, int, int]:
    """How far all sources are together: in words, and as seconds of creation times, done and asked for."""
    asked_s = max(span_s, 1) * max(len(sources), 1)
    done_s = asked_s - sum(source.left_s for source in sources)
    fetched, stored = (sum(getattr(source, name) for source in sources) for name in ("fetched", "stored"))
    waiting = [f"; {source.source}: {source.problem!r}" for source in sources if source.problem]  # others' words
    return f"{fetched} envelopes, {stored} of them new{''.join(waiting)}", max(done_s, 0), asked_s


def report(sources: Sequence[SourceProgress], *, as_json: bool) -> str:
    """How it ended: a line for each source, or one JSON array."""
    if as_json:
        return json.dumps([source.as_json() for source in sources])
    return "\n".join(_ended(source) for source in sources)


def is_complete(sources: Sequence[SourceProgress]) -> bool:
    """Whether every source has given everything that it was asked for."""
    return all(source.state is SourceState.DONE for source in sources)


def complaints(sources: Sequence[SourceProgress]) -> list[str]:
    """A line for each source that sent what it was not asked for: how many envelopes of which kind."""
    lines = []
    for source in sources:
        unasked = {wrong: count for wrong, count in source.wrong.items() if wrong in UNASKED}
        if unasked:
            lines.append(f"{source.source} sent what was not asked for: {_dropped(unasked)}")
    return lines


def _dropped(wrong: Mapping[Wrong, int]) -> str:
    return ", ".join(f"{count} dropped ({kind.value})" for kind, count in wrong.items())


def _ended(source: SourceProgress) -> str:
    text = f"{source.source}: {source.fetched} envelopes in {source.pages} pages, {source.stored} of them new"
    if source.wrong:
        text += f", {_dropped(source.wrong)}"
    return text if source.state is SourceState.DONE else f"{text}; {source.state.value}: {source.problem!r}"
