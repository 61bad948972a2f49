"""Comparing the updates that clients would send now with those that the server holds, at a step not yet taken."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedsim.server.history import GradientHistory
from fedsim.server.rule import Direction, Ints, Stack

Audited = dict[str, NDArray[Any]]
"""Columns of `audit.parquet`."""
_ANGLES = (
    "cosine",
    "norm_ratio",
    "true_norm",
    "remembered_with_mean",
    "true_with_mean",
    "remembered_with_step",
    "true_with_step",
)


@dataclass(frozen=True, slots=True)
class Held:
    """What the server holds at a step that is decided and not yet taken."""

    history: GradientHistory
    slots: Ints
    """[n] places of the stack's rows in the history."""
    stack: Stack
    direction: Direction
    step: torch.Tensor
    """[P] the vector to subtract from the model, but for its length."""
    now_us: int


def compared(held: Held, clients: Ints, rows: Sequence[torch.Tensor] | torch.Tensor) -> Audited:
    """Compare the updates that `clients` [a] would send, `rows` [a] x [P], with those that the server holds of them.

    Inner products are taken in float64, one row at a time: their bits depend on no other row.
    """
    stack, history = held.stack, held.history
    place = {client: at for at, client in enumerate(stack.clients.tolist())}  # of several rows the last
    at = np.array([place.get(client, -1) for client in clients.tolist()], dtype=np.int64)
    known, slots = at >= 0, held.slots[at]
    weights = np.atleast_2d(held.direction.weights).max(axis=0)
    return {
        "client": clients,
        "present": known & (at < stack.m),
        "age": np.where(known, stack.ages[at], -1),
        "staleness": np.where(known, stack.staleness[at], -1),
        "age_us": np.where(known, held.now_us - history.received_us[slots], -1),
        "weight": np.where(known, weights[at], np.nan),
    } | _angles(held, np.where(known, slots, -1).tolist(), rows)


def _angles(held: Held, slots: list[int], rows: Sequence[torch.Tensor] | torch.Tensor) -> Audited:
    """Compare each row with the mean, the step and the row in its slot; slot -1 stands for no row."""
    share = np.zeros(held.stack.n)
    share[: held.stack.m] = 1.0 / held.stack.m
    mean, step = (v.double() for v in (held.history.combine(held.slots, share), held.step))
    columns = {name: np.full(len(slots), np.nan) for name in _ANGLES}
    for i, (slot, row) in enumerate(zip(slots, rows, strict=True)):
        true = row.to(mean.device).double()
        numbers = {
            "true_norm": _norm(true),
            "true_with_mean": _cosine(true, mean),
            "true_with_step": _cosine(true, step),
        }
        if slot >= 0:
            kept = held.history.row(slot).to(mean.device).double()
            numbers |= {
                "cosine": _cosine(kept, true),
                "norm_ratio": _norm(kept) / numbers["true_norm"] if numbers["true_norm"] else np.nan,
                "remembered_with_mean": _cosine(kept, mean),
                "remembered_with_step": _cosine(kept, step),
            }
        for name, value in numbers.items():
            columns[name][i] = value
    return columns


def joined(parts: Sequence[Audited]) -> Audited:
    """Put the columns of several groups of clients one after the other."""
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def _norm(vector: torch.Tensor) -> float:
    return float(vector.norm())


def _cosine(a: torch.Tensor, b: torch.Tensor) -> float:
    scale = _norm(a) * _norm(b)
    return float(torch.dot(a, b)) / scale if scale > 0 else float("nan")
