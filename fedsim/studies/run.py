"""Runs studies: all cells of a grid in several processes, in which finished cells are skipped and others resumed."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

import psutil

from fedsim import analysis, plugins
from fedsim.common import arguments
from fedsim.common.errors import INPUT_ERRORS, Changed, ConfigError, Error
from fedsim.common.files import make_directory
from fedsim.common.paths import as_path
from fedsim.common.signals import Interrupts
from fedsim.common.terminal import Terminal
from fedsim.common.threads import at_most
from fedsim.common.units import show_bytes
from fedsim.config.given import Given, GivenTask, ModelFactory
from fedsim.config.load import Sets, Source
from fedsim.config.study.study import StudyConfig
from fedsim.execution.actor_pool import workers_of
from fedsim.records.environment import plugin_files
from fedsim.records.run_folder import lock
from fedsim.runs.build import prepare
from fedsim.runs.inputs import InputCache
from fedsim.runs.resources import Device, device_of, one_thread
from fedsim.studies.cell import CellRunner
from fedsim.studies.folder import StudyFolder
from fedsim.studies.grid import Cell, by_levels, cells_of
from fedsim.studies.load_study import load_study, source_of
from fedsim.studies.progress import Board
from fedsim.studies.queue import Queue
from fedsim.studies.tune import provisional, to_tune, tuned, tuning_study
from fedsim.studies.workers import Pool, begin_imports


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a study."""

    folder: Path
    done: int
    failed: tuple[tuple[Cell, str], ...]
    """Cells that failed, with their errors."""
    interrupted: bool

    def __repr__(self) -> str:
        ended = f"{self.done} done, {len(self.failed)} failed" + ", interrupted" * self.interrupted
        return f"<{type(self).__name__} {self.folder}: {ended}>"


@arguments.checked
def study(
    study: Source,
    sets: Sets = (),
    *,
    task: GivenTask = None,
    model: ModelFactory | None = None,
    scale: str | None = None,
    seeds: str | int | Sequence[int] | None = None,
    out: Path | str = "runs",
    jobs: int | Literal["auto"] = "auto",
    device: Device = "auto",
    force: bool = False,
) -> Outcome:
    """Run the unfinished cells of a study, given by its file or as a dict of its tables; writes `<out>/<name>/`.

    With `[tune]`, the study `<name>_tuning` runs first; if it is interrupted, its Outcome is returned.

    `sets`, `scale` and `seeds` are as for `load_study`, `task` and `model` as for `simulate`, the rest as for
    `run_study`. With several processes, call it in a script below `if __name__ == "__main__":`, as with
    `multiprocessing`.
    """
    read = partial(load_study, study, scale=scale, sets=sets, seeds=seeds)
    source = source_of(study)

    def run(config: StudyConfig, tuning: bool = False) -> Outcome:
        folder = opened(config, source, out, force=force, tuning=tuning)
        for note in folder.notes:
            warnings.warn(note, Changed, stacklevel=4)
        return run_study(Board(folder, Terminal(quiet=True)), jobs=jobs, device=device)

    with Given.of(task, model).of_study(read) as config:
        if to_tune(config):
            tuning = run(tuning_before(config, source, out), tuning=True)
            if tuning.interrupted:
                return tuning
            config = tuned(config, analysis.open_study(tuning.folder))
        return run(config)


@arguments.checked
def opened(
    study: StudyConfig, source: str, out: Path | str, *, force: bool = False, tuning: bool = False
) -> StudyFolder:
    """Return the folder `<out>/<name>` of a study with the states of its cells; nothing is written.

    `source` names the file in messages; a `tuning` study keeps the results of levels that have a value. Raises
    ConfigError for cells that cannot be run, and without `force` for those that were run with another configuration.
    """
    parent, cells = as_path(out, "out"), cells_of(study, source)
    if parent.exists() and not parent.is_dir():
        raise ConfigError(f"out: expected a folder, found the file {parent}")
    return StudyFolder(parent / study.name, study, cells, force=force, keep_others=tuning)


