from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from fedsim import plugins
from fedsim.analysis import improved_users_percent, summary
from fedsim.common.errors import ConfigError, RunError

few = settings(max_examples=80, deadline=None)
fractions = arrays(np.float64, st.integers(1, 60), elements=st.integers(0, 50).map(lambda c: c / 50))
Metric = Callable[[np.ndarray, np.ndarray], float]


def measured(accuracy: np.ndarray) -> dict[str, float]:
    return summary(accuracy, np.full(len(accuracy), 50))


@few
@given(fractions, st.integers(0, 2**32))
def test_every_metric_is_finite_and_blind_to_the_order_of_clients(accuracy: np.ndarray, seed: int) -> None:
    shuffled = np.random.default_rng(seed).permutation(accuracy)
    before = accuracy.copy()
    found = measured(accuracy)
    np.testing.assert_array_equal(accuracy, before)
    assert all(np.isfinite(value) for value in found.values())
    assert measured(shuffled) == pytest.approx(found, abs=1e-9)


@few
@given(st.just(0.0) | st.floats(1e-6, 1), st.integers(1, 100))
def test_equal_accuracies_are_perfectly_fair(level: float, k: int) -> None:
    found = measured(np.full(k, level))
    fair = ("variance_percent2", "std_percent", "angle_rad", "angle_deg", "kl_nats", "gini")
    assert [found[name] for name in fair] == pytest.approx([0] * len(fair), abs=1e-9)
    assert found["entropy_nats"] == pytest.approx(np.log(k), abs=1e-9)
    assert found["jain"] == pytest.approx(1)
    tails = ("mean_percent", "worst5_percent", "worst10_percent", "best5_percent", "best10_percent")
    assert [found[name] for name in tails] == pytest.approx([100 * level] * len(tails), abs=1e-9)


@few
@given(fractions)
def test_the_measures_of_spread_agree(accuracy: np.ndarray) -> None:
    assume(accuracy.any())
    found = measured(accuracy)
    k, angle = len(accuracy), found["angle_rad"]
    assert found["variance_percent2"] == pytest.approx(found["std_percent"] ** 2)
    assert np.tan(angle) ** 2 == pytest.approx(
        found["variance_percent2"] / found["mean_percent"] ** 2, abs=1e-12
    )
    assert np.cos(angle) == pytest.approx(accuracy.sum() / (np.linalg.norm(accuracy) * np.sqrt(k)))
    assert found["angle_deg"] == pytest.approx(np.rad2deg(angle))
    assert found["jain"] == pytest.approx(np.cos(angle) ** 2)
    assert found["kl_nats"] + found["entropy_nats"] == pytest.approx(np.log(k), abs=1e-9)


@few
@given(fractions)
def test_gini_is_the_mean_absolute_difference(accuracy: np.ndarray) -> None:
    assume(accuracy.any())
    pairs = np.abs(accuracy[:, None] - accuracy[None, :]).sum()
    assert measured(accuracy)["gini"] == pytest.approx(
        pairs / (2 * len(accuracy) * accuracy.sum()), abs=1e-12
    )


@few
@given(fractions)
def test_tails_are_ordered(accuracy: np.ndarray) -> None:
    found = measured(accuracy)
    rising = (
        "min_percent",
        "worst5_percent",
        "worst10_percent",
        "mean_percent",
        "best10_percent",
        "best5_percent",
    )
    values = [found[name] for name in (*rising, "max_percent")]
    assert all(a <= b + 1e-9 for a, b in pairwise(values))


@few
@given(st.integers(10, 60), st.floats(0.2, 0.8), st.integers(0, 2**32))
def test_small_spread_makes_kl_half_the_relative_variance(k: int, level: float, seed: int) -> None:
    accuracy = level + 1e-4 * np.random.default_rng(seed).standard_normal(k)
    found = measured(accuracy)
    assert found["kl_nats"] == pytest.approx(accuracy.var() / (2 * accuracy.mean() ** 2), rel=1e-2, abs=1e-13)


@few
@given(fractions, st.floats(0.01, 1))
def test_relative_measures_ignore_the_level(accuracy: np.ndarray, factor: float) -> None:
    assume(accuracy.any())
    relative = ("angle_rad", "kl_nats", "entropy_nats", "gini", "jain")
    whole, scaled = measured(accuracy), measured(factor * accuracy)
    assert [scaled[n] for n in relative] == pytest.approx([whole[n] for n in relative], abs=1e-9)


@pytest.mark.parametrize(
    ("k", "worst5", "worst10"), [(1, 0, 0), (19, 0, 0), (20, 0, 0.5), (39, 0, 1), (40, 0.5, 1.5)]
)
def test_a_tail_holds_the_floor_of_its_share_but_at_least_one_client(
    k: int, worst5: float, worst10: float
) -> None:
    found = measured(np.arange(k) / 100)
    assert found["worst5_percent"] == pytest.approx(worst5)
    assert found["worst10_percent"] == pytest.approx(worst10)
    assert found["best10_percent"] == pytest.approx(k - 1 - worst10)


