"""How fast clients train on a GPU, by mode and cohort, and how long a server that remembers thousands takes for a step.

    python benchmarks/gpu.py                 # some ten minutes, and 60 GB of the GPU's memory
    python benchmarks/gpu.py --quick --device cpu        # few clients of two minibatches: does it run at all?

Two tables in Markdown, medians of wall time. Samples are noise of the works' shapes, so that no data set is needed, and
there is neither a clock nor records. "busy" is the share of the time
in which a kernel ran, by torch's profiler. The server's bound is the time to read the remembered rows twice, for inner
products and for the weighted sum, at the bandwidth of a copy measured beside it.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from statistics import median
from typing import Any, get_args

import numpy as np
import torch
from torch.profiler import ProfilerActivity, profile

from fedsim.common.errors import ConfigError
from fedsim.data.federated_data import FederatedData, Split
from fedsim.runs.resources import one_thread
from fedsim.server.history import GradientHistory
from fedsim.server.history_storage import HistoryPlan, Rung
from fedsim.server.rule import Needs
from fedsim.training.job import Cohort
from fedsim.training.settings import LocalSGD, Mode, WorkbenchSpec
from fedsim.training.workbench import Workbench
from rules import MODELS, heading, line, spans_of

CLIENTS, FRESH = 100, 100
MODES: tuple[Mode, ...] = get_args(Mode)


@dataclass(frozen=True)
class Work:
    """What each client trains."""

    model: str
    options: dict[str, Any]
    shape: tuple[int, ...]
    classes: int
    samples: int
    sgd: LocalSGD


WORKS = {
    "W1, MLP 0.2M": Work(
        "mlp", {"hidden": [200, 200]}, (1, 28, 28), 10, 600, LocalSGD(batch_size=50, lr=0.1)
    ),
    "W3, CNN 0.9M": Work(
        "cnn",
        {"channels": [64, 64], "hidden": [384, 192]},
        (3, 32, 32),
        10,
        500,
        LocalSGD(batch_size=50, lr=0.05),
    ),
    "FEMNIST, CNN 1.2M": Work(
        "cnn",
        {"channels": [32, 64], "kernel": 3, "padding": "valid", "pool": "last", "hidden": [128]},
        (1, 28, 28),
        62,
        200,
        LocalSGD(batch_size=20, lr=0.1),
    ),
}


def main() -> None:
    """Read the arguments and print the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--quick", action="store_true", help="few clients, few remembered rows")
    parser.add_argument("--seconds", type=float, default=3.0, help="time to repeat each measurement for")
    parser.add_argument("--remembered", type=int, default=10_000, help="rows that the server remembers")
    arguments = parser.parse_args()
    device = torch.device(arguments.device)
    if device.type == "cuda" and not torch.cuda.is_available():
        parser.error("torch sees no GPU here; --device cpu tries the benchmark itself")
    name = torch.cuda.get_device_name() if device.type == "cuda" else "the processor"
    print(f"On {name}, torch {torch.__version__}.")
    works, cohorts, remembered = WORKS, [10, 100, 1000], arguments.remembered
    if arguments.quick:
        works = {n: replace(w, samples=2 * (w.sgd.batch_size or 1)) for n, w in WORKS.items()}
        cohorts, remembered = [3], 20
    with one_thread():
        training_table(works, device, cohorts, arguments.seconds)
        server_table(device, remembered, arguments.seconds)


def training_table(works: dict[str, Work], device: torch.device, cohorts: list[int], seconds: float) -> None:
    """Print how many clients a second train, for each work, mode and cohort."""
    columns = [head for k in cohorts for head in (f"{k} clients", "busy")]
    heading("Client updates per second", "work", "mode", *columns)
    for name, work in works.items():
        data = noise(work)
        for mode in MODES:
            spec = WorkbenchSpec(
                work.model, work.options, work.shape, work.classes, work.sgd, 1, losses=False
            )
            try:
                made = Workbench(replace(spec, mode=mode, device=device.type), data)
            except ConfigError:  # a model that this mode does not know
                continue
            few = cohorts[:1] if mode == "loop" else cohorts  # one after another, many are as fast as few
            found = [rate(made, k, seconds) for k in few]
            cells = [cell for speed, busy in found for cell in (f"{speed:,.0f}", busy)]
            line(name, mode, *cells, *["–"] * (2 * len(cohorts) - len(cells)))


def noise(work: Work) -> FederatedData:
    """Draw samples for each of the clients."""
    draws, n = np.random.default_rng(0), CLIENTS * work.samples
    rows = Split(np.arange(n), np.arange(CLIENTS + 1) * work.samples)
    x = draws.standard_normal((n, *work.shape), dtype=np.float32)
    return FederatedData(x, draws.integers(0, work.classes, n), work.classes, rows, rows, rows)


