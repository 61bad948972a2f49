"""Differences between the levels of an axis, paired by seed: size, intervals, tests, and the gain of pairing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from scipy import stats

from fedsim import plugins
from fedsim.analysis.opening.points import COLUMN_OF, Point, kind_of
from fedsim.analysis.opening.study import Cell, Study, Test
from fedsim.analysis.statistics.bootstrap import interval, mean_of, sample_std
from fedsim.analysis.statistics.paired.pairing import pairing_factor
from fedsim.analysis.statistics.paired.power import detectable_effect, seeds_needed
from fedsim.analysis.statistics.paired.significance import ALPHA, holm, p_value_of, sign_test
from fedsim.common import arguments
from fedsim.common.arrays import Floats
from fedsim.common.errors import FolderError, closest

if TYPE_CHECKING:
    import pandas as pd

Better = Literal["larger", "smaller", "nearer zero"]
CONFIDENCE = 0.95
_DIGITS = 12
"""Decimals of differences: rounding makes differences equal that differ only by floating-point error."""


@dataclass(frozen=True, slots=True)
class PairedDifference:
    """One level compared with the baseline, paired by seed. Values that need more seeds are None or NaN."""

    metric: str
    at: str
    axis: str
    level: str
    baseline: str
    others: dict[str, str]
    """The level of each other axis, equal on both sides."""
    seeds: tuple[int, ...]
    """Seeds for which both runs are done."""
    missing: tuple[int, ...]
    """Seeds for which a run is not done or has no value."""
    level_values: Floats
    """[n] the metric by seed."""
    baseline_values: Floats
    values: Floats
    """[n] level minus baseline."""
    better_is: Better
    """Which values are: "nearer zero" is for metrics of either sign, such as gaps."""
    interval: tuple[float, float] | None
    """95 % bootstrap interval of the mean difference over seeds; None below 3."""
    t_interval: tuple[float, float] | None
    """95 % interval of Student's t; None below 3."""
    sign_p: float
    test: Test
    """The test that decides: Wilcoxon's exact signed-rank test, or Student's t test of pairs."""
    p_value: float
    """Two-sided p value of `test`; NaN for the t test below 3 seeds."""
    p_holm: float
    """`p_value` with Holm's correction for all comparisons in the same list."""
    family: int
    """Number of comparisons in that list that have a p value."""
    effect_size: float
    """Cohen's d_z: mean over standard deviation of the differences."""
    size: float
    """The difference that `seeds_needed` assumes: by default the mean."""
    pairing_factor: float
    """Factor by which a comparison of independent seeds would need more runs for the same standard error."""
    pairing_interval: tuple[float, float] | None
    point_gap: float
    """Largest relative difference between the points at which the two runs of a pair are compared; NaN at the end."""
    untrained: int
    """Number of evaluations among these, of both sides, at step 0, of the model before any training."""

    @property
    def n(self) -> int:
        """Number of pairs."""
        return len(self.values)

    @property
    def mean(self) -> float:
        """Mean difference over seeds; NaN without any."""
        return _mean(self.values)

    @property
    def std(self) -> float:
        """Standard deviation of the differences over seeds (divided by n - 1); NaN below 2."""
        return sample_std(self.values)

    @property
    def better(self) -> float:
        """Share of seeds in which the level does better than the baseline."""
        return float((self._gains() > 0).mean()) if self.n else float("nan")

    @property
    def worse(self) -> float:
        """Share of seeds in which the level does worse than the baseline."""
        return float((self._gains() < 0).mean()) if self.n else float("nan")

    @property
    def detectable(self) -> float:
        """The smallest difference that `test` finds with a power of 80 % among `family` comparisons of n seeds.

        In the metric's unit, for normal differences with the standard deviation of these. Infinite if n seeds cannot
        give a p Holm of 5 %, NaN below 2 seeds and if all differences are equal.
        """
        if self.n < 2 or not self.std:
            return float("nan")
        return detectable_effect(self.n, ALPHA / self.family, test=self.test) * self.std

    @property
    def seeds_needed(self) -> int | None:
        """Seeds with which `test` has a power of 80 % for a difference of `size` among `family` comparisons."""
        return seeds_needed(_ratio(self.size, self.std), ALPHA / self.family, test=self.test)

    def _gains(self) -> Floats:
        """Return [n] by how much the level does better."""
        if self.better_is == "nearer zero":
            return np.round(np.abs(self.baseline_values) - np.abs(self.level_values), _DIGITS)
        return -self.values if self.better_is == "smaller" else self.values

    @property
    def where(self) -> str:
        """The equal levels in words, such as `dropout=high`; empty if there is no other axis."""
        return ", ".join(f"{axis}={level}" for axis, level in self.others.items())


