"""Metrics over virtual time or steps: the mean over seeds, and the range of the seeds."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal

import numpy as np
from matplotlib.axes import Axes

from fedsim.analysis.drawing.picture import (
    POINTS,
    Picture,
    arm_keys,
    label_panels,
    panels,
    time_unit,
    whole_numbers,
)
from fedsim.analysis.plots.accuracy_over_time import evaluated_note
from fedsim.analysis.plots.bands import draw_band
from fedsim.analysis.tables.headings import heading_of
from fedsim.common.arrays import Floats

if TYPE_CHECKING:
    import pandas as pd


def study_curves(
    histories: Mapping[str, Sequence[pd.DataFrame]],
    metrics: Sequence[str],
    by: Literal["time", "step"],
    where: str = "",
) -> Picture:
    """Draw metrics of each level over virtual time or server steps.

    `histories` has `Run.history` of each seed's run by level; `where` describes the levels that are equal.
    """
    column = "time_us" if by == "time" else "step"
    longest = max((int(h[column].max()) for hs in histories.values() for h in hs if len(h)), default=0)
    scale, unit = time_unit(longest) if by == "time" else (1.0, "")
    figure, axes = panels([1.35] * len(metrics))
    words = []
    for index, (level, runs) in enumerate(histories.items()):
        if evaluated := [h for h in runs if len(h)]:
            x, values = on_one_grid(evaluated, column, metrics)
            _draw_level(axes, x / scale, values, index)
            words.append(f"{level} ends with {_ends(metrics, values)} over {len(evaluated)} seeds")
    for ax in axes:
        ax.margins(x=0.02, y=0.08)
    if by == "step":
        whole_numbers(axes[-1].xaxis)
    over = f"virtual time, {unit}" if by == "time" else "server steps"
    label_panels(figure, axes, [textwrap.fill(heading_of(metric), 16) for metric in metrics], over)
    among = f" ({where})" if where else ""
    caption = (
        f"Metrics over {over}{among}: the mean over seeds, with the area from the least to the largest seed, as far as"
        " all seeds went."
    ) + evaluated_note(h for hs in histories.values() for h in hs)
    alt = f"{len(metrics)} line charts over {over}{among}. {'; '.join(words)}."
    return Picture(figure, alt, caption, arm_keys(list(histories)))


def _draw_level(axes: Sequence[Axes], x: Floats, values: Sequence[Floats], index: int) -> None:
    """Draw each metric's [seeds, N] values of one level into its panel."""
    for ax, table in zip(axes, values, strict=True):
        draw_band(ax, x, table.min(axis=0), table.mean(axis=0), table.max(axis=0), index)


def _ends(metrics: Sequence[str], values: Sequence[Floats]) -> str:
    """Return the final mean of each metric over seeds in words."""
    ends = ((metric, each[:, -1].mean()) for metric, each in zip(metrics, values, strict=True))
    return ", ".join(
        f"{heading_of(metric)} {'unknown' if np.isnan(end) else f'{end:.3g}'}" for metric, end in ends
    )


def on_one_grid(
    histories: Sequence[pd.DataFrame], column: str, metrics: Sequence[str]
) -> tuple[Floats, list[Floats]]:
    """Return points [N] at which any run was evaluated, in the range of all runs, and each metric [seeds, N].

    Between evaluations a run keeps the values of its last one.
    """
    points = [h[column].to_numpy(dtype=np.float64) for h in histories]
    first, last = max(p[0] for p in points), min(p[-1] for p in points)
    every = np.unique(np.concatenate(points))
    grid = every[(every >= first) & (every <= last)]
    if not len(grid):  # some run ended before another was first evaluated
        grid = np.array([first])
    grid = grid[np.unique(np.linspace(0, len(grid) - 1, min(len(grid), POINTS)).round().astype(int))]
    at = [np.maximum(np.searchsorted(p, grid, side="right") - 1, 0) for p in points]
    return grid, [np.stack([h[m].to_numpy()[i] for h, i in zip(histories, at, strict=True)]) for m in metrics]
