"""Runs configurations, for the command line and for Python."""

from __future__ import annotations

import math
import shlex
import traceback
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from fedsim import plugins
from fedsim.common import arguments
from fedsim.common.errors import Changed, ConfigError, EndOfWorld, RunNote, SomeFailed, UnusedWorld
from fedsim.common.files import write_json
from fedsim.common.machine import forget_peak
from fedsim.common.paths import as_path
from fedsim.common.stopwatch import Stopwatch
from fedsim.config.given import Given, GivenTask, ModelFactory
from fedsim.config.load import Sets
from fedsim.config.run import RunConfig
from fedsim.config.section import check_distinct
from fedsim.records.existing_run import Status, refuse_others, run_in, warnings_of_changes
from fedsim.records.file_names import ARMS
from fedsim.records.manifest import read_manifest
from fedsim.records.run_folder import check_free, kind_of, refuse_parent
from fedsim.runs import resume as resuming
from fedsim.runs.inputs import InputCache
from fedsim.runs.progress import Watch, watched
from fedsim.runs.resources import Device, Resources, Workers, resources
from fedsim.runs.result import Result
from fedsim.runs.session import Session
from fedsim.runs.spec import RunSpec


@arguments.checked
def simulate(
    configs: Any,
    *,
    sets: Sets = (),
    task: GivenTask = None,
    model: ModelFactory | None = None,
    out: Path | str = "runs",
    workers: Workers = "auto",
    device: Device = "auto",
    force: bool = False,
    resume: bool = False,
    watch: Watch = lambda progress: None,
    progress: bool | None = None,
    profile: bool = False,
    cache: InputCache | None = None,
    ray_address: str | None = None,
) -> list[Result]:
    """Run configurations in turn; each writes `<out>/<name>/`. Results do not depend on `workers`, bit for bit.

    Args:
        configs: the path of a TOML file, its tables as a dict, a RunConfig of `load_config`, or a list of these.
        sets: changes of each file or dict, as for `load_config`.
        task, model: data and network in place of `task.name` and `[model]`, as docs/own_data.md describes.
        workers: Ray actors; 0: this process trains; a RayPool stays open; "auto": see `RunSpec.auto_workers`.
        device: "auto" uses a GPU if the machine has one.
        force: overwrite an existing run; with `resume`, only one of another configuration.
        resume: keep finished runs and continue interrupted ones; refuse those of another configuration.
        watch, progress: a function to call after each step and at the end; whether to show a line, None: if it is seen.
        profile: also write `profile.json`, for Perfetto, into each run folder.
        cache: builds data and worlds; pass the same cache to runs that share them.
        ray_address: "auto" or HOST:PORT of a Ray cluster to join, by default with one worker per CPU of it.

    Raises ConfigError, DataError or TraceError for bad input, and SomeFailed at the end if some of several runs failed.
    """
    with Given.of(task, model).read(configs, sets) as runs, watched(watch, progress) as watcher:
        folders, statuses = _folders(runs, out := as_path(out, "out"), force, resume)
        with resources(runs[0], cache, workers=workers, device=device, ray_address=ray_address) as place:
            return _Batch(out, runs, place, device, force or resume, watcher, profile).run_all(
                folders, statuses
            )


@dataclass(frozen=True, slots=True)
class _Batch:
    """The runs of one call and what they share."""

    out: Path
    runs: Sequence[RunConfig]
    place: Resources
    device: Device
    force: bool
    watch: Watch
    profile: bool

    def run_all(self, folders: Sequence[Path], statuses: Sequence[Status | None]) -> list[Result]:
        """Run all in turn. Raises SomeFailed."""
        each = zip(self.runs, folders, statuses, strict=True)
        try:
            return in_turn({run.name: partial(self._run, run, path, status) for run, path, status in each})
        except SomeFailed as some:
            left = [r for r in self.runs if r.name not in some.errors or (self.out / r.name).is_dir()]
            _write_arms(left, self.out)
            raise

    def _run(self, run: RunConfig, folder: Path, status: Status | None) -> Result:
        if status == "done":
            return _existing_result(folder)
        if status in ("interrupted", "failed"):
            return resuming.resume(
                folder,
                workers=self.place.pool or 0,
                device=self.device,
                watch=self.watch,
                progress=False,
                profile=self.profile,
            )
        clock = Stopwatch(spans=self.profile)
        with clock.part("start"):
            spec = self.place.prepare(run)
            tell_of_world(spec)
            session = Session.create(spec, folder, self.place.pool, clock, force=self.force)
        with closing(session):
            _write_arms(self.runs, self.out)
            result = session.run(self.watch)
        if result.status == "done":
            for note in result.notes:
                warnings.warn(f"{run.name}: {note}", RunNote, stacklevel=5)
        return result