@arguments.checked
def differences(
    study: Study,
    metric: str,
    at: Point = "end",
    *,
    split: str | None = None,
    size: float | None = None,
) -> list[PairedDifference]:
    """Compare each level of an axis with the baseline by a metric, within equal levels of the other axes.

    Axis, baseline and test are those of the study's `compare`; `study.asked({"axis": ..., "test": ...})` sets others.

    Args:
        metric: the name of one of `fedsim.analysis.metrics`.
        at, split: where the runs of a pair are compared, and on which samples; see `Study.frame`.
        size: the difference, in the metric's unit, that `seeds_needed` is for; by default the mean difference.

    Raises FolderError if there is nothing to compare, or the runs of a pair were evaluated on different numbers of
    clients; ConfigError for an unknown metric or point.
    """
    frame = study.frame([metric], at, split, study.axis())
    return differences_of(study, frame, metric, at, size=size)


@arguments.checked
def differences_of(
    study: Study,
    frame: pd.DataFrame,
    column: str,
    at: str = "end",
    *,
    better_is: Better | None = None,
    size: float | None = None,
) -> list[PairedDifference]:
    """Compare levels by a column of a frame that has a column per axis and `seed`; see `differences`.

    `better_is` is by default what the metric of the column's name says, else "larger". Raises FolderError for an
    unknown column or if there is no pair of runs.
    """
    among = study.axis()
    base = study.baseline(among)
    if column not in frame:
        raise FolderError(
            f"there is no column {column!r} to compare{closest(column, map(str, frame.columns))}"
        )
    better_is = better_is or ("smaller" if plugins.smaller_is_better(column) else "larger")
    shared = {"metric": column, "at": at, "axis": among, "baseline": base, "better_is": better_is}
    differences = []
    for level, others in comparisons(study, among, base):
        sides = [side_of(frame, others | {among: name}) for name in (level, base)]
        labels = shared | {"level": level, "others": others}
        differences.append(_difference(labels, sides, study.seeds, study.test, size))
    if not differences:
        raise FolderError(
            f"{study.folder}: no level of axis {among!r} has runs beside those of {base!r} at equal other levels; "
            f"levels: {', '.join(study.axes[among])}"
        )
    return corrected(differences)


def corrected(differences: Sequence[PairedDifference]) -> list[PairedDifference]:
    """Return differences with Holm's correction for all of them together."""
    p_values = np.array([each.p_value for each in differences])
    family = max(int((~np.isnan(p_values)).sum()), 1)
    return [
        replace(each, p_holm=p, family=family)
        for each, p in zip(differences, holm(p_values).tolist(), strict=True)
    ]


def has_pairs(study: Study) -> bool:
    """Return whether a level has runs beside those of the baseline, done or not."""
    if not study.axes:
        return False
    axis = study.axis()
    return any(True for _ in comparisons(study, axis, study.baseline(axis)))


