"""`[tune]`: runs with seeds of their own choose a key's value for each level of an axis before a study."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import product
from pathlib import Path
from typing import Any

from rich.table import Table

from fedsim import analysis
from fedsim.common.errors import ConfigError, RunError
from fedsim.common.terminal import ruled_table, shown
from fedsim.config.errors import quoted
from fedsim.config.study.axes import levels_in
from fedsim.config.study.compare import CompareSection
from fedsim.config.study.study import StudyConfig
from fedsim.config.study.tune import TuneSection
from fedsim.plugins import smaller_is_better
from fedsim.studies.grid import cells_of, titled
from fedsim.studies.key_axis import axis_name, levels_of

TunedLevels = tuple[str, ...]
"""The levels that choose a value together, one of each axis of `[tune]`."""
Scores = dict[TunedLevels, dict[str, float]]
"""By levels that are not skipped, and by value: the mean of the metric, NaN where a run is missing."""


def to_tune(study: StudyConfig) -> bool:
    """Return whether the study has a `[tune]` and levels without a chosen value."""
    return study.tune is not None and bool(_to_choose(study))


def tuning_study(study: StudyConfig, source: str) -> StudyConfig:
    """Return the study `<name>_tuning` that tries each value of `[tune]` at all levels without a chosen one.

    Its last axis has a level for each value.

    `source` names the file in messages. Raises ConfigError for cells that cannot be run, be it in the study itself.
    """
    tune = _tune_of(study)
    try:
        cells_of(provisional(study), source)
    except ConfigError as error:
        of_key = f" (tune.key is {tune.key})" if tune.key.rpartition(".")[2] in str(error) else ""
        raise ConfigError(f"{error}{of_key}") from error
    axes = {
        axis: {level: levels[level] for level in _levels_tried(study, axis)}
        for axis, levels in study.axes.items()
    }
    values = levels_of(tune.key, tune.values, f"{source}: tune.values")
    name = axis_name(tune.key, axes)
    skip: list[dict[str, str | tuple[str, ...]]] = [
        {axis: _among(rule[axis], axes[axis]) for axis in rule} for rule in study.skip
    ]
    wanted = _to_choose(study)
    skip += [dict(zip(tune.axes, one, strict=True)) for one in _combinations(tune, axes) if one not in wanted]
    update = {
        "name": f"{study.name}_tuning",
        "description": f"Which {tune.key} has the best {tune.metric} at each level of {' and '.join(tune.axes)}?",
        "seeds": tune.seeds,
        "axes": axes | {name: values},
        "skip": tuple(rule for rule in skip if all(rule.values())),
        "only": {},
        "compare": CompareSection(
            axis=name, baseline=next(iter(values)), metrics=(tune.metric,), last=tune.last
        ),
        "tune": None,
        "published": None,
    }
    tuning = study.model_copy(update=update)
    left = {tune.at(levels) for levels in tuning.combinations()}
    if lost := [one for one in wanted if one not in left]:
        raise ConfigError(
            f"{source}: tune.levels: skip leaves out each combination of them with {_titled(tune, lost[0])}, so no "
            f"value can be tried: name other levels, or tune.chosen.{'.'.join(map(quoted, lost[0]))}"
        )
    return tuning


def provisional(study: StudyConfig) -> StudyConfig:
    """Return the study with the first value for all levels without a chosen one."""
    tune = _tune_of(study)
    return _with(study, dict.fromkeys(_combinations(tune, study.axes), tune.values[0]) | tune.choices())


def tuned(study: StudyConfig, tried: analysis.Study) -> StudyConfig:
    """Return the study with the values that its tuning study chose.

    A value is chosen if its mean of the metric is the best, of equal ones the first. A value with a run that failed, or
    that the metric has no number for, is not chosen. Levels that had a value before keep it. Raises RunError if none is
    left for some levels.
    """
    tune = _tune_of(study)
    best = min if smaller_is_better(tune.metric) else max
    chosen = tune.choices()
    for levels, means in scores(tune, tried).items():
        values = [
            (mean, value) for mean, value in zip(means.values(), tune.values, strict=True) if mean == mean
        ]
        if not values:
            raise RunError(
                f"{tried.folder}: no value of {tune.key} has a {tune.metric} at {_titled(tune, levels)}, as a run of "
                "each failed or the metric is no number there: try other values or another metric"
            )
        chosen[levels] = best(values, key=_without_rounding_error)[1]
    ordered = [levels for levels in _combinations(tune, study.axes) if levels in chosen]
    return _with(study, {levels: chosen[levels] for levels in ordered})


def _without_rounding_error(scored: tuple[float, Any]) -> float:
    """Return the mean of a value, equal for means that differ by floating-point error alone."""
    return float(f"{scored[0]:.12g}")


def scores(tune: TuneSection, tried: analysis.Study) -> Scores:
    """Return the mean of the metric over the seeds and the other axes' levels of a tuning study.

    NaN where a run is missing or the metric of one is no number.
    """
    frame, key = tried.frame([tune.metric]), list(tried.axes)[-1]
    groups = frame.groupby([*tune.axes, key])[tune.metric]
    means, done = groups.mean().to_dict(), groups.count().to_dict()  # both leave out NaN
    planned = Counter((*tune.at(cell.levels), cell.levels[key]) for cell in tried.cells)
    return {
        levels: {
            value: means[*levels, value]
            if done.get((*levels, value)) == planned[*levels, value]
            else math.nan
            for value in tried.axes[key]
        }
        for levels in dict.fromkeys(tune.at(cell.levels) for cell in tried.cells)
    }


def tuning_table(study: StudyConfig, folder: Path) -> Table:
    """Return the means of a tuned study's values as a table for the terminal; `*` marks the chosen one."""
    tune, tried = _tune_of(study), analysis.open_study(folder)
    title = f"{tune.key} by {tune.criterion}; * is chosen"
    table = ruled_table(title)
    table.min_width = min(len(title), 72)  # else a narrow table breaks its title and caption
    for axis in tune.axes:
        table.add_column(axis)
    for value in tune.values:
        table.add_column(shown(f"{value}"), justify="right")
    chosen, key = tune.choices(), list(tried.axes)[-1]
    unfinished = {(*tune.at(cell.levels), cell.levels[key]) for cell in tried.cells if cell.status != "done"}
    for levels, means in scores(tune, tried).items():
        marks = ["*" if value == chosen[levels] else " " for value in tune.values]
        none = ["failed" if (*levels, value) in unfinished else "none" for value in means]
        texts = [
            word if math.isnan(mean) else f"{mean:.4g}"
            for word, mean in zip(none, means.values(), strict=True)
        ]
        cells = (f"{text}{mark}" for text, mark in zip(texts, marks, strict=True))
        table.add_row(*map(shown, levels), *cells)
    if at_the_end := extremes(tune):
        by_end: dict[str, list[str]] = {}
        for name, end in at_the_end.items():
            by_end.setdefault(end, []).append(name)
        chose = (f"{', '.join(named)} chose the {end} one" for end, named in by_end.items())
        table.caption = shown(f"Values outside those tried may be better: {'; '.join(chose)}")
    return table


