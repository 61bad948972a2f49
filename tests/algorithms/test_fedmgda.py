"""The MGDA family: descent for everybody, the box around λ⁰, and invariance to the updates' lengths."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from fedsim.common.errors import ConfigError
from fedsim.server.rule import Stack
from fedsim.server.rule_factory import build_rule
from rule_calls import combine
from stacks import assert_same, seeds, updates

fast = settings(max_examples=60, deadline=None)
sizes = st.integers(1, 10)
dimensions = st.integers(2, 30)


def run(rule: str, rows: Any, **options: Any) -> Any:
    return combine(rule, rows, losses=None, **options).direction


def unit(rows: Any) -> Any:
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


@fast
@given(seeds, sizes, dimensions)
def test_fedmgda_descends_for_every_client(seed: int, m: int, d: int) -> None:
    rows = updates(seed, m, d)
    direction = run("fedmgda", rows)
    scale = (rows**2).sum(axis=1).max()
    assert (rows @ direction >= direction @ direction - 1e-9 * scale).all()
    shortest = min(np.linalg.norm(rows, axis=1).min(), np.linalg.norm(rows.mean(axis=0)))
    assert np.linalg.norm(direction) <= shortest + 1e-7 * np.sqrt(scale)


@fast
@given(seeds, sizes, dimensions)
def test_unbounded_plus_descends_for_every_unit_update(seed: int, m: int, d: int) -> None:
    rows = updates(seed, m, d)
    direction = run("fedmgda_plus", rows, epsilon=1.0)
    assert (unit(rows) @ direction >= direction @ direction - 1e-9).all()


@fast
@given(seeds, sizes, dimensions, st.sampled_from(["uniform", "samples"]))
def test_empty_box_is_the_average_of_unit_updates(seed: int, m: int, d: int, lambda0: str) -> None:
    rows, n_samples = updates(seed, m, d), np.arange(1, m + 1) * 7
    centre = np.full(m, 1 / m) if lambda0 == "uniform" else n_samples / n_samples.sum()
    options: dict[str, Any] = {"n_samples": n_samples, "lambda0": lambda0}
    assert_same(run("fedmgda_plus", rows, epsilon=0.0, **options), centre @ unit(rows), 1e-9)
    assert_same(run("fedavg_n", rows, server_lr=2.0, **options), 2 * (centre @ unit(rows)), 1e-9)


@fast
@given(seeds, sizes, dimensions)
def test_the_step_may_be_as_long_as_the_median_update(seed: int, m: int, d: int) -> None:
    rows = updates(seed, m, d)
    median = float(np.median(np.linalg.norm(rows, axis=1)))
    plain = combine("fedmgda_plus", rows, losses=None, epsilon=0.0).weights
    long = combine("fedmgda_plus", rows, losses=None, epsilon=0.0, server_lr="median").weights
    np.testing.assert_allclose(long, median * plain, rtol=1e-9)


def test_the_step_may_be_as_long_as_the_rate_of_the_clients() -> None:
    rows, m = updates(1, 4, 9), np.arange(4)
    stack = Stack(
        grams=(rows @ rows.T)[None], losses=m, m=4, clients=m, n_samples=m + 1, ages=0 * m, staleness=0 * m,
        participations=m, online=m >= 0, step=201, n_clients=4, total_samples=10, n_seen=4, lr_decay=0.99,
    )  # fmt: skip
    one, scaled = (
        build_rule("fedmgda_plus", options | {"decay": 0.5}, lr=0.05).weigh(stack, {})[0].weights
        for options in ({}, {"server_lr": "clients"})
    )
    np.testing.assert_allclose(scaled, 0.05 * 0.99**201 * one, rtol=1e-9)
    with pytest.raises(ConfigError, match="lr: needed with server_lr = 'clients'"):
        build_rule("fedmgda_plus", {"server_lr": "clients"})


@fast
@given(seeds, sizes, dimensions, st.floats(0.01, 1))
def test_no_weight_is_above_the_cap(seed: int, m: int, d: int, cap: float) -> None:
    rows = updates(seed, m, d)
    result = combine("fedmgda_plus", rows, losses=None, cap=cap)
    mixture = result.weights[0] * np.linalg.norm(rows, axis=1)
    assert mixture.sum() == pytest.approx(1, abs=1e-9)
    assert mixture.max() <= max(cap, 1 / m) + 1e-9
    if cap * m <= 1:
        np.testing.assert_allclose(mixture, 1 / m, atol=1e-9)
    free = run("fedmgda_plus", rows, epsilon=1.0)
    assert np.linalg.norm(result.direction) >= np.linalg.norm(free) - 1e-9
    assert_same(run("fedmgda_plus", rows, cap=1.0), free, 1e-9)


@fast
@given(seeds, sizes, dimensions)
def test_wider_boxes_give_shorter_steps_within_them(seed: int, m: int, d: int) -> None:
    rows = updates(seed, m, d)
    lengths = []
    for epsilon in (0.0, 0.02, 0.1, 0.5, 1.0):
        result = combine("fedmgda_plus", rows, losses=None, epsilon=epsilon)
        mixture = result.weights[0] * np.linalg.norm(rows, axis=1)
        assert np.abs(mixture - 1 / m).max() <= epsilon + 1e-9
        assert mixture.sum() == pytest.approx(1, abs=1e-9)
        lengths.append(float(np.linalg.norm(result.direction)))
    assert (np.diff(lengths) <= 1e-9).all()


@fast
@given(seeds, sizes, dimensions, st.floats(0, 1, width=16))
def test_lengths_of_the_updates_do_not_matter(seed: int, m: int, d: int, epsilon: float) -> None:
    rows = updates(seed, m, d)
    factors = 10.0 ** np.random.default_rng(seed).uniform(-3, 3, size=(m, 1))
    one, two = (run("fedmgda_plus", r, epsilon=epsilon) for r in (rows, rows * factors))
    np.testing.assert_allclose(one, two, atol=1e-6)


@fast
@given(seeds, dimensions)
def test_two_unit_updates_get_half_each(seed: int, d: int) -> None:
    rows = updates(seed, 2, d)
    assume(unit(rows)[0] @ unit(rows)[1] > -0.99)
    assume(unit(rows)[0] @ unit(rows)[1] < 0.99)
    assert_same(run("fedmgda_plus", rows, epsilon=1.0), unit(rows).mean(axis=0), 1e-7)


def test_server_step_decays_every_hundred_steps() -> None:
    rows = updates(3, 4, 6)
    options: dict[str, Any] = {"server_lr": 1.5, "decay": 0.5}
    start, before, after = (run("fedmgda_plus", rows, step=s, **options) for s in (0, 99, 100))
    assert_same(before, start, 0)
    assert_same(after, start / 2, 1e-12)


def test_a_zero_update_takes_no_part_once_normalised() -> None:
    rows = np.array([[3.0, 0.0], [0.0, 0.0], [0.0, 2.0]])
    for rule in ("fedmgda_plus", "fedavg_n"):
        assert_same(run(rule, rows), [0.5, 0.5], 1e-9)
    assert not run("fedmgda", rows).any()
    assert not run("fedmgda_plus", np.zeros((2, 3))).any()
    assert_same(run("fedmgda_plus", rows, normalise=False, epsilon=0.0), rows.mean(axis=0), 1e-12)
