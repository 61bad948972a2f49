"""Krum and Multi-Krum against the definitions of Blanchard et al. 2017, on vectors."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rule_calls import combine
from stacks import Rows, assert_same, seeds, updates

fast = settings(max_examples=60, deadline=None)


def krum(rows: Any, **given: Any) -> Any:
    return combine("krum", rows, losses=None, **given)


def scores(rows: Rows, f: int) -> list[float]:
    """Return s(i) = Σ_{i → j} ‖V_i - V_j‖², over the n - f - 2 vectors closest to V_i."""
    n, found = len(rows), []
    for i in range(n):
        others = sorted(float(np.sum((rows[i] - rows[j]) ** 2)) for j in range(n) if j != i)
        found.append(math.fsum(others[: n - f - 2]))
    return found


@fast
@given(seeds, st.integers(3, 12), st.integers(2, 20), st.data())
def test_krum_is_the_update_closest_to_its_neighbours(seed: int, m: int, d: int, data: st.DataObject) -> None:
    f = data.draw(st.integers(0, (m - 3) // 2))
    rows = updates(seed, m, d)
    found = krum(rows, attackers=f)
    assert_same(found.direction, rows[int(np.argmin(scores(rows, f)))])
    assert found.diagnostics == {"attackers": f, "kept": 1}


@fast
@given(seeds, st.integers(3, 12), st.integers(1, 12), st.data())
def test_multi_krum_is_the_mean_of_the_best(seed: int, m: int, q: int, data: st.DataObject) -> None:
    f = data.draw(st.integers(0, (m - 3) // 2))
    rows = updates(seed, m, 15)
    best = np.argsort(scores(rows, f))[:q]
    assert_same(krum(rows, attackers=f, keep=q).direction, rows[best].mean(axis=0))


@pytest.mark.parametrize("m", range(1, 14))
@pytest.mark.parametrize("attackers", [None, 0, 1, 2, 5])
def test_it_assumes_no_more_attackers_than_the_updates_admit(m: int, attackers: int | None) -> None:
    """n ≥ 2f + 3."""
    rows = updates(m, m, 8)
    options = {} if attackers is None else {"attackers": attackers}
    f = max(f for f in range(m) if f == 0 or m >= 2 * f + 3)
    f = f if attackers is None else min(f, attackers)
    found = krum(rows, **options)
    assert found.diagnostics["attackers"] == f
    assert_same(found.direction, rows[int(np.argmin(scores(rows, f)))] if m > 2 else rows[0])


@pytest.mark.parametrize(("m", "attackers", "kept"), [(9, 2, 7), (9, 9, 6), (4, 1, 4), (1, 3, 1)])
def test_it_keeps_as_many_as_are_taken_to_be_honest(m: int, attackers: int, kept: int) -> None:
    found = krum(updates(0, m, 8), attackers=attackers, keep="honest")
    assert np.count_nonzero(found.weights) == kept == found.diagnostics["kept"]


@fast
@given(seeds, st.integers(1, 10))
def test_all_updates_without_attackers_are_the_mean(seed: int, m: int) -> None:
    rows = updates(seed, m, 10)
    for keep in (m, m + 5, "honest"):
        assert_same(krum(rows, attackers=0, keep=keep).direction, rows.mean(axis=0))


def test_ties_go_to_the_smallest_client() -> None:
    """The corners of a square are equally far from their neighbours."""
    square = np.array([[0.0, 0.0], [0.0, 1.0], [1.0, 1.0], [1.0, 0.0]])
    found = krum(square, clients=[7, 9, 3, 5], keep=2)
    assert found.weights.tolist() == [[0, 0, 0.5, 0.5]]
