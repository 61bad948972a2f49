"""Calling a rule and checking what it returns: rules may be plug-ins of users."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from fedsim import plugins
from fedsim.common.errors import RunError, Undeclared, described
from fedsim.server.rule import (
    Algorithm,
    Columns,
    Direction,
    Floats,
    LineSearch,
    Needs,
    Stack,
    State,
    StepFacts,
    Vectors,
)

OF_RULES = ("projection_removed", "kkt_residual", "blocks")
"""Columns of `steps` that rules write."""
_OF_EVENT_LOOP = {"step", "time_us", "cause", "lost", "late", "waits", "online", "in_flight"}
_OF_UPDATES = {"updates", "nonfinite", "clipped", "evicted", "mean_staleness", "mean_norm"}
_OF_STEP = {"status", "remembered", "direction_norm", "step_length", "max_weight", "each", "audited"}
_OF_CONFLICTS = {"conflicts", "model_conflicts", "block_conflicts_mean", "absent_conflicts"}
_OF_COSINES = {"smallest_cosine", "smallest_absent_cosine"}
TAKEN = _OF_EVENT_LOOP | _OF_UPDATES | _OF_STEP | _OF_CONFLICTS | _OF_COSINES
"""Columns of `steps`, and names beside them, that rules may not write; `fedsim.records.schemas` has all."""

_DECLARED_BY = {"losses": "losses", "losses_after": "after", "accuracies_after": "after"}
"""The fields of a Stack that a rule declares, by the field of `Needs`."""
SAVED = "numbers, texts, arrays of numbers, and lists and dictionaries (with texts as keys) of these"
"""What a checkpoint can hold of the state of a plug-in."""


def initial_state(algorithm: Algorithm, rule: str) -> State:
    """Return the first state of the rule named `rule`. Raises RunError as `checked_state` does."""
    where = f"rule {rule!r}, init"
    with plugins.contained(where):
        state: Any = algorithm.init()
    return checked_state(state, f"{where}: expected the first state as a dict")


def checked_state(state: object, expected: str) -> State:
    """Return the state of a plug-in. Raises RunError if it is no dict, or holds what a checkpoint cannot.

    `expected` opens the message, such as `rule 'mine', init: expected the first state as a dict`.
    """
    if not isinstance(state, dict):
        raise RunError(f"{expected}, found {described(state)}")
    if fault := next(unsaved(state), ""):
        per_client = "; keep a value for each client in an array [K]" if "with the key" in fault else ""
        raise RunError(f"{expected} of {SAVED}, found {fault}{per_client}")
    return state


def unsaved(value: object, name: str = "") -> Iterator[str]:
    """Yield what a checkpoint cannot hold of a value, with its place in the state, such as `['seen'][1]`."""
    if isinstance(value, dict):
        for key, each in value.items():
            if isinstance(key, str):
                yield from unsaved(each, f"{name}[{key!r}]")
            else:
                yield f"a dictionary with the key {key!r:.60}{f' in {name}' if name else ''}"
    elif isinstance(value, list | tuple):
        for i, each in enumerate(value):
            yield from unsaved(each, f"{name}[{i}]")
    elif isinstance(value, np.ndarray | np.generic):
        if value.dtype.kind not in "biuf" or value.dtype.itemsize > 8 or not value.dtype.isnative:
            yield f"an array of {value.dtype} in {name}"
    elif not isinstance(value, bool | int | float | str | torch.Tensor | None):
        yield f"{described(value)} in {name}"


def weigh(algorithm: Algorithm, stack: Stack, state: State, rule: str) -> tuple[Direction, State]:
    """Let the rule named `rule` weigh a stack. Raises RunError if it does not return weights for the stack's rows."""
    where = f"step {stack.step}, rule {rule!r}"
    result: Any = algorithm.weigh(replace(stack, **_undeclared(algorithm.needs, where)), state)
    if isinstance(result, Direction):
        raise RunError(
            f"{where}: expected a Direction and the next state, found the Direction alone; a rule that remembers "
            "nothing is made with fedsim.server.rule.stateless"
        )
    if not (isinstance(result, tuple) and len(result) == 2 and isinstance(result[0], Direction)):
        first = result[0] if isinstance(result, tuple) and len(result) == 2 else result
        raise RunError(
            f"{where}: expected a Direction, found {type(first).__name__}; return fedsim.Direction(weights)"
        )
    direction, after = result
    checked_state(after, f"{where}: expected the next state as a dict")
    _check_weights(direction, stack, algorithm.needs, where)
    if algorithm.columns is not None and np.ndim(direction.weights) != 1:
        raise RunError(
            f"{where}: expected factors [{stack.n}] of a rule with columns, one per row, found shape "
            f"{list(np.shape(direction.weights))}"
        )
    _check_gaps(direction, algorithm, stack.m, where)
    _check_rest(direction, where)
    return direction, after


