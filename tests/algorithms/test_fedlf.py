"""FedLF: no conflict in any block, the fair row, merging, and who counts as absent."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from fedsim.algorithms.fedlf import fedlf
from fedsim.algorithms.mathematics.geometry import fair_weights, unit_fair_weights
from fedsim.algorithms.mathematics.min_norm import min_norm
from fedsim.common.errors import ConfigError
from fedsim.server.combine import Combined
from fedsim.server.server import Server
from fedsim.server.spec import ServerSpec
from fedsim.server.step_input import StepInput
from fedsim.training.job import Report, Reports
from rule_calls import combine
from stacks import assert_same, distinct_losses, seeds, updates

fast = settings(max_examples=50, deadline=None)
sizes = st.integers(2, 8)
SIZES = [12, 9, 30]


def run(seed: int, m: int, absent: int = 0, **options: Any) -> tuple[NDArray[np.float64], Combined[Any]]:
    rows = updates(seed, m + absent, sum(SIZES))
    ages = [0] * m + [1] * absent
    losses = distinct_losses(seed, m + absent)
    return rows, combine(
        "fedlf", rows, losses=losses, ages=ages, n_seen=m + absent + 1, blocks=SIZES, **options
    )


def blocks_of(rows: NDArray[np.float64]) -> list[NDArray[np.float64]]:
    return np.split(rows, np.cumsum(SIZES)[:-1], axis=-1)


lengths = st.sampled_from(["equal", "raw"])


@fast
@given(seeds, sizes, st.integers(0, 3), lengths)
def test_nobody_s_block_conflicts_and_the_mean_s_norm_is_kept(
    seed: int, m: int, absent: int, lengths: str
) -> None:
    rows, result = run(seed, m, absent, lengths=lengths)
    assert result.diagnostics["blocks"] == len(SIZES)
    for part, d in zip(blocks_of(rows), blocks_of(result.direction), strict=True):
        assert (part @ d >= -1e-9 * np.linalg.norm(part, axis=1) * np.linalg.norm(d)).all()
    fair = fair_weights(distinct_losses(seed, m + absent)[:m]) @ rows[:m]
    assert fair @ result.direction >= -1e-9 * np.linalg.norm(fair) * np.linalg.norm(result.direction)
    mean = np.linalg.norm(rows[:m].mean(axis=0))
    assert np.linalg.norm(result.direction) == pytest.approx(mean, rel=1e-9)


@fast
@given(seeds, st.integers(2, 6), st.integers(0, 3))
def test_equal_lengths_are_those_of_fragments_scaled_by_hand(seed: int, m: int, absent: int) -> None:
    """The least-norm point of each block's scaled fragments, found by the interior-point solver."""
    rows, result = run(seed, m, absent, lengths="equal")
    fair = fair_weights(distinct_losses(seed, m + absent)[:m]) @ rows[:m]
    expected = []
    for part, guide in zip(blocks_of(rows), blocks_of(fair), strict=True):
        points = np.vstack([part, guide])
        length = np.linalg.norm(part[:m], axis=1).mean()
        points *= length / np.linalg.norm(points, axis=1, keepdims=True)
        weights, _ = min_norm(points @ points.T, solver="cvxpy")
        expected.append(weights @ points)
    whole = np.concatenate(expected)
    mean = np.linalg.norm(rows[:m].mean(axis=0))
    assert_same(result.direction, whole * (mean / np.linalg.norm(whole)), 1e-3)


@fast
@given(seeds, sizes, st.floats(1e-3, 1e3))
def test_with_equal_lengths_a_client_s_own_length_decides_nothing(seed: int, m: int, factor: float) -> None:
    """Without a tolerance: with it, a fragment far shorter than the others counts as zero."""
    rows = updates(seed, m, sum(SIZES))
    scaled = rows.copy()
    scaled[0] *= factor
    given: dict[str, Any] = {"losses": [1.0] * m, "blocks": SIZES, "zero_tolerance": 0.0}
    one, two = (combine("fedlf", updates, lengths="equal", **given) for updates in (rows, scaled))
    for first, second in zip(blocks_of(one.direction), blocks_of(two.direction), strict=True):
        np.testing.assert_allclose(first / np.linalg.norm(first), second / np.linalg.norm(second), atol=1e-7)


def test_a_short_update_bounds_the_raw_step_and_not_the_equal_one() -> None:
    """A client whose samples fit sends a thousandth: raw, its weight is what the others' would have to be together."""
    rows = updates(3, 4, sum(SIZES))
    rows[2] /= 1000
    raw, equal = (
        combine("fedlf", rows, losses=[1.0, 2, 0, 3], blocks=SIZES, fair_row="none", lengths=lengths)
        for lengths in ("raw", "equal")
    )
    fragments = np.stack([np.linalg.norm(part, axis=1) for part in blocks_of(rows)])
    assert (raw.weights[:, 2] > 100 * raw.weights[:, [0, 1, 3]].max(axis=1)).all()
    shares = equal.weights * fragments
    assert (shares[:, 2] < 0.9 * shares.sum(axis=1)).all()


