"""Client-side methods in whole runs: any of them with any timing, and the same bytes whatever computes them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import load_file
from scipy.optimize import nnls

from client_cases import oracle
from fedsim import plugins
from fedsim.common.errors import ConfigError
from fedsim.config.load import load_config
from fedsim.config.run import RunConfig
from fedsim.engine.trainer import Trainer
from fedsim.execution.actor_pool import RayPool
from fedsim.runs.build import prepare
from fedsim.runs.result import Result
from fedsim.runs.simulate import simulate
from fedsim.server.server import Server
from fedsim.training.job import Job
from fedsim.training.local_sgd import ClientTools
from fedsim.training.workbench import Workbench
from shuffled import ShuffledTrainer
from small import run, small

TIMINGS: dict[str, dict[str, Any]] = {
    "sync": {"preset": "sync", "clients": 4},
    "overselect": {"preset": "overselect", "clients": 3, "extra": 2},
    "fedbuff": {"preset": "fedbuff", "concurrency": 5, "buffer": 3},
}


def with_client(timing: str = "sync", **client: Any) -> RunConfig:
    rule = plugins.build("client", client.get("name", "plain"), {}).rule or "qfedavg"
    return small(client=client, pacing=TIMINGS[timing], algorithm={"name": rule}, stop={"steps": 7})


def evals(result: Result, split: str) -> pd.DataFrame:
    frame: pd.DataFrame = pq.read_table(result.folder / "evals.parquet").to_pandas()
    return frame[frame.split == split]


@pytest.mark.parametrize("timing", ["sync", "fedbuff"])
@pytest.mark.parametrize("name", plugins.names("client"))
def test_a_method_runs(name: str, timing: str, tmp_path: Path) -> None:
    config = with_client(timing, name=name)
    first = run(config, tmp_path / "a")
    assert first.status == "done"
    assert evals(first, "test").step.unique().tolist() == [0, 3, 6, 7]
    assert np.isfinite(evals(first, "test").loss).all()
    again = load_config(first.folder / "config.resolved.toml")[0]
    assert again.client.name == name
    if timing == "fedbuff":
        assert run(again, tmp_path / "b").digest == first.digest


@pytest.mark.parametrize("name", ["ditto", "fedcka"])
@pytest.mark.parametrize("timing", TIMINGS)
def test_jobs_may_finish_in_any_order(
    name: str, timing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = with_client(timing, name=name)
    expected = run(config, tmp_path / "a").digest

    def shuffled(self: Any) -> Trainer:
        setup = self.spec
        return ShuffledTrainer(Workbench(setup.bench, setup.data), Server(setup.server, setup.initial()), 0)

    monkeypatch.setattr("fedsim.runs.session.Session._trainer", shuffled)
    assert run(config, tmp_path / "b").digest == expected


@pytest.mark.ray
def test_actors_give_the_digest_of_one_process(two_workers: RayPool, tmp_path: Path) -> None:
    configs = [
        with_client(timing, name=name).model_copy(update={"name": f"{timing}-{name}"})
        for timing, name in (
            ("sync", "ditto"),
            ("fedbuff", "ditto"),
            ("fedbuff", "fedcka"),
            ("sync", "qmaml"),
        )
    ]
    expected = simulate(configs, out=tmp_path / "inline", workers=0)
    found = simulate(configs, out=tmp_path / "ray", workers=two_workers)
    assert [r.digest for r in found] == [r.digest for r in expected]


def test_own_models_are_evaluated_beside_the_global_one(tmp_path: Path) -> None:
    result = run(with_client(name="ditto"), tmp_path)
    both, own = evals(result, "test"), evals(result, "test_personal")
    assert own[["step", "time_us", "client", "n"]].values.tolist() == (
        both[["step", "time_us", "client", "n"]].values.tolist()
    )
    first, last = own.step == 0, own.step == own.step.max()
    np.testing.assert_allclose(own[first].loss, both[first.to_numpy()].loss, rtol=1e-5)
    assert own[last].accuracy.mean() > both[last.to_numpy()].accuracy.mean(), (
        "two classes each are easy alone"
    )


def test_own_models_are_kept_of_the_clients_that_were_heard(tmp_path: Path) -> None:
    config = with_client(name="ditto")
    result = run(config, tmp_path)
    kept = load_file(result.folder / "personal.safetensors")
    jobs = pq.read_table(result.folder / "jobs.parquet").to_pandas()
    heard = sorted(jobs[jobs.status == "aggregated"].client.unique())
    assert kept["personal_clients"].tolist() == heard
    setup = prepare(config)
    bench = Workbench(setup.bench, setup.data)
    last = evals(result, "test_personal").query("step == 7").set_index("client")
    for client, model in zip(heard, kept["personal"], strict=True):
        rows = torch.from_numpy(setup.data.test.rows(client))
        assert bench.losses(model, rows).mean() == pytest.approx(last.loss[client], rel=1e-5)


def test_the_evaluation_of_own_models_can_be_left_out(tmp_path: Path) -> None:
    config = with_client(name="ditto")
    without = config.model_copy(update={"evaluate": config.evaluate.model_copy(update={"personal": False})})
    results = [run(c, tmp_path / str(i)) for i, c in enumerate((config, without))]
    assert len(evals(results[1], "test_personal")) == 0
    assert evals(results[0], "test").values.tolist() == evals(results[1], "test").values.tolist()
    models = [load_file(r.folder / "personal.safetensors")["personal"] for r in results]
    assert torch.equal(*models)


def test_ditto_leaves_the_global_model_to_the_rule(tmp_path: Path) -> None:
    """On devices twice as fast: with two models to train, a client would otherwise arrive later."""
    models = []
    for name, scale in (("plain", 10), ("ditto", 5)):
        cost = {"payload": "5 MB", "compute_scale": scale}
        config = small(client={"name": name}, cost=cost, train={"batch_size": 10, "mode": "loop"})
        result = run(config, tmp_path / name)
        models.append(load_file(result.folder / "model.safetensors")["params"])
    assert torch.equal(*models)


def test_training_twice_takes_twice_as_long() -> None:
    plain, ditto, once = (
        prepare(with_client(**client)).plan.costs.work.samples
        for client in ({"name": "plain"}, {"name": "ditto"}, {"name": "ditto", "epochs": 3})
    )
    np.testing.assert_array_equal(ditto, 2 * plain)
    np.testing.assert_array_equal(once, 4 * plain)


def first_step(rule: dict[str, Any], mu: float, out: Path) -> tuple[torch.Tensor, torch.Tensor]:
    """Run one step of FedProx under a rule; return how far the model moved, and the updates worked out by hand."""
    config = small(algorithm=rule, client={"name": "fedprox", "mu": mu}, stop={"steps": 1})
    result, setup = run(config, out), prepare(config)
    start = setup.initial()
    jobs = pq.read_table(result.folder / "jobs.parquet").to_pandas().query("status == 'aggregated'")
    ends = [
        oracle(setup.data, setup.bench.sgd, start, start, mu, job=Job(0, client, 0, 0), spec=setup.bench)
        for client in jobs.client
    ]
    moved = start - load_file(result.folder / "model.safetensors")["params"]
    return moved.double(), torch.stack([start - end for end in ends]).double()


@pytest.mark.parametrize("mu", [0.0, 5.0])
def test_mgda_prox_is_fedprox_with_the_rule_fedmgda_plus(mu: float, tmp_path: Path) -> None:
    """With weights held at equal shares, the step is the mean direction of clients that train near the model."""
    equal = {"name": "fedmgda_plus", "epsilon": 0.0, "server_lr": 0.5}
    moved, updates = first_step(equal, mu, tmp_path)
    assert len(updates) == 4
    unit = updates / updates.norm(dim=1, keepdim=True)
    torch.testing.assert_close(moved, 0.5 * unit.mean(dim=0), rtol=1e-3, atol=1e-6)


def test_mgda_prox_steps_to_the_least_norm_point_of_the_clients_directions(tmp_path: Path) -> None:
    """A point of the hull is the nearest to zero if no client lies nearer along it than the point itself."""
    free = {"name": "fedmgda_plus", "epsilon": 1.0, "server_lr": 1.0}
    moved, updates = first_step(free, 5.0, tmp_path)
    unit = updates / updates.norm(dim=1, keepdim=True)
    weights, off = nnls(unit.T.numpy(), moved.numpy())
    assert off < 1e-4 * moved.norm()
    assert weights.sum() == pytest.approx(1, abs=1e-4)
    assert (unit @ moved >= moved @ moved - 1e-4).all()


@pytest.mark.parametrize(
    ("client", "message"),
    [
        ({"name": "fedprx"}, "there is no client 'fedprx'; did you mean 'fedprox'"),
        ({"name": "qmaml", "inner_step": 1}, "no option 'inner_step'; did you mean 'inner_steps'"),
        ({"name": "fedprox", "mu": -1}, "option 'mu'.*greater than or equal to 0"),
        ({"name": "qmaml", "support": 1}, "option 'support'.*less than 1"),
        ({"name": "fedprox", "mu": float("inf")}, "option 'mu'.*a finite number"),
    ],
)
def test_what_cannot_be_is_refused(client: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        small(client=client)


@pytest.mark.parametrize("share", [1.0, 0.4])
@pytest.mark.parametrize(
    "client",
    [
        {"name": "fedcka"},
        {"name": "fedprox", "form": "released"},
        {"name": "qmaml"},
        {"name": "qmaml", "support": 0.8},
        {"name": "qmaml", "support": 0.01},
    ],
    ids=str,
)
def test_rules_learn_the_steps_that_an_update_comes_from(client: dict[str, Any], share: float) -> None:
    epochs = 1 if client["name"] == "fedprox" else 3  # as released it takes one step, whatever the epochs
    spec = prepare(small(client=client, train={"batch_size": 7, "epochs": epochs}))
    bench, train = Workbench(spec.bench, spec.data), spec.bench.method().train
    assert train is not None
    clients, taken = np.arange(spec.data.n_clients), []
    for number in clients.tolist():
        local = ClientTools(bench, Job(number, number, nth=0, version=0, share=share))
        train(local, spec.initial(), None)
        taken.append(local.steps)
    assert len(set(spec.data.train.sizes.tolist())) > 1
    told = spec.plan.costs.steps_done(clients, np.full(len(clients), share))
    assert told.tolist() == taken
