"""Conflicts of steps with present and absent clients over virtual time: their shares and angles."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from fedsim.analysis.drawing.picture import (
    GREY,
    Key,
    Picture,
    arm_keys,
    from_zero,
    label_panels,
    panels,
    time_unit,
)
from fedsim.analysis.opening.run import Run
from fedsim.analysis.plots.bands import draw_band, over_steps
from fedsim.analysis.statistics.observatory import KINDS, angles_deg, over_time, recorded
from fedsim.common.arrays import Floats
from fedsim.common.errors import FolderError

if TYPE_CHECKING:
    import pandas as pd

_COUNTS_LABELS = ("pairs in\nconflict, %", "updates against\nthe step, %", "largest\nangle, °")
_COUNTS_CAPTION = (
    "Conflicts over virtual time: pairs of updates at more than 90° from each other, updates at more than 90° from"
    " the direction, and the largest angle between the direction and an update. The area goes from the least to the"
    " largest of neighbouring steps."
)
_ANGLES_LABELS = ("updates against\nthe step, %", "angle to the\ndirection, °")
_ANGLES_CAPTION = (
    "Updates of a step at more than 90° from its direction (above), and the median of their angles with the"
    " area from the 10 % to the 90 % quantile (below): those of present clients, and remembered ones of absent"
    " clients."
)


def conflict_counts(run: Run) -> Picture:
    """Draw the conflicts in `steps.parquet`, which every run has whose rule needs inner products.

    Raises FolderError if the rule needs none.
    """
    steps = run.frame("steps")
    steps = steps[(steps.updates > 0) & (steps.model_conflicts >= 0)]
    if steps.empty:
        raise FolderError(
            f"{run.folder}: no step has inner products of updates, which its rule does not need"
        )
    figure, axes = panels([1.35] * 3)
    scale, unit = time_unit(int(steps.time_us.max()))
    x = steps.time_us.to_numpy() / scale
    present, among = _conflicts_percent(steps)
    over_steps(axes[0], x, among, 2)
    over_steps(axes[1], x, present, 0)
    for index, column in enumerate(("smallest_cosine", "smallest_absent_cosine")):
        over_steps(axes[2], x, angles_deg(steps[column].to_numpy()), index)
    axes[2].axhline(90, color=GREY, linewidth=0.8)
    from_zero(axes[0])
    from_zero(axes[1])
    label_panels(figure, axes, _COUNTS_LABELS, f"virtual time, {unit}")
    alt = (
        f"Three line charts of conflicts over virtual time. On average {np.nanmean(present):.1f} % of the updates"
        f" of a step were against its direction, and {_mean(among):.1f} % of the pairs of updates against each other."
    )
    return Picture(figure, alt, _COUNTS_CAPTION, _keys(bool(steps.smallest_absent_cosine.notna().any())))


def _conflicts_percent(steps: pd.DataFrame) -> tuple[Floats, Floats]:
    """Return the shares of updates against the direction, and of pairs of updates in conflict, NaN without pairs."""
    pairs = (steps.updates * (steps.updates - 1) / 2).to_numpy()
    none = np.full(len(pairs), np.nan)
    among = 100 * np.divide(steps.conflicts.to_numpy(), pairs, out=none, where=pairs > 0)
    return 100 * (steps.model_conflicts / steps.updates).to_numpy(), among


def conflict_angles(run: Run) -> Picture:
    """Draw the share of updates against the direction and their angles, present and absent.

    Raises FolderError if the run did not record conflicts.
    """
    conflicts = over_time(recorded(run), run.frame("steps").set_index("step").time_us)
    figure, axes = panels([1.5, 1.8])
    scale, unit = time_unit(int(conflicts.time_us.max()))
    words = []
    for index, kind in enumerate(KINDS):
        rows = conflicts[conflicts.kind == kind]
        if rows.empty:
            continue
        x = rows.time_us.to_numpy() / scale
        share = rows.conflict_percent.to_numpy()
        draw_band(axes[0], x, share, share, share, index)
        low, middle, high = (rows[f"angle{which}_deg"].to_numpy() for which in ("_low", "", "_high"))
        draw_band(axes[1], x, low, middle, high, index)
        mean, angle = np.average(share, weights=rows.rows), rows.angle_deg.median()
        words.append(f"{kind}: {mean:.1f} % of updates against it, median angle {angle:.1f}°")
    from_zero(axes[0])
    axes[1].axhline(90, color=GREY, linewidth=0.8)
    label_panels(figure, axes, _ANGLES_LABELS, f"virtual time, {unit}")
    alt = f"Two line charts of updates of the step against its direction. {'; '.join(words)}."
    return Picture(figure, alt, _ANGLES_CAPTION, _keys("absent" in set(conflicts.kind)))


def _keys(absent: bool) -> tuple[Key, ...]:
    return arm_keys(["present clients", "absent clients, remembered"]) if absent else ()


def _mean(values: Floats) -> float:
    return float(np.nanmean(values)) if not np.isnan(values).all() else 0.0
