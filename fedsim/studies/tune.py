"""Chooses a key's value for each level of an axis before a study, by runs with seeds of their own: `[tune]`."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich import box
from rich.table import Table

from fedsim import analysis
from fedsim.common.errors import ConfigError, RunError
from fedsim.common.plugins import smaller_is_better
from fedsim.common.terminal import shown
from fedsim.config.study import CompareSection, StudyConfig, TuneSection, levels_in
from fedsim.studies.grid import cells_of
from fedsim.studies.key_axis import axis_name, levels_of

Scores = dict[str, dict[str, float]]
"""By level of the axis that is not skipped, and by value: the mean of the metric, NaN where a run is missing."""


def to_tune(study: StudyConfig) -> bool:
    """Return whether the study has a `[tune]` and a level without a chosen value."""
    return study.tune is not None and bool(_levels_to_tune(study))


def tuning_study(study: StudyConfig, source: str) -> StudyConfig:
    """Return the study `<name>_tuning` that tries each value of `[tune]` at each level without a chosen one.

    Its last axis has a level for each value.

    `source` names the file in messages. Raises ConfigError for cells that cannot be run, be it in the study itself.
    """
    tune = _tune_of(study)
    cells_of(provisional(study), source)
    axes = {
        axis: {level: levels[level] for level in _levels_tried(study, axis)}
        for axis, levels in study.axes.items()
    }
    values = levels_of(tune.key, tune.values, f"{source}: tune.values")
    name = axis_name(tune.key, axes)
    skip = ({axis: _among(rule[axis], axes[axis]) for axis in rule} for rule in study.skip)
    update = {
        "name": f"{study.name}_tuning",
        "description": f"Which {tune.key} has the best {tune.metric} at each level of {tune.axis}?",
        "seeds": tune.seeds,
        "axes": axes | {name: values},
        "skip": tuple(rule for rule in skip if all(rule.values())),
        "only": {},
        "compare": CompareSection(axis=name, baseline=next(iter(values)), metrics=(tune.metric,)),
        "tune": None,
        "published": None,
    }
    tuning = study.model_copy(update=update)
    left = {levels[tune.axis] for levels in tuning.combinations()}
    if lost := [level for level in axes[tune.axis] if level not in left]:
        raise ConfigError(
            f"{source}: tune.levels: skip leaves out each combination of them with {tune.axis}={lost[0]}, so no value "
            f"can be tried: name other levels, or tune.chosen.{lost[0]}"
        )
    return tuning


def provisional(study: StudyConfig) -> StudyConfig:
    """Return the study with the first value for every level without a chosen one."""
    tune = _tune_of(study)
    return _with(study, dict.fromkeys(study.axes[tune.axis], tune.values[0]) | tune.chosen)


def tuned(study: StudyConfig, tried: analysis.Study) -> StudyConfig:
    """Return the study with the values that its tuning study chose.

    A value is chosen if its mean of the metric is the best, of equal ones the first. A value with a run that failed is
    not chosen. A level that had a value before keeps it. Raises RunError if none is left for a level.
    """
    tune = _tune_of(study)
    best = min if smaller_is_better(tune.metric) else max
    chosen = dict(tune.chosen)
    for level, means in scores(tune, tried).items():
        values = [
            (mean, value) for mean, value in zip(means.values(), tune.values, strict=True) if mean == mean
        ]
        if not values:
            raise RunError(
                f"{tried.folder}: a run of each value of {tune.key} failed at {tune.axis}={level}: try other values"
            )
        chosen[level] = best(values, key=lambda pair: pair[0])[1]
    return _with(study, {level: chosen[level] for level in study.axes[tune.axis] if level in chosen})


def scores(tune: TuneSection, tried: analysis.Study) -> Scores:
    """Return the mean of the metric over the seeds and the other axes' levels of a tuning study."""
    frame, key = tried.frame([tune.metric]), list(tried.axes)[-1]
    groups = frame.groupby([tune.axis, key])[tune.metric]
    means, done = groups.mean().to_dict(), groups.count().to_dict()
    planned = Counter((cell.levels[tune.axis], cell.levels[key]) for cell in tried.cells)
    return {
        level: {
            value: means[level, value] if done.get((level, value)) == planned[level, value] else math.nan
            for value in tried.axes[key]
        }
        for level in dict.fromkeys(cell.levels[tune.axis] for cell in tried.cells)
    }


def tuning_table(study: StudyConfig, folder: Path) -> Table:
    """Return the means of a tuned study's values as a table for the terminal; `*` marks the chosen one."""
    tune, tried = _tune_of(study), analysis.open_study(folder)
    title = f"{tune.key} by {tune.metric}, {len(tried.seeds)} seeds; * is chosen"
    table = Table(box=box.SIMPLE_HEAD, padding=0, pad_edge=False, show_edge=False, title=shown(title))
    table.title_justify = table.caption_justify = "left"
    table.add_column(tune.axis)
    for value in tune.values:
        table.add_column(shown(f"{value}"), justify="right")
    for level, means in scores(tune, tried).items():
        marks = ["*" if value == tune.chosen[level] else " " for value in tune.values]
        texts = ["failed" if math.isnan(mean) else f"{mean:.4g}" for mean in means.values()]
        table.add_row(shown(level), *(f"{text}{mark}" for text, mark in zip(texts, marks, strict=True)))
    if at_the_end := extremes(tune):
        table.caption = shown(
            "Values outside those tried may be better: "
            + ", ".join(f"{level} chose the {end} one" for level, end in at_the_end.items())
        )
    return table


def extremes(tune: TuneSection) -> dict[str, str]:
    """Return the levels that chose the smallest or the largest of several numbers, and which."""
    numbers = [
        value for value in tune.values if isinstance(value, int | float) and not isinstance(value, bool)
    ]
    if len(numbers) < len(tune.values):
        return {}
    ends = {min(numbers): "smallest", max(numbers): "largest"}
    return {level: ends[value] for level, value in tune.chosen.items() if value in ends}


def _tune_of(study: StudyConfig) -> TuneSection:
    if study.tune is None:
        raise ValueError(f"study {study.name}: it has no [tune]")
    return study.tune


def _with(study: StudyConfig, chosen: Mapping[str, Any]) -> StudyConfig:
    return study.model_copy(update={"tune": _tune_of(study).model_copy(update={"chosen": dict(chosen)})})


def _levels_to_tune(study: StudyConfig) -> tuple[str, ...]:
    """Return the levels of the axis of `[tune]` that are not skipped and have no chosen value."""
    tune = _tune_of(study)
    used = dict.fromkeys(levels[tune.axis] for levels in study.combinations())
    return tuple(level for level in used if level not in tune.chosen)


def _levels_tried(study: StudyConfig, axis: str) -> tuple[str, ...]:
    """Return the levels of an axis at which values are tried."""
    tune, levels = _tune_of(study), tuple(study.axes[axis])
    return _levels_to_tune(study) if axis == tune.axis else _among(tune.levels.get(axis, levels), levels)


def _among(levels: str | tuple[str, ...], known: Any) -> tuple[str, ...]:
    return tuple(level for level in known if level in levels_in(levels))
