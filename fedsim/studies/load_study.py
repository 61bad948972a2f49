"""Reading a study file, at a scale and with assignments."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from itertools import chain
from pathlib import Path
from typing import Any

from fedsim.common import arguments
from fedsim.common.errors import ConfigError
from fedsim.config.errors import assign, assignments, key_of, quoted, validated
from fedsim.config.load import (
    Filled,
    Sets,
    Source,
    changed,
    changed_within,
    check_effect,
    check_kept,
    tables_of,
)
from fedsim.config.requirements import without_idle
from fedsim.config.study.seeds import MOST_SEEDS, seeds_in
from fedsim.config.study.study import StudyConfig
from fedsim.studies.grid import effects_in, plugin_in
from fedsim.studies.key_axis import several


@arguments.checked
def load_study(
    study: Source,
    *,
    scale: str | None = None,
    sets: Sets = (),
    seeds: str | int | Sequence[int] | None = None,
    filled: Filled = lambda raw, source: raw,
) -> StudyConfig:
    """Read a study at a scale, make assignments, and replace its seeds. Raises ConfigError, one line for each problem.

    Args:
        study: the path of a TOML file, or its tables as a dict.
        scale: the NAME of one of its tables `[scales.NAME]`.
        sets: assignments such as `run.stop.steps=20`, or values by dotted key.
        seeds: a number of seeds such as 5, or seeds such as "3,7,9" or [3, 7, 9].
        filled: `filled(raw, source)` completes the tables of the study, named `source` in messages.
    """
    made = [text.strip() for text in assignments(sets)]
    if seeds is not None and (given := [text for text in made if key_of(text) == "seeds"]):
        raise ConfigError(f"--set {given[0]}: no effect, as --seeds gives the seeds: leave out one of them")
    written, path = tables_of(study, "study")
    if "task" in written and "run" not in written:
        raise ConfigError(
            f"{path or 'study'}: expected a study, found the configuration of a run: use fedsim run"
        )
    source = source_of(study)
    before = validated(StudyConfig, written, source).at_scale(scale)
    for axis, levels in before.axes.items():
        check_kept(before.run, _overlays(axis, levels), f"{source}: run.")
    scaled = before.resolved()
    raw = _assigned(deepcopy(scaled), made)
    if seeds is not None:
        raw["seeds"] = seeds_of(seeds) if isinstance(seeds, str) else seeds
    checked = validated(StudyConfig, filled(raw, source), source)
    _check_effects(checked, scaled.get("run", {}), _of_runs(made))
    if not made:
        return checked
    return without_idle_keys(checked, lambda: filled(deepcopy(scaled), source), source)


def without_idle_keys(
    study: StudyConfig, before: Callable[[], Mapping[str, Any]], source: str
) -> StudyConfig:
    """Return the study without the keys that assignments have left without effect in all cells.

    `before` returns the tables before them. An option goes with its plug-in: another plug-in may have one of the same
    name.
    """
    _, idle = effects_in(study, source)
    if not idle:
        return study
    dropped = idle & effects_in(validated(StudyConfig, before(), source), source)[0]

    def reduced(tables: dict[str, Any]) -> dict[str, Any]:
        of_run = {key: plugin_in(study.run, key) for key, _ in dropped}
        keys = {key for key, plugin in dropped if (plugin_in(tables, key) or of_run[key]) in (None, plugin)}
        return without_idle(tables, keys)

    axes = {
        axis: {level: reduced(tables) for level, tables in levels.items()}
        for axis, levels in study.axes.items()
    }
    return study.model_copy(update={"run": reduced(study.run), "axes": axes})


def _check_effects(study: StudyConfig, written: dict[str, Any], sets: list[str]) -> None:
    """Raise ConfigError if an assignment in `[run]` changes no run of the study."""
    combinations = study.combinations()
    for axis, levels in study.axes.items():
        used = {each[axis] for each in combinations}
        overlays = _overlays(axis, {level: tables for level, tables in levels.items() if level in used})
        check_effect(written, sets, overlays, "run.")
    if study.tune is None:
        return
    key = study.tune.key
    for text in sets:
        if key_of(text) == key:
            axes = " and ".join(study.tune.axes)
            raise ConfigError(
                f"--set run.{text}: no effect, as [tune] chooses {key} at each level of {axes}; set tune.values, or "
                "tune.chosen"
            )


def _overlays(axis: str, levels: Mapping[str, Any]) -> dict[str, Any]:
    """Return the levels of an axis by their tables in the file."""
    return {f"axes.{axis}.{quoted(level)}": tables for level, tables in levels.items()}


def source_of(study: Source) -> str:
    """Return the name of a study's file in messages, or `study` for tables."""
    return "study" if isinstance(study, Mapping) else Path(study).name


def _assigned(raw: dict[str, Any], sets: list[str]) -> dict[str, Any]:
    """Make assignments; naming another plug-in drops the previous one's options, as for a single run."""
    for text in sets:
        if text.startswith("run.") and several(text):
            raise ConfigError(
                f"--set {text}: expected one value, found several: make them an axis, with a table such as "
                "[axes.AXIS.LEVEL] for each; text with a comma needs quotes"
            )
    written = raw.get("run", {})
    raw["run"] = changed(deepcopy(written), _of_runs(sets))
    for text in sets:
        if key_of(text).partition(".")[0] == "scales":
            raise ConfigError(
                f"--set {text}: no effect, as --scale is applied first; set the key itself, such as run.stop.steps"
            )
    axes = raw.get("axes")
    levels = {f"axes.{axis}": axes[axis] for axis in axes} if isinstance(axes, Mapping) else {}
    for text in changed_within(levels, [text for text in sets if not text.startswith("run.")], written):
        assign(raw, text)
    return raw


def _of_runs(sets: list[str]) -> list[str]:
    return [text.removeprefix("run.") for text in sets if text.startswith("run.")]


def seeds_of(text: str) -> list[int]:
    """Return the seeds of the text of `--seeds`: a number, or a list of seeds and ranges. Raises ConfigError."""
    try:
        if text.strip().isdecimal():
            return seeds_in(int(text))
        parts = text.strip().removesuffix(",").split(",")  # `7,` is one seed
        return seeds_in(list(chain.from_iterable(_range_of(part, text) for part in parts)))
    except ValueError as error:
        raise ConfigError(f"--seeds: {error}") from error


def _range_of(part: str, text: str) -> range:
    """Return the seeds of a part such as `7` or `6-10`. Raises ValueError."""
    ends = [end.strip() for end in part.split("-")]
    if len(ends) > 2 or not all(end.isdecimal() for end in ends):
        raise ValueError(f"expected a number of seeds, or seeds such as 3,7,9 or 6-10, found {text!r}")
    found = range(int(ends[0]), int(ends[-1]) + 1)
    if not 1 <= found.stop - found.start <= MOST_SEEDS:
        raise ValueError(
            f"expected a range of 1 to {MOST_SEEDS:,} seeds, the least first, found {part.strip()!r}"
        )
    return found
