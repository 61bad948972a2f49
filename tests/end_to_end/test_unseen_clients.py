"""Unseen clients: the run of the others is the run without them, and the model is measured on them as it is."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional

from fedsim import analysis
from fedsim.analysis.plots.participation import raster
from fedsim.common.errors import ConfigError, FolderError, TraceError
from fedsim.common.rng import rng
from fedsim.config.data import federation
from fedsim.config.load import load_config, parse
from fedsim.config.run import RunConfig
from fedsim.data.federated_data import FederatedData, Task
from fedsim.data.split import federate
from fedsim.execution.actor_pool import RayPool
from fedsim.invariants import check
from fedsim.records.manifest import read_manifest
from fedsim.runs.build import prepare
from fedsim.runs.fork import fork
from fedsim.runs.replay import replay
from fedsim.runs.result import Result
from fedsim.runs.resume import resume
from fedsim.runs.simulate import simulate
from fedsim.runs.verify import verify
from fedsim.training.minibatches import orders
from fedsim.training.network import build_network
from interrupted_runs import stopped_at
from small import run, small

CLIENTS, UNSEEN = 12, 4
TASK = {"name": "digits", "clients": CLIENTS, "unseen": UNSEEN}
CHURN = {"scenario": "churn", "horizon": "2h", "options": {"mean_on": "10min", "mean_off": "10min"}}
BUFFERED = {"preset": "fedbuff", "concurrency": 5, "buffer": 3}
Tables = dict[str, Any]

# The run of the clients that train


def samples() -> tuple[Tensor, Tensor, Tensor]:
    """Return features, labels and clients of twelve clients of different sizes, in a random order."""
    draws = np.random.default_rng(2)
    owner = draws.permutation(np.repeat(np.arange(CLIENTS), 20 + 4 * np.arange(CLIENTS)))
    y = draws.integers(0, 3, len(owner))
    x = draws.normal(size=(len(owner), 6)) + y[:, None] + 0.5 * owner[:, None]
    return torch.tensor(x), torch.tensor(y), torch.tensor(owner)


KINDS: dict[str, Tables] = {
    "sync": {"record": {"conflicts": "layers"}, "algorithm": {"name": "fedlf", "absent": "all"}},
    "share of a round": {"pacing": {"preset": "sync", "clients": 0.5}},
    "buffered": {"pacing": BUFFERED, "client": {"name": "ditto"}, "stop": {"steps": 12}},
    "meta": {"client": {"name": "qmaml"}, "algorithm": {"name": "qfedavg"}},
    "attacked": {"adversary": {"name": "sign_flip", "share": 0.5}, "algorithm": {"name": "afl"}},
    "confounded": {
        "world": CHURN
        | {"confound": {"what": "availability", "to": "label", "labels": [0], "strength": 0.9}},
        "selection": {"name": "quota", "group": "label", "floor": 1.0},
    },
    "told accuracies": {
        "selection": {"name": "tifl", "tiers": 2, "interval": 1},
        "evaluate": {"every_steps": 1},
        "algorithm": {"name": "mifa", "divisor": "all"},
        "audit": {"every": 2, "clients": 20},
    },
    "told losses": {
        "selection": {"name": "power_of_choice", "d": 5},
        "algorithm": {"name": "fedmdfg", "search": 3},
    },
    "measured in part": {"evaluate": {"every_steps": 2, "clients": 3, "also": ["train", "valid"]}},
    "by a target": {
        "stop": {"steps": 30, "target": 60.0},
        "evaluate": {"every_steps": 1},
        "dropout": {"chance": 0.3, "replace": True},
        "pacing": {"preset": "deadline", "clients": 5, "deadline": "2min", "late": "history"},
        "algorithm": {"name": "mifa"},
    },
}


def raw(kind: str, **task: Any) -> Tables:
    """Return a run of a kind, whose clients are split in the order of their samples."""
    base = {
        "name": "part",
        "seed": 3,
        "task": {"fractions": [0.6, 0.2, 0.2], "shuffle": False, **task},
        "model": {"name": "softmax"},
        "world": CHURN,
        "pacing": {"preset": "sync", "clients": 4},
        "train": {"batch_size": 10},
        "cost": {"payload": "5 MB", "compute_scale": 10},
        "algorithm": {"name": "fedavg"},
        "evaluate": {"every_steps": 3},
        "stop": {"steps": 8},
    }
    return base | KINDS[kind]


def without(unseen: list[int]) -> Task:
    """Return the samples of the other clients alone, numbered in their order."""
    x, y, owner = samples()
    others = torch.isin(owner, torch.tensor(unseen), invert=True)
    return Task.from_arrays(x[others], y[others], owner[others])


@pytest.mark.parametrize("kind", KINDS)
def test_the_others_train_as_if_unseen_clients_did_not_exist(kind: str, tmp_path: Path) -> None:
    x, y, owner = samples()
    [with_unseen] = simulate(
        raw(kind, unseen=UNSEEN), task=Task.from_arrays(x, y, owner), out=tmp_path / "with", workers=0
    )
    unseen = read_manifest(with_unseen.folder)["unseen"]
    assert len(unseen) == UNSEEN
    [alone] = simulate(raw(kind), task=without(unseen), out=tmp_path / "alone", workers=0)
    assert read_manifest(alone.folder)["unseen"] == []
    for name in ("jobs", "steps", "conflicts", "audit", "world"):
        files = [result.folder / f"{name}.parquet" for result in (with_unseen, alone)]
        assert files[0].is_file() == files[1].is_file()
        if files[0].is_file():
            ours, theirs = (pq.read_table(file).to_pandas() for file in files)
            pd.testing.assert_frame_equal(ours, theirs, obj=name)
    seen = evals(with_unseen)
    of_unseen = seen.split.str.startswith("unseen")
    assert (of_unseen == (seen.client >= CLIENTS - UNSEEN)).all()
    pd.testing.assert_frame_equal(seen[~of_unseen].reset_index(drop=True), evals(alone))
    for file in ("model", "personal"):
        models = [result.folder / f"{file}.safetensors" for result in (with_unseen, alone)]
        assert models[0].is_file() == models[1].is_file()
        if models[0].is_file():
            tensors, expected = map(load_file, models)
            assert tensors.keys() == expected.keys()
            assert all(torch.equal(tensors[name], expected[name]) for name in tensors)
    assert check(with_unseen.folder).violations == ()


@pytest.mark.parametrize("unseen", [0, 0.0])
@pytest.mark.parametrize("client", ["plain", "ditto", "qmaml"])
def test_no_unseen_clients_change_no_bit(unseen: float, client: str, tmp_path: Path) -> None:
    method = {"name": client}
    plain = run(small(client=method), tmp_path / "plain")
    none = run(
        small(client=method, task={"name": "digits", "clients": 12, "unseen": unseen}), tmp_path / "none"
    )
    assert none.digest == plain.digest
    assert prepare(small(client=method)).data.unseen is None


# Who is unseen


def test_all_rules_of_a_seed_have_the_same_unseen_clients(tmp_path: Path) -> None:
    changes: list[Tables] = [
        {},
        {"algorithm": {"name": "fedavg"}},
        {"pacing": BUFFERED, "selection": {"name": "round_robin"}},
        {"client": {"name": "ditto"}, "world": {"scenario": "always_on"}},
        {"model": {"name": "softmax"}, "partition": {"name": "iid"}},
    ]
    drawn = [numbers(small(task=TASK, stop={"steps": 1}, **each)) for each in changes]
    assert drawn == drawn[:1] * len(changes)
    assert len({tuple(numbers(small(task=TASK, seed=seed))) for seed in range(5)}) > 2


def numbers(config: RunConfig) -> list[int]:
    unseen = federation(config)[1].unseen
    assert unseen is not None
    return unseen.numbers.tolist()


@pytest.mark.parametrize(
    ("unseen", "count"), [(0.25, 3), (0.3, 3), (0.01, 1), (0.99, 11), (1, 1), (11, 11), (0, 0)]
)
def test_a_share_is_rounded_down_and_at_least_one(unseen: float, count: int) -> None:
    config = small(task=TASK | {"unseen": unseen}, pacing={"preset": "sync", "clients": 1})
    assert (config.task.unseen_clients, config.task.training_clients) == (count, 12 - count)
    assert prepare(config).data.n_unseen == count
    again = parse(config.resolved(), "again", "again")[0]
    assert again.task == config.task


@pytest.mark.parametrize("share", [0.5, 0.25])
def test_a_share_of_a_round_is_of_the_clients_that_train(share: float) -> None:
    config = small(task=TASK, pacing={"preset": "sync", "clients": share})
    assert config.pacing.clients == share * (CLIENTS - UNSEEN)


def test_the_parts_of_a_run_know_the_clients_that_train_alone() -> None:
    spec = prepare(small(task=TASK, selection={"name": "tifl"}, adversary={"name": "zero", "share": 1.0}))
    n = CLIENTS - UNSEEN
    assert (spec.world.clients, spec.server.n_clients, len(spec.plan.facts.n_samples)) == (n, n, n)
    assert spec.plan.facts.label_counts.shape == (n, 10)
    assert spec.bench.adversaries[0].clients == tuple(range(n))
    assert spec.server.total_samples == spec.data.train.sizes.sum()
    late = {"preset": "deadline", "clients": 4, "deadline": "1min", "late": "history"}
    config = small(task=TASK, pacing=late, dropout={"replace": True}, algorithm={"name": "mifa"})
    assert prepare(config).server.late_rows == n


def test_a_trace_gives_its_first_clients_to_those_that_train(tmp_path: Path) -> None:
    """Unseen clients have none of the trace, even if it has enough for them."""
    folder = run(small(task={"name": "digits", "clients": CLIENTS}), tmp_path / "whole").folder
    world = {"trace": str(folder / "world.parquet")}
    result = run(small(task=TASK, world=world), tmp_path)
    assert prepare(small(task=TASK, world=world)).world.clients == CLIENTS - UNSEEN
    assert jobs(result).client.max() < CLIENTS - UNSEEN
    opened = analysis.open_run(result.folder)
    frames = {split: analysis.run_participation(opened, split=split) for split in ("test", "unseen")}
    assert "availability" in set(frames["test"]["groups"].by)
    assert "groups" in frames["unseen"]
    assert not len(frames["unseen"]["groups"])
    assert frames["unseen"]["losses"].group.tolist() == ["no job"]


def test_the_schedule_of_those_that_train_is_drawn(tmp_path: Path) -> None:
    opened = analysis.open_run(run(small(task=TASK), tmp_path).folder)
    assert opened.training_clients == CLIENTS - UNSEEN
    assert sum(raster(opened).sizes) == CLIENTS - UNSEEN
    assert opened.plot("participation").axes


def test_groups_by_label_know_what_unseen_clients_hold(tmp_path: Path) -> None:
    config = small(task=TASK, stop={"steps": 1})
    opened = analysis.open_run(run(config, tmp_path).folder)
    by_label = analysis.run_participation(opened, ["label"], split="unseen")["groups"]
    data = prepare(config).data
    held = [set(data.y[data.training_rows(k)].tolist()) for k in range(CLIENTS - UNSEEN, CLIENTS)]
    holders = {str(label): sum(label in own for own in held) for label in set().union(*held)}
    assert dict(zip(by_label.group, by_label.clients, strict=True)) == holders


# What is measured


def evals(result: Result) -> pd.DataFrame:
    frame: pd.DataFrame = pq.read_table(result.folder / "evals.parquet").to_pandas()
    return frame.astype({"split": str})


def jobs(result: Result) -> pd.DataFrame:
    frame: pd.DataFrame = pq.read_table(result.folder / "jobs.parquet").to_pandas()
    return frame


def module_of(config: RunConfig, data: FederatedData, flat: Tensor) -> nn.Module:
    assert config.model is not None
    network = build_network(config.model.name, config.model.options, data.x.shape[1:], data.n_classes)
    return network.load(flat.clone()).eval()


def measured(module: nn.Module, data: FederatedData, rows: Any) -> tuple[float, float]:
    """Return accuracy and mean loss of a module on samples."""
    x, y = torch.from_numpy(data.x[rows]), torch.from_numpy(data.y[rows])
    with torch.no_grad():
        logits = module(x)
    return float((logits.argmax(dim=1) == y).double().mean()), float(functional.cross_entropy(logits, y))


def whole_division(config: RunConfig) -> FederatedData:
    """Return the data divided among all clients, as without unseen ones."""
    task = federation(config)[0]
    options = {} if config.partition is None else config.partition.options
    return federate(task, n_clients=CLIENTS, partitioner="pathological", options=options, seed=config.seed)


def test_unseen_clients_are_evaluated_with_the_global_model(tmp_path: Path) -> None:
    config = small(task=TASK)
    result, data = run(config, tmp_path), whole_division(config)
    module = module_of(config, data, load_file(result.folder / "model.safetensors")["params"])
    last = evals(result).query("split == 'unseen' and step == 8").set_index("client")
    unseen = read_manifest(result.folder)["unseen"]
    assert last.index.tolist() == list(range(CLIENTS - UNSEEN, CLIENTS))
    assert unseen == numbers(config)
    for number, (_, row) in zip(unseen, last.iterrows(), strict=True):
        accuracy, loss = measured(module, data, data.test.rows(number))
        assert row.n == len(data.test.rows(number))
        assert row.accuracy == pytest.approx(accuracy)
        assert row.loss == pytest.approx(loss, rel=1e-5)


@pytest.mark.parametrize("how", [{"every_steps": 3}, {"every_steps": 3, "also": ["train"], "split": "valid"}])
def test_each_evaluation_is_also_of_unseen_clients(how: Tables, tmp_path: Path) -> None:
    result = run(small(task=TASK, evaluate=how, client={"name": "ditto"}), tmp_path)
    rows = evals(result)
    split = how.get("split", "test")
    expected = {split, *how.get("also", ()), "unseen", f"{split}_personal", "unseen_personal"}
    assert set(rows.split) == expected
    assert set(load_config(result.folder / "config.resolved.toml")[0].recorded_splits()) == expected
    for name in expected:
        assert rows[rows.split == name].groupby("step").client.nunique().to_dict() == (
            dict.fromkeys((0, 3, 6, 8), UNSEEN if name.startswith("unseen") else CLIENTS - UNSEEN)
        )


@pytest.mark.parametrize(("clients", "seen", "unseen"), [(3, 3, 3), (6, 6, 4), (8, 8, 4), (50, 8, 4)])
def test_a_part_is_drawn_of_each_kind(clients: int, seen: int, unseen: int, tmp_path: Path) -> None:
    config = small(task=TASK, evaluate={"every_steps": 3, "clients": clients}, client={"name": "ditto"})
    rows = evals(run(config, tmp_path))
    drawn = rows.groupby(["split", "step"]).client.agg(tuple).unstack()
    if clients == seen:
        alone = rng(config.seed, "evaluate").choice(CLIENTS - UNSEEN, seen, replace=False)
        assert seen == CLIENTS - UNSEEN or drawn.loc["test", 0] == tuple(sorted(alone))
    for name, count, everybody in (("test", seen, CLIENTS - UNSEEN), ("unseen", unseen, UNSEEN)):
        for split in (name, f"{name}_personal"):
            assert len(set(drawn.loc[split, [0, 3, 6]])) == 1
            assert drawn.loc[split].map(len).tolist() == [count, count, count, everybody]


@pytest.mark.parametrize("evaluate", [{"every_steps": 3, "personal": False}, {"every_steps": 3}])
@pytest.mark.parametrize("client", ["plain", "fedprox", "fedcka"])
def test_without_personal_models_unseen_clients_adapt_nothing(
    client: str, evaluate: Tables, tmp_path: Path
) -> None:
    name = client if evaluate.get("personal", True) else "ditto"
    result = run(small(task=TASK, client={"name": name}, evaluate=evaluate), tmp_path)
    assert set(evals(result).split) == {"test", "unseen"}


# Adaptation


def flat_of(module: nn.Module) -> Tensor:
    return torch.cat([p.detach().reshape(-1) for p in module.parameters()])


def minibatches(config: RunConfig, client: int, rows: Any, steps: int | None) -> Iterator[Any]:
    """Yield the minibatches of Ditto's personal model outside of a job: the -1st one of the client."""
    size = len(rows) if config.train.batch_size == "full" else config.train.batch_size
    epochs = config.train.epochs if steps is None else steps
    for number, epoch in enumerate(range(epochs)):
        one = (np.array([value]) for value in (client, -1, epoch, len(rows)))
        order = rows[orders(config.seed, "personal", *one)]
        batches = [order[a : a + size] for a in range(0, len(order), size)]
        yield from batches if steps is None else batches[: max(steps - number * len(batches), 0)]