def rate(made: Workbench, k: int, seconds: float) -> tuple[float, str]:
    """Return the updates per second of cohorts of k clients, and the share of the time that kernels take."""
    zeros, numbers = np.zeros(k, dtype=np.int64), np.arange(k)
    cohort = Cohort(numbers, numbers % CLIENTS, numbers // CLIENTS, zeros, np.ones(k), zeros)
    start = made.network.initial(0).to(made.device)
    rows = torch.empty(k, made.network.P, device=made.device)

    def train() -> None:
        made.train(cohort, [start] * k, rows)

    taken = timed(train, made.device, seconds)
    if made.device.type == "cpu":
        return k / taken, "–"
    with profile(activities=[ProfilerActivity.CUDA]) as profiled:
        train()
        torch.cuda.synchronize()
    on_gpu = (event for event in profiled.key_averages() if event.device_type.name == "CUDA")  # not the calls
    kernels_s = 1e-6 * sum(event.self_device_time_total for event in on_gpu)
    return k / taken, f"{kernels_s / taken:.0%}"


def timed(run: Callable[[], object], device: torch.device, seconds: float) -> float:
    """Return the median seconds of a call, after one that is not counted."""
    taken: list[float] = []
    while len(taken) < 2 or (sum(taken) < seconds and len(taken) < 50):
        before = time.perf_counter()
        run()
        if device.type == "cuda":
            torch.cuda.synchronize()
        taken.append(time.perf_counter() - before)
    return median(taken[1:])


def server_table(device: torch.device, remembered: int, seconds: float) -> None:
    """Print how long inner products and the weighted sum take beside so many remembered rows."""
    bytes_per_s = bandwidth(device)
    heading(
        f"{FRESH} new rows beside {remembered:,} remembered ones, P = 1.2M, milliseconds; "
        f"a copy moves {bytes_per_s / 1e9:,.0f} GB/s",
        *("rows", "size", "Gram", "weighted sum", "bound", "ratio"),
    )
    rungs: tuple[Rung, ...] = ("float32", "bfloat16")
    for rung in rungs:
        plan = HistoryPlan(FRESH, remembered, rung)
        history = filled(plan, device)
        gram_s, sum_s = step_times(history, device, seconds)
        size = plan.remembered_bytes(sum(MODELS["1.2M"]))
        bound = 2 * size / bytes_per_s
        ratio = f"{(gram_s + sum_s) / bound:.1f}"
        line(rung, f"{size / 1e9:.1f} GB", gram_s, sum_s, bound, ratio)
        del history


def bandwidth(device: torch.device) -> float:
    """Return the bytes per second that a copy reads and writes."""
    numbers = torch.ones(2**28 if device.type == "cuda" else 2**24, device=device)
    other = torch.empty_like(numbers)
    return 2 * numbers.nbytes / timed(lambda: other.copy_(numbers), device, 0.5)


def filled(plan: HistoryPlan, device: torch.device) -> GradientHistory:
    """Return a history that remembers a row of as many clients as it can."""
    history = GradientHistory(plan, spans_of(MODELS["1.2M"]), Needs("model", memory=math.inf), device)
    draws = torch.Generator(device).manual_seed(0)
    for step, first in enumerate(range(0, plan.remembered, FRESH)):
        clients = np.arange(first, min(first + FRESH, plan.remembered))
        remember(history, clients, step, draws)
    return history


def remember(history: GradientHistory, clients: Any, step: int, draws: torch.Generator) -> None:
    """Let clients send a row each, and make the inner products."""
    columns = sum(MODELS["1.2M"])
    rows = torch.randn(len(clients), columns, generator=draws, device=draws.device)
    present = history.add(rows, clients, step, {})
    history.grams_of(history.order(present))
    history.settle(present)


def step_times(history: GradientHistory, device: torch.device, seconds: float) -> tuple[float, float]:
    """Return the seconds for the inner products of new rows with all, and for the sum of all."""
    step, columns = history.plan.remembered, sum(MODELS["1.2M"])
    fresh = torch.randn(FRESH, columns, device=device)
    order = np.zeros(0, dtype=np.int64)

    def products() -> None:
        nonlocal step, order
        step += 1
        if len(order):
            history.settle(order[:FRESH])
        order = history.order(history.add(fresh, np.arange(FRESH), step, {}))
        history.grams_of(order)

    gram_s = timed(products, device, seconds)
    weights = np.full(len(order), 1 / len(order))
    return gram_s, timed(lambda: history.combine(order, weights), device, seconds)


if __name__ == "__main__":
    main()
