"""Asking a rule for a step, and checking what it answers: it may be one of somebody's own."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from fedsim.errors import RunError
from fedsim.stack import Algorithm, Direction, Stack, State, Vectors


def weighed(algorithm: Algorithm, stack: Stack, state: State, rule: str) -> tuple[Direction, State]:
    """Return what the rule named `rule` makes of a stack. Raises RunError if that is no weights for its rows."""
    found: Any = algorithm.weigh(stack, state)
    where = f"step {stack.step}, rule {rule!r}"
    if isinstance(found, Direction):
        raise RunError(
            f"{where}: expected a Direction and the next state, found the Direction alone; a rule that remembers "
            "nothing is made with fedsim.stack.stateless"
        )
    if not (isinstance(found, tuple) and len(found) == 2 and isinstance(found[0], Direction)):
        first = found[0] if isinstance(found, tuple) and len(found) == 2 else found
        raise RunError(f"{where}: expected a Direction, found {type(first).__name__}")
    if not isinstance(found[1], dict):
        raise RunError(f"{where}: expected the next state as a dict, found {type(found[1]).__name__}")
    kind = np.asarray(found[0].weights).dtype
    if kind.kind not in "biuf":
        raise RunError(f"{where}: expected weights that are real numbers, found {kind}")
    shape = np.shape(found[0].weights)
    if len(shape) not in (1, 2) or shape[-1] != stack.n:
        raise RunError(
            f"{where}: expected weights [{stack.n}], one per row, or [blocks, {stack.n}], found shape {list(shape)}; "
            f"rows are the {stack.m} updates of the step and {stack.n - stack.m} remembered ones"
        )
    keep = found[0].keep
    if not isinstance(keep, (int, float, np.number)) or not np.isfinite(keep):
        raise RunError(f"{where}: keep: expected a finite number, found {keep!r}")
    return found


def moved(
    algorithm: Algorithm, vector: torch.Tensor, vectors: Vectors, step: int, rule: str
) -> tuple[torch.Tensor, Vectors]:
    """Return what the rule does to the combined direction itself. Raises RunError if that is no direction any more."""
    if algorithm.then is None:
        return vector, vectors
    found: Any = algorithm.then.apply(vector, vectors)
    where = f"step {step}, rule {rule!r}, then"
    if not (isinstance(found, tuple) and len(found) == 2 and isinstance(found[1], dict)):
        raise RunError(f"{where}: expected a direction and vectors by name, found {type(found).__name__}")
    if not (isinstance(found[0], torch.Tensor) and found[0].shape == vector.shape):
        what = list(found[0].shape) if isinstance(found[0], torch.Tensor) else type(found[0]).__name__
        raise RunError(f"{where}: expected a direction {list(vector.shape)}, found {what}")
    return found[0], found[1]


def not_finite(algorithm: Algorithm) -> str:
    """Say that the weights of a rule are not finite, and that it may have looked at losses that it did not ask for."""
    unasked = "" if algorithm.needs.losses else " (a rule without Needs(losses=True) is given NaN for losses)"
    return f"weights that are not finite{unasked}"