def tell_of_world(spec: RunSpec) -> None:
    """Warn if the run is longer than its world, or does not use all of it."""
    if warning := spec.outlives(spec.plan.stop.time_us):
        warnings.warn(warning, EndOfWorld, stacklevel=4)
    for warning in spec.unused_world():
        warnings.warn(warning, UnusedWorld, stacklevel=4)


def in_turn(runs: Mapping[str, Callable[[], Result]]) -> list[Result]:
    """Run each in turn until an interrupt. Raises SomeFailed at the end; a single run raises its own error."""
    results: list[Result] = []
    failed: dict[str, Exception] = {}
    for name, run in runs.items():
        if results or failed:
            forget_peak()
        try:
            results.append(run())
        except Exception as error:
            if len(runs) == 1:
                raise
            traceback.clear_frames(error.__traceback__)  # they hold the run's data and histories
            failed[name] = error
            continue
        if results[-1].asked_to_stop:
            break
    if failed:
        lines = {name: plugins.line_of(error) for name, error in failed.items()}
        raise SomeFailed(failed, results, lines) from next(iter(failed.values()))
    return results


def _folders(
    runs: Sequence[RunConfig], out: Path, force: bool, resume: bool
) -> tuple[list[Path], list[Status | None]]:
    """Return each run's folder and, with `resume`, its status; else None.

    Raises RunError if a folder is not free, ConfigError for a fork, for a run in the folder of its parent, or for runs
    whose folders would be equal or nested.
    """
    for run in runs:
        refuse_fork(run)
        if run.parent is not None:
            refuse_parent(out / run.name, run.parent.run)
    check_distinct([run.name for run in runs], "configs: the runs")
    folders = [out / run.name for run in runs]
    if resume:
        return folders, _statuses(runs, folders, force)
    for run, folder in zip(runs, folders, strict=True):
        check_free(folder, kind_of(run), force=force)
    return folders, [None] * len(folders)


def _statuses(runs: Sequence[RunConfig], folders: Sequence[Path], force: bool) -> list[Status | None]:
    """Return the status of each run. Raises ConfigError for one of another configuration, unless `force`."""
    existing = [run_in(folder, run) for run, folder in zip(runs, folders, strict=True)]
    if not force:
        names = [repr(run.name) for run in runs]
        refuse_others(list(zip(folders, names, existing, strict=True)), "runs")
    done = [(run.name, each) for run, each in zip(runs, existing, strict=True) if each.state.status == "done"]
    for line in warnings_of_changes(done, "runs"):  # `resume` tells of the others
        warnings.warn(line, Changed, stacklevel=5)
    return ["pending" if run.differences else run.state.status for run in existing]


def _existing_result(folder: Path) -> Result:
    """Return the result of a run that is done."""
    manifest = read_manifest(folder)
    accuracy = manifest.get("accuracy")
    return Result(folder, "done", manifest["digest"], math.nan if accuracy is None else accuracy)


def refuse_fork(config: RunConfig) -> None:
    """Raise ConfigError for the configuration of a fork, which needs its parent's state as well."""
    parent = config.parent
    if parent is None or parent.forked_step is None:
        return
    at = f"{parent.forked_us}us" if parent.forked_at == "time" else str(parent.forked_step)
    sets = [word for change in parent.changes for word in ("--set", change)]
    kept = ["--keep-online", ",".join(map(str, parent.kept_online))] if parent.kept_online else []
    command = shlex.join(["fedsim", "fork", parent.run, "--at", at, *sets, *kept, "--name", config.name])
    raise ConfigError(
        f"{config.name}: parent: it is a fork, which starts from its parent's state; create it again: {command}; "
        "or remove the table [parent] to run it from the start"
    )


def _write_arms(runs: Sequence[RunConfig], out: Path) -> None:
    """Write the order of an experiment's arms to `arms.json` in its folder."""
    arms: dict[str, list[str]] = {}
    for run in runs:
        experiment, slash, arm = run.name.partition("/")
        if slash:
            arms.setdefault(experiment, []).append(arm)
    for experiment, names in arms.items():
        if (out / experiment).is_dir():
            write_json(out / experiment / ARMS, {"arms": names})
