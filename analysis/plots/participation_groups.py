"""Fairness against participation: the accuracy of groups of clients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from fedsim.analysis.drawing.picture import Picture, arm_keys, arm_marker, arm_style, panels
from fedsim.analysis.statistics.participation import in_order
from fedsim.common.arrays import Mask
from fedsim.common.terminal import from_to

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

_SHIFT = 0.5
"""Share of a group's width over which arms are placed side by side."""
_WORD = 14
_UNITS = {"compute": ", samples/s", "downlink": ", bytes/s", "uplink": ", bytes/s"}
"""Units of the columns by which clients are grouped."""


def participation_groups(tables: Mapping[str, pd.DataFrame], interval: str, where: str = "") -> Picture:
    """Draw the mean accuracy of groups of clients, each client counting once, for each arm by label.

    Each table has a row per group: `by` (a panel each), `group`, `mean_percent`, the ends of an interval, `low` and
    `high`, NaN without one, and the `fewest` and the `most` clients of the group, equal in a run; and `seeds`, if it is
    a mean over seeds: marks of groups that fewer seeds have than others of the table are hollow. `interval` describes
    the interval in words, `where` the levels that are equal among arms.
    """
    kinds = list(dict.fromkeys(by for table in tables.values() for by in table["by"]))
    figure, axes = panels([1.75] * len(kinds), share_x=False)
    words = []
    for ax, by in zip(axes, kinds, strict=True):
        grouped = {label: table[table["by"] == by] for label, table in tables.items()}
        _draw_groups(ax, list(grouped.values()))
        for label, table in grouped.items():
            if table["mean_percent"].notna().any():
                low = table.loc[table["mean_percent"].idxmin()]
                words.append(
                    f"{label}, by {_plain(by)}: worst group {low['group']} with {low['mean_percent']:.1f} %"
                )
        ax.set_xlabel(f"{_plain(by)}{_UNITS.get(by, '')} (number of clients)", fontsize=9)
        ax.set_ylabel("mean\naccuracy, %", fontsize=9)
    figure.align_ylabels(axes)
    among = f" ({where})" if where else ""
    alt = f"Mean accuracy of groups of clients{among}. {'; '.join(words)}."
    caption = f"Mean accuracy of groups of clients{among}, each client counting once; the bar is {interval}."
    if any(_lacking(table).any() for table in tables.values()):
        caption += " Hollow marks are means over fewer seeds, as not each seed has such clients."
    return Picture(figure, alt, caption, arm_keys(list(tables), markers=True))


def _draw_groups(ax: Axes, tables: Sequence[pd.DataFrame]) -> None:
    """Draw the groups of each arm side by side."""
    import pandas as pd

    names = in_order(name for table in tables for name in table["group"])
    for index, table in enumerate(tables):
        at = np.array([names.index(name) for name in table["group"]], dtype=np.float64)
        at += _SHIFT * ((index + 0.5) / len(tables) - 0.5)
        style = arm_style(index)
        ax.vlines(at, table["low"], table["high"], color=style["color"], linewidth=1.4)
        mean, hollow, marker = table["mean_percent"].to_numpy(), _lacking(table), arm_marker(index)
        full = np.flatnonzero(~hollow).tolist()
        ax.plot(at, mean, marker=marker, markevery=full, markersize=5, alpha=0.9, **style)
        few = {**style, "linestyle": "none", "markerfacecolor": "none", "marker": marker, "markersize": 5}
        ax.plot(at[hollow], mean[hollow], **few)
    together = pd.concat([table for table in tables if len(table)]).groupby("group")
    fewest, most = together["fewest"].min(), together["most"].max()
    counts = [f"({from_to(fewest[name], most[name])})" for name in names]
    ax.set_xticks(range(len(names)), [f"{_short(name)}\n{n}" for name, n in zip(names, counts, strict=True)])
    ax.set_xlim(-0.6, len(names) - 0.4)


def _lacking(table: pd.DataFrame) -> Mask:
    """Return which groups fewer seeds have than another one of the table."""
    seeds = table["seeds"].to_numpy() if "seeds" in table else np.ones(len(table))
    return np.asarray(seeds < seeds.max(initial=0))


def _plain(name: str) -> str:
    return name.replace("_", " ")


def _short(name: str) -> str:
    return name if len(name) <= _WORD else f"{name[: _WORD - 1]}…"
