"""SCAFFOLD, FedDyn and FedNova: the papers' pseudo-code, identities, fixed points on quadratics, and whole runs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from numpy.typing import NDArray

from fedsim import plugins
from fedsim.algorithms.fednova import weight_of_steps
from fedsim.common.errors import ConfigError, RunError
from fedsim.config.run import RunConfig
from fedsim.execution.actor_pool import RayPool
from fedsim.records.checkpoint import checkpoints, read
from fedsim.runs.build import prepare
from fedsim.runs.fork import fork
from fedsim.runs.resume import resume
from fedsim.runs.simulate import simulate
from fedsim.server.server import Server
from fedsim.server.spec import ServerSpec
from fedsim.server.step_input import StepInput
from fedsim.training.client_method import ClientMethod, Trained, checked
from fedsim.training.job import Reports
from golden_other_parts import LeastSquares
from rule_calls import combine
from small import run, small

Vector = NDArray[np.float64]
K, P, TAU, LR = 5, 4, 3, 0.05


class Client(LeastSquares):
    """A client with TAU minibatches of its own, and the gradients that it computed in its last job."""

    def __init__(self, k: int) -> None:
        draw = np.random.default_rng(k)
        truth = draw.normal(size=P) + k
        x = draw.normal(size=(TAU, 6, P))
        super().__init__({"X": x, "y": x @ truth, "lr": LR, "E": 1})
        self.rate = TAU * LR

    def gradient(self, v: Vector, batch: int) -> Vector:
        x, y = self.x[batch].numpy(), self.y[batch].numpy()
        return np.asarray(2 * x.T @ (x @ v - y) / len(y))


CLIENTS = [Client(k) for k in range(K)]


def cohorts(steps: int, everybody: bool = False) -> list[list[int]]:
    draw = np.random.default_rng(1)
    some = [sorted(draw.choice(K, draw.integers(1, K), replace=False).tolist()) for _ in range(steps)]
    return [list(range(K))] * steps if everybody else some


def ours(
    name: str, drawn: list[list[int]], clients: Any = CLIENTS, size: int = P, **options: Any
) -> Iterator[tuple[Vector, Server, dict[int, Any]]]:
    """Run the two halves of a method; yield the model, the server and what clients keep, after each step."""
    method: ClientMethod = plugins.build("client", name, options)
    server = Server(
        ServerSpec(name, {}, len(clients), len(clients), len(clients), [(0, size)]),
        torch.zeros(size, dtype=torch.float64),
    )
    kept: dict[int, Any] = {}
    for step, cohort in enumerate(drawn):
        start, *vectors = torch.split(server.sent, size)
        received, rows = dict(zip(method.receives, vectors, strict=True)), []
        assert method.offset is not None
        for k in cohort:
            own = kept.get(k, torch.zeros_like(start))
            offset = method.offset.checked(own, received, k)
            end, _ = clients[k].sgd(start, correct=method.correction((start,), (offset,)))
            kept[k], sent = method.finished(start - end, own, received, clients[k].rate, k)
            rows.append(torch.cat([start - end, *(sent[name] for name in method.sends)]))
        who = np.array(cohort)
        reports = Reports.nothing(len(who))
        server.step(StepInput(step, who, 0 * who, 0 * who + 1, online=who, reports=reports), rows)
        yield server.params.numpy(), server, kept


def scaffold(drawn: list[list[int]]) -> Iterator[tuple[Vector, Vector, Vector]]:
    """Algorithm 1 with Option II and a global step of 1, line by line."""
    x, c, own = np.zeros(P), np.zeros(P), np.zeros((K, P))
    for cohort in drawn:
        model_changes, control_changes = [], []
        for i in cohort:
            y = x.copy()
            for k in range(TAU):
                y = y - LR * (CLIENTS[i].gradient(y, k) - own[i] + c)
            fresh = own[i] - c + (x - y) / (TAU * LR)
            model_changes.append(y - x)
            control_changes.append(fresh - own[i])
            own[i] = fresh
        x = x + np.mean(model_changes, axis=0)
        c = c + len(cohort) / K * np.mean(control_changes, axis=0)
        yield x, c, own.copy()


def test_scaffold_is_algorithm_1() -> None:
    drawn = cohorts(12)
    for (params, server, kept), (x, c, own) in zip(ours("scaffold", drawn), scaffold(drawn), strict=True):
        np.testing.assert_allclose(params, x, rtol=1e-10)
        np.testing.assert_allclose(server.vectors["control"].numpy(), c, rtol=1e-10, atol=1e-12)
        for k, vector in kept.items():
            np.testing.assert_allclose(vector.numpy(), own[k], rtol=1e-10, atol=1e-12)
        np.testing.assert_allclose(c, own.mean(axis=0), rtol=1e-10, atol=1e-12)


def test_scaffold_s_control_variate_is_the_mean_of_the_raw_gradients() -> None:
    drawn = [[2], [2]]
    *_, (_, _, kept) = ours("scaffold", drawn)
    x, c, own = next(scaffold(drawn))
    y, gradients = x.copy(), []
    for k in range(TAU):
        gradients.append(CLIENTS[2].gradient(y, k))
        y = y - LR * (gradients[-1] - own[2] + c)
    np.testing.assert_allclose(kept[2].numpy(), np.mean(gradients, axis=0), rtol=1e-10)


def test_the_first_step_of_scaffold_is_fedavg_s_and_a_single_client_does_plain_sgd() -> None:
    def plain(x: Vector, k: int) -> Vector:
        for batch in range(TAU):
            x = x - LR * CLIENTS[k].gradient(x, batch)
        return x

    first = next(ours("scaffold", [list(range(K))]))[0]
    np.testing.assert_allclose(first, np.mean([plain(np.zeros(P), k) for k in range(K)], axis=0))
    x = np.zeros(P)
    for params, _, _ in ours("scaffold", [[0]] * 4, CLIENTS[:1]):
        x = plain(x, 0)
        np.testing.assert_allclose(params, x, rtol=1e-10)


ALPHA = 0.3


def feddyn(drawn: list[list[int]]) -> Iterator[tuple[Vector, Vector, Vector]]:
    """The authors' loop: each client minimises its loss with both penalties; the server adds the mean of all drifts."""
    x, drift = np.zeros(P), np.zeros((K, P))
    for cohort in drawn:
        ends = []
        for i in cohort:
            v = x.copy()
            for k in range(TAU):
                v = v - LR * (CLIENTS[i].gradient(v, k) + ALPHA * drift[i] + ALPHA * (v - x))
            drift[i] = drift[i] + (v - x)
            ends.append(v)
        x = np.mean(ends, axis=0) + drift.mean(axis=0)
        yield x, drift.mean(axis=0), drift.copy()


