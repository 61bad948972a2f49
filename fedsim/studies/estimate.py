"""Estimates the wall time, disk and memory of the unfinished cells of a study."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from rich.table import Table

from fedsim.common.terminal import facts_table
from fedsim.common.threads import at_most
from fedsim.common.units import show_bytes, show_estimate, show_wall
from fedsim.config.records import CheckpointSection
from fedsim.config.run import RunConfig
from fedsim.runs.inputs import InputCache
from fedsim.runs.plan.plan import PlannedRun, plan_run, planned_spec
from fedsim.runs.spec import RunSpec
from fedsim.studies.folder import StudyFolder
from fedsim.studies.grid import by_levels
from fedsim.studies.run import check_memory, processes_of

_ROW_BYTES = {"jobs": 50, "steps": 66, "evals": 9}
"""Compressed size of a row of each table, measured in runs of `examples/quickstart.toml` of 20 and 400 steps."""
_FILES_BYTES = 20_000
"""Size of the manifest, the configuration, and the parts of tables that do not depend on their length."""


@dataclass(frozen=True, slots=True)
class StudyPlan:
    """The estimated cost of the unfinished cells of a study."""

    name: str
    cells: int
    done: int
    processes: int
    cell_s: tuple[float, float]
    """Wall times of the shortest and the longest cell."""
    work_s: float
    """Wall time of all unfinished cells, one after the other."""
    done_bytes: int
    """Size of the folders of finished cells."""
    disk_bytes: int
    """Size of the folders of unfinished cells at their ends."""
    memory_bytes: int
    """Memory of the largest process."""
    unsure: tuple[str, ...]
    """Reasons why runs may differ from the estimate."""


def plan_study(folder: StudyFolder, *, jobs: int | Literal["auto"] = "auto") -> StudyPlan:
    """Estimate the unfinished cells of a study from one cell of each combination of levels.

    The size on disk is estimated from the numbers of rows. Raises what a run would raise, and ConfigError if the
    processes need more memory than is free.
    """
    count, cache = processes_of(jobs, folder), InputCache()
    runs = [
        (*_planned(folder.first_of(cells).config, folder, cache), len(cells))
        for cells in by_levels(folder.left)
    ]
    each_s = [run.wall_s for run, *_ in runs]
    memory = max((run.memory_bytes["total"] for run, *_ in runs), default=0)
    check_memory(memory, count)
    left = {cell.number for cell in folder.left}
    return StudyPlan(
        name=folder.study.name,
        cells=len(folder.cells),
        done=folder.count("done"),
        processes=count,
        cell_s=(min(each_s, default=0.0), max(each_s, default=0.0)),
        work_s=sum(run.wall_s * n for run, _, n in runs),
        done_bytes=sum(_size(folder.path / c.folder) for c in folder.cells if c.number not in left),
        disk_bytes=sum(size * n for _, size, n in runs),
        memory_bytes=memory,
        unsure=tuple(dict.fromkeys(run.exact for run, *_ in runs if run.exact)),
    )


def _planned(config: RunConfig, folder: StudyFolder, cache: InputCache) -> tuple[PlannedRun, int]:
    """Plan a cell; return the plan and the size of its folder at its end in bytes."""
    with at_most(1):  # as in the processes that run cells
        planned = plan_run(config, workers=0, cache=cache)
    spec = planned_spec(config, cache)
    folder.check_data(spec)
    return planned, disk_bytes(planned, spec)


def disk_bytes(planned: PlannedRun, spec: RunSpec) -> int:
    """Estimate the size of a finished run's folder from the rows of its tables; the world counts uncompressed."""
    rows = {"jobs": sum(planned.jobs.values()), "steps": planned.steps, "evals": planned.measured}
    models = 1 + (planned.clients if spec.bench.method().personal is not None else 0)
    tables = sum(_ROW_BYTES[table] * n for table, n in rows.items())
    kept = _kept_checkpoints(planned, spec.config.checkpoint)
    checkpoints = kept * spec.footprint(0).checkpoint_bytes(planned.chosen) if kept else 0
    return _FILES_BYTES + tables + spec.trace.nbytes + 4 * spec.network.P * models + checkpoints


def _kept_checkpoints(planned: PlannedRun, section: CheckpointSection) -> int:
    """Return how many checkpoints a finished run keeps."""
    if section.keep != "all":
        return 0
    by_steps = planned.steps // section.every_steps if section.every_steps else 0
    return max(by_steps, int(planned.wall_s / section.every_s) if section.every_s else 0)


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def plan_table(plan: StudyPlan) -> Table:
    """Return a plan's figures for the terminal."""
    n, memory = plan.processes, plan.memory_bytes
    wall_s = max(plan.work_s / n, plan.cell_s[1])  # a process runs whole cells
    work = f"{show_wall(plan.work_s)} of work"
    facts = {
        "cells": f"{plan.cells:,}: {plan.done:,} done, {plan.cells - plan.done:,} left",
        "one cell": " to ".join(dict.fromkeys(map(show_wall, plan.cell_s))),
        "wall time": f"{show_estimate(wall_s)} with {n} process{'es' if n > 1 else ''}, {work}",
        "disk": f"{show_bytes(plan.disk_bytes)}, beside {show_bytes(plan.done_bytes)} of finished cells",
        "memory": f"{show_bytes(memory)} at most for one process, {show_bytes(n * memory)} for {n}",
    }
    reasons = [("approximate", text) for text in plan.unsure]
    return facts_table([*facts.items(), *reasons], f"plan of study {plan.name}")
