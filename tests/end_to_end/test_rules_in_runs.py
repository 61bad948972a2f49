"""Every rule found in its folder runs in the simulator, synchronous and buffered, the latter to the same bits twice."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from torch.nn import functional

from fedsim import analysis, plugins
from fedsim.common.errors import ConfigError
from fedsim.runs.build import prepare
from fedsim.server.decision import Proposal
from fedsim.server.server import Server
from here import PoolHere
from small import run, small

TIMINGS: dict[str, dict[str, Any]] = {
    "sync": {"preset": "sync", "clients": 4},
    "fedbuff": {"preset": "fedbuff", "concurrency": 5, "buffer": 3},
}


def training(rule: str) -> dict[str, Any]:
    """Return tables that train as the rule wants it."""
    made = plugins.build("rule", rule, {"lr": 0.1} if rule in ("qfedavg", "qfedsgd") else {})
    full = {"train": {"batch_size": "full"}} if made.needs.gradients else {}
    return full | ({"client": {"name": made.client}} if made.client else {})


WANTED = r"rule '\w+' wants one gradient step on all samples of a client: expected"


@pytest.mark.parametrize("rule", ["fedsgd", "qfedsgd"])
@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({}, rf"train.batch_size: {WANTED} 'full', found 32, and client \d+ has \d+ samples"),
        ({"train": {"batch_size": "full", "epochs": 2}}, f"train.epochs: {WANTED} 1, found 2"),
        ({"train": {"batch_size": "full", "momentum": 0.5}}, f"train.momentum: {WANTED} 0, found 0.5"),
        (
            {
                "train": {"batch_size": "full"},
                "cost": {"completeness": {"mode": "epochs", "low": 2, "high": 3}},
            },
            f"cost.completeness.mode: {WANTED} 'all', found 'epochs'",
        ),
        (
            {"train": {"batch_size": "full"}, "client": {"name": "ditto_global"}},
            "client.name: .*, and client method 'ditto_global' makes two",
        ),
        (
            {"train": {"batch_size": "full", "weight_decay": 0.1}},
            f"train.weight_decay: {WANTED} 0, found 0.1",
        ),
        (
            {"train": {"batch_size": "full"}, "client": {"name": "fedcka"}},
            "client.name: .*, and client method 'fedcka' descends another loss",
        ),
    ],
    ids=["default batches", "two epochs", "momentum", "completeness", "two steps", "decay", "another loss"],
)
def test_rules_of_gradients_refuse_other_training(rule: str, changes: dict[str, Any], match: str) -> None:
    plain: dict[str, Any] = {"train": {}, "pacing": TIMINGS["sync"]}
    with pytest.raises(ConfigError, match=match):
        prepare(
            small(algorithm={"name": rule, "wrap": [{"name": "clipped", "norm": 1.0}]}, **plain | changes)
        )
    prepare(small(algorithm={"name": "fedavg"}, **plain | changes))


def test_rows_measured_from_the_current_model_are_no_gradients() -> None:
    tables: dict[str, Any] = {"train": {"batch_size": "full"}, "pacing": TIMINGS["fedbuff"]}
    prepare(small(algorithm={"name": "qfedsgd"}, **tables))
    with pytest.raises(ConfigError, match=f"algorithm.rows: {WANTED} 'start', found 'current'"):
        prepare(small(algorithm={"name": "qfedsgd", "rows": "current"}, **tables))


@pytest.mark.parametrize("train", [{"momentum": 0.9}, {"weight_decay": 0.1}])
def test_two_steps_by_one_gradient_have_neither_momentum_nor_decay(train: dict[str, float]) -> None:
    client = {"name": "ditto_global"}
    with pytest.raises(
        ConfigError, match=rf"train.{next(iter(train))}: client method 'ditto_global' makes two steps"
    ):
        prepare(small(client=client, train=train))
    assert prepare(small(client=client))


@pytest.mark.parametrize("mode", ["loop", "dense"])
def test_losses_are_those_of_the_start_model_however_many_epochs_follow(mode: str, tmp_path: Path) -> None:
    """With a minibatch of all samples, the loss of a job of several epochs is not that before training."""
    tables = {}
    for batch_size in ("full", 10_000):
        config = small(
            name=f"{batch_size}",
            algorithm={"name": "fedfv"},
            train={"batch_size": batch_size, "epochs": 1, "lr": 0.5, "mode": mode},
            cost={"completeness": {"mode": "epochs", "low": 1, "high": 4}},
            stop={"steps": 3},
        )
        tables[batch_size] = analysis.open_run(run(config, tmp_path).folder).frame("jobs").set_index("job")
    full, large = tables.values()
    assert full.share.max() > 1
    assert (full.loss_before > 0).any()
    np.testing.assert_allclose(full.loss_before, large.loss_before, rtol=1e-5)
    np.testing.assert_allclose(full.loss_train, large.loss_train, rtol=1e-5)


@pytest.mark.parametrize("batch_size", ["full", 10_000])
def test_a_minibatch_that_holds_all_samples_is_the_full_set(batch_size: Any) -> None:
    made = prepare(small(algorithm={"name": "fedsgd"}, train={"batch_size": batch_size}))
    assert made.server.algorithm().needs.gradients


def test_fedsgd_moves_by_the_mean_gradient_of_all_samples(tmp_path: Path) -> None:
    """One step, computed without the simulator: the gradient of the loss over the samples of the step's clients."""
    config = small(algorithm={"name": "fedsgd"}, train={"batch_size": "full", "lr": 0.5}, stop={"steps": 1})
    made, found = prepare(config), run(config, tmp_path)
    jobs = analysis.open_run(found.folder).frame("jobs")
    clients = jobs.client[jobs.status == "aggregated"].tolist()
    rows = np.concatenate([made.data.train.rows(client) for client in clients])
    start, module = made.initial(), made.network.module
    made.network.load(start.clone())
    loss = functional.cross_entropy(
        module(torch.from_numpy(made.data.x[rows])), torch.from_numpy(made.data.y[rows])
    )
    gradient = torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(module.parameters()))])
    end = torch.cat(
        [t.flatten() for t in safetensors.torch.load_file(found.folder / "model.safetensors").values()]
    )
    assert len(clients) == 4
    torch.testing.assert_close(start - end, 0.5 * gradient, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("timing", TIMINGS)
@pytest.mark.parametrize("rule", plugins.names("rule"))
def test_a_rule_runs(rule: str, timing: str, tmp_path: Path) -> None:
    config = small(algorithm={"name": rule}, pacing=TIMINGS[timing], stop={"steps": 5}, **training(rule))
    first = run(config, tmp_path / "a")
    opened = analysis.open_run(first.folder)
    steps = opened.frame("steps")
    assert (steps.status == "applied").sum() >= 3
    assert (steps[steps.status == "applied"].direction_norm > 0).all()
    accuracy = opened.history()
    assert accuracy.step.tolist() == [0, 3, 5]
    if timing == "fedbuff":
        assert run(config, tmp_path / "b").digest == first.digest


def test_a_rule_knows_how_the_learning_rate_decays() -> None:
    spec = prepare(small(train={"lr": 0.2, "lr_decay": 0.5})).server
    assert (spec.lr, spec.lr_decay) == (0.2, 0.5)


@pytest.mark.parametrize("wrapper", plugins.names("wrapper"))
def test_a_wrapper_runs(wrapper: str, tmp_path: Path) -> None:
    rule = "fedavg" if wrapper in ("clipped", "discounted", "server_opt") else "fedmgda_plus"
    plain = small(algorithm={"name": rule}, pacing=TIMINGS["fedbuff"], stop={"steps": 6})
    wrapped = small(
        algorithm={"name": rule, "wrap": [{"name": wrapper}]},
        pacing=TIMINGS["fedbuff"],
        stop={"steps": 6},
    )
    first, second = run(plain, tmp_path / "a"), run(wrapped, tmp_path / "b")
    assert second.status == "done"
    opened = analysis.open_run(second.folder)
    assert opened.config["algorithm"]["wrap"][0]["name"] == wrapper
    assert first.digest != second.digest, f"{wrapper} changed nothing"


def test_an_averaged_iterate_is_evaluated_and_kept(tmp_path: Path) -> None:
    result = run(small(algorithm={"name": "afl"}), tmp_path)
    found = safetensors.torch.load_file(result.folder / "model.safetensors")
    assert sorted(found) == ["average", "params"]
    assert not torch.equal(found["average"], found["params"])


def test_afl_evaluates_the_mean_that_any_rule_may_evaluate(tmp_path: Path) -> None:
    ways = {"own": (True, "last"), "both": (True, "mean"), "mean": (False, "mean"), "last": (False, "last")}
    found = {}
    for name, (average, model) in ways.items():
        rule, evaluate = {"name": "afl", "average": average}, {"every_steps": 3, "model": model}
        found[name] = run(small(algorithm=rule, evaluate=evaluate), tmp_path / name)
    assert found["own"].digest == found["both"].digest == found["mean"].digest != found["last"].digest
    steps = [analysis.open_run(found[name].folder).frame("steps") for name in ("mean", "last")]
    assert steps[0].equals(steps[1]), "which model is evaluated must not change training"


def test_a_line_search_finds_steps_that_lower_every_loss(tmp_path: Path) -> None:
    config = small(
        algorithm={"name": "fedmdfg", "search": 4}, train={"batch_size": "full"}, stop={"steps": 6}
    )
    steps = analysis.open_run(run(config, tmp_path / "a").folder).frame("steps")
    lengths = steps[steps.status == "applied"].step_length
    assert set(lengths) <= {2.0**k for k in range(-12, 5)}
    assert lengths.nunique() > 1
    plain = small(algorithm={"name": "fedmdfg"}, train={"batch_size": "full"}, stop={"steps": 6})
    assert set(analysis.open_run(run(plain, tmp_path / "b").folder).frame("steps").step_length.dropna()) == {
        1.0
    }


def test_one_process_tries_steps_until_one_is_accepted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And takes the same ones as two workers, which try all at once."""
    tried: list[tuple[int, int, float]] = []
    accept = Server.accept

    def spied(server: Server, proposal: Proposal, losses: Any = None, audited: Any = ()) -> dict[str, Any]:
        columns = accept(server, proposal, losses, audited)
        assert proposal.decision is not None
        assert proposal.decision.direction.search is not None
        steps = proposal.decision.direction.search.steps
        tried.append((len(losses), len(steps), steps.index(columns["step_length"])))
        return columns

    monkeypatch.setattr(Server, "accept", spied)
    config = small(
        algorithm={"name": "fedmdfg", "search": 4}, train={"batch_size": "full"}, stop={"steps": 6}
    )
    alone = run(config, tmp_path / "alone")
    one_by_one = list(tried)
    tried.clear()
    pool: Any = PoolHere(2, monkeypatch)
    assert run(config, tmp_path / "two", workers=pool).digest == alone.digest
    assert all(count == most for count, most, _ in tried)
    assert [taken for *_, taken in tried] == [taken for *_, taken in one_by_one]
    assert all(count in (taken + 1, most) for count, most, taken in one_by_one)
    assert any(count < most for count, most, _ in one_by_one)
