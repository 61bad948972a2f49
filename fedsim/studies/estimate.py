"""What a study will take, said beforehand: cells, hours, disk and memory."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from rich.table import Table

from fedsim.common.terminal import shown
from fedsim.common.threads import at_most
from fedsim.common.units import show_bytes
from fedsim.runs.build import RunSpec, prepare
from fedsim.runs.inputs import InputCache
from fedsim.runs.plan import PlannedRun, plan
from fedsim.studies.folder import StudyFolder
from fedsim.studies.progress import shown_duration
from fedsim.studies.run import check_memory, one_of_each, processes_of

_ROW_BYTES = {"jobs": 50, "steps": 66, "evals": 9}
"""Of a row of each table on disk, compressed, as found in runs of `examples/quickstart.toml` of 20 and 400 steps."""
_FILES_BYTES = 20_000
"""Of manifest, configuration, and what each table takes however short."""


@dataclass(frozen=True, slots=True)
class StudyPlan:
    """What the cells that are left will take."""

    name: str
    cells: int
    done: int
    processes: int
    cell_s: tuple[float, float]
    """Wall time of the shortest and of the longest cell."""
    work_s: float
    """Wall time of all cells that are left, one after the other."""
    there_bytes: int
    """What the cells that are done take on disk."""
    disk_bytes: int
    """What those that are left will take."""
    memory_bytes: int
    """Of one process, at most."""
    unsure: tuple[str, ...]
    """Why cells may differ from the prediction."""


def plan_study(folder: StudyFolder, *, jobs: int | Literal["auto"] = "auto") -> StudyPlan:
    """Predict what is left of a study: one cell of each combination of levels stands for those with other seeds.

    Disk is predicted from the rows that a run will write. Raises what a run would raise, and ConfigError if so many
    processes need more memory than is free.
    """
    count, cache = processes_of(jobs, folder), InputCache()
    work_s, disk, memory, each_s = 0.0, 0, 0, []
    unsure: dict[str, None] = {}
    for alike in one_of_each(folder.left):
        config = alike[0].config
        with at_most(1):  # as in the processes that run cells
            found = plan(config, workers=0, cache=cache)
        each_s.append(found.wall_s)
        work_s += found.wall_s * len(alike)
        disk += disk_bytes(found, prepare(config, cache=cache)) * len(alike)
        memory = max(memory, found.memory_bytes["total"])
        if found.exact:
            unsure[found.exact] = None
    check_memory(memory, count)
    return StudyPlan(
        name=folder.study.name,
        cells=len(folder.cells),
        done=folder.count("done"),
        processes=count,
        cell_s=(min(each_s, default=0.0), max(each_s, default=0.0)),
        work_s=work_s,
        there_bytes=sum(
            _size(folder.path / cell.folder)
            for cell, state in zip(folder.cells, folder.states, strict=True)
            if state.status == "done"
        ),
        disk_bytes=disk,
        memory_bytes=memory,
        unsure=tuple(unsure),
    )


def disk_bytes(found: PlannedRun, spec: RunSpec) -> int:
    """Predict the bytes of a finished run's folder, from the rows of its tables; the world counts uncompressed."""
    evaluated = min(spec.config.evaluate.clients or found.clients, found.clients)
    rows = {
        "jobs": sum(found.jobs.values()),
        "steps": found.steps,
        "evals": found.evaluations * evaluated,
    }
    models = 1 + (found.clients if spec.bench.method().personal is not None else 0)
    tables = sum(_ROW_BYTES[table] * n for table, n in rows.items())
    return _FILES_BYTES + tables + spec.trace.nbytes + 4 * spec.network.P * models


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def plan_table(plan: StudyPlan) -> Table:
    """Return what a plan says, for the terminal."""
    result = Table(
        title=shown(f"plan of study {plan.name}"), show_header=False, box=None, title_justify="left"
    )
    result.add_column(style="bold")
    result.add_column(overflow="fold")
    for name, text in _lines(plan):
        result.add_row(name, text)
    return result


def _lines(plan: StudyPlan) -> list[tuple[str, str]]:
    n, left = plan.processes, plan.cells - plan.done
    shortest, longest = map(shown_duration, plan.cell_s)
    processes = f"{n} process{'es' if n > 1 else ''}"
    # The last cells leave processes idle; no cell is divided.
    wall_s = max(plan.work_s / n, plan.cell_s[1])
    return [
        ("cells", f"{plan.cells:,}: {plan.done:,} done, {left:,} left"),
        ("one cell", f"{shortest} to {longest}"),
        ("wall time", f"about {wall_s / 3600:.2f} h with {processes}, {plan.work_s / 3600:.2f} h of work"),
        ("disk", f"{show_bytes(plan.disk_bytes)}, beside {show_bytes(plan.there_bytes)} of what is done"),
        (
            "memory",
            f"{show_bytes(plan.memory_bytes)} at most for one process, {show_bytes(n * plan.memory_bytes)} for {n}",
        ),
        *(("approximate", text) for text in plan.unsure),
    ]
