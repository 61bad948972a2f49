"""Choices of a run's selector against those of one that knows the world's future, and who was chosen how often."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from safetensors import SafetensorError, safe_open

from fedsim import plugins
from fedsim.analysis.opening.run import Run
from fedsim.analysis.statistics.waste import USED
from fedsim.common import arguments
from fedsim.common.arrays import Floats, Ints, Mask
from fedsim.common.errors import ConfigError, FolderError
from fedsim.common.files import read_parquet
from fedsim.config.errors import validated
from fedsim.config.run import RunConfig
from fedsim.engine.costs import Costs
from fedsim.engine.pacing import Pacing
from fedsim.records.file_names import CLIENTS, CONFIG, MODEL, WORLD
from fedsim.records.schemas import CLIENT_FACTS
from fedsim.training.attack import Droppers
from fedsim.training.job import Cohort
from fedsim.worlds.trace import read_trace
from fedsim.worlds.world import World

if TYPE_CHECKING:
    import pandas as pd

_COPIED = ("seed", "seeds", "pacing", "cost", "dropout", "client", "adversary")
"""Tables of the configuration that decide how long jobs take and who may be chosen."""
_MOST_JOBS, _LEAST_CHOICES = 1_000_000, 50
_WAITS = ("aggregated", "void", "nonfinite", "unfinished")
"""Statuses of jobs whose updates waited for a step after their arrival."""


@arguments.checked
def selection_regret(run: Run, *, t_max_us: int | None = None, most: int | None = None) -> pd.DataFrame:
    """Return what each choice of clients lost against the best choice among the same candidates, one row per choice.

    A choice is the jobs dispatched together. With T(A) the time until as many clients of A have arrived as the step
    waits for, r(A) = 1 - min(T(A), t_max) / t_max, and the regret is max r(A) - r(chosen) over all A of the candidates
    that are as many. The times are the world's, so the best A is that of a clairvoyant, who is one step ahead: the
    candidates are those of this run. Of a fork, only choices after it count.

    Columns: `step`, server steps taken before; `time_us`; `chosen` and `candidates`, how many; `took_us` and `best_us`,
    T of the clients chosen and of the best, at most t_max; `regret`.

    Args:
        t_max_us: t_max, by default the pacing's deadline, else the longest job of the run that arrived.
        most: the largest number of choices to look at, evenly spaced over the run; by default all.

    Raises FolderError if the folder lacks the world or the clients, and ConfigError if it does not determine the costs,
    and with `dropout.partial`, which shortens jobs by the deadline.
    """
    history = _History.of(run)
    return _frame(history, history.longest_us() if t_max_us is None else t_max_us, most)


def regrets(runs: Sequence[Run]) -> dict[str, pd.DataFrame]:
    """Return `selection_regret` of several runs by label, with the largest t_max of them, so that they compare.

    Of large runs, choices evenly spaced over the run count.
    """
    histories = {run.label: _History.of(run) for run in runs}
    longest_us = max((history.longest_us() for history in histories.values()), default=1)
    return {
        label: _frame(history, longest_us, max(_MOST_JOBS // history.world.clients, _LEAST_CHOICES))
        for label, history in histories.items()
    }


def _frame(history: _History, longest_us: int, most: int | None) -> pd.DataFrame:
    import pandas as pd  # imported here: opening a run does not need it

    rows = [_row(history, choice, longest_us) for choice in history.choices(most)]
    names = ["step", "time_us", "chosen", "candidates", "took_us", "best_us", "regret"]
    return pd.DataFrame(rows, columns=names)


@arguments.checked
def participation_gap(run: Run, wanted: ArrayLike | None = None, *, used: bool = False) -> float:
    """Return `Σ_k |share_k - wanted_k| / 2`, the share of a run's jobs that would have to go to other clients.

    Repeated attempts do not count. 0 if every client has the share that it should have; NaN without jobs.

    Args:
        wanted: [K] share that each client should have; by default all the same.
        used: whether to count the jobs whose updates were used instead of all.

    Raises ConfigError if `wanted` is not K shares that add up to 1.
    """
    n = _clients(run)
    shares = np.full(n, 1 / n) if wanted is None else np.asarray(wanted, dtype=np.float64)
    if shares.shape != (n,) or not (shares >= 0).all() or not np.isclose(shares.sum(), 1):
        raise ConfigError(f"wanted: expected {n} shares that add up to 1, found {shares}")
    jobs = run.jobs
    client, attempt = (jobs[name].to_numpy().astype(np.int64) for name in ("client", "attempt"))
    status = np.asarray(jobs["status"].cast("string"))
    counted = np.isin(status, USED) if used else attempt == 0
    jobs_of = np.bincount(client[counted], minlength=n)
    return float(abs(jobs_of / jobs_of.sum() - shares).sum() / 2) if counted.any() else float("nan")


@dataclass(frozen=True, slots=True)
class _Choice:
    """Clients that were chosen together, and what the server knew of each client then."""

    step: int
    time_us: int
    clients: Ints
    number: int
    """Number of its first job."""
    last: Ints
    """[K] row of each client's last job before, -1 if it had none."""
    jobs: Ints
    """[K] jobs of each client before."""


