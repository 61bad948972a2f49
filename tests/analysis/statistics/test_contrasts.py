from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from fedsim.analysis.statistics.contrasts import Contrast, _tail, by_client, by_seed, of_groups, of_tails
from fedsim.analysis.statistics.fairness import lowest_percent


@pytest.mark.parametrize(
    ("interval", "p", "better_is", "verdict"),
    [
        ((0.1, 2.0), None, "larger", "better"),
        ((0.1, 2.0), None, "smaller", "worse"),
        ((-2.0, -0.1), None, "larger", "worse"),
        ((-2.0, -0.1), 0.01, "smaller", "better"),
        ((0.1, 2.0), 0.06, "larger", "unconfirmed"),
        ((0.1, 2.0), float("nan"), "larger", "unconfirmed"),
        ((0.0, 2.0), None, "larger", "unseen"),
        ((-1.0, 0.0), None, "larger", "unseen"),
        ((0.0, 0.0), 0.001, "larger", "unseen"),
        (None, 0.001, "larger", "unseen"),
    ],
)
def test_nothing_is_claimed_that_interval_or_test_do_not_allow(
    interval: tuple[float, float] | None, p: float | None, better_is: str, verdict: str
) -> None:
    mean = sum(interval) / 2 if interval else 5.0
    assert Contrast("a", mean, interval, p, better_is).verdict == verdict  # type: ignore[arg-type]


def test_several_comparisons_claim_something_in_five_percent_of_cases_where_there_is_nothing() -> None:
    rng, claims = np.random.default_rng(0), 0
    for _ in range(400):
        base = rng.normal(size=20)
        found = [by_client("x", base, base + rng.normal(size=20), 4) for _ in range(4)]
        claims += any(each.verdict != "unseen" for each in found)
    assert 4 <= claims <= 32, "20 expected"


def test_a_tail_is_that_of_the_clients_that_were_drawn() -> None:
    rng = np.random.default_rng(1)
    values = rng.integers(0, 9, 37) / 8
    counts = np.stack([np.bincount(rng.integers(0, 37, 37), minlength=37) for _ in range(50)]).astype(float)
    found = _tail(100 * values, 10)(counts)
    expected = [lowest_percent(np.repeat(values, each.astype(int)), 10) for each in counts]
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_tails_of_the_same_size_move_with_their_clients() -> None:
    first = np.linspace(20, 90, 60)
    raised = of_tails("b", first, first + 5, 10, 3)
    assert raised.mean == pytest.approx(5)
    assert raised.verdict == "better"
    assert of_tails("b", first + 5, first, 10, 3).verdict == "worse"
    one, many = (of_tails("b", first, first + 5 * np.sin(first), 10, n).interval for n in (1, 20))
    assert one is not None
    assert many is not None
    assert many[0] < one[0] < one[1] < many[1], "corrected for all comparisons"
    assert of_tails("b", first, first.copy(), 10, 3).verdict == "unseen"


def test_groups_have_the_interval_of_welch() -> None:
    rng = np.random.default_rng(2)
    a, b = rng.normal(1, 2, 9), rng.normal(0, 1, 30)
    va, vb = a.var(ddof=1) / 9, b.var(ddof=1) / 30
    df = (va + vb) ** 2 / (va**2 / 8 + vb**2 / 29)
    half = stats.t.ppf(1 - 0.05 / 2 / 5, df) * np.sqrt(va + vb)
    found = of_groups("x", a, b, 5)
    np.testing.assert_allclose(found.interval, (found.mean - half, found.mean + half))  # type: ignore[arg-type]
    assert of_groups("x", a[:2], b, 5).interval is None
    assert of_groups("x", np.full(4, 2.0), np.full(4, 1.0), 5).verdict == "better"


def test_the_t_test_confirms_what_the_interval_says() -> None:
    """Five seeds, 2 comparisons: Student's t intervals of 97.5 %, and p values twice those of scipy."""
    values = np.array([1.0, 1.1, 0.9, 1.05, 0.95])
    one, two = by_seed([("a", values, "larger"), ("b", values, "smaller")], "t")
    assert (one.verdict, two.verdict) == ("better", "worse")
    assert one.p == two.p == pytest.approx(2 * stats.ttest_1samp(values, 0).pvalue)
    few = by_seed([("a", values[:2], "larger")], "t")[0]
    assert (few.interval, few.verdict) == (None, "unseen")


def test_seeds_need_the_corrected_test_beside_the_interval() -> None:
    values = np.array([1.0, 1.1, 0.9, 1.05, 0.95, 1.02])
    (alone,) = by_seed([("a", values, "larger")])
    assert (alone.verdict, alone.p) == ("better", 2**-5)
    one, two = by_seed([("a", values, "larger"), ("b", -values, "larger")])
    assert one.interval is not None
    assert one.interval[0] > 0
    assert [one.verdict, two.verdict] == ["unconfirmed", "unconfirmed"], "2 comparisons: 2 * 2^-5 > 0.05"
    few = by_seed([("a", values[:2], "larger")])[0]
    assert (few.interval, few.verdict) == (None, "unseen")
