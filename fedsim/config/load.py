"""Reads configurations: a TOML file or nested dicts, with assignments and arms."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from types import MappingProxyType
from typing import Any

from fedsim import plugins
from fedsim.common import arguments
from fedsim.common.errors import ConfigError, described, shown
from fedsim.common.paths import as_path
from fedsim.config.errors import (
    assign,
    assignments,
    key_of,
    key_parts,
    models_in,
    quoted,
    read_toml,
    validated,
)
from fedsim.config.requirements import settled
from fedsim.config.run import RunConfig
from fedsim.config.section import PluginSection, check_distinct, run_name
from fedsim.config.timing import with_preset
from fedsim.config.world import with_scenario

Source = Path | str | Mapping[str, Any]
"""A configuration: the path of a TOML file, or its tables."""
Sets = Sequence[Any] | Mapping[str, Any]
"""Changes of a configuration: assignments `a.b=value`, or values by dotted key. `assignments` checks the entries."""
Filled = Callable[[dict[str, Any], str], dict[str, Any]]
"""Completes the tables of a configuration, whose name in messages is the second argument."""

_NAMES = {
    f"{key}.name": table
    for key, field in RunConfig.model_fields.items()
    for table in models_in(field.annotation)
    if issubclass(table, PluginSection)
}
"""The tables of the keys that name a plug-in."""
_KEPT = {"world.scenario": with_scenario, "pacing.preset": with_preset}
"""What stays of a table when one of these keys has another value."""
CHOSEN_FOR = {"train.mode": ("task.name", "model.name", "client.name"), "stop.rising": ("stop.metric",)}
"""Keys that go when one of these has another value: they were chosen for the former one."""


def load_config(config: Source, sets: Sets = ()) -> list[RunConfig]:
    """Read a configuration into one run, or into one run for each of its `[arms.NAME]` tables.

    Args:
        config: the path of a TOML file, or its tables as a dict, whose run is called `run` unless it has a `name`.
        sets: changes of the configuration's keys, as assignments such as `a.b=value` or as a dict by dotted key; each
            arm's keys then replace them.

    Raises ConfigError with one line for each problem.
    """
    return read_runs(config, sets)


def read_runs(config: Source, sets: Sets = (), filled: Filled = lambda raw, source: raw) -> list[RunConfig]:
    """Read a configuration, as `load_config` does, after `filled(raw, source)` has completed its tables."""
    made = assignments(sets)
    written, path = tables_of(config, "config")
    if {"run", "seeds"} <= written.keys():
        place = "config" if path is None else path
        raise ConfigError(
            f"{place}: expected the configuration of a run, found that of a study: use fedsim study, with "
            "--dry-run to plan it"
        )
    raw = changed(deepcopy(written), made)
    if "name" not in raw and path is not None:
        _check_stem(path)
    source, name = ("config", "run") if path is None else (path.name, path.stem)
    raw, written = filled(raw, source), filled(written, source)
    check_kept(written, named_arms(written), f"{source}: ")
    runs = parse(raw, source, default_name=name, before=written)
    check_effect(written, made, named_arms(raw))
    return runs


def read_existing(path: Path) -> RunConfig:
    """Read the configuration of an existing run, whose task and model Python code may have passed: not to build it."""
    tables = [table for table in read_toml(path).values() if isinstance(table, Mapping)]
    names = [name for table in tables if isinstance(name := table.get("name"), str)]
    absent = {name: _absent for name in names if name.startswith(plugins.GIVEN)}
    with plugins.given(absent):
        return load_config(path)[0]


def _absent(**supplied: Any) -> Any:
    raise ConfigError("this task or model came from Python code, and no file holds it")


def tables_of(config: Source, name: str) -> tuple[dict[str, Any], Path | None]:
    """Return the tables of the argument `name`, and their file if it is one. Raises ConfigError."""
    if isinstance(config, Mapping):
        return deepcopy(dict(config)), None
    if not isinstance(config, (str, Path)):
        raise ConfigError(f"{name}: expected a path or a dict of tables, found {described(config)}")
    path = as_path(config, name)
    return read_toml(path), path


def _check_stem(path: Path) -> None:
    """Raise ConfigError if the name of the file cannot be the name of a run."""
    try:
        run_name(path.stem)
    except ValueError as error:
        raise ConfigError(
            f"{path.name}: name: missing, and the name of the file cannot be the run's: {error}; give one with "
            'name = "..." in the file, or --set name=...'
        ) from error


def check_effect(
    written: dict[str, Any], sets: Sequence[str], overlays: Mapping[str, Mapping[str, Any]], table: str = ""
) -> None:
    """Raise ConfigError if an assignment `a.b=value` changes a configuration, but none of its overlays.

    Args:
        written: the configuration without the assignments.
        sets: the assignments.
        overlays: the arms or levels whose keys replace those of the configuration, by their tables in the file.
        table: the table that holds the configuration, such as `run.`, for the message.
    """
    if not overlays:
        return
    each = "each of " if len(overlays) > 1 else ""
    base = changed(deepcopy(written), sets)
    for number, text in enumerate(sets):
        try:
            without = changed(deepcopy(written), [*sets[:number], *sets[number + 1 :]])
        except ConfigError:  # another assignment needs this one
            continue
        if without != base and all(merged(base, o) == merged(without, o) for o in overlays.values()):
            raise ConfigError(
                f"--set {table}{text}: no effect, as {each}{', '.join(overlays)} replaces it; set it there, such as "
                f"{next(iter(overlays))}.{text}"
            )


def check_kept(base: Mapping[str, Any], overlays: Mapping[str, Mapping[str, Any]], place: str) -> None:
    """Raise ConfigError for a key that no overlay keeps, as each names another plug-in, or another preset of pacing.

    A plug-in's own keys go silently.

    Args:
        base: the configuration in its file.
        overlays: the arms or levels whose keys replace those of the configuration, by their tables in the file.
        place: where the configuration is, such as `fair.toml: `, for the message.
    """
    for table, keys in base.items() if overlays else ():
        model = _NAMES.get(f"{table}.name")
        changes = [overlay.get(table, {}) for overlay in overlays.values()]
        if not all(isinstance(each, Mapping) for each in (keys, *changes)):
            continue
        if table == "pacing":
            named, kept = "preset", [merged(base, overlay)[table] for overlay in overlays.values()]
            lost = [key for key in keys if not any(key in each for each in kept)]
        elif model is None or any(_same_plugin(table, keys, each) for each in changes):
            continue
        else:
            named, lost = table, [key for key, value in keys.items() if _is_shared(model, keys, key, value)]
        for key in lost:
            raise ConfigError(
                f"{place}{table}.{key}: no effect, as each of {', '.join(overlays)} names another {named}; set it "
                f"there, such as {next(iter(overlays))}.{table}.{key}"
            )


def _is_shared(model: type[PluginSection], keys: Mapping[str, Any], key: str, value: Any) -> bool:
    """Return whether a key of a plug-in's table counts for each plug-in and has a value of its own."""
    if (shared := model.model_fields.get(key)) is None:
        return "name" not in keys
    return key != "name" and value not in (shared.default, [])


