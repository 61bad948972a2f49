"""Plans a run without training: its event loop runs exactly, its wall time and memory are estimated."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from rich.table import Table

from fedsim import plugins
from fedsim.common import arguments
from fedsim.common.errors import ConfigError
from fedsim.common.machine import cores
from fedsim.common.paths import as_path
from fedsim.common.terminal import facts_table
from fedsim.common.units import show_bytes, show_estimate, show_us
from fedsim.config.given import Given, GivenTask, ModelFactory
from fedsim.config.load import Sets
from fedsim.config.run import RunConfig
from fedsim.data.federated_data import UNSEEN, FederatedData
from fedsim.engine.event_loop import EventLoop
from fedsim.engine.state import RunState
from fedsim.execution.actor_pool import workers_of
from fedsim.records.plan_folder import begin, finish
from fedsim.runs.build import prepare
from fedsim.runs.inputs import InputCache
from fedsim.runs.plan.event_counts import CountingTrainer, Tally
from fedsim.runs.plan.time_estimate import wall_s
from fedsim.runs.resources import one_thread
from fedsim.runs.simulate import refuse_fork
from fedsim.runs.spec import RunSpec


@dataclass(frozen=True, slots=True)
class PlannedRun:
    """The events of a run that was planned, and the estimates of its wall time and memory."""

    name: str
    ended_by: str
    steps: int
    virtual_us: int
    jobs: dict[str, int]
    """By status."""
    clients: int
    """Clients that may get jobs."""
    unseen: int
    """Clients that never get a job."""
    chosen: int
    """Clients that got a job."""
    samples: dict[str, int]
    """Samples of the task: `train`, `valid` and `test`, those of clients that may get jobs, and all others, `other`."""
    label_counts: np.ndarray = field(repr=False)
    """[K, classes] training samples of each client by label."""
    received: np.ndarray = field(repr=False)
    """[K] updates that arrived from each client."""
    staleness: np.ndarray = field(repr=False)
    """Server steps between start and use, of each update that a step used."""
    step_us: np.ndarray = field(repr=False)
    """Virtual time of each step."""
    waits: int
    moved_bytes: int
    passes: float
    """Passes over a training sample that the run computes, all jobs together."""
    audited: float
    """Further passes of the run's audits."""
    evaluations: int
    measured: int
    """Accuracies of clients in all evaluations together."""
    exact: str
    """Why the event loop might differ from the run's; empty if it cannot."""
    wall_s: float
    """Estimated seconds of the run."""
    memory_bytes: dict[str, int]
    planned_s: float
    """Seconds that the plan itself took."""
    outlives: str = ""
    """A warning if the run is longer than its world; else empty."""
    unused: tuple[str, ...] = ()
    """Warnings about what the run does not use of its world."""


@arguments.checked
def plan(
    configs: Any,
    *,
    sets: Sets = (),
    task: GivenTask = None,
    model: ModelFactory | None = None,
    workers: int | Literal["auto"] = "auto",
    out: Path | str | None = None,
    force: bool = False,
) -> list[PlannedRun]:
    """Run the event loops of configurations without training, and estimate the real runs' wall time and memory.

    Arguments are as for `simulate`. Clients train on the processor, and so does the server, unless `[memory]` is for a
    GPU: then what its history takes of the host's memory is counted. The steps are exactly those of the run unless the
    selector or the stop rule uses results of training, or the server may leave out updates. With `out`, the plan's
    `jobs` and `steps`, the clients' data and the world are written to `<out>/<name>/`, with a manifest of status
    `planned`. Raises ConfigError, DataError or TraceError as the run would.
    """
    cache = InputCache()
    with Given.of(task, model).read(configs, sets) as runs:
        return [plan_run(run, workers=workers, out=out, force=force, cache=cache) for run in runs]


