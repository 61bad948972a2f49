"""What a rule decided, before the server takes the step."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from fedsim.server.gram import Rows
from fedsim.server.rule import Direction, Floats, Ints, Stack, State, Vectors


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
