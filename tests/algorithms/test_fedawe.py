"""FedAWE: the paper's pseudo-code, fixed points on quadratics, whole runs, and which models are kept."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file

from fedsim.common.errors import ConfigError, RunError
from fedsim.config.run import RunConfig
from fedsim.engine.event_loop import EventLoop
from fedsim.engine.job_table import LANDED, RUNNING, JobTable
from fedsim.engine.state import RunState
from fedsim.execution.actor_pool import RayPool
from fedsim.execution.inline_trainer import InlineTrainer
from fedsim.runs.build import prepare
from fedsim.runs.checkpointer import open_jobs
from fedsim.runs.fork import fork
from fedsim.runs.memory_estimate import Footprint
from fedsim.runs.result import Result
from fedsim.runs.simulate import simulate
from fedsim.runs.spec import RunSpec
from fedsim.server.combine import combine
from fedsim.server.rule import Algorithm, Direction, Stack, stateless
from fedsim.server.rule_check import weigh
from fedsim.server.rule_factory import build_rule
from fedsim.server.server import Server
from fedsim.server.spec import ServerSpec
from fedsim.server.step_input import StepInput
from fedsim.training.job import Cohort, Job, Reports, nth_jobs
from fedsim.training.workbench import Workbench
from fedsim.worlds.job_outcomes import Outcomes
from small import run, small
from timelines import Book

Vector = NDArray[np.float64]
BUFFERED = {"preset": "fedbuff", "concurrency": 6, "buffer": 3}
AWAY = {"scenario": "churn", "horizon": "2h", "options": {"mean_on": "6min", "mean_off": "12min"}}
"""A world in which clients are absent for several steps."""

# The pseudo-code

P = 3
TARGETS = np.array([[-1.0, 0.0, 2.0], [0.0, 1.0, 0.0], [3.0, -2.0, 1.0], [1.0, 1.0, -1.0]])
K = len(TARGETS)
Steps = Callable[[int, Vector], Vector]
"""From a client and the model that it starts from to the model that it trained."""


def sgd(client: int, start: Vector, lr: float = 0.1, steps: int = 2) -> Vector:
    """Take local steps on F_k(w) = ||w - c_k||^2 / 2."""
    w = start
    for _ in range(steps):
        w = w - lr * (w - TARGETS[client, : len(w)])
    return w


def algorithm_1(
    drawn: list[list[int]], local: Steps, initial: Vector, server_lr: float = 1.0, clip: float = np.inf
) -> Iterator[Vector]:
    """Algorithm 1 of the paper with the clipping of the authors' code; `drawn` are the active clients by round."""
    x, own, tau = initial, dict.fromkeys(range(100), initial), dict.fromkeys(range(100), -1)
    for t, active in enumerate(drawn):
        if active:
            innovation = np.mean([(t - tau[i]) * (own[i] - local(i, own[i])) for i in active], axis=0)
            innovation = innovation * min(1.0, clip / np.linalg.norm(innovation))
            x = np.mean([own[i] for i in active], axis=0) - server_lr * innovation
            for i in active:
                own[i], tau[i] = x, t
        yield x


def echo(drawn: list[list[int]], local: Steps, initial: Vector) -> Iterator[Vector]:
    """The same from the current model."""
    x, tau = initial, [-1] * K
    for t, active in enumerate(drawn):
        if active:
            x = x - np.mean([(t - tau[i]) * (x - local(i, x)) for i in active], axis=0)
            for i in active:
                tau[i] = t
        yield x


def served(drawn: list[list[int]], local: Steps, initial: Vector, **options: Any) -> Iterator[Vector]:
    """A server with the rule, and clients that start from what they received last."""
    spec = ServerSpec("fedawe", options, K, K, K, [(0, len(initial))])
    server = Server(spec, torch.from_numpy(initial))
    last, models = [-1] * K, {0: server.params}
    for step, active in enumerate(drawn):
        now = options.get("start") == "current"
        starts = np.array([step if now else last[i] + 1 for i in active], dtype=np.int64)
        ends = [local(i, models[start].numpy()) for i, start in zip(active, starts.tolist(), strict=True)]
        rows = [
            models[start] - torch.from_numpy(end) for start, end in zip(starts.tolist(), ends, strict=True)
        ]
        who, old = np.array(active, dtype=np.int64), {v: models[v] for v in {*starts.tolist()} - {step}}
        server.step(
            StepInput(
                step, who, 0 * who, 0 * who + 1, online=who, reports=Reports.nothing(len(who)), starts=starts
            ),
            rows,
            old,
        )
        for i in active:
            last[i] = step
        models = {v: model for v, model in models.items() if v - 1 in last} | {step + 1: server.params}
        yield server.params.numpy()


