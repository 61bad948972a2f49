"""The configuration of a study: frozen pydantic models of `STUDY.toml`.

A study is a grid of a run's configuration, axes whose levels replace keys of it, and seeds; see docs/studies.md.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import product
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from fedsim import plugins
from fedsim.common.errors import ConfigError, closest
from fedsim.config.load import merged
from fedsim.config.published import PublishedSection
from fedsim.config.run import RunConfig
from fedsim.config.section import Count, RunName, Section, Seed, installed
from fedsim.data.federated_data import UNSEEN
from fedsim.engine.record_words import PERSONAL

COLUMNS = (
    "at", "axis", "baseline", "better", "by", "bytes", "client", "clients", "detectable", "family", "faster", "folder",
    "from", "group", "high", "least", "level", "low", "mean", "median", "metric", "missing", "most", "n", "p_holm",
    "reached", "samples", "seed", "seeds", "size", "speed_up", "std", "step", "study", "test", "time_us", "to", "worse",
)  # fmt: skip
"""Columns of a study's tables, beside those of metrics; an axis is a column too, and needs another name."""
STUDY_KEYS = ("name", "seed", "arms", "parent")
"""Keys of a run's configuration that the study sets for each run."""
_GROUPS_OF_UNSEEN = ("label", "labels", "n")
"""Columns that divide clients which never train, and so have no jobs and no part in the world."""
_LEVEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")

MOST_SEEDS = 100_000
"""Most seeds of a study."""

Levels = dict[str, str]
"""The level on each axis, in the order of the file."""


def _study_name(name: str) -> str:
    if "/" in name:
        raise ValueError(f"expected the name of one folder, without '/', found {name!r}")
    return name


def _seeds(seeds: Any) -> Any:
    if not isinstance(seeds, int) or isinstance(seeds, bool):
        return seeds
    if not 1 <= seeds <= MOST_SEEDS:
        raise ValueError(
            f"expected a number of seeds from 1 to {MOST_SEEDS:,}, or a list of seeds, found {seeds:,}"
        )
    return tuple(range(1, seeds + 1))


def _different(seeds: tuple[int, ...]) -> tuple[int, ...]:
    if not seeds:
        raise ValueError("expected at least one seed, found none")
    if twice := sorted(seed for seed, times in Counter(seeds).items() if times > 1):
        raise ValueError(f"expected different seeds, found {', '.join(map(str, twice))} more than once")
    return seeds


Seeds = Annotated[tuple[Seed, ...], BeforeValidator(_seeds), AfterValidator(_different), Field(strict=False)]
"""A list of seeds; a number n stands for 1 to n."""


def seeds_in(seeds: int | list[int]) -> list[int]:
    """Return the seeds that a number or a list of them stands for. Raises ValueError."""
    return list(_different(tuple(_seeds(seeds))))


def _without_study_keys(tables: dict[str, Any]) -> dict[str, Any]:
    for key in STUDY_KEYS:
        if key in tables:
            raise ValueError(f"{key}: the study sets it for each run; leave it out here")
    return tables


Tables = Annotated[dict[str, Any], AfterValidator(_without_study_keys)]
"""Tables of a run's configuration (docs/config.md)."""


def _run_key(key: str) -> str:
    table = key.partition(".")[0]
    if table in STUDY_KEYS:
        raise ValueError(
            f"expected a key of [run], such as train.lr, found {key!r}, which the study sets for each run"
        )
    return key


def _metric(name: str) -> str:
    if ":" in name:
        raise ValueError(
            f"expected names of installed metrics, found {name!r}; fedsim compare --metric accepts files"
        )
    return installed("metric", name)


Metric = Annotated[str, AfterValidator(_metric)]
"""The name of an installed metric."""


