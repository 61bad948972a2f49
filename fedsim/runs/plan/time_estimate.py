"""Estimates a run's wall time on this machine from short trials of its parts.

The cost of a server step grows with the number of remembered updates. Inner products and sums grow in proportion to
their number and length; the solver of a rule grows faster. The module measures both in small trials: products and sums
with few long updates, solving with many short ones.

Of several trials the fastest counts, because other load on the machine only makes them slower.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedsim.common.arrays import Ints
from fedsim.common.threads import at_most, gain
from fedsim.data.federated_data import UNSEEN, Unseen
from fedsim.runs.spec import RunSpec
from fedsim.server.gram import WORTH
from fedsim.server.server import Server, sent_with
from fedsim.server.spec import ServerSpec
from fedsim.server.step_input import StepInput
from fedsim.training.evaluation import EVAL_ROWS
from fedsim.training.job import Cohort, Report, Reports
from fedsim.training.threaded_workbench import ThreadedWorkbench
from fedsim.training.workbench import Workbench

_MEASURED_S, _OFTEN_S, _OFTEN = 0.03, 0.1, 7
"""Minimum measuring time per part; repeated until `_OFTEN` trials or `_OFTEN_S` seconds."""
_SIDE_BY_SIDE = 16
"""Most clients that a trial trains."""
_BATCHES, _SAMPLES = 8, 256
"""Most batches in a trial of an evaluation, and most samples in the short trial before it."""
_LONG_S, _LONG_CLIENTS, _LONG_STEPS = 1.0, 4, 3
"""Longer trials run once, with at most `_LONG_CLIENTS` clients, of 1 and of `_LONG_STEPS` minibatches."""
_LONG, _FEW = 2**15, 64
"""Most columns of an update, and most remembered updates, in a trial of products and sums."""
_SHORT, _MANY = 2**10, 1000
"""Most columns and most remembered updates in a trial of solving."""
_GROWTH = (1.0, 3.0)
"""Bounds of the power of the number of updates with which solving time grows."""


def wall_s(
    spec: RunSpec, passes: float, evaluated: int, remembered: Ints, workers: int, adapted: int = 0
) -> float:
    """Predict the wall time of a run's loop in seconds.

    Args:
        passes: passes over a training sample, all jobs together.
        evaluated: samples of all evaluations together, and of the losses that a selector asks for.
        remembered: [S] remembered updates of absent clients at each server step.
        workers: they share training and evaluation, not server steps; of them, no more train at once than jobs are in
            flight. 0 for this process alone.
        adapted: how often an unseen client adapts the model, all evaluations together.
    """
    bench = Workbench(spec.bench, spec.data) if workers else spec.workbench()
    start, split = spec.initial(), spec.plan.evaluate.split
    rows = len(bench.splits[split].indices)
    few, tried = min(rows, _SAMPLES), min(rows, _BATCHES * EVAL_ROWS)
    each_s = _ready_s(lambda: bench.evaluate(start, split, 0, few)) / max(few, 1)
    if each_s * tried <= _LONG_S:
        each_s = _seconds(lambda: bench.evaluate(start, split, 0, tried)) / max(tried, 1)
    training = min(max(workers, 1), spec.plan.pacing.concurrency)
    shared_s = evaluated * each_s
    if adapted and spec.data.unseen is not None:
        shared_s += adapted * _adapt_s(spec.data.unseen, bench, start)
    clients_s = passes * _pass_s(spec, bench, start) / training + shared_s / max(workers, 1)
    return clients_s + float(_steps_s(spec, remembered).sum())


def _pass_s(spec: RunSpec, bench: Workbench | ThreadedWorkbench, start: torch.Tensor) -> float:
    """Return the seconds of one training pass over a sample, measured on clients of median size side by side."""
    sizes, sgd = spec.data.train.sizes, spec.bench.sgd
    sent = sent_with(start, {}, spec.server.algorithm().sends)
    steps = sgd.epochs * -(-sizes // (sgd.batch_size or np.maximum(sizes, 1)))
    order = np.argsort(sizes, kind="stable")

    def trained(
        bench: Workbench | ThreadedWorkbench, k: int, most: int | None = None
    ) -> tuple[Callable[[], Any], Ints]:
        """Return a call that trains k clients, each on `most` minibatches or all, and the clients."""
        first = (len(sizes) - k) // 2
        clients, still, number = order[first : first + k], np.zeros(k, dtype=np.int64), np.arange(k)
        shares = np.ones(k) if most is None else np.minimum(most / np.maximum(steps[clients], 1), 1.0)
        cohort, rows = Cohort(number, clients, still, still, shares, number), torch.empty(k, bench.columns)
        return lambda: bench.train(cohort, [sent] * k, rows), clients

    k = min(spec.plan.pacing.most_updates, len(sizes), _SIDE_BY_SIDE)
    alone, (client,) = trained(bench, 1, 1)
    if _ready_s(alone) * float(steps[client]) * k <= _LONG_S:
        work, clients = trained(bench, k)
        taken = _seconds(work)
    else:
        one_batch, clients = trained(bench, min(k, _LONG_CLIENTS), 1)
        taken, whole = _ready_s(one_batch), int(steps[clients].sum())
        further = int(np.minimum(steps[clients], _LONG_STEPS).sum()) - len(clients)
        if further:
            training = _without_losses(spec, bench)
            least_s = taken if training is bench else _ready_s(trained(training, len(clients), 1)[0])
            more_s = _ready_s(trained(training, len(clients), _LONG_STEPS)[0]) - least_s
            taken += max(more_s, 0.0) * (whole - len(clients)) / further
    return taken / max(float(sizes[clients].sum()) * spec.bench.method().passes(sgd.epochs), 1.0)


def _adapt_s(unseen: Unseen, bench: Workbench | ThreadedWorkbench, start: torch.Tensor) -> float:
    """Return the seconds in which an unseen client of median size adapts the model."""
    order = np.argsort(unseen.train.sizes, kind="stable")[-len(unseen.numbers) :]
    client = int(order[len(order) // 2])
    return _ready_s(lambda: bench.evaluate_personal(start, [None], UNSEEN, client))


def _without_losses(spec: RunSpec, bench: Workbench | ThreadedWorkbench) -> Workbench | ThreadedWorkbench:
    """Return a workbench that evaluates no losses, whose time may hide that of a minibatch."""
    if not (spec.bench.losses or spec.bench.after):
        return bench
    return type(bench)(replace(spec.bench, losses=False, after=False), spec.data)


def _steps_s(spec: RunSpec, remembered: Ints) -> NDArray[np.float64]:
    """Return the seconds [S] of each server step."""
    server = replace(spec.server, device="cpu")
    m = min(spec.plan.pacing.most_updates, spec.data.n_clients)
    short, long = _cut(server, _SHORT), _cut(server, _LONG)
    columns, tried = server.blocks[-1][1], long.blocks[-1][1]
    solve_s, sum_s = _step_s(short, m, 0), _step_s(long, m, 0)
    alone_s = solve_s + max(sum_s - solve_s, 0.0) * columns / tried
    most = int(remembered.max(initial=0))
    if not most:
        return np.full(len(remembered), alone_s)
    few = min(most, _FEW)
    each_s = max(_step_s(long, m, few) - sum_s, 0.0) / few * columns / tried
    if m * most * columns >= WORTH:
        each_s /= gain()
    return alone_s + each_s * remembered + _solving_s(short, m, most, solve_s)(remembered)


def _cut(spec: ServerSpec, columns: int) -> ServerSpec:
    """Return the same server for a model of at most `columns` parameters, its layers cut in proportion."""
    share = min(columns / spec.blocks[-1][1], 1.0)
    sizes = [max(round((b - a) * share), 1) for a, b in spec.blocks]
    return replace(spec, blocks=list(pairwise(accumulate(sizes, initial=0))))


def _solving_s(short: ServerSpec, m: int, most: int, alone_s: float) -> Callable[[Ints], NDArray[np.float64]]:
    """Return a function from numbers of remembered updates to the extra seconds of solving with them."""
    many = min(most, _MANY)
    more_s = max(_step_s(short, m, many) - alone_s, 0.0)
    half_s = max(_step_s(short, m, max(many // 2, 1)) - alone_s, 0.0)
    power = float(np.clip(math.log2(more_s / half_s), *_GROWTH)) if more_s and half_s else _GROWTH[0]
    return lambda rows: more_s * (rows / many) ** power


def _step_s(spec: ServerSpec, m: int, remembered: int) -> float:
    """Return the seconds of a server step with `m` new updates and `remembered` ones of other clients."""
    n = m + remembered
    plan = None if spec.history is None else replace(spec.history, present=m, remembered=n)
    columns = spec.blocks[-1][1]
    server = Server(
        replace(spec, n_clients=n, most_updates=m, history=plan, updates=None, norms=False, memory_us=0),
        torch.zeros(columns),
    )
    draws = torch.Generator().manual_seed(0)
    common = torch.randn(columns, generator=draws)
    for first in range(m, n, m):  # adding to the history takes no step, so nothing is solved
        before = _arrivals(np.arange(first, min(first + m, n)))
        absent = 1e-3 * (common + torch.randn(before.m, columns, generator=draws))
        server.history.settle(server.history.add(absent, before.clients, before.step, before.notes()))
        server.participations[before.clients] = 1
    rows = 1e-3 * (common + torch.randn(m, columns, generator=draws))
    beside = torch.zeros(m, columns * len(server.algorithm.receives))
    rows = torch.cat([rows, beside], dim=1)
    present = _arrivals(np.arange(m))
    with at_most(1):  # threads would wait more than work on so little
        return _seconds(lambda: server.step(present, rows))


def _arrivals(clients: Ints) -> StepInput:
    """Return a step's input with one update of each client, all of step 0, so that none is too old for the history."""
    k = len(clients)
    losses = Report(1.0, 1.0, 1.0, 1.0, loss_after=0.5, accuracy_after=0.5)
    reports = Reports.of([losses] * k)
    none, one = np.zeros(k, dtype=np.int64), np.ones(k, dtype=np.int64)
    return StepInput(0, clients, none, one, clients, reports, local_steps=one)


def _once(work: Callable[[], Any]) -> float:
    """Return the seconds of one call."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def _ready_s(work: Callable[[], Any]) -> float:
    """Return the seconds of a call; a short call is repeated, because the first may have to warm up."""
    taken = _once(work)
    return taken if taken > _LONG_S else min(taken, _once(work))


def _seconds(work: Callable[[], Any]) -> float:
    """Return the least seconds of several calls, after one to warm up."""
    work()
    taken: list[float] = []
    while sum(taken) < (_MEASURED_S if len(taken) >= _OFTEN else _OFTEN_S):
        taken.append(_once(work))
    return min(taken)