def test_feddyn_is_the_authors_loop() -> None:
    drawn = cohorts(12)
    made = ours("feddyn", drawn, alpha=ALPHA)
    for (params, server, kept), (x, mean, drift) in zip(made, feddyn(drawn), strict=True):
        np.testing.assert_allclose(params, x, rtol=1e-10)
        np.testing.assert_allclose(server.vectors["moved"].numpy(), -mean, rtol=1e-10, atol=1e-12)
        for k, vector in kept.items():
            np.testing.assert_allclose(vector.numpy(), drift[k], rtol=1e-10, atol=1e-12)


def test_feddyn_s_first_step_with_everybody_is_twice_the_mean() -> None:
    everybody = cohorts(1, everybody=True)
    first = next(ours("feddyn", everybody, alpha=1e-9))[0]
    plain = next(ours("scaffold", everybody))[0]
    np.testing.assert_allclose(first, 2 * plain, rtol=1e-6)


class Quadratic:
    """F(w) = a/2 (w - c)^2 in one dimension, and TAU steps of gradient descent on it."""

    def __init__(self, a: float, c: float, steps: int = TAU) -> None:
        self.a, self.c, self.steps, self.rate = a, c, steps, 0.1 * steps

    def views(self, flat: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (flat,)

    def sgd(self, start: torch.Tensor, correct: Any = None) -> tuple[torch.Tensor, float]:
        v = start.clone()
        for _ in range(self.steps):
            gradient = (self.a * (v - self.c),)
            v = v - 0.1 * (correct(gradient, (v,), 0.1) if correct else gradient)[0]
        return v, 0.0


BOWLS = [Quadratic(0.2, -2.0), Quadratic(1.0, 0.0), Quadratic(4.0, 1.0)]


@pytest.mark.parametrize(("name", "options"), [("scaffold", {}), ("feddyn", {"alpha": 1.0})])
def test_local_steps_bias_fedavg_and_these_methods_not(name: str, options: dict[str, Any]) -> None:
    """FedAvg with τ local steps converges to Σ b c / Σ b with b = 1 - (1 - η a)^τ; the optimum is Σ a c / Σ a."""
    a, c = np.array([[bowl.a, bowl.c] for bowl in BOWLS]).T
    optimum, b = a @ c / a.sum(), 1 - (1 - 0.1 * a) ** TAU
    biased, w = b @ c / b.sum(), 0.0
    for _ in range(300):
        w = float(np.mean([float(bowl.sgd(torch.tensor([w], dtype=torch.float64))[0]) for bowl in BOWLS]))
    assert w == pytest.approx(biased, abs=1e-9)
    assert abs(biased - optimum) > 0.02
    some = [[0, 1], [2], [1, 2], [0]] * 300
    for drawn in (cohorts_of_three(400), some):
        *_, (params, _, _) = ours(name, drawn, BOWLS, 1, **options)
        assert params.item() == pytest.approx(optimum, abs=1e-4), drawn[:4]


def cohorts_of_three(steps: int) -> list[list[int]]:
    return [[0, 1, 2]] * steps


# FedNova


@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.9])
def test_the_weight_of_local_steps_counts_each_gradient(momentum: float) -> None:
    for tau in (1, 2, 7):
        velocity, moved = np.zeros(tau), np.zeros(tau)
        for step in range(tau):
            velocity = momentum * velocity + np.eye(tau)[step]
            moved += velocity
        assert weight_of_steps(np.array([float(tau)]), momentum)[0] == pytest.approx(moved.sum())


