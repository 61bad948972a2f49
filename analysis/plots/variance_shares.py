"""Shares of the seeds of data, world and training in the variance of a metric."""

from __future__ import annotations

from collections.abc import Sequence

from fedsim.analysis.drawing.picture import COLOURS, Key, Picture, panels
from fedsim.analysis.statistics.variance.study_components import VarianceComponents


def variance_shares(found: Sequence[VarianceComponents]) -> Picture:
    """Draw a bar for each combination of the other axes' levels, from `variance_components`, divided by source."""
    figure, (ax,) = panels([0.35 + 0.3 * len(found)])
    sources = [" × ".join(each.factors) for each in found[0].components]
    left = [0.0] * len(found)
    for i in range(len(sources)):
        shares = [100 * each.share(each.components[i]) if each.variance else 0.0 for each in found]
        ax.barh(range(len(found)), shares, left=left, color=COLOURS[i % len(COLOURS)], height=0.7)
        left = [start + share for start, share in zip(left, shares, strict=True)]
    ax.set_yticks(range(len(found)), [each.name for each in found])
    ax.set_ylim(len(found) - 0.45, -0.55)
    ax.set_xlim(0, 100)
    ax.grid(visible=False, axis="y")
    ax.set_xlabel("share of the variance of one run, %", fontsize=9)
    keys = tuple(Key(source, COLOURS[i % len(COLOURS)], area=True) for i, source in enumerate(sources))
    words = "; ".join(
        f"{each.name}: "
        + ", ".join(
            f"{source} {100 * each.share(part):.0f} %"
            for source, part in zip(sources, each.components, strict=True)
        )
        for each in found
    )
    caption = (
        "Shares of the variance components: a source alone is what its seed moves in all runs alike, × an interaction,"
        " the last one with all other noise. Estimates below 0 count as 0."
    )
    return Picture(figure, f"Stacked bars of variance shares. {words}.", caption, keys)
