"""Interactions of two axes of a study: whether the difference of a level depends on the level of another axis."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from fedsim.analysis.opening.points import Point
from fedsim.analysis.opening.study import Study
from fedsim.analysis.statistics.paired.differences import PairedDifference, corrected, differences_of
from fedsim.common import arguments
from fedsim.common.errors import FolderError

if TYPE_CHECKING:
    import pandas as pd


@arguments.checked
def interactions(
    study: Study, metric: str, at: Point = "end", *, split: str | None = None
) -> list[PairedDifference]:
    """Test whether the differences of a metric from the baseline depend on the level of each other axis.

    For a level a of the compared axis with the baseline 0, and a level b of another axis, whose first level at which a
    level was run beside the baseline is 0, the values are by seed `(x_ab - x_0b) - (x_a0 - x_00)`. In the result,
    `axis`, `level` and `baseline` are those of the other axis, and `others` has a; tests, intervals and the correction
    (for all interactions of the metric together) are those of `differences`. Two differences of which one has a small
    p value and the other has not need not differ. Those without a single pair, such as of cells that the study skips,
    are left out. `at` and `split` are as in `Study.frame`; all four runs of a seed are compared at a point that they
    have in common, which may be an earlier one than that of `differences`. Raises FolderError for a run with too few
    evaluations, ConfigError for an unknown metric or point.
    """
    among = study.axis()
    base = study.baseline(among)
    compared = replace(study, cells=tuple(cell for cell in study.cells if cell.levels[among] != base))
    found: list[PairedDifference] = []
    for axis in study.axes:
        if axis == among or len(study.planned(axis)) < 2:
            continue
        gains = _gains(study, study.frame([metric], at, split, (among, axis)), metric)
        known = set(gains[axis][gains[metric].notna()])
        levels = [level for level in study.axes[axis] if level in known]
        if len(levels) < 2:
            continue
        other = replace(compared, compare={"axis": axis, "baseline": levels[0], "test": study.test})
        try:
            found += [each for each in differences_of(other, gains, metric, at) if each.n]
        except FolderError:
            continue  # no two levels of this axis have equal levels of the others
    return corrected(found)


def _gains(study: Study, frame: pd.DataFrame, column: str) -> pd.DataFrame:
    """Return the rows of all levels but the baseline, with the difference from the baseline's row of the same seed."""
    among = study.axis()
    beside = [*(axis for axis in study.axes if axis != among), "seed"]
    is_base = np.asarray(frame[among] == study.baseline(among))
    base = frame[is_base].set_index(beside)[column]
    rows = frame[~is_base][[*study.axes, "seed", column]]
    return rows.assign(
        **{column: rows[column].to_numpy() - base.reindex(rows.set_index(beside).index).to_numpy()}
    )