def adapted_by_ditto(config: RunConfig, data: FederatedData, w: Tensor, client: int) -> nn.Module:
    """Return v after steps `v <- v - lr (grad F(v) + lam (v - w))` from v = w."""
    options, rows = config.client.options, data.training_rows(client)
    lr, lam = options.get("lr", config.train.lr), options.get("lam", 0.1)
    module, taken = module_of(config, data, w), 0
    for batch in minibatches(config, client, rows, options.get("adapt_steps")):
        module.zero_grad()
        functional.cross_entropy(
            module(torch.from_numpy(data.x[batch])), torch.from_numpy(data.y[batch])
        ).backward()
        v = flat_of(module)
        grad = torch.cat([p.grad.reshape(-1) for p in module.parameters() if p.grad is not None])
        module, taken = module_of(config, data, v - lr * (grad + lam * (v - w))), taken + 1
    assert taken == options.get("adapt_steps", taken)
    return module


def adapted_by_qmaml(config: RunConfig, data: FederatedData, w: Tensor, client: int) -> nn.Module:
    """Return theta after steps `theta <- theta - inner_lr grad F(theta)` on all training samples."""
    rows, module = data.training_rows(client), module_of(config, data, w)
    x, y = torch.from_numpy(data.x[rows]), torch.from_numpy(data.y[rows])
    optimiser = torch.optim.SGD(module.parameters(), config.client.options.get("inner_lr", 0.01))
    for _ in range(config.client.options.get("adapt_steps", 5)):
        optimiser.zero_grad()
        functional.cross_entropy(module(x), y).backward()
        optimiser.step()
    return module


