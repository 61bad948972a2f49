"""The file of a study: frozen pydantic models of `STUDY.toml`, and reading it at a scale and with assignments.

A study is a grid: a run's configuration, axes whose levels are keys laid over it, and seeds. Its manual is
docs/studies.md.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from copy import deepcopy
from itertools import product
from pathlib import Path
from typing import Annotated, Any, Literal

import pydantic
from pydantic import AfterValidator, BeforeValidator, Field

from fedsim.common import arguments, plugins
from fedsim.common.errors import ConfigError, closest
from fedsim.common.paths import as_path
from fedsim.config.errors import assign, read_toml, validated
from fedsim.config.load import changed, check_effect, merged
from fedsim.config.section import RunName, Section, Seed

_COLUMNS = (
    "at", "axis", "baseline", "better", "by", "bytes", "client", "clients", "folder", "from", "group", "high", "level",
    "low", "mean", "metric", "missing", "n", "samples", "seed", "seeds", "size", "std", "step", "study", "time_us",
    "to", "worse",
)  # fmt: skip
"""Columns, beside those of metrics, of the tables in which an axis is a column as well."""
_OWN = ("name", "seed", "arms", "parent")
"""Keys of a run's configuration that belong to the study."""
_LEVEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")

Levels = dict[str, str]
"""The level on each axis, in the order of the file."""


def _study_name(name: str) -> str:
    if "/" in name:
        raise ValueError(f"expected the name of one folder, without '/', found {name!r}")
    return name


_MOST_SEEDS = 100_000


def _seeds(given: Any) -> Any:
    if isinstance(given, int) and not isinstance(given, bool):
        if given < 1:
            raise ValueError(f"expected a number of seeds of at least 1, or a list of seeds, found {given}")
        if given > _MOST_SEEDS:
            raise ValueError(
                f"expected a number of seeds up to {_MOST_SEEDS:,}, or a list of seeds, found {given:,}"
            )
        return tuple(range(1, given + 1))
    return given


def _different(seeds: tuple[int, ...]) -> tuple[int, ...]:
    if not seeds:
        raise ValueError("expected at least one seed, found none")
    twice = sorted({seed for seed in seeds if seeds.count(seed) > 1})
    if twice:
        raise ValueError(f"expected different seeds, found {', '.join(map(str, twice))} more than once")
    return seeds


Seeds = Annotated[tuple[Seed, ...], BeforeValidator(_seeds), AfterValidator(_different), Field(strict=False)]
"""A list of seeds; a number n stands for 1 to n."""


def _free(tables: dict[str, Any]) -> dict[str, Any]:
    """Refuse keys that the study gives to each of its runs itself."""
    for key in _OWN:
        if key in tables:
            raise ValueError(f"{key}: the study decides it for each run; leave it out here")
    return tables


Tables = Annotated[dict[str, Any], AfterValidator(_free)]
"""Tables of a run's configuration (docs/config.md)."""


