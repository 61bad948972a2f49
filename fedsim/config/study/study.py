"""The configuration of a study: frozen pydantic models of `STUDY.toml`.

A study is a grid of a run's configuration, axes whose levels replace keys of it, and seeds; see docs/studies.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import product
from typing import Annotated, Any, ClassVar

from pydantic import AfterValidator, Field

from fedsim.common.errors import ConfigError, closest
from fedsim.config.load import merged
from fedsim.config.run import RunConfig
from fedsim.config.section import RunName, Section
from fedsim.config.study.axes import STUDY_KEYS, Levels, Tables, faults_in_axes, levels_in
from fedsim.config.study.compare import CompareSection, faults_in_group
from fedsim.config.study.published import PublishedSection
from fedsim.config.study.seeds import Seeds
from fedsim.config.study.tune import TuneSection


def _study_name(name: str) -> str:
    if "/" in name:
        raise ValueError(f"expected the name of one folder, without '/', found {name!r}")
    return name


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
        yield from faults_in_axes(self.axes)
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
            yield from faults_in_group(self.compare)
        if self.tune is not None:
            yield from self._faults_in_tune(self.tune)
        if self.published is not None:
            yield from self.published.faults_with(self.axes)

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


def _meets(levels: Levels, rule: Mapping[str, str | tuple[str, ...]]) -> bool:
    return all(levels.get(axis) in levels_in(wanted) for axis, wanted in rule.items())
