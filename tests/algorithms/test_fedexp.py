"""FedExP against the formula of Jhunjhunwala et al. 2023 and the authors' weighted form."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from fedsim.server.server import Server
from fedsim.server.spec import ServerSpec
from fedsim.server.step_input import StepInput
from fedsim.training.job import Report, Reports
from rule_calls import combine
from stacks import Rows, assert_same, seeds, updates

fast = settings(max_examples=60, deadline=None)


def fedexp(rows: Any, **given: Any) -> Any:
    return combine("fedexp", rows, losses=None, **given)


def extrapolated(rows: Rows, p: Rows, epsilon: float) -> tuple[Rows, float]:
    """Return the step and η_g = max(1, Σ p_i ‖Δ_i‖² / (2 (‖Δ̄‖² + ε))), Δ̄ = Σ p_i Δ_i."""
    mean = np.asarray(sum(share * row for share, row in zip(p, rows, strict=True)))
    squares = sum(share * float(row @ row) for share, row in zip(p, rows, strict=True))
    eta = max(1.0, squares / (2 * (float(mean @ mean) + epsilon)))
    return eta * mean, eta


@fast
@given(seeds, st.integers(1, 12), st.sampled_from([0.0, 1e-3, 10.0]))
def test_it_is_the_formula_of_the_paper(seed: int, m: int, epsilon: float) -> None:
    rows = updates(seed, m, 30, common=0.1)
    found = fedexp(rows, epsilon=epsilon)
    expected, eta = extrapolated(rows, np.full(m, 1 / m), epsilon)
    assert_same(found.direction, expected)
    assert found.diagnostics == {"server_lr": pytest.approx(eta)}
    assert found.diagnostics["server_lr"] >= 1


def test_the_default_is_a_thousandth_and_a_plain_mean() -> None:
    rows = 0.02 * np.random.default_rng(1).normal(size=(6, 30))
    expected, eta = extrapolated(rows, np.full(6, 1 / 6), 1e-3)
    assert 1.1 < eta < extrapolated(rows, np.full(6, 1 / 6), 0.0)[1]
    assert_same(fedexp(rows, n_samples=np.arange(1, 7)).direction, expected)


@fast
@given(seeds, st.integers(1, 12))
def test_samples_weight_the_mean_and_the_squares(seed: int, m: int) -> None:
    rows, n_samples = updates(seed, m, 30, common=0.1), np.arange(1, m + 1)
    found = fedexp(rows, weighting="data", n_samples=n_samples, epsilon=0.0)
    assert_same(found.direction, extrapolated(rows, n_samples / n_samples.sum(), 0.0)[0])


def test_equal_updates_are_not_stretched() -> None:
    assert_same(fedexp(np.ones((5, 3)), epsilon=0.0).weights, np.full((1, 5), 0.2))


@pytest.mark.parametrize("m", [1, 2, 3, 10])
def test_orthogonal_updates_of_one_length_are_stretched_by_half_their_number(m: int) -> None:
    found = fedexp(3.0 * np.eye(m), epsilon=0.0)
    assert found.diagnostics["server_lr"] == pytest.approx(max(1.0, m / 2))


@fast
@given(seeds, st.integers(1, 8), st.floats(0.01, 100))
def test_without_epsilon_scaled_updates_are_a_scaled_step(seed: int, m: int, scale: float) -> None:
    rows = updates(seed, m, 30)
    assert_same(fedexp(scale * rows, epsilon=0.0).direction, scale * fedexp(rows, epsilon=0.0).direction)


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_updates_that_cancel_out_are_not_stretched_without_epsilon(scale: float) -> None:
    rows = scale * updates(0, 3, 30)
    cancelling = np.concatenate([rows, -rows[::-1]])
    assert fedexp(cancelling, epsilon=0.0).diagnostics["server_lr"] == 1
    squares = (rows**2).sum() / 3
    expected = max(1.0, squares / (2 * 0.1 * scale))
    assert fedexp(cancelling, epsilon=0.1 * scale).diagnostics["server_lr"] == pytest.approx(expected)


@pytest.mark.parametrize("decay", [1.0, 0.9])
def test_epsilon_falls_as_the_squares_of_the_updates(decay: float) -> None:
    """Rows shrink with the learning rate, so the factor is that of the first step."""
    rows = torch.randn(4, 6, generator=torch.Generator().manual_seed(1))
    spec = ServerSpec("fedexp", {"epsilon": 0.3}, 4, 100, 4, [(0, 6)], lr_decay=decay)
    clients: NDArray[np.int64] = np.arange(4)
    found = []
    for step in (0, 7):
        reports = Reports.of([Report()] * 4)
        arrivals = StepInput(step, clients, np.zeros(4, dtype=np.int64), clients + 1, clients, reports)
        columns = Server(spec, torch.zeros(6)).step(arrivals, list(rows * decay**step))
        found.append(columns["server_lr"])
    assert found[0] > 1.01
    assert found[1] == pytest.approx(found[0], rel=1e-5)
