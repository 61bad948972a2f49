"""Aggregation rules without the simulator: one call on a matrix of updates."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Generic, Unpack

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from fedsim.common.errors import ConfigError, RunError, described
from fedsim.server.columns import Chosen, combine_columns
from fedsim.server.combine.arguments import (
    NAMES,
    Given,
    Rows,
    as_rows,
    block_spans,
    check_names,
    columns_of,
    like,
    order_in_groups,
    scalars_of,
    wrapper_tables,
)
from fedsim.server.gram import Blocks, block_products, equal_slices, weighted_sum
from fedsim.server.rule import Algorithm, Direction, Floats, Stack, State, StepFacts, Vectors
from fedsim.server.rule_check import (
    apply_vector_step,
    checked_columns,
    fault_in_weights,
    initial_state,
    weigh,
)
from fedsim.server.rule_factory import build_rule
from fedsim.training.precision import untouched


@dataclass(frozen=True, slots=True)
class Combined(Generic[Rows]):
    """The direction that a rule combined from updates: the new parameters are `keep * params - direction`."""

    direction: Rows
    """[P], of the same type, precision and device as the updates."""
    weights: Floats
    """[blocks, n] weight of each row in each block, in the caller's order; [1, n] if all blocks agree.

    A rule that combines the rows column by column has no weights; these are then its factors on the rows, 0 for those
    that it leaves out."""
    keep: float
    """Factor on the current parameters; 1 but for averages whose weights need not sum to one."""
    diagnostics: Mapping[str, float]
    state: State
    """The rule's own state, for the next call."""
    vectors: Vectors
    """Vectors [P] that the rule keeps, such as a momentum, for the next call."""
    average: float | None = None
    """If given, the model to evaluate is an average, `avg += average * (new params - avg)`."""


def combine(
    rule: str | Algorithm,
    updates: Rows,
    *,
    losses: ArrayLike | None,
    options: Mapping[str, Any] | None = None,
    wrap: Sequence[tuple[str, Mapping[str, Any]]] = (),
    **given: Unpack[Given],
) -> Combined[Rows]:
    """Combine updates into one direction by a rule: its name and options, or an Algorithm.

    Args:
        updates: `[n, P]`, a tensor or array of floats; each row is `start - end` of one client's training.
        losses: `[n]`, the clients' losses at the start of the training; None for rules that need none.
        wrap: wrappers, names with options, the first the innermost.
        given: what else is known of the updates; see `Given`.

    Raises ConfigError, which names the argument and the row, for wrong shapes and values that are not finite, and
    RunError where what the rule returns is no finite weights.
    """
    arguments: dict[str, Any] = {**dict.fromkeys(NAMES), "step": 0, "losses": losses, **given}
    check_names(given, options)
    algorithm = _algorithm(rule, options or {}, wrap)
    rows = as_rows(updates)
    spans = block_spans(rows.shape[1], arguments["blocks"])
    if algorithm.needs.slices:
        spans = equal_slices(rows.shape[1], len(spans))
    _check_needed(algorithm, arguments)
    stack, rows, order = _stack(algorithm, rows, spans, arguments)
    name, vectors = rule if isinstance(rule, str) else "of the call", arguments["vectors"]
    with untouched():
        direction, after = _weighed(algorithm, stack, arguments["state"], name)
        with _of_this_rule("vectors", vectors):
            where = f"step {stack.step}, rule {name!r}"
            combined = _combined(algorithm, rows, direction.weights, spans, where)
            facts = StepFacts(stack.m, stack.n_clients)
            vector, kept = apply_vector_step(algorithm, combined, vectors or {}, facts, where)
    weights = np.atleast_2d(direction.weights)[:, np.argsort(order)]
    out = like(updates, vector)
    return Combined(out, weights, direction.keep, direction.diagnostics, after, kept, direction.average)


def _weighed(algorithm: Algorithm, stack: Stack, state: State | None, name: str) -> tuple[Direction, State]:
    with _of_this_rule("state", state):
        before = initial_state(algorithm, name) if state is None else state
        direction, after = weigh(algorithm, stack, before, name)
    if fault := fault_in_weights(direction, stack):
        raise RunError(f"step {stack.step}, rule {name!r}: {fault}")
    return direction, after


def _combined(
    algorithm: Algorithm, rows: torch.Tensor, weights: Floats, spans: Blocks, where: str
) -> torch.Tensor:
    """Return the direction [P] before the rule's VectorStep. Raises RunError if its columns are not finite."""
    columns = checked_columns(algorithm, where)
    if columns is None:
        return weighted_sum(rows, weights, spans)
    vector = combine_columns([Chosen.of(rows, weights)], columns, rows.new_empty(rows.shape[1]))
    if not vector.isfinite().all():
        raise RunError(f"{where}, columns: expected finite numbers, found NaN or infinity")
    return vector