@arguments.checked
@plugins.contained()
def plan_run(
    config: RunConfig,
    *,
    workers: int | Literal["auto"] = "auto",
    out: Path | str | None = None,
    force: bool = False,
    cache: InputCache | None = None,
) -> PlannedRun:
    """Plan one run, as `plan` does."""
    _check_ends(config)
    with one_thread():
        spec = planned_spec(config, cache)
        count = spec.auto_workers(cores(), 0) if workers == "auto" else workers_of(workers)
        return _planned(spec, count, None if out is None else as_path(out, "out"), force)


def planned_spec(config: RunConfig, cache: InputCache | None) -> RunSpec:
    """Build the parts of a run to plan, with the history as on a GPU if `[memory]` is for one."""
    return prepare(config, cache=cache, server_on="cuda" if config.memory.on_host else "cpu")


def _planned(spec: RunSpec, workers: int, out: Path | None, force: bool) -> PlannedRun:
    config, run_state = spec.config, RunState(spec.data.n_clients)
    recorder = None
    if out is not None:
        counts, names = spec.plan.facts.label_counts, spec.data.names
        recorder = begin(
            out / config.name, config, spec.trace, counts, names, run_state.job_table, force=force
        )
    started = time.perf_counter()
    tally = Tally(run_state, spec.plan.memory, recorder)
    trainer = CountingTrainer(spec, ahead=workers > 0)
    unwatched = replace(spec.plan, stop=replace(spec.plan.stop, metric=None))  # nothing is evaluated
    event_loop = EventLoop(spec.world, unwatched, trainer, tally, run_state)
    event_loop.run()
    event_loop.abandon()
    planned_s = time.perf_counter() - started
    if recorder is None:
        tally.crowded()
    else:
        finish(recorder, config, run_state, event_loop.ended_by)
        tally.jobs = recorder.counts
    return _planned_run(spec, event_loop, trainer, tally, workers, planned_s)


def _planned_run(
    spec: RunSpec,
    event_loop: EventLoop,
    trainer: CountingTrainer,
    tally: Tally,
    workers: int,
    planned_s: float,
) -> PlannedRun:
    run_state = event_loop.run_state
    remembered = np.array(tally.remembered, dtype=np.int64)
    passes = trainer.passes + trainer.audited
    loop_s = wall_s(spec, passes, trainer.evaluated, remembered, workers, trainer.adapted)
    return PlannedRun(
        name=spec.config.name,
        ended_by=event_loop.ended_by,
        steps=run_state.step,
        virtual_us=run_state.now_us,
        jobs=dict(sorted(tally.jobs.items())),
        clients=spec.data.n_clients,
        unseen=spec.data.n_unseen,
        chosen=int((run_state.client_records.dispatched > 0).sum()),
        samples=_samples(spec.data),
        label_counts=spec.plan.facts.label_counts,
        received=run_state.client_records.received,
        staleness=np.concatenate([np.zeros(0, dtype=np.int64), *tally.staleness]),
        step_us=np.array(tally.step_us, dtype=np.int64),
        waits=tally.waits,
        moved_bytes=run_state.moved_bytes,
        passes=trainer.passes,
        audited=trainer.audited,
        evaluations=len(tally.evaluated),
        measured=trainer.measured,
        exact=_exact(spec),
        wall_s=planned_s + loop_s,
        memory_bytes=spec.footprint(workers).parts(),
        planned_s=planned_s,
        outlives=spec.outlives(max(run_state.now_us, spec.plan.stop.time_us or 0)),
        unused=tuple(spec.unused_world()),
    )


def _samples(data: FederatedData) -> dict[str, int]:
    """Return how many samples of the task are in each split of the clients that train, and how many in none."""
    of_splits = {name: len(split.indices) for name, split in data.splits().items() if name != UNSEEN}
    return of_splits | {"other": len(data.y) - sum(of_splits.values())}


def _check_ends(config: RunConfig) -> None:
    refuse_fork(config)
    stop = config.stop
    if stop.steps is None and stop.time is None and stop.bytes is None:
        raise ConfigError(
            "stop.wall: a run that wall time alone ends cannot be planned: set stop.steps, stop.time or stop.bytes"
        )