def some(steps: int, rates: Vector, seed: int = 0) -> list[list[int]]:
    draw = np.random.default_rng(seed)
    return [np.flatnonzero(draw.random(len(rates)) < rates).tolist() for _ in range(steps)]


UNEQUAL = np.array([0.9, 0.5, 0.15, 0.3])


@pytest.mark.parametrize("options", [{}, {"server_lr": 0.5}, {"clip": 0.5}, {"clip": 0.3, "server_lr": 2.0}])
@pytest.mark.parametrize("seed", [1, 2])
def test_the_rule_is_algorithm_1(options: dict[str, float], seed: int) -> None:
    drawn = [[], *some(20, UNEQUAL, seed), [], *some(20, UNEQUAL, seed + 2)]
    ours, theirs = served(drawn, sgd, np.ones(P), **options), algorithm_1(drawn, sgd, np.ones(P), **options)
    for mine, published in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(mine, published, rtol=1e-10, atol=1e-12)


def test_from_the_current_model_it_only_echoes() -> None:
    drawn = some(40, UNEQUAL)
    for mine, expected in zip(
        served(drawn, sgd, np.ones(P), start="current"), echo(drawn, sgd, np.ones(P)), strict=True
    ):
        np.testing.assert_allclose(mine, expected, rtol=1e-10, atol=1e-12)


def test_with_everybody_present_it_is_the_mean_of_the_models() -> None:
    x = np.ones(P)
    for params in served([list(range(K))] * 6, sgd, x):
        x = np.mean([sgd(k, x) for k in range(K)], axis=0)
        np.testing.assert_allclose(params, x, rtol=1e-12)


def test_the_weights_of_a_client_add_up_to_the_steps_that_passed() -> None:
    rule, state, total, uses = build_rule("fedawe", {}), None, np.zeros(K), np.full(K, -1)
    state = rule.init()
    for step, active in enumerate(some(60, UNEQUAL)):
        if active:
            who = np.array(active)
            direction, state = rule.weigh(stack_of(who, step), state)
            total[who] += len(active) * direction.weights
            uses[who] = step
    np.testing.assert_allclose(total, uses + 1)


def test_a_client_with_two_updates_counts_once_with_their_mean() -> None:
    rule = build_rule("fedawe", {})
    direction, _ = rule.weigh(stack_of(np.array([2, 0, 2]), 4), rule.init())
    np.testing.assert_allclose(direction.weights, 5 * np.array([0.25, 0.5, 0.25]))
    assert direction.gaps is not None
    np.testing.assert_allclose(direction.gaps, [0.25, 0.5, 0.25])


def stack_of(clients: NDArray[np.int64], step: int) -> Stack:
    n = len(clients)
    zeros, ones = np.zeros(n, dtype=np.int64), np.ones(n, dtype=np.int64)
    known = np.ones(n, dtype=bool)
    return Stack(
        np.zeros((0, n, n)), np.full(n, np.nan), n, clients, ones, zeros, zeros, ones, known, step, K, K, 0
    )


def test_unequal_participation_moves_fedavg_and_the_echo_off_the_optimum_and_fedawe_not() -> None:
    rates, optimum = np.array([0.9, 0.5, 0.2]), TARGETS[:3, :1].mean()
    drawn = some(2500, rates)
    local = partial(sgd, lr=0.02, steps=1)
    x, averaged = np.zeros(1), []
    for active in drawn:
        x = np.mean([local(k, x) for k in active], axis=0) if active else x
        averaged.append(x)
    later = {
        "fedavg": averaged,
        "echo": list(served(drawn, local, np.zeros(1), start="current")),
        "fedawe": list(served(drawn, local, np.zeros(1))),
    }
    bias = {name: abs(float(np.mean(models[800:])) - optimum) for name, models in later.items()}
    assert bias["fedawe"] < 0.08
    assert bias["fedavg"] > 0.8
    assert bias["echo"] > 0.15


# Runs


def awe(**changes: Any) -> RunConfig:
    return small(**{"algorithm": {"name": "fedawe"}, "world": AWAY, "stop": {"steps": 12}} | changes)


def final(result: Result) -> torch.Tensor:
    return load_file(result.folder / "model.safetensors")["params"]


