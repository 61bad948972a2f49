"""Centred clipping against the iteration of Karimireddy et al. 2021 on vectors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rule_calls import combine
from stacks import Rows, assert_same, seeds, updates

fast = settings(max_examples=60, deadline=None)


def clip(rows: Any, **given: Any) -> Any:
    return combine("centred_clipping", rows, losses=None, **given).direction


def centred(rows: Rows, radius: float, iterations: int) -> Rows:
    """Return v after the iterations v <- v + (1/n) Σ (x_i - v) min(1, τ/‖x_i - v‖), from 0."""
    v = np.zeros(rows.shape[1])
    for _ in range(iterations):
        moves = []
        for x in rows:
            away = float(np.linalg.norm(x - v))
            moves.append((x - v) * (min(1.0, radius / away) if away > 0 else 1.0))
        v = v + np.asarray(moves).mean(axis=0)
    return v


@fast
@given(seeds, st.integers(1, 10), st.sampled_from([0.01, 1.0, 10.0, 1000.0]), st.integers(1, 6))
def test_it_is_the_iteration_on_vectors(seed: int, m: int, radius: float, iterations: int) -> None:
    rows = updates(seed, m, 12)
    found = clip(rows, radius=radius, iterations=iterations)
    assert_same(found, centred(rows, radius, iterations), 1e-6)


def test_the_defaults_are_one_iteration_of_radius_10() -> None:
    rows = 5 * updates(3, 9, 12)
    assert (np.linalg.norm(rows, axis=1) > 10).any()
    assert_same(clip(rows), centred(rows, 10.0, 1))


@fast
@given(seeds, st.integers(1, 10))
def test_a_radius_beyond_all_updates_gives_the_mean(seed: int, m: int) -> None:
    rows = updates(seed, m, 12)
    assert_same(clip(rows, radius=1e9), rows.mean(axis=0))


@fast
@given(seeds, st.integers(1, 10), st.sampled_from([0.01, 1.0, 10.0]))
def test_each_iteration_moves_by_the_radius_at_most(seed: int, m: int, radius: float) -> None:
    rows, before = updates(seed, m, 12), np.zeros(12)
    for k in range(1, 6):
        now = clip(rows, radius=radius, iterations=k)
        assert np.linalg.norm(now - before) <= radius * (1 + 1e-9)
        before = now


@pytest.mark.parametrize("iterations", [1, 3])
def test_zero_updates_move_nothing(iterations: int) -> None:
    assert not clip(np.zeros((3, 4)), iterations=iterations).any()
