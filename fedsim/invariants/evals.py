"""Invariants of evaluations."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from fedsim.engine.record_words import PERSONAL
from fedsim.invariants.evidence import Evidence, Ints, Unchecked
from fedsim.invariants.finding import Violation, invariant, wrong
from fedsim.worlds.interval_index import NEVER

_SPLITS = ("train", "valid", "test")


def evaluation_values(e: Evidence) -> Iterator[Violation]:
    """Clients and steps of evaluations exist, and counts of correct answers are within the samples."""
    evals = e.evals
    split = np.array([s + more for s in _SPLITS for more in ("", PERSONAL)])
    for name, mask in (
        ("step", (evals["step"] < 0) | (evals["step"] > len(e.steps) + (not e.ended))),
        ("client", (evals["client"] < 0) | (evals["client"] >= e.clients)),
        ("split", ~np.isin(evals["split"], split)),
        ("n", evals["n"] < 1),
        ("correct", (evals["correct"] < 0) | (evals["correct"] > evals["n"])),
    ):
        yield from wrong(
            "evals",
            mask,
            f"a {name} in its range",
            lambda i, v=name: f"{v} = {evals[v][i]} (correct {evals['correct'][i]}, n {evals['n'][i]})",  # type: ignore[misc]
        )


def accuracy_is_the_share_of_correct_answers(e: Evidence) -> Iterator[Violation]:
    """`accuracy` is `correct / n`."""
    evals = e.evals
    want = np.where(np.isnan(evals["loss"]), np.nan, evals["correct"] / evals["n"])
    yield from wrong(
        "evals",
        (evals["accuracy"] != want) & ~(np.isnan(evals["accuracy"]) & np.isnan(want)),
        lambda i: f"accuracy {want[i]}",
        lambda i: str(evals["accuracy"][i]),
    )


def _groups(e: Evidence) -> tuple[Ints, Ints]:
    """Return the first row of each evaluation on a split, and for each row the number of its evaluation."""
    evals = e.evals
    fresh = np.zeros(len(evals), dtype=bool)
    for name in ("step", "time_us", "split"):
        values = evals[name]
        fresh[1:] |= values[1:] != values[:-1]
    fresh[:1] = True
    return np.flatnonzero(fresh), np.cumsum(fresh) - 1


def a_client_is_evaluated_once(e: Evidence) -> Iterator[Violation]:
    """Each evaluation has one row per client, and a client has the same samples in all of them."""
    evals = e.evals
    _, number = _groups(e)
    cell = number * e.clients + evals["client"]
    again = np.ones(len(cell), dtype=bool)
    again[np.unique(cell, return_index=True)[1]] = False
    yield from wrong(
        "evals", again, "one row per client", lambda i: f"client {evals['client'][i]} again ({_where(e, i)})"
    )
    words = evals["split"]
    for split in _SPLITS:
        rows = np.flatnonzero((words == split) | (words == split + PERSONAL))
        size = np.full(e.clients, -1)
        size[evals["client"][rows][::-1]] = evals["n"][rows][::-1]
        other = np.zeros(len(evals), dtype=bool)
        other[rows] = evals["n"][rows] != size[evals["client"][rows]]
        if split == "train":
            had = np.full(e.clients, -1)
            had[e.jobs["client"]] = e.jobs["n_samples"]
            trained_on = had[evals["client"][rows]]
            other[rows] |= (trained_on >= 0) & (evals["n"][rows] != trained_on)
        yield from wrong(
            "evals",
            other,
            lambda i, s=size: f"{s[evals['client'][i]]} samples of client {evals['client'][i]}",  # type: ignore[misc]
            lambda i: str(evals["n"][i]),
        )


def _where(e: Evidence, row: int) -> str:
    return f"step {e.evals['step'][row]}, {e.evals['split'][row]}"


def evaluations_are_of_the_model_of_their_time(e: Evidence) -> Iterator[Violation]:
    """An evaluation is of the model after the last step before it."""
    e.need_closed()
    step, time = e.evals["step"], e.evals["time_us"]
    since = np.where(step > 0, e.step_us(np.maximum(step - 1, 0)), 0)
    since = np.where(since < NEVER, since, 0)  # a failed run may lack its last step
    until = e.step_us(step)
    yield from wrong(
        "evals",
        (time < since) | (time > until),
        lambda i: f"the model of step {step[i]} evaluated from {since[i]} to {until[i]} us",
        lambda i: f"{time[i]} us",
    )


def the_models_asked_for_are_evaluated(e: Evidence) -> Iterator[Violation]:
    """The first and the last model and those of every `every_steps` are evaluated, on the configured clients."""
    e.need_end()
    e.need_training()
    config, evals = e.config.evaluate, e.evals
    steps = np.unique(evals["step"][evals["split"] == config.split])
    if not len(steps):
        raise Unchecked(f"no client has samples in split {config.split!r}")
    every = config.every_steps
    want = {0, len(e.steps), *(range(0, len(e.steps) + 1, every) if every else ())}
    missing = sorted(step for step in want - set(steps.tolist()) if step > e.changed_at)
    if missing:
        yield Violation("evals", -1, f"an evaluation after step {missing[0]}", "none", len(missing) - 1)
    first, number = _groups(e)
    size = np.bincount(number, minlength=len(first))
    of_split = (evals["split"][first] == config.split) | (evals["split"][first] == config.split + PERSONAL)
    last = evals["step"][first] == len(e.steps)
    everybody = int(size[of_split & last].max(initial=0))
    most = everybody if config.clients is None else min(config.clients, everybody)
    bad = np.zeros(len(evals), dtype=bool)
    at_end = np.zeros(len(first), dtype=bool)
    at_end[np.flatnonzero(of_split & last)[-2:]] = True
    bad[first] = of_split & ~at_end & ((size != most) if config.clients is None else (size > most))
    yield from wrong(
        "evals",
        bad,
        lambda i: f"{most} clients evaluated ({_where(e, i)})",
        lambda i: str(size[number[i]]),
    )


INVARIANTS = (
    invariant(evaluation_values, basic=True),
    invariant(accuracy_is_the_share_of_correct_answers),
    invariant(a_client_is_evaluated_once),
    invariant(evaluations_are_of_the_model_of_their_time),
    invariant(the_models_asked_for_are_evaluated),
)
