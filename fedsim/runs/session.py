"""Runs one run in its folder: starts or resumes it, and writes its records and manifest."""

from __future__ import annotations

import datetime
import hashlib
import math
import multiprocessing
import shlex
import shutil
import sys
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w

from fedsim.common import plugins
from fedsim.common.errors import Error, RunError, ServerLost
from fedsim.common.files import write_json, write_text
from fedsim.common.machine import peak_bytes
from fedsim.common.signals import Interrupts
from fedsim.common.stopwatch import DRIVER, Stopwatch, Times
from fedsim.config.run import RunConfig
from fedsim.engine.event_loop import EventLoop
from fedsim.engine.state import RunState
from fedsim.engine.trainer import Trainer
from fedsim.execution.actor_pool import RayPool
from fedsim.execution.inline_trainer import InlineTrainer
from fedsim.execution.workers import TrainerSpec
from fedsim.records import checkpoint
from fedsim.records.environment import changed, code, hardware, versions
from fedsim.records.manifest import FORMAT, MANIFEST, read_manifest
from fedsim.records.profile import seconds_by_process, write_profile
from fedsim.records.recorder import Recorder
from fedsim.records.run_folder import CONFIG, WORLD, lock, make_folder
from fedsim.records.schemas import OPTIONAL
from fedsim.runs import memory_estimate
from fedsim.runs.build import RunSpec
from fedsim.runs.checkpointer import Checkpointer, Reached, open_jobs
from fedsim.runs.reproduce import saying_how_to_reproduce
from fedsim.runs.result import Progress, Result, Watch
from fedsim.server.server import Server
from fedsim.training.evaluation import Evaluation
from fedsim.training.threaded_workbench import ThreadedWorkbench

_SERVERS = 3
"""How often the server's process may die before the run fails."""


