"""Selectors that go by losses: power-of-choice, in proportion to loss, active federated learning."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from views import choose, lookup, make, shares, view

NAN = float("nan")


# Power-of-choice


def test_power_of_choice_takes_the_largest_losses_of_those_drawn() -> None:
    calls: list[list[int]] = []
    losses = np.array([3.0, 9.0, 1.0, 7.0, 5.0, 8.0])
    seen = view(6, [0, 2, 3, 4, 5], ask_losses=lookup(losses, calls))
    chosen, _ = choose(make("power_of_choice", d=4), seen, 2)
    assert len(calls[0]) == 4
    assert chosen == sorted(calls[0], key=lambda c: -losses[c])[:2]


@pytest.mark.parametrize(("d", "asked"), [(None, 4), (1, 2), (3, 3), (99, 6)])
def test_power_of_choice_draws_d_but_at_least_k_and_at_most_all(d: int | None, asked: int) -> None:
    calls: list[list[int]] = []
    seen = view(6, ask_losses=lookup(np.arange(6.0), calls))
    choose(make("power_of_choice", **({} if d is None else {"d": d})), seen, 2)
    assert [len(c) for c in calls] == [asked]


def test_power_of_choice_with_as_many_as_wanted_is_weighted() -> None:
    sizes = np.array([10, 20, 30, 40])
    seen = view(4, n_samples=sizes)
    assert shares(make("power_of_choice", d=1), seen, 1) == pytest.approx(sizes / 100, abs=0.03)


def test_power_of_choice_takes_unreported_losses_for_infinite() -> None:
    seen = view(5, last_loss=[2.0, NAN, 9.0, NAN, 3.0], ask_losses=lookup([0.0] * 5))
    chosen, _ = choose(make("power_of_choice", losses="reported", d=5), seen, 4)
    assert (set(chosen[:2]), chosen[2:]) == ({1, 3}, [2, 4])


def test_power_of_choice_from_all_depends_on_losses_alone() -> None:
    often = shares(make("power_of_choice", d=4), view(4, ask_losses=lookup([1.0, 4.0, 2.0, 3.0])), 2, 50)
    assert often.tolist() == [0, 1, 0, 1]


# In proportion to loss


@pytest.mark.parametrize("unknown", [NAN, np.inf])
def test_loss_based_draws_in_proportion_with_unknown_as_the_largest(unknown: float) -> None:
    seen = view(4, last_loss=[1.0, 3.0, unknown, 2.0])
    expected = np.array([1, 3, 3, 2]) / 9
    assert shares(make("loss_based"), seen, 1) == pytest.approx(expected, abs=0.03)


def test_loss_based_is_uniform_while_nothing_is_known() -> None:
    for options in ({}, {"variant": "afl", "alpha1": 0.0}):
        often = shares(make("loss_based", **options), view(4), 2)
        assert often == pytest.approx(np.full(4, 0.5), abs=0.03)


def afl(losses: list[float], k: int, **options: Any) -> Any:
    sizes = np.array([4, 9, 16, 25])
    seen = view(4, n_samples=sizes, last_loss=losses)
    return shares(make("loss_based", variant="afl", **options), seen, k)


def test_afl_draws_in_proportion_to_the_exponential_of_the_value() -> None:
    """Values loss √n are 2, 6, 4, 10; the lower half is left out."""
    odds = np.exp(0.5 * np.array([2, 6, 4, 10.0]))
    odds[[0, 2]] = 0
    found = afl([1.0, 2.0, 1.0, 2.0], 1, alpha1=0.5, alpha2=0.5, alpha3=0.0)
    assert found == pytest.approx(odds / odds.sum(), abs=0.03)


def test_afl_explores_a_share_uniformly() -> None:
    """One place goes to the best by far, one to any of the other three."""
    found = afl([1.0, 2.0, 1.0, 9.0], 2, alpha1=0.75, alpha2=1.0, alpha3=0.5)
    assert found == pytest.approx([1 / 3, 1 / 3, 1 / 3, 1], abs=0.03)


def test_afl_fills_up_uniformly_when_too_few_have_odds() -> None:
    found = afl([1.0, 2.0, 1.0, 9.0], 3, alpha1=0.75, alpha2=1.0, alpha3=0.0)
    assert found == pytest.approx([2 / 3, 2 / 3, 2 / 3, 1], abs=0.03)


def test_afl_explores_with_single_places_as_well() -> None:
    """A share of 0.4 of one place is a chance of 0.4 of anybody; else it is the best."""
    found = afl([1.0, 2.0, 1.0, 9.0], 1, alpha1=0.75, alpha2=1.0, alpha3=0.4)
    assert found == pytest.approx([0.1, 0.1, 0.1, 0.7], abs=0.03)


def test_afl_leaves_out_a_share_that_floating_point_puts_below_a_whole_number() -> None:
    """Of 100 clients, 29 % are 29, and the one of rank 29 from below has no odds."""
    losses = np.arange(1.0, 101.0)
    seen = view(100, n_samples=np.ones(100, dtype=np.int64), last_loss=losses)
    often = shares(make("loss_based", variant="afl", alpha1=0.29, alpha2=0.0, alpha3=0.0), seen, 1, 2000)
    assert not often[:29].any()
    assert often[29:].all()


def test_large_values_do_not_overflow() -> None:
    assert afl([1e300, 2.0, 1.0, NAN], 2, alpha2=1.0).sum() == pytest.approx(2)


def test_small_losses_count_in_proportion_as_well() -> None:
    losses = np.array([0.1, 0.3, 0.6])
    assert shares(make("loss_based"), view(3, last_loss=losses), 1) == pytest.approx(losses, abs=0.03)
