"""What a selector sees of a run, and what it cannot read unless it declares it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from fedsim.common.arrays import Floats, Ints
from fedsim.common.errors import RunError, Undeclared
from fedsim.engine.costs import Costs
from fedsim.engine.selector import Need, View
from fedsim.engine.state import Plan, RunState
from fedsim.engine.trainer import Trainer
from fedsim.worlds.world import World

_COLUMNS: dict[Need, tuple[str, ...]] = {
    "losses": ("last_loss", "last_train_loss", "last_loss_rms", "last_batch_rms"),
    "accuracy": ("accuracy", "accuracy_step"),
}
"""Columns of the view by what a selector declares to read them."""
_ASKED = {"asked": "losses", "norms": "norms of updates", "updates": "products of updates"}


def first_view(world: World, plan: Plan, trainer: Trainer, run_state: RunState) -> View:
    """Return the view that the selector of `plan` sees; before each choice, the time, step and candidates are set.

    What the selector does not declare raises RunError where it is read, so that NaN is not taken for a number.
    """
    pacing, facts = plan.pacing, plan.facts
    if "labels" not in plan.selector.needs:
        facts = replace(facts, label_counts=_undeclared(plan, "facts.label_counts", _needs("labels")))
    columns = {
        name: _undeclared(plan, name, _needs(need))
        for need, names in _COLUMNS.items()
        for name in names
        if need not in plan.selector.needs
    }
    future = world if plan.selector.clairvoyant else _undeclared(plan, "world", "clairvoyant=True")
    return View(
        now_us=0,
        step=0,
        candidates=np.zeros(0, dtype=np.int64),
        facts=facts,
        step_us=0,
        buffer=pacing.concurrency if pacing.buffer is None else pacing.buffer,
        deadline_us=pacing.deadline_us,
        expected_us=partial(_expected_us, world, plan.costs, run_state),
        ask_losses=_asked(plan, lambda clients: trainer.losses(clients, run_state.step), "asked"),
        update_norms=_asked(plan, trainer.update_norms, "norms", "updates"),
        update_products=_asked(plan, trainer.update_products, "updates"),
        world=future,
        **run_state.client_records.columns() | columns,
    )


def _needs(need: Need) -> str:
    return f'needs=frozenset({{"{need}"}})'


def _undeclared(plan: Plan, name: str, declared: str) -> Any:
    """Return what the view holds in place of a value that the selector does not declare to read."""
    return Undeclared(
        f"{plan.selector_named} reads view.{name} without declaring it: return it with {declared}"
    )


def _asked(plan: Plan, ask: Callable[[Ints], Floats], *needs: Need) -> Callable[[Ints], Floats]:
    """Return the function that asks the trainer, or one that raises RunError if none of `needs` was declared."""
    if plan.selector.needs.intersection(needs):
        return ask

    def undeclared(clients: Ints) -> Floats:
        raise RunError(f"a selector that asks for {_ASKED[needs[0]]} must declare {_needs(needs[0])}")

    return undeclared


def _expected_us(world: World, costs: Costs, run_state: RunState, clients: Ints) -> Ints:
    """Return [k] how many microseconds a job of each client would take at its current speed."""
    none_before = np.zeros(len(clients), dtype=np.int64)
    plain = replace(costs.of(clients, none_before, np.ones(len(clients))), slowness=costs.work.slowness)
    return world.expected_us(clients, run_state.now_us, plain)
