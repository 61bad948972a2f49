"""Curves over many steps: the mean and the range of neighbouring steps."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes

from fedsim.analysis.drawing.picture import arm_style, spans
from fedsim.common.arrays import Floats

BAND_ALPHA = 0.18


def draw_band(ax: Axes, x: Floats, low: Floats, middle: Floats, high: Floats, index: int) -> None:
    """Draw a curve in the style of arm `index` over the area from `low` to `high` (all [N]; NaN leaves a gap)."""
    style = arm_style(index)
    ax.fill_between(x, low, high, color=style["color"], alpha=BAND_ALPHA, linewidth=0)
    ax.plot(x, middle, marker="o" if len(x) == 1 else None, markersize=4, **style)


def over_steps(ax: Axes, x: Floats, y: Floats, index: int) -> None:
    """Draw values over steps; many steps become means of neighbours with the area from the least to the largest.

    Steps whose value is NaN are left out.
    """
    known = ~np.isnan(y)
    if not known.any():
        return
    x, y = x[known], y[known]
    starts = np.flatnonzero(np.diff(spans(len(y)), prepend=-1))
    counts = np.diff(np.append(starts, len(y)))
    middle = np.add.reduceat(y, starts) / counts
    at = x[starts + counts - 1]
    draw_band(ax, at, np.minimum.reduceat(y, starts), middle, np.maximum.reduceat(y, starts), index)
