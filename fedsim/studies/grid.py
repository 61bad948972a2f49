"""The cells of a study: one level of each axis and one seed, each a run's configuration of its own."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedsim.common.errors import ConfigError
from fedsim.config.load import merged
from fedsim.config.requirements import settled
from fedsim.config.run import RunConfig
from fedsim.config.study import Levels, StudyConfig

RUNS = "runs"
_WHOLE = "all"
"""The folder of the runs of a study without axes."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One run of a study."""

    number: int
    """Its place in the study."""
    levels: Levels
    config: RunConfig
    """Its name is `LEVELS/seed-N`, which is also its folder below `runs`."""

    @property
    def seed(self) -> int:
        """The seed of data, world, start parameters and minibatches."""
        return self.config.seed

    @property
    def folder(self) -> str:
        """The run's folder, relative to the study's."""
        return f"{RUNS}/{self.config.name}"

    @property
    def title(self) -> str:
        """What people are shown: `rule=fedfv, dropout=high, seed 3`."""
        return ", ".join(filter(None, [titled(self.levels), f"seed {self.seed}"]))


def titled(levels: Mapping[str, str]) -> str:
    """Write levels for people: `rule=fedfv, dropout=high`."""
    return ", ".join(f"{axis}={level}" for axis, level in levels.items())


def cells_of(study: StudyConfig, source: str) -> tuple[Cell, ...]:
    """Return the cells, seeds fastest; every configuration is checked.

    `source` names the file in messages. Raises ConfigError with a line for each problem, which says in which
    combinations of levels it is if not in all.
    """
    combinations = study.combinations()
    if not combinations:
        raise ConfigError(f"{source}: skip: every combination of levels is left out")
    _check_folders(combinations, source)
    configs: list[RunConfig] = []
    wrong: dict[str, list[Levels]] = defaultdict(list)
    raws = [_raw(study, levels, source) for levels in combinations]
    for levels, found in zip(combinations, settled(raws, [source] * len(raws)), strict=True):
        if isinstance(found, RunConfig):
            configs.append(found)
        else:
            for line in str(found).splitlines():
                wrong[line].append(levels)
    if wrong:
        raise ConfigError("\n".join(_with_levels(*found, len(combinations)) for found in wrong.items()))
    pairs = [
        (levels, config, seed)
        for levels, config in zip(combinations, configs, strict=True)
        for seed in study.seeds
    ]
    return tuple(
        Cell(number, levels, _seeded(config, levels, seed))
        for number, (levels, config, seed) in enumerate(pairs)
    )


def _check_folders(combinations: Sequence[Levels], source: str) -> None:
    """Refuse levels with points in them that would share a folder: `a.b` and `c`, `a` and `b.c`."""
    known: dict[str, Levels] = {}
    for levels in combinations:
        other = known.setdefault(_folder(levels).lower(), levels)
        if other is not levels:
            raise ConfigError(
                f"{source}: axes: {titled(levels)} and {titled(other)} would have the same folder "
                f"{_folder(levels)!r}: rename a level"
            )


def _folder(levels: Levels) -> str:
    return ".".join(levels.values()) or _WHOLE


def _seeded(config: RunConfig, levels: Levels, seed: int) -> RunConfig:
    return config.model_copy(update={"name": f"{_folder(levels)}/seed-{seed}", "seed": seed})


def _raw(study: StudyConfig, levels: Levels, source: str) -> dict[str, Any]:
    """Lay the levels' keys over those of `[run]`.

    They are joined first: one axis may name a rule and another one of its options, in any order.
    """
    changes: dict[str, Any] = {}
    said: dict[str, str] = {}
    for axis, level in levels.items():
        changes = _joined(changes, study.axes[axis][level], axis, said, source)
    first = study.seeds[0]
    return merged(study.run, changes) | {"name": f"{_folder(levels)}/seed-{first}", "seed": first}


def _joined(
    below: Mapping[str, Any],
    above: Mapping[str, Any],
    axis: str,
    said: dict[str, str],
    source: str,
    path: str = "",
) -> dict[str, Any]:
    """Join the keys of two axes. `said` knows which axis set each key; no two may set the same."""
    result = dict(below)
    for key, value in above.items():
        place = f"{path}{key}"
        if isinstance(value, Mapping) and isinstance(result.get(key, {}), Mapping):
            result[key] = _joined(result.get(key, {}), value, axis, said, source, f"{place}.")
        elif key in result:
            raise ConfigError(f"{source}: axes {said.get(place, '?')} and {axis} both set {place}")
        else:
            result[key], said[place] = value, axis
    return result


def _with_levels(line: str, where: Sequence[Levels], total: int) -> str:
    if len(where) == total:
        return line
    more = f" and {len(where) - 1} more" if len(where) > 1 else ""
    return f"{line} (in: {titled(where[0])}{more})"