@dataclass(frozen=True, slots=True)
class _History:
    """The jobs of a run in order of dispatch, and the world that it saw."""

    columns: dict[str, NDArray[Any]]
    status: NDArray[np.str_]
    steps_us: Ints
    world: World
    costs: Costs
    pacing: Pacing
    notice_us: int
    droppers: Droppers | None
    begin_us: int
    """When the run left its parent; -1 without one."""

    @staticmethod
    def of(run: Run) -> _History:
        """Read a run folder."""
        for name in (WORLD, CLIENTS):
            if not (run.folder / name).is_file():
                raise FolderError(f"{run.folder}: {name} is missing, and with it the times of jobs")
        config, n = _config(run), _clients(run)
        trace = read_trace(run.folder / WORLD)
        jobs = run.jobs.sort_by("job")
        columns = {
            name: jobs[name].to_numpy() for name in jobs.column_names if name not in ("status", "phase")
        }
        sizes, parameters = _sizes(run, n), _parameters(run, columns["download_bytes"])
        world = World(trace, n, leave=config.dropout.leave, unknown=run.unknown)
        return _History(
            columns,
            np.asarray(jobs["status"].cast("string").to_pylist(), dtype=np.str_),
            run.steps["time_us"].to_numpy(),
            world,
            config.costs(sizes, parameters, 1.0, trace.about_columns(n)),
            config.pacing.pacing(),
            config.dropout.handling().notice_us,
            Droppers.among(config.adversaries(), config.seed_of("world")),
            int((run.manifest.get("parent") or {}).get("forked_us", -1)),
        )

    def longest_us(self) -> int:
        """Return the deadline, or the time of the longest job that arrived, at least 1."""
        if self.pacing.deadline_us is not None:
            return self.pacing.deadline_us
        arrived = np.isin(self.status, (*USED, "stale", "void", "nonfinite"))
        times_us = (self.columns["end_us"] - self.columns["dispatch_us"])[arrived]
        return max(int(times_us.max(initial=1)), 1)

    def choices(self, most: int | None) -> Iterator[_Choice]:
        """Yield choices, at most `most`, in order."""
        column = self.columns
        first = np.flatnonzero(column["attempt"] == 0)
        keys = np.stack([column["version"][first], column["dispatch_us"][first]])
        groups = np.split(first, 1 + np.flatnonzero((np.diff(keys, axis=1) != 0).any(axis=0)))
        groups = [rows for rows in groups if len(rows) and column["dispatch_us"][rows[0]] > self.begin_us]
        if not groups:
            return
        looked = np.arange(len(groups))
        if most is not None and len(groups) > most:
            looked = np.unique(np.linspace(0, len(groups) - 1, most).astype(np.int64))
        last, count, seen = np.full(self.world.clients, -1), np.zeros(self.world.clients, dtype=np.int64), 0
        for rows in map(groups.__getitem__, looked.tolist()):
            before = column["client"][seen : rows[0]].astype(np.int64)
            last[before] = np.arange(seen, rows[0])
            count += np.bincount(before, minlength=len(count))
            seen = int(rows[0])
            step, time_us = int(column["version"][rows[0]]), int(column["dispatch_us"][rows[0]])
            clients = column["client"][rows].astype(np.int64)
            yield _Choice(step, time_us, clients, int(column["job"][rows[0]]), last.copy(), count.copy())

    def candidates(self, choice: _Choice) -> Ints:
        """Return the clients that could be chosen."""
        had = choice.last >= 0
        rows = choice.last[had]
        free = self.world.online(choice.time_us).copy()
        free[had] &= ~(self._works(rows, choice) | self._waits(rows, choice))
        free[choice.clients] = True
        return np.flatnonzero(free)

    def _works(self, rows: Ints, choice: _Choice) -> Mask:
        """Return whether jobs are under way, as far as the server knows, or were noticed to be lost at this instant."""
        lost = self.status[rows] == "lost"
        seen_us = self.columns["end_us"][rows] + np.where(lost, self.notice_us, 0)
        noticed = lost & (seen_us == choice.time_us)
        if self.pacing.cancels:
            seen_us = np.minimum(seen_us, self._step_us(self.columns["version"][rows]))
        return np.asarray((seen_us > choice.time_us) | noticed)

    def _waits(self, rows: Ints, choice: _Choice) -> Mask:
        """Return whether updates wait for a step of the round that the choice belongs to."""
        if self.pacing.refill != "step":
            return np.zeros(len(rows), dtype=bool)
        step, end_us = self.columns["step"][rows], self.columns["end_us"][rows]
        used = np.where(step >= 0, step, np.searchsorted(self.steps_us, end_us))
        return np.isin(self.status[rows], _WAITS) & (end_us <= choice.time_us) & (used >= choice.step)

    def _step_us(self, steps: Ints) -> Ints:
        times = np.append(self.steps_us, np.iinfo(np.int64).max)
        return np.asarray(times[np.minimum(steps, len(self.steps_us))])

    def durations_us(self, choice: _Choice, clients: Ints, longest_us: int) -> Floats:
        """Return how long a job of each client would take, infinite if it would not arrive in time."""
        nths = choice.jobs[clients]
        shares = self.costs.shares(clients, nths)
        work = self.costs.of(clients, nths, shares)
        until_us = choice.time_us + longest_us
        if self.world.after_end == "error":  # nothing is known beyond; jobs that still run then come too late
            until_us = min(until_us, self.world.horizon_us)
        fates = self.world.outcomes(clients, choice.time_us, work, until_us)
        arrives = fates.ok
        if self.droppers is not None:
            same = np.ones(len(clients), dtype=np.int64)
            numbers = (choice.number * same, clients, nths, choice.step * same)
            arrives &= ~self.droppers.drop(Cohort(*numbers, shares, choice.time_us * same))
        return np.where(arrives, fates.end_us - choice.time_us, np.inf)


