"""How long a server step takes, by rule, against naive code and against the machine's memory bandwidth.

    python benchmarks/rules.py             # some ten minutes; sizes that do not fit into memory are left out
    python benchmarks/rules.py --quick     # without m = 1000 rows and P = 11M parameters: two minutes
    python benchmarks/rules.py --columns   # rules that combine column by column alone: two minutes, 5 GB of memory

Six tables in Markdown. Times are medians of processor time, on one thread. "bound" is what the machine can do at best,
at the bandwidth and the rate of float32 products measured beside each row: for the weighted sum the time to read the
rows and to fill a new vector; for inner products, where the rule needs them, that to read the rows or that of their
2 m m P operations, whichever is longer. Many rows can be faster, as half of the inner products follow from symmetry.
For rules that combine column by column it is the time to read the rows and to fill a new vector; their memory is what
the process takes for a step beside the rows.
"""

from __future__ import annotations

import argparse
import ctypes
import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any, TypeVar

import numpy as np
import psutil
import torch
from threadpoolctl import threadpool_limits

from fedsim.common.threads import at_most
from fedsim.server.columns import Chosen, combine_columns
from fedsim.server.combine import combine
from fedsim.server.gram import Blocks, block_products, weighted_sum
from fedsim.server.history import GradientHistory
from fedsim.server.rule import Stack
from fedsim.server.rule_factory import build_rule

MODELS = {
    "0.2M": [157_000, 40_200, 2_010],  # MLP 784-200-200-10
    "1.2M": [320, 18_496, 1_179_776, 7_998],  # CNN of FEMNIST
    "11M": [1_000_000] * 11,
}
Result = TypeVar("Result")
Timed = tuple[tuple[float, float, float], torch.Tensor]
"""Seconds for inner products, for the rule and for the weighted sum, and the direction [P]."""
Grams = dict[str, tuple[float, Any]]
"""Inner products of the same rows by level, with the seconds they took."""
RULES = ("fedavg", "fedmgda_plus", "fedfv", "fedmdfg", "fedlf")
OF_COLUMNS = ("coordinate_median", "trimmed_mean")


