"""Asking a rule for a step, and checking what it answers: it may be one of somebody's own."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from fedsim.common import plugins
from fedsim.common.errors import RunError, described
from fedsim.server.rule import Algorithm, Direction, LineSearch, Stack, State, Vectors

OF_RULES = ("projection_removed", "kkt_residual", "blocks")
"""Columns of `steps` that are for rules to say."""
TAKEN = {
    "step",
    "time_us",
    "status",
    "cause",
    "updates",
    "remembered",
    "evicted",
    "lost",
    "late",
    "nonfinite",
    "waits",
    "online",
    "in_flight",
    "mean_staleness",
    "mean_norm",
    "direction_norm",
    "step_length",
    "conflicts",
    "model_conflicts",
    "block_conflicts_mean",
    "absent_conflicts",
    "smallest_cosine",
    "smallest_absent_cosine",
    "max_weight",
    "each",
    "audited",
    "clipped",
}
"""Columns of `steps`, and names beside them, that are not for rules to say; `fedsim.records.schemas` has all."""


def begun(algorithm: Algorithm, rule: str) -> State:
    """Return the state that the rule named `rule` begins with. Raises RunError if that is no dict."""
    where = f"rule {rule!r}, init"
    with plugins.contained(where):
        found: Any = algorithm.init()
    if not isinstance(found, dict):
        raise RunError(f"{where}: expected the first state as a dict, found {type(found).__name__}")
    return found


def weighed(algorithm: Algorithm, stack: Stack, state: State, rule: str) -> tuple[Direction, State]:
    """Return what the rule named `rule` makes of a stack. Raises RunError if that is no weights for its rows."""
    found: Any = algorithm.weigh(stack, state)
    where = f"step {stack.step}, rule {rule!r}"
    if isinstance(found, Direction):
        raise RunError(
            f"{where}: expected a Direction and the next state, found the Direction alone; a rule that remembers "
            "nothing is made with fedsim.server.rule.stateless"
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
    _check_rest(found[0], where)
    return found


def _check_rest(direction: Direction, where: str) -> None:
    """Raise RunError for an average, a line search or diagnostics that are none."""
    average, search, said = direction.average, direction.search, direction.diagnostics
    if average is not None and not (_is_number(average) and math.isfinite(average)):
        raise RunError(f"{where}: average: expected a finite number or None, found {described(average)}")
    if search is not None and not isinstance(search, LineSearch):
        raise RunError(f"{where}: search: expected a LineSearch or None, found {described(search)}")
    if not isinstance(said, Mapping):
        raise RunError(f"{where}: diagnostics: expected a dict of numbers by name, found {described(said)}")
    for name, value in said.items():
        if not isinstance(name, str) or not _is_number(value):
            raise RunError(
                f"{where}: diagnostics: expected a number by each name, found {described(value)} by {described(name)}"
            )
        if name in TAKEN:
            raise RunError(
                f"{where}: diagnostics: {name!r} is a column of `steps` that the server writes; of those, a rule says "
                f"{', '.join(OF_RULES)}, and others may have any other name"
            )
        if name == "blocks" and not float(value).is_integer():
            raise RunError(f"{where}: diagnostics: blocks: expected a whole number, found {value!r}")


def _is_number(value: object) -> bool:
    try:
        return isinstance(value, (int, float, np.number)) and isinstance(float(value), float)
    except (TypeError, OverflowError):
        return False


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