@contextmanager
def _of_this_rule(argument: str, state: Mapping[str, Any] | None) -> Iterator[None]:
    """Raise ConfigError if a rule misses a name in the `state` or the vectors of the caller."""
    try:
        yield
    except KeyError as error:
        if state is None or (missing := error.args[0]) in state:
            raise
        raise ConfigError(
            f"argument {argument!r}: expected what this rule returned before, with {missing!r}, found {sorted(state)}"
        ) from error


def _check_needed(algorithm: Algorithm, arguments: Mapping[str, Any]) -> None:
    if algorithm.needs.search:
        raise ConfigError(
            "search: a line search needs clients that report losses; leave it out and search yourself"
        )
    check_stands_alone(algorithm)
    wanted = ["losses"] if algorithm.needs.losses else []
    wanted += ["losses_after", "accuracies_after"] if algorithm.needs.after else []
    for name in wanted:
        if arguments[name] is None:
            raise ConfigError(f"argument {name!r}: this rule needs the {name.replace('_', ' ')}, found None")


def check_stands_alone(algorithm: Algorithm) -> None:
    """Raise ConfigError for a rule that needs a client method, or the models that jobs start from, beside updates."""
    if algorithm.client:
        raise ConfigError(
            f"argument 'rule': it is one half of a method whose other half is the client method {algorithm.client!r}; "
            "run the two in the simulator"
        )
    if algorithm.start == "last":
        raise ConfigError(
            "argument 'rule': it starts clients from the models that they received last, which updates alone don't "
            "tell; run it in the simulator"
        )


def _stack(
    algorithm: Algorithm, rows: torch.Tensor, spans: Blocks, arguments: Mapping[str, Any]
) -> tuple[Stack, torch.Tensor, NDArray[np.intp]]:
    """Return the stack, the rows in its order, and that order."""
    table = columns_of(len(rows), arguments)
    order = order_in_groups(table["clients"], table["ages"], replaced=algorithm.needs.replaced)
    table = {name: column[order] for name, column in table.items()}
    if not np.array_equal(order, np.arange(len(rows))):
        rows = rows[torch.from_numpy(order).to(rows.device)]
    m, scalars = int((table["ages"] == 0).sum()), scalars_of(arguments, table)
    scalars["replaced"] = int(np.isin(table["clients"][m:], table["clients"][:m]).sum())
    used: Blocks = {"none": [], "model": [(0, rows.shape[1])], "blocks": spans}[algorithm.needs.gram]
    with np.errstate(over="ignore", invalid="ignore"):  # refused below
        grams = block_products(rows, rows, used)
    _check_norms(grams, rows, used, order)
    grams.flags.writeable = False  # as in a run
    return Stack(grams=grams, m=m, **scalars, **table), rows, order


def _check_norms(grams: Floats, rows: torch.Tensor, spans: Blocks, order: NDArray[np.intp]) -> None:
    """Refuse rows whose squared norms overflow, or round to 0 although the rows are not zero."""
    squares = np.einsum("bii->bi", grams)
    long, short = ~np.isfinite(squares.sum(axis=0)), np.zeros(len(rows), dtype=bool)
    for square, (start, stop) in zip(squares, spans, strict=True):
        if (low := square < np.finfo(np.float64).tiny).any():
            short |= low & rows[:, start:stop].any(dim=1).cpu().numpy()
    for wrong, size in ((long, "more"), (short, "less")):
        if wrong.any():
            row = order[np.flatnonzero(wrong)[0]]
            raise ConfigError(
                f"argument 'updates', row {row}: expected a norm whose square {rows.dtype} can hold, found {size}"
            )


def _algorithm(
    rule: str | Algorithm, options: Mapping[str, Any], wrap: Sequence[tuple[str, Mapping[str, Any]]]
) -> Algorithm:
    if isinstance(rule, str):
        return build_rule(rule, options, wrapper_tables(wrap))
    if not isinstance(rule, Algorithm):
        raise ConfigError(
            f"argument 'rule': expected the name of a rule or an Algorithm, found {described(rule)}{_call_it(rule)}"
        )
    if options:
        raise ConfigError(f"options {sorted(options)} go with the name of a rule, found an Algorithm")
    if wrap:
        raise ConfigError("argument 'wrap': goes with the name of a rule, found an Algorithm")
    return rule


def _call_it(factory: object) -> str:
    name = getattr(factory, "__name__", "")
    return f": call it, {name}(...)" if name else ""
