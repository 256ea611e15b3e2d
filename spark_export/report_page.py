"""The page of `spark-export report`: one file that needs nothing else, and looks like the mailserver's status page.

Its colours, light and dark, and the shape of its cards are those of the status page: it includes that style sheet.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from html import escape
from importlib.resources import files

from mailserver.units import size_text
from spark_export.report import ArchiveStatistics, class_width

MAX_LABELS = 5
"""Maximum number of dates or sizes below a plot; a phone shows every other one."""

MAX_LEVELS = 4
"""Maximum number of values beside a plot, 0 not counted."""

Show = Callable[[float], str]


@dataclass(frozen=True, slots=True)
class _Bar:
    """A bar: what it stands for, how much that is, and what is written below it."""

    name: str
    value: int
    label: str = ""


def as_html(statistics: ArchiveStatistics) -> str:
    """The page, with four plots and the topics as bars."""
    days = statistics.days
    by_date = {date.fromisoformat(day.date): day for day in days}
    dates = list(_dates(by_date))
    sizes = list(_size_bars(statistics))
    figures = [
        _plot("Envelopes a day", _day_bars(dates, {at: day.envelopes for at, day in by_date.items()}), _count),
        _plot("Bytes of envelopes a day", _day_bars(dates, {at: day.bytes for at, day in by_date.items()}), size_text),
        _plot("Topics a day", _day_bars(dates, {at: day.topics for at, day in by_date.items()}), _count),
        _plot("Envelopes by size", sizes, _count),
    ]
    facts = {
        "Archive": statistics.archive,
        "Created": statistics.created,
        "Partitioned by": statistics.partitioned_by,
        "Days": f"{len(days):,}" + (f", {days[0].date} to {days[-1].date}" if days else ""),
        "Envelopes": f"{statistics.envelopes:,}, {size_text(statistics.bytes)}",
        "Topics": f"{statistics.topics:,}",
        "Files": f"{statistics.files:,}, {size_text(statistics.file_bytes)}",
    }
    style = (files("mailserver.monitoring") / "assets" / "page.css").read_text(encoding="utf-8") + _STYLE
    return _PAGE.format(
        style=style,
        facts="".join(f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in facts.items()),
        figures="".join(figures),
        topics=_topics(statistics),
    )


def _dates(known: Collection[date]) -> Iterator[date]:
    """Every day from the first to the last."""
    if known:
        first, last = min(known), max(known)
        yield from (first + timedelta(days=number) for number in range((last - first).days + 1))


def _day_bars(dates: Sequence[date], values: Mapping[date, int]) -> list[_Bar]:
    apart = -(-len(dates) // MAX_LABELS)
    return [
        _Bar(day.isoformat(), values.get(day, 0), day.isoformat() if number % apart == apart // 2 else "")
        for number, day in enumerate(dates)
    ]


def _size_bars(statistics: ArchiveStatistics) -> Iterator[_Bar]:
    """Every class of sizes from the first to the last. Classes that begin at a power of two have labels, all or some of
    them."""
    if not statistics.sizes:
        return
    counts = {size.least: size.envelopes for size in statistics.sizes}
    least, last = statistics.sizes[0].least, statistics.sizes[-1].least
    apart = -(-(last.bit_length() - least.bit_length() + 1) // MAX_LABELS)
    while least <= last:
        width = class_width(least)
        is_labelled = least.bit_count() == 1 and (last.bit_length() - least.bit_length()) % apart == 0
        name = f"{least:,} to {least + width - 1:,} bytes"
        yield _Bar(name, counts.get(least, 0), size_text(least) if is_labelled else "")
        least += width


def _plot(title: str, bars: Sequence[_Bar], show: Show) -> str:
    """A figure of bars. They are drawn in a square of 100 by 100, which is stretched to the shape of its place."""
    most = max((bar.value for bar in bars), default=0)
    if not most:
        return f'<figure><h3>{escape(title)}</h3><p class="empty">the archive is empty</p></figure>'
    step = _step(most, _BYTE_STEPS if show is size_text else _COUNT_STEPS)
    top = -(-most // step) * step
    wide = 100 / len(bars)
    levels = range(0, top + 1, step)
    lines = "".join(f'<path d="M0 {100 - 100 * level / top:.2f}h100"/>' for level in levels)
    rects = "".join(
        f'<rect x="{number * wide + wide * 0.1:.3f}" y="{100 - height:.3f}" width="{wide * 0.8:.3f}" '
        f'height="{height:.3f}"><title>{escape(bar.name)}: {escape(show(bar.value))}</title></rect>'
        for number, bar in enumerate(bars)
        if (height := 100 * bar.value / top)
    )
    beside = "".join(f'<span style="bottom:{100 * level / top:.2f}%">{escape(show(level))}</span>' for level in levels)
    below = "".join(
        f'<span style="left:{(number + 0.5) * wide:.2f}%">{escape(bar.label)}</span>'
        for number, bar in enumerate(bars)
        if bar.label
    )
    return (
        f'<figure><h3>{escape(title)}</h3><div class="plot"><div class="beside">{beside}</div>'
        f'<svg viewBox="0 0 100 100" preserveAspectRatio="none" role="img" aria-label="{escape(title)}">'
        f'{lines}{rects}</svg><div class="below">{below}</div></div></figure>'
    )


_COUNT_STEPS = tuple(step * 10**power for power in range(16) for step in (1, 2, 5))
_BYTE_STEPS = tuple(2**power for power in range(60))


def _step(most: int, steps: Sequence[int]) -> int:
    """How far apart the values beside a plot are."""
    return next((step for step in steps if -(-most // step) <= MAX_LEVELS), steps[-1])


def _topics(statistics: ArchiveStatistics) -> str:
    if not statistics.top_topics:
        return '<p class="empty">the archive is empty</p>'
    most = statistics.top_topics[0].envelopes
    rows = "".join(
        f"<tr><th><code>{escape(topic.topic)}</code></th>"
        f'<td class="bar"><div style="width:{100 * topic.envelopes / most:.1f}%"></div></td>'
        f"<td>{topic.envelopes:,}</td><td>{size_text(topic.bytes)}</td></tr>"
        for topic in statistics.top_topics
    )
    return (
        '<table class="figures"><thead><tr><th scope="col">topic</th><th></th><th scope="col">envelopes</th>'
        f'<th scope="col">bytes</th></tr></thead><tbody>{rows}</tbody></table>'
    )


def _count(value: float) -> str:
    return f"{value:,.0f}"


_STYLE = """
dl { grid-template-columns: max-content 1fr; font-size: 1rem; }
dd { overflow-wrap: anywhere; text-align: left; white-space: normal; }
.charts { grid-template-columns: repeat(auto-fit, minmax(min(100%, 30rem), 1fr)); }
.plot { position: relative; margin: .8rem 1.5rem 2rem 4.5rem; }
.plot svg { display: block; width: 100%; height: 9rem; overflow: visible; }
.plot path { stroke: var(--line); vector-effect: non-scaling-stroke; }
.plot rect { fill: var(--blue); }
.plot span { position: absolute; color: var(--faint); font-size: .8rem; white-space: nowrap; }
.beside { position: absolute; inset: 0 100% 0 auto; width: 4.5rem; }
.beside span { right: .5rem; transform: translateY(50%); }
.below { position: absolute; inset: 100% 0 auto 0; }
.below span { top: .7rem; transform: translateX(-50%); }
.bar { width: 60%; min-width: 3rem; }
.bar div { height: .8rem; border-radius: .2rem; background: var(--blue); }
.empty { margin: 2rem; text-align: center; color: var(--faint); }
@media (max-width: 45rem) { .below span:nth-child(even) { display: none; } .bar { width: 30%; } }
"""

_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>Waku archive</title>
<link rel="icon" href="data:,">
<style>{style}</style>
</head>
<body>
<header><h1>Waku archive</h1></header>
<main>
<section><dl>{facts}</dl></section>
<section><h2>Days <small>of reception, UTC</small></h2><div class="charts">{figures}</div></section>
<section><h2>Topics with the most envelopes</h2>{topics}</section>
</main>
</body>
</html>
"""
