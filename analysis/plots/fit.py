"""A trace compared with a world simulated from its fit."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import NullFormatter

from fedsim.analysis.drawing.picture import INK, Picture, arm_keys, arm_style, panels
from fedsim.analysis.worlds.fitting.comparison import FitComparison
from fedsim.analysis.worlds.fitting.portrait import CURVE_LAGS_H, Curve
from fedsim.analysis.worlds.fitting.spells import HOURS
from fedsim.common import arguments
from fedsim.common.arrays import Floats

_SHOWN_BELOW = 0.99
"""The logarithmic axis starts where at least 1 % of spells are shorter."""
NAMES = ("trace", "simulated from the fit")


@arguments.checked
def fit_picture(comparison: FitComparison, title: str = "") -> Picture:
    """Draw lengths, clients' shares, hours of the day and autocorrelation of a trace and of its simulation."""
    both = (comparison.trace, comparison.simulated)
    figure, axes = panels([1.5] * 5, share_x=False, width_in=6.0)
    _longer(axes[0], "online", [part.on for part in both])
    _longer(axes[1], "offline", [part.off for part in both])
    _shares(axes[2], [part.shares for part in both])
    _day(axes[3], [part.day for part in both])
    for i, part in enumerate(both):
        axes[4].plot(CURVE_LAGS_H, part.autocorrelation, **arm_style(i))
    axes[4].set_xticks(range(0, CURVE_LAGS_H[-1] + 1, 6))
    _label(axes[4], "lag, hours", "autocorrelation")
    if title:
        axes[0].set_title(title, fontsize=10, color=INK, loc="left")
    axes[0].legend(axes[0].get_lines(), NAMES, fontsize=8, frameon=False, labelcolor=INK)
    return Picture(
        figure, _alt(comparison), "A trace beside a world simulated from its fit.", arm_keys(NAMES)
    )


def _longer(ax: Axes, state: str, curves: list[Curve]) -> None:
    for i, curve in enumerate(curves):
        times = np.concatenate([[1e-9], curve.hours])
        ax.step(times, np.concatenate([[1.0], curve.longer]), where="post", **arm_style(i))
    shown = np.concatenate([curve.hours[curve.longer < _SHOWN_BELOW] for curve in curves])
    ax.set_ylim(-0.02, 1.05)
    if len(shown):
        ax.set_xscale("log")
        low, high = shown.min() / 1.5, shown.max() * 1.5
        ax.set_xlim(low, high)
        ax.xaxis.set_major_formatter("{x:g}")
        ax.xaxis.set_minor_formatter("{x:g}" if high < 20 * low else NullFormatter())
    _label(ax, f"hours {state}", "share longer")


def _shares(ax: Axes, shares: list[Floats]) -> None:
    for i, share in enumerate(shares):
        ax.step(share, np.arange(1, len(share) + 1) / max(len(share), 1), where="post", **arm_style(i))
    ax.set_xlim(0, 1)
    _label(ax, "share of time online", "share of clients")


def _day(ax: Axes, days: list[Floats]) -> None:
    for i, day in enumerate(days):
        if len(day):
            ax.stairs(day, np.arange(HOURS + 1), baseline=None, **arm_style(i))
    if not len(days[0]):
        ax.text(0.5, 0.5, "shorter than a day", transform=ax.transAxes, ha="center", color=INK, fontsize=9)
    ax.set_xlim(0, HOURS)
    ax.set_xticks(range(0, HOURS + 1, 3))
    ax.set_ylim(bottom=0)
    _label(ax, "hour after the world's start, of each day", "share online")


def _label(ax: Axes, x: str, y: str) -> None:
    ax.set_xlabel(x, fontsize=9)
    ax.set_ylabel(y, fontsize=8)


def _alt(comparison: FitComparison) -> str:
    return "Five panels, a trace and its simulation: " + "; ".join(map(str, comparison.statistics))
