"""Rules that correct for who takes part: the published recursions, unbiased means, and fixed points on quadratics."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from fedsim.common.errors import RunError
from fedsim.server.rule import Stack
from fedsim.server.rule_factory import build_rule
from fedsim.server.server import Server
from fedsim.server.spec import ServerSpec
from fedsim.server.step_input import StepInput
from fedsim.training.job import Reports
from rule_calls import combine
from stacks import assert_same, updates

Rows = NDArray[np.float64]
K, P = 6, 5
SAMPLES = np.array([10, 20, 30, 40, 50, 60])
Step = tuple[list[int], Rows]


def cohorts(seed: int, steps: int, twice: bool = False) -> list[Step]:
    """Draw who takes part in each step, at least one client, and its updates; `twice` lets clients send several."""
    draw = np.random.default_rng(seed)
    rates = np.array([0.9, 0.7, 0.5, 0.3, 0.2, 0.1])
    made = []
    for step in range(steps):
        present = np.flatnonzero(draw.random(K) < rates)
        present = present if len(present) else draw.integers(0, K, 1)
        if twice and step % 3 == 1:
            present = draw.permutation(np.append(present, present[:1]))
        made.append((present.tolist(), updates(seed + step, len(present), P)))
    return made


def run(rule: str, made: list[Step], first: int = 0, **options: Any) -> list[Rows]:
    """Return the direction of each step of a server; the clients of a step may have several updates.

    With `first` the server takes over from one with another rule at this step.
    """
    spec = ServerSpec(rule, options, K, int(SAMPLES.sum()), K + 1, [(0, 2), (2, P)])
    server = Server(spec, torch.zeros(P, dtype=torch.float64))
    if first:
        parent = Server(replace(spec, rule="fedavg", options={}), server.params)
        server.inherit(parent.save(), first, same_rule=False)
    directions, before = [], server.params
    for step, (clients, rows) in enumerate(made, start=first):
        who = np.array(clients)
        given = StepInput(
            step, who, np.zeros_like(who), SAMPLES[who], reports=Reports.nothing(len(who)), online=who
        )
        server.step(given, list(torch.from_numpy(rows)))
        directions.append((before - server.params).numpy())
        before = server.params
    return directions


def fedau(made: list[Step], cutoff: int = 10**5) -> Iterator[Rows]:
    """The loop of the authors' code: an interval is counted after the weight is used."""
    waited, total, counted = np.zeros(K), np.zeros(K), np.zeros(K)
    for clients, rows in made:
        omega = np.where(counted > 0, total / np.maximum(counted, 1), 1.0)
        yield sum((omega[k] * row for k, row in zip(clients, rows, strict=True)), np.zeros(P)) / K
        waited += 1
        for k in range(K):
            if k in clients or waited[k] == cutoff:
                total[k], counted[k], waited[k] = total[k] + waited[k], counted[k] + 1, 0


def fedvarp(made: list[Step]) -> Iterator[Rows]:
    y = np.zeros((K, P))
    for clients, rows in made:
        yield y.mean(axis=0) + (rows - y[clients]).mean(axis=0)
        y[clients] = rows


def clustered(made: list[Step], clusters: int) -> Iterator[Rows]:
    y, cluster = np.zeros((clusters, P)), np.arange(K) * clusters // K
    for clients, rows in made:
        of_row = cluster[clients]
        yield y[cluster].mean(axis=0) + (rows - y[of_row]).mean(axis=0)
        for c in set(of_row):
            y[c] = rows[of_row == c].mean(axis=0)


def ca2fl(made: list[Step], over_seen: bool = False) -> Iterator[Rows]:
    """The loop of public code: one update after the other changes the cache."""
    h, seen = np.zeros((K, P)), np.zeros(K, dtype=bool)
    for clients, rows in made:
        mean = h.sum(axis=0) / (max(seen.sum(), 1) if over_seen else K)
        change = np.zeros(P)
        for k, row in zip(clients, rows, strict=True):
            change += row - h[k]
            h[k] = row
        seen[clients] = True
        yield mean + change / len(rows)


