"""Studies: all cells of a grid, in several processes, each skipped if done and gone on with if it was stopped."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import psutil

from fedsim.common import arguments
from fedsim.common.errors import INPUT_ERRORS, ConfigError, Error
from fedsim.common.files import make_directory
from fedsim.common.paths import as_path
from fedsim.common.signals import Interrupts
from fedsim.common.terminal import Terminal
from fedsim.common.threads import at_most
from fedsim.common.units import show_bytes
from fedsim.config.study import StudyConfig, load_study
from fedsim.execution.actor_pool import workers_of
from fedsim.records.existing_run import run_in
from fedsim.records.run_folder import lock
from fedsim.runs.build import RunSpec, prepare
from fedsim.runs.inputs import InputCache
from fedsim.runs.resources import Device, device_of, one_thread
from fedsim.studies.cell import CellRunner, CellStatus, Ended
from fedsim.studies.folder import StudyFolder
from fedsim.studies.grid import Cell, cells_of
from fedsim.studies.progress import Board
from fedsim.studies.queue import Queue
from fedsim.studies.workers import Pool, begin_imports


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a study."""

    folder: Path
    done: int
    failed: tuple[tuple[Cell, str], ...]
    """Cells that failed, and why."""
    interrupted: bool


@arguments.checked
def study(
    path: Path | str,
    sets: Sequence[str] = (),
    *,
    scale: str | None = None,
    seeds: str | None = None,
    out: Path | str = "runs",
    jobs: int | Literal["auto"] = "auto",
    device: Device = "auto",
    force: bool = False,
) -> Outcome:
    """Run the cells of a study's file that are not done; writes `<out>/<name>/`.

    `sets`, `scale` and `seeds` are as for `load_study`, the rest as for `run_study`. With several processes, call it
    below `if __name__ == "__main__":`, as with `multiprocessing`.
    """
    path = as_path(path, "path")
    folder = opened(load_study(path, scale=scale, sets=sets, seeds=seeds), path.name, out, force=force)
    return run_study(folder, Board(Terminal(quiet=True)), jobs=jobs, device=device)


@arguments.checked
def opened(study: StudyConfig, source: str, out: Path | str, *, force: bool = False) -> StudyFolder:
    """Look at what is there of a study in `<out>/<name>`; nothing is written.

    source: names the file in messages. Raises ConfigError for cells that cannot be run, or, without `force`, that were
    run with another configuration.
    """
    return StudyFolder(as_path(out, "out") / study.name, study, cells_of(study, source), force=force)


@arguments.checked
def run_study(
    folder: StudyFolder, board: Board, *, jobs: int | Literal["auto"] = "auto", device: Device = "auto"
) -> Outcome:
    """Run the cells that are not done.

    Args:
        jobs: processes, each of which runs one cell at a time; "auto" takes one per core, and 1 this process. The
            results do not depend on it, bit for bit.
        device: where to compute, as for `simulate`.

    Raises ConfigError, DataError or TraceError if a combination of levels cannot be run, or if so many processes need
    more memory than is free, before anything is written; RunError if another process runs the study. Whatever becomes
    of single cells is in the Outcome. At an interrupt, cells that run are saved; a second one raises KeyboardInterrupt.
    """
    count, cache = processes_of(jobs, folder), InputCache()
    if count > 1:
        begin_imports()
    with at_most(1):  # as in the processes that run cells
        needed = max(
            (spec.footprint(0).parts()["total"] for spec in _prepared(folder, device, cache)), default=0
        )
    check_memory(needed, count)
    make_directory(folder.path)
    with lock(folder.path):
        folder.begin()
        board.begin(len(folder.cells), folder.count("done"))
        queue = Queue(folder.left, folder.study.seeds)
        told, interrupts = _Told(folder, board), Interrupts()
        try:
            with interrupts.handled():
                if count > 1:
                    del cache  # each process has its own
                    Pool(count, folder.path, device, told, interrupts).run(queue)
                else:
                    _run_here(queue, folder, CellRunner(device, interrupts, cache), told, interrupts)
        finally:
            folder.release()
    return Outcome(
        folder.path, folder.count("done"), tuple(told.failed), interrupts.asked or told.interrupted
    )


