"""Variance components of a metric in a study that crosses seeds of data, world and training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np

from fedsim.analysis.opening.points import Point
from fedsim.analysis.opening.study import Study
from fedsim.analysis.statistics.variance.anova import Component, components
from fedsim.common import arguments
from fedsim.common.arrays import Floats
from fedsim.common.errors import FolderError, RunError
from fedsim.common.files import from_toml
from fedsim.records.file_names import STUDY_CONFIG

if TYPE_CHECKING:
    import pandas as pd

_SEED, _SEEDS = "seed", "seeds"
_FEWEST = 2
Key = tuple[str, ...]
"""A level of each axis that is no factor."""


@dataclass(frozen=True, slots=True)
class VarianceComponents:
    """The components of a metric at one level of the other axes, or of its paired difference to a baseline."""

    metric: str
    at: Point
    levels: dict[str, str]
    """The level of each axis that is no factor."""
    mean: float
    """Mean over all cells."""
    components: tuple[Component, ...]
    """Main effects first, the residual last."""
    axis: str | None = None
    """The axis along which differences are taken; None for the metric itself."""
    baseline: str | None = None
    """The level of `axis` that is subtracted."""

    @property
    def name(self) -> str:
        """The levels in words, such as `rule=fedfv minus fedavg`."""
        levels = ", ".join(f"{axis}={level}" for axis, level in self.levels.items()) or "all"
        return levels if self.baseline is None else f"{levels} minus {self.baseline}"

    @property
    def variance(self) -> float:
        """The variance of one run whose seeds are all drawn anew: the sum of the components."""
        return sum(each.variance for each in self.components)

    def share(self, component: Component) -> float:
        """Return a component as a share of the variance, from 0 to 1; NaN if that is 0."""
        return component.variance / self.variance if self.variance else float("nan")


@arguments.checked
def variance_components(
    study: Study, metric: str, at: Point = "end", *, split: str | None = None
) -> list[VarianceComponents]:
    """Estimate which seeds make a metric differ between runs, and its paired differences to the baseline.

    The factors are the axes whose levels set keys of `[seeds]` alone, and the study's `seeds` if there are several. At
    each combination of the other axes' levels comes the metric, then its difference to the baseline of the study's
    `compare`, run by run.

    Args:
        metric: the name of one of `fedsim.analysis.metrics`.
        at, split: where the runs are evaluated, and on which samples; see `Study.frame`.

    Raises FolderError for a study with fewer than two factors of at least two levels, RunError for one without a
    finished run for each combination, ConfigError for an unknown metric or point.
    """
    factors = factors_of(study)
    fixed = [axis for axis in study.axes if axis not in factors]
    among = study.axis() if study.axes and study.axis() in fixed else None
    base = study.baseline(among) if among else None
    tables = _tables(study, study.frame([metric], at, split, among), factors, fixed)
    found = []
    for key, values in tables.items():
        levels = dict(zip(fixed, key, strict=True))
        labels = {"metric": metric, "at": at, "levels": levels}
        found.append(_estimated(labels, values, factors))
        other = tuple((levels | {among: base}).values()) if among and base else key
        if other != key and other in tables:
            against = labels | {"axis": among, "baseline": base}
            found.append(_estimated(against, values - tables[other], factors))
    return found


def factors_of(study: Study) -> dict[str, tuple[Any, ...]]:
    """Return the levels of each factor: axes that set keys of `[seeds]` alone, and `seed` if there are several seeds.

    Raises FolderError for fewer than two factors of at least two levels, or if `study.toml` cannot be read.
    """
    file = study.folder / STUDY_CONFIG
    try:
        written = from_toml(file.read_text(encoding="utf-8")).get("axes", {})
    except (OSError, ValueError) as error:
        raise FolderError(f"{file}: cannot be read: {error}") from error
    factors: dict[str, tuple[Any, ...]] = {
        axis: levels
        for axis in study.axes
        if len(levels := study.planned(axis)) >= _FEWEST
        and all(_draws(written, axis, level) for level in levels)
    }
    if len(study.seeds) >= _FEWEST:
        factors[_SEED] = study.seeds
    if len(factors) < _FEWEST:
        raise FolderError(
            f"{study.folder}: components: expected two or more crossed factors, which are axes whose levels set "
            f"seeds.data, seeds.world or seeds.train alone, and several seeds; found {', '.join(factors) or 'none'}"
        )
    return factors


def _draws(written: Any, axis: str, level: str) -> bool:
    """Return whether a level sets keys of `[seeds]` alone."""
    levels = written.get(axis) if isinstance(written, Mapping) else None
    tables = levels.get(level) if isinstance(levels, Mapping) else None
    return isinstance(tables, Mapping) and set(tables) == {_SEEDS}


def _tables(
    study: Study, frame: pd.DataFrame, factors: Mapping[str, tuple[Any, ...]], fixed: Sequence[str]
) -> dict[Key, Floats]:
    """Return the frame's last column as an array with an axis per factor, for each combination of `fixed` levels."""
    rows = frame[[*fixed, *factors, frame.columns[-1]]].itertuples(index=False, name=None)
    values = {row[:-1]: row[-1] for row in rows}
    keys = dict.fromkeys(tuple(cell.levels[axis] for axis in fixed) for cell in study.cells)
    crossed = list(product(*factors.values()))
    cells = ((*key, *each) for key in keys for each in crossed)
    if missing := next((cell for cell in cells if cell not in values), None):
        names = (*fixed, *factors)
        where = ", ".join(f"{name}={level}" for name, level in zip(names, missing, strict=True))
        raise RunError(
            f"{study.folder}: components need a finished run for each combination of {', '.join(factors)}; there is "
            f"none with {where}"
        )
    shape = [len(levels) for levels in factors.values()]
    return {key: np.array([values[*key, *each] for each in crossed]).reshape(shape) for key in keys}


def _estimated(labels: Mapping[str, Any], values: Floats, factors: Mapping[str, Any]) -> VarianceComponents:
    found = components(values, list(factors))
    return VarianceComponents(**labels, mean=float(values.mean()), components=found)