def test_a_fragment_that_is_rounding_is_left_out_of_its_block_alone() -> None:
    rows = updates(1, 4, sum(SIZES))
    rows[1, : SIZES[0]] *= 1e-9
    result = combine("fedlf", rows, losses=[1.0] * 4, blocks=SIZES, lengths="equal")
    assert result.weights[0, 1] == 0
    assert (result.weights[1:, 1] > 0).all()
    alone = combine("fedlf", rows[[0, 2, 3], : SIZES[0]], losses=[1.0] * 3, lengths="equal")
    first = result.direction[: SIZES[0]]
    np.testing.assert_allclose(first / np.linalg.norm(first), _unit(alone), atol=1e-9)


@fast
@given(seeds, sizes)
def test_released_form_conflicts_with_no_fragment(seed: int, m: int) -> None:
    rows = updates(seed, m, sum(SIZES))
    result = combine("fedlf_released", rows, losses=distinct_losses(seed, m), blocks=SIZES)
    for part, d in zip(blocks_of(rows), blocks_of(result.direction), strict=True):
        assert (part @ d >= -1e-9 * np.linalg.norm(part, axis=1) * np.linalg.norm(d)).all()


@fast
@given(seeds, st.integers(2, 30))
def test_fair_weights_are_equation_5(seed: int, m: int) -> None:
    losses = distinct_losses(seed, m)
    q, norm = fair_weights(losses), np.linalg.norm(losses)
    literal = (losses.sum() * losses / (math.sqrt(m) * norm) - norm / math.sqrt(m)) / norm**2
    np.testing.assert_allclose(q, literal, rtol=1e-9, atol=1e-12)
    assert abs(q @ losses) <= 1e-12
    assert q.sum() <= 1e-12
    np.testing.assert_allclose(fair_weights(losses * 1e200), q / 1e200, rtol=1e-9)


@pytest.mark.parametrize("losses", [[1.25] * 3, [0.0, 0.0], [7.0]])
def test_equal_losses_have_no_fair_row(losses: list[float]) -> None:
    assert not fair_weights(np.array(losses)).any()
    rows = updates(1, len(losses), 6)
    with_row, without = (
        combine("fedlf", rows, losses=losses, fair_row=kind).direction for kind in ("gradient", "none")
    )
    np.testing.assert_array_equal(with_row, without)


def test_one_parameter_of_mixed_signs_joins_the_next_block() -> None:
    rows = np.array([[1.0, 2.0, 0.1, 5.0], [-1.0, 0.5, 0.3, -1.0]])
    given: dict[str, Any] = {"losses": [1.0, 2.0], "fair_row": "none"}
    merged = combine("fedlf", rows, blocks=[1, 2, 1], **given)
    np.testing.assert_array_equal(merged.weights[0], merged.weights[1])
    np.testing.assert_array_equal(merged.weights[1], merged.weights[2])  # the last joins the one before
    assert merged.diagnostics["blocks"] == 1
    apart = combine("fedlf", rows, blocks=[1, 2, 1], merging=False, **given)
    assert apart.diagnostics["blocks"] == 3
    assert apart.direction[0] == pytest.approx(0, abs=1e-12)


def test_opposite_updates_make_no_move() -> None:
    pair = np.array([[1.0, -2.0, 0.5], [-1.0, 2.0, -0.5]])
    for rule in ("fedlf", "fedlf_released"):
        result = combine(rule, pair, losses=[1.0, 1.0], blocks=[1, 2])
        assert not result.direction.any()


def test_a_zero_update_has_no_row() -> None:
    rows = np.array([[1.0, 2.0], [0.0, 0.0], [2.0, 1.0]])
    for rule in ("fedlf", "fedlf_released"):
        result = combine(rule, rows, losses=[1.0, 1.0, 1.0])
        assert np.linalg.norm(result.direction) == pytest.approx(np.linalg.norm(rows.mean(axis=0)))
        assert result.weights[0, 1] == 0


@pytest.mark.parametrize("lengths", ["raw", "equal"])
def test_a_client_that_hardly_moves_does_not_decide_for_all(lengths: str) -> None:
    """Its update is the rounding of float32, and would be the step as the least-norm point, a billion times as long."""
    rows = updates(1, 5, sum(SIZES))
    others, tiny = np.delete(rows, 3, axis=0), rows.copy()
    tiny[3] *= 1e-11
    losses = [1.0, 2.0, 3.0, 0.0, 4.0]
    given: dict[str, Any] = {"blocks": SIZES, "fair_row": "none", "lengths": lengths}
    result, exact = (
        combine("fedlf", tiny, losses=losses, zero_tolerance=zero, **given) for zero in (1e-4, 0.0)
    )
    alone = combine("fedlf", others, losses=np.delete(losses, 3), **given)
    assert not result.weights[:, 3].any()
    np.testing.assert_allclose(_unit(result), _unit(alone), atol=1e-9)
    assert result.weights.max() < 10 < 1e6 < exact.weights[:, 3].max()


