"""Invariants of evaluations, and of losses."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from fedsim import plugins
from fedsim.common.arrays import Mask
from fedsim.data.federated_data import UNSEEN
from fedsim.engine.record_words import PERSONAL
from fedsim.invariants.evidence import Evidence, Unchecked
from fedsim.invariants.finding import Violation, differs, first, repeated
from fedsim.worlds.interval_index import NEVER

_SPLITS = ("train", "valid", "test", UNSEEN)


def values_of_evaluations_are_valid(e: Evidence) -> Iterator[Violation]:
    """Clients and steps of evaluations exist, and counts of correct answers are within the samples."""
    evals = e.evals
    n, correct = evals["n"], evals["correct"]
    for name, mask in (
        ("step", (evals["step"] < 0) | (evals["step"] > len(e.steps) + (not e.ended))),
        ("client", (evals["client"] < 0) | (evals["client"] >= e.everybody)),
        ("split", ~np.isin(evals["split"], [split + more for split in _SPLITS for more in ("", PERSONAL)])),
        ("n", n < 1),
        ("correct", (correct < 0) | (correct > n)),
    ):
        for i, more in first(mask):
            recorded = f"{name} = {evals[name][i]} (correct {correct[i]}, n {n[i]})"
            yield Violation("evals", i, f"a {name} in its range", recorded, more)


def only_unseen_clients_are_evaluated_as_unseen(e: Evidence) -> Iterator[Violation]:
    """Rows of the split `unseen` are of clients that never train, and all other rows of clients that may."""
    client, split = e.evals["client"], e.evals["split"]
    unseen = np.isin(split, (UNSEEN, UNSEEN + PERSONAL))
    for i, more in first(unseen != (client >= e.clients)):
        which = f"{e.clients} to {e.everybody - 1}" if unseen[i] else f"0 to {e.clients - 1}"
        yield Violation(
            "evals", i, f"one of the clients {which} on split {split[i]}", f"client {client[i]}", more
        )


def accuracy_is_the_share_of_correct_answers(e: Evidence) -> Iterator[Violation]:
    """`accuracy` is `correct / n`."""
    evals, recorded = e.evals, e.evals["accuracy"]
    want = np.where(np.isnan(evals["loss"]), np.nan, evals["correct"] / evals["n"])
    for i, more in first((recorded != want) & ~(np.isnan(recorded) & np.isnan(want))):
        yield Violation("evals", i, f"accuracy {want[i]}", str(recorded[i]), more)


def _starts(e: Evidence) -> Mask:
    """Return [rows] whether an evaluation on a split begins."""
    return differs(e.evals["step"], e.evals["time_us"], e.evals["split"])


def each_evaluation_has_one_row_per_client(e: Evidence) -> Iterator[Violation]:
    """Each evaluation has one row per client, and a client has the same samples in all of them."""
    evals, client, n = e.evals, e.evals["client"], e.evals["n"]
    for i, more in first(repeated(np.cumsum(_starts(e)) * e.everybody + client)):
        recorded = f"client {client[i]} again ({_where(e, i)})"
        yield Violation("evals", i, "one row per client", recorded, more)
    for split in _SPLITS:
        rows = np.flatnonzero(np.isin(evals["split"], (split, split + PERSONAL)))
        who, size = client[rows], np.full(e.everybody, -1)
        size[who[::-1]] = n[rows][::-1]
        wrongly = n[rows] != size[who]
        if split == "train":
            trained_on = np.full(e.everybody, -1)
            trained_on[e.jobs["client"]] = e.jobs["n_samples"]
            wrongly |= (trained_on[who] >= 0) & (n[rows] != trained_on[who])
        for k, more in first(wrongly):
            wanted = f"{size[who[k]]} samples of client {who[k]}"
            yield Violation("evals", int(rows[k]), wanted, str(n[rows[k]]), more)


def _where(e: Evidence, row: int) -> str:
    return f"step {e.evals['step'][row]}, {e.evals['split'][row]}"


def evaluations_use_the_model_after_the_last_step(e: Evidence) -> Iterator[Violation]:
    """An evaluation is of the model after the last step before it."""
    e.need_closed()
    step, time = e.evals["step"], e.evals["time_us"]
    since, until = e.step_us(step - 1), e.step_us(step)
    since = np.where(since < NEVER, since, 0)  # a failed run may lack its last step
    for i, more in first((time < since) | (time > until)):
        wanted = f"the model of step {step[i]} evaluated from {since[i]} to {until[i]} us"
        yield Violation("evals", i, wanted, f"{time[i]} us", more)


def the_configured_evaluations_exist(e: Evidence) -> Iterator[Violation]:
    """The first and the last model and those of every `every_steps` are evaluated, on the configured clients."""
    e.need_end()
    e.need_training()
    config, step, split = e.config.evaluate, e.evals["step"], e.evals["split"]
    every = config.every_steps
    want = {0, len(e.steps), *(range(0, len(e.steps) + 1, every) if every else ())}
    for name in (config.split, *config.also, *((UNSEEN,) if e.config.task.unseen else ())):
        steps = np.unique(step[split == name])
        if not len(steps):
            raise Unchecked(f"no client has samples in split {name!r}")
        missing = sorted(after for after in want - set(steps.tolist()) if after > e.changed_at)
        if missing:
            wanted = f"an evaluation on {name!r} after step {missing[0]}"
            yield Violation("evals", -1, wanted, "none", len(missing) - 1)
        yield from _of_other_clients(e, name)


def _of_other_clients(e: Evidence, name: str) -> Iterator[Violation]:
    """Yield evaluations on a split that are not of the configured clients."""
    config, step, split = e.config.evaluate, e.evals["step"], e.evals["split"]
    start = np.flatnonzero(_starts(e))
    size = np.diff(start, append=len(split))
    of_split = np.isin(split[start], (name, name + PERSONAL))
    last = of_split & (step[start] == len(e.steps))
    everybody = int(size[last].max(initial=0))
    most = everybody if config.clients is None else min(config.clients, everybody)
    wrongly = of_split & ((size != most) if config.clients is None else (size > most))
    wrongly[np.flatnonzero(last)[-2:]] = False
    for k, more in first(wrongly):
        wanted = f"{most} clients evaluated ({_where(e, start[k])})"
        yield Violation("evals", int(start[k]), wanted, str(size[k]), more)


def losses_are_not_negative(e: Evidence) -> Iterator[Violation]:
    """Losses of evaluations and of jobs are at least 0, but where an attack or a method from elsewhere reports them."""
    attackers = [client for attack in e.config.adversaries() for client in attack.clients or ()]
    honest = ~np.isin(e.jobs["client"], attackers) & (e.config.client.name in plugins.shipped("client"))
    for table, name, mask in (
        (e.evals, "loss", np.ones(len(e.evals), dtype=bool)),
        (e.jobs, "loss_before", honest),
        (e.jobs, "loss_train", honest),
    ):
        for i, more in first(mask & (table[name] < 0)):
            yield Violation(table.name, i, f"a {name} of at least 0", str(table[name][i]), more)