def fedstale(made: list[Step], beta: float) -> Iterator[Rows]:
    """Rates are the shares of steps so far, at least 1/50; weights are those of the samples."""
    a, h, used = SAMPLES / SAMPLES.sum(), np.zeros((K, P)), np.zeros(K)
    for step, (clients, rows) in enumerate(made):
        used[clients] += 1
        rate = np.maximum(used / (step + 1), 0.02)
        fresh = sum(
            (a[k] / rate[k] * (row - beta * h[k]) for k, row in zip(clients, rows, strict=True)), np.zeros(P)
        )
        yield fresh + beta * a @ h
        h[clients] = rows


def last_of_all(made: list[Step], window: float = np.inf) -> Iterator[Rows]:
    """The mean of everybody's last update, or of those of at most `window` steps ago."""
    h, when = np.zeros((K, P)), np.full(K, -np.inf)
    for step, (clients, rows) in enumerate(made):
        h[clients], when[clients] = rows, step
        recent = step - when <= window
        yield h.mean(axis=0) if np.isinf(window) else h[recent].mean(axis=0)


@pytest.mark.parametrize(
    ("rule", "options", "published"),
    [
        ("fedau", {"cutoff": None}, fedau),
        ("fedau", {"cutoff": 3}, lambda made: fedau(made, 3)),
        ("fedau", {"cutoff": 1}, lambda made: fedau(made, 1)),
        ("debiased", {"rate": "intervals", "least_rate": 0.0}, fedau),
        ("fedvarp", {}, fedvarp),
        ("fedvarp", {"clusters": K}, fedvarp),
        ("fedvarp", {"clusters": 2}, lambda made: clustered(made, 2)),
        ("fedvarp", {"clusters": 4}, lambda made: clustered(made, 4)),
        ("fedvarp", {"clusters": 1}, lambda made: clustered(made, 1)),
        ("debiased", {"rate": "cohort", "beta": 1.0}, fedvarp),
        ("ca2fl", {}, ca2fl),
        ("ca2fl", {"divisor": "seen"}, lambda made: ca2fl(made, over_seen=True)),
        ("fedstale", {"rate": "count", "beta": 0.0}, lambda made: fedstale(made, 0.0)),
        ("fedstale", {"rate": "count", "beta": 0.4}, lambda made: fedstale(made, 0.4)),
        ("fedstale", {"rate": "count", "beta": 1.0}, lambda made: fedstale(made, 1.0)),
        ("fedlaavg", {}, last_of_all),
        ("ace", {}, last_of_all),
        ("ace", {"max_age": 2}, lambda made: last_of_all(made, 2)),
        ("debiased", {"rate": "all", "beta": 1.0}, last_of_all),
    ],
)
@pytest.mark.parametrize("seed", [1, 2])
def test_a_rule_takes_the_steps_of_its_paper(
    rule: str, options: dict[str, Any], published: Callable[[list[Step]], Iterator[Rows]], seed: int
) -> None:
    made = cohorts(seed, 25)
    for ours, theirs in zip(run(rule, made, **options), published(made), strict=True):
        assert_same(ours, theirs, 1e-8)


def test_updates_older_than_the_largest_age_of_ace_do_not_count_in_a_call_either() -> None:
    rows = np.array([[1.0], [3.0], [9.0]])
    found = combine("ace", rows, losses=None, options={"max_age": 4}, ages=[0, 4, 5], clients=[0, 1, 2])
    assert found.direction.tolist() == [2.0]
    assert found.weights.tolist() == [[0.5, 0.5, 0.0]]


@pytest.mark.parametrize(
    ("rule", "options"),
    [
        ("fedau", {}),
        ("fedau", {"cutoff": 3}),
        ("debiased", {"rate": "count"}),
        ("debiased", {"rate": "intervals", "beta": 0.5}),
        ("fedstale", {"rate": "count"}),
        ("fedawe", {"start": "current"}),
        ("fedlaavg", {}),
    ],
)
def test_a_rule_that_takes_over_in_a_fork_counts_participation_from_there(
    rule: str, options: dict[str, Any]
) -> None:
    made = cohorts(4, 25)
    for later, whole in zip(run(rule, made, first=100, **options), run(rule, made, **options), strict=True):
        assert_same(later, whole, 1e-12)


def test_what_a_rule_counts_from_its_first_step_outlives_a_checkpoint() -> None:
    spec = ServerSpec("fedau", {}, K, int(SAMPLES.sum()), K + 1, [(0, P)])
    servers = [Server(spec, torch.zeros(P)) for _ in range(2)]
    servers[0].inherit(servers[0].save(), 100, same_rule=False)
    servers[1].load(servers[0].save())
    assert [server.first_step for server in servers] == [100, 100]


