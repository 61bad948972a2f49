"""Runs configurations and resumes runs, for the command line and for Python."""

from __future__ import annotations

import math
import shlex
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal, get_args

import numpy as np
import torch
from threadpoolctl import threadpool_limits

from fedsim.common import arguments
from fedsim.common.arrow_columns import array
from fedsim.common.errors import CheckpointError, ConfigError, EndOfWorld, FolderError, SomeFailed, described
from fedsim.common.files import read_parquet, refuse_links, write_json
from fedsim.common.machine import cores, forget_peak
from fedsim.common.paths import as_path
from fedsim.common.stopwatch import Stopwatch
from fedsim.config.load import load
from fedsim.config.run import RunConfig
from fedsim.config.section import check_distinct
from fedsim.engine.record_words import PERSONAL
from fedsim.execution.actor_pool import RayPool, start_pool
from fedsim.records import checkpoint
from fedsim.records.existing_run import Status, found_in, refuse_others
from fedsim.records.manifest import read_manifest
from fedsim.records.run_folder import CONFIG, WORLD, check_free, refuse_parent
from fedsim.runs.build import RunSpec, prepare
from fedsim.runs.inputs import InputCache
from fedsim.runs.result import Progress, Result, Watch
from fedsim.runs.session import Session, owner_of
from fedsim.training.precision import untouched
from fedsim.worlds.trace import read_trace

__all__ = ["Device", "Progress", "Result", "Watch", "one_thread", "resume", "simulate"]

Device = Literal["auto", "cpu", "cuda"]


@arguments.checked
def simulate(
    configs: RunConfig | Iterable[RunConfig],
    *,
    out: Path | str = "runs",
    workers: int | Literal["auto"] = "auto",
    device: Device = "auto",
    force: bool = False,
    go_on: bool = False,
    watch: Watch = lambda progress: None,
    profile: bool = False,
    cache: InputCache | None = None,
    ray_address: str | None = None,
    pool: RayPool | None = None,
) -> list[Result]:
    """Run configurations in turn; each writes `<out>/<name>/`. Results do not depend on `workers`, bit for bit.

    Args:
        workers: Ray actors; 0: this process trains; "auto": `RunSpec.auto_workers`, or one per CPU of `ray_address`.
        device: "auto" uses a GPU if the machine has one.
        force: overwrite an existing run; with `go_on`, only one of another configuration.
        go_on: keep runs that are done, `resume` those that were interrupted; refuse those of another configuration.
        watch: called after each server step.
        profile: also write `profile.json`, for Perfetto, into each run folder.
        cache: builds data and worlds; pass the same cache to runs that share them.
        ray_address: "auto" or HOST:PORT of a Ray cluster to join.
        pool: workers that are already started and stay open, in place of `workers` and `ray_address`.

    Raises ConfigError, DataError or TraceError for bad input, where possible before anything is written, and
    SomeFailed at the end if some of several runs failed. Ctrl-C ends the current run, whose Result is `interrupted`.
    """
    runs, out = _checked(configs), as_path(out, "out")
    anywhere = ray_address is not None or pool is not None
    device_of(device, anywhere)  # raises before anything starts
    folders, statuses = _folders(runs, out, force, go_on)
    cache = cache or InputCache()
    with one_thread(), ExitStack() as opened:
        if pool is None and (pool := begin_pool(workers, device, ray_address, runs[0], cache)):
            opened.enter_context(pool)
        shared = device, device_of(device, anywhere, pool), pool, cache, force or go_on, watch, profile
        return _Batch(out, runs, *shared).run_all(folders, statuses)


@dataclass(frozen=True, slots=True)
class _Batch:
    """The runs of one call and what they share."""

    out: Path
    runs: Sequence[RunConfig]
    device: Device
    place: str
    pool: RayPool | None
    cache: InputCache
    force: bool
    watch: Watch
    profile: bool

    def run_all(self, folders: Sequence[Path], statuses: Sequence[Status | None]) -> list[Result]:
        """Run all in turn. Raises SomeFailed."""
        each = zip(self.runs, folders, statuses, strict=True)
        try:
            return _in_turn({run.name: partial(self._run, run, path, status) for run, path, status in each})
        except SomeFailed as some:
            left = [r for r in self.runs if r.name not in some.errors or (self.out / r.name).is_dir()]
            _write_arms(left, self.out)
            raise

    def _run(self, run: RunConfig, folder: Path, status: Status | None) -> Result:
        if status == "done":
            return _existing_result(folder)
        if status in ("interrupted", "failed"):
            return resume(
                folder, workers=0, device=self.device, watch=self.watch, profile=self.profile, pool=self.pool
            )
        clock = Stopwatch(spans=self.profile)
        with clock.part("start"):
            spec = prepare(run, self.place, self.cache)
            tell_of_end(spec)
            session = Session(spec, folder, clock, _count(self.pool), force=self.force)
        with closing(session):
            _write_arms(self.runs, self.out)
            return session.go(self.pool, self.watch)


