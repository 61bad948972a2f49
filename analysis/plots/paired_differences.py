"""Paired differences of each level from the baseline: every seed, the mean and its interval."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes

from fedsim.analysis.drawing.picture import COLOURS, GREY, Picture, arm_marker, panels
from fedsim.analysis.statistics.paired.differences import PairedDifference
from fedsim.analysis.tables.headings import heading_of, heading_of_difference

_BELOW, _SPREAD = 0.27, 0.16
"""Distance of the seeds' marks below a level's line, and their vertical spread, so that equal values are visible."""


def paired_differences(differences: Sequence[PairedDifference], levels: Sequence[str]) -> Picture:
    """Draw differences by one metric at one point, in a panel for each combination of the other levels.

    `levels` are all levels of the axis, which decide the colours, as in `study_curves`.
    """
    groups: dict[str, list[PairedDifference]] = {}
    for each in differences:
        groups.setdefault(each.where, []).append(each)
    figure, axes = panels([0.34 + 0.42 * len(group) for group in groups.values()])
    for ax, (where, group) in zip(axes, groups.items(), strict=True):
        ax.axvline(0, color=GREY, linewidth=1)
        for y, each in enumerate(group):
            _draw(ax, y, each, levels.index(each.level))
        ax.set_yticks(range(len(group)), [each.level for each in group])
        ax.set_ylim(len(group) - 0.45, -0.45)
        ax.grid(visible=False, axis="y")
        if where:
            ax.set_title(where, fontsize=9, loc="left", color=ax.xaxis.label.get_color())
    first = differences[0]
    axes[-1].set_xlabel(f"difference of {_label(first.metric)}", fontsize=9)
    return Picture(figure, _alt(differences), _caption(first))


def _draw(ax: Axes, y: int, each: PairedDifference, index: int) -> None:
    colour, marker = COLOURS[index % len(COLOURS)], arm_marker(index)
    for i, value in enumerate(each.values):
        offset = _BELOW + _SPREAD * ((i + 0.5) / each.n - 0.5)
        ax.plot(value, y + offset, marker=marker, markersize=4.5, color=colour, alpha=0.6, markeredgewidth=0)
    if each.t_interval is not None:
        ax.plot(each.t_interval, (y, y), color=colour, linewidth=0.9, solid_capstyle="butt")
    if each.interval is not None:
        ax.plot(each.interval, (y, y), color=colour, linewidth=2.2, solid_capstyle="butt")
    if each.n:
        ax.plot(each.mean, y, marker=marker, markersize=8, color=colour)


def _label(metric: str) -> str:
    return ", ".join(filter(None, heading_of_difference(metric)))


def _caption(first: PairedDifference) -> str:
    wanted: str = first.better_is
    if wanted == "nearer zero":
        wanted = f"a {heading_of(first.metric).partition(',')[0]} nearer to 0"
    return (
        f"{heading_of(first.metric)}: level minus {first.baseline}, paired by seed; {wanted} is better. Small marks are"
        " seeds, the large one their mean, the bar its 95 % bootstrap interval and the thin line that of Student's t."
    )


def _alt(differences: Sequence[PairedDifference]) -> str:
    words = []
    for each in differences:
        where = f" ({each.where})" if each.where else ""
        if not each.n:
            words.append(f"{each.level}{where}: no seed with both runs")
            continue
        sure = (
            "" if each.interval is None else f", interval {each.interval[0]:+.3g} to {each.interval[1]:+.3g}"
        )
        words.append(f"{each.level}{where}: mean {each.mean:+.3g}{sure}, {each.n} seeds")
    first = differences[0]
    title = f"Differences from {first.baseline} in {_label(first.metric)}, paired by seed"
    return f"{title}. {'; '.join(words)}."