class CompareSection(Section):
    """`[compare]`: what is asked of the runs; `analysis` reads it."""

    axis: str
    """Differences are taken between levels of this axis, within equal levels of the others and equal seeds."""
    baseline: str
    metrics: tuple[str, ...] = ("mean_percent", "worst10_percent", "angle_rad")
    """Names of metrics (docs/metrics.md)."""
    at: tuple[Literal["end", "steps", "time", "bytes"], ...] = ("end",)
    """Where runs are compared: at their ends, or at equal rounds, virtual time or bytes moved."""
    group: str | None = None
    """A column of groups of clients."""

    @pydantic.field_validator("metrics")
    @classmethod
    def _check_metrics(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        for name in names:
            if ":" in name:
                raise ValueError(
                    f"expected names of installed metrics, found {name!r}; fedsim compare --metric takes that of a file"
                )
            try:
                plugins.factory("metric", name)
            except ConfigError as error:
                raise ValueError(str(error)) from error
        return names


class ScaleSection(Section):
    """`[scales.NAME]`: another size of the same study, chosen with `--scale NAME`."""

    seeds: Seeds | None = None
    run: Tables = Field(default_factory=dict)
    """Laid over `[run]`."""


class StudyConfig(Section):
    """A study."""

    name: Annotated[RunName, AfterValidator(_study_name)]
    description: str = ""
    seeds: Seeds
    run: Tables
    axes: dict[str, dict[str, Tables]] = Field(default_factory=dict)
    skip: tuple[dict[str, str | tuple[str, ...]], ...] = ()
    """Combinations that are left out: a level, or several, of some axes."""
    compare: CompareSection | None = None
    scales: dict[str, ScaleSection] = Field(default_factory=dict)

    @pydantic.model_validator(mode="after")
    def _check_together(self) -> StudyConfig:
        wrong = [*self._wrong_axes(), *self._wrong_skips(), *self._wrong_compare()]
        if wrong:
            raise ValueError("\n".join(wrong))
        return self

    def _wrong_axes(self) -> Iterable[str]:
        for axis, levels in self.axes.items():
            if not axis.isidentifier():
                yield f"axes.{axis}: expected letters, digits and '_', no digit first, found {axis!r}"
            if axis in _COLUMNS or axis in plugins.names("metric"):
                yield f"axes.{axis}: a column of the study's tables has this name: choose another one"
            if not levels:
                yield f"axes.{axis}: expected a table for each level, such as [axes.{axis}.high], found none"
            for level in levels:
                if not _LEVEL.fullmatch(level):
                    yield (
                        f"axes.{axis}.{level}: expected letters, digits, '.', '_' and '-', and a letter or digit "
                        f"first, found {level!r}"
                    )

    def _wrong_skips(self) -> Iterable[str]:
        for number, rule in enumerate(self.skip):
            if not rule:
                yield f"skip.{number}: expected an axis and its level, found an empty table"
            for axis, levels in rule.items():
                if axis not in self.axes:
                    yield f"skip.{number}.{axis}: there is no axis {axis!r}{closest(axis, self.axes)}"
                    continue
                for level in _several(levels):
                    yield from self._wrong_level(f"skip.{number}.{axis}", axis, level)

    def _wrong_compare(self) -> Iterable[str]:
        asked = self.compare
        if asked is None:
            return
        if asked.axis not in self.axes:
            known = closest(asked.axis, self.axes) or "; the study has no axes"
            yield f"compare.axis: there is no axis {asked.axis!r}{known}"
            return
        yield from self._wrong_level("compare.baseline", asked.axis, asked.baseline)

    def _wrong_level(self, place: str, axis: str, level: str) -> Iterable[str]:
        if level not in self.axes[axis]:
            yield f"{place}: axis {axis!r} has no level {level!r}{closest(level, self.axes[axis])}"

    def combinations(self) -> list[Levels]:
        """Return one level of each axis in all ways that are not skipped, the last axis fastest."""
        every = [dict(zip(self.axes, levels, strict=True)) for levels in product(*self.axes.values())]
        return [levels for levels in every if not any(_meets(levels, rule) for rule in self.skip)]

    def at_scale(self, name: str | None) -> StudyConfig:
        """Return the study at one of its scales, without the others; None: as it stands. Raises ConfigError."""
        if name is None:
            return self.model_copy(update={"scales": {}})
        if name not in self.scales:
            known = closest(name, self.scales) or "; the study has no [scales]"
            raise ConfigError(f"--scale: there is no scale {name!r}{known}")
        scale = self.scales[name]
        update = {"scales": {}, "seeds": scale.seeds or self.seeds, "run": merged(self.run, scale.run)}
        return self.model_copy(update=update)

    def resolved(self) -> dict[str, Any]:
        """Return the study as nested dictionaries without None; running it gives the same grid."""
        found = self.model_dump(mode="json", exclude_none=True)
        return {key: value for key, value in found.items() if value not in ({}, [], "")}


@arguments.checked
def load_study(
    path: Path | str, *, scale: str | None = None, sets: Iterable[str] = (), seeds: str | None = None
) -> StudyConfig:
    """Read a study at a scale, then make assignments such as `run.stop.steps=20`, and then take other seeds.

    seeds: a number of seeds, or several as `3,7,9`. Raises ConfigError with one line for each problem.
    """
    path = as_path(path, "path")
    read = read_toml(path)
    if "task" in read and "run" not in read:
        raise ConfigError(f"{path}: expected a study, found the configuration of a run: use fedsim run")
    study = validated(StudyConfig, read, path.name).at_scale(scale)
    given, sets = study.resolved(), list(sets)
    raw = _assigned(deepcopy(given), sets)
    if seeds is not None:
        raw["seeds"] = _seeds_of(seeds)
    final = validated(StudyConfig, raw, path.name)
    for axis, levels in final.axes.items():
        over = {f"axes.{axis}.{level}": tables for level, tables in levels.items()}
        check_effect(given.get("run", {}), _of_runs(sets), over, "run.")
    return final


def _assigned(raw: dict[str, Any], sets: list[str]) -> dict[str, Any]:
    """Make assignments; below `run` another plug-in drops the options of the one before, as for a single run."""
    raw["run"] = changed(raw.get("run", {}), _of_runs(sets))
    for text in sets:
        if text.partition("=")[0].partition(".")[0].strip() == "scales":
            raise ConfigError(
                f"--set {text}: no effect, as --scale comes first; set the key itself, such as run.stop.steps"
            )
        if not text.startswith("run."):
            assign(raw, text)
    return raw


def _of_runs(sets: list[str]) -> list[str]:
    return [text.removeprefix("run.") for text in sets if text.startswith("run.")]


def _seeds_of(text: str) -> int | list[int]:
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() for part in parts):
        raise ConfigError(f"--seeds: expected a number of seeds, or seeds such as 3,7,9, found {text!r}")
    return int(parts[0]) if len(parts) == 1 else [int(part) for part in parts]


def _several(levels: str | tuple[str, ...]) -> tuple[str, ...]:
    return (levels,) if isinstance(levels, str) else levels


def _meets(levels: Levels, rule: Mapping[str, str | tuple[str, ...]]) -> bool:
    return all(levels[axis] in _several(wanted) for axis, wanted in rule.items())
