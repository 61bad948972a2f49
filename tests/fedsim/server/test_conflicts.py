"""Diagnostics of a step, against the same numbers computed on the vectors themselves."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from fedsim.plugins import build
from fedsim.server.conflicts import ORTHOGONAL, diagnose, diagnose_columns, each_row
from fedsim.server.rule import Direction, Stack

SIZES = [3, 1, 6]
Array = NDArray[np.float64]


def parts(rows: Array) -> list[Array]:
    return np.split(rows, np.cumsum(SIZES)[:-1], axis=-1)


def stack_of(rows: Array, m: int, **changes: Any) -> Stack:
    n = len(rows)
    zeros = np.zeros(n, dtype=np.int64)
    whole = Stack(
        grams=np.stack([part @ part.T for part in parts(rows)]),
        m=m,
        clients=np.arange(n),
        losses=np.linspace(1, 2, n),
        n_samples=zeros + 5,
        ages=(np.arange(n) >= m).astype(np.int64),
        staleness=zeros,
        participations=zeros + 1,
        online=np.arange(n) < m,
        step=5,
        n_clients=n,
        total_samples=5 * n,
        n_seen=n,
    )
    return replace(whole, **changes)


def cosine(a: Array, b: Array) -> float:
    return float(a @ b / (np.linalg.norm(a) * np.linalg.norm(b)))


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), m=st.integers(1, 6), absent=st.integers(0, 3), by_block=st.booleans())
def test_numbers_are_those_of_the_vectors(seed: int, m: int, absent: int, by_block: bool) -> None:
    draw = np.random.default_rng(seed)
    rows = draw.normal(size=(m + absent, sum(SIZES)))
    weights = draw.normal(size=(len(SIZES), m + absent) if by_block else m + absent)
    found = diagnose(stack_of(rows, m), Direction(weights))
    table = np.broadcast_to(weights, (len(SIZES), m + absent))
    pieces = [w @ part for w, part in zip(table, parts(rows), strict=True)]
    direction = np.concatenate(pieces)
    cosines = np.array([cosine(row, direction) for row in rows])
    by_layer = np.array([[cosine(r, d) for r in part] for part, d in zip(parts(rows), pieces, strict=True)])
    np.testing.assert_allclose(found.cosines, cosines, atol=1e-7)
    np.testing.assert_allclose(found.block_cosines, by_layer, atol=1e-7)
    np.testing.assert_array_equal(found.weights, table)
    numbers = found.numbers()
    assert numbers["model_conflicts"] == sum(cosines[:m] < 0)
    assert numbers["absent_conflicts"] == sum(cosines[m:] < 0)
    assert numbers["block_conflicts_mean"] == (by_layer[:, :m] < 0).sum(axis=1).mean()
    pairs = [rows[i] @ rows[j] for i in range(m) for j in range(i)]
    assert found.conflicting_pairs == sum(p < 0 for p in pairs)
    assert numbers["smallest_cosine"] == pytest.approx(cosines[:m].min(), abs=1e-7)


@pytest.mark.parametrize("m", [1, 5])
def test_a_direction_without_weights_is_compared_by_its_inner_products(m: int) -> None:
    """They are those of the weighted sum, so all but the weights is as with weights."""
    draw = np.random.default_rng(m)
    rows, weights = draw.normal(size=(m + 2, sum(SIZES))), draw.normal(size=m + 2)
    stack, direction = stack_of(rows, m), parts(weights @ rows)
    inner = np.stack([part @ along for part, along in zip(parts(rows), direction, strict=True)])
    unknown = np.where(np.arange(m + 2) < m, np.nan, 0.0)
    found = diagnose_columns(stack, unknown, inner, np.array([along @ along for along in direction]))
    wanted = diagnose(stack, Direction(weights))
    np.testing.assert_allclose(found.cosines, wanted.cosines, rtol=1e-9)
    np.testing.assert_allclose(found.block_cosines, wanted.block_cosines, rtol=1e-9)
    assert (found.m, found.conflicting_pairs) == (wanted.m, wanted.conflicting_pairs)
    assert math.isnan(found.projection_removed)
    np.testing.assert_array_equal(found.weights, np.tile(unknown, (len(SIZES), 1)))


@pytest.mark.parametrize("by_block", [False, True])
def test_each_row_has_an_entry_for_the_model_and_each_block(by_block: bool) -> None:
    draw = np.random.default_rng(2)
    rows, table = draw.normal(size=(4, sum(SIZES))), draw.normal(size=(len(SIZES), 4))
    stack = stack_of(rows, 2, clients=np.array([8, 3, 5, 1]), ages=np.array([0, 0, 7, 2]))
    found = each_row(stack, diagnose(stack, Direction(table)), by_block)
    pieces = [w @ part for w, part in zip(table, parts(rows), strict=True)]
    blocks = [(-1, rows, np.concatenate(pieces), table.max(axis=0))]
    if by_block:
        blocks += list(zip(range(len(SIZES)), parts(rows), pieces, table, strict=True))
    assert list(found) == ["block", "client", "age", "weight", "cosine", "norm"]
    assert found["block"].tolist() == [index for index, *_ in blocks for _ in range(4)]
    assert found["client"].tolist() == [8, 3, 5, 1] * len(blocks)
    assert found["age"].tolist() == [0, 0, 7, 2] * len(blocks)
    np.testing.assert_array_equal(found["weight"], np.concatenate([weights for *_, weights in blocks]))
    cosines = [cosine(row, along) for _, part, along, _ in blocks for row in part]
    np.testing.assert_allclose(found["cosine"], cosines, atol=1e-9)
    norms = [np.linalg.norm(row) for _, part, *_ in blocks for row in part]
    np.testing.assert_allclose(found["norm"], norms, rtol=1e-12)


def test_fedlf_s_direction_conflicts_with_nobody() -> None:
    rows = np.random.default_rng(3).normal(size=(4, sum(SIZES)))
    stack = stack_of(rows, 4)
    rule = build("rule", "fedlf", {"fair_row": "none"})
    found = diagnose(stack, rule.weigh(stack, rule.init())[0])
    assert found.conflicting_pairs > 0
    assert found.numbers()["model_conflicts"] == 0
    assert (found.block_cosines[[0, 2]] >= -ORTHOGONAL).all()


def test_a_projection_that_the_rule_reports_is_passed_on() -> None:
    stack = stack_of(np.array([[1.0] * 10, [-0.5] * 5 + [0.1] * 5]), 1)
    rule = build("rule", "fedfv", {})
    found = diagnose(stack, rule.weigh(stack, rule.init())[0])
    away = found.projection_removed
    assert 0 < away < 1
    assert found.cosines[1] == pytest.approx(0, abs=1e-9)
    assert found.numbers()["absent_conflicts"] == 0
    assert found.cosines[0] == pytest.approx(math.sqrt(1 - away**2))
    assert math.isnan(diagnose(stack, Direction(np.ones(2))).projection_removed)


def test_zero_rows_and_zero_directions_have_no_angle() -> None:
    rows = np.array([[1.0] * 10, [0.0] * 10])
    found = diagnose(stack_of(rows, 2), Direction(np.array([1.0, 1.0])))
    assert np.isnan(found.cosines).tolist() == [False, True]
    still = diagnose(stack_of(rows, 2), Direction(np.zeros(2)))
    assert np.isnan(still.cosines).all()
    assert still.numbers()["model_conflicts"] == 0
    assert math.isnan(still.numbers()["smallest_cosine"])


def test_squares_below_zero_by_rounding_are_those_of_zero_rows() -> None:
    stack = stack_of(np.zeros((2, 10)), 2)
    stack = replace(stack, grams=stack.grams - 1e-18 * np.eye(2))
    diagnosis = diagnose(stack, Direction(np.ones(2)))
    assert np.isnan(diagnosis.cosines).all()
    assert each_row(stack, diagnosis, by_block=True)["norm"].tolist() == [0] * 8


def test_what_does_not_fit_is_refused() -> None:
    stack = stack_of(np.ones((2, 10)), 2)
    with pytest.raises(ValueError, match=r"expected weights of shape \(3, 2\) or \(2,\), found \(2, 2\)"):
        diagnose(stack, Direction(np.ones((2, 2))))
