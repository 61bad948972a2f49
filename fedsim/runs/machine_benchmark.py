"""Measures this machine: client updates per second of small runs, by batching mode and number of workers."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any, get_args

from rich.table import Table

from fedsim.common import arguments
from fedsim.common.errors import RunError
from fedsim.config.load import parse
from fedsim.config.run import RunConfig
from fedsim.config.train import TrainSection
from fedsim.execution.actor_pool import workers_of
from fedsim.runs.resources import Device
from fedsim.runs.result import Progress
from fedsim.runs.simulate import simulate

_COHORT = {"softmax": 100, "mlp": 20}
"""Clients of a step, by work; `_WORKS` has what they train."""
_WORKS: dict[str, dict[str, Any]] = {
    "softmax": {
        "task": {"name": "synthetic", "clients": 200, "sizes": "fixed", "samples": 50},
        "model": {"name": "softmax"},
        "train": {"batch_size": 10, "lr": 0.01},
    },
    "mlp": {
        "task": {"name": "synthetic", "clients": 40, "sizes": "fixed", "samples": 250},
        "model": {"name": "mlp", "hidden": [200, 200]},
        "train": {"batch_size": 50, "lr": 0.05},
    },
}
_NEAR = 0.9
"""Fewer workers are preferred if they reach this share of the best rate."""


@dataclass(frozen=True, slots=True)
class Measured:
    """One cell of the benchmark."""

    work: str
    mode: str
    workers: int
    updates_per_s: float
    """NaN if no run made two steps."""


@dataclass(frozen=True, slots=True)
class Benchmark:
    """The measurements, and the advice that follows from them."""

    measured: tuple[Measured, ...]
    start_s: Mapping[int, float]
    """Seconds from the start of the first run to the end of its first step, by number of workers."""

    def best(self, work: str) -> Measured:
        """Return the best cell for such a model: the fewest workers with nearly the best rate, in their best mode."""
        cells = [m for m in self.measured if m.work == work and not math.isnan(m.updates_per_s)]
        if not cells:
            raise RunError(f"no two steps of work {work!r} in the time given: increase --seconds")
        enough = _NEAR * max(m.updates_per_s for m in cells)
        workers = min(m.workers for m in cells if m.updates_per_s >= enough)
        return max((m for m in cells if m.workers == workers), key=lambda m: m.updates_per_s)

    def advice(self) -> str:
        """Return one sentence: which mode and how many workers to use."""
        choices = {work: self.best(work) for work in dict.fromkeys(m.work for m in self.measured)}
        settings = {work: f'--workers {m.workers} and train.mode = "{m.mode}"' for work, m in choices.items()}
        if len(set(settings.values())) == 1:
            return f"Use {next(iter(settings.values()))}."
        return "Use " + ", ".join(f"{text} for models like {work}" for work, text in settings.items()) + "."

    def table(self) -> Table:
        """Return the rates for the terminal: a row for each work and mode, a column for each number of workers."""
        counts = sorted(self.start_s)
        table = Table(title="client updates per second", title_justify="left", box=None, padding=(0, 2, 0, 0))
        table.add_column("work")
        table.add_column("mode")
        for workers in counts:
            table.add_column(_column(workers), justify="right")
        rates = {(m.work, m.mode, m.workers): m.updates_per_s for m in self.measured}
        for work, mode in dict.fromkeys((m.work, m.mode) for m in self.measured):
            table.add_row(work, mode, *(_shown(rates[work, mode, w]) for w in counts))
        table.add_row("start and first step, s", "", *(f"{self.start_s[w]:.1f}" for w in counts))
        return table

    def plain(self) -> dict[str, Any]:
        """Return everything as plain values; a rate that could not be measured is None."""
        cells = [asdict(m) for m in self.measured]
        for cell in cells:
            cell["updates_per_s"] = None if math.isnan(rate := cell["updates_per_s"]) else round(rate, 1)
        return {
            "updates": cells,
            "start_s": {str(workers): round(s, 2) for workers, s in sorted(self.start_s.items())},
            "use": {work: asdict(self.best(work)) for work in dict.fromkeys(m.work for m in self.measured)},
            "advice": self.advice(),
        }


@dataclass(slots=True)
class _Laps:
    """Records when the steps of each run ended."""

    steps: dict[str, list[tuple[float, int]]] = field(default_factory=dict)
    first: float = math.nan

    def __call__(self, progress: Progress) -> None:
        now = perf_counter()
        self.first = now if math.isnan(self.first) else self.first
        self.steps.setdefault(progress.spec.config.name, []).append((now, progress.run_state.step))

    def rate(self, names: Sequence[str]) -> float:
        """Return the steps per second of these runs together, without the first step of each; NaN if none has two."""
        laps = [self.steps[name] for name in names if name in self.steps]
        seconds = sum(each[-1][0] - each[0][0] for each in laps)
        return sum(each[-1][1] - each[0][1] for each in laps) / seconds if seconds else math.nan


def modes() -> tuple[str, ...]:
    """Return the batching modes of `[train] mode`, without `auto`, which picks one of the others."""
    names: tuple[str, ...] = get_args(TrainSection.model_fields["mode"].annotation)
    return tuple(mode for mode in names if mode != "auto")


def worker_counts(cores: int) -> list[int]:
    """Return the numbers of workers to try, the most informative first: 0, one per core, then 1, 2, 4, ..."""
    between = [2**i for i in range(cores.bit_length()) if 2**i < cores]
    return [0, cores, *between]


@arguments.checked
def bench(
    *,
    workers: Sequence[int] | None = None,
    works: Sequence[str] = tuple(_WORKS),
    device: Device = "auto",
    seconds: float = 0.5,
    repeats: int = 2,
    limit_s: float = 45.0,
    tell: Callable[[str], None] = lambda text: None,
) -> Benchmark:
    """Measure small runs on this machine: each work in each mode, with each number of workers.

    Args:
        workers: numbers of client actors to try, 0 for none; by default `worker_counts` of the cores, within `limit_s`.
        device: where to compute; "auto" uses a GPU if the machine has one.
        seconds: wall time of each run; it is run `repeats` times, in turn with the others.
        limit_s: wall time after which no further default number of workers is tried; the first two always are.
        tell: called with the name of each measurement before it starts.

    `Benchmark.best` raises RunError if no run made two steps.
    """
    counts = worker_counts(workers_of("auto")) if workers is None else list(workers)
    measured: list[Measured] = []
    start_s: dict[int, float] = {}
    started = before = perf_counter()
    for i, count in enumerate(counts):
        now = perf_counter()
        if workers is None and i >= 2 and now - started + (now - before) > limit_s:
            break
        before = now
        tell(_column(count))
        cells, start_s[count] = _measure(works, count, device, seconds, repeats)
        measured += cells
    return Benchmark(tuple(sorted(measured, key=lambda m: m.workers)), start_s)


def _measure(
    works: Sequence[str], workers: int, device: Device, seconds: float, repeats: int
) -> tuple[list[Measured], float]:
    """Measure with one number of workers, which all runs share; also returns the seconds until the first step ended.

    Each cell first makes a run of two steps, which loads libraries and warms up caches.
    """
    cells = [(work, mode) for work in works for mode in modes()]
    laps, started = _Laps(), perf_counter()
    configs = [_config(*cell, "warm", {"steps": 2}) for cell in cells]
    stop = {"wall": f"{seconds}s"}
    configs += [_config(*cell, str(repeat), stop) for repeat in range(repeats) for cell in cells]
    with TemporaryDirectory(prefix="fedsim-bench-") as folder:
        results = simulate(configs, out=folder, workers=workers, device=device, watch=laps)
    if results[-1].status == "interrupted":
        raise KeyboardInterrupt
    names = {cell: [_name(*cell, str(repeat)) for repeat in range(repeats)] for cell in cells}
    rates = {cell: _COHORT[cell[0]] * laps.rate(names[cell]) for cell in cells}
    return [Measured(*cell, workers, rate) for cell, rate in rates.items()], laps.first - started


def _config(work: str, mode: str, part: str, stop: Mapping[str, Any]) -> RunConfig:
    base = _WORKS[work]
    raw = base | {
        "name": _name(work, mode, part),
        "train": base["train"] | {"mode": mode},
        "pacing": {"preset": "sync", "clients": _COHORT[work]},
        "evaluate": {"every_steps": 0},
        "stop": stop,
    }
    return parse(raw, "bench", raw["name"])[0]


def _name(work: str, mode: str, part: str) -> str:
    return f"{work}-{mode}-{part}"


def _column(workers: int) -> str:
    return "inline" if workers == 0 else f"{workers} worker" + "s" * (workers > 1)


def _shown(rate: float) -> str:
    return "–" if math.isnan(rate) else f"{rate:,.0f}"