def _undeclared(needs: Needs, where: str) -> dict[str, Any]:
    """Return what a stack holds for a rule in place of the fields that it does not declare."""
    hidden = {
        name: Undeclared(f"{where}: it reads {name} without declaring it: return Needs({need}=True) with it")
        for name, need in _DECLARED_BY.items()
        if not getattr(needs, need)
    }
    if needs.gram == "none":
        hidden["grams"] = Undeclared(
            f'{where}: it asks for inner products without declaring them: return Needs(gram="model") with it, or '
            '"blocks" for those of each layer'
        )
    return hidden


def fault_in_weights(direction: Direction, stack: Stack) -> str:
    """Return which weight of a direction is not finite, and whose; empty if all are finite."""
    weights = np.atleast_2d(direction.weights)
    bad = np.argwhere(~np.isfinite(weights))
    if not len(bad):
        return ""
    block, i = bad[0]
    return f"weights that are not finite ({weights[block, i]} for the update of client {stack.clients[i]})"


def _check_weights(direction: Direction, stack: Stack, needs: Needs, where: str) -> None:
    """Raise RunError for weights of another type or shape than the stack's rows need, and for a bad `keep`."""
    kind = np.asarray(direction.weights).dtype
    if kind.kind not in "biuf":
        raise RunError(f"{where}: expected weights that are real numbers, found {kind}")
    shape = np.shape(direction.weights)
    if len(shape) not in (1, 2) or shape[-1] != stack.n:
        raise RunError(
            f"{where}: expected weights [{stack.n}], one per row, or [blocks, {stack.n}], found shape {list(shape)}; "
            f"rows are the {stack.m} updates of the step and {stack.n - stack.m} that the server kept"
        )
    blocks = len(stack.grams) if needs.gram == "blocks" else 1
    if len(shape) == 2 and shape[0] not in (1, blocks):
        layers = (
            f"a row for each of {blocks} blocks"
            if needs.gram == "blocks"
            else 'and one row for each layer only of a rule with Needs(gram="blocks")'
        )
        raise RunError(
            f"{where}: expected weights [{stack.n}] for the whole model, {layers}; found shape {list(shape)}"
        )
    keep = direction.keep
    if not isinstance(keep, (int, float, np.number)) or not np.isfinite(keep):
        raise RunError(f"{where}: keep: expected a finite number, found {keep!r}")


def _check_gaps(direction: Direction, algorithm: Algorithm, m: int, where: str) -> None:
    """Raise RunError for weights of gaps that the rule may not return, or of another type or shape."""
    gaps: Any = direction.gaps
    if gaps is None:
        return
    if algorithm.start != "last":
        raise RunError(
            f"{where}: gaps: expected None of a rule without start='last', found {described(gaps)}"
        )
    column = np.asarray(gaps)
    if column.dtype.kind not in "biuf" or column.shape != (m,) or not np.isfinite(column).all():
        raise RunError(
            f"{where}: gaps: expected finite numbers [{m}], one per present row, found {column.dtype} of shape "
            f"{list(column.shape)}"
        )


