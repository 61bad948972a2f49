"""FedFV: what the projections guarantee, against a plain implementation on the vectors themselves."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from fedsim.algorithms.fedfv import fedfv, off_absent, off_each_other
from fedsim.algorithms.fedfv_released import fedfv_released
from fedsim.common.rng import rng
from fedsim.runs.build import prepare
from fedsim.server.rule import Algorithm
from rule_calls import combine
from small import small
from stacks import assert_same, distinct_losses, seeds, updates

fast = settings(max_examples=60, deadline=None)
sizes = st.integers(2, 10)
dimensions = st.integers(2, 30)
alphas = st.floats(0, 1, width=16)


def run(rows: NDArray[np.float64], losses: NDArray[np.float64], **options: Any) -> NDArray[np.float64]:
    return combine("fedfv", rows, losses=losses, **{"alpha": 0.0, "tau": 0, **options}).direction


def plain_projection(
    rows: NDArray[np.float64], losses: NDArray[np.float64], n_kept: int
) -> NDArray[np.float64]:
    """Algorithm 2 on full vectors, one at a time."""
    order = sorted(range(len(rows)), key=lambda i: losses[i])
    projected = rows.copy()
    for i in order[: len(rows) - n_kept]:
        for j in order:
            inner = projected[i] @ rows[j]
            if j != i and inner < 0:
                projected[i] = projected[i] - inner / (rows[j] @ rows[j]) * rows[j]
    return projected


@fast
@given(seeds, sizes, dimensions, alphas, st.integers(0, 10))
def test_internal_projection_equals_the_plain_loop(
    seed: int, m: int, d: int, common: float, n_kept: int
) -> None:
    rows, losses = updates(seed, m, d, common), distinct_losses(seed, m)
    order = np.argsort(losses)
    kept = order[m - min(n_kept, m) :]
    projected = off_each_other(rows @ rows.T, order, kept) @ rows
    assert_same(projected, plain_projection(rows, losses, len(kept)))
    lengths = np.linalg.norm(rows, axis=1)
    assert (np.linalg.norm(projected, axis=1) <= lengths * (1 + 1e-9)).all()
    last = order[-1]
    changed = np.setdiff1d(order, [*kept, last])
    assert (projected[changed] @ rows[last] >= -1e-9 * lengths[changed] * lengths[last]).all()


@fast
@given(seeds, sizes, dimensions)
def test_keeping_everybody_gives_the_plain_mean(seed: int, m: int, d: int) -> None:
    rows = updates(seed, m, d)
    assert_same(run(rows, distinct_losses(seed, m), alpha=1.0), rows.mean(axis=0))


@fast
@given(seeds, sizes, dimensions, alphas)
def test_without_conflict_the_plain_mean_is_left(seed: int, m: int, d: int, alpha: float) -> None:
    rows = np.abs(updates(seed, m, d))
    assert_same(run(rows, distinct_losses(seed, m), alpha=alpha), rows.mean(axis=0))


@fast
@given(seeds, sizes, dimensions, alphas, st.floats(1e-3, 1e3))
def test_direction_has_the_mean_s_length_scales_and_ignores_order(
    seed: int, m: int, d: int, alpha: float, factor: float
) -> None:
    rows, losses = updates(seed, m, d), distinct_losses(seed, m)
    direction = run(rows, losses, alpha=alpha)
    assert np.linalg.norm(direction) == pytest.approx(np.linalg.norm(rows.mean(axis=0)), rel=1e-9)
    assert_same(run(rows * factor, losses, alpha=alpha), direction * factor, 1e-7)
    shuffled = np.random.default_rng(seed).permutation(m)
    assert_same(run(rows[shuffled], losses[shuffled], alpha=alpha), direction, 1e-7)


@fast
@given(seeds, dimensions)
def test_two_conflicting_updates_lose_what_points_against_the_other(seed: int, d: int) -> None:
    one, two = updates(seed, 2, d, 0.0)
    assume(one @ two < -1e-3 * np.linalg.norm(one) * np.linalg.norm(two))
    assume(one @ two > -0.999 * np.linalg.norm(one) * np.linalg.norm(two))
    inner = one @ two
    expected = one + two - inner / (one @ one) * one - inner / (two @ two) * two
    direction = run(np.stack([one, two]), np.array([0.1, 0.2]))
    assert_same(direction / np.linalg.norm(direction), expected / np.linalg.norm(expected), 1e-7)


@fast
@given(seeds, st.integers(1, 8), dimensions)
def test_external_step_leaves_no_component_along_the_conflict(seed: int, n: int, d: int) -> None:
    rows = updates(seed, n + 1, d, 0.0)
    ages = np.array([0] + [1] * n)
    start = np.eye(n + 1)[0]
    gram = rows @ rows.T
    mean = off_absent(start[None], gram[None], ages, range(1, 0, -1))[0] @ rows
    conflict = (rows @ rows[0] < 0) & (ages == 1)
    total = rows[conflict].sum(axis=0)
    assert abs(mean @ total) <= 1e-9 * np.linalg.norm(rows[0]) * np.linalg.norm(total)
    if not conflict.any():
        assert_same(mean, rows[0])


def test_projection_off_absent_rows_goes_by_age_from_the_oldest() -> None:
    rows = np.array([[1.0, -1, -1], [0, 1, 0], [0.5, 0, 1], [0, 2, 1]])
    ages = np.array([0, 1, 2, 2])
    start = np.array([1.0, 0, 0, 0])
    expected = rows[0]
    for age in (2, 1):
        total = rows[[i for i in range(4) if ages[i] == age and rows[i] @ expected < 0]].sum(axis=0)
        expected = expected - (total @ expected) / (total @ total) * total if total.any() else expected
    gram = (rows @ rows.T)[None]
    found = off_absent(start[None], gram, ages, range(2, 0, -1))[0] @ rows
    assert found == pytest.approx(expected)
    assert off_absent(start[None], gram, ages, range(0))[0] @ rows == pytest.approx(rows[0])
    total = rows[2] + rows[3]
    guarded = rows[0] - (total @ rows[0]) / (total @ total + 3) * total
    assert off_absent(start[None], gram, ages, range(2, 1, -1), 3.0)[0] @ rows == pytest.approx(guarded)


def test_a_row_at_a_right_angle_conflicts_with_nothing() -> None:
    rows = np.array([[1.0, -1.0], [1.0, 1.0], [0.0, 1.0]])
    found = off_absent(np.eye(1, 3), (rows @ rows.T)[None], np.array([0, 1, 1]), range(1, 0, -1))
    assert found[0] @ rows == pytest.approx([1.0, 0.0])


def test_a_long_memory_costs_no_more_than_the_ages_that_there_are() -> None:
    rows, ages = updates(5, 6, 4, 0.0), [0, 0, 3, 1, 7, 7]
    given: dict[str, Any] = {"losses": np.arange(1.0, 7.0), "ages": ages, "step": 2**31 - 1}
    short, long = (combine("fedfv", rows, **given, tau=tau).weights for tau in (7, 2**31 - 1))
    np.testing.assert_array_equal(long, short)
    outer = {"wrap": [("external", {"tau": 2**31 - 1})]}
    np.testing.assert_array_equal(combine("fedfv", rows, **given, tau=0, **outer).weights > 0, long > 0)


def test_windows_differ_in_the_ages_that_they_visit() -> None:
    rows = np.array([[1.0, 0.0], [-1.0, 1.0], [-1.0, -2.0]])
    given: dict[str, Any] = {"losses": [1.0, 1.0, 1.0], "ages": [0, 1, 2], "tau": 2, "alpha": 0.0}
    early = combine("fedfv", rows, **given, step=1).weights
    np.testing.assert_allclose(early, [[1, 0, 0]])  # the paper waits for step tau
    both = combine("fedfv", rows, **given, step=2)
    assert (both.weights[0, 1:] > 0).all()
    later = combine("fedfv_released", rows, **given, step=1)
    assert later.weights[0, 1] > 0
    assert later.weights[0, 2] == 0
    assert fedfv(tau=3).needs.memory == 3
    assert fedfv_released(tau=3).needs.memory == 2


@pytest.mark.parametrize(
    ("m", "alpha", "n_kept"),
    [(10, 0.0, 0), (10, 0.1, 1), (10, 0.5, 5), (10, 1 / 3, 3), (10, 0.334, 4), (11, 0.1, 2), (20, 0.1, 2)],
)
def test_number_of_kept_clients_is_that_of_the_authors(m: int, alpha: float, n_kept: int) -> None:
    rows, losses = updates(3, m, 4, 0.0), distinct_losses(3, m)
    mean = plain_projection(rows, losses, n_kept).mean(axis=0)
    expected = mean * np.linalg.norm(rows.mean(axis=0)) / np.linalg.norm(mean)
    assert_same(run(rows, losses, alpha=alpha), expected)


def test_opposite_and_zero_updates_make_no_move_and_no_nan() -> None:
    pair = np.array([[1.0, -2.0, 0.5], [-1.0, 2.0, -0.5]])
    assert not run(pair, np.array([0.3, 0.9])).any()
    assert not run(np.zeros((3, 2)), np.array([1.0, 2.0, 3.0])).any()
    with_zero = np.array([[1.0, 0.0], [0.0, 0.0], [1.0, 1.0]])
    assert_same(run(with_zero, np.array([1.0, 2.0, 3.0])), with_zero.mean(axis=0))


def by_hand(
    rows: NDArray[np.float64],
    losses: NDArray[np.float64],
    ages: list[int],
    targets: Sequence[int],
    alpha: float,
    tau: int,
) -> NDArray[np.float64]:
    """Algorithms 1 to 3 on the vectors themselves, with the targets of Algorithm 2 in a given order."""
    m = ages.count(0)
    by_loss = sorted(range(m), key=lambda i: losses[i])
    n_kept = m - math.ceil((m - 1) * (1 - alpha)) if alpha > 0 else 0
    projected = rows[:m].copy()
    for i in by_loss[: m - n_kept]:
        for j in targets:
            inner = projected[i] @ rows[j]
            if j != i and inner < 0:
                projected[i] = projected[i] - inner / (rows[j] @ rows[j]) * rows[j]
    mean = projected.mean(axis=0)
    for age in range(tau, 0, -1):
        total = sum((row for row, a in zip(rows, ages, strict=True) if a == age and row @ mean < 0), 0 * mean)
        if mean @ total < 0:
            mean = mean - (mean @ total) / (total @ total) * total
    return mean * np.linalg.norm(rows[:m].mean(axis=0)) / np.linalg.norm(mean)


@fast
@given(seeds, sizes, alphas, st.integers(0, 3), st.integers(0, 3), st.integers(0, 5))
def test_each_order_is_that_of_the_definition(
    seed: int, m: int, alpha: float, tau: int, absent: int, step: int
) -> None:
    """More dimensions than rows, so that no projection leaves nothing."""
    rows, losses = updates(seed, m + absent, 20, 0.0), distinct_losses(seed, m + absent)
    ages = [0] * m + [1 + i % 3 for i in range(absent)]
    by_loss = np.argsort(losses[:m]).tolist()
    drawn = rng(seed, "fedfv", tau + step).permutation(m).tolist()
    given_rows: dict[str, Any] = {
        "losses": losses,
        "ages": ages,
        "step": tau + step,
        "alpha": alpha,
        "tau": tau,
    }
    for order, targets in {"loss": by_loss, "reverse": by_loss[::-1], "random": drawn}.items():
        own = {"seed": seed} if order == "random" else {}
        found = combine("fedfv", rows, **given_rows, order=order, **own).direction
        assert_same(found, by_hand(rows, losses, ages, targets, alpha, tau), 1e-7)


def test_orders_by_pencil() -> None:
    """Three updates in the plane: the sums of what projecting leaves are (-1, -1) and (0.4, -0.5)."""
    rows, losses = np.array([[2.0, 0.0], [-1.0, 1.0], [-1.0, -2.0]]), np.array([0.1, 0.2, 0.3])
    for order, left in (("loss", [-1.0, -1.0]), ("reverse", [0.4, -0.5])):
        expected = np.array(left) / np.linalg.norm(left) / 3  # the mean of the updates is (0, -1 / 3)
        assert_same(run(rows, losses, order=order), expected, 1e-12)


def test_a_random_order_is_drawn_from_the_seed_of_the_run_and_the_step() -> None:
    """Replicates of a study draw orders of their own; outside a run, and where one is given, the option counts."""
    rows, losses = updates(5, 8, 20, 0.0), distinct_losses(5, 8)

    def moved(made: Algorithm, step: int = 4) -> NDArray[np.float64]:
        return combine(made, rows, losses=losses, step=step).direction

    def of_run(seed: int, own: dict[str, int] | None = None) -> Algorithm:
        chosen = {"name": "fedfv", "order": "random", "alpha": 0.0, "tau": 0, **(own or {})}
        return prepare(small(seed=seed, algorithm=chosen)).server.algorithm()

    for seed in (3, 4):
        targets = [rng(seed, "fedfv", step).permutation(8).tolist() for step in (4, 5)]
        assert targets[0] != targets[1]
        for step, order in zip((4, 5), targets, strict=True):
            assert_same(moved(of_run(seed), step), by_hand(rows, losses, [0] * 8, order, 0.0, 0), 1e-9)
    assert not np.allclose(moved(of_run(3)), moved(of_run(4)))
    np.testing.assert_array_equal(moved(of_run(3, {"seed": 9})), moved(of_run(4, {"seed": 9})))
    np.testing.assert_array_equal(
        run(rows, losses, order="random", step=4), run(rows, losses, order="random", step=4, seed=0)
    )