def _count(pool: RayPool | None) -> int:
    return pool.workers if pool else 0


def begin_pool(
    workers: int | Literal["auto"],
    device: Device,
    ray_address: str | None,
    config: RunConfig,
    cache: InputCache,
) -> RayPool | None:
    """Start to open the pool of workers for a run; None if this process trains. Raises ConfigError."""
    if workers == "auto" and ray_address is None:
        workers = 0
        with suppress(Exception):  # the run itself raises errors of its parts
            spec = prepare(config, device_of(device, anywhere=False), cache)
            workers = spec.auto_workers(cores(), torch.cuda.device_count())
    return start_pool(workers, device, ray_address)


def tell_of_end(spec: RunSpec) -> None:
    """Warn if the run is longer than its world."""
    if warning := spec.outlives(spec.plan.stop.time_us):
        warnings.warn(warning, EndOfWorld, stacklevel=4)


def _in_turn(runs: Mapping[str, Callable[[], Result]]) -> list[Result]:
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
        if results[-1].status == "interrupted":
            break
    if failed:
        raise SomeFailed(failed, results) from next(iter(failed.values()))
    return results


def _checked(configs: RunConfig | Iterable[RunConfig]) -> list[RunConfig]:
    """Return the configurations as a list. Raises ConfigError for an empty list, another type or a fork."""
    runs = [configs] if isinstance(configs, RunConfig) else list(configs)
    if not runs:
        raise ConfigError("configs: expected at least one configuration, found none")
    for run in runs:
        if not isinstance(run, RunConfig):
            raise ConfigError(f"configs: expected what fedsim.load_config returns, found {described(run)}")
        refuse_fork(run)
    check_distinct([run.name for run in runs], "configs: the runs")
    return runs


def _folders(
    runs: Sequence[RunConfig], out: Path, force: bool, go_on: bool
) -> tuple[list[Path], list[Status | None]]:
    """Return each run's folder and, with `go_on`, its status; else None. Raises RunError if a folder is not free."""
    folders = [_folder(run, out) for run in runs]
    if go_on:
        return folders, _statuses(runs, folders, force)
    for folder in folders:
        check_free(folder, force=force)
    return folders, [None] * len(folders)


def _statuses(runs: Sequence[RunConfig], folders: Sequence[Path], force: bool) -> list[Status | None]:
    """Return the status of each run. Raises ConfigError for one of another configuration, unless `force`."""
    existing = [found_in(folder, run) for run, folder in zip(runs, folders, strict=True)]
    if not force:
        names = [repr(run.name) for run in runs]
        refuse_others(list(zip(folders, names, existing, strict=True)), "runs")
    return ["pending" if run.differences else run.state.status for run in existing]


def _existing_result(folder: Path) -> Result:
    """Return the result of a run that is done."""
    evals = read_parquet(folder / "evals.parquet", FolderError)
    steps, accuracy = (array(evals[name]) for name in ("step", "accuracy"))
    last = (steps == steps.max(initial=-1)) & ~np.array(
        [split.endswith(PERSONAL) for split in evals["split"].to_pylist()], dtype=bool
    )
    mean = float(accuracy[last].mean()) if last.any() else math.nan
    return Result(folder, "done", read_manifest(folder)["digest"], mean)