METHODS: list[tuple[Any, Tables, Tables]] = [
    (adapted_by_ditto, {"name": "ditto"}, {"batch_size": 10, "epochs": 2}),
    (adapted_by_ditto, {"name": "ditto", "adapt_steps": 1, "lam": 0.0}, {"batch_size": 10}),
    (adapted_by_ditto, {"name": "ditto", "adapt_steps": 19, "lam": 0.5, "lr": 0.3}, {"batch_size": 10}),
    (adapted_by_ditto, {"name": "ditto", "adapt_steps": 3}, {"batch_size": "full", "lr_decay": 0.5}),
    (adapted_by_qmaml, {"name": "qmaml", "inner_lr": 0.3}, {"batch_size": 10}),
    (adapted_by_qmaml, {"name": "qmaml", "inner_lr": 0.3, "adapt_steps": 1}, {"batch_size": 10}),
    (
        adapted_by_qmaml,
        {"name": "qmaml", "inner_lr": 0.3, "adapt_steps": 8, "order": "second"},
        {"batch_size": 10},
    ),
]


@pytest.mark.parametrize(("adapted", "client", "train"), METHODS)
def test_adaptation_takes_the_steps_of_the_paper(
    adapted: Any, client: Tables, train: Tables, tmp_path: Path
) -> None:
    config = small(task=TASK, client=client, train=train, algorithm={"name": "fedavg"}, stop={"steps": 3})
    result, data = run(config, tmp_path), prepare(config).data
    w = load_file(result.folder / "model.safetensors")["params"]
    last = evals(result).query("split == 'unseen_personal' and step == 3").set_index("client")
    plain = evals(result).query("split == 'unseen' and step == 3").set_index("client")
    assert last.index.tolist() == plain.index.tolist() == list(range(CLIENTS - UNSEEN, CLIENTS))
    assert (last.loss < plain.loss).all(), "a client's own steps lower its loss"
    for number, (client_id, row) in zip(numbers(config), last.iterrows(), strict=True):
        rows = whole_division(config).test.rows(number)
        accuracy, loss = measured(adapted(config, data, w, client_id), data, rows)
        assert row.loss == pytest.approx(loss, rel=2e-4)
        assert row.accuracy == pytest.approx(accuracy, abs=1e-9)


