"""The cells of a study: each is a run with one level of each axis and one seed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import groupby, product
from typing import Any

from fedsim.common.errors import ConfigError
from fedsim.config.errors import validated
from fedsim.config.load import merged
from fedsim.config.requirements import lacks_of, settled
from fedsim.config.run import RunConfig
from fedsim.config.study.axes import Levels
from fedsim.config.study.study import StudyConfig
from fedsim.records.existing_run import State
from fedsim.studies.key_axis import keys_of


@dataclass(frozen=True, slots=True)
class Cell:
    """One run of a study."""

    number: int
    """The position in the study."""
    levels: Levels
    config: RunConfig
    """The run is named `LEVELS/seed-N`, which is also its folder below `runs`."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.title}>"

    @property
    def seed(self) -> int:
        """The seed of data, world and training, as far as `[seeds]` has no other."""
        return self.config.seed

    @property
    def folder(self) -> str:
        """The run's folder, relative to the study's."""
        return f"runs/{self.config.name}"

    @property
    def title(self) -> str:
        """The cell's name for users, such as `rule=fedfv, dropout=high, seed 3`."""
        return ", ".join(filter(None, [titled(self.levels), f"seed {self.seed}"]))


@dataclass(frozen=True, slots=True)
class CellProgress:
    """The progress of a running cell."""

    number: int
    step: int
    time_us: int
    share: float
    """Share of the run that is done, from 0 to 1."""


@dataclass(frozen=True, slots=True)
class CellResult:
    """The result of a cell."""

    state: State
    wall_s: float
    accuracy: float
    """Mean over clients at the last evaluation in this process; NaN without one."""


def titled(levels: Mapping[str, str]) -> str:
    """Return levels as text, such as `rule=fedfv, dropout=high`."""
    return ", ".join(f"{axis}={level}" for axis, level in levels.items())


def cells_of(study: StudyConfig, source: str) -> tuple[Cell, ...]:
    """Return the cells, seeds fastest, with checked configurations.

    `source` names the file in messages. Raises ConfigError with a line for each problem. A problem that only some
    combinations of levels have names them.
    """
    combinations = study.combinations()
    if not combinations:
        fault = "only: skip leaves out" if study.only else "skip leaves out"
        raise ConfigError(f"{source}: {fault} every combination of levels")
    _check_folders(combinations, source)
    raws = [_raw(study, levels, source) for levels in combinations]
    configs = _configs(combinations, raws, source, lambda: [*_whole(study, source)] if study.only else [])
    _check_split(study, combinations, configs, source)
    _check_seeds(study, combinations, configs, source)
    _check_clients(study, configs, source)
    pairs = product(zip(combinations, configs, strict=True), study.seeds)
    return tuple(
        Cell(number, levels, config.model_copy(update=_name_and_seed(levels, seed)))
        for number, ((levels, config), seed) in enumerate(pairs)
    )


def _whole(study: StudyConfig, source: str) -> Iterator[RunConfig]:
    """Yield the configurations of all combinations of a study, also of those that `only` leaves out.

    Without those that are wrong for another reason than a key without effect.
    """
    whole = study.model_copy(update={"only": {}})
    for levels in whole.combinations():
        with suppress(ConfigError):
            yield validated(RunConfig, _raw(whole, levels, source, untuned=True), source)


Effect = tuple[str, str | None]
"""A key, and the plug-in that its table names, if any."""


def effects_in(study: StudyConfig, source: str) -> tuple[set[Effect], set[Effect]]:
    """Return the keys that have an effect in some combination of a study, and those that have none in any."""
    useful: set[Effect] = set()
    idle: set[Effect] = set()
    for config in _whole(study, source):
        lacks = lacks_of(config)
        tables = config.resolved() if lacks else {}
        for key, lack in lacks.items():
            (idle if lack else useful).add((key, plugin_in(tables, key)))
    return useful, idle - useful


def plugin_in(tables: Mapping[str, Any], key: str) -> str | None:
    """Return the plug-in that a key's table names; None if it names none."""
    name = key.partition(".")[0]
    table = tables.get(name)
    named = table.get("scenario" if name == "world" else "name") if isinstance(table, Mapping) else None
    return named if isinstance(named, str) else None