def _check_rest(direction: Direction, where: str) -> None:
    """Raise RunError for an average, a line search or diagnostics of another type."""
    average, search, diagnostics = direction.average, direction.search, direction.diagnostics
    if average is not None and not (_is_number(average) and 0 <= average <= 1):
        raise RunError(
            f"{where}: average: expected a number from 0 to 1, or None, found {described(average)}"
        )
    if search is not None and not isinstance(search, LineSearch):
        raise RunError(f"{where}: search: expected a LineSearch or None, found {described(search)}")
    if not isinstance(diagnostics, Mapping):
        raise RunError(
            f"{where}: diagnostics: expected a dict of numbers by name, found {described(diagnostics)}"
        )
    for name, value in diagnostics.items():
        if not isinstance(name, str) or not _is_number(value):
            raise RunError(
                f"{where}: diagnostics: expected a number by each name, found {described(value)} by {described(name)}"
            )
        if name in TAKEN:
            raise RunError(
                f"{where}: diagnostics: {name!r} is a column of `steps` that the server writes; a rule may write the "
                f"columns {', '.join(OF_RULES)}, and diagnostics of any other name"
            )
        if name == "blocks" and not float(value).is_integer():
            raise RunError(f"{where}: diagnostics: blocks: expected a whole number, found {value!r}")


def _is_number(value: object) -> bool:
    try:
        return isinstance(value, (int, float, np.number)) and isinstance(float(value), float)
    except (TypeError, OverflowError):
        return False


def apply_vector_step(
    algorithm: Algorithm, vector: torch.Tensor, vectors: Vectors, facts: StepFacts, where: str
) -> tuple[torch.Tensor, Vectors]:
    """Apply the rule's VectorStep, if it has one. Raises RunError if the result is not a direction and vectors."""
    if algorithm.then is None:
        return vector, vectors
    result: Any = algorithm.then.apply(vector, vectors, facts)
    where = f"{where}, then"
    if not (isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], dict)):
        raise RunError(f"{where}: expected a direction and vectors by name, found {type(result).__name__}")
    direction, after = result
    made = {"a direction": direction} | {f"vector {name!r}": each for name, each in after.items()}
    for name, each in made.items():
        if _kind(each) != _kind(vector):
            raise RunError(f"{where}: expected {name} {_kind(vector)}, found {_kind(each)}")
    if missing := [name for name in algorithm.sends if name not in after]:
        raise RunError(f"{where}: expected the vectors that the rule sends, {missing[0]!r} is missing")
    return direction, after


def _kind(value: object) -> str:
    """Return the shape and device of a tensor, and the type of anything else."""
    return (
        f"{list(value.shape)} on {value.device}" if isinstance(value, torch.Tensor) else type(value).__name__
    )


def checked_columns(algorithm: Algorithm, where: str) -> Columns | None:
    """Return the rule's function of columns, or None; it raises RunError unless it returns one number per column."""
    columns, where = algorithm.columns, f"{where}, columns"
    if columns is None:
        return None

    def checked(tile: torch.Tensor) -> torch.Tensor:
        with plugins.contained(where):
            result: Any = columns(tile)
        count = tile.shape[1]
        if not (isinstance(result, torch.Tensor) and result.shape == (count,) and not result.is_complex()):
            kind = type(result).__name__
            if isinstance(result, torch.Tensor):
                kind = f"{result.dtype} of shape {list(result.shape)}"
            raise RunError(
                f"{where}: expected real numbers [{count}], one per column of the tile {list(tile.shape)}, found {kind}"
            )
        return result

    return checked


def weights_in_sum(algorithm: Algorithm, direction: Direction) -> Floats:
    """Return the weights of the rows in the direction; NaN for rows that a rule combines column by column."""
    weights = np.asarray(direction.weights, dtype=np.float64)
    return weights if algorithm.columns is None else np.where(weights == 0.0, 0.0, np.nan)
