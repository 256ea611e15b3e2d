"""How times grow with the store, as a picture: a line for each question, both axes logarithmic.

From 30 days of history on, the questions find as much in every store.
"""

from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure

from bench.results import StoreHistory, median_of


def draw_growth(histories: Sequence[StoreHistory], path: Path) -> None:
    """Write the picture, in the format that the file's name asks for."""
    figure = Figure(figsize=(10, 5), layout="constrained")
    sizes = [each.store.envelopes for each in histories if each.store is not None]
    first, done = figure.subplots(1, 2, sharey=True)
    for axes, name, field in ((first, "first packet", "first_s"), (done, "completion", "done_s")):
        for index, question in enumerate(histories[0].questions):
            times = [
                median_of(getattr(run, field) * 1000 for run in each.questions[index].runs)
                for each in histories
                if each.store is not None
            ]
            axes.plot(sizes, times, marker="o", label=question.question)
        axes.set(title=name, xlabel="envelopes in the store", ylabel="ms", xscale="log", yscale="log")
        axes.grid(alpha=0.3)
    done.legend(fontsize=7)
    figure.savefig(path)
