"""Assign the clients of one list to those of another with a given rank correlation of their scores."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from fedsim.common.arrays import Floats, Ints
from fedsim.common.errors import ConfigError, closest
from fedsim.common.rng import rng

AssignmentRule = Literal["independent", "rank", "id"] | float
"""`independent` (at random), `rank` (best with best), `id` (equal ids) or a rank correlation from -1 to 1."""

_WORDS = {"independent": 0.0, "rank": 1.0}


@dataclass(frozen=True, slots=True)
class Assignment:
    """Which client of the right list belongs to each one of the left list."""

    right: Ints
    """[n] position in the right list; every position occurs once."""
    rule: AssignmentRule
    spearman: float | None
    """Rank correlation of the two scores that resulted; None if one of the scores is the same for all clients."""

    def facts(self) -> dict[str, Any]:
        """Return the rule and the correlation that resulted, for a trace's source."""
        return {"how": self.rule, "spearman": self.spearman}


def assign(left: ArrayLike, right: ArrayLike, rule: AssignmentRule, seed: int, purpose: str) -> Assignment:
    """Pair two lists of equal length by their scores [n]. The result depends on (seed, purpose) and the scores alone.

    For a correlation rho, ranks follow a Gaussian copula with r = 2 sin(pi rho / 6), whose Spearman correlation is rho
    (Kruskal, "Ordinal measures of association", 1958, section 6). The correlation that results differs from it by about
    (1 - rho^2) / sqrt(n). Equal scores are put in random order, NaN below all others. Raises ValueError for lists of
    different lengths, ConfigError for an unknown rule and for `id`, which needs no scores.
    """
    first, second = np.asarray(left, dtype=np.float64), np.asarray(right, dtype=np.float64)
    if first.shape != second.shape or first.ndim != 1:
        raise ValueError(f"expected two lists of equal length, found shapes {first.shape} and {second.shape}")
    draws = rng(seed, f"assignment {purpose}")
    first_order, second_order = _in_order(first, draws), _in_order(second, draws)
    x, y = _gaussian(len(first), correlation_of(rule), draws)
    chosen = np.empty(len(first), dtype=np.int64)
    chosen[first_order] = second_order[np.argsort(np.argsort(y, kind="stable"))[np.argsort(x, kind="stable")]]
    return Assignment(chosen, rule, spearman(first, second[chosen]))


def correlation_of(rule: str | float) -> float:
    """Return the rank correlation that an assignment rule asks for. Raises ConfigError for one that asks for none."""
    if isinstance(rule, str):
        if rule not in _WORDS:
            known = closest(rule, [*_WORDS, "id"])
            raise ConfigError(
                f"assignment {rule!r}: expected 'independent', 'rank', 'id' or a number from -1 to 1{known}"
            )
        return _WORDS[rule]
    if not -1 <= rule <= 1:
        raise ConfigError(f"assignment: expected a rank correlation from -1 to 1, found {rule}")
    return float(rule)


def spearman(left: ArrayLike, right: ArrayLike) -> float | None:
    """Return Spearman's rank correlation, None if one list is constant. Equal scores share their mean rank."""
    x, y = ranks(left), ranks(right)
    x, y = x - x.mean(), y - y.mean()
    scale = float(np.sqrt((x * x).sum() * (y * y).sum()))
    return float((x * y).sum() / scale) if scale > 0 else None


def ranks(scores: ArrayLike) -> Floats:
    """Return [n] ranks from 0; equal scores share their mean rank, NaN ranks below all others."""
    _, which, counts = np.unique(_low(np.asarray(scores, float)), return_inverse=True, return_counts=True)
    mean_rank = np.cumsum(counts) - (counts + 1) / 2
    return np.asarray(mean_rank[which], dtype=np.float64)


def _in_order(scores: Floats, draws: np.random.Generator) -> Ints:
    return np.lexsort((draws.random(len(scores)), _low(scores)))


def _low(scores: Floats) -> Floats:
    return np.where(np.isnan(scores), -np.inf, scores)


def _gaussian(n: int, rho: float, draws: np.random.Generator) -> tuple[Floats, Floats]:
    x, noise = draws.standard_normal((2, n))
    if abs(rho) == 1:  # sin(pi / 6) is not exactly 1/2 in floating point
        return x, rho * x
    r = 2 * np.sin(np.pi * rho / 6)
    return x, r * x + np.sqrt(1 - r * r) * noise
