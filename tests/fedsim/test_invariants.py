"""Each invariant holds of sound runs, and names what is wrong with one of which a copy was changed."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from safetensors.numpy import load_file, save_file

import inputs
from fedsim.common.errors import FolderError
from fedsim.config.load import load_config
from fedsim.invariants import Verdict, check, invariants
from fedsim.records.schemas import CLIENT_FACTS, TABLES
from fedsim.runs.progress import Progress
from fedsim.runs.simulate import simulate
from fedsim.worlds.trace import read_trace
from small import run, small

Columns = dict[str, Any]
LIVELY = {"dropout": {"chance": 0.2, "retries": 1, "notice": "10s"}, "stop": {"steps": 10}}
CONFIGS: dict[str, dict[str, Any]] = {
    "buffered": {
        "pacing": {"preset": "fedbuff", "concurrency": 6, "buffer": 3, "max_staleness": 2},
        "algorithm": {"name": "fedlf", "absent": "all"},
        "record": {"conflicts": "layers"},
        "audit": {"every": 3, "clients": 10},
        "evaluate": {"every_steps": 2, "split": "train"},
        **LIVELY,
    },
    "deadline": {
        "pacing": {"preset": "deadline", "clients": 5, "deadline": "60s", "minimum": 2},
        "algorithm": {"name": "fedmgda"},
        "record": {"conflicts": "model"},
        **LIVELY,
    },
    "history": {
        "pacing": {"preset": "deadline", "clients": 5, "deadline": "30s", "late": "history"},
        "record": {"conflicts": "layers"},
        "stop": {"steps": 10},
    },
    "model": {
        "pacing": {"preset": "sync", "clients": 4},
        "algorithm": {"name": "fedmdfg"},
        "record": {"conflicts": "model"},
        "stop": {"steps": 2},
    },
    "columns": {
        "pacing": {"preset": "fedbuff", "concurrency": 6, "buffer": 3},
        "algorithm": {"name": "coordinate_median", "wrap": [{"name": "with_absent"}]},
        "record": {"conflicts": "layers"},
        **LIVELY,
    },
    "target": {
        "pacing": {"preset": "sync", "clients": 4},
        "algorithm": {"name": "fedavg"},
        "stop": {"steps": 10, "target": 30.0, "bytes": "10 GB"},
        "evaluate": {"every_steps": 1},
    },
    "stalled": {
        "pacing": {"preset": "sync", "clients": 4},
        "algorithm": {"name": "fedavg"},
        "stop": {"steps": 10, "metric": "loss", "split": "train", "patience": 2, "least": 1000.0},
        "evaluate": {"every_steps": 1, "also": ["train"]},
    },
    "late": {
        "pacing": {"preset": "deadline", "clients": 6, "deadline": "20s", "late": "history"},
        "algorithm": {"name": "fedfv", "tau": 1},
        "stop": {"steps": 20},
    },
    "partial": {
        "pacing": {"preset": "deadline", "clients": 6, "deadline": "40s"},
        "algorithm": {"name": "fedavg"},
        "train": {"batch_size": 10, "epochs": 2},
        "cost": {
            "payload": "1 MB",
            "compute_scale": 20,
            "completeness": {"mode": "epochs", "low": 1, "high": 3},
        },
        "dropout": {"partial": True},
        "stop": {"steps": 10},
    },
    "unseen": {
        "task": {"name": "digits", "clients": 12, "unseen": 3},
        "client": {"name": "ditto"},
        "evaluate": {"every_steps": 2, "clients": 2},
        **LIVELY,
    },
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Runs in which jobs are used, lost, late, stale and void."""
    out = tmp_path_factory.mktemp("runs")
    return {name: run(small(**changes), out / name).folder for name, changes in CONFIGS.items()}


def columns(folder: Path, table: str) -> Columns:
    """Return a table's columns as arrays, words as objects."""
    found = pq.read_table(folder / f"{table}.parquet")
    return {name: np.array(found[name].to_pylist()) for name in found.column_names}


