"""Wrappers: what each changes, by comparison with doing the same to the updates by hand."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from fedsim.common.errors import ConfigError
from fedsim.server.combine import Combined
from fedsim.server.rule_factory import build_rule
from rule_calls import combine
from stacks import assert_same, distinct_losses, seeds, updates

fast = settings(max_examples=50, deadline=None)
sizes = st.integers(1, 7)
SIZES = [12, 9, 30]


def run(rule: str, rows: Any, wrapper: str, wrap_options: dict[str, Any], **given: Any) -> Combined[Any]:
    losses = given.pop("losses", distinct_losses(0, len(rows)))
    return combine(rule, rows, losses=losses, wrap=[(wrapper, wrap_options)], **given)


@fast
@given(seeds, sizes, st.sampled_from(["fedavg", "fedfv", "fedmgda", "fedlf"]))
def test_discounting_is_shortening_the_rows_first(seed: int, m: int, rule: str) -> None:
    rows, losses = updates(seed, m, sum(SIZES)), distinct_losses(seed, m)
    staleness = np.random.default_rng(seed).integers(0, 9, size=m)
    given_rows: dict[str, Any] = {"losses": losses, "blocks": SIZES}
    given_rows |= {"lengths": "raw"} if rule == "fedlf" else {}
    by_hand = combine(rule, rows / np.sqrt(staleness + 1.0)[:, None], **given_rows)
    wrapped = run(rule, rows, "discounted", {"staleness": "sqrt"}, staleness=staleness, **given_rows)
    assert_same(wrapped.direction, by_hand.direction, 1e-7)


def test_remembered_rows_are_as_stale_as_they_came_plus_their_age() -> None:
    given_rows: dict[str, Any] = {"ages": [0, 3], "staleness": [0, 5]}
    result = run("mifa", np.eye(2), "discounted", {"staleness": "sqrt"}, **given_rows)
    np.testing.assert_allclose(result.weights[0] * 2, [1, 1 / 3])


@fast
@given(seeds, st.integers(2, 7), st.floats(0.1, 3))
def test_clipping_is_shortening_long_rows_first(seed: int, m: int, multiple: float) -> None:
    rows = updates(seed, m, 10)
    norms = np.linalg.norm(rows, axis=1)
    for options, limit in (
        ({"median_multiple": multiple}, multiple * np.median(norms)),
        ({"norm": multiple}, multiple),
        ({}, np.median(norms)),
    ):
        by_hand = combine("fedavg", rows * np.minimum(1, limit / norms)[:, None], losses=None)
        assert_same(run("fedavg", rows, "clipped", options).direction, by_hand.direction, 1e-9)
        assert np.linalg.norm(by_hand.direction) <= limit * (1 + 1e-9)


def test_clipping_takes_one_limit_and_zero_rows() -> None:
    with pytest.raises(ConfigError, match=r"found both: 1\.0 and 2\.0"):
        build_rule("fedavg", {}, [{"name": "clipped", "norm": 1.0, "median_multiple": 2.0}])
    assert not run("fedavg", np.zeros((2, 3)), "clipped", {}).direction.any()


@fast
@given(seeds, sizes, st.sampled_from(["fedmgda", "fedfv", "qfedavg"]))
def test_layerwise_is_the_rule_on_each_layer_alone(seed: int, m: int, rule: str) -> None:
    rows, losses = updates(seed, m, sum(SIZES)), distinct_losses(seed, m)
    options = {"fedfv": {"tau": 0}, "qfedavg": {"lr": 0.1}}.get(rule, {})
    parts = np.split(rows, np.cumsum(SIZES)[:-1], axis=1)
    by_hand = np.concatenate([combine(rule, part, losses=losses, **options).direction for part in parts])
    wrapped = run(rule, rows, "layerwise", {"merging": False}, losses=losses, blocks=SIZES, **options)
    assert_same(wrapped.direction, by_hand, 1e-7)
    assert wrapped.diagnostics["blocks"] == 3


@fast
@given(seeds, st.integers(2, 7))
def test_layerwise_fedmgda_points_where_fedlf_without_fair_row_does(seed: int, m: int) -> None:
    rows = updates(seed, m, sum(SIZES))
    wrapped = run("fedmgda", rows, "layerwise", {}, blocks=SIZES).direction
    fedlf = combine("fedlf", rows, losses=None, fair_row="none", lengths="raw", blocks=SIZES).direction
    length = np.linalg.norm(fedlf)
    assert_same(wrapped * (length / np.linalg.norm(wrapped)), fedlf, 1e-6)


def test_layerwise_takes_a_rule_with_one_row_of_weights() -> None:
    rows = updates(5, 4, sum(SIZES))
    options = {"level": "model", "fair_row": "none", "absent": "none"}
    wrapped = run(
        "fedlf", rows, "layerwise", {"merging": False}, blocks=SIZES, losses=np.arange(1.0, 5.0), **options
    )
    assert wrapped.weights.shape == (len(SIZES), 4)


def test_layerwise_joins_a_layer_that_would_stand_still() -> None:
    rows = np.array([[1.0, 2.0, 0.1, 5.0], [-1.0, 0.5, 0.3, -1.0]])
    merged = run("fedmgda", rows, "layerwise", {}, blocks=[1, 2, 1])
    np.testing.assert_array_equal(merged.weights[0], merged.weights[1])
    assert merged.diagnostics["blocks"] < 3
    apart = run("fedmgda", rows, "layerwise", {"merging": False}, blocks=[1, 2, 1])
    assert apart.direction[0] == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("zero", [0, 1])
def test_layerwise_sums_up_layers_of_which_one_has_nothing_to_solve(zero: int) -> None:
    rows = np.array([[1.0, 0.5, 2.0, 1.0], [0.5, 1.0, 1.0, 2.0]])
    rows[:, 2 * zero : 2 * zero + 2] = 0.0
    found = run("fedmgda_plus", rows, "layerwise", {"merging": False}, blocks=[2, 2])
    assert found.diagnostics["blocks"] == 2
    assert 0 <= found.diagnostics["kkt_residual"] < 1e-6
    assert not found.direction[2 * zero : 2 * zero + 2].any()


def test_layerwise_keeps_a_memory_for_each_layer() -> None:
    rows = updates(1, 3, sum(SIZES))
    result = run("fedmdfg", rows, "layerwise", {"merging": False}, blocks=SIZES)
    norms = [result.state[f"{layer}/mean_norm"] for layer in range(3)]
    parts = np.split(rows, np.cumsum(SIZES)[:-1], axis=1)
    np.testing.assert_allclose(norms, [np.linalg.norm(part, axis=1).mean() for part in parts])


def test_layerwise_hands_each_layer_its_own_memory() -> None:
    """At a second step, each layer's direction is that of the rule which saw this layer alone at both steps."""
    steps = [updates(seed, 3, sum(SIZES)) for seed in (1, 2)]
    losses = [distinct_losses(1, 3), distinct_losses(1, 3)[::-1] + 1]
    whole, parts = None, [None, None, None]
    for step, (rows, each) in enumerate(zip(steps, losses, strict=True)):
        given: dict[str, Any] = {"losses": each, "step": step}
        whole = run(
            "fedmdfg",
            rows,
            "layerwise",
            {"merging": False},
            blocks=SIZES,
            state=whole and whole.state,
            **given,
        )
        layers = np.split(rows, np.cumsum(SIZES)[:-1], axis=1)
        parts = [
            combine("fedmdfg", layer, state=part and part.state, **given)
            for layer, part in zip(layers, parts, strict=True)
        ]
    assert whole is not None
    assert_same(whole.direction, np.concatenate([part.direction for part in parts]), 1e-7)


