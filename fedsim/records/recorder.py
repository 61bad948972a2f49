"""Writing a run folder: tables in append-only numbered parts, put together at the end."""

from __future__ import annotations

import errno
import hashlib
import math
import shutil
from collections.abc import Collection, Mapping, Sequence
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
from safetensors.torch import save_file

from fedsim.common.arrow_columns import array, coded, column
from fedsim.common.errors import RunError
from fedsim.common.files import parquet_writer, read_parquet, sync_folder, write_atomically
from fedsim.engine.job_table import JobTable
from fedsim.engine.record_words import PERSONAL, STATUSES
from fedsim.engine.trainer import Pending, StepColumns, Stepped
from fedsim.records.recent_rows import Measured, RecentRows
from fedsim.records.schemas import OPTIONAL, PARTS, TABLES, part_name
from fedsim.records.truncation import cut_tables
from fedsim.training.evaluation import Evaluation
from fedsim.worlds.job_outcomes import PHASES

_PART_ROWS = 50_000
_PART_S = 30.0
"""A run that is killed loses at most this many seconds of records; the merged tables do not depend on it."""
_COUNTED = ("counts", "waits", "clipped", "last_accuracy")
_STEP_DEFAULTS: dict[str, Any] = {
    "remembered": 0,
    "evicted": 0,
    "mean_norm": float("nan"),
    "direction_norm": 0.0,
    "step_length": float("nan"),
    "conflicts": -1,
    "model_conflicts": -1,
    "block_conflicts_mean": float("nan"),
    "absent_conflicts": -1,
    "smallest_cosine": float("nan"),
    "smallest_absent_cosine": float("nan"),
    "projection_removed": float("nan"),
    "max_weight": float("nan"),
    "kkt_residual": float("nan"),
    "blocks": 0,
}