def _row(history: _History, choice: _Choice, longest_us: int) -> tuple[int | float, ...]:
    """Return the row of a choice."""
    candidates = history.candidates(choice)
    durations_us = history.durations_us(choice, candidates, longest_us)
    chosen = len(choice.clients)
    waits_for = min(history.pacing.buffer or chosen, chosen)
    mine = durations_us[np.searchsorted(candidates, choice.clients)]
    took_us, best_us = (int(min(np.sort(times)[waits_for - 1], longest_us)) for times in (mine, durations_us))
    regret = (took_us - best_us) / longest_us
    return choice.step, choice.time_us, chosen, len(candidates), took_us, best_us, regret


def _clients(run: Run) -> int:
    """Return the number of clients that may train."""
    if run.training_clients is None:
        raise FolderError(f"{run.folder / CONFIG}: task.clients: expected a number of at least 1, found none")
    return run.training_clients


def _sizes(run: Run, n: int) -> Ints:
    """Return [n] the clients' training samples."""
    path = run.folder / CLIENTS
    table = read_parquet(path, FolderError, CLIENT_FACTS.names).sort_by("client")
    client, sizes = (table[name].to_numpy().astype(np.int64) for name in CLIENT_FACTS.names)
    if not np.array_equal(client, np.arange(n)) or (sizes < 0).any():
        raise FolderError(f"{path}: expected a row with at least 0 samples for each of {n:,} clients")
    return np.asarray(sizes)


def _parameters(run: Run, download_bytes: Ints) -> int:
    """Return the number of the model's parameters; without a model, as many as the largest download has room for."""
    path = run.folder / MODEL
    if not path.is_file():
        return int(download_bytes.max(initial=0)) // 4
    try:
        with safe_open(path, framework="numpy") as tensors:
            return int(tensors.get_slice("params").get_shape()[0])
    except (SafetensorError, OSError) as error:
        raise FolderError(f"{path}: not readable: {error}") from error


def _config(run: Run) -> RunConfig:
    """Return the part of a run's configuration that decides how long jobs take.

    Other tables are not read: opening a folder must not run code that the folder names.
    """
    file, raw = run.folder / CONFIG, {name: run.config[name] for name in _COPIED if name in run.config}
    for kind in ("client", "adversary"):
        tables = raw.get(kind, {})
        for table in tables if isinstance(tables, list) else [tables]:
            name = table.get("name") if isinstance(table, dict) else None
            if name is not None and name not in plugins.names(kind):
                raise FolderError(f"{file}: {kind}.name: expected one of the installed, found {name!r}")
    if run.config.get("cost", {}).get("reference_flops") is not None:
        raise ConfigError(
            "cost.reference_flops: times depend on the model's operations, which the folder lacks"
        )
    if run.config.get("dropout", {}).get("partial"):
        raise ConfigError(
            "dropout.partial: the deadline shortens jobs, so that their times depend on the choice"
        )
    train = run.config.get("train", {})
    kept = {name: train[name] for name in ("epochs", "batch_size") if name in train}
    task = {"name": "synthetic", "clients": _clients(run)}
    rest = {"name": "choices", "task": task, "train": kept, "stop": {"steps": 1}}
    return validated(RunConfig, raw | rest, file)