def parse_target(text: str) -> tuple[str, float]:
    """Return the metric and the value of a target such as `mean_percent=80`. Raises ValueError."""
    metric, _, number = text.rpartition("=")
    try:
        value = float(number)
    except ValueError:
        value = math.nan
    if not math.isfinite(value) or not metric.strip():
        raise ValueError(f"expected a metric and a value, such as mean_percent=80, found {text!r}")
    return metric.strip(), value


def _target(text: str) -> str:
    _metric(parse_target(text)[0])
    return text


class CompareSection(Section):
    """`[compare]`: the comparison of runs in the study's report."""

    axis: str
    """The axis whose levels are compared, in runs with equal levels of the other axes and equal seeds."""
    baseline: str
    """The level of the axis from which differences are taken."""
    metrics: tuple[Metric, ...] = ("mean_percent", "worst10_percent", "angle_rad")
    """Names of metrics (docs/metrics.md)."""
    at: tuple[Literal["end", "steps", "time", "bytes"], ...] = ("end",)
    """Where to compare runs: at their ends, or at equal server steps, virtual time or bytes moved."""
    last: Count = 1
    """Compare means over this many evaluations, the last ones up to the point, instead of one evaluation."""
    split: str | None = None
    """The split to compare runs on, such as `unseen` or `test_personal`; by default that of each run's `[evaluate]`."""
    group: str | None = None
    """A column of the clients table that divides clients into groups."""
    target: Annotated[str, AfterValidator(_target)] | None = None
    """The value of a metric, such as `mean_percent=80`, to which each run's virtual time is counted; with `steps` or
    `bytes` in `at`, these."""
    test: Literal["rank", "t"] = "rank"
    """The test that decides, the exact Wilcoxon signed-rank test or the paired t test, which takes normal differences.

    Times to a target always have the sign test, and a paper's values and claims tests of their own.
    """


class TuneSection(Section):
    """`[tune]`: a key whose value each level of an axis or of several chooses before the study, on seeds of its own."""

    axis: str | tuple[str, ...]
    """The axis whose levels each choose a value, or several axes, each combination of whose levels does."""
    key: Annotated[str, AfterValidator(_run_key)]
    """The key of a run's configuration, such as `train.lr`."""
    values: Annotated[tuple[Any, ...], Field(min_length=2)]
    """The values to try."""
    seeds: Seeds
    """Seeds of the runs that choose; none of them is a seed of the study."""
    metric: Metric = "mean_percent"
    """The metric (docs/metrics.md) whose mean over the seeds and the other axes' levels decides, at the end of runs."""
    last: Count = 1
    """Take the metric's mean over this many evaluations at the end of each run: single ones vary."""
    levels: dict[str, str | tuple[str, ...]] = Field(default_factory=dict)
    """The levels of other axes at which values are tried, by axis; by default all."""
    chosen: dict[str, Any] = Field(default_factory=dict)
    """The values of levels of the axis, at which nothing is tried; of several axes, a table for each level of the
    first. `fedsim study` writes them into the study's folder, for all levels that are not skipped."""

    @property
    def axes(self) -> tuple[str, ...]:
        """The axes whose levels choose a value."""
        return levels_in(self.axis)

    def at(self, levels: Levels) -> tuple[str, ...]:
        """Return those of a combination's levels that choose its value."""
        return tuple(levels[axis] for axis in self.axes)

    @property
    def criterion(self) -> str:
        """What decides in words, such as `mean_percent on seeds 101, 102, over the last 5 evaluations`."""
        seeds = f"on seed{'s' if len(self.seeds) > 1 else ''} {', '.join(map(str, self.seeds))}"
        return f"{self.metric} {seeds}{f', over the last {self.last} evaluations' if self.last > 1 else ''}"

    def choices(self) -> dict[tuple[str, ...], Any]:
        """Return the chosen values by the levels that chose them."""
        return _flat(self.chosen, len(self.axes))


