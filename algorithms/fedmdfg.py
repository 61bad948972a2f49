"""FedMDFG: Pan et al. 2023, "FedMDFG: Federated Learning with Multi-Gradient Descent and Fair Guidance" (AAAI).

The step is the least-norm point of the hull of the clients' gradients, all given the mean of their norms; of the
gradients of clients that took part in the previous step but not in this one; and, where the losses F are
unfair, of the guidance row h·G with h = (p·F̂) F̂ - p normalised, p = 1/√m, F̂ = F/‖F‖. Losses are unfair if the
angle between F and 1 exceeds θ, or if the losses of some returning clients exceed their expected losses. The point
then gets the norm of the mean.

Deviations and choices:
- The paper's direction has the opposite sign. Updates Δ stand for gradients, as Δ = η g for one full-batch
  step, so step size 1 is the paper's η.
- Several workers try all step sizes of `search` at once, and take the one that the paper's search, one after the
  other, would take (`mathematics/line_search.py`).
- Where an update of the step is stale, its loss is that of an older model. The search then measures the losses before
  the step by a trial of length 0.
- The expected loss of a client is its first loss, then the running mean, as long as losses do not exceed it.
- Remembered rows keep the norm to which their own step scaled them.
- As in the authors' code, a client whose update is zero has no row, and its losses count neither for the angle
  and the guidance nor in the search. The code takes a gradient norm of 1e-6 or less for zero. Updates have any unit, so
  this rule compares with `zero_tolerance` times the mean norm: equalising would otherwise stretch the rounding of
  float32 in the update of a client that fits its samples.
- With equal losses there is no guidance.
- As in the authors' code, a step that conflicts with a row after the last rescaling is `shortened`; with an exact
  solver none does.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Annotated

import numpy as np
from pydantic import Field

from fedsim.algorithms.mathematics.geometry import (
    inverse_norms,
    norm,
    of_length,
    row_norms,
    shortened,
    unit_fair_weights,
)
from fedsim.algorithms.mathematics.hull import Hull
from fedsim.algorithms.mathematics.line_search import SearchStart, line_search
from fedsim.algorithms.mathematics.min_norm import Solver
from fedsim.algorithms.mathematics.rows import grown, room
from fedsim.common.option_requirements import Unless
from fedsim.server.rule import Algorithm, Direction, Floats, Ints, Needs, Promise, Stack, State


def fedmdfg(
    *,
    theta_deg: Annotated[float, Field(ge=0, le=90)] = 11.25,
    absent: bool = True,
    search: Annotated[int, Field(ge=1, le=30)] | None = None,
    lr: Annotated[float | None, Field(gt=0), Unless("search", None)] = None,
    guard: Annotated[float, Field(ge=0)] = 0.0,
    zero_tolerance: Annotated[float, Field(ge=0, lt=1)] = 1e-4,
    solver: Solver = "direct",
) -> Algorithm:
    """Descend for every client of this step and the one before, guided towards equal losses where unfair.

    Args:
        theta_deg: θ, the largest angle in degrees between the losses F and 1, the vector of equal losses, that counts
            as fair.
        absent: whether the gradients of clients that took part in the previous step, but not in this one, count too.
        search: the paper's s: the present clients try step sizes, halving from 2^s down to 2^-s, until their losses
            fall enough and, with a guidance row, become more equal; from 1 if gradients of the previous step count, and
            to less than 2^-s if the last rescaling lengthened the step. Without it the step size is 1.
        lr: the clients' learning rate, by which the search divides updates to get gradients; in a run that of `[train]`
            by default. It decays as theirs does.
        guard: shortens rows: it multiplies each equalised row v by ‖v‖ / (‖v‖ + guard); 1e-6 in the authors' code, 0
            for no change.
        zero_tolerance: an update of at most this share of the mean norm of its step counts as zero: it has no row.
        solver: of the least-norm problem: "direct", an active-set method; "cvxpy", Clarabel, a slow reference.
    """

    def weigh(stack: Stack, state: State) -> tuple[Direction, State]:
        expectations = _expectations(stack, state)
        gram = stack.gram()
        equalising = _equalising(stack, gram, state["mean_norm"], zero_tolerance)
        scale, kept = equalising.scale, np.flatnonzero(equalising.scale[: stack.m])
        losses, guidance = stack.losses[kept], np.zeros(stack.n)
        surprising = 0 < expectations.exceeded < stack.n_clients
        if len(kept) and (angle_deg(losses) > theta_deg or surprising):
            guidance[kept] = unit_fair_weights(losses)
        direction = _direction(gram, scale, guidance, stack.m, guard, solver)
        if search is not None and direction.weights.any():
            slopes = (gram @ direction.weights)[kept] / stack.rates(lr or 1.0)[kept]
            lengthened = max(direction.diagnostics.get("rescaled", 1.0), 1.0)
            before = None if stack.staleness[kept].any() else losses
            start = SearchStart(kept, before, slopes, bool(guidance.any()), bool(scale[stack.m :].any()))
            direction = replace(direction, search=line_search(search, lengthened, start))
        after = {"expected": expectations.losses, "counts": expectations.counts}
        return direction, {**after, "mean_norm": equalising.mean_norm}

    needs = Needs(
        gram="model",
        losses=True,
        memory=1 if absent else 0,
        reports_of_present=True,
        scale_free=True,
        search=search is not None,
    )
    promises: frozenset[Promise] = frozenset({"descent"})
    return Algorithm(weigh, needs, _start, promises=promises, negligible=zero_tolerance)


def _start() -> State:
    return {"expected": np.zeros(0), "counts": np.zeros(0, np.int64), "mean_norm": 0.0}


def angle_deg(losses: Floats) -> float:
    """Return the angle between the losses and equal losses, in degrees; 0 if all are 0."""
    f = losses / (losses.max() or 1.0)
    return math.degrees(
        math.atan2(float(np.linalg.norm(f - f.mean())), abs(float(f.mean())) * math.sqrt(len(f)))
    )


@dataclass(frozen=True, slots=True, eq=False)
class _Expectations:
    """What the server expects of each client's loss, by client."""

    losses: Floats
    """NaN before a client's first loss."""
    counts: Ints
    """Losses received so far."""
    exceeded: int
    """Returning clients of this step whose loss exceeds what was expected."""