def nova(rows: Vector, tau: Vector, n: Vector, weight: Vector, effective: Vector) -> Vector:
    p = n / n.sum()
    return np.asarray((p @ effective) * np.sum(p[:, None] * rows / weight[:, None], axis=0))


ROWS = np.random.default_rng(0).normal(size=(3, 4))
GIVEN: dict[str, Any] = {"losses": None, "n_samples": [10, 20, 30], "local_steps": [1, 4, 9]}
TAUS, SAMPLES = np.array([1.0, 4.0, 9.0]), np.array([10.0, 20.0, 30.0])


def test_fednova_is_equation_7() -> None:
    found = combine("fednova", ROWS, **GIVEN).direction
    np.testing.assert_allclose(found, nova(ROWS, TAUS, SAMPLES, TAUS, TAUS))
    heavy = np.array([(t - 0.5 * (1 - 0.5**t) / 0.5) / 0.5 for t in TAUS])
    found = combine("fednova", ROWS, momentum=0.5, **GIVEN).direction
    np.testing.assert_allclose(found, nova(ROWS, TAUS, SAMPLES, heavy, heavy))
    pull, weight = 0.1 * 0.3, np.zeros(3)
    for i, t in enumerate(TAUS):
        for _ in range(int(t)):
            weight[i] = (1 - pull) * weight[i] + 1
    found = combine("fednova", ROWS, mu=0.3, lr=0.1, **GIVEN).direction
    np.testing.assert_allclose(found, nova(ROWS, TAUS, SAMPLES, weight, TAUS))


