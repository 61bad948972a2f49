"""Runs one run in its folder: starts or resumes it, and writes its records and manifest."""

from __future__ import annotations

import datetime
import math
import multiprocessing
import shlex
import sys
from collections.abc import Callable
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from typing import Any

from fedsim import plugins
from fedsim.common.errors import Error, RunError, ServerLost
from fedsim.common.files import remove_folder, write_json
from fedsim.common.machine import peak_bytes
from fedsim.common.signals import Interrupts
from fedsim.common.stopwatch import DRIVER, Stopwatch, Times
from fedsim.config.given import digests_in
from fedsim.engine.event_loop import EventLoop
from fedsim.engine.state import RunState
from fedsim.engine.trainer import Trainer
from fedsim.execution.actor_pool import RayPool
from fedsim.execution.inline_trainer import InlineTrainer
from fedsim.execution.workers import TrainerSpec
from fedsim.records import checkpoint
from fedsim.records.environment import changed, code, hardware, versions
from fedsim.records.file_names import MANIFEST
from fedsim.records.manifest import FORMAT, read_manifest
from fedsim.records.profile import seconds_by_process, write_profile
from fedsim.records.recorder import Recorder
from fedsim.records.run_folder import RunFolder, optional_tables
from fedsim.runs.checkpointer import Checkpointer, open_jobs
from fedsim.runs.progress import Progress, Watch
from fedsim.runs.reproduction import saying_how_to_reproduce
from fedsim.runs.result import Result
from fedsim.runs.spec import RunSpec
from fedsim.server.server import Server

_SERVERS = 3
"""How often the server's process may die before the run fails."""


