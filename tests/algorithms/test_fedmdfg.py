"""FedMDFG: descent for every row, when it guides, whom it remembers, and its search for a step size."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsim.algorithms.fedmdfg import angle_deg, fedmdfg
from fedsim.algorithms.mathematics.geometry import unit_fair_weights
from fedsim.algorithms.mathematics.line_search import Trial, accepted, chosen, search_steps
from fedsim.common.errors import ConfigError
from fedsim.server.rule import Stack
from fedsim.server.rule_factory import build_rule
from rule_calls import combine
from stacks import assert_same, distinct_losses, seeds, updates

fast = settings(max_examples=50, deadline=None)
sizes = st.integers(1, 8)


@fast
@given(seeds, sizes, st.integers(0, 3), st.sampled_from([0.0, 90.0]))
def test_no_row_conflicts_and_the_mean_s_norm_is_kept(seed: int, m: int, absent: int, theta: float) -> None:
    rows, losses = updates(seed, m + absent, 40), distinct_losses(seed, m + absent)
    ages = [0] * m + [1] * absent
    d = combine("fedmdfg", rows, losses=losses, ages=ages, theta_deg=theta).direction
    lengths = np.linalg.norm(rows, axis=1)
    assert (rows @ d >= -1e-9 * lengths * np.linalg.norm(d)).all()
    equalised = rows[:m] / lengths[:m, None] * lengths[:m].mean()
    assert np.linalg.norm(d) == pytest.approx(np.linalg.norm(equalised.mean(axis=0)), rel=1e-9)
    if theta == 0 and m > 1:
        guidance = unit_fair_weights(losses[:m]) @ equalised
        assert guidance @ d >= -1e-9 * np.linalg.norm(guidance) * np.linalg.norm(d)


@fast
@given(seeds, sizes)
def test_angle_is_that_between_losses_and_one(seed: int, m: int) -> None:
    losses = distinct_losses(seed, m)
    cosine = losses.sum() / (np.linalg.norm(losses) * math.sqrt(m))
    assert angle_deg(losses) == pytest.approx(math.degrees(math.acos(min(cosine, 1))), abs=1e-5)
    assert angle_deg(np.full(m, 3.0)) == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("size", [1e-200, 1.0, 1e200])
def test_an_angle_is_the_same_for_losses_of_any_size(size: float) -> None:
    assert angle_deg(size * np.array([0.0, 1.0])) == pytest.approx(45.0)
    assert angle_deg(size * np.array([1.0, 1.0])) == pytest.approx(0.0, abs=1e-6)


def test_guidance_comes_with_unequal_losses_only() -> None:
    rows = updates(3, 4, 20)
    fair, unfair = ([1.0, 1.01, 1.02, 1.0], [1.0, 5.0, 2.0, 0.1])
    for losses, guided in ((fair, False), (unfair, True)):
        with_guidance = combine("fedmdfg", rows, losses=losses).direction
        never = combine("fedmdfg", rows, losses=losses, theta_deg=90.0).direction
        assert np.allclose(with_guidance, never) != guided


def test_a_client_doing_worse_than_expected_forces_guidance() -> None:
    rows = updates(3, 3, 20)
    given_clients: dict[str, Any] = {"clients": [0, 1, 2], "n_clients": 8, "theta_deg": 90.0}
    first = combine("fedmdfg", rows, losses=[1.0, 2.0, 1.5], **given_clients)
    better = combine("fedmdfg", rows, losses=[0.9, 1.0, 1.5], state=first.state, **given_clients)
    assert_same(better.direction, first.direction, 1e-12)
    np.testing.assert_allclose(better.state["expected"][:3], [0.95, 1.5, 1.5])
    worse = combine("fedmdfg", rows, losses=[1.1, 1.0, 1.5], state=first.state, **given_clients)
    assert not np.allclose(worse.direction, first.direction)
    assert worse.state["expected"][0] == 1.0
    all_worse = combine(
        "fedmdfg", rows, losses=[9.0] * 3, state=first.state, **{**given_clients, "n_clients": 3}
    )
    assert_same(all_worse.direction, first.direction, 1e-12)


def test_only_the_step_before_is_remembered() -> None:
    assert fedmdfg().needs.memory == 1
    assert fedmdfg(absent=False).needs.memory == 0
    rows = np.array([[1.0, 0, 0], [-0.5, 1.0, 0], [-0.5, 0, 1.0]])
    used = combine("fedmdfg", rows, losses=[1.0] * 3, ages=[0, 1, 2]).weights[0]
    assert used[1] > 0
    assert used[2] == 0


def test_zero_updates_have_no_row() -> None:
    rows = np.array([[1.0, 2.0], [0.0, 0.0]])
    assert_same(combine("fedmdfg", rows, losses=[1.0, 5.0]).direction, rows[0], 1e-9)
    assert not combine("fedmdfg", np.zeros((2, 2)), losses=[1.0, 2.0]).direction.any()


def test_an_update_of_rounding_is_as_good_as_none() -> None:
    rows, losses = updates(3, 4, 20), [1.0, 5.0, 2.0, 0.1]
    others = combine("fedmdfg", rows[:3], losses=losses[:3])
    rows[3] *= 1e-11
    with_it = combine("fedmdfg", rows, losses=losses)
    assert_same(with_it.direction, others.direction, 1e-9)
    assert with_it.weights[0, 3] == 0
    again = combine(  # remembered, it has no row either
        "fedmdfg", rows[[0, 1, 3]], losses=losses[:3], ages=[0, 0, 1], state=others.state
    )
    assert again.weights[0, 2] == 0
    stretched = combine("fedmdfg", rows, losses=losses, zero_tolerance=0).direction
    assert not np.allclose(stretched, others.direction, rtol=0.01)


def test_the_losses_of_a_zero_update_do_not_count_for_the_angle() -> None:
    rows = updates(3, 4, 20)
    rows[3] = 0
    direction = combine("fedmdfg", rows, losses=[1.0, 1.02, 1.01, 0.0]).direction
    assert_same(direction, combine("fedmdfg", rows, losses=[1.0, 1.02, 1.01, 1.0]).direction, 1e-12)
    assert_same(direction, combine("fedmdfg", rows, losses=[1.0] * 4, theta_deg=90.0).direction, 1e-12)


def test_steps_are_halved_from_the_largest_to_the_least() -> None:
    assert list(search_steps(0.1, 2, 1.0, any_absent=False)) == [0.4, 0.2, 0.1, 0.05, 0.025]
    assert list(search_steps(0.1, 2, 2.0, any_absent=True)) == [0.1, 0.05, 0.025, 0.0125]


BEFORE, SLOPES = np.array([1.0, 3.0]), np.array([1.0, 1.0])


def test_a_step_is_accepted_when_all_losses_fall_and_become_more_equal() -> None:
    good = Trial(0.1, np.array([0.95, 2.0]))
    one_rises = Trial(0.1, np.array([1.01, 2.0]))
    less_equal = Trial(0.1, np.array([0.5, 2.9]))
    assert accepted(good, BEFORE, SLOPES, guided=True)
    assert not accepted(one_rises, BEFORE, SLOPES, guided=False)
    assert not accepted(less_equal, BEFORE, SLOPES, guided=True)
    assert accepted(less_equal, BEFORE, SLOPES, guided=False)
    tiny_rise = Trial(0.1, BEFORE + 5e-6)
    assert accepted(tiny_rise, BEFORE, SLOPES, guided=False, form="released")
    assert not accepted(tiny_rise, BEFORE, SLOPES, guided=False)
    assert accepted(less_equal, BEFORE, SLOPES, guided=True, form="released")


def test_without_an_accepted_step_the_first_that_helps_on_the_whole_is_taken() -> None:
    trials = [Trial(s, np.array(f)) for s, f in ((0.4, [2.0, 1.0]), (0.2, [1.5, 2.0]), (0.1, [0.5, 3.4]))]
    assert chosen(trials, BEFORE, 0.1, any_absent=False).step == 0.4
    assert chosen(trials, BEFORE, 0.1, any_absent=True).step == 0.1
    worse = [Trial(0.2, BEFORE + 1), Trial(0.1, BEFORE + 0.5)]
    assert chosen(worse, BEFORE, 0.1, any_absent=False).step == 0.1


def test_a_trial_whose_losses_are_not_finite_is_not_taken() -> None:
    diverged = [Trial(0.4, np.array([math.nan, 1.0])), Trial(0.2, np.array([math.inf, 1.0]))]
    assert not any(accepted(trial, BEFORE, SLOPES, guided=False) for trial in diverged)
    higher = [*diverged, Trial(0.1, BEFORE + 1), Trial(0.05, BEFORE + 0.5)]
    assert chosen(higher, BEFORE, 0.1, any_absent=False).step == 0.05


def stack(rows: Any, losses: Any) -> Stack:
    m = len(rows)
    zeros, ones = np.zeros(m, dtype=np.int64), np.ones(m, dtype=np.int64)
    gram = (rows @ rows.T)[None]
    return Stack(gram, losses, m, np.arange(m), ones, zeros, zeros, ones, ones > 0, 0, 10, 10, 0)


def test_the_search_takes_what_the_paper_would_have_taken() -> None:
    rule = fedmdfg(search=2, lr=0.5)
    rows, before = updates(3, 4, 6), np.array([1.0, 2.0, 3.0, 4.0])
    direction, _ = rule.weigh(stack(rows, before), rule.init())
    assert direction.search is not None
    assert direction.search.steps[0] == 4.0
    falling = np.stack([before * (1.2 if step > 1 else 0.5) for step in direction.search.steps])
    falling[:, 3] *= 0.9  # more equal, as the guidance wants
    search = direction.search
    assert search.steps[search.choose(falling)] == 1.0
    assert search.choose(falling[:3]) == 2, "later trials change nothing"
    rising = np.stack([before * (1 + step) for step in search.steps])
    assert search.choose(rising) == len(search.steps) - 1
    assert search.accepts is not None
    assert [search.accepts(i, after) for i, after in enumerate(falling[:3])] == [False, False, True]
    assert not any(search.accepts(i, after) for i, after in enumerate(rising))


def test_a_search_after_a_stale_update_compares_with_losses_that_a_first_trial_measures() -> None:
    """At the model of the stale update the losses were higher, and each trial would seem to lower them."""
    rows, old, now = updates(3, 4, 6), np.full(4, 9.0), np.full(4, 1.0)
    stale = replace(stack(rows, old), staleness=np.array([0, 2, 0, 0]))
    rule = fedmdfg(search=1, theta_deg=90.0, lr=1e6)
    direction, _ = rule.weigh(stale, rule.init())
    search = direction.search
    assert search is not None
    assert search.steps[:3] == (0.0, 2.0, 1.0)
    after = np.stack([now, now * 2, now * 0.5, *(now * 3 for _ in search.steps[3:])])
    assert search.steps[search.choose(after)] == 1.0
    assert search.accepts is not None
    assert [search.accepts(i, losses) for i, losses in enumerate(after[:3])] == [False, False, True]
    rising = np.stack([now, *(now * (2 + step) for step in search.steps[1:])])
    assert search.steps[search.choose(rising)] == search.steps[-1] > 0


def test_a_loss_has_to_fall_as_far_as_its_gradient_says() -> None:
    """The gradient, an update of 10 over a rate of 0.01, promises 1e4 of a step of 1, and 1e-4 of that is enough."""
    direction, _ = fedmdfg(search=2, lr=0.01).weigh(
        stack(np.array([[10.0]]), np.array([2.0])), fedmdfg().init()
    )
    assert direction.search is not None
    assert direction.search.steps[:3] == (4.0, 2.0, 1.0)
    falls = np.array([0.9, 0.9, 1.1, 1.1, 1.1])[: len(direction.search.steps), None]
    assert direction.search.choose(2.0 - falls) == 2


def test_the_losses_of_a_zero_update_do_not_count_in_the_search() -> None:
    rule = fedmdfg(search=2, theta_deg=90.0)
    rows, before = updates(3, 4, 6), np.array([1.0, 1.0, 1.0, 1.0])
    rows[1] = 0
    direction, _ = rule.weigh(stack(rows, before), rule.init())
    assert direction.search is not None
    after = np.stack([before * (0.5 if step <= 2 else 1.05) for step in direction.search.steps])
    after[:, 1] = 1.5  # it rises at every step
    assert direction.search.steps[direction.search.choose(after)] == 2.0


def test_a_search_is_refused_where_nobody_could_answer() -> None:
    with pytest.raises(ConfigError, match="line search needs clients"):
        combine("fedmdfg", updates(0, 3, 5), losses=np.arange(1.0, 4), search=3)
    with pytest.raises(ConfigError, match="leave out one"):
        build_rule("fedmdfg", {"search": 3}, [{"name": "clipped", "norm": 1.0}])


def test_losses_that_are_all_zero_are_as_equal_as_can_be() -> None:
    gone, none = np.zeros(2), np.zeros(2)
    assert accepted(Trial(0.1, gone), BEFORE, none, guided=True)
    assert not accepted(
        Trial(0.1, gone), gone, none, guided=True
    )  # they do not become more equal than they are