def _exact(spec: RunSpec) -> str:
    """Return why the run's events may differ from the plan's; empty if they cannot."""
    plan, bad = spec.plan, spec.config.bad_updates
    needs = sorted(
        {"losses" if need == "asked" else need for need in plan.selector.needs - {"labels", "deadline"}}
    )
    if needs:
        return (
            f"selector {spec.config.selection.name!r} looks at {', '.join(needs)}, which a plan does not know"
        )
    if plan.stop.metric is not None:
        return f"the run may end earlier, when {plan.stop.metric!r} reaches its target or stops improving"
    if plan.stop.wall_s is not None:
        return "the run may end earlier, by wall time"
    if bad.policy == "stop":
        return "the run may end earlier, by an update that [bad_updates] refuses"
    if bad.longest is not None:
        return "the server may leave out updates that are longer than bad_updates.limit"
    changing = [adversary.name for adversary in spec.bench.adversaries if adversary.attack().send is not None]
    if changing:
        return f"the server may leave out updates that adversary {changing[0]!r} changes"
    return ""


def table(planned: PlannedRun) -> Table:
    """Return a plan's figures for the terminal."""
    return facts_table(_lines(planned), f"plan of {planned.name}")


def _lines(planned: PlannedRun) -> list[tuple[str, str]]:
    total, audits = max(sum(planned.jobs.values()), 1), 100 * planned.audited / max(planned.passes, 1)
    jobs = ", ".join(f"{n:,} {status} ({100 * n / total:.1f} %)" for status, n in planned.jobs.items())
    labels = (planned.label_counts > 0).sum(axis=1)
    gaps, took = np.diff(np.concatenate([[0], planned.step_us])), show_us(planned.virtual_us)
    lines = [
        ("steps", f"{planned.steps:,} in {took} of virtual time; ended by {planned.ended_by}"),
        *(("world", text.partition(": ")[2]) for text in (planned.outlives, *planned.unused) if text),
        ("time between steps*", _spread(gaps, lambda q: show_us(round(q)))),
        ("jobs", jobs or "none"),
        ("samples", ", ".join(f"{n:,} {name}" for name, n in planned.samples.items() if n)),
        ("train samples per client*", _spread(planned.label_counts.sum(axis=1), "{:,g}".format)),
        ("labels per client*", _spread(labels, "{:g}".format, f" of {planned.label_counts.shape[1]}")),
        ("clients chosen", f"{planned.chosen:,} of {planned.clients:,}"),
        *([("unseen clients", f"{planned.unseen:,}, only evaluated")] if planned.unseen else []),
        ("updates per client*", _spread(planned.received, "{:g}".format)),
        ("staleness*", _spread(planned.staleness, "{:g}".format, " steps")),
        ("waits for a client", f"{planned.waits:,} time{'s' * (planned.waits != 1)}"),
        ("moved", show_bytes(planned.moved_bytes)),
        ("evaluations", f"{planned.evaluations:,}"),
        ("audits", f"{audits:.0f} % more training" if audits else "none"),
        ("timeline", "exactly that of the run" if not planned.exact else f"approximate: {planned.exact}"),
        ("wall time of the run", f"{show_estimate(planned.wall_s)} (planned in {planned.planned_s:.1f} s)"),
        ("memory of the run", _memory(planned.memory_bytes)),
    ]
    return [*lines, ("", "* quartiles: lower | median | upper")]


def _memory(parts: Mapping[str, int]) -> str:
    """Return the total of the parts of the memory and those of at least 1 % of it, the largest first, as text."""
    total = parts["total"]
    largest = sorted((each for each in parts.items() if each[0] != "total"), key=lambda each: -each[1])
    shown = [f"{name} {show_bytes(n)}" for name, n in largest if 100 * n >= total]
    return f"{show_bytes(total)}: {', '.join(shown)}"


def _spread(values: np.ndarray, write: Callable[[float], str], unit: str = "") -> str:
    """Return the quartiles of values as text; `none` if there are no values."""
    if not len(values):
        return "none"
    return " | ".join(map(write, np.quantile(values, (0.25, 0.5, 0.75)).tolist())) + unit