def changed(folder: Path, out: Path, table: str, change: Callable[[Columns], object]) -> Verdict:
    """Check a copy of a run in which one table was changed."""
    copy = shutil.copytree(folder, out / "copy")
    cells = columns(copy, table)
    change(cells)
    schema = (TABLES | {"clients": CLIENT_FACTS})[table]
    arrays = [
        pa.array(cells[f.name].tolist(), pa.string()).dictionary_encode().cast(f.type)
        if pa.types.is_dictionary(f.type)
        else pa.array(cells[f.name], f.type)
        for f in schema
    ]
    pq.write_table(pa.Table.from_arrays(arrays, schema=schema), copy / f"{table}.parquet")
    return check(copy)


def names(verdict: Verdict) -> set[str]:
    return {violation.invariant for violation in verdict.violations}


@pytest.mark.parametrize("name", CONFIGS)
def test_a_sound_run_passes(name: str, runs: dict[str, Path]) -> None:
    verdict = check(runs[name])
    assert verdict.violations == ()
    assert {*verdict.checked, *verdict.unchecked} == {each.name for each in invariants()}


def test_the_runs_have_late_jobs_of_no_use_and_jobs_of_more_than_the_usual_epochs(
    runs: dict[str, Path],
) -> None:
    assert {"remembered", "stale"} <= set(columns(runs["late"], "jobs")["status"])
    shares = columns(runs["partial"], "jobs")["share"]
    assert (shares == 1).any()
    assert (shares > 1).any()


def test_each_invariant_is_checked_in_some_run(runs: dict[str, Path]) -> None:
    checked = {name for folder in runs.values() for name in check(folder).checked}
    assert checked == {each.name for each in invariants()}


def test_the_runs_have_what_the_changes_need(runs: dict[str, Path]) -> None:
    statuses = {name: set(columns(folder, "jobs")["status"]) for name, folder in runs.items()}
    assert {"aggregated", "lost", "stale", "unfinished"} <= statuses["buffered"]
    assert {"aggregated", "late", "lost"} <= statuses["deadline"]
    assert "remembered" in statuses["history"]
    assert json.loads((runs["target"] / "manifest.json").read_text())["ended_by"] == "target"


@dataclass(frozen=True)
class Change:
    """How to break a run, and what says so."""

    run: str
    table: str
    column: str
    which: Callable[[Columns], Any]
    """The rows to change, of which the first is taken."""
    by: Any
    """The value to put there, or a function of the one before."""


def _is(status: str) -> Callable[[Columns], Any]:
    return lambda c: c["status"] == status


def _of(split: str) -> Callable[[Columns], Any]:
    return lambda c: c["split"] == split


def _any(c: Columns) -> Any:
    return next(iter(c.values())) == next(iter(c.values()))


def _again(c: Columns) -> Any:
    """Jobs of clients that had one before, and whose second one began right at the end of the first."""
    seen: set[int] = set()
    order = np.argsort(c["job"])
    found = np.zeros(len(order), dtype=bool)
    for row in order.tolist():
        found[row] = c["client"][row] in seen and c["status"][row] == "aggregated"
        seen.add(c["client"][row])
    return found


def _held(c: Columns) -> Any:
    return c["age"] > 0


def _remembered(c: Columns) -> Any:
    return (c["age"] > 0) & (c["block"] == -1)