def tuning_before(study: StudyConfig, source: str, out: Path | str) -> StudyConfig:
    """Return the tuning study of a study. Raises as `opened` does if the study itself has no place in `out`."""
    tuning = tuning_study(study, source)
    opened(provisional(study), source, out, force=True)  # before hours of tuning
    return tuning


@arguments.checked
@plugins.read_once()
def run_study(board: Board, *, jobs: int | Literal["auto"] = "auto", device: Device = "auto") -> Outcome:
    """Run the unfinished cells of the board's folder. The Outcome lists the cells that fail.

    Args:
        jobs: processes, each of which runs one cell at a time; "auto": one per core; 1: this process. The results do
            not depend on it, bit for bit.
        device: where to compute, as for `simulate`.

    Raises ConfigError, DataError or TraceError before anything is written if a combination of levels cannot be run, or
    if the processes need more memory than is free; FolderError if the data differ from those of cells that are done;
    RunError if another process runs the study. At an interrupt the running cells are saved; Ctrl-C after it raises
    KeyboardInterrupt.
    """
    folder, interrupts, cache = board.folder, Interrupts(), InputCache()
    count = processes_of(jobs, folder)
    if count > 1:
        begin_imports()
    check_memory(_most_memory(folder, device, cache), count)
    make_directory(folder.path)
    with lock(folder.path):
        try:
            with interrupts.handled():
                folder.begin()
                board.begin()
                queue = Queue(folder.left, folder.study.seeds)
                if count > 1:
                    del cache  # each process has its own
                    Pool(count, device, board, interrupts, _plugin_files(folder.left)).run(queue)
                else:
                    _run_here(queue, board, CellRunner(device, interrupts, cache), interrupts)
        finally:
            folder.release()
    interrupted = interrupts.asked or board.interrupted
    return Outcome(folder.path, folder.count("done"), tuple(board.failed), interrupted)


def _plugin_files(cells: Sequence[Cell]) -> dict[str, plugins.Source]:
    """Return the files of the plug-ins that cells name, so that all processes run the same code."""
    combinations = [next(iter(alike)) for alike in by_levels(cells)]
    return {path: s for cell in combinations for path, s in plugin_files(cell.config.resolved()).items()}


def processes_of(jobs: int | Literal["auto"], folder: StudyFolder) -> int:
    """Return the number of processes for the unfinished cells."""
    return max(1, min(workers_of(jobs, "jobs", least=1), len(folder.left)))


def _most_memory(folder: StudyFolder, device: Device, cache: InputCache) -> int:
    """Return the bytes that the largest unfinished cell needs.

    Raises if a combination of levels cannot be run, or would see other data than cells that are done.
    """
    place, needed = device_of(device, anywhere=False), 0
    wrong: dict[str, tuple[Cell, Error]] = {}
    with at_most(1), one_thread():  # as in the processes that run cells
        for cell in map(folder.first_of, by_levels(folder.left)):
            try:
                spec = prepare(cell.config, place, cache)
            except INPUT_ERRORS as error:
                wrong.setdefault(str(error), (cell, error))
            else:
                folder.check_data(spec)
                needed = max(needed, spec.footprint(0).parts()["total"])
    if wrong:
        first = next(iter(wrong.values()))[1]
        raise type(first)("\n".join(f"{cell.title}: {text}" for text, (cell, _) in wrong.items())) from first
    return needed


def check_memory(needed: int, processes: int) -> None:
    """Raise ConfigError if the processes, each of which needs `needed` bytes, do not fit into the free memory."""
    free = psutil.virtual_memory().available
    if processes * needed <= free:
        return
    fits = free // needed
    advice = (
        f"take --jobs {fits}" if fits else "not even one fits: `fedsim plan` shows what the runs need it for"
    )
    raise ConfigError(
        f"--jobs: {processes} processes need {show_bytes(processes * needed)} of memory ({show_bytes(needed)} each), "
        f"but {show_bytes(free)} are free; {advice}"
    )


def _run_here(queue: Queue, board: Board, runner: CellRunner, interrupts: Interrupts) -> None:
    cell: Cell | None = None
    while not (interrupts.asked or board.interrupted) and (cell := queue.take(cell)) is not None:
        board.start(cell)
        board.finish(cell, runner.run(cell, board.folder.path / cell.folder, board.update))