def test_one_client_with_everything_is_perfectly_unfair() -> None:
    found = measured(np.array([0.0, 0, 0, 0.8]))
    assert found["kl_nats"] == pytest.approx(np.log(4))
    assert found["entropy_nats"] == pytest.approx(0, abs=1e-12)
    assert found["gini"] == pytest.approx(0.75)
    assert found["jain"] == pytest.approx(0.25)
    assert found["angle_deg"] == pytest.approx(60)


def test_the_mean_over_samples_is_the_share_of_correct_samples() -> None:
    found = summary([0.5, 1.0], [30, 10])
    assert found["mean_percent"] == pytest.approx(75)
    assert found["mean_over_samples_percent"] == pytest.approx(100 * (15 + 10) / 40)


def test_the_spread_over_samples_is_that_of_clients_repeated() -> None:
    found, repeated = summary([0.5, 1.0], [30, 10]), summary([0.5, 0.5, 0.5, 1.0], [1, 1, 1, 1])
    assert found["std_over_samples_percent"] == pytest.approx(repeated["std_percent"])
    assert found["std_over_samples_percent"] == pytest.approx(100 * np.sqrt(3) / 8)


def test_clients_without_samples_are_left_out() -> None:
    assert summary([0.5, np.nan, 0.7], [5, 0, 5]) == summary([0.5, 0.7], [5, 5])
    assert all(np.isnan(value) for value in summary([np.nan], [0]).values())


@pytest.mark.parametrize(
    ("accuracy", "n", "message"),
    [
        ([0.5, 50.0], [1, 1], r"position 1: expected 0 to 1, found .*50"),
        ([-0.1], [3], r"position 0: expected 0 to 1, found .*-0\.1"),
        ([0.5], [1, 1], r"one shape \[K\], found \(1,\) and \(2,\)"),
    ],
)
def test_bad_input_is_named(accuracy: list[float], n: list[int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        summary(accuracy, n)


def test_a_model_whose_outputs_are_no_numbers_has_no_fairness() -> None:
    """Its accuracy is NaN on samples that there are: leaving that client out would make the others look fair."""
    found = summary([0.5, np.nan, 0.7], [5, 3, 5])
    assert found
    assert all(np.isnan(value) for value in found.values())


def test_an_unknown_metric_is_refused_with_the_closest_name() -> None:
    with pytest.raises(ConfigError, match="did you mean 'gini'"):
        summary([0.5], [1], ["ginni"])


@pytest.mark.parametrize("name", plugins.names("metric"))
def test_every_metric_says_what_it_is(name: str) -> None:
    doc = plugins.factory("metric", name).__doc__ or ""
    assert doc.startswith("Return ")
    assert "Source: " in doc


def test_improved_users_counts_ties_and_skips_the_unknown() -> None:
    assert improved_users_percent([1.0, 2.0, 3.0, np.nan], [1.0, 3.0, 2.0, 0.0]) == pytest.approx(200 / 3)
    assert np.isnan(improved_users_percent([], []))
    with pytest.raises(ValueError, match=r"\(2,\) and \(1,\)"):
        improved_users_percent([1.0, 2.0], [1.0])


def test_a_metric_that_returns_no_number_is_named(tmp_path: Path) -> None:
    (tmp_path / "each.py").write_text("def each(accuracy, n):\n    return accuracy\n")
    with pytest.raises(
        RunError, match=r"metric '.*each.py:each': expected a number, found an array of shape \[2\]"
    ):
        summary([0.5, 1.0], [1, 1], [f"{tmp_path}/each.py:each"])


def test_a_metric_that_changes_its_arrays_changes_no_other(tmp_path: Path) -> None:
    mine = tmp_path / "mine.py"
    mine.write_text("def worst(accuracy, n):\n    accuracy.sort()\n    n[:] = 1\n    return accuracy[0]\n")
    accuracy, n = np.array([0.9, 0.2, 0.5]), np.array([10, 1, 1])
    found = summary(accuracy, n, [f"{mine}:worst", "mean_over_samples_percent"])
    assert found[f"{mine}:worst"] == 0.2
    assert found["mean_over_samples_percent"] == pytest.approx(100 * (9 + 0.2 + 0.5) / 12)


def test_the_file_of_a_metric_may_be_edited(tmp_path: Path) -> None:
    for value in (1.0, 2.0):
        (tmp_path / "mine.py").write_text(f"def mine(accuracy, n):\n    return {value}\n")
        assert summary([0.5], [1], [f"{tmp_path}/mine.py:mine"]) == {f"{tmp_path}/mine.py:mine": value}