CHANGES: dict[str, list[Change]] = {
    "values of jobs are valid": [
        Change("buffered", "jobs", "client", _any, 99),
        Change("unseen", "jobs", "client", _any, 9),
        Change("buffered", "jobs", "status", _any, "applied"),
        Change("buffered", "jobs", "share", _any, np.nan),
        Change("deadline", "jobs", "share", _any, -0.5),
    ],
    "each job has exactly one row": [Change("buffered", "jobs", "job", lambda c: c["job"] == 3, 4)],
    "values of steps are valid": [Change("buffered", "steps", "step", lambda c: c["step"] == 3, 4)],
    "values of conflict rows are valid": [Change("buffered", "conflicts", "cosine", _any, 1.5)],
    "values of evaluations are valid": [
        Change("buffered", "evals", "correct", _any, 10**6),
        Change("buffered", "evals", "client", _any, 99),
        Change("unseen", "evals", "client", _any, 12),
        Change("unseen", "evals", "split", _any, "train_unseen"),
    ],
    "jobs are numbered in order of dispatch": [
        Change("buffered", "jobs", "dispatch_us", lambda c: c["job"] == 0, lambda v: v + 10**10)
    ],
    "download computation and upload follow each other": [
        Change("buffered", "jobs", "compute_us", _is("aggregated"), lambda v: v + 10**9),
        Change("buffered", "jobs", "phase", _is("aggregated"), "upload"),
        Change("buffered", "jobs", "computing_us", _is("aggregated"), lambda v: v + 1),
    ],
    "the pacing allows the status of each job": [
        Change("buffered", "jobs", "status", _is("unfinished"), "late"),
        Change("deadline", "jobs", "status", _is("late"), "remembered"),
        Change("deadline", "jobs", "status", _is("late"), "stale"),
        Change("buffered", "jobs", "status", _is("stale"), "aggregated"),
    ],
    "versions of jobs are current at dispatch": [
        Change("buffered", "jobs", "version", lambda c: c["version"] == 3, lambda v: v - 2)
    ],
    "staleness is step minus version": [
        Change("buffered", "jobs", "staleness", _is("aggregated"), lambda v: v + 1),
    ],
    "inclusion is a probability": [
        Change("deadline", "jobs", "inclusion", _any, 0.0),
        Change("deadline", "jobs", "inclusion", _any, 1.01),
        Change("buffered", "jobs", "inclusion", lambda c: c["attempt"] > 0, 0.123),
    ],
    "updates are used by the first step after arrival": [
        Change("buffered", "jobs", "step", lambda c: c["step"] == 2, lambda v: v + 1)
    ],
    "updates beyond max staleness are marked stale": [
        Change("buffered", "jobs", "version", _is("stale"), lambda v: v + 3)
    ],
    "finished transfers moved the whole payload": [
        Change("buffered", "jobs", "upload_bytes", _is("aggregated"), lambda v: v - 1),
        Change("deadline", "jobs", "download_bytes", _any, lambda v: v + 10**7),
    ],
    "a client has one job at a time": [
        Change("buffered", "jobs", "end_us", _is("aggregated"), lambda v: v + 3 * 10**9)
    ],
    "repeated attempts follow a loss": [
        Change("buffered", "jobs", "attempt", lambda c: c["attempt"] == 0, 1),
    ],
    "the sample count of a client is constant": [
        Change("buffered", "jobs", "n_samples", _again, lambda v: v + 1)
    ],
    "the sample counts of clients are those of the tables": [
        Change("buffered", "clients", "n_samples", _any, lambda v: v + 1),
        Change("deadline", "clients", "n_samples", _any, lambda v: v + 1),
        Change("deadline", "clients", "client", _any, 1),
        Change("buffered", "clients", "n_samples", _any, -1),
    ],
    "jobs do their drawn share of local steps": [Change("buffered", "jobs", "share", _any, 0.5)],
    "jobs end as world and costs determine": [
        Change("buffered", "jobs", "end_us", _is("aggregated"), lambda v: v - 1),
        Change("deadline", "jobs", "download_bytes", _is("late"), lambda v: max(v - 1, 0) or 1),
        Change("buffered", "jobs", "phase", _is("lost"), ""),
    ],
    "the online count matches the world": [Change("buffered", "steps", "online", _any, lambda v: v + 1)],
    "in flight counts the running jobs": [
        Change("buffered", "steps", "in_flight", _any, lambda v: v + 7),
        Change("deadline", "steps", "in_flight", _any, 1),
    ],
    "steps and evaluations are in order of time": [
        Change("buffered", "steps", "time_us", lambda c: c["step"] == 4, 0),
        Change("buffered", "evals", "time_us", lambda c: c["step"] == 4, 0),
        Change("buffered", "jobs", "end_us", _any, 10**15),
    ],
    "updates counts the jobs that a step used": [
        Change("buffered", "steps", "updates", _any, lambda v: v + 1),
        Change("buffered", "steps", "mean_staleness", _any, lambda v: v + 0.1),
    ],
    "lost late and nonfinite jobs are counted": [
        Change("buffered", "steps", "lost", lambda c: c["step"] == 3, lambda v: v + 7),
        Change("deadline", "steps", "lost", _any, lambda v: v + 1),
        Change("deadline", "steps", "late", _any, lambda v: v + 1),
        Change("buffered", "steps", "late", _any, 1),
        Change("deadline", "steps", "nonfinite", _any, 1),
        Change("history", "steps", "late", _any, lambda v: v + 7),
    ],
    "cause and status of a step follow from its updates": [
        Change("buffered", "steps", "cause", _is("applied"), "deadline"),
        Change("buffered", "steps", "cause", _is("applied"), "drained"),
        Change("buffered", "steps", "status", _is("applied"), "void"),
        Change("buffered", "steps", "status", _is("applied"), "empty"),
        Change("deadline", "steps", "cause", lambda c: c["updates"] < 5, "full"),
    ],
    "void jobs arrived for a void step": [
        Change("deadline", "jobs", "status", _is("aggregated"), "void"),
    ],
    "deadline steps occur exactly at the deadline": [
        Change("deadline", "steps", "time_us", lambda c: c["cause"] == "deadline", lambda v: v + 1),
        Change("deadline", "steps", "cause", lambda c: c["cause"] != "deadline", "deadline"),
    ],
    "norms and cosines of steps are in range": [
        Change("buffered", "steps", "direction_norm", _any, -1.0),
        Change("buffered", "steps", "smallest_cosine", _any, 1.5),
        Change("buffered", "steps", "conflicts", _any, 99),
    ],
    "conflict rows of age 0 are the updates of the step": [
        Change("buffered", "conflicts", "client", lambda c: c["age"] == 0, lambda v: (v + 1) % 12)
    ],
    "remembered updates are the last of their clients": [
        Change("buffered", "conflicts", "age", _remembered, lambda v: v + 1),
        Change("history", "conflicts", "age", _remembered, 9),
    ],
    "remembered updates do not exceed clients seen and slots": [
        Change("buffered", "steps", "remembered", _any, 12),
        Change("buffered", "steps", "evicted", _any, 1),
    ],
    "an unlimited history keeps the last update of every client": [
        Change("buffered", "conflicts", "block", _remembered, 0)
    ],
    "columns of a step agree with its conflict rows": [
        Change("buffered", "steps", "model_conflicts", _any, lambda v: v + 1),
        Change("buffered", "steps", "max_weight", _any, lambda v: v + 1e-3),
        Change("buffered", "steps", "smallest_cosine", _any, lambda v: v - 1e-3),
    ],
    "weights of convex rules are nonnegative and add up to 1": [
        Change("deadline", "conflicts", "weight", _any, lambda v: v + 1e-3),
        Change("deadline", "conflicts", "weight", _any, -0.5),
        Change("target", "steps", "max_weight", _any, 1.01),
    ],
    "directions of descent rules oppose no update": [
        Change("buffered", "conflicts", "cosine", lambda c: (c["age"] == 0) & (c["block"] == -1), -0.01),
    ],
    "only unseen clients are evaluated as unseen": [
        Change("unseen", "evals", "client", _of("test"), 9),
        Change("unseen", "evals", "client", _of("unseen"), 8),
        Change("unseen", "evals", "split", _of("unseen_personal"), "test_personal"),
        Change("buffered", "evals", "split", _of("train"), "unseen"),
    ],
    "accuracy is the share of correct answers": [
        Change("buffered", "evals", "accuracy", _any, lambda v: v + 1e-9)
    ],
    "each evaluation has one row per client": [
        Change("buffered", "evals", "client", lambda c: c["client"] == 1, 0),
        Change("buffered", "evals", "n", _any, lambda v: v + 1),
        Change("unseen", "evals", "n", _of("unseen"), lambda v: v + 1),
    ],
    "evaluations use the model after the last step": [
        Change("buffered", "evals", "step", lambda c: c["step"] == 4, 5),
    ],
    "the configured evaluations exist": [
        Change("buffered", "evals", "split", lambda c: c["step"] == 4, "test"),
        Change("stalled", "evals", "split", lambda c: (c["step"] == 1) & (c["split"] == "train"), "valid"),
        Change("unseen", "evals", "step", lambda c: (c["step"] == 4) & (c["split"] == "unseen"), 5),
    ],
    "losses are not negative": [
        Change("buffered", "evals", "loss", _any, -3.0),
        Change("buffered", "jobs", "loss_train", _is("aggregated"), -3.0),
        Change("unseen", "jobs", "loss_before", _is("aggregated"), -3.0),
    ],
    "values of audit rows are valid": [
        Change("buffered", "audit", "client", _any, 99),
        Change("buffered", "audit", "client", lambda c: c["client"] == 1, 0),
        Change("buffered", "audit", "present", _held, True),
        Change("buffered", "audit", "age", lambda c: c["age"] == -1, 0),
        Change("buffered", "audit", "age_us", _held, -1),
        Change("buffered", "audit", "weight", lambda c: c["age"] == -1, 0.0),
        Change("buffered", "audit", "true_norm", _any, -1.0),
        Change("buffered", "audit", "true_with_step", _any, 1.5),
        Change("buffered", "audit", "loss_before", _any, -3.0),
    ],
    "audits take place at the configured steps": [
        Change("buffered", "audit", "step", _any, 4),
        Change("buffered", "audit", "step", _any, 12),
        Change("buffered", "audit", "time_us", _any, lambda v: v + 1),
    ],
    "audited updates are those of jobs": [
        Change("buffered", "audit", "age", _held, lambda v: v + 1),
        Change("buffered", "audit", "staleness", _held, 9),
        Change("buffered", "audit", "age_us", _held, lambda v: v + 1),
        Change("buffered", "audit", "age", lambda c: c["age"] == 0, 2),
    ],
    "target and patience end the run when fulfilled": [
        Change("target", "evals", "accuracy", lambda c: c["step"] == c["step"].max(), 0.0),
        Change("stalled", "evals", "loss", lambda c: (c["step"] == 2) & (c["split"] == "train"), -1e6),
    ],
    "the digest matches tables and model": [
        Change("buffered", "jobs", "loss_train", _is("aggregated"), lambda v: v + 1e-12)
    ],
    "the manifest has the counts of the tables": [
        Change("buffered", "jobs", "status", _is("unfinished"), "lost"),
        Change("buffered", "steps", "waits", _any, 1),
    ],
}
EVERY_ROW = {
    "the configured evaluations exist",
    "target and patience end the run when fulfilled",
}
"""Changes of all the rows that fit, not of the first."""