def named_arms(raw: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Return the arms of a configuration by their tables in the file."""
    arms = raw.get("arms")
    tables = arms.items() if isinstance(arms, Mapping) else ()
    return {f"arms.{arm}": each for arm, each in tables if isinstance(each, Mapping)}


def refuse_own(before: Mapping[str, Any], after: Mapping[str, Any]) -> None:
    """Raise ConfigError if assignments changed what a fork or a replay has of its own: its name and its parent."""
    if before.get("name") != after.get("name"):
        raise ConfigError("name: it names the parent here; name the new run with --name")
    if before.get("parent") != after.get("parent"):
        raise ConfigError("parent: it is the run that this one is made from, and cannot be changed")


def changed(
    raw: dict[str, Any], sets: Sequence[str], base: Mapping[str, Any] = MappingProxyType({})
) -> dict[str, Any]:
    """Make assignments `a.b=value` in a configuration in place, and return it; `base` is what an arm or level replaces.

    Naming another plug-in (`algorithm.name=fedlf`) drops the previous plug-in's options; the keys that all plug-ins of
    the table share stay. So does naming another scenario (`world.scenario=churn`). Keys that were chosen for another
    plug-in, preset or metric go too, unless an assignment sets them. The same holds within an arm. Raises ConfigError.
    """
    sets = changed_within({"arms": raw.get("arms")}, sets, raw)
    keys = [key_of(text) for text in sets]
    whole = merged(base, raw)
    before_sets = {key: [value_at(whole, other) for other in others] for key, others in CHOSEN_FOR.items()}
    for text, key in zip(sets, keys, strict=True):
        table = key.removesuffix(".name")
        if key in _NAMES and isinstance(before := raw.get(table), Mapping):
            raw[table] = {k: v for k, v in before.items() if k in _NAMES[key].model_fields}
            assign(raw, text)
            if raw[table]["name"] == value_at(whole, key):
                raw[table] = dict(before)
        elif key in _KEPT and isinstance(before := raw.get(key.split(".")[0]), Mapping):
            table, name = key.split(".")
            raw[table] = {}
            assign(raw, text)
            new = raw[table][name]
            raw[table] = _KEPT[key]({**before, name: value_at(whole, key)}, new) | {name: new}
    for text in sets:
        assign(raw, text)
    whole = merged(base, raw)
    for key, others in CHOSEN_FOR.items():
        table, _, name = key.partition(".")
        same = [value_at(whole, other) for other in others] == before_sets[key]
        if not same and isinstance(raw.get(table), Mapping) and {table, key}.isdisjoint(keys):
            raw[table] = {k: v for k, v in raw[table].items() if k != name}
    return raw


def changed_within(overlays: Mapping[str, Any], sets: Sequence[str], base: Mapping[str, Any]) -> list[str]:
    """Make the assignments in arms or levels, as `changed` does, and return the others.

    Args:
        overlays: by place, such as `arms` or `axes.rule`, the tables of each arm or level by its name.
        sets: assignments such as `arms.fair.algorithm.name=fedlf`.
        base: the configuration whose keys the arms or levels replace.
    """
    left = list(sets)
    for place, named in overlays.items():
        for name, tables in named.items() if isinstance(named, Mapping) else ():
            below = {text: _below(text, f"{place}.{name}") for text in left}
            inside = [text for text in below.values() if text is not None]
            if inside and isinstance(tables, dict):
                named[name] = changed(deepcopy(tables), inside, base)  # two arms may be one dict of Python
                left = [text for text, assignment in below.items() if assignment is None]
    return left


def _below(text: str, place: str) -> str | None:
    """Return an assignment within a table `place`, such as `arms.0.4` or `arms."0.4"`; None for one outside."""
    key, sign, value = text.partition("=")
    parts = key_parts(key)
    for n in range(1, len(parts)):
        if ".".join(parts[:n]) == place:
            return ".".join(map(quoted, parts[n:])) + sign + value
    return None


def value_at(raw: Mapping[str, Any], place: str) -> Any:
    """Return the value of a key such as `client.name`, by default that of its table's model."""
    table, _, name = place.partition(".")
    (model,) = models_in(RunConfig.model_fields[table].annotation)
    given = raw.get(table, {})
    return given.get(name, model.model_fields[name].default) if isinstance(given, Mapping) else None


@arguments.checked
def parse(
    raw: Mapping[str, Any], source: str, default_name: str, before: Mapping[str, Any] | None = None
) -> list[RunConfig]:
    """Check a configuration given as nested dictionaries, and return its runs.

    Raises ConfigError for a key without effect, unless it has an effect in another arm or in `before`.

    Args:
        raw: the configuration.
        source: its name in messages.
        default_name: the name of the run if the configuration has none.
        before: the configuration before assignments were made.
    """
    runs = []
    raws, sources = _runs(raw, source, default_name)
    for run in settled(raws, sources, lambda: _before(before, default_name)):
        if isinstance(run, ConfigError):
            raise run
        runs.append(run)
    return runs


def _before(raw: Mapping[str, Any] | None, default_name: str) -> list[RunConfig]:
    """Return the runs of the configuration before assignments; an empty list if it was invalid."""
    if raw is None:
        return []
    try:
        return [validated(RunConfig, each, "") for each in _runs(raw, "", default_name)[0]]
    except ConfigError:
        return []


def _runs(
    raw: Mapping[str, Any], source: str, default_name: str
) -> tuple[list[Mapping[str, Any]], list[str]]:
    """Return the configurations of the arms, or of the single run, and their names in messages."""
    base = {"name": default_name} | dict(raw)
    arms = base.pop("arms", None)
    if arms is None:
        return [base], [source]
    if not isinstance(arms, Mapping) or not arms or not all(isinstance(a, Mapping) for a in arms.values()):
        raise ConfigError(
            f"{source}: arms: expected a table for each arm, such as [arms.fedavg.algorithm] in TOML or "
            f'{{"fedavg": {{"algorithm": {{"name": "fedavg"}}}}}} in Python, found {shown(arms)}'
        )
    check_distinct(arms, f"{source}: the arms")
    runs: list[Mapping[str, Any]] = []
    for arm, changes in arms.items():
        if "name" in changes:
            raise ConfigError(f"{source}: arms.{arm}.name: an arm has the name of its table; leave it out")
        runs.append(merged(base, changes) | {"name": f"{base['name']}/{arm}"})
    return runs, [f"{source}, arm {arm!r}" for arm in arms]


def merged(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return `base` with the keys of `changes` replaced, table by table.

    A table that names another plug-in replaces the whole table; one that names another scenario replaces its options,
    and one that names another preset of pacing the keys that only the former one needs.
    """
    result = dict(base)
    for table, value in changes.items():
        below: Any = result.get(table)
        are_tables = isinstance(value, Mapping) and isinstance(below, Mapping)
        for name in _KEPT.keys() & {f"{table}.{key}" for key in value} if are_tables else ():
            below = _KEPT[name](below, value[name.partition(".")[2]])
        result[table] = merged(below, value) if are_tables and _same_plugin(table, below, value) else value
    return result


def _same_plugin(table: str, before: Mapping[str, Any], changes: Mapping[str, Any]) -> bool:
    """Return whether changes of a table leave its plug-in, if it has one."""
    return changes.get("name") in (None, before.get("name", _default_name(table)))


def _default_name(table: str) -> Any:
    """Return the plug-in of a table of a run that names none; None for other tables."""
    model = _NAMES.get(f"{table}.name")
    return None if model is None else model.model_fields["name"].default
