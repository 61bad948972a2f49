"""The study that `fedsim run` makes of one file with several seeds, or with several values of a key."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

from fedsim.common.errors import ConfigError
from fedsim.config.errors import key_of, read_toml, validated
from fedsim.config.load import CHOSEN_FOR, changed, check_effect, check_kept, named_arms, value_at
from fedsim.config.study.study import StudyConfig
from fedsim.studies.key_axis import Level, axis_name, levels_of, several
from fedsim.studies.load_study import seeds_of, without_idle_keys

_ALONE = {
    "seed": "give several seeds with --seeds",
    "name": "a study has one name",
    "arms": "an arm has one value of each key; make it several arms, or set the key of all",
    "parent": "a run has one parent",
}
"""Tables and keys with one value, and what to do instead."""


def sweep(path: Path, sets: Sequence[str] = (), seeds: str | None = None) -> StudyConfig:
    """Return the study of a run's file. Its axes are `arm`, if the file has arms, and each key with several values.

    Args:
        path: the file.
        sets: assignments, of which some may have several values.
        seeds: a number of seeds, or seeds such as `3,7,9`; by default the file's seed.

    Differences are taken from the first level of the first axis. Raises ConfigError.
    """
    written, values = _configuration(path), _values(sets)
    fixed = [text for text in sets if not several(text)]
    if seeds is not None and (given := [text for text in fixed if key_of(text) == "seed"]):
        raise ConfigError(f"--set {given[0]}: no effect, as --seeds gives the seeds: leave out one of them")
    check_kept(written, named_arms(written), f"{path.name}: ")
    run = changed(deepcopy(written), fixed)
    check_effect(written, fixed, named_arms(run))
    name, seed, arms = run.pop("name", path.stem), run.pop("seed", 0), run.pop("arms", {})
    axes: dict[str, Any] = {"arm": arms} if arms else {}
    for key, each in values.items():
        if reason := _ALONE.get(key.partition(".")[0]):
            raise ConfigError(f"--set {key}: expected one value, found several: {reason}")
        levels = levels_of(key, each, f"--set {key}")
        if key.endswith(".name"):
            levels = {
                level: _with_shared_keys(written, key, tables, fixed) for level, tables in levels.items()
            }
        axes[axis_name(key, axes)] = levels
        _let_go(run, key, levels, [*values, *map(key_of, fixed)])
    raw = {"name": name, "seeds": [seed] if seeds is None else seeds_of(seeds), "run": run, "axes": axes}
    if axes and isinstance(first := next(iter(axes.values())), Mapping):
        raw["compare"] = {"axis": next(iter(axes)), "baseline": next(iter(first))}
    study = validated(StudyConfig, raw, path.name)
    arms_before = written.get("arms", {})
    before = raw | {
        "run": {key: value for key, value in written.items() if key not in ("name", "seed", "arms")},
        "axes": {"arm": arms_before} if arms_before else {},
        "compare": None,
    }
    return without_idle_keys(study, lambda: before, path.name) if fixed else study


def _values(sets: Sequence[str]) -> dict[str, list[Any]]:
    """Return the keys with several values. Raises ConfigError for another assignment to one of them."""
    values = {key_of(text): found for text in sets if (found := several(text))}
    last = {key_of(text): text for text in sets}
    for text in sets:
        if (key := key_of(text)) in values and last[key] != text:
            raise ConfigError(f"--set {text}: no effect, as another --set gives {key}: leave out one of them")
    return values


def _let_go(run: dict[str, Any], key: str, levels: dict[str, Level], given: Sequence[str]) -> None:
    """Leave keys of the run that were chosen for a value of `key` to the level that has this value, in place."""
    for other, chosen_for in CHOSEN_FOR.items():
        table, _, name = other.partition(".")
        of_table = run.get(table)
        if (
            key not in chosen_for
            or other in given
            or not isinstance(of_table, Mapping)
            or name not in of_table
        ):
            continue
        former = value_at(run, key)
        run[table] = {k: v for k, v in of_table.items() if k != name}
        for tables in levels.values():
            if value_at(tables, key) == former and set(given).isdisjoint(set(chosen_for) - {key}):
                tables.setdefault(table, {})[name] = of_table[name]


def _with_shared_keys(written: dict[str, Any], key: str, level: Level, fixed: Sequence[str]) -> Level:
    """Return a level that names a plug-in, with the keys of the table that stay, and those of the other assignments."""
    table = key.removesuffix(".name")
    named = level.get(table)
    if "." in table or not isinstance(named, Mapping) or not isinstance(written.get(table), Mapping | None):
        return level
    return {table: changed(deepcopy(written), [f"{key}={json.dumps(named['name'])}", *fixed])[table]}


def _configuration(path: Path) -> dict[str, Any]:
    """Read the file of a run. Raises ConfigError for that of a study."""
    written = read_toml(path)
    if {"run", "seeds"} <= written.keys():
        raise ConfigError(
            f"{path}: expected the configuration of a run, found that of a study: use fedsim study"
        )
    return written