@pytest.mark.parametrize("options", [{}, {"divisor": "seen"}])
def test_ca2fl_counts_the_last_of_a_client_s_updates(options: dict[str, Any]) -> None:
    made = cohorts(3, 25, twice=True)
    for ours, theirs in zip(run("ca2fl", made, **options), ca2fl(made, bool(options)), strict=True):
        assert_same(ours, theirs, 1e-8)


def test_other_rules_take_the_mean_of_a_client_s_updates() -> None:
    made = cohorts(3, 25, twice=True)
    merged = [
        (sorted(set(c)), np.array([rows[[x == k for x in c]].mean(axis=0) for k in sorted(set(c))]))
        for c, rows in made
    ]
    for ours, theirs in zip(run("fedau", made), run("fedau", merged), strict=True):
        assert_same(ours, theirs, 1e-9)


RATES = np.array([0.9, 0.5, 0.2])
FRESH, HELD = updates(5, 3, P), updates(6, 3, P)
SHARES = np.array([1, 2, 3]) / 6


def drawn(rule: str, present: tuple[bool, ...], **options: Any) -> Rows:
    """Return the direction if some of three clients are present; all have sent an update before."""
    who = np.flatnonzero(present)
    if not len(who):  # the server takes no step; the family's direction is β Σ a H
        return options.get("beta", 0.0) * SHARES @ HELD
    rows = np.concatenate([FRESH[who], HELD]) if options.get("beta") else FRESH[who]
    held = np.arange(3) if options.get("beta") else np.arange(0)
    clients = np.concatenate([who, held])
    ages = np.concatenate([np.zeros_like(who), np.ones_like(held)])
    return combine(
        rule,
        rows,
        losses=None,
        clients=clients,
        ages=ages,
        n_samples=10 * (clients + 1),
        inclusion=RATES[clients],
        n_clients=3,
        total_samples=60,
        options={"rate": "known", "weights": "samples", "least_rate": 0.0, **options},
    ).direction


def moments(rule: str, **options: Any) -> tuple[Rows, float]:
    """Return the mean over all 2^3 sets of present clients, and the mean squared distance from it."""
    chances, directions = [], []
    for present in product([False, True], repeat=3):
        chances.append(np.prod(np.where(present, RATES, 1 - RATES)))
        directions.append(drawn(rule, present, **options))
    mean = np.array(chances) @ np.array(directions)
    return mean, float(np.array(chances) @ ((np.array(directions) - mean) ** 2).sum(axis=1))


@pytest.mark.parametrize("beta", [0.0, 0.3, 1.0])
def test_the_mean_over_all_subsets_is_that_of_all_clients(beta: float) -> None:
    mean, variance = moments("debiased", beta=beta)
    assert_same(mean, SHARES @ FRESH, 1e-9)
    distances = ((FRESH - beta * HELD) ** 2).sum(axis=1)
    assert variance == pytest.approx(float(SHARES**2 * (1 - RATES) / RATES @ distances), rel=1e-9)


def test_averages_of_those_present_are_biased() -> None:
    """What the corrections are for: FedAvg's mean over subsets is another one."""
    chances, directions = [], []
    for present in list(product([False, True], repeat=3))[1:]:
        chances.append(np.prod(np.where(present, RATES, 1 - RATES)))
        who = np.flatnonzero(present)
        found = combine("fedavg", FRESH[who], losses=None, clients=who, n_samples=10 * (who + 1))
        directions.append(found.direction)
    mean = np.array(chances) @ np.array(directions) / sum(chances)
    assert np.linalg.norm(mean - SHARES @ FRESH) > 0.05 * np.linalg.norm(mean)


@pytest.mark.parametrize(("options", "weight"), [({"rate": "cohort"}, 0.5), ({"rate": "all"}, 1 / 1000)])
def test_a_rate_without_estimates_has_no_least_value(options: dict[str, Any], weight: float) -> None:
    """Two of a thousand clients are a cohort of 0.002, below the `least_rate` of estimated rates."""
    found = combine("debiased", FRESH[:2], losses=None, n_clients=1000, options=options)
    np.testing.assert_allclose(found.weights, [[weight, weight]])


