"""Reading configurations: a TOML file or nested dictionaries, assignments `--set`, arms."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

import pydantic

from fedsim.common import arguments
from fedsim.common.errors import ConfigError
from fedsim.common.paths import as_path
from fedsim.config.adversary import AdversarySection
from fedsim.config.errors import assign, problems, read_toml
from fedsim.config.requirements import settled
from fedsim.config.run import (
    AlgorithmSection,
    ClientSection,
    ModelSection,
    PartitionSection,
    RunConfig,
    SelectionSection,
    TaskSection,
)
from fedsim.config.section import PluginSection, check_distinct, run_name

_NAMES: dict[str, type[PluginSection]] = {
    "task.name": TaskSection,
    "model.name": ModelSection,
    "partition.name": PartitionSection,
    "selection.name": SelectionSection,
    "client.name": ClientSection,
    "algorithm.name": AlgorithmSection,
    "adversary.name": AdversarySection,
}
"""Keys that name a plug-in, and the table that they stand in."""
_DECIDE_MODE = ("model", "client")
"""Tables on which depends how groups of clients can train: another one asks for `train.mode` anew."""


def load(path: Path | str, sets: Sequence[str] = ()) -> list[RunConfig]:
    """Read a TOML file into one run, or into one run for each of its `[arms.NAME]` tables.

    An arm's keys replace those of the file. `sets` are `a.b=value` assignments made before that. Raises ConfigError
    with one line for each problem.
    """
    path = as_path(path, "path")
    if isinstance(sets, str):
        raise ConfigError(f"sets: expected several assignments, such as ({sets!r},), found the text {sets!r}")
    if not isinstance(sets, Iterable) or not all(isinstance(text, str) for text in sets):
        raise ConfigError(f"sets: expected assignments such as ('train.lr=0.1',), found {sets!r}")
    given = read_toml(path)
    if {"run", "seeds"} <= given.keys():
        raise ConfigError(
            f"{path}: expected the configuration of a run, found that of a study: use fedsim study"
        )
    raw = changed(deepcopy(given), sets)
    if "name" not in raw:
        _check_stem(path)
    found = parse(raw, path.name, default_name=path.stem, before=given)
    arms = {f"arms.{arm}": changes for arm, changes in raw.get("arms", {}).items()}
    check_effect(given, sets, arms)
    return found


def _check_stem(path: Path) -> None:
    """Raise ConfigError if a file's own name cannot be that of its run."""
    try:
        run_name(path.stem)
    except ValueError as error:
        raise ConfigError(
            f"{path.name}: name: the file says none, and its own does not do: {error}; give one with "
            'name = "..." in the file, or --set name=...'
        ) from error


def check_effect(
    given: dict[str, Any], sets: Sequence[str], over: Mapping[str, Mapping[str, Any]], table: str = ""
) -> None:
    """Raise ConfigError if an assignment `a.b=value` changes a configuration, but nothing once others are laid over it.

    `over` are these, each for itself, by their places in the file; the configuration is itself in its `table`.
    """
    if not over:
        return
    base = changed(deepcopy(given), sets)
    for number, text in enumerate(sets):
        try:
            without = changed(deepcopy(given), [*sets[:number], *sets[number + 1 :]])
        except ConfigError:  # another assignment needs this one
            continue
        if without != base and all(merged(base, o) == merged(without, o) for o in over.values()):
            raise ConfigError(
                f"--set {table}{text}: no effect, as each of {', '.join(over)} says otherwise; set it there, such as "
                f"{next(iter(over))}.{text}"
            )


def changed(raw: dict[str, Any], sets: Iterable[str]) -> dict[str, Any]:
    """Make assignments `a.b=value` in a configuration, and return it.

    Naming another plug-in (`algorithm.name=fedlf`) drops the options of the one before; keys that all plug-ins of the
    table share stay. Raises ConfigError.
    """
    names = [text for text in sets if text.partition("=")[0].strip() in _NAMES]
    for text in names:
        table = text.partition(".")[0].strip()
        below = raw.get(table)
        if isinstance(below, Mapping):
            shared = _NAMES[f"{table}.name"].model_fields
            before, raw[table] = below, {k: v for k, v in below.items() if k in shared}
            assign(raw, text)
            if raw[table].get("name") == before.get("name"):
                raw[table] = dict(before)
            if table in _DECIDE_MODE and isinstance(train := raw.get("train"), Mapping):
                raw["train"] = {k: v for k, v in train.items() if k != "mode"}
    for text in sets:
        assign(raw, text)
    return raw


@arguments.checked
def parse(
    raw: Mapping[str, Any], source: str, default_name: str, before: Mapping[str, Any] | None = None
) -> list[RunConfig]:
    """Check a configuration given as nested dictionaries; `source` names it in messages.

    A key that others leave without effect is refused, unless it has one in another arm, or in what was `before`.
    """
    runs = []
    raws, sources = _runs(raw, source, default_name)
    for found in checked(raws, sources, lambda: _before(before, default_name)):
        if isinstance(found, ConfigError):
            raise found
        runs.append(found)
    return runs


def checked(
    raws: Sequence[Mapping[str, Any]],
    sources: Sequence[str],
    before: Callable[[], Sequence[RunConfig]] = lambda: (),
) -> list[RunConfig | ConfigError]:
    """Check the runs of one file, named by `sources`, together: each, or what is wrong with it."""
    return settled(raws, sources, _validated, before)


def _before(raw: Mapping[str, Any] | None, default_name: str) -> list[RunConfig]:
    """Return the runs of a configuration as it was; none where it was none."""
    if raw is None:
        return []
    try:
        return [_validated(*run) for run in zip(*_runs(raw, "", default_name), strict=True)]
    except ConfigError:
        return []


def _runs(
    raw: Mapping[str, Any], source: str, default_name: str
) -> tuple[list[Mapping[str, Any]], list[str]]:
    """Return each arm's own configuration, or the one that there is, and how messages name it."""
    base = {"name": default_name} | dict(raw)
    arms = base.pop("arms", None)
    if arms is None:
        return [base], [source]
    if not isinstance(arms, Mapping) or not arms or not all(isinstance(a, Mapping) for a in arms.values()):
        raise ConfigError(f"{source}: arms: expected tables such as [arms.fedavg.algorithm], found {arms!r}")
    check_distinct(arms, f"{source}: the arms")
    runs: list[Mapping[str, Any]] = []
    for arm, changes in arms.items():
        if "name" in changes:
            raise ConfigError(f"{source}: arms.{arm}.name: an arm has the name of its table; leave it out")
        runs.append(merged(base, changes) | {"name": f"{base['name']}/{arm}"})
    return runs, [f"{source}, arm {arm!r}" for arm in arms]


def _validated(raw: Mapping[str, Any], source: str) -> RunConfig:
    """Check one run; keys without effect are left to `fedsim.config.requirements.settled`. Raises ConfigError."""
    try:
        return RunConfig.model_validate(raw)
    except pydantic.ValidationError as error:
        raise ConfigError(problems(error, RunConfig, source)) from error


def merged(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Lay `changes` over `base`, table by table; a table that names another plug-in replaces the one below."""
    result = dict(base)
    for key, value in changes.items():
        below = result.get(key)
        if (
            isinstance(value, Mapping)
            and isinstance(below, Mapping)
            and value.get("name") in (None, below.get("name"))
        ):
            result[key] = merged(below, value)
        else:
            result[key] = value
    return result
