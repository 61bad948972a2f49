"""What clients would send now against what the server holds of them, at a step that is decided and not yet taken."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedsim.server.history import GradientHistory
from fedsim.server.rule import Direction, Ints, Stack


@dataclass(frozen=True, slots=True)
class Held:
    """What the server has at a step that is decided and not yet taken."""

    history: GradientHistory
    slots: Ints
    """[n] of the rows of the stack."""
    stack: Stack
    direction: Direction
    step: torch.Tensor
    """[P] what is about to be subtracted from the model, but for its length."""
    now_us: int


def compared(
    held: Held, clients: Ints, rows: Sequence[torch.Tensor] | torch.Tensor
) -> dict[str, NDArray[Any]]:
    """Return columns of `audit.parquet`: what `clients` [a] would send, `rows` [a] x [P], against what is held of them.

    Inner products are taken in float64, one row at a time: their bits depend on no other row.
    """
    stack, history = held.stack, held.history
    place = {client: at for at, client in enumerate(stack.clients.tolist())}  # of several rows the last
    weights = np.atleast_2d(held.direction.weights).max(axis=0)
    share = np.zeros(stack.n)
    share[: stack.m] = 1.0 / stack.m
    mean, step = (v.double() for v in (history.combine(held.slots, share), held.step))
    at = np.array([place.get(client, -1) for client in clients.tolist()], dtype=np.int64)
    known, slots = at >= 0, held.slots[at]
    columns = {name: np.full(len(clients), np.nan) for name in _ANGLES}
    for i, row in enumerate(rows):
        true = row.to(mean.device).double()
        found = {
            "true_norm": _norm(true),
            "true_with_mean": _cosine(true, mean),
            "true_with_step": _cosine(true, step),
        }
        if known[i]:
            kept = history.row(int(slots[i])).to(mean.device).double()
            found |= {
                "cosine": _cosine(kept, true),
                "norm_ratio": _norm(kept) / found["true_norm"] if found["true_norm"] else np.nan,
                "remembered_with_mean": _cosine(kept, mean),
                "remembered_with_step": _cosine(kept, step),
            }
        for name, value in found.items():
            columns[name][i] = value
    return {
        "client": clients,
        "present": known & (at < stack.m),
        "age": np.where(known, stack.ages[at], -1),
        "staleness": np.where(known, stack.staleness[at], -1),
        "age_us": np.where(known, held.now_us - history.received_us[slots], -1),
        "weight": np.where(known, weights[at], np.nan),
    } | columns


_ANGLES = (
    "cosine",
    "norm_ratio",
    "true_norm",
    "remembered_with_mean",
    "true_with_mean",
    "remembered_with_step",
    "true_with_step",
)


def joined(parts: Sequence[dict[str, NDArray[Any]]]) -> dict[str, NDArray[Any]]:
    """Put the columns of several groups of clients one after the other."""
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def _norm(vector: torch.Tensor) -> float:
    return float(vector.norm())


def _cosine(a: torch.Tensor, b: torch.Tensor) -> float:
    scale = _norm(a) * _norm(b)
    return float(torch.dot(a, b)) / scale if scale > 0 else float("nan")
