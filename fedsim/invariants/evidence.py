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

from fedsim import analysis
from fedsim.common.errors import FolderError
from fedsim.config.load import load
from fedsim.config.run import RunConfig
from fedsim.engine.costs import Costs
from fedsim.records.run_folder import CONFIG, WORLD
from fedsim.server.rule import Algorithm
from fedsim.server.rule_factory import build_rule
from fedsim.training.attack import Droppers
from fedsim.training.job import Cohort, nth_jobs
from fedsim.worlds.interval_index import NEVER
from fedsim.worlds.job_outcomes import Outcomes, without
from fedsim.worlds.trace import Trace, read_trace
from fedsim.worlds.world import World

Ints = NDArray[np.int64]
MODEL = "model.safetensors"
PERSONAL_MODELS = "personal.safetensors"
_ENDED = ("done", "planned")
_CLOSED = (*_ENDED, "interrupted", "failed")


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
            self._columns[column] = self._read(self._table[column])
        return self._columns[column]

    @staticmethod
    def _read(column: pa.ChunkedArray) -> NDArray[Any]:
        if pa.types.is_dictionary(column.type):
            return np.array(column.cast(pa.string()).to_pylist(), dtype=np.str_)
        values = column.to_numpy()
        return np.asarray(values, np.int64) if values.dtype.kind == "i" else np.asarray(values)


class Evidence:
    """A run folder. Raises FolderError or ConfigError if it is none."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._run = analysis.open(folder)
        self.manifest: dict[str, Any] = self._run.manifest
        self.status = str(self.manifest.get("status"))
        self.config: RunConfig = load(folder / CONFIG)[0]
        self.pacing = self.config.pacing.pacing()
        self.dropout = self.config.dropout.handling()
        self.clients = self.config.task.clients

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
        if table in ("steps", "evals", "conflicts"):
            return bool(getattr(self, table)["step"][row] < self.changed_at + (table == "evals"))
        return False

    @property
    def ended(self) -> bool:
        """Whether the run came to its regular end."""
        return self.status in _ENDED

    def need_end(self) -> None:
        """Raise Unchecked unless the run came to its regular end."""
        if not self.ended:
            raise Unchecked(f"the run did not come to its end: it is {self.status!r}")

    def need_closed(self) -> None:
        """Raise Unchecked if the tables may have been cut at different places."""
        if self.status not in _CLOSED:
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
        for name in (MODEL, PERSONAL_MODELS):
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
        from fedsim.runs.build import about_clients, costs_of  # imported here: they import torch

        if self.config.cost.reference_flops is not None:
            raise Unchecked(
                "cost.reference_flops needs the operations of the model, which the folder does not have"
            )
        sizes = np.ones(self.clients, dtype=np.int64)
        sizes[self.jobs["client"]] = self.jobs["n_samples"]
        about = about_clients(self.trace, self.clients)
        return costs_of(self.config, sizes, self._parameters(), 1.0, about)

    def _parameters(self) -> int:
        """Return P, the number of parameters; without a model, estimated from the downloads."""
        if (self.folder / MODEL).is_file():
            return int(self.model["params"].size)
        return int(self.jobs["download_bytes"].max(initial=0)) // 4

    @cached_property
    def nths(self) -> Ints:
        """[jobs] the number of earlier jobs of each job's client."""
        return nth_jobs(self.jobs["job"], self.jobs["client"])

    @cached_property
    def by_client(self) -> Ints:
        """The rows of `jobs` sorted by client, then by number."""
        return np.lexsort((self.jobs["job"], self.jobs["client"]))

    def pairs(self) -> tuple[Ints, Ints]:
        """Return the rows of successive jobs of a client: the earlier ones, and the later ones."""
        rows, client = self.by_client, self.jobs["client"][self.by_client]
        same = client[1:] == client[:-1]
        return rows[:-1][same], rows[1:][same]

    def step_us(self, step: Ints) -> Ints:
        """Return the times of steps in microseconds; NEVER for steps that were not taken."""
        times = np.append(self.steps["time_us"], NEVER)
        taken_us: Ints = times[np.minimum(step, len(times) - 1)]
        return taken_us

    @cached_property
    def seen_us(self) -> Ints:
        """[jobs] when the server learns of a job's end. Raises Unchecked if a fork changed how losses are noticed."""
        parent, jobs = self.config.parent, self.jobs
        if (
            parent is not None
            and self.changed_at >= 0
            and any(c.startswith("dropout") for c in parent.changes)
        ):
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
        droppers = Droppers.among(self.config.adversaries(), self.config.seed)
        if droppers is not None:
            jobs = Cohort(
                self.jobs["job"][rows], who, self.nths[rows], self.jobs["version"][rows], share, start
            )
            fates = without(fates, droppers.drop(jobs))
        return rows, fates
