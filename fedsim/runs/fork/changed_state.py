"""What a saved state of the parent becomes: the state from which its fork continues."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedsim.common.arrays import Ints
from fedsim.common.errors import ConfigError
from fedsim.config.run import RunConfig
from fedsim.engine.job_table import LANDED, RUNNING
from fedsim.engine.plan_change import keep_work, move_ends, repace
from fedsim.engine.remembered import Remembered
from fedsim.engine.state import RunState
from fedsim.records.checkpoint import State
from fedsim.records.run_folder import optional_tables
from fedsim.records.schemas import OPTIONAL
from fedsim.runs.spec import RunSpec
from fedsim.server.server import Server, sent_with


def changed_state(
    state: State, before: RunSpec, after: RunSpec, keep_online: Sequence[int], now_us: int
) -> State:
    """Return the state from which the run continues with the parts of `after` at `now_us`."""
    left_out = {name for name in OPTIONAL if name not in optional_tables(after.config)}
    rows = {name: count for name, count in state["records"]["rows"].items() if name not in left_out}
    run_state, trainer = _run_state(state, before, after, keep_online, now_us), _trainer(state, before, after)
    if trainer["server"] is not state["trainer"]["server"]:
        run_state.remembered = _remembered(trainer["server"]["history"]["columns"], run_state.n_clients)
    return state | {
        "run_state": run_state.state(),
        "trainer": trainer,
        "records": state["records"] | {"rows": rows},
        "spent_s": 0.0,
    }


def _run_state(
    state: State, before: RunSpec, after: RunSpec, keep_online: Sequence[int], now_us: int
) -> RunState:
    run_state, config, child = RunState.restored(state["run_state"]), before.config, after.config
    if child.evaluate != config.evaluate:
        every_us = after.plan.evaluate.every_us
        run_state.evaluate_us = -(-now_us // every_us) * every_us if every_us else 0
    frees_places = keep_online or child.pacing != config.pacing or child.dropout != config.dropout
    if frees_places:
        run_state.now_us = now_us
    if child.selection != config.selection:
        run_state.selector_state = after.plan.selector.start()
    if child.pacing != config.pacing:
        repace(run_state, before.plan.pacing, after.plan.pacing)
    keep_work(run_state, before.plan.costs.work.samples, after.plan.costs.work.samples)
    if after.server.algorithm().needs.gradients:
        _require_single_steps(run_state, after.server.rule)
    if _stop_settings(child) != _stop_settings(config):
        run_state.best, run_state.unimproved, run_state.reached = math.nan, 0, False
    move_ends(run_state, after.world, after.plan, keep_online)
    if frees_places:
        run_state.wake(now_us)
    return run_state


def _require_single_steps(run_state: RunState, rule: str) -> None:
    """Raise ConfigError if a job under way is not one gradient step, as the rule wants."""
    table = run_state.job_table.table
    arrives = (table["status"] == LANDED) | ((table["status"] == RUNNING) & table["ok"].astype(np.bool_))
    others = table["client"][arrives & (table["share"] != 1)]
    if len(others):
        raise ConfigError(
            f"fork: algorithm.name: rule {rule!r} wants one gradient step on all samples of a client, and the job of "
            f"client {others[0]}, under way at the fork, takes several: fork a run whose [train] makes one step"
        )


def _remembered(history: Mapping[str, Ints], n_clients: int) -> Remembered:
    """Return whose updates a server has, by the columns of its history: it may have lost or dropped some."""
    remembered = Remembered.of(n_clients)
    remembered.step[history["client"]] = history["received"]
    remembered.time_us[history["client"]] = history["received_us"]
    return remembered


def _stop_settings(config: RunConfig) -> tuple[object, ...]:
    """Return the settings on which the record of the stop rule (best value, patience) depends."""
    stop, evaluate = config.stop, config.evaluate
    watched = stop.metric, stop.split, stop.rising, stop.target, stop.patience, stop.least
    return (*watched, evaluate.split, evaluate.clients)


def _trainer(state: State, before: RunSpec, after: RunSpec) -> dict[str, Any]:
    sends = before.server.algorithm().sends
    trainer = _with_current(state, sends)
    same_rule, same_clients = _carried_over(before, after)
    if not same_clients:
        trainer |= {"keepers": [], "kept": []}
    if after.server == before.server and same_rule:
        return trainer
    server = Server(after.server, trainer["server"]["params"])
    server.inherit(trainer["server"], state["run_state"]["step"], same_rule=same_rule)
    trainer["server"] = server.save()
    sent = server.algorithm.sends
    if sent != sends or (sends and not same_rule):
        # Running jobs are repeated without the former rule's vectors.
        P = len(server.params)
        trainer["starts"] = [sent_with(start[:P], {}, sent) for start in trainer["starts"]]
    return trainer


def _carried_over(before: RunSpec, after: RunSpec) -> tuple[bool, bool]:
    """Return whether the rule's state carries over, and whether what clients keep does.

    A rule that is one half of a method and what its clients keep carry over together, also with other options of the
    rule, or not at all.
    """
    same_clients = after.config.client == before.config.client
    same_rule = (after.server.rule, after.server.wrap) == (before.server.rule, before.server.wrap)
    if after.server.algorithm().client:
        both = same_rule and same_clients
        return both, both
    return same_rule and after.server.options == before.server.options, same_clients


def _with_current(state: State, sends: Sequence[str]) -> State:
    """Return the trainer's state with the current model among the start models: the fork may use any job.

    `sends` are the names of the vectors that jobs receive beside the model.
    """
    trainer, step = dict(state["trainer"]), state["run_state"]["step"]
    server = trainer["server"]
    if step in trainer["versions"]:
        return trainer
    return trainer | {
        "versions": [*trainer["versions"], step],
        "starts": [*trainer["starts"], sent_with(server["params"], server["vectors"], sends)],
    }
