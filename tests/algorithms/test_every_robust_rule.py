"""What robust rules share: honest updates that agree win, one hostile update moves the step no further than so far."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rule_calls import combine
from stacks import Rows, assert_same, seeds, updates

fast = settings(max_examples=40, deadline=None)
LONG = {"iterations": 400, "tolerance": 0.0}
RULES: dict[str, dict[str, Any]] = {
    "krum": {"attackers": 2},
    "multi_krum": {"attackers": 2, "keep": "honest"},
    "geometric_median": LONG,
    "coordinate_median": {},
    "trimmed_mean": {"beta": 0.25},
    "centred_clipping": {"radius": 1.0, "iterations": 3},
}
CENTRED = [name for name in RULES if name != "centred_clipping"]
"""Rules whose step moves along with all updates."""


def run(name: str, rows: Rows, **given: Any) -> Any:
    rule = "krum" if name == "multi_krum" else name
    return combine(rule, rows, losses=None, **RULES[name], **given)


@fast
@given(seeds, st.integers(0, 2))
@pytest.mark.parametrize("name", CENTRED)
def test_updates_that_agree_win(name: str, seed: int, hostile: int) -> None:
    rows = np.tile(updates(seed, 1, 8), (9, 1))
    common = rows[0].copy()
    rows[:hostile] = 10 * updates(seed + 1, hostile, 8) if hostile else rows[:0]
    near = 1e-3 if name == "geometric_median" else 1e-9
    assert_same(run(name, rows).direction, common, near)


@fast
@given(seeds, st.integers(7, 11))
@pytest.mark.parametrize("name", CENTRED)
def test_a_vector_added_to_all_updates_is_added_to_the_step(name: str, seed: int, m: int) -> None:
    rows, more = updates(seed, m, 8), updates(seed + 1, 1, 8)[0]
    assert_same(run(name, rows + more).direction, run(name, rows).direction + more, 1e-5)


@pytest.mark.parametrize("towards", [1, -1])
@pytest.mark.parametrize("name", RULES)
def test_one_update_sent_to_infinity_moves_the_step_by_a_bounded_amount(name: str, towards: int) -> None:
    rows = updates(2, 9, 8, common=2.0)
    size = np.linalg.norm(rows[1:], axis=1).max()
    steps = []
    for power in range(7):
        rows[0] = towards * 10.0**power * size
        steps.append(run(name, rows).direction)
        mean = combine("fedavg", rows, losses=None).direction
    assert max(np.linalg.norm(step) for step in steps) <= 3 * size
    assert np.linalg.norm(steps[-1] - steps[-2]) <= 0.02 * size, "it no longer matters how far"
    assert np.linalg.norm(mean) > 1e4 * size


@pytest.mark.parametrize("name", RULES)
def test_permuted_clients_have_permuted_weights(name: str) -> None:
    rows, order = updates(3, 9, 8), np.random.default_rng(0).permutation(9)
    clients, n_samples = np.arange(40, 49), np.arange(1, 10)
    one = run(name, rows, clients=clients, n_samples=n_samples)
    two = run(name, rows[order], clients=clients[order], n_samples=n_samples[order])
    assert_same(two.weights, one.weights[:, order])
    assert_same(two.direction, one.direction)


@pytest.mark.parametrize("name", RULES)
def test_remembered_updates_count_in_the_wrapper_alone(name: str) -> None:
    rows, ages = updates(4, 11, 8), np.array([0] * 7 + [1, 2, 3, 9])
    present = run(name, rows[:7])
    alone = run(name, rows, ages=ages, n_seen=11)
    assert_same(alone.direction, present.direction)
    assert not alone.weights[0, 7:].any()
    everybody = run(name, rows, ages=ages, n_seen=11, wrap=[("with_absent", {"window": "all"})])
    assert_same(everybody.direction, run(name, rows).direction)
    assert np.linalg.norm(everybody.direction - present.direction) > 1e-3
    recent = run(name, rows, ages=ages, n_seen=11, wrap=[("with_absent", {"window": 2})])
    assert_same(recent.direction, run(name, rows[:9]).direction)


@pytest.mark.parametrize("name", RULES)
def test_it_works_on_clipped_and_discounted_updates(name: str) -> None:
    rows, staleness = updates(5, 9, 8), np.array([0, 3, 0, 8, 0, 0, 15, 0, 3])
    norms = np.linalg.norm(rows, axis=1)
    clipped = rows * np.minimum(1, 2.0 / norms)[:, None]
    found = run(name, rows, wrap=[("clipped", {"norm": 2.0})])
    assert_same(found.direction, run(name, clipped).direction, 1e-6)
    discounted = rows * ((staleness + 1.0) ** -0.5)[:, None]
    found = run(name, rows, staleness=staleness, wrap=[("discounted", {"staleness": "sqrt"})])
    assert_same(found.direction, run(name, discounted).direction, 1e-6)