def test_more_steps_fit_the_clients_better(tmp_path: Path) -> None:
    losses = []
    for steps in (1, 5, 25):
        config = small(
            task=TASK, client={"name": "qmaml", "inner_lr": 0.1, "adapt_steps": steps}, stop={"steps": 2}
        )
        rows = evals(run(config, tmp_path / str(steps)))
        losses.append(rows[rows.split == "unseen_personal"].loss.mean())
        others = rows[rows.split != "unseen_personal"].reset_index(drop=True)
        if steps == 1:
            first = others
        pd.testing.assert_frame_equal(first, others)
    assert losses == sorted(losses, reverse=True)
    assert len(set(losses)) == 3


# Whatever computes it, and however it goes on


@pytest.mark.ray
def test_workers_give_the_bits_of_one_process(two_workers: RayPool, tmp_path: Path) -> None:
    configs = [
        small(task=TASK, client={"name": client}, evaluate=evaluate).model_copy(
            update={"name": f"{client}-{i}"}
        )
        for client in ("plain", "ditto", "qmaml")
        for i, evaluate in enumerate(({"every_steps": 3}, {"every_steps": 2, "clients": 3}))
    ]
    expected = simulate(configs, out=tmp_path / "inline", workers=0)
    found = simulate(configs, out=tmp_path / "ray", workers=two_workers)
    assert [r.digest for r in found] == [r.digest for r in expected]


