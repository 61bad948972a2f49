from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from fedsim.analysis.statistics import bootstrap
from fedsim.analysis.statistics.bootstrap import (
    FEWEST,
    Statistic,
    client_draws,
    interval,
    mean_of,
    sample_std,
)
from fedsim.analysis.statistics.paired.differences import _ratio, t_interval
from fedsim.analysis.statistics.paired.pairing import pairing_factor
from fedsim.analysis.statistics.paired.significance import (
    holm,
    sign_test,
    signed_rank_test,
    smallest_p,
    t_test,
)
from fedsim.common.arrays import Floats

few = settings(max_examples=60, deadline=None)
whole = st.lists(st.integers(-5, 5), min_size=1, max_size=9)


def enumerated(values: list[int], statistic: object) -> float:
    """The share of all ways to give the magnitudes signs with a statistic as far from 0 as found."""
    kept = [v for v in values if v]
    found = abs(statistic(kept))  # type: ignore[operator]
    ways = [
        [s * abs(v) for s, v in zip(signs, kept, strict=True)] for signs in product((-1, 1), repeat=len(kept))
    ]
    return float(np.mean([abs(statistic(way)) >= found - 1e-9 for way in ways]))  # type: ignore[operator]


def signed_ranks(values: list[int]) -> float:
    return float(np.sign(values) @ stats.rankdata(np.abs(values))) if values else 0.0


@few
@given(whole)
def test_p_values_are_those_of_all_signs_enumerated(values: list[int]) -> None:
    assert signed_rank_test(values) == pytest.approx(enumerated(values, signed_ranks))
    assert sign_test(values) == pytest.approx(enumerated(values, lambda way: float(np.sign(way).sum())))


def test_equal_magnitudes_share_the_mean_of_their_ranks() -> None:
    """Ranks 1.5, 1.5, 3 and 4: of 16 ways, 5 have a positive sum of at most 3, and 5 a negative one."""
    assert signed_rank_test([1, 1, -2, -3]) == signed_rank_test([-1, -1, 2, -3]) == 10 / 16


@pytest.mark.parametrize("n", [3, 8, 30])
def test_without_ties_the_rank_test_is_scipys(n: int) -> None:
    values = np.random.default_rng(n).normal(0.3, 1, n)
    assert signed_rank_test(values) == pytest.approx(stats.wilcoxon(values, method="exact").pvalue)


@few
@given(whole)
def test_tests_do_not_depend_on_the_direction(values: list[int]) -> None:
    turned = [-v for v in values]
    assert signed_rank_test(values) == signed_rank_test(turned)
    assert sign_test(values) == sign_test(turned)
    assert min(signed_rank_test(values), sign_test(values)) >= smallest_p(len(values))


def test_differences_of_nothing_tell_nothing() -> None:
    assert sign_test([0, 0]) == signed_rank_test([0, 0]) == 1
    assert signed_rank_test([1, 2, 3, 4, 5, 6]) == sign_test([1] * 6) == smallest_p(6) == 1 / 32


def test_the_t_test_is_that_of_a_table() -> None:
    """Mean 2, standard deviation 1 and t = 2 sqrt(5) = 4.472 with 4 degrees of freedom."""
    values = np.array([2, 1, 3, 2 + np.sqrt(1), 2 - np.sqrt(1)])
    assert t_test(values) == pytest.approx(2 * stats.t.sf(2 * np.sqrt(5), 4))
    assert t_test(values) == pytest.approx(0.01106, abs=5e-5)
    assert t_test(values, 2.0) == pytest.approx(1)
    assert t_test(values, side="greater") == pytest.approx(t_test(values) / 2)
    assert t_test(values, side="less") == pytest.approx(1 - t_test(values) / 2)


@few
@given(st.lists(st.integers(-5, 5), min_size=3, max_size=9))
def test_the_t_test_rejects_where_the_interval_leaves_out_zero(values: list[int]) -> None:
    low, high = t_interval(np.array(values, dtype=float)) or (np.nan, np.nan)
    assert (t_test(values) < 0.05) == (not low <= 0 <= high)
    assert t_test(values) == pytest.approx(t_test([-v for v in values]))


def test_the_t_test_of_equal_values_is_certain_and_of_two_gives_nothing() -> None:
    assert t_test([0.3] * 3) == 0
    assert t_test([0.0] * 3) == t_test([0.3] * 3, 0.3) == 1
    assert (t_test([1.0] * 3, side="greater"), t_test([1.0] * 3, side="less")) == (0, 1)
    assert np.isnan(t_test([1.0, 2.0]))
    assert np.isnan(t_test([]))


def test_holm_steps_down() -> None:
    np.testing.assert_allclose(holm([0.01, 0.04, 0.03, 0.005]), [0.03, 0.06, 0.06, 0.02])
    np.testing.assert_allclose(holm([0.9, np.nan, 0.8]), [1, np.nan, 1])
    assert len(holm([])) == 0