def test_a_remembered_update_counts_as_old_as_it_is() -> None:
    given: dict[str, Any] = {"ages": [0, 3], "staleness": [0, 0], "step": 9}
    weights = run("fedbuff", np.eye(2), "with_absent", {"window": "all"}, **given).weights[0]
    assert weights[1] / weights[0] == pytest.approx(1 / np.sqrt(4))


def test_a_remembered_update_keeps_the_chance_of_its_own_client() -> None:
    given: dict[str, Any] = {"ages": [0, 1, 2], "inclusion": [0.5, 0.25, 0.1], "step": 9, "n_clients": 3}
    options = {"rate": "known", "least_rate": 0.0}
    rows = np.eye(3)
    found = run("debiased", rows, "with_absent", {"window": 1}, options=options, **given).weights[0]
    np.testing.assert_allclose(found * 3, [2, 4, 0])
    swapped = run("debiased", rows, "with_absent", {"window": 2}, options=options, **given).weights[0]
    np.testing.assert_allclose(swapped * 3, [2, 4, 10])


def test_the_median_length_is_that_of_present_updates() -> None:
    rows = np.diag([1.0, 2.0, 3.0, 100.0, 100.0, 100.0])
    weights = run("mifa", rows, "clipped", {}, ages=[0, 0, 0, 1, 1, 1], step=9).weights[0]
    np.testing.assert_allclose(weights * 6, [1, 1, 2 / 3, *[2 / 100] * 3])


def absent_rows(seed: int, m: int, a: int) -> tuple[NDArray[np.float64], dict[str, Any]]:
    draw = np.random.default_rng(seed)
    ages = [0] * m + draw.integers(1, 4, size=a).tolist()
    return updates(seed, m + a, 20), {"losses": distinct_losses(seed, m + a), "ages": ages, "step": 9}


@fast
@given(seeds, sizes, st.integers(0, 4), st.integers(1, 3))
def test_external_around_internal_is_fedfv(seed: int, m: int, a: int, tau: int) -> None:
    rows, given_rows = absent_rows(seed, m, a)
    whole = combine("fedfv", rows, tau=tau, alpha=0.0, **given_rows).direction
    wrapped = run("fedfv", rows, "external", {"tau": tau}, **given_rows, options={"tau": 0, "alpha": 0.0})
    assert_same(wrapped.direction, whole, 1e-7)
    plain = combine("fedfv", rows, tau=tau, alpha=1.0, **given_rows).direction
    averaged = run("fedavg", rows, "external", {"tau": tau}, **given_rows, weighting="uniform")
    assert_same(averaged.direction, plain, 1e-7)