@pytest.mark.parametrize("client", ["ditto", "qmaml"])
def test_a_run_resumes_verifies_and_keeps_its_invariants(client: str, tmp_path: Path) -> None:
    config = small(
        task=TASK, client={"name": client}, checkpoint={"every_steps": 2, "keep": "all"}, pacing=BUFFERED
    )
    whole = run(config, tmp_path / "whole")
    folder = stopped_at(5, config, tmp_path)
    assert resume(folder, workers=0).digest == whole.digest
    assert all(not verdict.difference for verdict in verify(whole.folder, workers=0))
    assert all(not verdict.difference for verdict in verify(whole.folder, steps=(2, 6), workers=0))
    verdict = check(folder)
    assert verdict.violations == ()
    assert "only unseen clients are evaluated as unseen" in verdict.checked
    again = load_config(folder / "config.resolved.toml")
    assert run(again[0], tmp_path / "again").digest == whole.digest


def test_forks_and_replays_keep_the_unseen_clients(tmp_path: Path) -> None:
    config = small(task=TASK, checkpoint={"every_steps": 2, "keep": "all"})
    parent = run(config, tmp_path)
    same = fork(parent.folder, 4, out=tmp_path / "same", workers=0)
    assert same.digest == parent.digest
    other = fork(parent.folder, 4, ["client.name=ditto", "algorithm.name=fedavg"], out=tmp_path, workers=0)
    rows = evals(other)
    assert set(rows[rows.step < 4].split) == {"test", "unseen"}
    assert set(rows[rows.step == 8].split) == {"test", "unseen", "test_personal", "unseen_personal"}
    replayed = replay(
        parent.folder, ["algorithm.name=fedavg"], same_participation=True, out=tmp_path, workers=0
    )
    assert jobs(replayed)[["client", "dispatch_us"]].equals(jobs(parent)[["client", "dispatch_us"]])
    unseen = read_manifest(parent.folder)["unseen"]
    for result in (other, replayed):
        assert read_manifest(result.folder)["unseen"] == unseen
        assert check(result.folder).violations == ()
    with pytest.raises(ConfigError, match="task"):
        fork(parent.folder, 4, ["task.unseen=2"], out=tmp_path / "no", workers=0)