def processes_of(jobs: int | Literal["auto"], folder: StudyFolder) -> int:
    """Return how many processes are of use for what is left."""
    return max(1, min(workers_of(jobs), len(folder.left)))


def one_of_each(cells: Iterable[Cell]) -> list[list[Cell]]:
    """Return the cells that differ in nothing but their seed together."""
    groups: dict[tuple[str, ...], list[Cell]] = {}
    for cell in cells:
        groups.setdefault(tuple(cell.levels.values()), []).append(cell)
    return list(groups.values())


def _prepared(folder: StudyFolder, device: Device, cache: InputCache) -> Iterator[RunSpec]:
    """Build the parts of one run of each combination of levels that is left; in the end, raise if any cannot be."""
    place = device_of(device, anywhere=False)
    wrong: dict[str, tuple[Cell, Error]] = {}
    with one_thread():
        for cell, *_ in one_of_each(folder.left):
            try:
                spec = prepare(cell.config, place, cache)
            except INPUT_ERRORS as error:
                wrong.setdefault(str(error), (cell, error))
            else:
                yield spec
    if wrong:
        first = next(iter(wrong.values()))[1]
        raise type(first)("\n".join(f"{cell.title}: {text}" for text, (cell, _) in wrong.items())) from first


def check_memory(needed: int, processes: int) -> None:
    """Raise ConfigError if so many processes, each of which needs so many bytes, would not fit into what is free."""
    free = psutil.virtual_memory().available
    if processes * needed <= free:
        return
    fits = max(free // needed, 0)
    advice = (
        f"take --jobs {fits}" if fits else "not even one fits: `fedsim plan` says what the runs need it for"
    )
    raise ConfigError(
        f"--jobs: {processes} processes need {show_bytes(processes * needed)} of memory ({show_bytes(needed)} each), "
        f"but {show_bytes(free)} are free; {advice}"
    )


def _run_here(
    queue: Queue, folder: StudyFolder, runner: CellRunner, told: _Told, interrupts: Interrupts
) -> None:
    last: Cell | None = None
    while not (interrupts.asked or told.interrupted) and (cell := queue.take(last)) is not None:
        told.begun(cell)
        told.ended(cell, runner.play(cell, folder.path / cell.folder, told.told))
        last = cell


class _Told:
    """Writes down what happens to cells, and shows it."""

    def __init__(self, folder: StudyFolder, board: Board) -> None:
        self.folder, self.board = folder, board
        self.failed: list[tuple[Cell, str]] = []
        self.interrupted = False

    def begun(self, cell: Cell) -> None:
        self.folder.set(cell, "running")
        self.board.begun(cell)

    def told(self, standing: CellStatus) -> None:
        self.board.told(standing)

    def ended(self, cell: Cell, ended: Ended) -> None:
        state = ended.state
        self.folder.set(cell, state.status, digest=state.digest, error=state.error)
        if state.status == "failed":
            self.failed.append((cell, state.error or "no reason was given"))
        self.interrupted |= state.status == "interrupted"
        self.board.ended(cell, ended)

    def killed(self, cell: Cell, how: str, *, again: bool, stopping: bool) -> None:
        self.board.lost(cell, how, again=again)
        if again or stopping:
            state = run_in(self.folder.path / cell.folder, cell.config).state
            self.folder.set(cell, state.status, digest=state.digest, error=state.error)
        else:
            error = f"its process {how}, and so did the one before"
            self.folder.set(cell, "failed", error=error)
            self.failed.append((cell, error))

    def stopping(self) -> None:
        self.board.say("stopping: running cells are saved; Ctrl-C again stops now")
