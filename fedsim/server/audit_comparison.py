"""Comparing the updates that clients would send now with those that the server holds, at a step not yet taken."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedsim.server.decision import Decision
from fedsim.server.gram import Rows
from fedsim.server.history import GradientHistory
from fedsim.server.rule import Ints

Audited = dict[str, NDArray[Any]]
"""Columns of `audit.parquet`."""


def compared(
    history: GradientHistory, decision: Decision, params: torch.Tensor, clients: Ints, rows: Rows
) -> Audited:
    """Compare the updates that `clients` [a] would send, `rows` [a] x [P], with those that the server holds of them.

    `params` [P] are those before the step, of which a rule may take a part away (`Direction.keep`).
    Inner products are taken in float64, one row at a time: their bits depend on no other row.
    """
    stack = decision.stack
    at = _last_rows(stack.clients[: stack.remembered.stop], clients)
    known, slots = at >= 0, decision.slots[at]
    weights = np.atleast_2d(decision.weights).max(axis=0)
    share = np.where(np.arange(stack.n) < stack.m, 1.0 / stack.m, 0.0)
    mean, step = history.combine(decision.slots, share).double(), decision.vector.double()
    if decision.direction.keep != 1.0:
        step = step + (1 - decision.direction.keep) * params.double()
    angles = []
    for row, slot, held in zip(rows, slots.tolist(), known.tolist(), strict=True):
        true = row.to(mean.device).double()
        remembered = history.row(slot).to(true) if held else torch.full_like(true, np.nan)
        angles.append(_angles(true, remembered, mean, step))
    return {
        "client": clients,
        "present": known & (at < stack.m),
        "age": np.where(known, stack.ages[at], -1),
        "staleness": np.where(known, stack.staleness[at], -1),
        "age_us": np.where(known, decision.now_us - history.received_us[slots], -1),
        "weight": np.where(known, weights[at], np.nan),
        **{name: np.array([row_angles[name] for row_angles in angles]) for name in angles[0]},
    }


def _last_rows(rows: Ints, clients: Ints) -> Ints:
    """Return the last row of each of `clients` in `rows`, the clients of the rows; -1 where it has none."""
    place = {client: at for at, client in enumerate(rows.tolist())}
    return np.array([place.get(client, -1) for client in clients.tolist()], dtype=np.int64)


def _angles(
    true: torch.Tensor, remembered: torch.Tensor, mean: torch.Tensor, step: torch.Tensor
) -> dict[str, float]:
    """Compare an update and the one that the server holds, NaN if it holds none, with each other and with the step."""
    true_norm = _norm(true)
    return {
        "cosine": _cosine(remembered, true),
        "norm_ratio": _norm(remembered) / true_norm if true_norm else np.nan,
        "true_norm": true_norm,
        "remembered_with_mean": _cosine(remembered, mean),
        "true_with_mean": _cosine(true, mean),
        "remembered_with_step": _cosine(remembered, step),
        "true_with_step": _cosine(true, step),
    }


def _norm(vector: torch.Tensor) -> float:
    return float(vector.norm())


def _cosine(a: torch.Tensor, b: torch.Tensor) -> float:
    scale = _norm(a) * _norm(b)
    return float(torch.dot(a, b)) / scale if scale > 0 else float("nan")
