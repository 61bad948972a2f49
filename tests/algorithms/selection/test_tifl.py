"""TiFL: tiers by time, credits that run out, probabilities that follow accuracy."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from fedsim.algorithms.selection.tifl import ranked_odds
from fedsim.common.units import US
from views import after_jobs, choose, lookup, make, view


def tier_of(clients: list[int]) -> int:
    tiers = {client // 2 for client in clients}
    assert len(tiers) == 1, clients
    return tiers.pop()


def drawn(count: int, accuracy: Any = None, *, every: int = 1, **options: Any) -> list[int]:
    """Return the tiers that are drawn for ten clients, of which two at a time are equally fast.

    `accuracy(step)` [5] is that of the tiers, which is evaluated every so many steps.
    """
    selector, rng = make("tifl", **options), np.random.default_rng(4)
    state, seen, found = selector.start(), view(10), []
    for step in range(count):
        if accuracy is not None:
            last = step - step % every
            seen = replace(seen, accuracy=np.repeat(accuracy(last), 2), accuracy_step=np.full(10, last))
        chosen, state = selector.select(seen, 2, rng, state)
        found.append(tier_of(chosen.tolist()))
        seen = after_jobs(seen, chosen)
    return found


def test_all_chosen_are_of_one_tier_and_tiers_are_equally_likely() -> None:
    found = drawn(1500, policy="static")
    assert np.bincount(found, minlength=5) / 1500 == pytest.approx(np.full(5, 0.2), abs=0.04)


def test_given_odds_are_those_of_the_tiers_fastest_first() -> None:
    found = drawn(1500, policy="static", odds=[4, 3, 2, 1, 0])
    assert np.bincount(found, minlength=5) / 1500 == pytest.approx([0.4, 0.3, 0.2, 0.1, 0], abs=0.04)


@pytest.mark.parametrize("policy", ["static", "adaptive"])
def test_credits_limit_how_often_a_tier_is_drawn(policy: str) -> None:
    """Each tier three times in the first fifteen; then all get three more."""
    found = drawn(30, lambda step: np.array([0.9, 0.1, 0.5, 0.3, 0.2]), policy=policy, credits=3, interval=4)
    assert np.bincount(found[:15], minlength=5).tolist() == [3] * 5
    assert np.bincount(found[15:], minlength=5).tolist() == [3] * 5


def test_odds_go_by_rank_of_accuracy_worst_first() -> None:
    accuracy = np.array([0.5, 0.1, 0.9, 0.3])
    assert ranked_odds(accuracy, np.array([-1] * 4)) == pytest.approx(np.array([1, 3, 0, 2]) / 6)
    assert ranked_odds(accuracy, np.array([2, 0, 1, 1])) == pytest.approx(np.array([1, 0, 0, 2]) / 3)
    assert ranked_odds(accuracy, np.array([0, 0, 1, 0])).tolist() == [0, 0, 1, 0]


def test_unimproved_accuracy_turns_to_the_worst_tier() -> None:
    found = drawn(1200, lambda step: np.array([0.9, 0.1, 0.5, 0.3, 0.2]), interval=5)
    late = np.bincount(found[20:], minlength=5) / 1180
    assert late == pytest.approx(np.array([0, 4, 1, 2, 3]) / 10, abs=0.05)


def test_odds_stay_while_accuracy_improves() -> None:
    found = drawn(1200, lambda step: np.arange(5) / 10 + step * 1e-4, interval=5)
    assert np.bincount(found, minlength=5) / 1200 == pytest.approx(np.full(5, 0.2), abs=0.04)


@pytest.mark.parametrize("every", [40, 10_000])
def test_an_evaluation_is_not_compared_with_itself(every: int) -> None:
    found = drawn(1200, lambda step: np.arange(5) / 10 + step * 1e-4, every=every, interval=5)
    assert np.bincount(found, minlength=5) / 1200 == pytest.approx(np.full(5, 0.2), abs=0.04)


def test_tiers_are_made_of_measured_then_expected_times() -> None:
    seen = view(
        4, last_duration_us=[90 * US, -1, -1, 1 * US], expected_us=lookup(np.array([1, 50, 2, 99]) * US)
    )
    selector = make("tifl", tiers=2, policy="static")
    pairs = {tuple(sorted(choose(selector, seen, 2, seed)[0])) for seed in range(20)}
    assert pairs == {(2, 3), (0, 1)}


def test_new_tiers_wait_for_their_interval_or_an_unknown_client() -> None:
    selector = make("tifl", tiers=2, policy="static", interval=10)
    _, state = choose(selector, view(4, [0, 1, 2]), 2)
    assert state["tier"].tolist() == [0, 0, 1, -1]
    turned = lookup(np.array([4, 3, 2, 1]) * US)
    _, same = choose(selector, view(4, [0, 1, 2], step=9, expected_us=turned), 2, 0, state)
    assert same["tier"].tolist() == [0, 0, 1, -1]
    for seen in (view(4, step=1, expected_us=turned), view(4, [0, 3], step=10, expected_us=turned)):
        assert choose(selector, seen, 1, 0, state)[1]["tier"][3] >= 0
    _, later = choose(selector, view(4, [0, 1, 2], step=10, expected_us=turned), 2, 0, state)
    assert later["tier"].tolist() == [1, 0, 0, -1]
    _, away = choose(selector, view(4, [0, 1], step=10, expected_us=turned), 2, 0, state)
    assert away["tier"].tolist() == [1, 0, 0, -1], "client 2, which took 3 s before, is away"


def test_tiers_whose_clients_are_away_are_not_drawn() -> None:
    selector = make("tifl", policy="static")
    _, state = choose(selector, view(10), 2)
    assert {tier_of(choose(selector, view(10, [5, 8]), 2, seed, state)[0]) for seed in range(20)} == {2, 4}


def test_clients_that_take_too_long_are_left_out() -> None:
    selector = make("tifl", tiers=1, policy="static", t_max="3s")
    assert sorted(choose(selector, view(6), 6)[0]) == [0, 1, 2]
    assert choose(selector, view(6, [4, 5]), 2)[0] == []


def test_tiers_are_made_of_those_that_keep_the_limit() -> None:
    """Four of ten clients are in time: two tiers of two, not one of five of which four may be chosen."""
    selector = make("tifl", tiers=2, policy="static", t_max="4s")
    pairs = {tuple(sorted(choose(selector, view(10), 4, seed)[0])) for seed in range(20)}
    assert pairs == {(0, 1), (2, 3)}
    _, state = choose(selector, view(10), 4)
    turned = lookup(np.arange(10, 0, -1) * US)
    chosen, after = choose(selector, view(10, [3, 8], step=1, expected_us=turned), 2, 0, state)
    assert chosen == [8]
    assert after["tier"][8] >= 0


def test_only_the_adaptive_policy_needs_accuracies() -> None:
    assert make("tifl").needs == {"accuracy"}
    assert make("tifl", policy="static").needs == frozenset()
