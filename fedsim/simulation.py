"""Running configurations: the engine's front door for the command line and for Python."""

from __future__ import annotations

import datetime
import math
import os
import platform
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

import psutil
import tomli_w
import torch
from threadpoolctl import threadpool_limits

from fedsim import memory, plugins
from fedsim.config import RunConfig
from fedsim.course import Course
from fedsim.errors import ConfigError
from fedsim.local import Evaluation, Workbench
from fedsim.profile import DRIVER, seconds_by_process, write_profile
from fedsim.recorder import Recorder, make_folder, write_atomically, write_json
from fedsim.server import Server
from fedsim.setup import Setup, prepare
from fedsim.stopwatch import Stopwatch, Times
from fedsim.timeline import Timeline
from fedsim.trainer import InlineTrainer, Trainer

Device = Literal["auto", "cpu", "cuda"]
_PACKAGES = ("fedsim", "torch", "torchvision", "numpy", "scipy", "ray", "pyarrow", "simpy", "pydantic")


@dataclass(frozen=True, slots=True)
class Progress:
    """What a watcher is told after each step."""

    setup: Setup
    course: Course
    accuracy: float
    """Mean accuracy over clients at the last evaluation that is known; NaN before."""


@dataclass(frozen=True, slots=True)
class Result:
    """A finished run."""

    folder: Path
    status: Literal["done", "interrupted"]
    digest: str | None


Watch = Callable[[Progress], None]


def simulate(
    configs: RunConfig | Sequence[RunConfig],
    *,
    out: Path | str = "runs",
    workers: int | Literal["auto"] = "auto",
    device: Device = "auto",
    force: bool = False,
    watch: Watch = lambda progress: None,
    profile: bool = False,
) -> list[Result]:
    """Run one configuration or several one after the other; each writes `<out>/<name>/`.

    Args:
        workers: client actors in Ray; 0 runs everything in this process; "auto" takes one per core. The results do
            not depend on it, bit for bit.
        device: "auto" takes a GPU if there is one.
        force: overwrite an existing run of the same name.
        watch: called after each server step.
        profile: write `profile.json` into each run folder as well: where the wall time went, for Perfetto.

    Raises ConfigError, DataError or TraceError for bad input, before anything is written where that can be known.
    An interrupt (Ctrl-C) ends the current run cleanly and skips the others; its Result says `interrupted`.
    """
    runs = [configs] if isinstance(configs, RunConfig) else list(configs)
    count = workers_of(workers)
    place = _device(device)
    folders = [Path(out) / run.name for run in runs]
    results: list[Result] = []
    with one_thread(), ExitStack() as opened:
        pool = (
            _Once(lambda predicted: opened.enter_context(_pool(count, place, predicted))) if count else None
        )
        for run, folder in zip(runs, folders, strict=True):
            clock = Stopwatch(spans=profile)
            with clock.part("start"):
                setup = prepare(run, place)
                made = _Run(setup, folder, clock, count, force)
            _write_arms(runs, Path(out))
            results.append(made.go(pool, watch))
            if results[-1].status == "interrupted":
                break
    return results


def _write_arms(runs: Sequence[RunConfig], out: Path) -> None:
    """Say beside the arms of an experiment in which order they stand."""
    arms: dict[str, list[str]] = {}
    for run in runs:
        experiment, slash, arm = run.name.partition("/")
        if slash:
            arms.setdefault(experiment, []).append(arm)
    for experiment, names in arms.items():
        if (out / experiment).is_dir():
            write_json(out / experiment / "arms.json", {"arms": names})


def workers_of(workers: int | Literal["auto"]) -> int:
    """Return the number of client actors meant by a `--workers` value."""
    if workers == "auto":
        return max(
            1, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        )
    if workers < 0:
        raise ConfigError(f"workers: expected 'auto' or a number of at least 0, found {workers}")
    return workers


def _device(device: Device) -> str:
    if device == "cuda" and not torch.cuda.is_available():
        raise ConfigError("device: 'cuda' was asked for, but torch sees no GPU")
    return "cuda" if device != "cpu" and torch.cuda.is_available() else "cpu"


