"""A step before the server takes it: what the rule decided, and what is still open."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from fedsim.server.conflicts import diagnose, diagnose_columns, each_row
from fedsim.server.gram import Rows
from fedsim.server.rule import Direction, Floats, GramLevel, Ints, Stack, State, Vectors
from fedsim.training.job import Reports


@dataclass(frozen=True, slots=True)
class Decision:
    """What a rule made of the updates of a step, and from what."""

    stack: Stack
    """With the inner products that are recorded."""
    seen: Stack
    """With the inner products that the rule asked for."""
    slots: Ints
    """[n] places of the stack's rows in the history."""
    direction: Direction
    weights: Floats
    """[n] or [L, n] weight of each row in the direction; NaN for rows that the rule combines column by column."""
    products: tuple[Floats, Floats] | None
    """Inner products [L, n] of the rows with the direction before the rule's VectorStep, and its squared norms [L], for
    the records; None if weights express it, or if no inner products are recorded."""
    vector: torch.Tensor
    """[P] the direction."""
    rows: Rows
    """[m] x [P] updates that count."""
    state: State
    """The rule's state after the step."""
    vectors: Vectors
    """The rule's vectors after the step."""
    now_us: int

    def columns(self, norm: float, conflicts: GramLevel) -> dict[str, Any]:
        """Return the columns of `steps.parquet` about a step of this norm, with those of `conflicts` under "each"."""
        stack, direction = self.stack, self.direction
        weights = np.atleast_2d(self.weights)
        still = norm == 0.0 and direction.keep == 1.0
        columns: dict[str, Any] = {
            "status": "still" if still else "applied",
            "direction_norm": norm,
            "remembered": int(np.any(weights[:, stack.remembered], axis=0).sum()),
            "max_weight": float(weights.max()),
        }
        if len(stack.grams):
            whole = self.seen.grams[0] if len(self.seen.grams) == 1 else None
            if self.products is None:
                diagnosis = diagnose(stack, direction, whole)
            else:
                diagnosis = diagnose_columns(stack, self.weights, *self.products)
            columns |= diagnosis.numbers()
            present = (stack.gram() if whole is None else whole)[: stack.m, : stack.m]
            columns["mean_norm"] = math.sqrt(max(present.sum(), 0.0)) / stack.m
            if conflicts != "none":
                columns["each"] = each_row(stack, diagnosis, conflicts == "blocks")
        return columns | dict(direction.diagnostics)


@dataclass(frozen=True, slots=True)
class Proposal:
    """A step that is decided but for its length."""

    clients: Ints
    """[m] clients whose updates count."""
    reports: Reports
    """What the jobs of the step reported; updates left out for their length count as not finite."""
    trials: torch.Tensor
    """[T, P] parameters to try the step with; T = 0 without a search."""
    columns: dict[str, Any]
    """Columns of `steps.parquet` that say which updates count."""
    evicted: int
    """Rows that the history had evicted before the step."""
    decision: Decision | None
    """None for a step without updates."""

    def accepts(self, position: int, losses: Floats) -> bool:
        """Whether the trial at a position, with the clients' losses [m] after it, ends the search."""
        search = None if self.decision is None else self.decision.direction.search
        return search is not None and search.accepts is not None and search.accepts(position, losses)