def main() -> None:
    """Read the arguments and print the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="without m = 1000 and P = 11M")
    parser.add_argument("--columns", action="store_true", help="rules that combine column by column alone")
    parser.add_argument("--seconds", type=float, default=0.5, help="time to repeat each measurement for")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    build_rule("fedlf", {})  # libraries loaded after the limit would not obey it
    with threadpool_limits(1), at_most(1):
        tables(arguments)


def tables(arguments: argparse.Namespace) -> None:
    """Print the tables."""
    models = ["0.2M", "1.2M"] if arguments.quick else list(MODELS)
    cohorts = [10, 100] if arguments.quick else [10, 100, 1000]
    clock, machine = Clock(arguments.seconds), Machine.measured()
    pairs = [(model, m) for model in models[:2] for m in cohorts]
    print(
        f"Memory bandwidth {machine.bytes_per_s / 1e9:.1f} GB/s, float32 products "
        f"{machine.flops / 1e9:.0f} GFLOP/s, torch {torch.__version__}, one thread."
    )
    columns_table(clock, pairs)
    if arguments.columns:
        return
    worst = step_table(clock, models, cohorts)
    fedfv = fedfv_table(clock, [("0.2M", 10), ("0.2M", 100), ("1.2M", 10), ("1.2M", 100)])
    history_table(clock, "0.2M", remembered=100, fresh=10)
    fedlf = history_table(clock, "0.2M", remembered=1000, fresh=10)
    heading("Targets", "what", "target", "measured")
    line("FedFV, m = 100, P = 1.2M: times faster than pseudo-code", "at least 20", f"{fedfv:.0f}")
    line("FedLF, 1,000 remembered rows: times faster than anew with cvxpy", "at least 20", f"{fedlf:.0f}")
    line("(Gram + combine) / bound, the worst row", "at most 2", f"{worst:.1f}")


@dataclass(frozen=True)
class Clock:
    """Measures processor time: on a machine that others use too, time spent waiting for a core does not count."""

    seconds: float

    def time(self, run: Callable[[], Result], at_least: int = 1) -> tuple[float, Result]:
        """Return the median seconds of a call and its result; repeats for `seconds`, at most 20 times."""
        taken: list[float] = []
        while len(taken) < at_least or (sum(taken) < self.seconds and len(taken) < 20):
            start = time.process_time()
            result = run()
            taken.append(time.process_time() - start)
        return median(taken), result


@dataclass(frozen=True)
class Machine:
    """What one thread could do at best, now."""

    bytes_per_s: float
    """Memory that it reads, by the faster of two ways."""
    flops: float
    """Multiplications and additions in the product of two large square matrices of float32 numbers."""

    @classmethod
    def measured(cls) -> Machine:
        """Measure, in a fraction of a second."""
        clock, n = Clock(0.0), 1024
        numbers, ones, square = torch.ones(64, 1_000_000), torch.ones(64), torch.ones(n, n)
        read_s = min(clock.time(read, 5)[0] for read in (numbers.sum, partial(torch.mv, numbers.T, ones)))
        return cls(
            4 * numbers.numel() / read_s, 2 * n**3 / clock.time(partial(torch.mm, square, square), 5)[0]
        )

    def bound(self, n_rows: int, n_parameters: int, n_new: int) -> float:
        """Return the least seconds for inner products of `n_new` with all rows and for a weighted sum of all."""
        read = 4 * n_rows * n_parameters / self.bytes_per_s
        multiply = 2 * n_new * n_rows * n_parameters / self.flops
        write, _ = Clock(0.0).time(lambda: torch.empty(n_parameters).fill_(1.0), 5)
        return read + write + (max(read, multiply) if n_new else 0.0)


def rows_of(n: int, n_parameters: int, seed: int = 0) -> torch.Tensor:
    """Draw updates that share a direction, so that about half the pairs conflict."""
    noise = torch.Generator().manual_seed(seed)
    rows = torch.randn(n, n_parameters, generator=noise)
    return rows.add_(torch.randn(n_parameters, generator=noise), alpha=0.02)


def spans_of(sizes: list[int]) -> Blocks:
    """Return the column ranges of blocks of these sizes."""
    ends = np.cumsum(sizes).tolist()
    return list(zip([0, *ends[:-1]], ends, strict=True))


def stack_of(grams: Any, n: int, m: int) -> Stack:
    """Return a stack of clients 0 to n - 1, the last n - m of them remembered from the step before."""
    numbers = np.arange(n)
    ages = (numbers >= m).astype(np.int64)
    ones = np.ones(n, np.int64)
    losses = 0.5 + np.random.default_rng(1).permutation(n) / n
    population: dict[str, Any] = {"step": 9, "n_clients": n, "total_samples": 50 * n, "n_seen": n}
    online = ages == 0
    return Stack(grams, losses, m, numbers, 50 * ones, ages, 0 * ones, ones, online, **population)


def line(*cells: object) -> None:
    """Print a row of a table; numbers of seconds as milliseconds."""
    print("| " + " | ".join(f"{1e3 * c:.2f}" if isinstance(c, float) else str(c) for c in cells) + " |")


def heading(title: str, *columns: str) -> None:
    """Print the head of a table."""
    print(f"\n### {title}\n")
    line(*columns)
    line(*["---"] * len(columns))


def step_table(clock: Clock, models: list[str], cohorts: list[int]) -> float:
    """Print how a step divides into inner products, solving and combining; returns the worst ratio to the bound."""
    columns = ("P", "m", "rule", "Gram", "solve", "combine", "bound", "(Gram + combine) / bound")
    heading("One step, milliseconds", *columns)
    worst = 0.0
    for model in models:
        for m in cohorts:
            n_parameters = sum(MODELS[model])
            if left_out(model, m):
                continue
            rows, grams = rows_of(m, n_parameters), Grams()
            for rule in RULES:
                gram_s, solve_s, combine_s = step_times(clock, rule, rows, MODELS[model], grams)
                bound = Machine.measured().bound(m, n_parameters, m if gram_s else 0)
                ratio = (gram_s + combine_s) / bound
                worst = max(worst, ratio)
                line(model, m, rule, gram_s, solve_s, combine_s, bound, f"{ratio:.1f}")
    return worst


def step_times(
    clock: Clock, rule: str, rows: torch.Tensor, sizes: list[int], known: Grams
) -> tuple[float, float, float]:
    """Return the seconds for inner products, for the rule, and for the weighted sum."""
    algorithm = build_rule(rule, {})
    spans, level, m = spans_of(sizes), algorithm.needs.gram, len(rows)
    if level not in known:
        wanted = {"none": [], "model": [(0, sum(sizes))], "blocks": spans}[level]
        known[level] = (
            clock.time(lambda: block_products(rows, rows, wanted)) if wanted else (0.0, np.zeros((0, m, m)))
        )
    gram_s, grams = known[level]
    stack = stack_of(grams, m, m)
    solve_s, (direction, _) = clock.time(lambda: algorithm.weigh(stack, algorithm.init()))
    return gram_s, solve_s, clock.time(lambda: weighted_sum(rows, direction.weights, spans))[0]


def left_out(model: str, m: int) -> bool:
    """Return whether twice the rows would not fit into memory; the table then has a line that says so."""
    n_parameters, free = sum(MODELS[model]), psutil.virtual_memory().available
    if 2 * 4 * m * n_parameters <= free:
        return False
    line(model, m, f"left out: {4e-9 * m * n_parameters:.0f} GB of rows, {1e-9 * free:.0f} GB free")
    return True


def columns_table(clock: Clock, pairs: list[tuple[str, int]]) -> None:
    """Print how long medians and trimmed means take, against reading the rows once, and their memory."""
    columns = (
        "P",
        "m",
        "rule",
        "combine",
        "bound",
        "combine / bound",
        "ns per number",
        "memory, MiB",
        "rows, MiB",
    )
    heading("Column by column, milliseconds", *columns)
    for model, m in pairs:
        if left_out(model, m):
            continue
        rows = rows_of(m, sum(MODELS[model]))
        for rule in OF_COLUMNS:
            combine_s, taken = column_step(clock, rule, rows)
            bound = Machine.measured().bound(m, rows.shape[1], 0)
            numbers = (f"{combine_s / bound:.0f}", f"{1e9 * combine_s / rows.numel():.1f}")
            line(
                model,
                m,
                rule,
                combine_s,
                bound,
                *numbers,
                f"{taken / 2**20:.0f}",
                f"{4 * rows.numel() / 2**20:,.0f}",
            )


def column_step(clock: Clock, rule: str, rows: torch.Tensor) -> tuple[float, int]:
    """Return the seconds of a step by a rule of columns, and the bytes that it takes beside the rows."""
    columns = build_rule(rule, {}).columns
    assert columns is not None
    chosen = [Chosen.of(rows, np.ones(len(rows)))]

    def step() -> torch.Tensor:
        return combine_columns(chosen, columns, rows.new_empty(rows.shape[1]))

    return clock.time(step)[0], peak_of(step)


def peak_of(run: Callable[[], object]) -> int:
    """Return how much the memory of this process grows during a call, looked at a thousand times a second."""
    process, ended = psutil.Process(), threading.Event()
    if trim := getattr(ctypes.CDLL(None), "malloc_trim", None):
        trim(0)  # memory that was freed before, and kept, would hide the growth
    before = most = process.memory_info().rss

    def look() -> None:
        nonlocal most
        while not ended.wait(0.001):
            most = max(most, process.memory_info().rss)

    looking = threading.Thread(target=look)
    looking.start()
    try:
        run()
    finally:
        ended.set()
        looking.join()
    return max(most, process.memory_info().rss) - before


def fedfv_table(clock: Clock, pairs: list[tuple[str, int]]) -> float:
    """Print FedFV on coefficients against its pseudo-code on full vectors; returns the last ratio."""
    heading("FedFV, milliseconds", "P", "m", "pseudo-code on vectors", "this package", "ratio")
    for model, m in pairs:
        rows = rows_of(m, sum(MODELS[model]))
        losses = stack_of(np.zeros((0, m, m)), m, m).losses
        ours = combine("fedfv", rows, losses=losses, options={"alpha": 0.1, "tau": 0}).direction
        slow, naive = clock.time(partial(fedfv_on_vectors, rows, losses.tolist(), alpha=0.1))
        assert torch.linalg.norm(ours - naive) <= 1e-3 * torch.linalg.norm(naive)
        fast = sum(step_times(clock, "fedfv", rows, MODELS[model], Grams()))
        line(model, m, slow, fast, f"{slow / fast:.0f}")
    return slow / fast


def fedfv_on_vectors(rows: torch.Tensor, losses: list[float], alpha: float) -> torch.Tensor:
    """Return FedFV's direction by Algorithms 1 and 2 as they are written, one vector at a time."""
    m = len(rows)
    order = sorted(range(m), key=losses.__getitem__)
    kept = set(order[m - (m - math.ceil((m - 1) * (1 - alpha))) :])
    squares = [float(row @ row) for row in rows]
    total = torch.zeros(rows.shape[1])
    for i in range(m):
        projected = rows[i].clone()
        for j in order if i not in kept else ():
            inner = float(projected @ rows[j])
            if j != i and inner < 0:
                projected -= inner / squares[j] * rows[j]
        total += projected / m
    return total.mul(float(rows.mean(dim=0).norm() / total.norm()))


