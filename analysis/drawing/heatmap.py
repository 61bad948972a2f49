"""Heat maps with a colour scale that colour-blind readers can distinguish."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm, Normalize
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from fedsim.analysis.drawing.picture import INK
from fedsim.common.arrays import Floats

COLOURS = "cividis"
"""Nuñez, Anderton and Renslow, PLoS ONE 13(7), 2018: looks the same with and without deuteranomaly."""


LEAST_IN = 1.6
"""Smallest total height of the panels, in inches, beside which the label of a scale fits."""


def heat(ax: Axes, values: Floats, edges: Sequence[float], norm: Normalize) -> None:
    """Draw `values` [rows, columns]: row i from i to i + 1 downwards, columns from `edges[0]` to `edges[-1]`.

    NaN stays transparent.
    """
    extent = (edges[0], edges[-1], len(values), 0)
    ax.imshow(values, norm=norm, cmap=COLOURS, extent=extent, aspect="auto", interpolation="none")
    ax.grid(visible=False)


def scale_beside(figure: Figure, axes: Sequence[Axes], label: str) -> None:
    """Draw the colour scale of the first panel to the right of all panels."""
    bar = figure.colorbar(axes[0].images[0], ax=list(axes), pad=0.01, aspect=30)
    bar.set_label(label, fontsize=9, color=INK)
    bar.ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    bar.ax.tick_params(labelsize=9, colors=INK, which="both")
    bar.outline.set_edgecolor(INK)


def shares() -> Normalize:
    """Return the colour scale of shares in percent."""
    return Normalize(0, 100)


def powers(tables: Sequence[Floats]) -> Normalize:
    """Return a logarithmic colour scale over four powers of ten up to the largest value."""
    largest = max((float(np.nanmax(t)) for t in tables if (t > 0).any()), default=1.0)
    return LogNorm(largest / 1e4, largest, clip=True)