def test_external_waits_for_its_first_step_and_says_what_it_took() -> None:
    rows = np.array([[1.0, 0.0], [-1.0, 1.0]])
    early = run("fedavg", rows, "external", {"tau": 2}, ages=[0, 1], step=1)
    assert early.direction.tolist() == [1.0, 0.0]
    later = run("fedavg", rows, "external", {"tau": 2}, ages=[0, 1], step=2)
    assert later.direction @ rows[1] == pytest.approx(0, abs=1e-12)
    assert np.linalg.norm(later.direction) == pytest.approx(1)
    assert later.diagnostics["external_removed"] == pytest.approx(math.sqrt(0.5))


@pytest.mark.parametrize(
    ("window", "n_seen", "used"),
    [
        ("participation", 2, [0, 1]),
        ("participation", 4, [0, 1, 2, 3]),
        (1, 2, [0, 1, 2]),
        ("all", 2, [0, 1, 2, 3, 4]),
    ],
)
def test_absent_clients_count_as_present(window: Any, n_seen: int, used: list[int]) -> None:
    rows, losses = updates(2, 5, 20), distinct_losses(2, 5)
    given_rows: dict[str, Any] = {"ages": [0, 0, 1, 2, 3], "n_seen": n_seen, "losses": losses}
    for rule, options in (("fedavg", {}), ("fedfv", {"tau": 0, "alpha": 0.2}), ("fedmgda", {})):
        wrapped = run(rule, rows, "with_absent", {"window": window}, **given_rows, options=options)
        by_hand = combine(rule, rows[used], losses=losses[used], options=options)
        assert_same(wrapped.direction, by_hand.direction, 1e-7)
        assert set(np.flatnonzero(wrapped.weights[0])) <= set(used)


Moments = tuple[NDArray[np.float64], NDArray[np.float64]]


def optimised(kind: str, d: NDArray[np.float64], moments: Moments | None) -> tuple[Any, Moments]:
    """Return the step of size 0.1 as the papers write it, and the moments; β = (0.9, 0.99), τ = 0.001."""
    m, v = moments or (np.zeros_like(d), np.full_like(d, 1e-6))
    if kind == "momentum":
        return 0.1 * (0.9 * m + d), (0.9 * m + d, v)
    m = 0.9 * m + 0.1 * d
    v = {
        "adagrad": v + d**2,
        "adam": 0.99 * v + 0.01 * d**2,
        "yogi": v - 0.01 * d**2 * np.sign(v - d**2),
    }[kind]
    return 0.1 * m / (np.sqrt(v) + 1e-3), (m, v)


@pytest.mark.parametrize("kind", ["momentum", "adagrad", "adam", "yogi"])
def test_server_optimisers_by_hand(kind: str) -> None:
    rows = updates(1, 3, 6)
    moments, vectors = None, None
    for step in range(4):
        scaled = rows * (1 + step)
        expected, moments = optimised(kind, scaled.mean(axis=0), moments)
        result = run("fedavg", scaled, "server_opt", {"kind": kind, "lr": 0.1}, vectors=vectors)
        vectors = result.vectors
        assert_same(result.direction, expected, 1e-9)


def test_server_optimiser_needs_a_rule_that_only_moves() -> None:
    population: dict[str, Any] = {"n_clients": 9, "total_samples": 90, "weighting": "scaled"}
    with pytest.raises(ConfigError, match="multiplies the parameters by"):
        run("fedavg", np.eye(2), "server_opt", {}, **population)


def test_first_wrapper_is_the_innermost() -> None:
    rows = np.array([[4.0, 0.0], [0.0, 2.0]])
    discount, clip = ("discounted", {"staleness": "sqrt"}), ("clipped", {"norm": 1.0})
    given_rows: dict[str, Any] = {"losses": None, "staleness": [3, 0]}
    clip_first = combine("fedavg", rows, wrap=[discount, clip], **given_rows).direction
    np.testing.assert_allclose(clip_first * 2, [0.5, 1.0])  # the outer one sees the rows first
    discount_first = combine("fedavg", rows, wrap=[clip, discount], **given_rows).direction
    np.testing.assert_allclose(discount_first * 2, [1.0, 1.0])


def test_wrappers_are_tables_with_a_name() -> None:
    with pytest.raises(ConfigError, match="wrapper of rule 'fedavg': expected its 'name'"):
        build_rule("fedavg", {}, [{"tau": 1}])
    with pytest.raises(ConfigError, match="wrapper 'external', option 'tau'"):
        build_rule("fedavg", {}, [{"name": "external", "tau": 0}])
    with pytest.raises(ConfigError, match="'wrap': goes with the name of a rule"):
        combine(build_rule("fedavg", {}), np.eye(2), losses=None, wrap=[("clipped", {})])