def history_table(clock: Clock, model: str, remembered: int, fresh: int) -> float:
    """Print FedLF with absent clients, a Gram matrix kept up to date against one computed anew; returns the ratio."""
    heading(
        f"FedLF, P = {model}, {fresh} new rows and {remembered} remembered ones, milliseconds",
        *("", "Gram", "solve", "combine", "total", "ratio", "(Gram + combine) / bound"),
    )
    kept, ours = incremental(clock, model, remembered, fresh)
    bound = Machine.measured().bound(remembered + fresh, sum(MODELS[model]), fresh)
    anew, reference = from_scratch(clock, model, remembered, fresh)
    assert torch.linalg.norm(ours - reference) <= 1e-2 * torch.linalg.norm(reference)
    ratio = sum(anew) / sum(kept)
    line("Gram anew and cvxpy", *anew, sum(anew), f"{ratio:.0f}", "")
    line("incremental and direct", *kept, sum(kept), "1", f"{(kept[0] + kept[2]) / bound:.1f}")
    return ratio


def incremental(clock: Clock, model: str, remembered: int, fresh: int) -> Timed:
    """Time one step on a filled history: the same clients come back each time."""
    sizes, n = MODELS[model], remembered + fresh
    algorithm = build_rule("fedlf", {"absent": "all"})
    history = GradientHistory(n + fresh, spans_of(sizes), algorithm.needs, torch.device("cpu"))
    rows = rows_of(n, sum(sizes))
    slots = history.add(list(rows), np.arange(n), 0, {})
    history.settle(slots)
    step = 0

    def add() -> np.ndarray[Any, Any]:
        nonlocal step
        step += 1
        present = history.add(list(rows[:fresh]), np.arange(fresh), step, {})
        return history.order(present)

    def add_and_read() -> tuple[Any, Any]:
        order = add()
        return order, history.grams_of(order)

    gram_s, (order, grams) = clock.time(add_and_read)
    stack = stack_of(grams, n, fresh)
    solve_s, (direction, _) = clock.time(lambda: algorithm.weigh(stack, {}))
    combine_s, vector = clock.time(lambda: history.combine(order, direction.weights))
    return (gram_s, solve_s, combine_s), vector


def from_scratch(clock: Clock, model: str, remembered: int, fresh: int) -> Timed:
    """Time the same step without a history, with the interior-point solver."""
    sizes, n = MODELS[model], remembered + fresh
    spans = spans_of(sizes)
    algorithm = build_rule("fedlf", {"absent": "all", "solver": "cvxpy"})
    rows = rows_of(n, sum(sizes))
    gram_s, grams = clock.time(lambda: block_products(rows, rows, spans))
    stack = stack_of(grams, n, fresh)
    solve_s, (direction, _) = clock.time(lambda: algorithm.weigh(stack, {}))
    combine_s, vector = clock.time(lambda: weighted_sum(rows, direction.weights, spans))
    return (gram_s, solve_s, combine_s), vector


if __name__ == "__main__":
    main()