def change_of(name: str, what: Change) -> Callable[[Columns], None]:
    def change(cells: Columns) -> None:
        rows = np.flatnonzero(what.which(cells))
        assert len(rows), f"{what}: no row of {what.run} fits"
        if cells[what.column].dtype.kind == "U":
            cells[what.column] = cells[what.column].astype(object)
        for row in rows if name in EVERY_ROW else rows[:1]:
            before = cells[what.column][row]
            cells[what.column][row] = what.by(before) if callable(what.by) else what.by

    return change


CASES = [
    pytest.param(name, what, id=f"{name}: {what.column} of {what.run}")
    for name, some in CHANGES.items()
    for what in some
]


@pytest.mark.parametrize(("name", "what"), CASES)
def test_a_change_is_named(name: str, what: Change, runs: dict[str, Path], tmp_path: Path) -> None:
    verdict = changed(runs[what.run], tmp_path, what.table, change_of(name, what))
    assert name in names(verdict), [str(v) for v in verdict.violations]
    assert all(v.expected and v.found and str(v).startswith(v.invariant) for v in verdict.violations)


def test_what_is_wrong_is_said_with_table_and_row(runs: dict[str, Path], tmp_path: Path) -> None:
    row = int(np.flatnonzero(columns(runs["buffered"], "jobs")["status"] == "aggregated")[0])
    change = Change("buffered", "jobs", "staleness", _is("aggregated"), 77)
    verdict = changed(runs["buffered"], tmp_path, "jobs", change_of("", change))
    found = next(v for v in verdict.violations if v.invariant == "staleness is step minus version")
    assert (found.table, found.row, found.found, found.more) == ("jobs", row, "77", 0)