class Session:
    """One run in its folder, which it locks against other processes from the first file to the last.

    Call one of `go`, `until` and `close` afterwards, once. Raises ConfigError if the run would not fit into memory.

    Args:
        again: whether the existing run is resumed; otherwise the folder is created, with `force` over an existing run.
        saved: the checkpoint from which the run is resumed; None starts it over.
    """

    def __init__(
        self,
        spec: RunSpec,
        folder: Path,
        clock: Stopwatch,
        workers: int,
        *,
        force: bool = False,
        again: bool = False,
        saved: checkpoint.State | None = None,
    ) -> None:
        self.spec, self.folder, self.clock, self.workers = spec, folder, clock, workers
        self._check_memory()
        self.started, self.code = _now(), code(spec.config.resolved())
        self.resumed: list[dict[str, Any]] = []
        self.others_peak, self.others = 0, list[Times]()
        """The wall times of the other processes; empty until the run ends."""
        self.interrupts = Interrupts(_announce_stop)
        self._servers_lost = 0
        self._started_loop = False
        with self.interrupts.handled(), ExitStack() as locked:
            if not again:
                make_folder(folder, force=force, manifest={"name": spec.config.name, "status": "running"})
            locked.enter_context(lock(folder))
            if again:
                self._note_resumption(saved)
            else:
                write_text(folder / CONFIG, tomli_w.dumps(spec.config.resolved()))
                spec.trace.write(folder / WORLD)
            self._continue_from(saved)
            self._manifest("running")
            self._locked = locked.pop_all()

    def _check_memory(self) -> None:
        footprint = self.spec.footprint(self.workers)
        self.predicted = footprint.parts()
        self.threads = 1 if self.workers else footprint.threads
        memory_estimate.check_fits(self.predicted, self.spec.config.algorithm.name, helpful=footprint.savings)
        memory_estimate.check_fits_gpu(footprint)

    def _note_resumption(self, saved: checkpoint.State | None) -> None:
        """Keep the run's start time, and record the step of this resumption and what changed since."""
        before = read_manifest(self.folder)
        self.started = before.get("started") or self.started
        step = saved["run_state"]["step"] if saved else 0
        changes = changed(before, self.spec.config.resolved())
        self.resumed = [*(before.get("resumed") or []), {"step": step, "at": _now(), "changed": changes}]

    def _continue_from(self, saved: checkpoint.State | None) -> None:
        """Set the run state to that of a checkpoint, or to the start."""
        self.saved = saved
        config, n_samples = self.spec.config, self.spec.data.train.sizes
        self.run_state = (
            RunState(self.spec.data.n_clients) if saved is None else RunState.restored(saved["run_state"])
        )
        checkpoint.remove_after(self.folder, step=self.run_state.step, jobs=self.run_state.next_job)
        self.recorder = Recorder(
            self.folder,
            n_samples,
            self.run_state.job_table,
            optional_tables(config),
            None if saved is None else saved["records"],
        )
        owner, spent_s = owner_of(self.folder), 0.0 if saved is None else saved["spent_s"]
        parts = self.run_state, self.recorder, self.interrupts
        self.checkpointer = Checkpointer(self.folder, config.checkpoint, *parts, owner=owner, spent_s=spent_s)

    def go(self, pool: RayPool | None, watch: Watch) -> Result:
        """Run to the end; the folder stays readable after an interrupt or an error."""
        with self._locked, self.interrupts.handled():
            self._started_loop = True
            while True:
                try:
                    return self._go(pool, watch)
                except ServerLost as lost:
                    self._go_back(lost)

    def close(self) -> None:
        """Unlock the folder, as `go` and `until` do at their end; a run that never started is marked interrupted."""
        with self._locked:
            if not self._started_loop:
                self._manifest("interrupted")

    @plugins.contained()
    def until(self, pool: RayPool | None, reached: Callable[[RunState], bool]) -> checkpoint.State:
        """Run until `reached`, and return the state there. Raises RunError if the run ends before."""
        with self._locked:
            self._started_loop = True
            trainer = self._trainer(pool)
            event_loop = self._event_loop(trainer, lambda progress: None)
            self.checkpointer.until = reached
            try:
                if not reached(self.run_state):
                    ended_by = event_loop.run()
                    raise RunError(
                        f"the run ended by {ended_by} at step {self.run_state.step}, before that point"
                    )
            except Reached:
                pass
            state = self.checkpointer.state()
            trainer.close()
        return state

    def _go(self, pool: RayPool | None, watch: Watch) -> Result:
        event_loop, trainer = None, None
        try:
            with plugins.contained(), self.clock.part("start"):
                trainer = self._trainer(pool)
            event_loop = self._event_loop(trainer, watch)
            with plugins.contained(), saying_how_to_reproduce(self.folder, self.run_state, self.spec.config):
                ended_by = event_loop.run()
                digest = self._finish(event_loop, trainer, "done", ended_by)
        except KeyboardInterrupt:
            self._finish(event_loop, None, "interrupted", "interrupt")
            return Result(self.folder, "interrupted", None, self.recorder.last_accuracy)
        except ServerLost:
            if trainer:
                with suppress(RunError):
                    trainer.close()
            raise
        except Exception as error:
            self._fail(event_loop, error)
            error.add_note(
                f"{self.folder}: failed at step {self.run_state.step}; its records up to there can be read. Fix the "
                f"cause, then continue it with: fedsim resume {shlex.quote(str(self.folder))}"
            )
            raise
        finally:
            self.checkpointer.event_loop = None  # breaks a reference cycle that would keep the data in memory
        if self.spec.config.checkpoint.keep != "all":
            shutil.rmtree(self.folder / checkpoint.FOLDER, ignore_errors=True)
        return Result(self.folder, "done", digest, self.recorder.last_accuracy)

    def _go_back(self, lost: ServerLost) -> None:
        """Return to the last checkpoint, or to the start; the run repeats the same steps."""
        self._servers_lost += 1
        if self._servers_lost > _SERVERS:
            self._fail(None, lost)
            raise lost
        saved = checkpoint.checkpoints(self.folder)
        self._continue_from(checkpoint.read(saved[-1].path, owner_of(self.folder)) if saved else None)

    def _fail(self, event_loop: EventLoop | None, error: Exception) -> None:
        line = "" if isinstance(error, Error) else plugins.line_of(error)
        with suppress(
            RunError
        ):  # on a full disk the first error counts, and the manifest may stay incomplete
            self._finish(event_loop, None, "failed", "error", f"{type(error).__name__}: {error}{line}")

    def _event_loop(self, trainer: Trainer, watch: Watch) -> EventLoop:
        def report(run_state: RunState) -> None:
            recorder = self.recorder
            rows = recorder.recent_rows()
            watch(Progress(self.spec, self.folder, run_state, recorder.last_accuracy, rows))

        self.recorder.recent_rows()
        plan, checkpointer = self.spec.plan, self.checkpointer
        limit = math.inf if plan.stop.wall_s is None else plan.stop.wall_s
        checkpointer.event_loop = EventLoop(
            self.spec.world,
            plan,
            trainer,
            self.recorder,
            self.run_state,
            self.clock,
            report,
            measure_of(plan.stop.metric),
            lambda: checkpointer.spent_s >= limit,
            checkpointer.between,
        )
        return checkpointer.event_loop

    def _trainer(self, pool: RayPool | None) -> Trainer:
        spec = self.spec
        if pool is None:
            server = Server(spec.server, spec.initial(), self.clock)
            trainer: Trainer = InlineTrainer(ThreadedWorkbench(spec.bench, spec.data), server, self.clock)
        else:
            parts = spec.bench, spec.server, spec.data, spec.initial()
            trainer = pool.trainer(TrainerSpec(*parts, spans=self.clock.recording))
        if self.saved is not None:
            saved = self.saved["trainer"]
            trainer.load(saved, open_jobs(self.run_state.job_table, saved["versions"]))
            self.saved = None
        return trainer

    def _finish(
        self,
        event_loop: EventLoop | None,
        trainer: Trainer | None,
        status: str,
        ended_by: str,
        error: str | None = None,
    ) -> str | None:
        if event_loop:
            event_loop.abandon()
        with self.clock.part("record"):
            self._settle(status)
            digest = self._closed(status, trainer)
        if trainer:
            self.others_peak = trainer.peak_bytes()
            self.others = trainer.times()
            trainer.close()
        run_state = self.run_state
        self._manifest(
            status,
            error=error,
            digest=digest,
            ended_by=ended_by,
            virtual_us=run_state.now_us,
            steps=run_state.step,
            jobs=dict(sorted(self.recorder.counts.items())),
            waits=self.recorder.waits,
            clipped=self.recorder.clipped,
            warning=self.recorder.warning(),
        )
        if self.clock.recording:
            write_profile(self.folder, self.spec.config.name, [self.clock.dump(DRIVER), *self.others])
        return digest

    def _settle(self, status: str) -> None:
        """Wait for pending results; after an error or an interrupt the last row may never come."""
        try:
            self.recorder.settle()
        except BaseException:
            if status == "done":
                raise

    def _closed(self, status: str, trainer: Trainer | None) -> str | None:
        """Merge the parts of the tables; after an error the disk may be full, and the parts stay."""
        try:
            return self.recorder.close(trainer.params() if trainer else None)
        except RunError:
            if status != "failed":
                raise
            return None

    def _manifest(self, status: str, **outcome: Any) -> None:
        config = self.spec.config
        content = {
            "format": FORMAT,
            "name": config.name,
            "label": config.label,
            "status": status,
            "error": None,
            "seed": config.seed,
            "parent": None
            if config.parent is None
            else config.parent.model_dump(mode="json", exclude_none=True),
            "rule": config.algorithm.name,
            "clairvoyant": self.spec.plan.selector.clairvoyant,
            "adversaries": [
                {"name": a.name, "clients": list(a.clients or ())} for a in self.spec.bench.adversaries
            ],
            "started": self.started,
            "resumed": self.resumed,
            "digest": None,
            "workers": self.workers,
            "threads": self.threads,
            "device": self.spec.server.device,
            "versions": versions(),
            "code": self.code,
            "hardware": hardware(self.spec.server.device),
            "memory": {
                "predicted_bytes": self.predicted,
                "peak_bytes": peak_bytes() + self.others_peak,
            },
            "wall_s": self.clock.report(),
        } | seconds_by_process(self.clock.dump(DRIVER), self.others)
        write_json(self.folder / MANIFEST, content | outcome)


def owner_of(folder: Path) -> str:
    """Return the identity of the run to which checkpoints belong: a hash of its configuration."""
    return hashlib.sha256((folder / CONFIG).read_bytes()).hexdigest()


def optional_tables(config: RunConfig) -> list[str]:
    """Return the optional tables that the configuration asks for."""
    wanted = {"conflicts": config.record.conflicts != "off", "audit": config.audit.every > 0}
    return [table for table in OPTIONAL if wanted[table]]


def _announce_stop() -> None:
    if multiprocessing.parent_process() is not None:  # the study's main process announces it for all
        return
    print("\nstopping at the next checkpoint; Ctrl-C again stops now", file=sys.stderr)


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def measure_of(metric: str | None) -> Callable[[Evaluation], float] | None:
    """Return the function that computes a metric of an evaluation; None without a metric."""
    if metric is None:
        return None
    function, number = plugins.factory("metric", metric), plugins.number_of

    def measure(evaluation: Evaluation) -> float:
        known = len(evaluation.n) and not np.isnan(evaluation.accuracy).any()
        return number(metric, function(evaluation.accuracy, evaluation.n)) if known else math.nan

    return measure
