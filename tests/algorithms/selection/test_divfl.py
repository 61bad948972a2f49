"""DivFL: its greedy choice against the sum of the paper, written out, and what it does without updates."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np
import pytest

from fedsim.engine.selector import Clients, View
from views import choose, make, remembered, shares, view

Rows = Any


def seen_of(rows: Rows, **changed: Any) -> View:
    """A view in which all clients had a job, and the server holds the updates `rows` [K, P], NaN where it has none."""
    n = len(rows)
    return view(n, dispatched=np.ones(n, dtype=np.int64), **remembered(np.asarray(rows)) | changed)


def cost(rows: Rows, chosen: Any, power: int = 1) -> float:
    """Σ_k min_{i in S} ‖D_k - D_i‖ over all clients."""
    return float(sum(min(np.linalg.norm(row - rows[i]) ** power for i in chosen) for row in rows))


def greedy(rows: Rows, candidates: Any, k: int, power: int = 1) -> list[int]:
    """Add the candidate that lowers the cost most, one after another."""
    chosen: list[int] = []
    for _ in range(k):
        left = [c for c in candidates if c not in chosen]
        chosen.append(min(left, key=lambda c: cost(rows, [*chosen, c], power)))
    return chosen


@pytest.mark.parametrize("distance", ["euclidean", "squared"])
@pytest.mark.parametrize("seed", range(6))
def test_the_choice_is_the_greedy_one_of_the_paper(seed: int, distance: str) -> None:
    draw = np.random.default_rng(seed)
    rows = draw.normal(size=(9, 3)) * draw.lognormal(size=(9, 1))
    candidates = np.sort(draw.choice(9, size=6, replace=False))
    expected = greedy(rows, candidates.tolist(), 3, 2 if distance == "squared" else 1)
    picked, _ = choose(make("divfl", distance=distance), seen_of(rows, candidates=candidates), 3, seed)
    assert picked == expected


def test_of_two_tight_groups_it_takes_one_each() -> None:
    draw = np.random.default_rng(0)
    rows = np.concatenate([draw.normal(0, 0.01, (5, 4)), draw.normal(9, 0.01, (3, 4))])
    for seed in range(5):
        picked, _ = choose("divfl", seen_of(rows), 2, seed)
        assert sorted(c >= 5 for c in picked) == [False, True]


def test_the_cost_is_at_most_that_of_random_sets_and_near_the_best() -> None:
    draw = np.random.default_rng(4)
    for _ in range(5):
        rows = draw.normal(size=(10, 3))
        mine = cost(rows, choose("divfl", seen_of(rows), 3)[0])
        every = [cost(rows, each) for each in combinations(range(10), 3)]
        assert mine <= np.mean(every)
        assert mine <= 1.35 * min(every)


def test_clients_that_are_offline_are_represented() -> None:
    """Client 0 alone is near the three that are offline."""
    rows = np.array([[0.0], [5.0], [5.1], [0.1], [0.2], [0.3]])
    assert choose("divfl", seen_of(rows, candidates=np.array([0, 1, 2])), 1)[0] == [0]


def test_clients_that_work_represent_already() -> None:
    rows = np.array([[0.0], [0.1], [0.2], [5.0], [5.2]])
    idle = choose("divfl", seen_of(rows, candidates=np.array([1, 2, 3, 4])), 1)[0]
    assert idle[0] in (1, 2)
    working = seen_of(rows, candidates=np.array([1, 2, 3, 4]), busy=np.arange(5) == 0)
    assert choose("divfl", working, 1)[0][0] in (3, 4)


def test_without_updates_it_is_uniform() -> None:
    nothing = np.full((6, 2), np.nan)
    for seen in (view(6), seen_of(nothing)):
        np.testing.assert_allclose(shares(make("divfl"), seen, 2, 4000), 1 / 3, atol=0.04)


def test_clients_that_never_had_a_job_come_first() -> None:
    rows = np.random.default_rng(2).normal(size=(6, 2))
    rows[[1, 4]] = np.nan
    seen = replace(seen_of(rows), dispatched=np.array([1, 0, 1, 1, 0, 1]))
    assert sorted(choose("divfl", seen, 2)[0]) == [1, 4]
    assert set(choose("divfl", seen, 3)[0][:2]) == {1, 4}
    assert len(choose("divfl", seen, 6)[0]) == 6


def test_clients_whose_jobs_are_always_lost_do_not_take_all_places() -> None:
    """Three of them, for three places: a representative of the known ones is chosen all the same."""
    rows = np.random.default_rng(2).normal(size=(9, 2))
    rows[:3] = np.nan
    picked, _ = choose("divfl", seen_of(rows), 3)
    assert any(c >= 3 for c in picked)


def test_a_share_looks_at_some_candidates_for_each_place() -> None:
    """With a share of the smallest size, `k` of them; it then loses some cost, and depends on the draw."""
    rows = np.random.default_rng(7).normal(size=(30, 2))
    seen, few = seen_of(rows), make("divfl", share=0.05)
    sets = [choose(few, seen, 3, seed)[0] for seed in range(20)]
    whole = choose("divfl", seen, 3)[0]
    costs = [cost(rows, each) for each in sets]
    assert len({tuple(each) for each in sets}) > 10
    assert min(costs) >= cost(rows, whole) * 0.9
    assert np.mean(costs) < np.mean([cost(rows, np.random.default_rng(s).choice(30, 3)) for s in range(200)])
    assert choose(make("divfl", share=1.0), seen, 3)[0] == whole


def test_only_the_updates_that_are_there_are_multiplied() -> None:
    calls: list[list[int]] = []

    def products(clients: Clients) -> Any:
        calls.append(clients.tolist())
        return np.eye(len(clients))

    rows = np.ones((8, 2))
    rows[[5, 6]] = np.nan
    seen = replace(seen_of(rows, candidates=np.array([0, 5])), update_products=products)
    choose("divfl", seen, 1)
    assert calls == [[0, 1, 2, 3, 4, 5, 7]]