def extremes(tune: TuneSection) -> dict[str, str]:
    """Return the levels that chose the smallest or the largest of several numbers, such as `fedfv at iid`."""
    numbers = [
        value for value in tune.values if isinstance(value, int | float) and not isinstance(value, bool)
    ]
    if len(numbers) < len(tune.values):
        return {}
    ends = {min(numbers): "smallest", max(numbers): "largest"}
    return {" at ".join(levels): ends[value] for levels, value in tune.choices().items() if value in ends}


def _tune_of(study: StudyConfig) -> TuneSection:
    if study.tune is None:
        raise ValueError(f"study {study.name}: it has no [tune]")
    return study.tune


def _with(study: StudyConfig, chosen: Mapping[TunedLevels, Any]) -> StudyConfig:
    """Return the study with chosen values, in the tables of the file."""
    tables: dict[str, Any] = {}
    for (*first, last), value in chosen.items():
        inner = tables
        for level in first:
            inner = inner.setdefault(level, {})
        inner[last] = value
    return study.model_copy(update={"tune": _tune_of(study).model_copy(update={"chosen": tables})})


def _combinations(tune: TuneSection, axes: Mapping[str, Iterable[str]]) -> Iterator[TunedLevels]:
    """Return the combinations of the levels of the axes that choose values."""
    return product(*(axes[axis] for axis in tune.axes))


def _titled(tune: TuneSection, levels: TunedLevels) -> str:
    return titled(dict(zip(tune.axes, levels, strict=True)))


def _to_choose(study: StudyConfig) -> list[TunedLevels]:
    """Return the levels that are not skipped and have no chosen value."""
    tune = _tune_of(study)
    chosen, used = tune.choices(), dict.fromkeys(map(tune.at, study.combinations()))
    return [levels for levels in used if levels not in chosen]


def _levels_tried(study: StudyConfig, axis: str) -> tuple[str, ...]:
    """Return the levels of an axis at which values are tried."""
    tune, levels = _tune_of(study), tuple(study.axes[axis])
    if axis not in tune.axes:
        return _among(tune.levels.get(axis, levels), levels)
    number = tune.axes.index(axis)
    return tuple(dict.fromkeys(one[number] for one in _to_choose(study)))


def _among(levels: str | tuple[str, ...], known: Any) -> tuple[str, ...]:
    return tuple(level for level in known if level in levels_in(levels))
