"""The figures of a soak as a picture: one small plot for each."""

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from matplotlib.figure import Figure

from tests.soak.samples import Sample

_PLOTS = (
    ("memory (RSS), MiB", ("rss_mib",)),
    ("store: file, pages in use, WAL, MiB", ("file_mib", "used_mib", "wal_mib")),
    ("envelopes in the store", ("stored",)),
    ("open files and threads", ("fds", "threads")),
    ("a page of history, ms", ("request_p50_ms", "request_p95_ms", "request_own_p95_ms")),
    ("confirmations, ms", ("confirmation_p50_ms", "confirmation_p95_ms", "confirmation_own_p95_ms")),
    ("CPU in an hour, s", ("cpu_s",)),
    ("event loop lag (mean), ms; load of the machine", ("lag_mean_ms", "load")),
)


def draw(samples: Sequence[Sample], path: Path, title: str) -> None:
    """Write the picture; dotted lines are restarts."""
    figure = Figure(figsize=(11, 12), layout="constrained")
    figure.suptitle(title)
    days = [sample.day for sample in samples]
    restarts = [after.day for before, after in pairwise(samples) if before.run != after.run]
    for axes, (name, fields) in zip(figure.subplots(4, 2).flat, _PLOTS, strict=True):
        for field in fields:
            axes.plot(days, [getattr(sample, field) for sample in samples], linewidth=0.8, label=field)
        for day in restarts:
            axes.axvline(day, linestyle=":", color="grey", linewidth=0.8)
        axes.set_title(name, fontsize=10)
        axes.set_xlabel("simulated day", fontsize=8)
        axes.set_ylim(bottom=0)
        if len(fields) > 1:
            axes.legend(fontsize=7)
    figure.savefig(path, dpi=80)