def _unit(result: Combined[Any]) -> NDArray[np.float64]:
    return np.asarray(result.direction / np.linalg.norm(result.direction))


@pytest.mark.parametrize(
    ("absent", "n_seen", "used"),
    [
        ("window", 2, [False, False, False]),  # M = m: no absent rows
        ("window", 4, [True, True, False]),  # age <= M/m = 2
        ("none", 9, [False, False, False]),
        ("previous", 9, [True, False, False]),
        ("all", 2, [True, True, True]),
    ],
)
def test_window_of_absent_clients(absent: str, n_seen: int, used: list[bool]) -> None:
    rows = np.array(
        [[3.0, 0, 0, 0, 1], [3.0, 0, 0, 0, 2], [-1, 4.0, 0, 0, 0], [-1, 0, 4.0, 0, 0], [-1, 0, 0, 4.0, 0]]
    )
    result = combine("fedlf", rows, losses=[1.0] * 5, ages=[0, 0, 1, 2, 3], n_seen=n_seen, absent=absent)
    assert (result.weights[0, 2:] > 0).tolist() == used


def test_needs_follow_the_options() -> None:
    assert fedlf().needs.gram == "blocks"
    assert fedlf().needs.memory == math.inf
    assert fedlf(level="model").needs.gram == "model"
    assert fedlf(absent="none", fair_row="none").needs.memory == 0
    assert not fedlf(fair_row="none").needs.losses


def test_solvers_agree() -> None:
    direct = run(4, 5)[1]
    reference = run(4, 5, solver="cvxpy")[1]
    assert_same(reference.direction, direct.direction, 1e-3)


@pytest.mark.parametrize("lengths", ["equal", "raw"])
@pytest.mark.parametrize(
    "options",
    [
        {"level": "model"},
        {"level": "slices"},
        {"fair_row": "none"},
        {"fair_row": "unit"},
        {"absent": "none"},
        {"absent": "previous"},
        {"absent": "all"},
    ],
    ids=lambda options: "-".join(*options.items()),
)
def test_each_ablation_of_table_3_takes_another_step(options: dict[str, str], lengths: str) -> None:
    if options == {"fair_row": "unit"} and lengths == "equal":
        return  # refused, see below
    rows, losses = updates(4, 7, sum(SIZES)), distinct_losses(4, 7)
    rows[4:] -= rows[:4].mean(axis=0)
    given: dict[str, Any] = {"losses": losses, "ages": [0] * 4 + [1, 2, 3], "n_seen": 9, "blocks": SIZES}
    given |= {"lengths": lengths}
    ablated, whole = (combine("fedlf", rows, **given, **more).direction for more in (options, {}))
    assert not np.allclose(ablated, whole)


def test_the_scale_of_the_fair_row_is_refused_where_lengths_are_equal() -> None:
    for make in (fedlf, lambda **options: combine("fedlf", np.eye(2), losses=[1.0, 2.0], **options)):
        with pytest.raises(ConfigError, match='expected lengths = "raw", found "equal"'):
            make(fair_row="unit")


@pytest.mark.parametrize("place", ["combine", "server"])
def test_slices_are_equal_parts_of_the_parameters(place: str) -> None:
    """Layers of 1 and 4 parameters become slices of 2 and 3, each with the point of a segment nearest to zero."""
    rows = np.array([[3.0, 0, 1, 2, 0], [-1, 2, 0, 1, 2]])
    # The first slice divides its segment at 0.6, the second at a half; the whole is as long as the mean.
    nearest, mean = np.array([0.6, 1.2, 0.5, 1.5, 1]), np.array([1.0, 1, 0.5, 1.5, 1])
    expected = nearest * np.linalg.norm(mean) / np.linalg.norm(nearest)
    if place == "combine":
        found = combine("fedlf", rows, losses=[1.0, 1.0], blocks=[1, 4], level="slices", lengths="raw")
        assert_same(found.direction, expected)
        assert found.diagnostics["blocks"] == 2
        return
    spec = ServerSpec("fedlf", {"level": "slices", "lengths": "raw"}, 2, 2, 2, [(0, 1), (1, 5)])
    server = Server(spec, torch.zeros(5, dtype=torch.float64))
    reports = Reports.of([Report(loss_before=1.0)] * 2)
    two = np.arange(2)
    server.step(StepInput(0, two, 0 * two, 0 * two + 1, two, reports), torch.from_numpy(rows))
    assert_same(-server.params.numpy(), expected)


def test_unit_fair_row_is_that_of_fedmdfg() -> None:
    losses = distinct_losses(4, 6)
    h, unit = unit_fair_weights(losses), losses / np.linalg.norm(losses)
    p = np.full(6, 1 / math.sqrt(6))
    literal = (p @ unit) * unit - p
    assert_same(h, literal / np.linalg.norm(literal), 1e-12)