def _expectations(stack: Stack, state: State) -> _Expectations:
    expected = grown(state["expected"], room(stack), np.nan)
    counts = grown(state["counts"], room(stack), 0)
    exceeded = 0
    for client, loss in zip(stack.clients[: stack.m].tolist(), stack.losses[: stack.m].tolist(), strict=True):
        counts[client] += 1
        if counts[client] == 1:
            expected[client] = loss
        elif loss > expected[client]:
            exceeded += 1
        else:
            expected[client] += (loss - expected[client]) / counts[client]
    return _Expectations(expected, counts, exceeded)


@dataclass(frozen=True, slots=True, eq=False)
class _Equalising:
    """How the rows of a step are brought to one norm."""

    scale: Floats
    """[n] factor of each row, 0 for rows that are left out."""
    mean_norm: float
    """Mean norm of the present rows that count, to which they are scaled."""


def _equalising(stack: Stack, gram: Floats, previous_norm: float, zero_tolerance: float) -> _Equalising:
    """Scale present rows to their mean norm, and remembered ones to that of the step before, `previous_norm`."""
    inverse, old = inverse_norms(gram), stack.ages == 1
    norms = np.divide(1.0, inverse, out=np.zeros(stack.n), where=inverse > 0)
    least = np.full(stack.n, zero_tolerance * norms[: stack.m].mean())
    least[old] = zero_tolerance * previous_norm
    kept = norms > least
    present = norms[: stack.m][kept[: stack.m]]
    mean_norm = float(present.mean()) if len(present) else 0.0
    lengths = np.zeros(stack.n)
    lengths[: stack.m] = mean_norm
    lengths[old] = previous_norm if previous_norm > 0 else mean_norm
    return _Equalising(np.where(kept, inverse * lengths, 0.0), mean_norm)


def _direction(
    gram: Floats, scale: Floats, guidance: Floats, m: int, guard: float, solver: Solver
) -> Direction:
    """Return the least-norm point of the equalised rows and the guidance row, as long as the present rows' mean."""
    rows = np.flatnonzero(scale)
    if not len(rows):
        return Direction(np.zeros(len(scale)))
    lengths = scale * row_norms(gram)
    shrunk = np.divide(scale * lengths, lengths + guard, out=np.zeros_like(scale), where=scale > 0)
    weights, residual = Hull(rows, shrunk, guidance * shrunk).least(gram, solver)
    table, grams = weights[None], gram[None]
    kept = max(int((scale[:m] > 0).sum()), 1)
    mean = np.where(np.arange(len(scale)) < m, scale / kept, 0.0)
    scaled = shortened(of_length(table, grams, norm(mean[None], grams)), table, grams, rows)
    rescaled = norm(scaled, grams) / (norm(table, grams) or 1.0)
    return Direction(scaled[0], diagnostics={"kkt_residual": residual, "rescaled": rescaled})