@pytest.mark.parametrize(
    ("kind", "share", "cosine", "harmed"),
    [
        ("model", 0.9e-4, -1.0, False),  # FedMDFG leaves out whole updates of at most 1e-4 of the mean norm
        ("model", 1.1e-4, -0.01, True),
        ("buffered", 0.9e-4, -1.0, False),  # FedLF leaves out fragments: the cosine is at least -1e-4 / share
        ("buffered", 2e-4, -0.49, False),
        ("buffered", 2e-4, -0.51, True),
        ("buffered", 1e-2, -0.009, False),
        ("buffered", 1e-2, -0.011, True),
    ],
)
def test_an_update_that_the_rule_neglects_is_not_harmed(
    kind: str, share: float, cosine: float, harmed: bool, runs: dict[str, Path], tmp_path: Path
) -> None:
    def change(cells: Columns) -> None:
        of_step = (cells["age"] == 0) & (cells["block"] == -1) & (cells["step"] == 0)
        row = np.flatnonzero(of_step)[0]
        others = cells["norm"][of_step][1:]
        cells["cosine"][row], cells["norm"][row] = cosine, share * others.sum() / (of_step.sum() - share)

    verdict = changed(runs[kind], tmp_path, "conflicts", change)
    assert ("directions of descent rules oppose no update" in names(verdict)) is harmed


