"""Clients by virtual time beside accuracy: who was online, training and lost, and what became of each run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import NDArray

from fedsim.analysis.drawing.picture import (
    GREY,
    Key,
    NotebookFigure,
    Picture,
    arm_keys,
    arm_style,
    plain_axes,
    time_unit,
    whole_numbers,
)
from fedsim.analysis.opening.run import Run
from fedsim.analysis.plots.accuracy_over_time import METRICS
from fedsim.analysis.plots.participation import OUTCOMES, Raster, idle_pixels, paint, raster

if TYPE_CHECKING:
    import pandas as pd

_PAINTED = {"training": "#56b4e9", "late": OUTCOMES["late"][0], "lost": OUTCOMES["lost"][0]}
"""Colour of a cell with a job, with a late one, with a lost one; later names cover earlier ones."""
_CURVES = ("mean_percent", "worst10_percent")
_SIZE_IN = (10.0, 3.6)
_ROWS, _BINS = 100, 400
_NEARLY = 0.99
"""Above this share of the longest run's time the end of the map is that of the axis."""


def overview(runs: Sequence[Run], shown: Run) -> Picture:
    """Draw who is online, in a job and lost in the run `shown`, beside the accuracy of all runs over the same time.

    Raises FolderError if that run has no world or covers no virtual time, TraceError if its world cannot be read.
    """
    cells = raster(shown, _ROWS, _BINS)
    histories = {run.label: run.history(metrics=_CURVES) for run in runs}
    end_us = max([cells.end_us, *(int(h["time_us"].max()) for h in histories.values() if len(h))])
    scale, unit = time_unit(end_us)
    figure = NotebookFigure(figsize=_SIZE_IN, layout="constrained")
    figure.patch.set_alpha(0)
    grid = figure.add_gridspec(2, 2, width_ratios=(1.2, 1))
    places = (grid[:, 0], grid[0, 1], grid[1, 1])
    clients, mean, worst = (figure.add_subplot(place) for place in places)
    for ax in (clients, mean, worst):
        plain_axes(ax)
        ax.set_xlim(0, end_us / scale)
    shorter = cells.end_us < _NEARLY * end_us
    if shorter:
        clients.axvline(cells.end_us / scale, color=GREY, linewidth=0.8)
    _clients(clients, cells, cells.end_us / scale)
    _accuracy((mean, worst), histories, scale)
    for ax in (clients, worst):
        ax.set_xlabel(f"virtual time, {unit}", fontsize=9)
    mean.tick_params(labelbottom=False)
    figure.align_ylabels([mean, worst])
    caption = _caption(shown if len(runs) > 1 else None, cells)
    if shorter:
        caption += f" The map ends where {shown.label} ended, after {cells.end_us / scale:.3g} {unit}."
    return Picture(figure, _alt(shown, cells, histories), caption, _keys(runs, cells))


def _clients(ax: Axes, cells: Raster, end: float) -> None:
    extent = (0, end, int(cells.sizes.sum()), 0)
    ax.imshow(_pixels(cells), extent=extent, aspect="auto", interpolation="none")
    ax.grid(visible=False)
    ax.set_ylabel("clients, those most online above", fontsize=9)
    whole_numbers(ax.yaxis)


def _accuracy(axes: Sequence[Axes], histories: Mapping[str, pd.DataFrame], scale: float) -> None:
    for ax, metric in zip(axes, _CURVES, strict=True):
        for index, history in enumerate(histories.values()):
            marker = "o" if len(history) == 1 else None
            x, y = history["time_us"].to_numpy() / scale, history[metric].to_numpy()
            ax.plot(x, y, marker=marker, markersize=4, **arm_style(index))
        ax.set_ylabel(METRICS[metric], fontsize=9)
        ax.margins(y=0.08)


def _pixels(cells: Raster) -> NDArray[np.uint8]:
    """Return [R, T, 4] RGBA: transparent while offline, grey while online, a colour of `_PAINTED` during a job."""
    image = idle_pixels(cells)
    for name, colour in _PAINTED.items():
        jobs = _jobs(cells, name)
        paint(image, jobs > 0, colour, jobs / cells.sizes[:, None])
    return np.asarray(np.rint(255 * image), dtype=np.uint8)


def _jobs(cells: Raster, name: str) -> NDArray[np.int64]:
    return np.asarray(sum(cells.in_job.values()) if name == "training" else cells.in_job[name])


def _keys(runs: Sequence[Run], cells: Raster) -> tuple[Key, ...]:
    names = {"training": "in a job", "late": "in a job that was late", "lost": "in a job that was lost"}
    jobs = (Key(names[n], colour, area=True) for n, colour in _PAINTED.items() if _jobs(cells, n).any())
    idle = (Key("offline", "transparent", area=True), Key("online, idle", GREY + "66", area=True))
    return (*idle, *jobs, *arm_keys([run.label for run in runs]))


def _caption(shown: Run | None, cells: Raster) -> str:
    k, rows = int(cells.sizes.sum()), len(cells.sizes)
    whose = f" of {shown.label}" if shown else ""
    grouped = f" Each line of the map stands for about {k / rows:.0f} clients." if rows < k else ""
    return f"What clients{whose} do (left), and accuracy on the same clock (right).{grouped}"


def _alt(shown: Run, cells: Raster, histories: Mapping[str, pd.DataFrame]) -> str:
    online = (cells.online * cells.sizes[:, None]).sum(axis=0)
    ends = "; ".join(
        f"{label} ends at {h['mean_percent'].iloc[-1]:.1f} % mean accuracy,"
        f" {h['worst10_percent'].iloc[-1]:.1f} % for the worst 10 % of clients"
        for label, h in histories.items()
        if len(h) and np.isfinite(h["mean_percent"].iloc[-1])
    )
    return (
        f"Clients by virtual time beside accuracy. Map of {int(cells.sizes.sum())} clients of {shown.label}, of which"
        f" {online.min():.0f} to {online.max():.0f} are online, and line charts of accuracy. {ends}."
    )