def by_hand(spec: RunSpec, result: Result) -> torch.Tensor:
    """Play Algorithm 1 with the active clients of a run, and train its jobs again."""
    bench, jobs = Workbench(spec.bench, spec.data), result.run.frame("jobs")
    jobs["nth"] = nth_jobs(jobs.job.to_numpy(), jobs.client.to_numpy())
    used = jobs[jobs.status == "aggregated"]
    of_step: dict[int, dict[int, Any]] = {step: {} for step in range(len(result.run.frame("steps")))}
    for row in used.itertuples():
        of_step[row.step][row.client] = row
    drawn, step = [list(clients) for clients in of_step.values()], iter(of_step.values())
    now: dict[int, Any] = {}

    def local(client: int, start: Vector) -> Vector:
        while client not in now:
            now.clear()
            now.update(next(step))
        row = now.pop(client)
        update = torch.empty(1, bench.columns)
        job = Job(int(row.job), client, int(row.nth), int(row.version), float(row.share))
        bench.train(Cohort.of([job]), [torch.from_numpy(start).float()], update)
        return np.asarray(start - update[0].double().numpy())

    *_, last = algorithm_1(drawn, local, spec.initial().double().numpy())
    return torch.from_numpy(last).float()


def test_a_run_is_algorithm_1_with_the_same_jobs(tmp_path: Path) -> None:
    config = awe()
    result = run(config, tmp_path)
    expected = by_hand(prepare(config), result)
    torch.testing.assert_close(final(result), expected, rtol=1e-4, atol=1e-5)
    jobs = result.run.frame("jobs")
    used = jobs[jobs.status == "aggregated"].sort_values(["client", "step"])
    absences = used.groupby("client").step.diff().dropna()
    assert (absences > 2).any(), "some were absent for several steps"


def test_a_run_with_everybody_in_every_step_is_fedavg(tmp_path: Path) -> None:
    everybody: dict[str, Any] = {
        "world": {"scenario": "always_on", "horizon": "2h"},
        "pacing": {"preset": "sync", "clients": 12},
        "stop": {"steps": 5},
    }
    ours = run(small(**everybody, algorithm={"name": "fedawe"}), tmp_path / "a")
    plain = run(small(**everybody, algorithm={"name": "fedavg", "weighting": "uniform"}), tmp_path / "b")
    torch.testing.assert_close(final(ours), final(plain), rtol=1e-5, atol=1e-6)


@pytest.mark.ray
def test_workers_give_the_digest_of_one_process(two_workers: RayPool, tmp_path: Path) -> None:
    cases: list[dict[str, Any]] = [
        {},
        {"pacing": BUFFERED},
        {"pacing": BUFFERED, "client": {"name": "ditto"}},
        {"algorithm": {"name": "fedawe", "clip": 0.5}, "pacing": {"preset": "fedasync", "concurrency": 5}},
        {"algorithm": {"name": "fedasync", "rows": "current"}, "pacing": BUFFERED},
    ]
    configs = [awe(**case).model_copy(update={"name": f"case{i}"}) for i, case in enumerate(cases)]
    expected = simulate(configs, out=tmp_path / "inline", workers=0)
    found = simulate(configs, out=tmp_path / "ray", workers=two_workers)
    assert [r.digest for r in found] == [r.digest for r in expected]
    assert len({r.digest for r in found}) == len(cases)


class Counting(InlineTrainer):
    """Notes after each step the versions of the models that it keeps."""

    kept: list[set[int]]

    def step(self, arrivals: StepInput, cohort: Cohort) -> Any:
        result = super().step(arrivals, cohort)
        self.kept.append(set(self.save()["versions"]))
        return result


@pytest.mark.parametrize("pacing", [{"preset": "sync", "clients": 4}, BUFFERED])
def test_a_model_is_kept_until_no_client_holds_it_and_no_job_started_from_it(pacing: dict[str, Any]) -> None:
    spec = prepare(awe(pacing=pacing, stop={"steps": 30}))
    trainer = Counting(Workbench(spec.bench, spec.data), Server(spec.server, spec.initial()))
    trainer.kept = []
    run_state = RunState(spec.data.n_clients)
    event_loop = EventLoop(spec.world, spec.plan, trainer, Book(run_state), run_state)
    needed: list[set[int]] = []

    def note(state: RunState) -> None:
        table, last = state.job_table.table, state.client_records.last_step
        under_way = np.isin(table["status"], (RUNNING, LANDED))
        needed.append({*(last + 1).tolist(), *table["start"][under_way].tolist()} - {state.step})

    for _ in event_loop.instants(note):
        pass
    assert trainer.kept == needed
    sizes = [len(kept) for kept in trainer.kept]
    assert 3 < max(sizes) <= spec.data.n_clients + spec.plan.pacing.concurrency
    assert run_state.step == 30


def test_the_estimate_of_memory_has_a_model_for_each_client() -> None:
    rows = {}
    for name in ("fedavg", "fedawe"):
        spec = prepare(awe(algorithm={"name": name}))
        parts = Footprint(spec.server, spec.plan.pacing, data_bytes=0, trace_bytes=0, workers=0).parts()
        rows[name] = parts["parameters"] // (4 * spec.network.P)
    assert rows["fedawe"] == rows["fedavg"] + 12