@contextmanager
def one_thread() -> Iterator[None]:
    """One thread for torch and NumPy: sums then do not depend on the number of cores."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with threadpool_limits(1):
            yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def _pool(workers: int, device: str, predicted: Mapping[str, int]) -> Iterator[Any]:
    from fedsim.actors import RayPool  # importing Ray takes a second, and inline runs do without it

    shared = predicted["data"] + 2 * (predicted["updates"] + predicted["parameters"] + predicted["kept"])
    gpus = torch.cuda.device_count() if device == "cuda" else 0
    pool = RayPool(workers, gpus=gpus, object_store_bytes=max(shared, 2**29))
    try:
        yield pool
    finally:
        pool.close()


class _Once:
    """The pool of all runs, made when the first one asks for it."""

    def __init__(self, make: Callable[[Mapping[str, int]], Any]) -> None:
        self.make, self.pool = make, None

    def get(self, predicted: Mapping[str, int]) -> Any:
        """Return the pool; its shared memory is sized for the run that asks first."""
        if self.pool is None:
            self.pool = self.make(predicted)
        return self.pool


class _Run:
    """One run folder from its first file to its last."""

    def __init__(self, setup: Setup, folder: Path, clock: Stopwatch, workers: int, force: bool) -> None:
        self.setup, self.folder, self.clock, self.workers = setup, folder, clock, workers
        config = setup.config
        footprint = setup.footprint(workers)
        self.predicted = footprint.parts()
        memory.check_fits(self.predicted, config.algorithm.name, helpful=footprint.savings())
        make_folder(folder, force=force)
        text = tomli_w.dumps(config.resolved())
        write_atomically(folder / "config.resolved.toml", lambda beside: _write(beside, text))
        setup.trace.write(folder / "world.parquet")
        self.others_peak = 0
        self.others: list[Times] = []
        """What the stopwatches of the other processes found, once the run is over."""
        self.course = Course(setup.data.n_clients)
        self.recorder = Recorder(
            folder, setup.data.train.sizes, self.course.ledger, config.record.conflicts != "off"
        )
        self.started = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        self._manifest("running")

    def go(self, pool: _Once | None, watch: Watch) -> Result:
        """Run, and leave a readable folder whatever happens."""
        timeline, trainer = None, None
        try:
            with self.clock.part("start"):
                trainer = self._trainer(pool.get(self.predicted) if pool else None)
            timeline = self._timeline(trainer, watch)
            ended_by = timeline.run()
        except KeyboardInterrupt:
            self._finish(timeline, None, "interrupted", "interrupt")
            return Result(self.folder, "interrupted", None)
        except Exception as error:
            self._finish(timeline, None, "failed", "error", f"{type(error).__name__}: {error}")
            raise
        return Result(self.folder, "done", self._finish(timeline, trainer, "done", ended_by))

    def _timeline(self, trainer: Trainer, watch: Watch) -> Timeline:
        def tell(course: Course) -> None:
            watch(Progress(self.setup, course, self.recorder.last_accuracy))

        plan, started = self.setup.plan, time.monotonic()
        limit = math.inf if plan.stop.wall_s is None else plan.stop.wall_s
        return Timeline(
            self.setup.world,
            plan,
            trainer,
            self.recorder,
            self.course,
            self.clock,
            tell,
            measure_of(plan.stop.metric),
            lambda: time.monotonic() - started >= limit,
        )

    def _trainer(self, pool: Any) -> Trainer:
        setup = self.setup
        if pool is None:
            server = Server(setup.server, setup.initial(), self.clock)
            return InlineTrainer(Workbench(setup.bench, setup.data), server, self.clock)
        trainer: Trainer = pool.trainer(
            setup.bench,
            setup.server,
            setup.data,
            setup.initial(),
            setup.data.train.sizes,
            spans=self.clock.recording,
        )
        return trainer

    def _finish(
        self,
        timeline: Timeline | None,
        trainer: Trainer | None,
        status: str,
        ended_by: str,
        error: str | None = None,
    ) -> str | None:
        if timeline:
            timeline.abandon()
        with self.clock.part("record"):
            self._settle(status)
            digest = self.recorder.close(trainer.params() if trainer else None)
        if trainer:
            self.others_peak = trainer.peak_bytes()
            self.others = trainer.times()
            trainer.close()
        course = self.course
        self._manifest(
            status,
            error=error,
            digest=digest,
            ended_by=ended_by,
            virtual_us=course.now_us,
            steps=course.step,
            jobs=dict(sorted(self.recorder.counts.items())),
            waits=self.recorder.waits,
        )
        if self.clock.recording:
            write_profile(self.folder, self.setup.config.name, [self.clock.dump(DRIVER), *self.others])
        return digest

    def _settle(self, status: str) -> None:
        """Wait for what is under way; after an error or an interrupt the last pending row may never come."""
        try:
            self.recorder.settle()
        except BaseException:
            if status == "done":
                raise

    def _manifest(self, status: str, **known: Any) -> None:
        config = self.setup.config
        content = {
            "name": config.name,
            "label": config.label,
            "status": status,
            "error": None,
            "seed": config.seed,
            "parent": None if config.parent is None else config.parent.model_dump(mode="json"),
            "rule": config.algorithm.name,
            "clairvoyant": self.setup.plan.selector.clairvoyant,
            "started": self.started,
            "digest": None,
            "workers": self.workers,
            "device": self.setup.server.device,
            "versions": {p: _version(p) for p in _PACKAGES} | {"python": platform.python_version()},
            "hardware": _hardware(self.setup.server.device),
            "memory": {
                "predicted_bytes": self.predicted,
                "peak_bytes": memory.peak_bytes() + self.others_peak,
            },
            "wall_s": self.clock.report(),
        } | seconds_by_process(self.clock.dump(DRIVER), self.others)
        write_json(self.folder / "manifest.json", content | known)


def measure_of(metric: str | None) -> Callable[[Evaluation], float] | None:
    """Return the function of an evaluation that a metric is, None for none."""
    if metric is None:
        return None
    of = plugins.factory("metric", metric)
    return lambda found: float(of(found.correct / found.n, found.n)) if len(found.n) else math.nan


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


def _hardware(device: str) -> dict[str, Any]:
    return {
        "cpu": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "memory_bytes": psutil.virtual_memory().total,
        "gpu": torch.cuda.get_device_name() if device == "cuda" else None,
    }
