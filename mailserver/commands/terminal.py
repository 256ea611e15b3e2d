"""Tables and progress bars. On a terminal `rich` draws them; into a pipe go plain columns, and no progress at all.

`rich` is imported only where it draws: it takes 50 ms, and 7 MB that the daemon does without.
"""

import contextlib
import sys
from collections.abc import Iterator, Sequence
from typing import Protocol

from mailserver.commands.output import printable

_GAP = "  "


class Bar(Protocol):
    """Shows how far something is."""

    def __call__(self, step: str, done: int, total: int | None) -> None:
        """Show what is being done, how much of it is done, and how much there is; None where nobody knows."""


@contextlib.contextmanager
def progress_bar(*, counts_bytes: bool = False) -> Iterator[Bar]:
    """A bar on stderr as long as the context is entered, then gone; nothing where stderr is no terminal."""
    if not sys.stderr.isatty():
        yield lambda step, done, total: None
        return
    from rich.console import Console  # noqa: PLC0415 - see above
    from rich.progress import (  # noqa: PLC0415
        BarColumn,
        DownloadColumn,
        Progress,
        TaskProgressColumn,
        TextColumn,
        TimeElapsedColumn,
    )

    amount = DownloadColumn(binary_units=True) if counts_bytes else TaskProgressColumn()
    columns = (BarColumn(), amount, TimeElapsedColumn(), TextColumn("{task.description}", markup=False))
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("", total=None)

        def show(step: str, done: int, total: int | None) -> None:
            progress.update(task, description=printable(step), completed=done, total=total)
            if total is None:
                progress.tasks[0].total = None  # `update` takes None for "as before"

        yield show


def print_table(titles: Sequence[str], rows: Sequence[Sequence[str]], styles: Sequence[str] = ()) -> None:
    """Print rows below titles.

    Args:
        titles: none for a list without a heading.
        rows: a text for each title. Whatever is in it, it stays one line, and no command to the terminal.
        styles: a colour for the first column of each row, as `rich` names it.
    """
    lines = [[printable(cell) for cell in row] for row in rows]
    if not sys.stdout.isatty():
        widths = [max(map(len, column)) for column in zip(*([titles] if titles else []), *lines, strict=True)]
        for line in (titles, *lines) if titles else lines:
            padded = (cell.ljust(width) for cell, width in zip(line, widths, strict=True))
            print(_GAP.join(padded).rstrip())
        return
    from rich import box  # noqa: PLC0415 - see above
    from rich.console import Console  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    table = Table(*titles, show_header=bool(titles), box=box.SIMPLE_HEAD, pad_edge=False)
    for number, line in enumerate(lines):
        # Not markup: what stands in brackets stays. And whole: an enode that is cut is of no use.
        cells = [Text(cell, overflow="fold") for cell in line]
        if styles:
            cells[0].stylize(styles[number])
        table.add_row(*cells)
    Console().print(table)
