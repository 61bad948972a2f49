"""Tables are written in parts, merged, and covered by the digest."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from fedsim.common.errors import RunError
from fedsim.engine.job_table import JobTable
from fedsim.engine.trainer import Stepped
from fedsim.records.digest import digest
from fedsim.records.recorder import Recorder
from fedsim.records.schemas import TABLES
from fedsim.training.evaluation import Evaluation
from fedsim.training.job import Report, Reports

MODEL = {"params": torch.arange(4.0)}


def filled(folder: Path, jobs: int = 7) -> Recorder:
    folder.mkdir()
    job_table = JobTable(4)
    recorder = Recorder(folder, np.array([1, 2, 3]), job_table)
    for number in range(jobs):
        row = job_table.open_one((number, 2, 0, 1), 0, 10, (20, 30, 40, True, 0, 5, 6), 0.25)
        job_table.end([row], "aggregated", 3)
        step = {"step": number, "time_us": 40, "cause": "full", "updates": 1, "status": "applied", "waits": 1}
        rest = dict.fromkeys(("lost", "late", "nonfinite", "online", "in_flight", "mean_staleness"), 0)
        stepped = Stepped(step | rest, Reports.of([Report(0.5, 0.25)]))
        recorder.step(lambda stepped=stepped: stepped, np.array([row]))  # type: ignore[misc]
    found = Evaluation(np.array([0, 2]), np.array([4, 2]), np.array([1, 2]), np.array([0.1, 0.2]))
    recorder.evaluation(0, 0, "test", lambda: found)
    recorder.settle()
    return recorder


def test_tables_hold_the_recorded_rows(tmp_path: Path) -> None:
    recorder = filled(tmp_path / "run")
    recorder.close(MODEL)
    jobs = pq.read_table(tmp_path / "run" / "jobs.parquet")
    assert jobs.schema.names == TABLES["jobs"].names
    assert jobs.to_pylist()[1] == {
        "job": 1,
        "client": 2,
        "version": 1,
        "status": "aggregated",
        "phase": "",
        "step": 3,
        "staleness": 2,
        "dispatch_us": 10,
        "download_us": 20,
        "compute_us": 30,
        "end_us": 40,
        "n_samples": 3,
        "loss_before": 0.5,
        "loss_train": 0.25,
        "download_bytes": 5,
        "upload_bytes": 6,
        "computing_us": 10,
        "share": 1.0,
        "attempt": 0,
        "inclusion": 0.25,
    }
    evals = pq.read_table(tmp_path / "run" / "evals.parquet").to_pylist()
    assert [(e["client"], e["accuracy"]) for e in evals] == [(0, 0.25), (2, 1.0)]
    assert recorder.counts == {"aggregated": 7}
    assert recorder.waits == 7
    assert recorder.last_accuracy == 0.625
    assert not (tmp_path / "run" / "parts").exists()


def test_the_digest_covers_values_and_not_the_layout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = filled(tmp_path / "a").close(MODEL)
    monkeypatch.setattr("fedsim.records.recorder._PART_ROWS", 2)
    assert filled(tmp_path / "b").close(MODEL) == first
    table = pq.read_table(tmp_path / "b" / "jobs.parquet")
    pq.write_table(table, tmp_path / "b" / "jobs.parquet", row_group_size=3, compression="none")
    assert digest(tmp_path / "b", MODEL) == first


def test_any_changed_value_changes_the_digest(tmp_path: Path) -> None:
    first = filled(tmp_path / "a").close(MODEL)
    assert filled(tmp_path / "b", jobs=6).close(MODEL) != first
    assert digest(tmp_path / "a", {"params": torch.tensor([0.0, 1.0, 2.0, 3.0000002])}) != first
    path = tmp_path / "a" / "steps.parquet"
    table = pq.read_table(path)
    column = table.column_names.index("online")
    pq.write_table(table.set_column(column, table.schema.field(column), table["lost"].combine_chunks()), path)
    assert digest(tmp_path / "a", MODEL) == first, "equal values, written again"
    changed = np.array(table["waits"]) + np.array([0] * 6 + [1], dtype=np.int32)
    column = table.column_names.index("waits")
    pq.write_table(table.set_column(column, table.schema.field(column), [changed]), path)
    assert digest(tmp_path / "a", MODEL) != first


def test_buffered_rows_become_a_part_if_the_disk_is_too_full_for_merged_tables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = filled(tmp_path / "run")
    real = pq.ParquetWriter

    def write(where: Path, *options: Any, **more: Any) -> pq.ParquetWriter:
        if "-0" not in where.name:
            raise OSError("no room")
        return real(where, *options, **more)

    monkeypatch.setattr(pq, "ParquetWriter", write)
    with pytest.raises(RunError, match=r"jobs.parquet: cannot be written: no room"):
        recorder.close(MODEL)
    names = {path.name for path in (tmp_path / "run").rglob("*.parquet")}
    assert names == {"jobs-00000.parquet", "steps-00000.parquet", "evals-00000.parquet"}
    assert len(pq.read_table(tmp_path / "run" / "parts" / "jobs-00000.parquet")) == 7


def test_many_jobs_without_a_step_leave_an_evaluation_that_another_may_replace(tmp_path: Path) -> None:
    recorder = filled(tmp_path / "run")
    some, everybody = (
        Evaluation(np.arange(k), np.full(k, 4), np.full(k, 1), np.full(k, 0.5)) for k in (1, 3)
    )
    recorder.evaluation(5, 90, "test", lambda: some)
    recorder.crowded()
    recorder.evaluation(5, 90, "test", lambda: everybody)
    recorder.settle()
    recorder.close(MODEL)
    evals = pq.read_table(tmp_path / "run" / "evals.parquet").to_pandas()
    assert evals.client[evals.step == 5].tolist() == [0, 1, 2]