@few
@given(st.lists(st.floats(0, 1), min_size=1, max_size=8))
def test_holm_is_between_the_p_value_and_bonferroni(given_p: list[float]) -> None:
    corrected = holm(given_p)
    assert (corrected >= np.array(given_p) - 1e-12).all()
    assert (corrected <= np.minimum(1, len(given_p) * np.array(given_p)) + 1e-12).all()


def test_spreads_below_one_are_spreads() -> None:
    assert sample_std(np.array([0.1, 0.2, 0.3])) == pytest.approx(0.1)
    assert sample_std(np.array([0.1, 0.1, 0.1])) == 0
    assert np.isnan(sample_std(np.array([0.1, np.nan, 0.1])))
    assert np.isnan(sample_std(np.array([0.1])))
    assert _ratio(0.2, 0.5) == pytest.approx(0.4)
    assert _ratio(-0.2, 0.0) == -np.inf


def test_two_seeds_have_a_factor_and_an_interval_takes_ten_thousand_draws() -> None:
    """Variances 0.5, 4.5 and, of the differences, 2."""
    assert pairing_factor(np.array([0.0, 1.0]), np.array([0.0, 3.0]))[0] == pytest.approx(2.5)
    drawn = []

    def mean(counts: np.ndarray) -> np.ndarray:
        drawn.append(len(counts))
        return counts @ np.arange(5.0) / 5

    interval(mean, 5)
    assert max(drawn) == 10_000


def test_the_smallest_p_is_that_of_differences_of_one_sign() -> None:
    assert [smallest_p(n) for n in (0, 1, 2, 5)] == [1, 1, 0.5, 1 / 16]
    for n in range(1, 8):
        assert signed_rank_test(range(1, n + 1)) == sign_test([2.0] * n) == smallest_p(n)


def test_an_interval_takes_three_observations() -> None:
    assert interval(mean_of(np.array([1.0, 2.0])), 2) is None
    low, high = interval(mean_of(np.array([1.0, 2.0, 4.0])), 3) or (0, 0)
    assert (low, high) == (1, 4)
    assert FEWEST == 3


@pytest.mark.parametrize(
    ("n", "confidence", "at"),  # t and Phi from tables: 10,000 Phi(-sqrt(n / (n - 1)) t)
    [
        (4, 0.95, 1),  # t 3.18245, Phi(-3.67477) 0.000119
        (10, 0.95, 85),  # t 2.26216, Phi(-2.38452) 0.008551
        (10, 0.50, 2294),  # t 0.70272, Phi(-0.74073) 0.229429
        (30, 0.95, 187),  # t 2.04523, Phi(-2.08019) 0.018754
    ],
)
def test_the_ends_are_at_the_levels_that_are_moved_outwards(n: int, confidence: float, at: int) -> None:
    """Of draws whose values are 0, 1, 2, ..., the ends are their own positions from either side."""
    found = interval(lambda counts: np.arange(float(len(counts)))[::-1], n, confidence, draws=10_000)
    assert found == (at, 9999 - at)