# Refusals


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"algorithm": {"name": "fedawe", "rows": "current"}, "pacing": BUFFERED},
            r"algorithm\.rows: .*expected 'start', found 'current'",
        ),
        (
            {"pacing": {"preset": "deadline", "clients": 6, "deadline": "10min", "late": "history"}},
            r"pacing\.late: .*expected 'drop' or 'keep', found 'history'",
        ),
        ({"audit": {"every": 2, "clients": 3}}, r"audit\.every: .*expected 0, found 2"),
        ({"algorithm": {"name": "fedawe", "wrap": [{"name": "server_opt"}]}}, "leave out the wrappers"),
    ],
)  # fmt: skip
def test_what_takes_updates_of_the_current_model_for_granted_is_refused(
    changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        prepare(awe(**changes))


def test_from_the_current_model_nothing_of_that_is_refused(tmp_path: Path) -> None:
    rule = {"name": "fedawe", "start": "current", "rows": "current", "wrap": [{"name": "server_opt"}]}
    config = awe(algorithm=rule, pacing=BUFFERED, audit={"every": 2, "clients": 3})
    assert run(config, tmp_path).status == "done"


def test_updates_alone_are_not_enough() -> None:
    with pytest.raises(ConfigError, match="argument 'rule': it starts clients from the models"):
        combine("fedawe", np.eye(2), losses=None)
    found = combine("fedawe", np.eye(2), losses=None, options={"start": "current"}, step=3)
    np.testing.assert_allclose(found.weights, [[2.0, 2.0]])


def test_a_fork_keeps_the_rule_or_leaves_it(tmp_path: Path) -> None:
    plain = run(small(algorithm={"name": "fedavg"}, pacing=BUFFERED), tmp_path / "plain")
    for sets in ("algorithm.name=fedawe", "algorithm={name='fedawe',server_lr=0.5}"):
        with pytest.raises(ConfigError, match="fork: algorithm: rule 'fedawe' starts clients"):
            fork(plain.folder, at=3, sets=(sets,), out=tmp_path / "refused", workers=0)
    parent = run(awe(pacing=BUFFERED), tmp_path / "parent")
    with pytest.raises(ConfigError, match="expected the parent's rule and options"):
        fork(parent.folder, at=3, sets=("algorithm.server_lr=0.5",), out=tmp_path / "refused", workers=0)
    for name, sets in {"away": "algorithm.name=fedavg", "longer": "stop.steps=14"}.items():
        child = fork(parent.folder, at=5, sets=(sets,), name=name, out=tmp_path / name, workers=0)
        assert child.status == "done"
        assert child.digest != parent.digest


def gaps_of(gaps: Any, start: Any = "last") -> Any:
    rule = stateless(lambda stack: Direction(np.ones(stack.n), gaps=gaps))
    return weigh(replace(rule, start=start), stack_of(np.arange(2), 0), {}, "own")


@pytest.mark.parametrize("gaps", [np.ones(3), np.ones((2, 1)), np.array([1.0, np.nan]), np.array(["a", "b"])])
def test_weights_of_gaps_are_checked(gaps: Any) -> None:
    with pytest.raises(RunError, match=r"rule 'own': gaps: expected finite numbers \[2\]"):
        gaps_of(gaps)
    assert gaps_of(np.ones(2))[0].gaps.tolist() == [1, 1]
    with pytest.raises(RunError, match="gaps: expected None of a rule without start='last'"):
        gaps_of(np.ones(2), start="current")


def test_another_start_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Algorithm(lambda stack, state: (Direction(np.ones(1)), state), start="first")  # type: ignore[arg-type]
    monkeypatch.setattr("fedsim.server.rule_factory.build", lambda *given, **more: made)
    with pytest.raises(ConfigError, match="expected 'current' or 'last' for 'start', found 'first'"):
        build_rule("fedavg", {})


def test_open_jobs_are_resumed_from_their_starts() -> None:
    """Job 1 started from version 2, which is kept; no model of its own version, 5, is."""
    table, k, zeros = JobTable(), np.arange(3), np.zeros(3, dtype=np.int64)
    jobs = Cohort(k, k, zeros, np.array([5, 5, 7]), np.ones(3), zeros, starts=np.array([0, 2, 2]))
    table.open(
        jobs, 0, Outcomes(np.ones(3, dtype=bool), zeros, zeros, zeros, zeros.astype(np.int8), zeros, zeros)
    )
    found = [(int(c.start_versions[0]), c.ids.tolist()) for c in open_jobs(table, [0, 2])]
    assert found == [(0, [0]), (2, [1, 2])]
