"""Writes the tables of a run in append-only numbered parts, and merges them at the end."""

from __future__ import annotations

import errno
import math
import shutil
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError

from fedsim.common.arrow_columns import coded, column
from fedsim.common.errors import RunError
from fedsim.common.files import read_parquet, save_tensors, sync_folder, write_atomically, write_parquet
from fedsim.engine.job_table import JobTable
from fedsim.engine.record_words import STATUSES
from fedsim.engine.trainer import Pending, StepColumns, Stepped
from fedsim.records.digest import digest
from fedsim.records.file_names import MODEL, PARTS, PERSONAL, part_name
from fedsim.records.recent_rows import Measured, RecentRows
from fedsim.records.schemas import OPTIONAL, TABLES
from fedsim.records.truncation import cut_tables
from fedsim.training.evaluation import Evaluation
from fedsim.worlds.job_outcomes import PHASES

_PART_ROWS = 50_000
_PART_S = 30.0
"""Seconds between parts: a killed run loses no older records. The merged tables do not depend on it."""
_COUNTED = ("counts", "waits", "clipped", "last_accuracy")
_ENDED_EARLY = ("target", "interrupt", "error")
"""Causes that may end a run before its first update is used."""
_STEP_DEFAULTS: dict[str, Any] = {
    **dict.fromkeys(("remembered", "evicted", "blocks"), 0),
    "direction_norm": 0.0,
    **dict.fromkeys(("conflicts", "model_conflicts", "absent_conflicts"), -1),
    **dict.fromkeys(("mean_norm", "step_length", "block_conflicts_mean", "projection_removed"), math.nan),
    **dict.fromkeys(("smallest_cosine", "smallest_absent_cosine", "max_weight", "kkt_residual"), math.nan),
}
"""The values of columns of `steps` that a step does not report."""