def test_fednova_of_equal_steps_is_fedavg_and_longer_jobs_count_no_more() -> None:
    equal = combine("fednova", ROWS, **GIVEN | {"local_steps": [5, 5, 5]}).direction
    np.testing.assert_allclose(equal, combine("fedavg", ROWS, **GIVEN).direction)
    longer = ROWS * np.array([[1.0], [2.0], [1.0]])
    one, two = (
        combine("fednova", rows, **GIVEN | {"local_steps": steps})
        for rows, steps in ((ROWS, [1, 4, 9]), (longer, [1, 8, 9]))
    )
    shares = SAMPLES / SAMPLES.sum()
    assert_effective = [shares @ np.array(steps) for steps in ([1, 4, 9], [1, 8, 9])]
    np.testing.assert_allclose(one.direction / assert_effective[0], two.direction / assert_effective[1])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mu": 0.1, "momentum": 0.5}, "mu: expected 0 with momentum 0.5, found 0.1"),
        ({"mu": 0.1}, "lr: needed with mu"),
    ],
)
def test_fednova_refuses_what_it_cannot_weigh(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        combine("fednova", ROWS, **options, **GIVEN)


def test_fednova_needs_the_numbers_of_steps() -> None:
    with pytest.raises(RunError, match="local_steps: expected the clients' local steps, found none"):
        combine("fednova", ROWS, losses=None)


def test_a_run_tells_fednova_the_momentum_and_the_steps_that_clients_did() -> None:
    spec = prepare(
        small(
            algorithm={"name": "fednova"},
            train={"batch_size": 10, "epochs": 3, "momentum": 0.5},
            cost={"completeness": {"mode": "epochs", "low": 1, "high": 3}, "payload": "5 MB"},
        )
    )
    assert spec.server.momentum == 0.5
    sizes = spec.data.train.sizes
    clients, shares = np.arange(3), np.array([1.0, 2 / 3, 1 / 3])
    per_epoch = -(-sizes[clients] // 10)
    seen = spec.plan.costs.steps_done(clients, shares).tolist()
    assert seen == [3 * per_epoch[0], 2 * per_epoch[1], per_epoch[2]]


def test_fedprox_as_released_tells_fednova_of_the_one_step_that_it_takes() -> None:
    spec = prepare(
        small(
            algorithm={"name": "fednova"},
            client={"name": "fedprox", "form": "released"},
            train={"batch_size": 10},
        )
    )
    assert spec.plan.costs.steps_done(np.arange(12), np.ones(12)).tolist() == [1] * 12


# in runs


def two_halves(name: str, **changes: Any) -> RunConfig:
    return small(algorithm={"name": name}, client={"name": name}, **changes)


FEDBUFF = {"preset": "fedbuff", "concurrency": 5, "buffer": 3}


@pytest.mark.parametrize("name", ["scaffold", "feddyn"])
def test_an_interrupted_run_has_the_digest_of_a_whole_one(name: str, tmp_path: Path) -> None:
    config = two_halves(name, pacing=FEDBUFF, stop={"steps": 9})
    whole = run(config, tmp_path / "whole")

    def stop(progress: Any) -> None:
        if progress.run_state.step == 4:
            raise KeyboardInterrupt

    broken = run(config.model_copy(update={"name": "broken"}), tmp_path / "b", watch=stop)
    assert broken.status == "interrupted"
    assert resume(broken.folder, workers=0).digest == whole.digest


@pytest.mark.ray
def test_workers_give_the_digest_of_one_process(two_workers: RayPool, tmp_path: Path) -> None:
    configs = [
        two_halves(name, pacing=pacing, stop={"steps": 6}).model_copy(update={"name": f"{name}{number}"})
        for name in ("scaffold", "feddyn")
        for number, pacing in enumerate((FEDBUFF, {"preset": "overselect", "clients": 3, "extra": 2}))
    ]
    expected = simulate(configs, out=tmp_path / "inline", workers=0)
    found = simulate(configs, out=tmp_path / "ray", workers=two_workers)
    assert [r.digest for r in found] == [r.digest for r in expected]
    assert len({r.digest for r in found}) == 4


def test_scaffold_moves_twice_the_bytes_both_ways(tmp_path: Path) -> None:
    def moved(config: RunConfig, out: str) -> tuple[int, int]:
        jobs = pq.read_table(run(config, tmp_path / out).folder / "jobs.parquet").to_pandas()
        done = jobs[jobs.status == "aggregated"].iloc[0]
        return int(done.download_bytes), int(done.upload_bytes)

    plain = moved(small(algorithm={"name": "fedavg"}), "a")
    assert moved(two_halves("scaffold"), "b") == (2 * plain[0], 2 * plain[1])
    assert moved(two_halves("feddyn"), "c") == plain


@pytest.mark.parametrize(
    ("algorithm", "client", "message"),
    [
        ("scaffold", "plain", "client.name: rule 'scaffold' is one half .*: expected 'scaffold', found 'plain'"),
        ("fedavg", "scaffold", "algorithm.name: client 'scaffold' is one half .* expected 'scaffold', found 'fedavg'"),
        ("feddyn", "fedprox", "client.name: rule 'feddyn' is one half of a method: expected 'feddyn', found 'fedprox'"),
        ("scaffold", "feddyn", "client.name: rule 'scaffold' is one half"),
    ],
)  # fmt: skip
def test_half_a_method_is_refused(algorithm: str, client: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        prepare(small(algorithm={"name": algorithm}, client={"name": client}))


def test_halves_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "quiet.py"
    file.write_text(
        "from fedsim import ClientMethod\n"
        "def quiet():\n    return ClientMethod(lambda local, start, kept: None, receives=('mood',))\n"
    )
    with pytest.raises(
        ConfigError, match=r"do not fit: the rule sends the vectors \[\] and the client method .*mood"
    ):
        prepare(small(algorithm={"name": "fedavg"}, client={"name": f"{file}:quiet"}))


def test_what_a_method_sends_is_checked() -> None:
    end = torch.zeros(3)
    with pytest.raises(RunError, match=r"client 4: .* must return 'sent' with \['control'\], found \[\]"):
        checked(Trained(end, 0.0), 3, 4, ("control",))
    with pytest.raises(
        RunError, match=r"must return 'sent' with 'control' as a tensor \[3\], found shape \[2\]"
    ):
        checked(Trained(end, 0.0, sent={"control": end[:2]}), 3, 4, ("control",))


def test_a_fork_to_another_rule_leaves_the_vectors_behind(tmp_path: Path) -> None:
    parent = run(two_halves("scaffold", pacing=FEDBUFF, stop={"steps": 6}), tmp_path / "p")
    sets = ("algorithm.name=fedavg", "client.name=plain")
    child = fork(parent.folder, at=3, sets=sets, name="child", out=tmp_path / "c", workers=0)
    assert child.status == "done"
    same = fork(parent.folder, at=3, name="same", out=tmp_path / "s", workers=0)
    assert same.digest == parent.digest


def test_a_fork_to_scaffold_starts_without_control_variates(tmp_path: Path) -> None:
    parent = run(small(algorithm={"name": "fedavg"}, pacing=FEDBUFF, stop={"steps": 6}), tmp_path / "p")
    sets = ("algorithm.name=scaffold", "client.name=scaffold")
    child = fork(parent.folder, at=3, sets=sets, name="child", out=tmp_path / "c", workers=0)
    assert child.status == "done"
    assert child.digest != parent.digest


def apart(folder: Path, name: str) -> float:
    """Return how far the server's vector is from what clients keep, whose mean it is by both papers, in shares of it.

    SCAFFOLD: c = 1/K Σ c_k. FedDyn: h = -1/K times the sum of what the clients keep.
    """
    trainer = read(checkpoints(folder)[-1].path)["trainer"]
    vector = trainer["server"]["vectors"]["control" if name == "scaffold" else "moved"]
    mean = sum(kept.double() for kept in trainer["kept"]) / len(trainer["server"]["participations"])
    assert mean.norm() > 0
    return float((vector - (mean if name == "scaffold" else -mean)).norm() / mean.norm())


SAVED = {"checkpoint": {"every_steps": 4, "keep": "all"}, "stop": {"steps": 8}}


@pytest.mark.parametrize("name", ["scaffold", "feddyn"])
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"bad_updates": {"limit": 1.3}},
        {"adversary": {"name": "nan", "clients": [0, 1, 2, 3], "chance": 0.5}},
        {"pacing": {"preset": "overselect", "clients": 3, "extra": 2}},
    ],
)
def test_the_server_follows_what_clients_keep(name: str, changes: dict[str, Any], tmp_path: Path) -> None:
    config = two_halves(name, **SAVED, **changes)
    folder = run(config, tmp_path).folder
    left_out = pq.read_table(folder / "steps.parquet")["nonfinite"].to_numpy().sum()
    assert (left_out > 0) == ("bad_updates" in changes or "adversary" in changes)
    assert apart(folder, name) < 1e-5