def test_the_adaptive_beta_minimises_the_estimated_variance() -> None:
    """With everybody present the estimate is the variance itself, up to the factors 1/π."""
    held = FRESH * np.array([[0.9], [0.5], [1.2]])
    given: dict[str, Any] = {
        "losses": None, "clients": [0, 1, 2, 0, 1, 2], "ages": [0, 0, 0, 1, 1, 1], "n_clients": 3,
        "inclusion": np.tile(RATES, 2), "options": {"rate": "known", "beta": "adaptive", "least_rate": 0.0},
    }  # fmt: skip
    found = combine("debiased", np.concatenate([FRESH, held]), **given).diagnostics["beta"]

    def variance(beta: float) -> float:
        return float((1 - RATES) / RATES**2 @ ((FRESH - beta * held) ** 2).sum(axis=1))

    assert 0 < found < 1
    c = (1 - RATES) / RATES**2
    assert found == pytest.approx(c @ (FRESH * held).sum(axis=1) / (c @ (held**2).sum(axis=1)), abs=1e-9)
    assert variance(found) <= min(variance(found - 0.01), variance(found + 0.01))
    opposite = combine("debiased", np.concatenate([FRESH, -FRESH]), **given)
    assert opposite.diagnostics["beta"] == 0.0, "an update that points the other way is of no use"


ADAPTIVE: dict[str, Any] = {"rate": "known", "beta": "adaptive", "least_rate": 0.0}


def adapted(rows: Rows, clients: list[int], m: int, **given: Any) -> float:
    """Return the β of m present rows and as many replaced ones as there are others."""
    ages = [0] * m + [1] * (len(rows) - m)
    options = ADAPTIVE | given.pop("options", {})
    found = combine(
        "debiased",
        rows,
        losses=None,
        clients=clients,
        ages=ages,
        n_clients=3,
        inclusion=RATES[clients],
        options=options,
        **given,
    )
    return float(found.diagnostics["beta"])


def test_normalising_leaves_the_adaptive_beta_as_it_is() -> None:
    held = FRESH * np.array([[0.9], [0.5], [1.2]])
    rows, clients = np.concatenate([FRESH, held]), [0, 1, 2, 0, 1, 2]
    assert adapted(rows, clients, 3, options={"normalise": True}) == adapted(rows, clients, 3) > 0


def test_the_adaptive_beta_is_that_of_rescaled_updates() -> None:
    """An update of 20 steps ago that equals the new one but for the learning rate then replaces it whole."""
    lr_decay, old = 0.9, 20
    rows, one = np.array([FRESH[0], FRESH[0] / lr_decay**old]), np.array([1, 1])
    stack = Stack(
        grams=(rows @ rows.T)[None], losses=one, m=1, clients=one, n_samples=one, ages=np.array([0, old]),
        staleness=0 * one, participations=one, online=one > 0, step=old, n_clients=3, total_samples=3, n_seen=1,
        lr_decay=lr_decay, inclusion=RATES[one], replaced=1,
    )  # fmt: skip
    rule = build_rule("debiased", ADAPTIVE | {"rescale": True})
    assert rule.weigh(stack, rule.init())[0].diagnostics["beta"] == pytest.approx(1.0)


def test_the_adaptive_beta_takes_the_mean_of_a_client_s_updates() -> None:
    e1, e2 = np.eye(P)[:2]
    found = {adapted(np.array([*pair, e1]), [1, 1, 1], 2) for pair in ([e1, e2], [e2, e1])}
    assert found == {0.5}


def test_normalised_weights_add_up_to_one() -> None:
    given: dict[str, Any] = {"losses": None, "clients": [0, 2], "inclusion": RATES[[0, 2]], "n_clients": 3}
    options = {"rate": "known", "normalise": True}
    weights = combine("debiased", FRESH[:2], options=options, **given).weights[0]
    np.testing.assert_allclose(weights, (1 / RATES[[0, 2]]) / (1 / RATES[[0, 2]]).sum())
    tenth = combine("debiased", FRESH[:2], options=options, **given | {"inclusion": RATES[[0, 2]] / 10})
    np.testing.assert_allclose(tenth.weights[0], weights)
    plain = combine("debiased", FRESH[:2], options={"rate": "known", "least_rate": 0.0}, **given)
    tenth = combine(
        "debiased",
        FRESH[:2],
        options={"rate": "known", "least_rate": 0.0},
        **given | {"inclusion": RATES[[0, 2]] / 10},
    )
    np.testing.assert_allclose(tenth.weights, 10 * plain.weights)