@arguments.checked
def resume(
    folder: Path | str,
    *,
    step: int | None = None,
    workers: int | Literal["auto"] = "auto",
    device: Device = "auto",
    watch: Watch = lambda progress: None,
    profile: bool = False,
    ray_address: str | None = None,
    pool: RayPool | None = None,
) -> Result:
    """Continue a run that was interrupted, killed or failed from its last checkpoint, or from the start without one.

    In the end its tables and its digest are identical to an uninterrupted run's.

    Args:
        step: continue from the checkpoint of this server step instead of the last one.

    The rest is as for `simulate`. Raises FolderError for a folder without an unfinished run, and CheckpointError for a
    checkpoint that is damaged, missing or of another run; the error names the checkpoint before it.
    """
    folder = as_path(folder, "folder")
    check_unfinished(folder)
    config = load(folder / CONFIG)[0]
    saved = _saved(folder, step)
    if saved is None and config.parent is not None and config.parent.forked_step is not None:
        raise CheckpointError(
            f"{folder}: a fork needs a checkpoint to continue, and none is left: fork its parent again"
        )
    cache = InputCache.of(config, read_trace(folder / WORLD))
    anywhere = ray_address is not None or pool is not None
    device_of(device, anywhere)  # raises before anything starts
    with one_thread(), ExitStack() as opened:
        if pool is None and (pool := begin_pool(workers, device, ray_address, config, cache)):
            opened.enter_context(pool)
        clock = Stopwatch(spans=profile)
        with clock.part("start"):
            spec = prepare(config, device_of(device, anywhere, pool), cache)
            session = Session(spec, folder, clock, _count(pool), saved=saved, again=True)
        return session.go(pool, watch)


def check_unfinished(folder: Path) -> None:
    """Raise FolderError unless the folder holds a run that can be resumed, with no links to files outside."""
    status = read_manifest(folder).get("status")
    if status not in ("running", "interrupted", "failed"):
        raise FolderError(
            f"{folder}: expected a run that was interrupted, killed or failed, found one that is {status}"
        )
    if not ((folder / CONFIG).is_file() and (folder / WORLD).is_file()):
        raise FolderError(f"{folder}: the run was killed before it began: run it again with --force")
    refuse_links(folder, FolderError)


def _saved(folder: Path, step: int | None) -> checkpoint.State | None:
    """Read the checkpoint of `step`, or the last one; None if the run has none and `step` is None."""
    saved = checkpoint.checkpoints(folder)
    wanted = [c for c in saved if step is None or c.step == step]
    if not wanted:
        if step is None:
            return None
        steps = ", ".join(str(c.step) for c in saved) or "none"
        raise CheckpointError(f"{folder}: there is no checkpoint of step {step}; there are: {steps}")
    try:
        return checkpoint.read(wanted[-1].path, owner_of(folder))
    except CheckpointError as error:
        before = [c for c in saved if c.step < wanted[-1].step]
        advice = (
            f"the one before may be whole: fedsim resume {shlex.quote(str(folder))} --step {before[-1].step}"
            if before
            else f"there is none before it: remove {folder / checkpoint.FOLDER} and resume to start over"
        )
        raise CheckpointError(f"{error}; {advice}") from error


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


def _folder(run: RunConfig, out: Path) -> Path:
    """Return the folder of a run. Raises ConfigError if it is the folder of the run's parent."""
    folder = out / run.name
    if run.parent is not None:
        refuse_parent(folder, run.parent.run)
    return folder


def _write_arms(runs: Sequence[RunConfig], out: Path) -> None:
    """Write the order of an experiment's arms to `arms.json` in its folder."""
    arms: dict[str, list[str]] = {}
    for run in runs:
        experiment, slash, arm = run.name.partition("/")
        if slash:
            arms.setdefault(experiment, []).append(arm)
    for experiment, names in arms.items():
        if (out / experiment).is_dir():
            write_json(out / experiment / "arms.json", {"arms": names})


def device_of(device: Device, anywhere: bool, pool: RayPool | None = None) -> str:
    """Return the device to compute on, "cpu" or "cuda". Raises ConfigError for "cuda" without a GPU.

    Args:
        anywhere: whether "cuda" may be the GPU of another machine.
        pool: the workers that compute, if any; "auto" then uses a GPU only if they have one.
    """
    if device not in get_args(Device):
        raise ConfigError(
            f"device: expected one of {', '.join(map(repr, get_args(Device)))}, found {device!r}"
        )
    if device == "cuda" and not anywhere and not torch.cuda.is_available():
        raise ConfigError("device: 'cuda' was asked for, but torch sees no GPU")
    place = "cuda" if device == "cuda" or (device == "auto" and torch.cuda.is_available()) else "cpu"
    if place == "cpu" or pool is None or pool.has_gpus:
        return place
    if device == "cuda":
        raise ConfigError("device: 'cuda' was asked for, but the pool was opened without GPUs")
    return "cpu"


@contextmanager
def one_thread() -> Iterator[None]:
    """Limit torch and NumPy to one thread, so that sums depend neither on cores nor on modes of the caller."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with threadpool_limits(1), untouched():
            yield
    finally:
        torch.set_num_threads(before)