def comparisons(study: Study, axis: str, base: str) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield each level that shares other levels with the baseline, and these levels, in the order of the study."""
    planned = {_key(cell, axis): _others(cell, axis) for cell in study.cells}
    for level in study.axes[axis]:
        if level == base:
            continue
        for (name, *rest), others in planned.items():
            if name == level and (base, *rest) in planned:
                yield level, others


def _key(cell: Cell, axis: str) -> tuple[str, ...]:
    return (cell.levels[axis], *_others(cell, axis).values())


def _others(cell: Cell, axis: str) -> dict[str, str]:
    return {name: level for name, level in cell.levels.items() if name != axis}


def side_of(frame: pd.DataFrame, levels: Mapping[str, str]) -> pd.DataFrame:
    """Return the rows of a frame with these levels, by seed."""
    rows = np.ones(len(frame), dtype=bool)
    for name, level in levels.items():
        rows &= np.asarray(frame[name] == level)
    return frame[rows].set_index("seed")


def _difference(
    labels: Mapping[str, Any],
    sides: Sequence[pd.DataFrame],
    planned: Sequence[int],
    test: Test,
    size: float | None,
) -> PairedDifference:
    """Compare the sides of a level and of the baseline; `labels` are the fields that do not depend on their values."""
    column, axis = labels["metric"], labels["axis"]
    measured = [set(side.index[side[column].notna()]) for side in sides]
    seeds = tuple(seed for seed in planned if seed in measured[0] and seed in measured[1])
    a, b = (side.loc[list(seeds)] for side in sides)
    _require_alike(a, b, f"{axis}={labels['level']} and {axis}={labels['baseline']}")
    ours, theirs = (np.asarray(side[column], dtype=np.float64) for side in (a, b))
    values = np.round(ours - theirs, _DIGITS)
    factor, factor_interval = pairing_factor(ours, theirs)
    return PairedDifference(
        **labels,
        seeds=seeds,
        missing=tuple(seed for seed in planned if seed not in seeds),
        level_values=ours,
        baseline_values=theirs,
        values=values,
        pairing_factor=factor,
        pairing_interval=factor_interval,
        point_gap=_gap(a, b, COLUMN_OF.get(kind_of(labels["at"]))),
        untrained=sum(int((side["step"] == 0).sum()) for side in (a, b) if "step" in side),
        **_tested(values, test, size),
    )


def _tested(values: Floats, test: Test, size: float | None) -> dict[str, Any]:
    """Return the fields of `PairedDifference` that depend on the differences [n] alone."""
    n, std = len(values), sample_std(values)
    mean = _mean(values)
    return {
        "interval": interval(mean_of(values), n, CONFIDENCE),
        "t_interval": t_interval(values),
        "sign_p": sign_test(values) if n else float("nan"),
        "test": test,
        "p_value": p_value_of(test, values) if n else float("nan"),
        "p_holm": float("nan"),
        "family": 1,
        "effect_size": _ratio(mean, std),
        "size": mean if size is None else size,
    }


def _mean(values: Floats) -> float:
    """Return the mean of differences [n], without the floating-point error of those that cancel; NaN without any."""
    return round(float(values.mean()), _DIGITS) + 0.0 if len(values) else float("nan")


def t_interval(values: Floats, confidence: float = CONFIDENCE) -> tuple[float, float] | None:
    """Return the interval of Student's t for the mean of `values` [n]; None below 3."""
    n = len(values)
    if n < 3:
        return None
    half = float(stats.t.ppf((1 + confidence) / 2, n - 1)) * sample_std(values) / np.sqrt(n)
    return _mean(values) - half, _mean(values) + half


def _ratio(mean: float, std: float) -> float:
    if std > 0:
        return mean / std
    return float("nan") if np.isnan(std) or mean == 0 else float(np.copysign(np.inf, mean))


def _gap(a: pd.DataFrame, b: pd.DataFrame, column: str | None) -> float:
    if column is None or column not in a or not len(a):
        return float("nan")
    x, y = (np.asarray(side[column], dtype=np.float64) for side in (a, b))
    return float((np.abs(x - y) / np.maximum(np.maximum(x, y), 1)).max())


def _require_alike(a: pd.DataFrame, b: pd.DataFrame, names: str) -> None:
    if "clients" not in a or (same := np.asarray(a["clients"]) == np.asarray(b["clients"])).all():
        return
    at = int(np.flatnonzero(~same)[0])
    raise FolderError(
        f"{names}, seed {a.index[at]}: evaluated on {a['clients'].iloc[at]} and {b['clients'].iloc[at]} clients, "
        "which cannot be compared; compare at the end, or evaluate all clients ([evaluate] without clients)"
    )