@pytest.mark.ray
@pytest.mark.parametrize("name", ["scaffold", "feddyn"])
def test_actors_too_keep_nothing_of_an_update_that_is_too_long(
    name: str, two_workers: RayPool, tmp_path: Path
) -> None:
    config = two_halves(name, **SAVED, bad_updates={"limit": 1.3})
    digests = {run(config, tmp_path / str(where), workers=where).digest for where in (0, two_workers)}
    assert len(digests) == 1


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("scaffold", "algorithm.server_lr=0.5"),
        ("scaffold", "train.lr=0.04"),
        ("feddyn", "client.alpha=0.1"),
        ("feddyn", "train.lr=0.04"),
    ],
)
def test_a_fork_of_a_method_keeps_both_halves_or_none(name: str, change: str, tmp_path: Path) -> None:
    parent = run(two_halves(name, **SAVED), tmp_path / "p")
    child = fork(parent.folder, at=4, sets=[change], name="child", out=tmp_path / "c", workers=0)
    assert child.digest != parent.digest
    assert apart(child.folder, name) < 1e-5


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        (
            "scaffold",
            {
                "algorithm": {"name": "scaffold", "wrap": [{"name": "with_absent"}]},
                "pacing": {"preset": "sync", "clients": 4, "deadline": "2min", "late": "history"},
            },
            "pacing.late: rule 'scaffold' receives vectors .*: expected 'drop' or 'keep', found 'history'",
        ),
        (
            "feddyn",
            {"algorithm": {"name": "feddyn", "wrap": [{"name": "discounted"}]}},
            "rule 'feddyn' follows what clients keep .*: leave out the wrappers",
        ),
        (
            "feddyn",
            {"algorithm": {"name": "feddyn", "rows": "current"}, "pacing": FEDBUFF},
            "algorithm.rows: rule 'feddyn' follows .*: expected 'start', found 'current'",
        ),
        (
            "feddyn",
            {"bad_updates": {"policy": "clip", "limit": 1.0}},
            "bad_updates.policy: rule 'feddyn' follows .*: expected 'skip_and_record' or 'stop', found 'clip'",
        ),
    ],
)
def test_what_would_part_the_halves_is_refused(name: str, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        prepare(small(**{"algorithm": {"name": name}, "client": {"name": name}} | changes))
