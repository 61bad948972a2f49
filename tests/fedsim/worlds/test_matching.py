"""Assignments with a stated rank correlation."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from fedsim.common.errors import ConfigError
from fedsim.worlds.matching import assign, ranks, spearman

scores = st.lists(st.integers(-5, 5), min_size=2, max_size=30).map(lambda x: np.array(x, dtype=float))
hows = st.one_of(st.sampled_from(["independent", "rank"]), st.floats(-1, 1))


@given(scores, st.data(), hows, st.integers(0, 99))
@settings(max_examples=80, deadline=None)
def test_everybody_is_assigned_once_and_the_report_is_true(left, data, how, seed):
    right = data.draw(st.lists(st.integers(0, 3), min_size=len(left), max_size=len(left)).map(np.array))
    found = assign(left, right, how, seed, "x")
    assert sorted(found.right.tolist()) == list(range(len(left)))
    assert found.spearman == spearman(left, right[found.right])
    assert assign(left, right, how, seed, "x").right.tolist() == found.right.tolist()


@pytest.mark.parametrize("rho", [-1.0, -0.8, -0.3, 0.0, 0.5, 0.9, 1.0])
def test_the_correlation_is_the_one_asked_for_within_sampling_error(rho):
    n, rng = 4000, np.random.default_rng(1)
    left, right = rng.exponential(size=n), rng.normal(size=n)
    found = [assign(left, right, rho, seed, "x").spearman for seed in range(3)]
    assert found == pytest.approx([rho] * 3, abs=4 / np.sqrt(n) * (1 - rho**2) + 1e-12)


def test_rank_puts_the_first_to_the_first_and_minus_one_to_the_last():
    left, right = np.array([3.0, 1.0, 2.0]), np.array([10.0, 30.0, 20.0])
    assert assign(left, right, "rank", 0, "x").right.tolist() == [1, 0, 2]
    assert assign(left, right, -1, 0, "x").right.tolist() == [0, 1, 2]


def test_equal_scores_are_put_in_an_order_of_their_seed():
    same, right = np.zeros(20), np.arange(20)
    orders = {tuple(assign(same, right, "rank", seed, "x").right.tolist()) for seed in range(5)}
    assert len(orders) == 5
    assert assign(same, right, "rank", 0, "x").spearman is None


def test_the_purpose_is_part_of_the_seed():
    left = np.arange(50)
    assert (assign(left, left, 0, 1, "a").right != assign(left, left, 0, 1, "b").right).any()


@given(scores, scores)
@settings(max_examples=60, deadline=None)
def test_rank_correlation_agrees_with_scipy(left, right):
    n = min(len(left), len(right))
    left, right = left[:n], right[:n]
    assert (ranks(left) + 1).tolist() == stats.rankdata(left).tolist()
    if len(set(left)) > 1 and len(set(right)) > 1:
        assert spearman(left, right) == pytest.approx(stats.spearmanr(left, right).statistic, abs=1e-12)


def test_what_is_not_known_ranks_lowest():
    assert ranks([np.nan, 3.0, -1.0, np.nan]).tolist() == [0.5, 3.0, 2.0, 0.5]
    assert assign([2.0, np.nan, 1.0], [0.0, 1.0, 2.0], "rank", 0, "x").right.tolist() == [2, 0, 1]


@pytest.mark.parametrize(
    ("how", "message"),
    [("rnk", "did you mean 'rank'"), (1.01, "from -1 to 1, found 1.01"), (float("nan"), "nan")],
)
def test_what_is_no_assignment_is_refused(how, message):
    with pytest.raises(ConfigError, match=message):
        assign([0.0, 1.0], [0.0, 1.0], how, 0, "x")


def test_lists_of_different_length_are_refused():
    with pytest.raises(ValueError, match="equal length"):
        assign([0.0, 1.0], [0.0], "rank", 0, "x")