def test_draws_are_the_same_in_blocks_and_nobody_can_change_them(monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.random.default_rng(2).normal(size=7)
    whole = interval(mean_of(values), 7, draws=50)

    def spoil(counts: Floats) -> Floats:
        counts[:] = 1.0
        return counts[:, 0]

    with pytest.raises(ValueError, match="read-only"):
        interval(spoil, 7, draws=50)
    assert interval(mean_of(values), 7, draws=50) == whole
    monkeypatch.setattr(bootstrap, "_NUMBERS_AT_ONCE", 35)  # five draws of seven
    assert interval(mean_of(values), 7, draws=50) == whole


def test_with_many_observations_it_is_the_percentile_interval() -> None:
    values = np.random.default_rng(0).normal(size=400)
    theirs = stats.bootstrap((values,), np.mean, method="percentile", n_resamples=5000, random_state=1)
    found = interval(mean_of(values), 400)
    np.testing.assert_allclose(found, theirs.confidence_interval, atol=0.01)


@pytest.mark.parametrize(("n", "least"), [(6, 0.91), (12, 0.93)])
def test_the_interval_covers_the_truth_about_as_often_as_it_says(n: int, least: float) -> None:
    """Of normal data; the plain percentile interval covers 85 and 91 %."""
    samples = np.random.default_rng(n).normal(size=(1500, n))
    found = [interval(mean_of(s), n, draws=1000) or (1, -1) for s in samples]
    assert least < np.mean([low <= 0 <= high for low, high in found]) < 0.975


@few
@given(st.lists(st.floats(-100, 100), min_size=3, max_size=12))
def test_the_interval_turns_with_the_data_and_lies_within_them(values: list[float]) -> None:
    x = np.array(values)
    low, high = interval(mean_of(x), len(x), draws=500) or (np.nan, np.nan)
    assert x.min() - 1e-9 <= low <= high <= x.max() + 1e-9
    assert interval(mean_of(-x), len(x), draws=500) == pytest.approx((-high, -low))
    assert interval(mean_of(x), len(x), draws=500) == (low, high)


@pytest.mark.parametrize(
    ("n", "draws", "blocks"),
    [
        (20_000, 100, [100]),  # two million numbers fit into one block
        (20_001, 100, [99, 1]),
        (800_000, 5, [2, 2, 1]),
        (2_000_001, 2, [1, 1]),
    ],
)
def test_blocks_that_fit_into_memory_hold_all_draws(n: int, draws: int, blocks: list[int]) -> None:
    sizes = []

    def spread(counts: Floats) -> Floats:
        assert (counts.sum(axis=1) == n).all()
        sizes.append(len(counts))
        return np.asarray(counts[:, 0])

    assert interval(spread, n, draws=draws) is not None
    assert sizes == blocks


def test_an_interval_needs_a_statistic_that_is_defined_in_more_than_half_of_the_draws() -> None:
    def first(defined: int) -> Statistic:
        return lambda counts: np.where(np.arange(len(counts)) < defined, 1.0, np.nan)

    assert interval(first(50), 5, draws=100) is None
    assert interval(first(51), 5, draws=100) == (1, 1)


def test_large_samples_of_clients_are_drawn_less_often() -> None:
    assert [client_draws(n) for n in (0, 1, 50, 5000, 10**6)] == [2000, 2000, 2000, 1000, 500]


def test_pairing_wins_what_the_two_have_in_common() -> None:
    rng = np.random.default_rng(3)
    common, own = rng.normal(0, 3, 1000), rng.normal(0, 1, (2, 1000))
    factor, found = pairing_factor(common + own[0], common + own[1])
    assert factor == pytest.approx(10, rel=0.2)  # (2 (9 + 1)) / 2
    assert found is not None
    assert found[0] < 10 < found[1]
    assert pairing_factor(own[0], own[1])[0] == pytest.approx(1, abs=0.15)


def test_the_interval_of_the_factor_is_that_of_the_variances_in_each_resample() -> None:
    rng = np.random.default_rng(6)
    a, b = rng.normal(50, 3, 8) + rng.normal(0, 1, (2, 8))

    def direct(counts: Floats) -> Floats:
        def variance(x: Floats) -> Floats:
            off = x - (counts @ x / 8)[:, None]
            return np.asarray((counts * off**2).sum(axis=1) / 8)

        return np.asarray((variance(a) + variance(b)) / variance(a - b))

    found = pairing_factor(a, b)[1]
    assert found == pytest.approx(interval(direct, 8))
    assert found is not None
    assert found[0] < float((a.var() + b.var()) / (a - b).var()) < found[1]


def test_rounding_is_no_variance_of_differences() -> None:
    """Accuracies on 15 samples tie: where a resample holds equal differences alone, its factor is infinite."""
    a = np.round(np.array([5, 0, 4, 5, 4, 2, 5]) * 100 / 15, 10)
    found = pairing_factor(a, a - np.round(np.array([2, 1, 1, 1, 0, 2, 1]) * 100 / 15, 10))[1]
    assert found is not None
    assert found[0] >= 0.5
    assert found[1] == np.inf


def test_differences_that_are_equal_but_for_rounding_have_an_infinite_factor() -> None:
    samples = np.array([5, 0, 4, 5, 4, 2, 5])
    found = pairing_factor(100 * (samples / 15), 100 * ((samples + 1) / 15))
    assert found == (np.inf, (np.inf, np.inf))


def test_pairing_of_equal_or_few_values() -> None:
    a = np.array([1.0, 2.0, 5.0])
    assert pairing_factor(a, a + 1)[0] == np.inf
    assert np.isnan(pairing_factor(a * 0, a * 0)[0])
    factor, found = pairing_factor(a[:1], a[:1])
    assert np.isnan(factor)
    assert found is None
    hand = (a.var() + (2 * a).var()) / a.var()
    assert pairing_factor(a, 2 * a)[0] == pairing_factor(2 * a, a)[0] == pytest.approx(hand)


def test_clusters_of_equal_size_have_the_interval_of_their_means() -> None:
    values = np.random.default_rng(8).normal(size=(6, 4))
    clusters = np.repeat([7, 3, 9, 1, 5, 2], 4)
    found = interval(mean_of(values.ravel()), 24, clusters=clusters)
    order = np.argsort([7, 3, 9, 1, 5, 2])
    assert found == pytest.approx(interval(mean_of(values.mean(axis=1)[order]), 6))
    assert interval(mean_of(values[:2].ravel()), 8, clusters=np.repeat([0, 1], 4)) is None


def test_blocks_are_small_enough_for_all_observations_of_clusters(monkeypatch: pytest.MonkeyPatch) -> None:
    values, clusters = np.arange(40.0), np.repeat(np.arange(4), 10)
    whole = interval(mean_of(values), 40, draws=50, clusters=clusters)
    monkeypatch.setattr(bootstrap, "_NUMBERS_AT_ONCE", 200)
    sizes = []

    def mean(counts: Floats) -> Floats:
        sizes.append(counts.size)
        return mean_of(values)(counts)

    assert interval(mean, 40, draws=50, clusters=clusters) == whole
    assert max(sizes) == 200
