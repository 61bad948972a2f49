"""The files of a run, read when first used, and the expected values of jobs and steps that follow from them."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file

from fedsim import analysis, plugins
from fedsim.common.arrays import Ints
from fedsim.common.errors import FolderError
from fedsim.common.files import read_parquet
from fedsim.config.load import read_existing
from fedsim.config.run import RunConfig
from fedsim.engine.costs import Costs
from fedsim.records.file_names import CLIENTS, CONFIG, MODEL, PERSONAL, WORLD
from fedsim.records.schemas import CLIENT_FACTS
from fedsim.server.rule import Algorithm
from fedsim.server.rule_factory import build_rule
from fedsim.training.attack import Droppers
from fedsim.training.job import Cohort, nth_jobs
from fedsim.worlds.interval_index import NEVER
from fedsim.worlds.job_outcomes import Outcomes, without
from fedsim.worlds.trace import Trace, read_trace
from fedsim.worlds.world import World


class Unchecked(Exception):
    """An invariant cannot be checked; the text says why."""


class Table:
    """One table as arrays: whole numbers as int64, words as texts."""

    def __init__(self, name: str, table: pa.Table) -> None:
        self.name, self._table = name, table
        self._columns: dict[str, NDArray[Any]] = {}

    def __len__(self) -> int:
        return int(self._table.num_rows)

    def __getitem__(self, column: str) -> NDArray[Any]:
        if column not in self._columns:
            cells = self._table[column]
            if pa.types.is_dictionary(cells.type):
                values = np.array(cells.cast(pa.string()).to_pylist(), dtype=np.str_)
            else:
                values = cells.to_numpy()
            self._columns[column] = np.asarray(values, np.int64 if values.dtype.kind == "i" else None)
        return self._columns[column]


class Whole:
    """The rows of the whole model, block -1, in `conflicts`."""

    def __init__(self, conflicts: Table) -> None:
        self.rows: Ints = np.flatnonzero(conflicts["block"] == -1)
        self.step, self.client, self.age = (conflicts[n][self.rows] for n in ("step", "client", "age"))
        self.weight, self.cosine, self.norm = (conflicts[n][self.rows] for n in ("weight", "cosine", "norm"))


class Evidence:
    """A run folder. Raises FolderError or ConfigError if it is none."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._run = analysis.open_run(folder)
        self.manifest: dict[str, Any] = self._run.manifest
        self.status = str(self.manifest.get("status"))
        self.config: RunConfig = read_existing(folder / CONFIG)
        self.pacing = self.config.pacing.pacing()
        self.dropout = self.config.dropout.handling()
        self.clients = self.config.task.training_clients
        """Number of clients that may train; unseen ones have the numbers after them."""
        self.everybody = self.config.task.clients

    # The tables without checks of their rows, which the invariants make

    @cached_property
    def jobs(self) -> Table:
        """One row per job, in the order in which they ended."""
        return Table("jobs", self._run.unchecked("jobs"))

    @cached_property
    def steps(self) -> Table:
        """One row per step."""
        return Table("steps", self._run.unchecked("steps"))

    @cached_property
    def evals(self) -> Table:
        """One row per evaluation, split and client."""
        return Table("evals", self._run.unchecked("evals"))

    @cached_property
    def conflicts(self) -> Table:
        """One row per step, block and row. Raises Unchecked if conflicts were not recorded."""
        if self.config.record.conflicts == "off":
            raise Unchecked("needs conflicts.parquet: [record] conflicts is off")
        return Table("conflicts", self._run.unchecked("conflicts"))

    @cached_property
    def audit(self) -> Table:
        """One row per audited step and client. Raises Unchecked if nothing was trained or audited."""
        self.need_training()
        if not self.config.audit.every:
            raise Unchecked("needs audit.parquet: [audit] every is 0")
        return Table("audit", self._run.unchecked("audit"))

    @cached_property
    def whole(self) -> Whole:
        """The rows of the whole model in `conflicts`. Raises Unchecked if nothing was trained or none were recorded."""
        self.need_training()
        return Whole(self.conflicts)

    @property
    def changed_at(self) -> int:
        """The step at which a fork left its parent; -1 for a run that is no fork."""
        parent = self.config.parent
        return -1 if parent is None or parent.forked_step is None else parent.forked_step

    def inherited(self, table: str, row: int) -> bool:
        """Whether a row comes from the parent of a fork."""
        parent = self.config.parent
        if parent is None or self.changed_at < 0 or row < 0:
            return False
        if table == "jobs":
            return bool(self.jobs["dispatch_us"][row] <= (parent.forked_us or 0))
        if table in ("steps", "evals", "conflicts", "audit"):
            return bool(getattr(self, table)["step"][row] < self.changed_at + (table == "evals"))
        return False

    @property
    def ended(self) -> bool:
        """Whether the run came to its regular end."""
        return self.status in ("done", "planned")

    def need_end(self) -> None:
        """Raise Unchecked unless the run came to its regular end."""
        if not self.ended:
            raise Unchecked(f"the run did not come to its end: it is {self.status!r}")

    def need_closed(self) -> None:
        """Raise Unchecked if the tables may have been cut at different places."""
        if not self.ended and self.status not in ("interrupted", "failed"):
            raise Unchecked(f"the run is {self.status!r}: its tables may end at different places")

    def need_training(self) -> None:
        """Raise Unchecked if nothing was trained."""
        if self.status == "planned":
            raise Unchecked("a plan trains nothing")

    @cached_property
    def model(self) -> dict[str, NDArray[Any]]:
        """The tensors of the final models. Raises Unchecked if there are none, FolderError if they cannot be read."""
        if not (self.folder / MODEL).is_file():
            raise Unchecked(f"needs {MODEL}, which only a finished run has")
        tensors: dict[str, NDArray[Any]] = {}
        for name in (MODEL, PERSONAL):
            path = self.folder / name
            try:
                tensors |= load_file(path) if path.is_file() else {}
            except (SafetensorError, OSError) as error:
                raise FolderError(f"{path}: not readable: {error}") from error
        params = tensors.get("params")
        if params is None or params.ndim != 1 or params.dtype != np.float32:
            contents = (
                ", ".join(f"{name} {v.dtype}{list(v.shape)}" for name, v in sorted(tensors.items()))
                or "nothing"
            )
            raise FolderError(f"{self.folder / MODEL}: expected float32 'params' [P], found {contents}")
        return tensors

    @cached_property
    def algorithm(self) -> Algorithm:
        """The run's rule in its wrappers."""
        section = self.config.algorithm
        wrap = [wrapper.named() for wrapper in section.wrap]
        return build_rule(section.name, section.options, wrap, lr=self.config.train.lr)

    @cached_property
    def samples(self) -> Table:
        """One row per client that may train. Raises Unchecked if the file is missing, FolderError if it is damaged."""
        path = self.folder / CLIENTS
        if not path.is_file():
            raise Unchecked(f"needs {CLIENTS}")
        table = read_parquet(path, FolderError, CLIENT_FACTS.names)
        try:
            return Table(CLIENTS, table.select(CLIENT_FACTS.names).cast(CLIENT_FACTS))
        except (pa.ArrowException, ValueError) as error:
            raise FolderError(f"{path}: a column has another type than declared: {error}") from error

    # Expected values of jobs

    @cached_property
    def trace(self) -> Trace:
        """The trace that the run saw. Raises Unchecked if the file is missing."""
        if not (self.folder / WORLD).is_file():
            raise Unchecked(f"needs {WORLD}")
        return read_trace(self.folder / WORLD)

    @cached_property
    def world(self) -> World:
        """The world that the run saw. Raises Unchecked if the file is missing."""
        dropout, unknown = self.config.dropout, self.config.world.unknown
        return World(self.trace, self.clients, leave=dropout.leave, unknown=unknown)

    @cached_property
    def costs(self) -> Costs:
        """The costs of jobs. Raises Unchecked if they need the model's operations, which the folder does not have."""
        if self.config.cost.reference_flops is not None:
            raise Unchecked(
                "cost.reference_flops needs the operations of the model, which the folder does not have"
            )
        sizes = np.ones(self.clients, dtype=np.int64)
        sizes[self.jobs["client"]] = self.jobs["n_samples"]
        return self.config.costs(sizes, self._parameters(), 1.0, self.trace.about_columns(self.clients))

    def _parameters(self) -> int:
        """Return the number of the model's parameters, without a model from a whole download. Raises Unchecked."""
        if (self.folder / MODEL).is_file():
            return int(self.model["params"].size)
        if self.config.cost.payload is not None:  # nothing depends on it
            return 0
        whole = self.jobs["download_bytes"][self.jobs["download_us"] >= 0]
        if not len(whole):
            raise Unchecked("needs the size of the model, and no download came to its end")
        method = plugins.build("client", self.config.client.name, self.config.client.working_options())
        return int(whole.max()) // (4 * (1 + len(method.receives)))

    @cached_property
    def nths(self) -> Ints:
        """[jobs] the number of earlier jobs of each job's client."""
        return nth_jobs(self.jobs["job"], self.jobs["client"])

    @cached_property
    def before(self) -> Ints:
        """[jobs] the row of the previous job of each job's client; -1 for its first job."""
        client = self.jobs["client"]
        rows, before = np.lexsort((self.jobs["job"], client)), np.full(len(client), -1)
        same = client[rows[1:]] == client[rows[:-1]]
        before[rows[1:][same]] = rows[:-1][same]
        return before

    @cached_property
    def arrived(self) -> NDArray[np.bool_]:
        """[jobs] whether the job's update arrived at the server, used or not."""
        return np.isin(self.jobs["status"], ("aggregated", "remembered", "stale", "void", "nonfinite"))

    def step_us(self, step: Ints) -> Ints:
        """Return the times of steps in microseconds: 0 for step -1, NEVER for steps that were not taken."""
        times = np.append(self.steps["time_us"], [NEVER, 0])
        return np.asarray(times[np.minimum(step, len(self.steps))])

    @cached_property
    def seen_us(self) -> Ints:
        """[jobs] when the server learns of a job's end. Raises Unchecked if a fork changed how losses are noticed."""
        parent, jobs = self.config.parent, self.jobs
        changes = parent.changes if parent is not None and self.changed_at >= 0 else ()
        if any(change.startswith("dropout") for change in changes):
            raise Unchecked("the run is a fork that changed [dropout]: its parent noticed losses differently")
        late = jobs["end_us"] + np.where(jobs["status"] == "lost", self.dropout.notice_us, 0)
        return np.minimum(late, self.step_us(jobs["version"])) if self.pacing.cancels else late

    @cached_property
    def online_jobs(self) -> NDArray[np.bool_]:
        """[jobs] whether the job's client was online at its dispatch."""
        dispatch = self.jobs["dispatch_us"]
        return self.world.online_at(self.jobs["client"], dispatch) & (dispatch >= 0)

    @cached_property
    def fates(self) -> tuple[Ints, Outcomes]:
        """The rows of jobs dispatched to online clients, and the world's outcomes of these jobs."""
        rows = np.flatnonzero(self.online_jobs)
        who, start, end, share = (self.jobs[n][rows] for n in ("client", "dispatch_us", "end_us", "share"))
        work = self.costs.of(who, self.nths[rows], share)
        fates = self.world.outcomes(who, start, work)
        stopped = np.isin(self.jobs["status"][rows], ("late", "unfinished")) & (end < fates.end_us)
        if stopped.any():
            fates = self.world.outcomes(who, start, work, np.where(stopped, end, NEVER))
        droppers = Droppers.among(self.config.adversaries(), self.config.seed_of("world"))
        if droppers is not None:
            jobs = Cohort(
                self.jobs["job"][rows], who, self.nths[rows], self.jobs["version"][rows], share, start
            )
            fates = without(fates, droppers.drop(jobs))
        return rows, fates
