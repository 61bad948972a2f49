"""Elements of all pictures: colours that colour-blind readers can distinguish, axes, units of time."""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.colors import is_color_like, to_rgba
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from fedsim.common.arrays import Ints
from fedsim.common.units import DAY_US, HOUR_US

INK = "#0a0b0c"
"""Text and axes; `fedsim.analysis.drawing.svg` replaces it by the colour of the surrounding text."""
GREY = "#808080"

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", GREY)
"""Okabe and Ito, "Color universal design", 2008; without yellow and black, invisible on light or dark pages."""
DASHES = ("solid", (0, (5, 2)), (0, (5, 1.5, 1, 1.5)), (0, (1, 1.5)))
MARKERS = {
    "o": "M9 6a4 4 0 1 0 8 0a4 4 0 1 0-8 0",
    "s": "M9.5 2.5h7v7h-7z",
    "^": "M13 1.5l4.5 8h-9z",
    "D": "M13 1l5 5-5 5-5-5z",
}
"""Markers by their name in matplotlib, with their outline in a legend's box of 26 x 12."""
POINTS = 150
"""Most points of a curve over steps."""

WIDTH_IN = 5.0
_DOTS_PER_INCH = 110
"""Of figures in notebooks."""
_UNITS = ((7 * DAY_US, DAY_US, "days"), (3 * HOUR_US, HOUR_US, "hours"), (300e6, 60e6, "minutes"))


@dataclass(frozen=True, slots=True)
class Key:
    """One entry of a legend."""

    label: str
    colour: str
    dashes: tuple[float, ...] = ()
    """Lengths of strokes and gaps; empty for a solid line."""
    area: bool = False
    """Whether the entry is an area, not a line."""
    marker: str = ""
    """One of `MARKERS`, or none."""


@dataclass(frozen=True, slots=True)
class Picture:
    """A figure with its texts. The legend is not part of the figure, so that it can wrap on a narrow page."""

    figure: Figure
    alt: str
    """Description of the picture for screen readers."""
    caption: str
    keys: tuple[Key, ...] = ()


def arm_style(index: int) -> dict[str, Any]:
    """Return the line style of arm `index`: a colour, and dashes for print without colour."""
    return {
        "color": COLOURS[index % len(COLOURS)],
        "linestyle": DASHES[index % len(DASHES)],
        "linewidth": 1.6,
    }


def arm_keys(labels: Sequence[str], *, markers: bool = False) -> tuple[Key, ...]:
    """Return the legend of the arms, in the order of their styles; empty for a single arm."""
    if len(labels) < 2:
        return ()
    return tuple(
        Key(label, COLOURS[i % len(COLOURS)], _dashes(i), marker=arm_marker(i) if markers else "")
        for i, label in enumerate(labels)
    )


def arm_marker(index: int) -> str:
    """Return the marker of arm `index`."""
    return list(MARKERS)[index % len(MARKERS)]


def spans(n: int, most: int = POINTS) -> Ints:
    """Return the group of each of `n` rows: at most `most` groups of equally many neighbouring rows."""
    return np.arange(n) * min(n, most) // max(n, 1)


class NotebookFigure(Figure):
    """A figure that notebooks show also where pyplot, which tells them how to, was never imported."""

    def _repr_png_(self) -> bytes:
        png = io.BytesIO()
        self.savefig(png, format="png", dpi=_DOTS_PER_INCH)
        return png.getvalue()


def panels(
    heights: Sequence[float], *, share_x: bool = True, width_in: float = WIDTH_IN
) -> tuple[Figure, list[Axes]]:
    """Return a figure of stacked panels with `heights` in inches, without matplotlib's global state."""
    figure = NotebookFigure(figsize=(width_in, sum(heights) + 0.35), layout="constrained")
    figure.patch.set_alpha(0)
    grid = figure.subplots(
        len(heights), 1, sharex=share_x, squeeze=False, gridspec_kw={"height_ratios": heights}
    )
    axes = list(grid[:, 0])
    for ax in axes:
        plain_axes(ax)
    return figure, axes


def label_panels(figure: Figure, axes: Sequence[Axes], labels: Iterable[str], below: str) -> None:
    """Label the vertical axis of each panel, and below the last one the axis that they share."""
    for ax, label in zip(axes, labels, strict=True):
        ax.set_ylabel(label, fontsize=9)
    axes[-1].set_xlabel(below, fontsize=9)
    figure.align_ylabels(axes)


def whole_numbers(axis: Axis, ticks: int = 8) -> None:
    """Put ticks at whole numbers only."""
    axis.set_major_locator(MaxNLocator(nbins=ticks, integer=True, min_n_ticks=1))


def from_zero(ax: Axes) -> None:
    """Let the vertical axis start at zero and reach at least 1, so that zeros are a line at the bottom."""
    ax.set_ylim(0, max(ax.get_ylim()[1], 1.0))


def time_unit(span_us: int) -> tuple[float, str]:
    """Return microseconds per unit and the unit's name for an axis of `span_us` of virtual time."""
    return next(((scale, name) for least, scale, name in _UNITS if span_us >= least), (1e6, "seconds"))


def repaint(figure: Figure, ink: str) -> None:
    """Give all text, axes and lines of a figure that have the colour `INK` another one."""
    for ax in figure.axes:
        ax.tick_params(colors=ink, grid_color=ink)
    for artist in figure.findobj():
        for part in ("color", "edgecolor", "facecolor"):
            colour: Any = getattr(artist, f"get_{part}", lambda: None)()
            if is_color_like(colour) and to_rgba(colour)[:3] == to_rgba(INK)[:3]:
                getattr(artist, f"set_{part}")((ink, to_rgba(colour)[3]))


def plain_axes(ax: Axes) -> None:
    """Give axes the look of all pictures: ink, small ticks, a faint grid, no frame."""
    ax.patch.set_alpha(0)
    ax.spines[["top", "right"]].set_visible(False)
    ax.spines[["left", "bottom"]].set_color(INK)
    ax.tick_params(colors=INK, labelsize=9)
    ax.xaxis.label.set_color(INK)
    ax.yaxis.label.set_color(INK)
    ax.grid(color=INK, alpha=0.15, linewidth=0.6)
    ax.set_axisbelow(True)


def _dashes(index: int) -> tuple[float, ...]:
    style = DASHES[index % len(DASHES)]
    return () if isinstance(style, str) else tuple(style[1])
