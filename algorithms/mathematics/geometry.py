"""Lengths and fairness rows, all as coefficients over the rows of a stack.

A vector is a table `[L, n]`: in block l it is the sum of the rows' fragments with those weights. Its inner
products need the blocks' Gram matrices `[L, n, n]` only.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from fedsim.server.rule import Floats

ROUNDING = 64 * float(np.finfo(np.float64).eps)
"""Squared norms below this share of the squared sum of their terms' norms are rounding."""

_CLOSE = 1e-12
"""Squared distances below this share of the longer vector's square are rounding."""


def mean_of_present(n: int, m: int) -> Floats:
    """Return the weights `[n]` of the plain mean of the first `m` rows."""
    weights = np.zeros(n)
    weights[:m] = 1 / m
    return weights


def inner_with_rows(table: Floats, grams: Floats) -> Floats:
    """Return the inner products `[n]` of each row with the vector `table`."""
    return np.asarray(np.einsum("lij,lj->i", grams, table))


def norm(table: Floats, grams: Floats) -> float:
    """Return the norm of the vector `table`; rounding below zero counts as zero."""
    return math.sqrt(max(float(sum(w @ g @ w for w, g in zip(table, grams, strict=True))), 0.0))


def bound(table: Floats, grams: Floats) -> float:
    """Return an upper bound of the vector's norm: in each block the norms of its terms added up."""
    terms = np.abs(table) * np.sqrt(grams.diagonal(axis1=1, axis2=2))
    return float(np.linalg.norm(terms.sum(axis=1)))


def mean_length(gram: Floats, m: int) -> float:
    """Return the mean norm of the first `m` rows."""
    return float(np.sqrt(gram.diagonal()[:m]).mean())


def of_length(table: Floats, grams: Floats, length: float, guard: float = 0.0) -> Floats:
    """Return the vector stretched to `length`, or zeros if its norm is rounding; `guard` is added to its norm."""
    size = norm(table, grams)
    if size <= max(math.sqrt(ROUNDING) * bound(table, grams), 1e-12 * length):
        return np.zeros_like(table)
    return np.asarray(table * (length / (size + guard)))


def as_long_as_mean(table: Floats, grams: Floats, m: int) -> Floats:
    """Return the vector stretched to the norm of the plain mean of the first `m` rows."""
    mean = np.broadcast_to(mean_of_present(table.shape[1], m), table.shape)
    return of_length(table, grams, norm(mean, grams))


def shortened(scaled: Floats, unscaled: Floats, grams: Floats, rows: NDArray[np.intp]) -> Floats:
    """Halve a stretched vector while it conflicts with one of `rows` and is over twice as long as before.

    Used by the public codes of FedMDFG and FedLF; a conflict is an inner product below -1e-6.
    """
    shortest = 2 * norm(unscaled, grams)
    while (inner_with_rows(scaled, grams)[rows] < -1e-6).any():
        if norm(scaled, grams) <= shortest:
            return unscaled
        scaled = scaled / 2
    return scaled


def fair_weights(losses: Floats) -> Floats:
    """Return q `[m]` with Σ q_i g_i the gradient of P(w) = -cos(1, F(w)), FedLF's Eq. 5; zeros for equal losses.

    With F = f + e, f the mean, Eq. 5 is q_i = (m f e_i - ‖e‖²) / (√m ‖F‖³), exact for nearly equal losses
    too. Losses that are equal up to rounding are equal.
    """
    m, largest = len(losses), float(np.abs(losses).max())
    if largest == 0:
        return np.zeros(m)
    f = losses / largest
    e = f - f.mean()
    size = float(np.linalg.norm(f))
    if np.linalg.norm(e) <= 1e-12 * size:
        return np.zeros(m)
    return np.asarray((m * f.mean() * e - e @ e) / (math.sqrt(m) * size**3 * largest))


def unit_fair_weights(losses: Floats) -> Floats:
    """Return FedMDFG's h `[m]`, the weights of `fair_weights` with norm 1, or zeros."""
    q = fair_weights(losses)
    size = float(np.linalg.norm(q))
    return np.asarray(q / size) if size > 0 else q


def row_norms(gram: Floats) -> Floats:
    """Return ‖row‖ `[n]` for each row; rounding below zero counts as zero."""
    return np.asarray(np.sqrt(np.maximum(gram.diagonal(), 0.0)))


def squared_distances(gram: Floats) -> Floats:
    """Return ‖row_i - row_j‖² `[n, n]`; less than 1e-12 of the longer row's square is rounding and counts as zero.

    The matrix is symmetric to the bit, even if rounding made `gram` differ from its transpose.
    """
    squares = np.maximum(gram.diagonal(), 0.0)
    distances = squares[:, None] + squares - (gram + gram.T)
    return np.where(distances < _CLOSE * np.maximum(squares[:, None], squares), 0.0, distances)


def distances_to(coefficients: Floats, gram: Floats) -> Floats:
    """Return ‖row_i - v‖ `[n]`, v the vector with these coefficients `[n]` over the rows; rounding counts as zero.

    Rounding is less than 1e-12 of the larger of ‖row_i‖² and ‖v‖².
    """
    inner = gram @ coefficients
    square, squares = max(float(coefficients @ inner), 0.0), np.maximum(gram.diagonal(), 0.0)
    distances = squares - 2 * inner + square
    return np.sqrt(np.where(distances < _CLOSE * np.maximum(squares, square), 0.0, distances))


def inverse_norms(gram: Floats) -> Floats:
    """Return 1/‖row‖ `[n]` for each row, 0 for rows that are zero."""
    norms = row_norms(gram)
    return np.divide(1.0, norms, out=np.zeros_like(norms), where=norms > 0)