class Recorder:
    """Buffers what happens and writes it to `<folder>/parts`; `close` puts it together in one file per table.

    Args:
        optional: which of `fedsim.records.schemas.OPTIONAL` to write.
        saved: what `save` returned in an earlier process; the folder's tables are cut to what they held then, without
            it to nothing.
    """

    def __init__(
        self,
        folder: Path,
        n_samples: NDArray[np.int64],
        job_table: JobTable,
        optional: Collection[str] = (),
        saved: Mapping[str, Any] | None = None,
    ) -> None:
        self.folder = folder
        self._n_samples, self._ledger = n_samples, job_table
        self.counts: dict[str, int] = {}
        self.waits = 0
        self.clipped = 0
        """Updates that were shortened to the limit of `[bad_updates]`."""
        self.last_accuracy = float("nan")
        self._measured = False
        """Whether the global model was evaluated on at least one client."""
        self._news: RecentRows | None = None
        """Nothing is kept for a watcher before one asks."""
        self._tables: dict[str, list[pa.Table]] = {
            name: [] for name in TABLES if name in optional or name not in OPTIONAL
        }
        self._rows = dict.fromkeys(self._tables, 0)
        """Rows that are written."""
        self._parts = dict.fromkeys(self._tables, 0)
        self._steps: list[StepColumns] = []
        self._flushed = monotonic()
        self._settled = 0
        """How many of the jobs that ended had done so when the step before was recorded."""
        self._step: tuple[Pending[Stepped], NDArray[np.int64]] | None = None
        self._evaluations: list[tuple[int, int, str, Pending[Evaluation]]] = []
        if saved is None:
            cut_tables(folder, {})
        else:
            self._load(saved)

    def save(self) -> dict[str, Any]:
        """Write everything that has happened, and return the rest for a checkpoint: waits for the step under way.

        The last evaluation is not written, as one of all clients may still take its place.
        """
        self._settle_step()
        self._take_jobs(None)
        self._flush()
        self._settled = 0
        return {
            "rows": dict(self._rows),
            "evaluations": [[*when, asdict(result())] for *when, result in self._evaluations],
        } | {name: getattr(self, name) for name in _COUNTED}

    def _load(self, saved: Mapping[str, Any]) -> None:
        cut_tables(self.folder, saved["rows"])
        self._rows |= saved["rows"]
        self._parts = {name: int(name in saved["rows"]) for name in self._tables}
        for name in _COUNTED:
            setattr(self, name, saved[name])
        for step, time_us, split, found in saved["evaluations"]:
            evaluation = Evaluation(**found)
            self._evaluations.append((step, time_us, split, lambda e=evaluation: e))  # type: ignore[misc]

    def step(self, result: Pending[Stepped], rows: NDArray[np.int64]) -> None:
        """Append a row to `steps`, and the jobs that ended, once the next step is recorded: nobody waits for it."""
        self.settle()
        self._step = result, rows
        if self._settled >= _PART_ROWS or monotonic() - self._flushed > _PART_S:
            self._take_jobs(self._settled)
            self._flush()
        self._settled = len(self._ledger.ended)

    def crowded(self) -> None:
        """Write the jobs that ended."""
        self._settle_step()
        self._take_jobs(None)
        self._flush()
        self._settled = 0

    def evaluation(self, step: int, time_us: int, split: str, result: Pending[Evaluation]) -> None:
        """Append rows to `evals` once the next step or evaluation is recorded.

        One of the same model at the same instant on the same split takes the place of the one before: the last
        evaluation of a run, on all clients, may follow one on some of them.
        """
        if any(earlier != step for earlier, *_ in self._evaluations):
            self._settle_evaluations()
        self._evaluations = [e for e in self._evaluations if e[:3] != (step, time_us, split)]
        self._evaluations.append((step, time_us, split, result))

    def recent_rows(self) -> RecentRows:
        """Return what was recorded since this was last asked; it is kept from the first time on."""
        recent_rows, self._news = self._news, RecentRows()
        return recent_rows or RecentRows()

    def settle(self) -> None:
        """Wait for what is still under way and append it."""
        self._settle_step()
        self._settle_evaluations()

    def _settle_step(self) -> None:
        pending, self._step = self._step, None
        if pending is None:
            return
        result, rows = pending
        stepped = result()
        self._ledger.hear(rows, stepped.reports)
        columns = _STEP_DEFAULTS | stepped.columns
        for table, name in (("conflicts", "each"), ("audit", "audited")):
            if table in self._tables and name in columns:
                many = len(columns[name]["client"])
                when = {key: np.full(many, columns[key]) for key in ("step", "time_us")}
                self._append(table, when | columns[name])
        self.waits += int(columns["waits"])
        self.clipped += int(columns.get("clipped", 0))
        self._steps.append(columns)
        if self._news:
            self._news.steps.append(columns)

    def _settle_evaluations(self) -> None:
        pending, self._evaluations = self._evaluations, []
        for step, time_us, split, result in pending:
            self._append_evaluation(step, time_us, split, result())

    def _append_evaluation(self, step: int, time_us: int, split: str, found: Evaluation) -> None:
        if self._news:
            self._news.evaluations.append(Measured(step, time_us, split, found))
        accuracy = found.accuracy
        if not split.endswith(PERSONAL):
            self.last_accuracy = float(accuracy.mean()) if len(accuracy) else float("nan")
            self._measured = len(accuracy) > 0
        k = len(found.clients)
        columns = {
            "step": np.full(k, step),
            "time_us": np.full(k, time_us),
            "client": found.clients,
            "split": coded(np.zeros(k, dtype=np.int64), (split,)),
            "n": found.n,
            "correct": found.correct,
            "accuracy": accuracy,
            "loss": found.loss,
        }
        self._append("evals", columns)

    def _append(self, table: str, columns: Mapping[str, Any]) -> None:
        self._tables[table].append(_arrow(columns, TABLES[table]))

    def _take_jobs(self, count: int | None) -> None:
        """Move the first `count` jobs that ended, of which nothing is under way, from the job table to the buffer."""
        jobs = self._ledger.take(count)
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

    def warning(self) -> str | None:
        """Say why what was recorded tells nothing of learning; None if it does."""
        if self.counts.get("nonfinite") and not {"aggregated", "remembered"} & set(self.counts):
            return "no finite update"
        return "accuracy is no number" if self._measured and math.isnan(self.last_accuracy) else None

    def _flush(self) -> None:
        """Write what is buffered."""
        self._take_steps()
        for table, pieces in self._tables.items():
            if pieces:
                path = self.folder / PARTS / part_name(table, self._parts[table])
                write_atomically(path, partial(self._write, table, []))
                self._parts[table] += 1
                self._rows[table] += sum(map(len, pieces))
                pieces.clear()
        self._flushed = monotonic()

    def _write(self, table: str, parts: Sequence[Path], target: Path) -> None:
        """Write the rows of parts, and those that are buffered."""
        with parquet_writer(target, TABLES[table]) as writer:
            for part in parts:
                writer.write_table(read_parquet(part, RunError))
            if pieces := self._tables[table]:
                writer.write_table(pa.concat_tables(pieces))

    def close(self, params: Mapping[str, torch.Tensor] | None) -> str | None:
        """Write `<table>.parquet` and the model, and return the digest (None without a model).

        The tables take the place of the parts together, when all of them are written.
        """
        self._take_jobs(None)
        self._take_steps()
        parts = self.folder / PARTS
        whole = {table: parts / f"{table}.parquet" for table in self._tables}
        try:
            for table, path in whole.items():
                pieces = [parts / part_name(table, part) for part in range(self._parts[table])]
                write_atomically(path, partial(self._write, table, pieces))
        except RunError:  # on a full disk there may be room for parts
            for path in whole.values():
                path.unlink(missing_ok=True)
            with suppress(RunError):
                self._flush()
            raise
        for path in whole.values():
            path.replace(self.folder / path.name)
        sync_folder(self.folder)
        shutil.rmtree(self.folder / PARTS)
        if params is None:
            return None
        own = {name: params[name] for name in params if name.startswith("personal")}
        shared = {name: params[name] for name in params if name not in own}
        write_atomically(self.folder / "model.safetensors", lambda beside: _save(shared, beside))
        if own:
            write_atomically(self.folder / "personal.safetensors", lambda beside: _save(own, beside))
        return digest(self.folder, params)