class ScaleSection(Section):
    """`[scales.NAME]`: another size of the same study, selected with `--scale NAME`."""

    seeds: Seeds | None = None
    """Seeds that replace the study's."""
    run: Tables = Field(default_factory=dict)
    """Keys that replace those of `[run]`."""


class StudyConfig(Section):
    """A study."""

    run_table: ClassVar[str] = "run."
    """Where the tables of a run's configuration are."""
    run_keys: ClassVar[frozenset[str]] = frozenset(RunConfig.model_fields) - {*STUDY_KEYS}
    """Keys of a run's configuration, for the hint to those that stand at the top of the file."""
    name: Annotated[RunName, AfterValidator(_study_name)]
    """Name of the study and of its folder."""
    description: str = ""
    """What the study asks; its report shows it."""
    seeds: Seeds
    """A list of seeds; a number n stands for 1 to n."""
    run: Tables
    """The tables of a run's configuration that all cells share."""
    axes: dict[str, dict[str, Tables]] = Field(default_factory=dict)
    """What varies: `[axes.AXIS.LEVEL]` has the keys that a level of an axis sets in a run's configuration."""
    skip: tuple[dict[str, str | tuple[str, ...]], ...] = ()
    """Combinations to leave out: by axis, a level or several."""
    only: dict[str, str | tuple[str, ...]] = Field(default_factory=dict)
    """The part of the study to run: by axis, a level or several; all levels of the axes that it does not name. `[tune]`
    chooses the same values as in the whole study."""
    compare: CompareSection | None = None
    tune: TuneSection | None = None
    published: PublishedSection | None = None
    scales: dict[str, ScaleSection] = Field(default_factory=dict)

    def _faults(self) -> Iterable[str]:
        yield from self._faults_in_axes()
        for number, rule in enumerate(self.skip):
            if not rule:
                yield f"skip.{number}: expected an axis and its level, found an empty table"
            for axis, levels in rule.items():
                place = f"skip.{number}.{axis}"
                yield from self._unknown(axis, place, levels_in(levels), place)
        for axis, levels in self.only.items():
            place = f"only.{axis}"
            if not levels:
                yield f"{place}: expected a level, or a list of levels, found none"
            yield from self._unknown(axis, place, levels_in(levels), place)
        if self.compare is not None:
            axis, baseline = self.compare.axis, self.compare.baseline
            yield from self._unknown(axis, "compare.axis", (baseline,), "compare.baseline")
            yield from _faults_in_group(self.compare)
        if self.tune is not None:
            yield from self._faults_in_tune(self.tune)
        if self.published is not None:
            yield from self.published.faults_with(self.axes)

    def _faults_in_axes(self) -> Iterable[str]:
        for axis, levels in self.axes.items():
            if not axis.isidentifier():
                yield f"axes.{axis}: expected letters, digits and '_', no digit first, found {axis!r}"
            if axis in COLUMNS or axis in plugins.names("metric"):
                yield f"axes.{axis}: a column of the study's tables has this name: choose another name"
            if not levels:
                yield f"axes.{axis}: expected a table for each level, such as [axes.{axis}.high], found none"
            for level in levels:
                if not _LEVEL.fullmatch(level):
                    yield (
                        f"axes.{axis}.{level}: expected letters, digits, '.', '_' and '-', and a letter or digit "
                        f"first, found {level!r}"
                    )

    def _faults_in_tune(self, tune: TuneSection) -> Iterable[str]:
        if not tune.axes or len(set(tune.axes)) < len(tune.axes):
            yield f"tune.axis: expected an axis, or a list of different axes, found {list(tune.axes)}"
        elif unknown := [fault for axis in tune.axes for fault in self._unknown(axis, "tune.axis", (), "")]:
            yield from unknown
        else:
            yield from self._faults_in_chosen(tune.chosen, tune.axes, "tune.chosen")
        for axis, levels in tune.levels.items():
            if axis in tune.axes:
                yield f"tune.levels.{axis}: every level of {axis!r} chooses a value; leave it out"
            else:
                yield from self._unknown(
                    axis, f"tune.levels.{axis}", levels_in(levels), f"tune.levels.{axis}"
                )
        if shared := sorted(set(tune.seeds) & set(self.seeds)):
            yield (
                f"tune.seeds: expected none of the study's seeds, so that its results do not choose, found {shared[0]}"
            )

    def _faults_in_chosen(self, chosen: Any, axes: tuple[str, ...], place: str) -> Iterable[str]:
        if not axes:
            return
        if not isinstance(chosen, Mapping):
            yield f"{place}: expected a table with the value of each level of {axes[0]!r}, found {chosen!r}"
            return
        yield from self._unknown(axes[0], "tune.axis", chosen, place)
        for level, inner in chosen.items():
            yield from self._faults_in_chosen(inner, axes[1:], f"{place}.{level}")

    def _unknown(self, axis: str, axis_key: str, levels: Iterable[str], level_key: str) -> Iterable[str]:
        """Return a message if the study has no such axis, or for each level that the axis does not have."""
        if axis not in self.axes:
            known = closest(axis, self.axes) or "; the study has no axes"
            return [f"{axis_key}: there is no axis {axis!r}{known}"]
        return [
            f"{level_key}: axis {axis!r} has no level {level!r}{closest(level, self.axes[axis])}"
            for level in levels
            if level not in self.axes[axis]
        ]

    def combinations(self) -> list[Levels]:
        """Return the combinations of levels to run; the level of the last axis changes fastest."""
        wanted = [
            [level for level in levels if level in levels_in(self.only.get(axis, tuple(levels)))]
            for axis, levels in self.axes.items()
        ]
        every = [dict(zip(self.axes, levels, strict=True)) for levels in product(*wanted)]
        return [levels for levels in every if not any(_meets(levels, rule) for rule in self.skip)]

    def at_scale(self, name: str | None) -> StudyConfig:
        """Return the study at a scale, or unchanged if `name` is None, without its scales. Raises ConfigError."""
        if name is None:
            return self.model_copy(update={"scales": {}})
        if name not in self.scales:
            known = closest(name, self.scales) or "; the study has no [scales]"
            raise ConfigError(f"--scale: there is no scale {name!r}{known}")
        scale = self.scales[name]
        update = {"scales": {}, "seeds": scale.seeds or self.seeds, "run": merged(self.run, scale.run)}
        return self.model_copy(update=update)

    def resolved(self) -> dict[str, Any]:
        """Return the study as nested dictionaries without None or empty values; running it gives the same grid."""
        tables = self.model_dump(mode="json", exclude_none=True)
        return {key: value for key, value in tables.items() if value not in ({}, [], "")}


def _faults_in_group(compare: CompareSection) -> Iterable[str]:
    """Yield a message for a group that the clients of the compared split cannot form."""
    group, unseen = compare.group, compare.split in (UNSEEN, UNSEEN + PERSONAL)
    if unseen and group is not None and group not in _GROUPS_OF_UNSEEN:
        yield (
            f"compare.group: the clients of split {compare.split!r} never train: expected "
            f"{', '.join(_GROUPS_OF_UNSEEN)} or none, found {group!r}"
        )


def levels_in(levels: str | tuple[str, ...]) -> tuple[str, ...]:
    """Return one level, or several, as a tuple."""
    return (levels,) if isinstance(levels, str) else levels


def _meets(levels: Levels, rule: Mapping[str, str | tuple[str, ...]]) -> bool:
    return all(levels.get(axis) in levels_in(wanted) for axis, wanted in rule.items())


def _flat(tables: Any, depth: int) -> dict[tuple[str, ...], Any]:
    """Return the values of nested tables by the keys that lead to them."""
    if not depth:
        return {(): tables}
    return {
        (key, *keys): value
        for key, inner in tables.items()
        for keys, value in _flat(inner, depth - 1).items()
    }
