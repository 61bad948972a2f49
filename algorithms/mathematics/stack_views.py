"""Views of a stack for wrappers: some of its rows, rows of other lengths."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsim.common.errors import ConfigError, Undeclared
from fedsim.server.rule import Algorithm, Direction, Floats, Needs, Stack, State


def scaled(stack: Stack, factors: Floats) -> Stack:
    """Return the stack of rows multiplied by `factors` `[n]`."""
    declared = not isinstance(stack.grams, Undeclared)
    return replace(stack, grams=stack.grams * np.outer(factors, factors) if declared else stack.grams)


def selected(stack: Stack, rows: NDArray[np.intp], m: int) -> Stack:
    """Return the stack of some rows, the first `m` of them present, none replaced."""
    columns: dict[str, Any] = {
        name: getattr(stack, name)[rows]
        for name in (
            "clients",
            "losses",
            "n_samples",
            "ages",
            "staleness",
            "participations",
            "online",
            "losses_after",
            "accuracies_after",
            "local_steps",
            "inclusion",
        )
        if getattr(stack, name) is not None
    }
    return replace(stack, grams=stack.grams[:, rows[:, None], rows[None, :]], m=m, replaced=0, **columns)


def spread(direction: Direction, rows: NDArray[np.intp], n: int) -> Direction:
    """Return the direction with its weights at the places `rows` of `n`; other rows get 0."""
    weights = np.zeros((*direction.weights.shape[:-1], n))
    weights[..., rows] = direction.weights
    return replace(direction, weights=weights)


def participation_window(stack: Stack) -> float:
    """Return FedLF's window for absent clients (Pan et al. 2024): M/m steps, M the clients seen before; 0 if M <= m."""
    return stack.n_seen / stack.m if stack.n_seen > stack.m else 0.0


def with_gram(needs: Needs) -> Needs:
    """Return the needs with at least the model's Gram matrix."""
    return replace(needs, gram="model") if needs.gram == "none" else needs


def on_scaled(rule: Algorithm, factors: Callable[[Stack], Floats], needs: Needs) -> Algorithm:
    """Return the rule run on rows multiplied by `factors(stack)` `[n]`."""

    def weigh(stack: Stack, state: State) -> tuple[Direction, State]:
        scale = factors(stack)
        direction, after = rule.weigh(scaled(stack, scale), state)
        return replace(direction, weights=direction.weights * scale), after

    return replace(rule, weigh=weigh, needs=needs, promises=rule.promises - {"convex"})


def refuse_memory(rule: Algorithm) -> None:
    """Raise ConfigError if the rule remembers absent clients by itself."""
    if rule.needs.memory > 0:
        raise ConfigError(
            f"the rule remembers absent clients itself, for {rule.needs.memory:g} steps; a second memory around it "
            "would count them twice: switch one of the two off"
        )


def refuse_columns(rule: Algorithm, reason: str) -> None:
    """Raise ConfigError with the reason if the rule combines the rows column by column."""
    if rule.columns is not None:
        raise ConfigError(f"the rule combines the rows column by column: {reason}")


def refuse_scale_free(rule: Algorithm) -> None:
    """Raise ConfigError if the rule would undo a change of the rows' lengths."""
    if rule.needs.scale_free:
        raise ConfigError(
            "the rule gives all updates the same length, which undoes a change of their lengths"
        )