@pytest.mark.parametrize(
    ("rule", "options"),
    [
        ("fedau", {}),
        ("fedvarp", {}),
        ("ca2fl", {}),
        ("debiased", {"rate": "count"}),
        ("debiased", {"rate": "count", "beta": 1.0}),
        ("mifa", {}),
        ("fedlaavg", {}),
        ("ace", {}),
    ],
)
def test_with_everybody_present_a_rule_is_fedavg(rule: str, options: dict[str, Any]) -> None:
    everybody = [(list(range(K)), updates(step, K, P)) for step in range(5)]
    plain = run("fedavg", everybody, weighting="uniform")
    for ours, theirs in zip(run(rule, everybody, **options), plain, strict=True):
        assert_same(ours, theirs, 1e-9)


def test_unknown_probabilities_are_refused_with_the_client() -> None:
    given: dict[str, Any] = {"losses": None, "clients": [4, 7], "step": 3, "options": {"rate": "known"}}
    with pytest.raises(RunError, match=r"step 3, client 4: expected the probability .* take a selector"):
        combine("debiased", FRESH[:2], **given)
    with pytest.raises(RunError, match=r"step 3, client 7"):
        combine("debiased", FRESH[:2], inclusion=[0.5, np.nan], **given)


def test_old_updates_count_with_the_present_learning_rate() -> None:
    """Rows were trained with rates 1/2 a step; ages and staleness add up."""
    spec = ServerSpec(
        "debiased", {"rate": "all", "beta": 1.0, "rescale": True}, 2, 2, 2, [(0, 1)], lr_decay=0.5
    )
    server = Server(spec, torch.zeros(1, dtype=torch.float64))
    one = torch.ones(1, dtype=torch.float64)
    none = np.zeros(1, dtype=np.int64)
    server.step(StepInput(0, none, none, none + 1, online=none, reports=Reports.nothing(1)), [8 * one])
    assert server.params.item() == pytest.approx(-8 / 2)
    server.step(
        StepInput(2, none + 1, none + 1, none + 1, online=none, reports=Reports.nothing(1)), [6 * one]
    )
    assert server.params.item() == pytest.approx(-8 / 2 - (6 * 0.5 + 8 * 0.25) / 2)


CENTRES = np.array([-1.0, 0.0, 3.0])


def fixed_point(rule: str, options: dict[str, Any], steps: int = 3000, lr: float = 0.02) -> float:
    """Return the mean of the later iterates of w <- w - d on F_k = (w - c_k)^2 / 2, clients present by chance."""
    draw = np.random.default_rng(0)
    server = Server(ServerSpec(rule, options, 3, 3, 3, [(0, 1)]), torch.zeros(1, dtype=torch.float64))
    later = []
    for step in range(steps):
        who = np.flatnonzero(draw.random(3) < np.array([0.9, 0.5, 0.2]))
        given = StepInput(
            step, who, np.zeros_like(who), np.ones_like(who), online=who, reports=Reports.nothing(len(who))
        )
        server.step(given, list(lr * (server.params - torch.from_numpy(CENTRES[who, None]))))
        if step > steps // 3:
            later.append(server.params.item())
    return float(np.mean(later))


def test_unequal_participation_moves_fedavg_off_the_optimum_and_corrected_rules_not() -> None:
    """FedAvg converges to Σ ρ_k c_k with ρ_k = E[1{k in S} / |S|] over sets that are not empty."""
    shares = np.zeros(3)
    for present in list(product([False, True], repeat=3))[1:]:
        chance = np.prod(np.where(present, RATES, 1 - RATES))
        shares += chance * np.array(present) / sum(present)
    biased = float(shares @ CENTRES / shares.sum())
    assert fixed_point("fedavg", {"weighting": "uniform"}) == pytest.approx(biased, abs=0.1)
    optimum = CENTRES.mean()
    assert abs(biased - optimum) > 0.5
    for rule, options in [("fedau", {}), ("debiased", {"rate": "count"}), ("fedlaavg", {})]:
        assert fixed_point(rule, options) == pytest.approx(optimum, abs=0.15), rule
