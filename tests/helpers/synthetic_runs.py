"""Run folders made up for tests: written with Arrow alone, as the engine would have left them."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from fedsim.records.schemas import EVALS, JOBS, STEPS, TABLES

US = 1_000_000
CONFIG = 'name = "made-up"\nseed = 3\n\n[world]\nscenario = "churn"\n\n[algorithm]\nname = "fedavg"\n'


def write_run(
    folder: Path, *, parts: int = 0, tables: Mapping[str, pa.Table] | None = None, **manifest: Any
) -> Path:
    """Write a run folder; with `parts` its tables lie as that many numbered parts, as after a kill."""
    folder.mkdir(parents=True)
    (folder / "config.resolved.toml").write_text(CONFIG, encoding="utf-8")
    (folder / "manifest.json").write_text(
        json.dumps(MANIFEST | {"label": folder.name} | manifest), encoding="utf-8"
    )
    given = {name: schema.empty_table() for name, schema in TABLES.items()} | dict(tables or {})
    if parts:
        (folder / "parts").mkdir()
    for name, table in given.items():
        for path, rows in _files(folder, name, table, parts):
            pq.write_table(rows, path)
    return folder


def _files(folder: Path, name: str, table: pa.Table, parts: int) -> list[tuple[Path, pa.Table]]:
    if not parts:
        return [(folder / f"{name}.parquet", table)]
    size = math.ceil(max(len(table), 1) / parts)
    return [(folder / "parts" / f"{name}-{i:05d}.parquet", table.slice(i * size, size)) for i in range(parts)]


MANIFEST: dict[str, Any] = {
    "name": "made-up",
    "status": "done",
    "error": None,
    "seed": 3,
    "versions": {"fedsim": "0.1.0", "torch": "2.8.0"},
    "hardware": {"cpu": "some cpu", "cores": 4, "memory_bytes": 8 * 2**30, "gpu": None},
    "workers": 2,
    "device": "cpu",
    "memory": {"predicted_bytes": {"server": 10, "total": 2**20}, "peak_bytes": 2**19},
    "wall_s": {"total": 12.5, "train": 10.0, "evaluate": 2.0},
    "digest": "ab" * 32,
    "ended_by": "steps",
    "virtual_us": 7200 * US,
    "steps": 3,
    "jobs": {"aggregated": 3},
    "waits": 0,
    "rule": "fedavg",
    "started": "2025-01-01T00:00:00",
}


def evals_table(
    accuracy: Any, *, n: int | Any = 20, split: str = "test", every_us: int = 3600 * US
) -> pa.Table:
    """Return evaluations of `accuracy` [evaluations, K]; the clients' `correct` is accuracy times n."""
    values = np.asarray(accuracy, dtype=np.float64)
    times, k = values.shape
    samples = np.broadcast_to(np.asarray(n, dtype=np.int32), (times, k)).ravel()
    step = np.repeat(np.arange(times, dtype=np.int32), k)
    columns: dict[str, Any] = {
        "step": step,
        "time_us": step.astype(np.int64) * every_us,
        "client": np.tile(np.arange(k, dtype=np.int32), times),
        "split": np.full(times * k, split),
        "n": samples,
        "correct": np.rint(np.nan_to_num(values).ravel() * samples).astype(np.int32),
        "accuracy": values.ravel(),
        "loss": 1 - values.ravel(),
    }
    return _table(columns, EVALS)


def jobs_table(**given: Any) -> pa.Table:
    """Return jobs with the given columns (arrays of one length, `dispatch_us` and `end_us` among them)."""
    rows = len(given["dispatch_us"])
    defaults: dict[str, Any] = {
        "job": np.arange(rows),
        "client": np.zeros(rows),
        "status": np.full(rows, "aggregated"),
        "phase": np.full(rows, ""),
        "n_samples": np.full(rows, 20),
        "loss_before": np.full(rows, np.nan),
        "loss_train": np.full(rows, 1.0),
    }
    filled = (
        {name: np.zeros(rows) for name in JOBS.names}
        | defaults
        | {k: np.asarray(v) for k, v in given.items()}
    )
    return _table(filled, JOBS)


def steps_table(**given: Any) -> pa.Table:
    """Return steps with the given columns (arrays of one length, `time_us` among them)."""
    rows = len(given["time_us"])
    defaults: dict[str, Any] = {
        "step": np.arange(rows),
        "status": np.full(rows, "applied"),
        "cause": np.full(rows, "full"),
    }
    filled = (
        {name: np.zeros(rows) for name in STEPS.names}
        | defaults
        | {k: np.asarray(v) for k, v in given.items()}
    )
    return _table(filled, STEPS)


def world_table(sessions: Any, *, clients: int, horizon_us: int, after_end: str = "stop") -> pa.Table:
    """Return a trace with the online sessions `[(client, start_us, end_us), ...]`."""
    rows = np.asarray(sessions, dtype=np.int64).reshape(-1, 3)
    metadata = {
        "fedsim.schema_version": "1",
        "fedsim.source": "made up",
        "fedsim.horizon_us": str(horizon_us),
        "fedsim.after_end": after_end,
        "fedsim.origin": "",
        "fedsim.clients": str(clients),
    }
    columns = {
        "client": pa.array(rows[:, 0], pa.int32()),
        "start_us": pa.array(rows[:, 1]),
        "end_us": pa.array(rows[:, 2]),
        "kind": pa.array(np.full(len(rows), "online")).dictionary_encode(),
        "value": pa.array(np.ones(len(rows))),
    }
    return pa.table(columns).replace_schema_metadata(metadata)


def _table(columns: Mapping[str, Any], schema: pa.Schema) -> pa.Table:
    arrays = [_array(columns[field.name], field.type) for field in schema]
    return pa.Table.from_arrays(arrays, schema=schema)


def _array(values: Any, kind: pa.DataType) -> pa.Array:
    if pa.types.is_dictionary(kind):
        return pa.array(np.asarray(values).astype(str), pa.string()).cast(kind)
    return pa.array(np.asarray(values)).cast(kind)
