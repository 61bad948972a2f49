"""How long runs take to a target: steps, virtual time or bytes until a metric reaches a value, paired by seed."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from scipy import stats

from fedsim import plugins
from fedsim.analysis.opening.evaluation import latest, on_common_clients
from fedsim.analysis.opening.points import COLUMN_OF
from fedsim.analysis.opening.study import Cell, Study
from fedsim.analysis.statistics.paired.differences import CONFIDENCE, comparisons, side_of
from fedsim.analysis.statistics.paired.significance import holm, sign_test
from fedsim.common import arguments
from fedsim.common.arrays import Floats
from fedsim.engine.state import at_or_beyond

if TYPE_CHECKING:
    import pandas as pd

Unit = Literal["steps", "time", "bytes"]


@dataclass(frozen=True, slots=True)
class SpeedUp:
    """How much faster a level is to a target than the baseline, paired by seed."""

    level: str
    baseline: str
    others: dict[str, str]
    """The level of each other axis, equal on both sides."""
    seeds: tuple[int, ...]
    """Seeds for which both runs are done and at least one reached the target."""
    ratios: Floats
    """The steps, time or bytes of the baseline divided by those of the level, one number per seed: 0 where only the
    baseline reached the target, inf where only the level did."""
    interval: tuple[float, float] | None
    """Interval of the median with a coverage of at least 95 %; None below 6 seeds."""
    p_value: float
    """Two-sided p value of the exact sign test; NaN without seeds."""
    p_holm: float = math.nan
    """`p_value` with Holm's correction for all comparisons in the same list."""

    @property
    def median(self) -> float:
        """The median of the ratios; NaN without seeds, or if half of them are 0 and half are inf.

        Of an even number it is the geometric mean of the middle two, so that the baseline's speed-up over the level is
        the reciprocal.
        """
        ordered, n = np.sort(self.ratios), len(self.ratios)
        if not n:
            return math.nan
        with np.errstate(invalid="ignore"):  # 0 times inf
            return float(np.sqrt(ordered[(n - 1) // 2] * ordered[n // 2]))

    @property
    def faster(self) -> int:
        """The number of seeds in which the level was faster."""
        return int((self.ratios > 1).sum())


@arguments.checked
def time_to_target(study: Study, metric: str, value: float) -> pd.DataFrame:
    """Return one row per finished run: how far it had come when a metric first reached a value.

    Columns: one per axis, `seed`, `step`, `time_us`, `bytes`; inf where the run ended before it reached the value. The
    value is reached at the first evaluation at which the metric is at least `value` but for rounding, or at most for a
    metric of which smaller values are better, on the clients that all evaluations of the run have. With the study's
    `last`, that is the mean of the last evaluations up to there. Raises ConfigError for an unknown metric, FolderError
    for a run whose folder is missing or that has fewer than `last` evaluations.
    """
    import pandas as pd  # imported here: opening a study does not need it

    rows = [
        {**cell.levels, "seed": cell.seed, **_reached(study, cell, metric, value)} for cell in study.finished
    ]
    return pd.DataFrame(rows, columns=[*study.axes, "seed", *COLUMN_OF.values()])


def _reached(study: Study, cell: Cell, metric: str, value: float) -> dict[str, float]:
    run = study.run(cell)  # raises an error if its evaluations before the end are gone
    evaluations = on_common_clients(study.evaluations(cell))
    latest(run.folder, evaluations, study.last)
    values = np.array([each.summary([metric])[metric] for each in evaluations], dtype=np.float64)
    means = np.lib.stride_tricks.sliding_window_view(values, study.last).mean(axis=1)
    rising = not plugins.smaller_is_better(metric)
    there = np.array([at_or_beyond(mean, value, rising=rising) for mean in means.tolist()], dtype=np.bool_)
    if not there.any():
        return dict.fromkeys(COLUMN_OF.values(), math.inf)
    row = study.positions(cell).iloc[int(there.argmax()) + study.last - 1]
    return {column: float(row[column]) for column in COLUMN_OF.values()}


def counted_clients(study: Study) -> list[tuple[int, int]]:
    """Return for each run how many clients count for a target, and how many at its end."""
    evaluations = map(study.evaluations, study.finished)
    return [(on_common_clients(each)[-1].measured, each[-1].measured) for each in evaluations]


@arguments.checked
def speed_ups(study: Study, frame: pd.DataFrame, unit: Unit = "time") -> list[SpeedUp]:
    """Compare each level of the study's axis with the baseline by a frame of `time_to_target`.

    Runs are paired by seed, at equal levels of the other axes. A run that did not reach the target is slower than one
    that did; pairs of which neither did are left out. Empty for a study without an axis or with one level.
    """
    if not study.axes:
        return []
    axis = study.axis()
    base = study.baseline(axis)
    found = list(_speed_ups(frame, axis, base, comparisons(study, axis, base), COLUMN_OF[unit]))
    corrected = holm([each.p_value for each in found]).tolist()
    return [replace(each, p_holm=p) for each, p in zip(found, corrected, strict=True)]


def _speed_ups(
    frame: pd.DataFrame, axis: str, base: str, levels: Iterator[tuple[str, dict[str, str]]], column: str
) -> Iterator[SpeedUp]:
    for level, others in levels:
        ours, theirs = (side_of(frame, others | {axis: name})[column] for name in (level, base))
        seeds = [seed for seed in ours.index if seed in theirs.index]
        mine, its = (np.asarray(side.loc[seeds], dtype=np.float64) for side in (ours, theirs))
        known = np.isfinite(mine) | np.isfinite(its)
        with np.errstate(divide="ignore", invalid="ignore"):
            ratios = np.where(mine == its, 1.0, its / mine)[known]  # both may lie at 0, the first evaluation
        yield SpeedUp(
            level=level,
            baseline=base,
            others=others,
            seeds=tuple(seed for seed, kept in zip(seeds, known.tolist(), strict=True) if kept),
            ratios=ratios,
            interval=_interval_of_median(ratios),
            p_value=sign_test(np.sign(ratios - 1)) if len(ratios) else math.nan,
        )


def _interval_of_median(values: Floats) -> tuple[float, float] | None:
    """Return the narrowest pair of order statistics that covers the median with 95 %, whatever the distribution."""
    outside = int(stats.binom.ppf((1 - CONFIDENCE) / 2, len(values), 0.5)) if len(values) else 0
    if outside < 1:
        return None
    ordered: list[Any] = np.sort(values).tolist()
    return ordered[outside - 1], ordered[-outside]