def _arrow(columns: Mapping[str, Any], schema: pa.Schema) -> pa.Table:
    """Return the columns of a table."""
    arrays = [column(columns[field.name], field.type) for field in schema]
    return pa.Table.from_arrays(arrays, schema=schema)


def digest(folder: Path, params: Mapping[str, torch.Tensor]) -> str:
    """Return the sha256 over the tables `jobs`, `steps`, `evals`, those of `conflicts` and `audit` that were
    written, and the final model.

    Each table counts as its name, its number of rows and, column by column in the order of the schema, the column's
    name and its values: words as UTF-8 with a zero byte after each, numbers as little-endian bytes. The model counts as
    the name and the values of each tensor. The layout of the files does not count.
    """
    total = hashlib.sha256()
    for name, schema in TABLES.items():
        if not (folder / f"{name}.parquet").exists():
            continue
        table = read_parquet(folder / f"{name}.parquet", RunError)
        total.update(f"{name}:{len(table)}:".encode())
        for field in schema:
            total.update(f"{field.name}:".encode())
            total.update(_value_bytes(table[field.name], field.type))
    for name in sorted(params):
        total.update(f"{name}:".encode())
        total.update(params[name].contiguous().numpy().tobytes())
    return total.hexdigest()


def _value_bytes(values: pa.ChunkedArray, kind: pa.DataType) -> bytes:
    if pa.types.is_dictionary(kind):
        whole = values.cast(kind).unify_dictionaries().combine_chunks()
        words = np.array([word.encode() + b"\0" for word in whole.dictionary.to_pylist()], dtype=object)
        codes = array(whole.indices)
        ends = np.append(np.flatnonzero(codes[1:] != codes[:-1]) + 1, len(codes))
        if len(ends) * 4 > len(codes):
            return b"".join(words[codes])
        return b"".join(words[codes[ends - 1]] * np.diff(ends, prepend=0))
    plain = array(values)
    return np.ascontiguousarray(plain, dtype=plain.dtype.newbyteorder("<")).tobytes()


def _save(tensors: dict[str, torch.Tensor], path: Path) -> None:
    try:
        save_file(tensors, path)
    except SafetensorError as error:  # what it says of a full disk
        raise OSError(errno.ENOSPC if "os error 28" in str(error) else errno.EIO, str(error)) from error
