"""Replays the world of a finished run, and on request its participation, with another configuration."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from fedsim.common import arguments
from fedsim.common.errors import ConfigError, FolderError, RunError
from fedsim.common.files import read_parquet
from fedsim.common.paths import as_path
from fedsim.config.errors import assignments, read_toml
from fedsim.config.given import Given, GivenTask, ModelFactory
from fedsim.config.load import Sets, changed, parse, refuse_own
from fedsim.config.run import RunConfig
from fedsim.records.existing_run import with_asked_memory
from fedsim.records.file_names import CONFIG, MANIFEST, WORLD
from fedsim.records.manifest import existing, read_manifest
from fedsim.runs.resources import Device, Workers
from fedsim.runs.result import Result
from fedsim.runs.resume import UNFINISHED
from fedsim.runs.simulate import simulate

_JOBS = "jobs.parquet"
_PARTICIPATION = ("job", "client", "version", "dispatch_us", "end_us", "phase", "attempt")


@dataclass(frozen=True, slots=True)
class Participation:
    """How the jobs of two runs compare."""

    jobs: int
    """Jobs of the replay."""
    difference: str
    """The first job that differs, in words; empty if none does."""


@arguments.checked
def replay_config(
    folder: Path | str, sets: Sets, *, same_participation: bool = False, name: str | None = None
) -> RunConfig:
    """Return the configuration of a run in the world of the finished run in `folder`, changed by `sets`.

    With `same_participation` the same clients get jobs at the same instants. The default name is the parent's with
    `-replay`. Raises ConfigError for a folder that holds no finished run, or for a bad change.
    """
    folder, sets = as_path(folder, "folder"), assignments(sets)
    manifest = _manifest(folder)
    raw = read_toml(folder / CONFIG)
    parent = deepcopy(raw)
    world = {"trace": str(folder / WORLD), "unknown": _table(raw, "world", folder).get("unknown", "error")}
    raw["world"] = dict(world)
    if same_participation:
        raw["selection"] = {"name": "replayed", "jobs": str(folder / _JOBS)}
    raw = with_asked_memory(changed(raw, sets), parent, manifest)
    refuse_own(parent, raw)
    if raw["world"] != world:
        raise ConfigError("replay: the world is that of the parent; use `fedsim run` to change it")
    selector = _table(raw, "selection", folder).get("name", "uniform")
    if same_participation and selector != "replayed":
        raise ConfigError(
            f"replay: the same participation replaces selector {selector!r}: leave one of the two out"
        )
    raw["name"] = name or f"{manifest.get('label')}-replay"
    raw["parent"] = {
        "run": str(folder),
        "digest": manifest.get("digest"),
        "same_participation": same_participation,
        "changes": sets,
    }
    return parse(raw, f"{folder} with changes", raw["name"], before=parent)[0]


@arguments.checked
def replay(
    folder: Path | str,
    sets: Sets = (),
    *,
    same_participation: bool = False,
    name: str | None = None,
    task: GivenTask = None,
    model: ModelFactory | None = None,
    out: Path | str = "runs",
    workers: Workers = "auto",
    device: Device = "auto",
    force: bool = False,
    progress: bool | None = None,
) -> Result:
    """Run another configuration in the world of the finished run in `folder`; writes `<out>/<name>/`.

    Args:
        sets: changes of the configuration, as for `load_config`; the world cannot change.
        same_participation: dispatch jobs to the same clients at the same times.
        name: of the new run; by default the parent's with `-replay`.
        task, model: the same that the run was given, if `simulate` was given any; others are refused.

    The rest is as for `simulate`. Raises ConfigError for a folder that holds no finished run or for a bad change, and
    RunError if `same_participation` was asked for and the participation differs.
    """
    folder, given = as_path(folder, "folder"), Given.of(task, model)
    _manifest(folder)  # raises for other folders
    with given.of_run(folder, folder / CONFIG):
        config = replay_config(folder, sets, same_participation=same_participation, name=name)
        [result] = simulate(config, out=out, workers=workers, device=device, force=force, progress=progress)
    if same_participation and result.status == "done":
        comparison = compare_participation(folder, result.folder)
        if comparison.difference:
            raise RunError(
                f"{result.folder}: participation differs from that of {folder}: {comparison.difference}"
            )
    return result


@arguments.checked
def compare_participation(parent: Path | str, child: Path | str) -> Participation:
    """Compare clients, dispatch times and outcomes of two runs, job by job."""
    ours, theirs = (
        read_parquet(as_path(f, name) / _JOBS, FolderError, _PARTICIPATION).sort_by("job")
        for name, f in (("child", child), ("parent", parent))
    )
    return Participation(len(ours), _first_difference(ours, theirs))


def _first_difference(ours: pa.Table, theirs: pa.Table) -> str:
    if len(ours) != len(theirs):
        return f"{len(ours)} jobs, the parent had {len(theirs)}"
    for name in _PARTICIPATION:
        values, parents = ours[name].to_pylist(), theirs[name].to_pylist()
        row = next((i for i, (a, b) in enumerate(zip(values, parents, strict=True)) if a != b), None)
        if row is not None:
            return f"job {ours['job'][row]}: {name} is {values[row]!r}, the parent's is {parents[row]!r}"
    return ""


def _manifest(folder: Path) -> dict[str, Any]:
    existing(folder)
    missing = [name for name in (MANIFEST, CONFIG, WORLD, _JOBS) if not (folder / name).is_file()]
    advice = f"; finish it with: fedsim resume {shlex.quote(str(folder))}"
    if missing:
        verb = "is" if len(missing) == 1 else "are"
        resumable = advice if missing == [_JOBS] else ""
        raise ConfigError(f"{folder}: not a finished run: {', '.join(missing)} {verb} missing{resumable}")
    manifest = read_manifest(folder)
    if (status := manifest.get("status")) != "done":
        resumable = advice if status in UNFINISHED else ""
        raise ConfigError(f"{folder}: the run is not finished: its status is {status!r}{resumable}")
    return manifest


def _table(raw: Mapping[str, Any], name: str, folder: Path) -> Mapping[str, Any]:
    table = raw.get(name, {})
    if not isinstance(table, Mapping):
        raise ConfigError(f"{folder / CONFIG}: {name}: expected a table, found {table!r}")
    return table
