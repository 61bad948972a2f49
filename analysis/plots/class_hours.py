"""Online share of each class of data by hour of the day."""

from __future__ import annotations

import numpy as np

from fedsim.analysis.drawing.picture import INK, Picture, panels, whole_numbers
from fedsim.common.arrays import Floats


def class_hours_picture(shares: Floats) -> Picture:
    """Draw the share of each class's samples whose client is online, by hour of the day; `shares` is [classes, 24]."""
    classes = len(shares)
    figure, (ax,) = panels([min(max(0.28 * classes, 1.6), 6.0)], width_in=7.0)
    image = ax.imshow(
        100 * shares,
        aspect="auto",
        interpolation="nearest",
        cmap="Blues",
        extent=(0, 24, classes - 0.5, -0.5),
    )
    ax.grid(visible=False)
    ax.set_xticks(range(0, 25, 3))
    whole_numbers(ax.yaxis, 12)
    ax.set_xlabel("hour of the day", fontsize=9)
    ax.set_ylabel("class", fontsize=9)
    bar = figure.colorbar(image, ax=ax, pad=0.02)
    bar.set_label("% of its samples online", fontsize=9, color=INK)
    bar.ax.tick_params(labelsize=8, colors=INK)
    return Picture(
        figure, extremes(shares), "For each class, the share of its samples that is with a client online."
    )


def extremes(shares: Floats) -> str:
    """Return a sentence on the classes that are online most and least."""
    known = np.flatnonzero(np.isfinite(shares).any(axis=1))
    if not len(known):
        return "No class has samples."
    mean = np.nanmean(shares[known], axis=1)
    low, high = known[mean.argmin()], known[mean.argmax()]
    return (
        f"Class {high} is online most, {100 * mean.max():.1f} % of its samples on average over the day; "
        f"class {low} least, {100 * mean.min():.1f} %."
    )
