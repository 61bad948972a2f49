"""REFL's weights of stale updates against its formula on the updates themselves."""

from __future__ import annotations

import numpy as np
import pytest

from rule_calls import combine


def direction(rows: np.ndarray, staleness: list[int], **options: float) -> np.ndarray:
    m = len(rows)
    found = combine("refl", rows, losses=np.ones(m), staleness=np.array(staleness), **options)
    return np.atleast_2d(found.weights)[0]


def test_fresh_updates_are_averaged() -> None:
    assert direction(np.eye(3), [0, 0, 0]) == pytest.approx([1 / 3] * 3)


def test_stale_updates_weigh_by_age_and_by_what_they_would_change() -> None:
    rows = np.array([[1.0, 0, 0], [0, 1, 0], [2, 2, 0], [0, 0, 3]])
    fresh = rows[:2].mean(axis=0)
    moved = [((fresh - (u + 2 * fresh) / 3) ** 2).sum() / (fresh**2).sum() for u in rows[2:]]
    weights = [1, 1]
    weights += [
        0.65 / (age + 1) + 0.35 * (1 - np.exp(-change / max(moved)))
        for age, change in zip((1, 4), moved, strict=True)
    ]
    assert direction(rows, [0, 0, 1, 4]) == pytest.approx(np.array(weights) / sum(weights))


def test_without_fresh_updates_age_alone_counts() -> None:
    assert direction(np.eye(2), [1, 3]) == pytest.approx([2 / 3, 1 / 3])
    assert direction(np.zeros((2, 2)), [0, 1], beta=0.5) == pytest.approx([0.8, 0.2])


def test_a_single_stale_update_has_the_whole_boost_however_little_it_deviates() -> None:
    rows = np.array([[1.0, 0.0], [1.0, 0.0], [1.5, 0.0]])
    weights = np.array([1, 1, 0.65 / 2 + 0.35 * (1 - np.exp(-1))])
    assert direction(rows, [0, 0, 1]) == pytest.approx(weights / weights.sum())