def _configs(
    combinations: Sequence[Levels],
    raws: Sequence[Any],
    source: str,
    whole: Callable[[], Sequence[RunConfig]],
) -> list[RunConfig]:
    """Return the checked configurations `raws` of the combinations. Raises ConfigError with a line for each problem."""
    configs: list[RunConfig] = []
    wrong: dict[str, list[Levels]] = defaultdict(list)
    for levels, config in zip(combinations, settled(raws, [source] * len(raws), whole), strict=True):
        if isinstance(config, RunConfig):
            configs.append(config)
        else:
            for line in str(config).splitlines():
                wrong[line].append(levels)
    if wrong:
        raise ConfigError("\n".join(_with_levels(*each, len(combinations)) for each in wrong.items()))
    return configs


def _check_split(
    study: StudyConfig, combinations: Sequence[Levels], configs: Sequence[RunConfig], source: str
) -> None:
    """Refuse to compare cells on a split that some of them do not record."""
    split = None if study.compare is None else study.compare.split
    if split is None:
        return
    for levels, recorded in zip(combinations, (config.recorded_splits() for config in configs), strict=True):
        if split not in recorded:
            where = f" ({titled(levels)})" if levels else ""
            raise ConfigError(
                f"{source}: compare.split: expected a split that all runs record, found {split!r}; recorded are "
                f"{', '.join(recorded)}{where}"
            )


def _check_clients(study: StudyConfig, configs: Sequence[RunConfig], source: str) -> None:
    """Refuse columns of `[published]` for clients that no run has, where configurations tell how many there are."""
    counts = [config.task.clients for config in configs]
    if study.published is None or None in counts:
        return
    most = max(n for n in counts if n is not None)
    for name, number in study.published.clients.items():
        if number >= most:
            raise ConfigError(
                f"{source}: published.clients.{name}: expected a client from 0 to {most - 1}, found {number}"
            )


def _check_seeds(
    study: StudyConfig, combinations: Sequence[Levels], configs: Sequence[RunConfig], source: str
) -> None:
    """Refuse several seeds where `[seeds]` leaves them without effect, so that runs would be equal."""
    if len(study.seeds) == 1 and study.tune is None:
        return
    for levels, config in zip(combinations, configs, strict=True):
        if None not in dict(config.seeds).values():
            several = "seeds" if len(study.seeds) > 1 else "tune.seeds"
            where = f" ({titled(levels)})" if levels else ""
            raise ConfigError(
                f"{source}: {several}: no effect, as seeds.data, seeds.world and seeds.train are all set{where}: leave "
                "one of the three out"
                + (", or give one seed, such as seeds = [1]" if several == "seeds" else "")
            )


def by_levels(cells: Iterable[Cell]) -> list[list[Cell]]:
    """Return cells, which are in the order of the study, in groups that differ in their seeds alone."""
    return [list(group) for _, group in groupby(cells, key=lambda cell: cell.levels)]


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
    """Return the name of the folder of a combination of levels, which is `all` for a study without axes."""
    return ".".join(levels.values()) or "all"


def _name_and_seed(levels: Levels, seed: int) -> dict[str, Any]:
    return {"name": f"{_folder(levels)}/seed-{seed}", "seed": seed}


def _raw(study: StudyConfig, levels: Levels, source: str, *, untuned: bool = False) -> dict[str, Any]:
    """Return the configuration of `[run]` with the levels' keys, at the first seed.

    The levels are joined first: one axis may name a rule and another one of its options, in any order. Raises
    ConfigError if two axes, or an axis and `[tune]`, set the same key.
    """
    changes: dict[str, Any] = {}
    axis_of: dict[str, str] = {}

    def join(tables: dict[str, Any], keys: Mapping[str, Any], axis: str, path: str = "") -> None:
        for key, value in keys.items():
            place = f"{path}{key}"
            if isinstance(value, Mapping) and isinstance(tables.setdefault(key, {}), dict):
                join(tables[key], value, axis, f"{place}.")
            elif key in tables:
                raise ConfigError(f"{source}: axes {axis_of.get(place, '?')} and {axis} both set {place}")
            else:
                tables[key], axis_of[place] = value, axis

    for axis, level in levels.items():
        join(changes, study.axes[axis][level], axis)
    if study.tune is not None:
        choices, chooses = study.tune.choices(), study.tune.at(levels)
        value = choices.get(chooses, study.tune.values[0]) if untuned else choices[chooses]
        join(changes, keys_of(study.tune.key, value), "[tune]")
    return merged(study.run, changes) | _name_and_seed(levels, study.seeds[0])


def _with_levels(line: str, combinations: Sequence[Levels], total: int) -> str:
    if len(combinations) == total:
        return line
    more = f" and {len(combinations) - 1} more" if len(combinations) > 1 else ""
    return f"{line} (in: {titled(combinations[0])}{more})"
