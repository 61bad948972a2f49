"""Resumes a run that was interrupted, killed or failed."""

from __future__ import annotations

import shlex
import warnings
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedsim.common import arguments
from fedsim.common.errors import Changed, CheckpointError, FolderError
from fedsim.common.files import from_json, refuse_links
from fedsim.common.paths import as_path
from fedsim.common.stopwatch import Stopwatch
from fedsim.config.given import Given, GivenTask, ModelFactory
from fedsim.config.load import load_config
from fedsim.config.run import RunConfig
from fedsim.config.section import run_name
from fedsim.records import checkpoint
from fedsim.records.file_names import ARMS, CONFIG, MANIFEST, WORLD
from fedsim.records.manifest import read_manifest, runs_in
from fedsim.runs.inputs import InputCache
from fedsim.runs.progress import Watch, watched
from fedsim.runs.resources import Device, Workers, resources
from fedsim.runs.result import Result
from fedsim.runs.session import Session
from fedsim.worlds.trace import read_trace

_MAY_DIFFER = "its results may differ from an uninterrupted run's"
UNFINISHED = ("running", "interrupted", "failed")
"""Statuses in the manifest of a run that can be resumed; a killed run has `running`."""


@arguments.checked
def resume(
    folder: Path | str,
    *,
    step: int | None = None,
    task: GivenTask = None,
    model: ModelFactory | None = None,
    workers: Workers = "auto",
    device: Device = "auto",
    watch: Watch = lambda progress: None,
    progress: bool | None = None,
    profile: bool = False,
    ray_address: str | None = None,
) -> Result:
    """Continue a run that was interrupted, killed or failed from its last checkpoint, or from the start without one.

    In the end its tables and its digest are identical to an uninterrupted run's.

    Args:
        folder: the folder of the run, or one that holds no other run.
        step: continue from the checkpoint of this server step instead of the last one.

    The rest is as for `simulate`; `task` and `model` must be the run's. Raises FolderError for a folder without an
    unfinished run, and CheckpointError for a checkpoint that is damaged, missing or of another run; the error names
    the checkpoint before it.
    """
    folder, given = only_run(as_path(folder, "folder")), Given.of(task, model)
    on: dict[str, Any] = {"workers": workers, "device": device, "ray_address": ray_address}
    check_unfinished(folder)
    with given.of_run(folder, folder / CONFIG), watched(watch, progress) as watcher:
        config = load_config(folder / CONFIG)[0]
        saved = _saved(folder, config, step)
        with resources(config, InputCache.of(config, read_trace(folder / WORLD)), **on) as place:
            clock = Stopwatch(spans=profile)
            with clock.part("start"):
                session = Session.open(place.prepare(config), folder, place.pool, clock, saved)
            with closing(session):
                if changes := "; ".join(session.resumed[-1]["changed"]):
                    line = f"{folder}: changed since it started: {changes}"
                    warnings.warn(f"{line}; {_MAY_DIFFER}", Changed, stacklevel=3)
                return session.run(watcher)


def only_run(folder: Path) -> Path:
    """Return the folder, or that of the only run in it if it is no run itself."""
    runs = [] if (folder / MANIFEST).is_file() else runs_in(folder)
    return folder / runs[0] if len(runs) == 1 else folder


def check_unfinished(folder: Path) -> None:
    """Raise FolderError unless the folder holds a run that can be resumed, with no links to files outside."""
    manifest = read_manifest(folder)
    status = manifest.get("status")
    if status not in UNFINISHED:
        raise FolderError(
            f"{folder}: expected a run that was interrupted, killed or failed, found one that is {status}"
            f"{_longer(folder, manifest)}"
        )
    if not ((folder / CONFIG).is_file() and (folder / WORLD).is_file()):
        raise FolderError(f"{folder}: the run was killed before it began: run it again with --force")
    refuse_links(folder)


def _longer(folder: Path, manifest: Mapping[str, Any]) -> str:
    """Return the fork that goes on twice as long, for a run that ended by its number of steps or its time."""
    steps, time_us = manifest.get("steps"), manifest.get("virtual_us")
    stops = {"steps": f"stop.steps={2 * (steps or 0)}", "time": f"stop.time={2 * (time_us or 0)}us"}
    stop = stops.get(manifest.get("ended_by") or "")
    if manifest.get("status") != "done" or not (steps and time_us and stop):
        return ""
    fork = shlex.join(["fedsim", "fork", str(folder), "--at", str(steps - 1), "--set", stop])
    if given := manifest.get("given"):
        fork = (
            f"fedsim.fork({str(folder)!r}, {steps - 1}, [{stop!r}], {', '.join(f'{k}=...' for k in given)})"
        )
    return f"; to go on from its last step, fork it with another end: {fork}"


@dataclass(frozen=True, slots=True)
class Arms:
    """The arms in the folder of an experiment, in its order."""

    done: tuple[str, ...]
    unfinished: tuple[str, ...]
    """Arms that can be resumed."""
    not_started: tuple[str, ...]
    """Arms without a configuration or without a world; only the experiment's file has what they need."""


def arms_in(folder: Path) -> Arms | None:
    """Return the arms in a folder, or None if it holds none. Raises FolderError for a damaged `arms.json`."""
    if not (folder / ARMS).is_file():
        return None
    try:
        content = from_json((folder / ARMS).read_text(encoding="utf-8"))
        names = [run_name(f"arm/{name}").removeprefix("arm/") for name in content["arms"]]
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise FolderError(f"{folder / ARMS}: cannot be read: {error}") from error
    begun = [n for n in names if all((folder / n / file).is_file() for file in (MANIFEST, CONFIG, WORLD))]
    done = [name for name in begun if read_manifest(folder / name).get("status") == "done"]
    return Arms(
        done=tuple(done),
        unfinished=tuple(name for name in begun if name not in done),
        not_started=tuple(name for name in names if name not in begun),
    )


def _saved(folder: Path, config: RunConfig, step: int | None) -> checkpoint.State | None:
    """Read the checkpoint of `step`, or the last one; None if the run has none and `step` is None."""
    saved = checkpoint.checkpoints(folder)
    wanted = [c for c in saved if step is None or c.step == step]
    if not wanted:
        if step is None and config.is_fork:
            raise CheckpointError(
                f"{folder}: a fork needs a checkpoint to continue, and none is left: fork its parent again"
            )
        if step is None:
            return None
        steps = ", ".join(str(c.step) for c in saved) or "none"
        raise CheckpointError(f"{folder}: there is no checkpoint of step {step}; there are: {steps}")
    try:
        return checkpoint.read(wanted[-1].path)
    except CheckpointError as error:
        damaged = wanted[-1]
        before = [c for c in saved if (c.step, c.jobs) < (damaged.step, damaged.jobs)]
        if not before:
            advice = f"there is none before it: remove {folder / checkpoint.FOLDER} and resume to start over"
        elif before[-1].step == damaged.step:
            advice = f"the one before, {before[-1].path.name}, may be whole: remove {damaged.path} and resume"
        else:
            resume_it = f"fedsim resume {shlex.quote(str(folder))} --step {before[-1].step}"
            advice = f"the one before may be whole: {resume_it}"
        raise CheckpointError(f"{error}; {advice}") from error