def test_a_world_tied_to_the_losses_of_an_earlier_run_knows_those_that_train(tmp_path: Path) -> None:
    earlier = run(small(task=TASK), tmp_path / "earlier")
    confound = {"what": "availability", "to": "loss", "run": str(earlier.folder)}
    later = run(small(task=TASK, world=CHURN | {"confound": confound}), tmp_path)
    assert later.status == "done"
    with pytest.raises(
        ConfigError, match=r"world\.confound\.run: .* expected losses of clients 0 to 11, found 8"
    ):
        prepare(small(world=CHURN | {"confound": confound}))


# What is refused


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"task": TASK | {"unseen": 12}}, "unseen: expected fewer than 'clients', which is 12, found 12"),
        ({"task": TASK | {"unseen": -1}}, r"task\.unseen.*greater than or equal to 0"),
        ({"task": TASK | {"unseen": 1.5}}, r"task\.unseen"),
        ({"task": TASK | {"unseen": "few"}}, r"task\.unseen"),
        (
            {"pacing": {"preset": "sync", "clients": 9}},
            "pacing asks for 9 clients at once, but task.clients is 12, and task.unseen keeps 4 of them out",
        ),
        (
            {"adversary": {"name": "zero", "clients": [8]}},
            "adversary 'zero': clients: expected numbers from 0 to 7, found 8",
        ),
        (
            {"stop": {"steps": 4, "target": 50.0, "split": "unseen"}},
            r"stop\.split.*'train', 'valid' or 'test'",
        ),
        ({"evaluate": {"split": "unseen"}}, r"evaluate\.split.*'train', 'valid' or 'test'"),
        (
            {"client": {"name": "qmaml", "adapt_steps": 2}, "task": {"name": "digits", "clients": 12}},
            r"client\.adapt_steps: .*no effect without unseen clients; give task\.unseen",
        ),
        (
            {"client": {"name": "ditto", "adapt_steps": 2}, "evaluate": {"personal": False}},
            r"client\.adapt_steps: .*no effect with evaluate\.personal = false",
        ),
        ({"client": {"name": "qmaml", "adapt_steps": 0}}, "option 'adapt_steps'.*greater than or equal to 1"),
    ],
)
def test_what_cannot_be_is_refused(changes: Tables, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        small(**{"task": TASK} | changes)


def test_a_run_is_refused_where_data_or_world_do_not_suffice(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"task\.unseen: .* found none"):
        prepare(small(task=TASK | {"fractions": [0.8, 0.2, 0.0]}, evaluate={"split": "valid"}))
    world = run(small(task=TASK | {"unseen": 6}, stop={"steps": 1}), tmp_path).folder / "world.parquet"
    with pytest.raises(
        TraceError, match="world: the trace has 6 clients, but 8 are wanted: expected one for each client"
    ):
        prepare(small(task=TASK, world={"trace": str(world)}))
    fixed = small(task=TASK, selection={"name": "fixed", "clients": [7, 8]})
    with pytest.raises(ConfigError, match="selector 'fixed': expected clients from 0 to 7, found 8"):
        run(fixed, tmp_path / "fixed")
    without = analysis.open_run(run(small(stop={"steps": 1}), tmp_path / "none").folder)
    with pytest.raises(FolderError, match="no evaluation on split 'unseen' was recorded; found test"):
        without.final("unseen")


def test_the_adaptation_of_every_method_with_one_is_tested() -> None:
    from fedsim import plugins

    adapting = {name for name in plugins.names("client") if plugins.build("client", name, {}).adapt}
    assert adapting == {client["name"] for _, client, _ in METHODS}
