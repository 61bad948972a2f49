from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from fedsim.analysis.statistics.paired.power import (
    DRAWS,
    MOST_SEEDS,
    SIMULATED,
    _moments,
    detectable_effect,
    power,
    seeds_needed,
)
from fedsim.analysis.statistics.paired.significance import signed_rank_test, t_test


def seen(n: int, effect: float, alpha: float, studies: int = 4000) -> float:
    """The share of simulated studies in which scipy's exact test rejects in the direction of the effect."""
    samples = np.random.default_rng(n).normal(effect, 1, (studies, n))
    p = stats.wilcoxon(samples, axis=1, method="exact").pvalue
    return float(((p <= alpha) & (samples.mean(axis=1) > 0)).mean())


@pytest.mark.parametrize("n", [6, 9, 14, SIMULATED, SIMULATED + 1, 40])
@pytest.mark.parametrize("alpha", [0.05, 0.05 / 4])
def test_power_is_the_share_of_studies_that_see_the_effect(n: int, alpha: float) -> None:
    for effect in (0.5, 1.0):
        assert power(n, effect, alpha) == pytest.approx(seen(n, effect, alpha), abs=0.04)


def test_with_six_pairs_all_differences_must_have_one_sign() -> None:
    """The only rejection at 5 %, of probability Phi(effect)^6."""
    for effect in (0.5, 1.2, 2.0):
        assert power(6, effect) == pytest.approx(stats.norm.cdf(effect) ** 6, abs=3 * 0.5 / DRAWS**0.5)
    assert detectable_effect(6) == pytest.approx(stats.norm.ppf(0.8 ** (1 / 6)), abs=0.03)


@pytest.mark.parametrize(("n", "alpha"), [(5, 0.05), (6, 0.05 / 2), (7, 0.05 / 4), (2, 0.05), (0, 0.05)])
def test_what_no_data_can_show_has_no_power(n: int, alpha: float) -> None:
    assert signed_rank_test(np.arange(1, n + 1)) > alpha
    assert power(n, 100.0, alpha) == 0
    assert math.isinf(detectable_effect(n, alpha))


@pytest.mark.parametrize("n", [6, 12, SIMULATED, 60, 300])
def test_the_detectable_effect_has_the_power_and_a_smaller_one_has_not(n: int) -> None:
    effect = detectable_effect(n, wanted=0.9)
    assert power(n, effect + 1e-9) >= 0.9 > power(n, effect * 0.99)
    assert power(n, -effect) == power(n, effect)
    assert power(n, math.inf) == 1


def test_without_an_effect_half_of_the_level_is_left() -> None:
    assert power(20, 0.0) == pytest.approx(0.024, abs=0.005)
    assert power(1000, 0.0) == pytest.approx(0.025, abs=0.0005)


def test_moments_of_the_rank_sum_are_those_of_samples() -> None:
    sums = [
        (stats.rankdata(np.abs(x)) * (x > 0)).sum()
        for x in np.random.default_rng(1).normal(0.4, 1, (20_000, 12))
    ]
    mean, variance = _moments(12, 0.4)
    assert mean == pytest.approx(np.mean(sums), abs=0.4)
    assert variance == pytest.approx(np.var(sums), rel=0.04)
    assert _moments(12, 0.0) == pytest.approx((12 * 13 / 4, 12 * 13 * 25 / 24))


@pytest.mark.parametrize("effect", [0.3, 0.37, 0.6, 1.3, 2.2])
def test_one_pair_fewer_has_too_little_power(effect: float) -> None:
    n = seeds_needed(effect, alpha=0.01, wanted=0.9)
    assert n is not None
    assert power(n, effect, 0.01) >= 0.9 > power(n - 1, effect, 0.01)
    assert n > (seeds_needed(effect) or 0)
    assert seeds_needed(-effect, 0.01, 0.9) == n


def test_the_rank_test_needs_about_five_percent_more_seeds_than_the_t_test() -> None:
    """The asymptotic relative efficiency for normal data is 3 / pi; the paired t test takes (1.96 + 0.84)² / d²."""
    for effect in (0.05, 0.1):
        assert seeds_needed(effect) == pytest.approx(7.8489 / effect**2 * np.pi / 3, rel=0.01)


def test_the_most_seeds_that_are_named() -> None:
    pairs = 7.8489 * np.pi / 3
    assert seeds_needed(np.sqrt(pairs / (MOST_SEEDS * 0.99))) == pytest.approx(MOST_SEEDS * 0.99, rel=0.002)
    assert seeds_needed(np.sqrt(pairs / (MOST_SEEDS * 1.01))) is None


def test_where_no_number_of_seeds_helps_none_is_given() -> None:
    assert seeds_needed(0.0) is seeds_needed(float("nan")) is seeds_needed(1e-6) is None


@pytest.mark.parametrize(("alpha", "fewest"), [(0.5, 3), (0.05, 6), (0.05 / 2, 7), (0.05 / 4, 8), (1e-9, 31)])
def test_no_effect_is_large_enough_for_fewer_seeds_than_the_level_asks_for(alpha: float, fewest: int) -> None:
    assert seeds_needed(float("inf"), alpha) == seeds_needed(100.0, alpha) == fewest
    assert signed_rank_test(np.arange(1, fewest + 1)) <= alpha


@pytest.mark.parametrize("n", [3, 5, 12, 40])
@pytest.mark.parametrize("alpha", [0.05, 0.05 / 9])
def test_power_of_the_t_test_is_the_share_of_studies_that_see_the_effect(n: int, alpha: float) -> None:
    for effect in (0.5, 2.0):
        samples = np.random.default_rng(n).normal(effect, 1, (20_000, n))
        p = stats.ttest_1samp(samples, 0, axis=1).pvalue
        share = ((p <= alpha) & (samples.mean(axis=1) > 0)).mean()
        assert power(n, effect, alpha, "t") == pytest.approx(share, abs=0.01)


@pytest.mark.parametrize("n", [3, 5, 30, 300])
def test_what_the_t_test_detects_has_the_power(n: int) -> None:
    for alpha in (0.05, 0.05 / 27, 1e-4):
        effect = detectable_effect(n, alpha, test="t")
        assert power(n, effect, alpha, "t") == pytest.approx(0.8, abs=1e-6)
    assert power(n, -0.7, test="t") == power(n, 0.7, test="t")
    assert power(n, math.inf, test="t") == power(n, 1e30, test="t") == 1


def test_seeds_of_the_t_test_are_those_of_a_table() -> None:
    """Cohen, 1988, table 2.4: for a paired d_z of 0.5 at 5 % and 80 %, 34 pairs; of 0.2, 199; of 0.8, 15."""
    assert [seeds_needed(effect, test="t") for effect in (0.5, -0.2, 0.8)] == [34, 199, 15]
    assert [seeds_needed(effect, test="t") for effect in (math.inf, 1e30, 100.0)] == [3, 3, 3]
    assert seeds_needed(1e-6, test="t") is None


def test_two_pairs_have_no_t_test() -> None:
    assert np.isnan(t_test([1.0, 2.0]))
    assert power(2, 100.0, test="t") == 0
    assert math.isinf(detectable_effect(2, test="t"))