class Session:
    """A run in its locked folder, from a checkpoint or from the start; `create` and `open` return one.

    Call one of `run`, `until` and `close` afterwards, once.

    Args:
        pool: workers that train; None: this process trains.
        saved: the checkpoint from which the run continues; None: it starts.
    """

    def __init__(
        self,
        spec: RunSpec,
        folder: RunFolder,
        pool: RayPool | None,
        clock: Stopwatch,
        interrupts: Interrupts,
        saved: checkpoint.State | None = None,
    ) -> None:
        self.spec, self.folder, self.pool, self.clock = spec, folder.path, pool, clock
        self.interrupts, self._lock, self._saved = interrupts, folder, saved
        self.workers = pool.workers if pool else 0
        self._footprint = spec.footprint(self.workers)
        self.started, self.code = _now(), code(spec.config.resolved())
        self.world_files = dict(spec.world_files)
        self.memory: dict[str, Any] | None = spec.asked.model_dump(mode="json", exclude_none=True)
        """The `[memory]` that the run was started with, before its storage was chosen; None: it is not known."""
        self.resumed: list[dict[str, Any]] = []
        """The resumptions of the run, for its manifest."""
        self.others_peak, self.others = 0, list[Times]()
        """The wall times of the other processes; empty until the run ends."""
        self._servers_lost, self._ran = 0, False
        self._spent_s: float = saved["spent_s"] if saved else 0.0
        """Wall time of the run before `_begin`."""

    @classmethod
    def create(
        cls, spec: RunSpec, path: Path, pool: RayPool | None, clock: Stopwatch, *, force: bool = False
    ) -> Session:
        """Make the folder of a new run; `force` replaces an existing one. Raises FolderError and RunError."""
        interrupts = Interrupts(_announce_stop)
        with interrupts.handled():
            counts = spec.plan.facts.label_counts
            folder = RunFolder.create(spec.config, spec.trace, counts, spec.data.names, path, force=force)
        return cls(spec, folder, pool, clock, interrupts)

    @classmethod
    def open(
        cls,
        spec: RunSpec,
        path: Path,
        pool: RayPool | None,
        clock: Stopwatch,
        saved: checkpoint.State | None = None,
    ) -> Session:
        """Continue an existing run from `saved`, or start it over. Raises FolderError."""
        before = read_manifest(path)
        spec.check_data(before, path)
        session = cls(spec, RunFolder(path), pool, clock, Interrupts(_announce_stop), saved)
        step = saved["run_state"]["step"] if saved else 0
        resumption = {"step": step, "at": _now(), "changed": changed(before, spec.config.resolved())}
        session.started = before.get("started") or session.started
        session.world_files = before.get("world_files") or {}
        session.memory = (before.get("memory") or {}).get("asked")
        session.resumed = [*(before.get("resumed") or []), resumption]
        return session

    def run(self, watch: Watch) -> Result:
        """Run to the end; the folder stays readable after an interrupt or an error."""
        with closing(self._lock), self.interrupts.handled():
            while True:
                self._begin()
                event_loop = None
                try:
                    event_loop = self._event_loop()
                    digest = self._play(event_loop, watch)
                except KeyboardInterrupt:
                    self._finish(event_loop, "interrupted", "interrupt")
                    return Result(self.folder, "interrupted", None, self.recorder.last_accuracy, True)
                except ServerLost as lost:
                    self._go_back(event_loop, lost)
                except Exception as error:
                    self._fail(event_loop, error)
                    raise
                else:
                    if self.spec.config.checkpoint.keep != "all":
                        with suppress(OSError):
                            remove_folder(self.folder / checkpoint.FOLDER)
                    self._report(watch, self.run_state)
                    accuracy, asked = self.recorder.last_accuracy, self.interrupts.asked
                    return Result(self.folder, "done", digest, accuracy, asked)

    def close(self) -> None:
        """Unlock the folder, as `run` and `until` do at their end; a run that never started is marked interrupted."""
        with closing(self._lock):
            if not self._ran:
                self._manifest("interrupted")

    @plugins.contained()
    def until(self, reached: Callable[[RunState], bool]) -> checkpoint.State:
        """Run until `reached`, and return the state there. Raises RunError if the run ends before.

        Signals stop it as they stop `run`; the loss of the server ends it.
        """
        with closing(self._lock), self.interrupts.handled():
            self._begin()
            event_loop = self._event_loop()
            for _ in event_loop.instants():
                self.checkpointer.between(event_loop)
                if reached(self.run_state):
                    break
            else:
                raise RunError(
                    f"the run ended by {event_loop.ended_by} at step {self.run_state.step}, before that point"
                )
            state = self.checkpointer.state(event_loop)
            event_loop.trainer.close()
        return state

    def _begin(self) -> None:
        """Set the run state, the tables and the manifest to a checkpoint, or to the start."""
        saved, config, n_samples = self._saved, self.spec.config, self.spec.data.train.sizes
        self._ran = True
        self.run_state = (
            RunState(self.spec.data.n_clients) if saved is None else RunState.restored(saved["run_state"])
        )
        checkpoint.remove_after(self.folder, step=self.run_state.step, jobs=self.run_state.next_job)
        self.recorder = Recorder(
            self.folder,
            n_samples,
            self.run_state.job_table,
            optional_tables(config),
            config.evaluate.split,
            None if saved is None else saved["records"],
        )
        parts = self.run_state, self.recorder, self.interrupts
        self.checkpointer = Checkpointer(self.folder, config.checkpoint, *parts, self._spent_s)
        self._manifest("running")

    def _play(self, event_loop: EventLoop, watch: Watch) -> str | None:
        """Run the event loop to its end, with checkpoints and the limit of wall time; return the digest."""
        limit_s = self.spec.plan.stop.wall_s
        self.recorder.recent_rows()
        with plugins.contained(), saying_how_to_reproduce(self.folder, self.recorder, self.spec.config):
            for _ in event_loop.instants(partial(self._report, watch)):
                self.checkpointer.between(event_loop)
                if limit_s is not None and self.checkpointer.spent_s >= limit_s:
                    event_loop.ended_by = "wall"
            return self._finish(event_loop, "done", event_loop.ended_by)

    def _report(self, watch: Watch, run_state: RunState) -> None:
        """Call `watch` with the progress after a step, or with the last rows of a run that is done."""
        rows, accuracy = self.recorder.recent_rows(), self.recorder.last_accuracy
        watch(Progress(self.spec, self.folder, run_state, accuracy, rows))

    def _go_back(self, event_loop: EventLoop | None, lost: ServerLost) -> None:
        """Return to the last checkpoint, or to the start; the run repeats the same steps."""
        if event_loop:
            with suppress(RunError):
                event_loop.trainer.close()
        self._servers_lost, self._spent_s = self._servers_lost + 1, self.checkpointer.spent_s
        try:
            if self._servers_lost > _SERVERS:
                raise lost
            earlier = checkpoint.checkpoints(self.folder)
            self._saved = checkpoint.read(earlier[-1].path) if earlier else None
        except Error as error:
            self._fail(event_loop, error)
            raise

    def _resume(self) -> str:
        """Return what continues the run: Python, if it passed the task or the model, else a command."""
        if not (passed := digests_in(self.spec.config)):
            return f"fedsim resume {shlex.quote(str(self.folder))}"
        return f"fedsim.resume({str(self.folder)!r}, {', '.join(f'{kind}=...' for kind in passed)})"

    def _fail(self, event_loop: EventLoop | None, error: Exception) -> None:
        line = "" if isinstance(error, Error) else plugins.line_of(error)
        with suppress(RunError):  # on a full disk the first error counts; the manifest may stay incomplete
            self._finish(event_loop, "failed", "error", f"{type(error).__name__}: {error}{line}")
        error.add_note(
            f"{self.folder}: failed at step {self.recorder.steps}; its records up to there can be read. Fix the "
            f"cause, then continue it with: {self._resume()}; if the cause is in the configuration, change it and run "
            "again"
        )

    def _event_loop(self) -> EventLoop:
        spec = self.spec
        with plugins.contained(), self.clock.part("start"):
            trainer = self._trainer()
        return EventLoop(spec.world, spec.plan, trainer, self.recorder, self.run_state, self.clock)

    def _trainer(self) -> Trainer:
        spec = self.spec
        if self.pool is None:
            server = Server(spec.server, spec.initial(), self.clock)
            trainer: Trainer = InlineTrainer(spec.workbench(), server, self.clock)
        else:
            self.pool.processes()
            self.interrupts.renew()  # Ray's own handler of SIGTERM kills the process before the run is saved
            parts = spec.bench, spec.server, spec.data, spec.initial()
            trainer = self.pool.trainer(TrainerSpec(*parts, spans=self.clock.recording))
        if self._saved is not None:
            saved = self._saved["trainer"]
            trainer.load(saved, open_jobs(self.run_state.job_table, saved["versions"]))
            self._saved = None
        return trainer

    def _finish(
        self, event_loop: EventLoop | None, status: str, ended_by: str, error: str | None = None
    ) -> str | None:
        """Write the tables and the manifest; if the run is done, also write the model and return the digest."""
        trainer, digest = event_loop.trainer if event_loop and status == "done" else None, None
        with self.clock.part("record"):
            if trainer:
                self.recorder.settle()
            else:
                with suppress(BaseException):  # a last row may never come
                    self.recorder.settle()
            if event_loop:
                event_loop.abandon(self.recorder.steps)
            if trainer:
                digest = self.recorder.close(trainer.params())
            else:
                self._rescue_records(status)
        if trainer:
            self.others_peak = trainer.peak_bytes()
            self.others = trainer.times()
            trainer.close()
        self._manifest(status, error=error, digest=digest, ended_by=ended_by, **self._outcome(ended_by))
        if self.clock.recording:
            write_profile(self.folder, self.spec.config.name, [self.clock.dump(DRIVER), *self.others])
        return digest

    def _outcome(self, ended_by: str) -> dict[str, Any]:
        """Return what the run has come to, for its manifest."""
        recorder, accuracy = self.recorder, self.recorder.last_accuracy
        return {
            "virtual_us": self.run_state.now_us,
            "steps": recorder.steps,
            "jobs": dict(sorted(recorder.counts.items())),
            "waits": recorder.waits,
            "clipped": recorder.clipped,
            "accuracy": None if math.isnan(accuracy) else accuracy,
            "warning": recorder.warning(ended_by),
        }

    def _rescue_records(self, status: str) -> None:
        """Merge the parts of the tables after an interrupt or an error."""
        try:
            self.recorder.close(None)
        except RunError:  # on a full disk the parts stay
            if status != "failed":
                raise

    def _manifest(self, status: str, **outcome: Any) -> None:
        content = (
            {"format": FORMAT}
            | self.spec.facts()
            | {
                "status": status,
                "error": None,
                "started": self.started,
                "resumed": self.resumed,
                "digest": None,
            }
        )
        write_json(self.folder / MANIFEST, content | self._machine() | outcome)

    def _machine(self) -> dict[str, Any]:
        """What the run has been computed with, and what it has used."""
        return {
            "workers": self.workers,
            "threads": 1 if self.pool else self._footprint.threads,
            "device": self.spec.server.device,
            "versions": versions(),
            "code": self.code,
            "world_files": self.world_files,
            "hardware": hardware(self.spec.server.device),
            "memory": {
                "asked": self.memory,
                "predicted_bytes": self._footprint.parts(),
                "peak_bytes": peak_bytes() + self.others_peak,
            },
            "wall_s": self.clock.report(),
        } | seconds_by_process(self.clock.dump(DRIVER), self.others)


def _announce_stop() -> None:
    if multiprocessing.parent_process() is not None:  # the study's main process announces it for all
        return
    print("\nstopping at the next checkpoint; Ctrl-C again stops now", file=sys.stderr)


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
