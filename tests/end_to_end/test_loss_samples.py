"""Losses taken on some of a client's samples, where a rule or a selector asks for them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedsim import analysis
from fedsim.common.errors import ConfigError
from fedsim.execution.actor_pool import RayPool
from fedsim.runs.build import prepare
from fedsim.runs.spec import RunSpec
from fedsim.training.job import Cohort
from fedsim.training.minibatches import loss_rows
from fedsim.training.workbench import Workbench
from small import run, small

FEW: dict[str, Any] = {"train": {"batch_size": 8, "lr": 0.1, "loss_samples": 5}}
ASKING = {
    "selection": {"name": "power_of_choice", "losses": "asked", "d": 6},
    "algorithm": {"name": "fedmdfg", "search": 3},
}


def by_hand(setup: RunSpec, params: torch.Tensor, client: int, version: int) -> float:
    """Return the mean loss on the samples that the client probes for a version."""
    [rows] = loss_rows(setup.data.train, np.array([client]), np.array([version]), 5, setup.bench.seed)
    assert len(rows) == 5
    bench = Workbench(setup.bench, setup.data)
    bench.flat.copy_(params)
    return float(torch.nn.functional.cross_entropy(bench.module(bench.x[rows]), bench.y[rows]).detach())


@pytest.mark.parametrize("mode", ["loop", "dense"])
def test_a_rule_is_told_of_the_loss_on_these_samples(tmp_path: Path, mode: str) -> None:
    config = small(train=FEW["train"] | {"mode": mode}, algorithm={"name": "fedfv"}, stop={"steps": 1})
    found, setup = analysis.open_run(run(config, tmp_path).folder), prepare(config)
    told = found.frame("jobs").query("version == 0 and step == 0").set_index("client")["loss_before"]
    assert len(told) > 1
    for client, loss in told.items():
        assert loss == pytest.approx(by_hand(setup, setup.initial(), int(client), 0), rel=1e-5)


def test_jobs_trials_and_questions_of_a_version_see_the_same_samples() -> None:
    setup = prepare(small(**FEW, algorithm={"name": "fedfv"}))
    bench, start, k = Workbench(setup.bench, setup.data), setup.initial(), np.arange(12)
    cohort = Cohort(k, k, 0 * k, 0 * k + 3, np.ones(12), k)
    reports, _ = bench.train(cohort, [start] * 12, torch.empty(12, len(start)))
    tried = bench.trial_losses(torch.stack([start, 2 * start]), k, 3)
    assert tried[0].tolist() == reports.loss_before.tolist()
    assert (bench.trial_losses(start[None], k, 4)[0] != tried[0]).all()
    for client, loss in enumerate(tried[1]):
        assert loss == pytest.approx(by_hand(setup, 2 * start, client, 3), rel=1e-5)


def test_nothing_changes_where_nobody_has_more(tmp_path: Path) -> None:
    plain, rule = {"batch_size": 8, "lr": 0.1}, {"name": "fedfv"}
    expected = run(small(train=plain, algorithm=rule), tmp_path / "a").digest
    found = run(small(train=plain | {"loss_samples": 10_000}, algorithm=rule), tmp_path / "b").digest
    assert found == expected


def test_samples_of_losses_that_nobody_asks_for_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"train\.loss_samples: it would have no effect"):
        small(**FEW, algorithm={"name": "fedavg"})


def test_an_audit_still_takes_losses_on_all_samples(tmp_path: Path) -> None:
    config = small(
        **FEW,
        algorithm={"name": "fedfv"},
        audit={"every": 1, "clients": 12},
        evaluate={"every_steps": 1, "split": "train"},
    )
    opened = analysis.open_run(run(config, tmp_path).folder)
    evals = opened.frame("evals").query("split == 'train'").set_index(["step", "client"])["loss"]
    rows = opened.frame("audit")
    assert len(rows)
    for shift, name in ((0, "loss_before"), (1, "loss_after")):
        told = evals.loc[list(zip(rows["step"] + shift, rows["client"], strict=True))]
        np.testing.assert_allclose(rows[name], told, rtol=1e-5)


@pytest.mark.ray
def test_actors_probe_as_one_process_does(tmp_path: Path, two_workers: RayPool) -> None:
    config = small(**FEW, **ASKING)
    inline = run(config, tmp_path / "inline")
    assert run(config, tmp_path / "ray", workers=two_workers).digest == inline.digest
    assert run(small(train={"batch_size": 8, "lr": 0.1}, **ASKING), tmp_path).digest != inline.digest


def test_a_number_of_samples_is_positive_or_all() -> None:
    assert small(train={"loss_samples": "all"}).train.local_sgd().loss_samples is None
    for wrong in (0, "some"):
        with pytest.raises(ConfigError, match=r"train\.loss_samples"):
            small(train={"loss_samples": wrong})