def test_an_offline_client_is_named(runs: dict[str, Path], tmp_path: Path) -> None:
    """Work and dispatch while the client is away, in a world in which it never comes."""
    copy = shutil.copytree(runs["buffered"], tmp_path / "copy")
    trace = read_trace(copy / "world.parquet")
    rows = np.array(trace.table["client"].to_pylist()) != columns(copy, "jobs")["client"][0]
    rows |= np.array(trace.table["kind"].to_pylist()) != "online"
    facts = {"clients": trace.clients, "horizon_us": trace.horizon_us, "after_end": trace.after_end}
    type(trace).from_table(trace.table.filter(pa.array(rows)), **facts).write(copy / "world.parquet")
    assert "clients are online at dispatch" in names(check(copy))


def test_work_while_offline_is_named(runs: dict[str, Path], tmp_path: Path) -> None:
    change = Change("buffered", "jobs", "end_us", _is("aggregated"), 10**13)
    verdict = changed(runs["buffered"], tmp_path, "jobs", change_of("", change))
    assert "work while offline follows dropout leave" in names(verdict)


@pytest.mark.parametrize(
    ("recorded", "less", "name"),
    [
        ("concurrency = 6", "concurrency = 3", "running jobs do not exceed concurrency"),
        ("[audit]\nevery = 3\nclients = 10", "[audit]\nevery = 3\nclients = 9", "audits take place"),
    ],
)
def test_more_clients_than_configured_are_named(
    recorded: str, less: str, name: str, runs: dict[str, Path], tmp_path: Path
) -> None:
    copy = shutil.copytree(runs["buffered"], tmp_path / "copy")
    text = (copy / "config.resolved.toml").read_text()
    assert recorded in text
    (copy / "config.resolved.toml").write_text(text.replace(recorded, less))
    assert any(found.startswith(name) for found in names(check(copy)))


@pytest.mark.parametrize(
    ("key", "value", "name"),
    [
        ("digest", "0" * 64, "the digest matches tables and model"),
        ("steps", 3, "the manifest has the counts of the tables"),
        ("jobs", {"aggregated": 1}, "the manifest has the counts of the tables"),
        ("name", "other", "the manifest agrees with the configuration"),
        ("seed", 5, "the manifest agrees with the configuration"),
        ("rule", "fedlf", "the manifest agrees with the configuration"),
        ("selector", "oort", "the manifest agrees with the configuration"),
        ("pacing", "async", "the manifest agrees with the configuration"),
        ("ended_by", "time", "the run ends by its first fulfilled stop rule"),
        ("ended_by", "bytes", "the run ends by its first fulfilled stop rule"),
    ],
)
def test_a_changed_manifest_is_named(
    key: str, value: Any, name: str, runs: dict[str, Path], tmp_path: Path
) -> None:
    copy = shutil.copytree(runs["target"], tmp_path / "copy")
    manifest = json.loads((copy / "manifest.json").read_text())
    (copy / "manifest.json").write_text(json.dumps(manifest | {key: value}))
    assert name in names(check(copy))