class Recorder:
    """Buffers rows and writes them to `<folder>/parts`; `close` merges the parts into one file per table.

    Args:
        folder: the run folder.
        n_samples: training samples of the clients [K].
        job_table: the jobs of the run, of which finished ones move to the table of jobs.
        optional: the tables of `fedsim.records.schemas.OPTIONAL` to write.
        saved: the result of `save` in a checkpoint, to whose rows the folder's tables are cut; without it they are
            emptied.
    """

    def __init__(
        self,
        folder: Path,
        n_samples: NDArray[np.int64],
        job_table: JobTable,
        optional: Collection[str] = (),
        split: str = "test",
        saved: Mapping[str, Any] | None = None,
    ) -> None:
        self.folder, self._n_samples, self._job_table = folder, n_samples, job_table
        self._split = split
        self.counts: dict[str, int] = {}
        self.steps = 0
        """Recorded steps; the current one, and what follows from it, are not among them until it is waited for."""
        self.waits = 0
        self.clipped = 0
        """Updates that were shortened to the limit of `[bad_updates]`."""
        self.last_accuracy = math.nan
        self._measured = False
        """Whether the global model was evaluated on at least one client."""
        self._recent: RecentRows | None = None
        """None until an observer asks for recent rows."""
        names = [name for name in TABLES if name in optional or name not in OPTIONAL]
        self._tables: dict[str, list[pa.Table]] = {name: [] for name in names}
        """Buffered rows."""
        self._rows = dict.fromkeys(names, 0)
        """Number of written rows."""
        self._parts = dict.fromkeys(names, 0)
        self._steps: list[StepColumns] = []
        self._flushed = monotonic()
        self._settled = 0
        """Number of ended jobs when the previous step was recorded."""
        self._step: tuple[Pending[Stepped], NDArray[np.int64]] | None = None
        self._evaluations: list[tuple[int, int, str, Pending[Evaluation]]] = []
        if saved is None:
            cut_tables(folder, {})
        else:
            self._load(saved)

    def save(self) -> dict[str, Any]:
        """Write all rows, and return the remaining state for a checkpoint. Waits for the current step.

        The last evaluation is not written, since an evaluation of all clients may still replace it.
        """
        self.crowded()
        return {
            "rows": dict(self._rows),
            "evaluations": [[*when, asdict(result())] for *when, result in self._evaluations],
        } | {name: getattr(self, name) for name in _COUNTED}

    def _load(self, saved: Mapping[str, Any]) -> None:
        cut_tables(self.folder, saved["rows"])
        self.steps = saved["rows"]["steps"]
        self._rows |= saved["rows"]
        self._parts = {name: int(name in saved["rows"]) for name in self._tables}
        for name in _COUNTED:
            setattr(self, name, saved[name])
        for step, time_us, split, columns in saved["evaluations"]:
            evaluation = Evaluation(**columns)
            self._evaluations.append((step, time_us, split, lambda e=evaluation: e))  # type: ignore[misc]

    def step(self, result: Pending[Stepped], rows: NDArray[np.int64]) -> None:
        """Append a row to `steps`, and the ended jobs, when the next step is recorded, without waiting for `result`."""
        self.settle()
        self._step = result, rows
        if self._settled >= _PART_ROWS or monotonic() - self._flushed > _PART_S:
            self._take_jobs(self._settled)
            self._flush()
        self._settled = len(self._job_table.ended)

    def crowded(self) -> None:
        """Write all ended jobs, because the job table has become large. Waits for the current step."""
        self._settle_step()
        self._take_jobs(None)
        self._flush()
        self._settled = 0

    def evaluation(self, step: int, time_us: int, split: str, result: Pending[Evaluation]) -> None:
        """Append rows to `evals` when a later step or evaluation is recorded.

        An evaluation of the same step, time and split replaces the previous one: the last evaluation of a run, on all
        clients, may follow one on some of them.
        """
        if any(earlier != step for earlier, *_ in self._evaluations):
            self._settle_evaluations()
        self._evaluations = [e for e in self._evaluations if e[:3] != (step, time_us, split)]
        self._evaluations.append((step, time_us, split, result))

    def recent_rows(self) -> RecentRows:
        """Return the rows recorded since the last call; the first call returns none."""
        recent_rows, self._recent = self._recent, RecentRows()
        return recent_rows or RecentRows()

    def settle(self) -> None:
        """Wait for the current step and evaluations, and append them."""
        self._settle_step()
        self._settle_evaluations()

    def _settle_step(self) -> None:
        pending, self._step = self._step, None
        if pending is None:
            return
        result, rows = pending
        stepped = result()
        self._job_table.hear(rows, stepped.reports)
        columns = _STEP_DEFAULTS | stepped.columns
        for table, name in (("conflicts", "each"), ("audit", "audited")):
            if table in self._tables and name in columns:
                k = len(columns[name]["client"])
                step_and_time = {key: np.full(k, columns[key]) for key in ("step", "time_us")}
                self._append(table, step_and_time | columns[name])
        self.waits += int(columns["waits"])
        self.clipped += int(columns.get("clipped", 0))
        self._steps.append(columns)
        self.steps += 1
        if self._recent:
            self._recent.steps.append(columns)

    def _settle_evaluations(self) -> None:
        # An evaluation after a step that was not recorded is of a model that the records do not know.
        pending = [evaluation for evaluation in self._evaluations if evaluation[0] <= self.steps]
        self._evaluations = []
        for step, time_us, split, result in pending:
            evaluation = result()
            accuracy, k = evaluation.accuracy, len(evaluation.clients)
            if self._recent:
                self._recent.evaluations.append(Measured(step, time_us, split, evaluation))
            if split == self._split:
                self.last_accuracy = float(accuracy.mean()) if k else math.nan
                self._measured = k > 0
            columns = {
                "step": np.full(k, step),
                "time_us": np.full(k, time_us),
                "client": evaluation.clients,
                "split": coded(np.zeros(k, dtype=np.int64), (split,)),
                "n": evaluation.n,
                "correct": evaluation.correct,
                "accuracy": accuracy,
                "loss": evaluation.loss,
            }
            self._append("evals", columns)

    def _append(self, table: str, columns: Mapping[str, Any]) -> None:
        arrays = [column(columns[field.name], field.type) for field in TABLES[table]]
        self._tables[table].append(pa.Table.from_arrays(arrays, schema=TABLES[table]))

    def _take_jobs(self, count: int | None) -> None:
        """Move the first `count` ended jobs, whose reports are complete, from the job table to the buffer."""
        jobs = self._job_table.take(count)
        if not len(jobs):
            return
        for status, n in zip(*np.unique(jobs["status"], return_counts=True), strict=True):
            self.counts[STATUSES[status]] = self.counts.get(STATUSES[status], 0) + int(n)
        download, compute, end, step = (jobs[n] for n in ("download_us", "compute_us", "end_us", "step"))
        self._append(
            "jobs",
            {name: jobs[name] for name in jobs.dtype.names or ()}
            | {
                "job": jobs["id"],
                "status": coded(jobs["status"], STATUSES),
                "phase": coded(jobs["phase"], PHASES),
                "staleness": np.where(step >= 0, step - jobs["version"], -1),
                "n_samples": self._n_samples[jobs["client"]],
                "download_bytes": jobs["downloaded_bytes"],
                "upload_bytes": jobs["uploaded_bytes"],
                "computing_us": np.where(download < 0, 0, np.where(compute >= 0, compute, end) - download),
            },
        )

    def _take_steps(self) -> None:
        if self._steps:
            names = [field.name for field in TABLES["steps"]]
            steps, self._steps = self._steps, []
            self._append("steps", {name: [row[name] for row in steps] for name in names})

    def warning(self, ended_by: str) -> str | None:
        """Return why the records of a run that was ended so say nothing about learning; None if they do."""
        if not {"aggregated", "remembered"} & set(self.counts):
            if self.counts.get("nonfinite"):
                return "no usable update"
            if ended_by not in _ENDED_EARLY:
                return "no update used"
        return "accuracy is no number" if self._measured and math.isnan(self.last_accuracy) else None

    def _flush(self) -> None:
        self._take_steps()
        for table, pieces in self._tables.items():
            if pieces:
                path = self.folder / PARTS / part_name(table, self._parts[table])
                write_parquet(path, TABLES[table], [pa.concat_tables(pieces)])
                self._parts[table] += 1
                self._rows[table] += sum(map(len, pieces))
                pieces.clear()
        self._flushed = monotonic()

    def close(self, params: Mapping[str, torch.Tensor] | None) -> str | None:
        """Write `<table>.parquet` and the model, and return the digest (None without a model).

        The tables replace the parts together, after all of them are written.
        """
        self._take_jobs(None)
        self._take_steps()
        self._merge()
        if params is None:
            return None
        personal = {name: params[name] for name in params if name.startswith("personal")}
        shared = {name: params[name] for name in params if name not in personal}
        write_atomically(self.folder / MODEL, partial(_save, shared))
        if personal:
            write_atomically(self.folder / PERSONAL, partial(_save, personal))
        return digest(self.folder, params)

    def _pieces(self, table: str) -> Iterator[pa.Table]:
        """Yield the written parts of a table, and then its buffered rows."""
        for part in range(self._parts[table]):
            yield read_parquet(self.folder / PARTS / part_name(table, part), RunError)
        if pieces := self._tables[table]:
            yield pa.concat_tables(pieces)

    def _merge(self) -> None:
        parts = self.folder / PARTS
        merged = {table: parts / f"{table}.parquet" for table in self._tables}
        try:
            for table, path in merged.items():
                write_parquet(path, TABLES[table], self._pieces(table))
        except RunError:  # a full disk may still have room for the buffered rows
            for path in merged.values():
                path.unlink(missing_ok=True)
            with suppress(RunError):
                self._flush()
            raise
        for path in merged.values():
            path.replace(self.folder / path.name)
        sync_folder(self.folder)
        shutil.rmtree(parts)


def _save(tensors: dict[str, torch.Tensor], path: Path) -> None:
    try:
        save_tensors(tensors, path)
    except SafetensorError as error:  # the only sign of a full disk is in its message
        raise OSError(errno.ENOSPC if "os error 28" in str(error) else errno.EIO, str(error)) from error
