"""Tables and progress bars. `rich` draws them on a terminal; a pipe gets plain columns and no progress.

`rich` is imported only when it draws: the import takes 50 ms and 7 MB, which the daemon does without.
"""

import contextlib
import sys
from collections.abc import Iterator, Sequence
from typing import Protocol

from mailserver.commands.output import printable

_GAP = "  "


class Bar(Protocol):
    """Shows the progress of something."""

    def __call__(self, step: str, done: int, total: int | None) -> None:
        """Show the present step, how much of it is done, and how much there is; None if that is unknown."""


@contextlib.contextmanager
def progress_bar(*, counts_bytes: bool = False) -> Iterator[Bar]:
    """A bar on stderr that vanishes at the end of the context; nothing if stderr is not a terminal."""
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
        rows: a text for each title. Control characters are escaped, so each stays on one line.
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
        # `Text` is not markup, so brackets stay. Long values are folded: an enode that is cut is of no use.
        cells = [Text(cell, overflow="fold") for cell in line]
        if styles:
            cells[0].stylize(styles[number])
        table.add_row(*cells)
    Console().print(table)
