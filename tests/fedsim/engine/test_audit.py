"""The audit says what clients would send, and leaves no trace in anything else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
import torch

from fedsim import analysis
from fedsim.common.errors import ConfigError
from fedsim.config.run import RunConfig
from fedsim.engine.audit import Audit, parts_of
from fedsim.engine.client_records import ClientRecords
from fedsim.engine.costs import Costs, Work
from fedsim.engine.remembered import Memory, Remembered
from fedsim.execution.actor_pool import RayPool
from fedsim.runs.build import prepare
from fedsim.runs.fork import At
from fedsim.runs.plan.event_counts import CountingTrainer
from fedsim.runs.plan.plan import plan_run
from fedsim.training.job import Cohort, Job
from fedsim.training.workbench import Workbench
from forked_runs import branch
from small import run, small

AUDIT = {"every": 2, "clients": 7}
BUFFERED = {"preset": "fedbuff", "concurrency": 6, "buffer": 3}
CASES: dict[str, dict[str, Any]] = {
    "sync": {},
    "without memory": {"algorithm": {"name": "fedavg"}},
    "buffered": {"pacing": BUFFERED, "algorithm": {"name": "fedfv", "tau": 3}},
    "searching": {"algorithm": {"name": "fedmdfg", "search": 3}},
    "rounded": {"memory": {"history": "bfloat16"}},
    "capped": {"memory": {"slots": 3}},
    "current": {"pacing": BUFFERED, "algorithm": {"name": "fedasync", "rows": "current"}},
    "loop": {"train": {"batch_size": 10, "mode": "loop"}, "algorithm": {"name": "qfedavg"}},
}


def audited(tmp_path: Path, config: RunConfig) -> pd.DataFrame:
    return analysis.open_run(run(config, tmp_path).folder).frame("audit")


@pytest.mark.parametrize("case", CASES)
def test_nothing_else_changes(tmp_path: Path, case: str) -> None:
    plain = run(small(**CASES[case]), tmp_path / "plain").folder
    found = run(small(**CASES[case], audit=AUDIT), tmp_path / "audited").folder
    for table in ("jobs", "steps", "evals"):
        pd.testing.assert_frame_equal(
            *(pd.read_parquet(f / f"{table}.parquet") for f in (plain, found)), check_exact=True
        )
    assert (plain / "model.safetensors").read_bytes() == (found / "model.safetensors").read_bytes()
    assert not (plain / "audit.parquet").exists()
    rows = pq.read_table(found / "audit.parquet").to_pandas()
    used = set(pq.read_table(found / "steps.parquet").to_pandas().query("updates > 0")["step"])
    assert set(rows["step"]) == {step for step in used if step and step % 2 == 0}
    assert (rows.groupby("step").size() == 7).all()


def test_the_true_row_is_what_the_client_would_send(tmp_path: Path) -> None:
    """With one full batch a row is the learning rate times the gradient of the mean loss: taken here by autograd."""
    config = small(
        train={"batch_size": "full", "lr": 0.05}, audit={"every": 3, "clients": 12}, stop={"steps": 4}
    )
    folder = run(config, tmp_path / "audited").folder
    before = torch.from_numpy(
        _model(run(small(train={"batch_size": "full", "lr": 0.05}, stop={"steps": 3}), tmp_path))
    )
    after = torch.from_numpy(_model(run(config, tmp_path / "again")))
    rows = analysis.open_run(folder).frame("audit").set_index("client")
    setup = prepare(config)
    bench, step = Workbench(setup.bench, setup.data), (before - after).double()
    for client in range(12):
        row = torch.empty_like(before)
        bench.work(Job(0, client, 0, 3), before, row)
        bench.flat.copy_(before)
        own = setup.data.train.rows(client)
        loss = torch.nn.functional.cross_entropy(bench.module(bench.x[own]), bench.y[own])
        gradient = torch.cat(
            [g.flatten() for g in torch.autograd.grad(loss, list(bench.module.parameters()))]
        )
        torch.testing.assert_close(row, 0.05 * gradient, rtol=1e-3, atol=1e-6)
        true = 0.05 * gradient.double()
        said = rows.loc[client]
        assert said["true_norm"] == pytest.approx(float(true.norm()), rel=1e-3)
        assert said["true_with_step"] == pytest.approx(_cosine(true, step), abs=1e-3)
        assert said["loss_before"] == pytest.approx(float(loss.detach()), rel=1e-4)
        end = float(bench.losses(after, torch.from_numpy(own)).mean())
        assert said["loss_after"] == pytest.approx(end, rel=1e-4)


def _model(result: Any) -> np.ndarray:
    from safetensors.numpy import load_file

    found: np.ndarray = load_file(result.folder / "model.safetensors")["params"]
    return found


def _cosine(a: torch.Tensor, b: torch.Tensor) -> float:
    return float(a @ b / (a.norm() * b.norm()))


def test_with_full_batches_a_present_row_is_the_true_one(tmp_path: Path) -> None:
    rows = audited(tmp_path, small(train={"batch_size": "full"}, audit=AUDIT))
    present, absent = rows[rows["present"]], rows[(~rows["present"]) & (rows["age"] >= 0)]
    assert len(present)
    np.testing.assert_allclose(present["cosine"], 1.0, atol=1e-6)
    np.testing.assert_allclose(present["norm_ratio"], 1.0, atol=1e-5)
    np.testing.assert_allclose(present["remembered_with_mean"], present["true_with_mean"], atol=1e-5)
    assert len(absent)
    assert (absent["age"] > 0).all()
    assert (absent["cosine"] < 0.99999).any()
    assert (
        rows.loc[rows["age"] < 0, ["cosine", "norm_ratio", "weight", "remembered_with_step"]]
        .isna()
        .all()
        .all()
    )
    assert (
        rows[["true_norm", "true_with_mean", "true_with_step", "loss_before", "loss_after"]]
        .notna()
        .all()
        .all()
    )


def test_a_client_does_as_much_of_its_work_as_in_its_next_job(tmp_path: Path) -> None:
    """A present row of full batches is then the true one, though clients do one epoch of three, or any number."""
    for number, completeness in enumerate(({"low": 1, "high": 1}, {"low": 1, "high": 3, "fixed": True})):
        config = small(
            train={"batch_size": "full", "epochs": 3},
            cost={"completeness": {"mode": "epochs", **completeness}},
            audit=AUDIT,
        )
        rows = audited(tmp_path / str(number), config).query("present")
        assert len(rows)
        np.testing.assert_allclose(rows["norm_ratio"], 1.0, atol=1e-5)
        planned = plan_run(config, workers=0)
        assert (
            0
            < planned.audited
            < plan_run(config.model_copy(update={"cost": small().cost}), workers=0).audited
        )


def test_a_step_that_scales_the_model_counts_as_a_whole(tmp_path: Path) -> None:
    """`scaled` takes a part of the model away: the step is the difference of the models."""
    scaled = {"algorithm": {"name": "fedavg", "weighting": "scaled"}, "train": {"batch_size": "full"}}
    audits = {"audit": {"every": 3, "clients": 12}, "stop": {"steps": 4}}
    before = torch.from_numpy(_model(run(small(**scaled, stop={"steps": 3}), tmp_path / "before")))
    found = run(small(**scaled, **audits), tmp_path)
    step = (before - torch.from_numpy(_model(found))).double()
    setup = prepare(small(**scaled))
    bench, row = Workbench(setup.bench, setup.data), torch.empty_like(before)
    rows = analysis.open_run(found.folder).frame("audit")
    for said in rows.itertuples():
        bench.work(Job(0, said.client, 0, 3), before, row)
        assert said.true_with_step == pytest.approx(_cosine(row.double(), step), abs=1e-4)


def test_it_agrees_with_the_table_of_conflicts(tmp_path: Path) -> None:
    config = small(audit={"every": 1, "clients": 12}, record={"conflicts": "model"}, pacing=BUFFERED)
    opened = analysis.open_run(run(config, tmp_path).folder)
    conflicts = (
        opened.frame("conflicts").query("block == -1").drop_duplicates(["step", "client"], keep="last")
    )
    both = (
        opened.frame("audit")
        .query("age >= 0")
        .merge(conflicts, on=["step", "client"], suffixes=("", "_said"))
    )
    assert len(both) == len(opened.frame("audit").query("age >= 0"))
    assert (both["age"] == both["age_said"]).all()
    np.testing.assert_allclose(both["weight"], both["weight_said"])
    np.testing.assert_allclose(both["remembered_with_step"], both["cosine_said"], atol=1e-5)


def test_losses_are_those_of_the_models_before_and_after(tmp_path: Path) -> None:
    config = small(audit={"every": 1, "clients": 12}, evaluate={"every_steps": 1, "split": "train"})
    opened = analysis.open_run(run(config, tmp_path).folder)
    evals = opened.frame("evals").query("split == 'train'").set_index(["step", "client"])["loss"]
    rows = opened.frame("audit")
    for shift, name in ((0, "loss_before"), (1, "loss_after")):
        told = evals.loc[list(zip(rows["step"] + shift, rows["client"], strict=True))]
        np.testing.assert_allclose(rows[name], told, rtol=1e-5)


@pytest.mark.ray
@pytest.mark.parametrize("case", ["sync", "buffered", "searching"])
def test_workers_do_not_change_a_bit(tmp_path: Path, case: str, two_workers: RayPool) -> None:
    config = small(**CASES[case], audit=AUDIT)
    assert run(config, tmp_path / "a").digest == run(config, tmp_path / "b", workers=two_workers).digest


FAILING = '''
from fedsim.server.rule import Algorithm, Direction, stateless
from fedsim.training.client_method import ClientMethod, Trained

def client() -> ClientMethod:
    """Plain training that fails in audits."""
    def train(local, start, kept):
        if local.job.id < 0 and local.job.client == 2:
            raise ValueError("only in the audit")
        return Trained(*local.sgd(start))
    return ClientMethod(train)

def rule() -> Algorithm:
    """Fails at the step of the first audit."""
    def direction(stack):
        if stack.step == 2:
            raise ValueError("only in the step")
        return Direction([1 / stack.m] * stack.m)
    return stateless(direction)
'''


@pytest.mark.ray
@pytest.mark.parametrize(("table", "factory"), [("client", "client"), ("algorithm", "rule")])
def test_an_error_ends_the_run_with_any_number_of_workers(
    table: str, factory: str, tmp_path: Path, two_workers: RayPool
) -> None:
    (tmp_path / "failing.py").write_text(FAILING)
    changes: dict[str, Any] = {
        "algorithm": {"name": "fedavg"},
        table: {"name": f"{tmp_path}/failing.py:{factory}"},
    }
    config = small(**changes, audit={"every": 2, "clients": 12})
    for workers in (0, two_workers):
        with pytest.raises(ValueError, match="only in the"):
            run(config, tmp_path / "out", workers=workers, force=True)


def test_those_go_first_of_whom_the_server_has_a_row() -> None:
    known, held = ClientRecords.of(20), np.arange(20) < 3
    known.dispatched[:] = np.arange(20)
    audit = Audit(every=5, clients=6, seed=1)
    costs = Costs(Work(known.dispatched, np.ones(20), known.dispatched), np.full(20, 6), epochs=3, seed=0)
    none = Remembered.of(20), Memory(), costs, np.array([3])
    due = [audit.of_step(step, 77, known, *none) for step in range(12)]
    assert [step for step, jobs in enumerate(due) if jobs is not None] == [5, 10]
    first, again = (audit.cohort(10, 77, known, costs, held) for _ in range(2))
    assert set(first.clients.tolist()) >= {0, 1, 2}
    assert len(set(first.clients.tolist())) == 6
    assert first.clients.tolist() == again.clients.tolist() == sorted(first.clients.tolist())
    assert first.nths.tolist() == first.clients.tolist()
    assert (first.dispatch_us == 77).all()
    assert (first.ids < 0).all()
    chosen = Audit(every=5, clients=2, seed=1).cohort(10, 0, known, costs, held)
    assert set(chosen.clients.tolist()) < {0, 1, 2}


LATE = {"preset": "deadline", "clients": 5, "deadline": "90s", "late": "history"}


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"pacing": BUFFERED, "algorithm": {"name": "fedfv", "tau": 2}},
        {"pacing": LATE},
        {"pacing": LATE, "algorithm": {"name": "fedfv", "tau": 1}},
        {"pacing": LATE, "memory": {"slots": 3}},
        {"memory": {"slots": 3}},
        {"algorithm": {"name": "fedlf", "memory": "10min"}},
    ],
    ids=["sync", "window", "late", "late window", "late capped", "capped", "time"],
)
def test_those_go_first_whatever_the_pacing_and_the_memory(changes: dict[str, Any], tmp_path: Path) -> None:
    """The table of conflicts tells whose rows the server had."""
    wanted = {"every": 1, "clients": 5}
    config = small(**changes, stop={"steps": 24}, audit=wanted, record={"conflicts": "model"})
    opened = analysis.open_run(run(config, tmp_path).folder)
    had = opened.frame("conflicts").query("block == -1").groupby("step")["client"].agg(set)
    sizes = set()
    for step, rows in opened.frame("audit").groupby("step"):
        audited_clients = set(rows["client"])
        sizes.add(len(had[step]) >= 5)
        assert audited_clients <= had[step] if len(had[step]) >= 5 else audited_clients > had[step]
    assert True in sizes


def test_those_go_first_whose_updates_a_fork_keeps(tmp_path: Path) -> None:
    """The window of the parent dropped the others, which the memory of the fork has no updates of."""
    parent = run(small(algorithm={"name": "fedfv", "tau": 1}, audit={"every": 1, "clients": 5}), tmp_path)
    child = branch(
        parent.folder, At(step=5), "algorithm.name=mifa", "record.conflicts=model", out=tmp_path / "fork"
    )
    opened = analysis.open_run(child.folder)
    had = opened.frame("conflicts").query("block == -1").groupby("step")["client"].agg(set)
    rows = opened.frame("audit").query("step >= 5").groupby("step")["client"].agg(set)
    assert len(rows) >= 2
    for step, clients in rows.items():
        assert clients <= had[step] or had[step] < clients


def test_an_audit_is_cut_so_that_its_rows_take_little_memory() -> None:
    cohort = Cohort.of([Job(-1 - i, i, 0, 0) for i in range(10)])
    assert [len(part) for part in parts_of(cohort, 4)] == [10]
    assert [len(part) for part in parts_of(cohort, 4, least=3)] == [4, 3, 3]
    assert [len(part) for part in parts_of(cohort, 2**25)] == [2] * 5
    assert [len(part) for part in parts_of(cohort, 2**40)] == [1] * 10
    assert parts_of(cohort.part(slice(0, 0)), 4, least=2) == []


def test_what_it_costs_is_predicted(tmp_path: Path) -> None:
    config = small(audit=AUDIT)
    rows = audited(tmp_path, config)
    setup = prepare(config)
    each = CountingTrainer(setup, ahead=False).passes_each + 2 / 3
    samples = int(setup.data.train.sizes[rows["client"]].sum())
    assert plan_run(config, workers=0).audited == pytest.approx(samples * each)
    assert plan_run(small(), workers=0).audited == 0
    row = 4 * len(setup.initial())
    assert setup.footprint(0).parts()["audit"] == 7 * row


def test_a_method_whose_clients_keep_something_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"audit: clients keep state .*'ditto'"):
        prepare(small(client={"name": "ditto"}, audit=AUDIT))