def test_a_model_that_is_not_finite_is_named(runs: dict[str, Path], tmp_path: Path) -> None:
    copy = shutil.copytree(runs["target"], tmp_path / "copy")
    params = load_file(copy / "model.safetensors")
    params["params"][3] = np.nan
    save_file(params, copy / "model.safetensors")
    assert {"the model is finite", "the digest matches tables and model"} <= names(check(copy))


def test_what_cannot_be_checked_is_said_with_the_reason(runs: dict[str, Path], tmp_path: Path) -> None:
    copy = shutil.copytree(runs["target"], tmp_path / "copy")
    (copy / "world.parquet").unlink()
    (copy / "model.safetensors").unlink()
    verdict = check(copy)
    assert verdict.violations == ()
    assert verdict.unchecked["clients are online at dispatch"] == "needs world.parquet"
    assert verdict.unchecked["the digest matches tables and model"].startswith("needs model.safetensors")
    assert "promises no common descent" in verdict.unchecked["directions of descent rules oppose no update"]


def test_a_run_that_failed_keeps_its_jobs_and_is_checked(tmp_path: Path) -> None:
    config = small(
        train={"batch_size": 10, "lr": 1e30}, algorithm={"name": "fedavg"}, bad_updates={"policy": "stop"}
    )
    with pytest.raises(Exception, match="step 0"):
        run(config, tmp_path)
    verdict = check(tmp_path / "small")
    assert verdict.violations == ()
    assert "each job has exactly one row" in verdict.checked
    assert set(columns(tmp_path / "small", "jobs")["status"]) >= {"unfinished"}


def test_a_metric_without_a_value_is_no_improvement(tmp_path: Path) -> None:
    metric = tmp_path / "no_value.py"
    metric.write_text("def no_value(accuracy, n):\n    return float('nan')\n")
    config = small(
        pacing={"preset": "sync", "clients": 4},
        algorithm={"name": "fedavg"},
        stop={"steps": 10, "metric": f"{metric}:no_value", "patience": 2},
        evaluate={"every_steps": 1},
    )
    folder = run(config, tmp_path / "runs").folder
    assert json.loads((folder / "manifest.json").read_text())["ended_by"] == "patience"
    verdict = check(folder)
    assert verdict.violations == ()
    assert "target and patience end the run when fulfilled" in verdict.checked


@pytest.mark.parametrize("path", ["quickstart", "oort_fedbuff", "absence"])
def test_every_example_passes(path: str, root: Path, tmp_path: Path) -> None:
    configs = load_config(root / "examples" / f"{path}.toml", ("stop.steps=4",))
    inputs.data_of(configs[0].task.name)
    for result in simulate(configs, out=tmp_path, workers=0):
        assert check(result.folder).violations == ()


def test_a_run_that_goes_on_is_refused(tmp_path: Path) -> None:
    """Its tables are written one after the other: what they hold need not agree."""
    refused = []

    def look(progress: Any) -> None:
        with pytest.raises(
            FolderError, match="expected a run that has ended, found one that is still running"
        ):
            check(progress.folder)
        refused.append(progress.run_state.step)

    folder = run(small(stop={"steps": 3}), tmp_path, watch=look).folder
    assert refused
    assert not check(folder).violations


@pytest.mark.parametrize(
    "changes",
    [
        {"client": {"name": "scaffold"}, "algorithm": {"name": "scaffold"}, "cost": {}},
        {
            "pacing": {"preset": "deadline", "clients": 4, "deadline": "1min"},
            "dropout": {"chance": 1, "within": "download"},
            "cost": {},
        },
    ],
    ids=["vectors beside the model", "no whole download"],
)
def test_a_run_without_its_model_raises_no_alarm(changes: dict[str, Any], tmp_path: Path) -> None:
    """The size of the model is that of a whole download, with the vectors beside it, or not known."""

    def interrupting(progress: Progress) -> None:
        if progress.run_state.step == 3:
            raise KeyboardInterrupt

    result = run(small(**changes), tmp_path, watch=interrupting)
    assert result.status == "interrupted"
    assert check(result.folder).violations == ()
